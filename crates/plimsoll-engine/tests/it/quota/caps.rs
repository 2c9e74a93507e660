//! Concurrency: whatever way a create comes by, and however many come at once (R1, R2, R5, S2, S6).

use plimsoll_engine::rows::Limit;
use plimsoll_engine::{Command, Read, Reply, ReserveMode, SandboxFilter};
use plimsoll_types::{
    GuestStatus, HostOutcome, Millis, OnFull, RefusalCode, ReservationId, SandboxId, Vcpus,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Bed, MINUTE, caller, code, gib, guest, refusal, sandbox};

pub(super) fn flat(limit: u64) -> Limit {
    Limit::flat(limit)
}

fn bed() -> Bed {
    let mut bed = Bed::new();
    bed.forkable();
    bed.report(Vec::new());
    bed
}

#[test]
fn a_cap_of_10_gib_admits_two_guests_of_4_by_every_way() {
    for way in 0..4 {
        let mut bed = bed();
        bed.tenant("acme", |limits| limits.concurrency.memory_mib = flat(10 * 1024));
        let first = bed.run_of("acme", |create| create.memory_mib = gib(4));
        let ask = |bed: &mut Bed| match way {
            0 => bed.create_of("acme", |create| create.memory_mib = gib(4)),
            1 => bed.fork_of("acme", first),
            2 => {
                let item = bed.item(4096);
                let command = bed.reserve(item, ReserveMode::Reject);
                bed.call(&caller("acme"), command)
            }
            _ => bed.batch_of("acme", 1, 4096),
        };
        assert_eq!(code(&ask(&mut bed)), None, "way {way}");
        let reply = ask(&mut bed);
        assert_eq!(refusal(&reply).code, RefusalCode::QuotaExceeded, "way {way}");
        let hit = refusal(&reply).limit.clone().unwrap();
        assert_eq!((hit.used, hit.incoming, hit.limit), (8192, 4096, 10 * 1024));
        assert_eq!(bed.in_use("acme")[2], 8192);
        // What is smaller still fits, to the last MiB.
        assert_eq!(code(&bed.batch_of("acme", 1, 2048)), None);
        assert_eq!(code(&bed.batch_of("acme", 1, 1)), Some(RefusalCode::QuotaExceeded));
    }
}

#[test]
fn a_resume_adds_nothing_and_is_never_refused_for_quota() {
    let mut bed = bed();
    bed.tenant("acme", |limits| limits.concurrency.sandboxes = flat(2));
    let id = bed.run_of("acme", |_| {});
    bed.call(&caller("acme"), Command::Pause { id });
    bed.answer(HostOutcome::Done);
    // Paused ones count, so nothing is let in meanwhile that a resume would be above.
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
    assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::QuotaExceeded));
    bed.change_plan("acme", |limits| limits.concurrency.sandboxes = flat(1));
    assert_eq!(code(&bed.resume_of("acme", id)), None);
}

#[test]
fn a_batch_over_the_cap_takes_nothing() {
    let mut bed = bed();
    bed.tenant("acme", |limits| limits.concurrency.vcpus = flat(5));
    assert_eq!(code(&bed.batch_of("acme", 6, 64)), Some(RefusalCode::QuotaExceeded));
    assert_eq!(bed.in_use("acme"), [0, 0, 0]);
    assert_eq!(code(&bed.batch_of("acme", 5, 64)), None);
}

#[test]
fn a_reservation_that_nobody_commits_blocks_its_tenant_for_its_ttl_and_no_longer() {
    let mut bed = bed();
    bed.tenant("acme", |limits| limits.concurrency.sandboxes = flat(3));
    assert_eq!(code(&bed.batch_of("acme", 3, 64)), None);
    assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::QuotaExceeded));
    // Also across a restart: expiry is an instant.
    bed.restart();
    bed.report(Vec::new());
    assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::QuotaExceeded));
    bed.pass(MINUTE);
    assert_eq!(bed.in_use("acme"), [0, 0, 0]);
    bed.report(Vec::new());
    assert_eq!(code(&bed.batch_of("acme", 3, 64)), None);
}

#[test]
fn counters_follow_the_fleet_and_the_correction_is_said() {
    let mut bed = bed();
    bed.tenant("acme", |limits| limits.concurrency.sandboxes = flat(16));
    let ids: Vec<SandboxId> = (0..16).map(|_| bed.run_of("acme", |_| {})).collect();
    assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::QuotaExceeded));
    let three: Vec<_> = ids[..3].iter().map(|id| guest(*id, GuestStatus::Running, 64)).collect();
    for _ in 0..2 {
        bed.pass(10_000);
        bed.report(three.clone());
    }
    assert_eq!(bed.in_use("acme")[0], 3);
    let said = bed.events("quota.corrected");
    assert_eq!(said.len(), 13);
    assert!(said.iter().all(|event| {
        event.tenant.is_none()
            && event.data["correction"] == "missing"
            && event.data["tenant"] == "acme"
    }));
    assert_eq!(code(&bed.batch_of("acme", 13, 64)), None);
    assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::QuotaExceeded));
}

#[test]
fn a_burst_lasts_as_long_as_its_credit_and_evicts_nobody() {
    let mut bed = bed();
    let burst = Limit { limit: Some(10), burst_limit: Some(30) };
    bed.tenant("acme", |limits| limits.concurrency.sandboxes = burst);
    assert_eq!(code(&bed.batch_of("acme", 30, 64)), None);
    assert_eq!(code(&bed.batch_of("acme", 1, 64)), Some(RefusalCode::QuotaExceeded));
    let Reply::Reservations { rows, .. } = bed.batch_of("default", 1, 64) else { panic!() };
    assert_eq!(rows.len(), 1);
    let seconds = |bed: &mut Bed| bed.quota("acme").concurrency[0].1.burst_seconds_left;
    assert_eq!(seconds(&mut bed), Some(3600));
    // The thirty lapse after a minute; twenty of them for a minute have drained a minute.
    bed.pass(MINUTE);
    assert_eq!(bed.in_use("acme")[0], 0);
    assert_eq!(seconds(&mut bed), Some(3540));
    bed.pass(5_000);
    bed.restart();
    bed.report(Vec::new());
    assert!(seconds(&mut bed).unwrap() <= 3541);
}

/// Found by the simulator: the time since the last write was settled record by record as these came
/// back, as if the first of them had been all there was.
#[test]
fn a_burst_goes_on_being_spent_while_the_cell_is_down() {
    let mut bed = bed();
    let burst = Limit { limit: Some(1), burst_limit: Some(3) };
    bed.tenant("acme", |limits| limits.concurrency.sandboxes = burst);
    assert_eq!(code(&bed.batch_of("acme", 3, 64)), None);
    bed.pass(6_000);
    bed.now = bed.now + Millis(30_000);
    bed.restart();
    let left = bed.quota("acme").concurrency[0].1.burst_seconds_left;
    assert_eq!(left, Some(3600 - 36));
}

/// Found by the simulator: a restart right after the end of a long burst counted all of its time by
/// what was in use then, and paid back what had been spent.
#[test]
fn a_burst_that_has_just_ended_is_spent_after_a_restart() {
    let mut bed = bed();
    let burst = Limit { limit: Some(1), burst_limit: Some(3) };
    bed.tenant("acme", |limits| limits.concurrency.sandboxes = burst);
    assert_eq!(code(&bed.batch_of("acme", 3, 64)), None);
    // They lapse after a minute. Nothing has changed in between, and nothing was written.
    bed.pass(MINUTE);
    assert_eq!(bed.in_use("acme")[0], 0);
    bed.restart();
    let left = bed.quota("acme").concurrency[0].1.burst_seconds_left;
    assert_eq!(left, Some(3600 - 60));
}

/// Found by the simulator: what had been spent above the smaller credit was paid back first.
#[test]
fn credit_comes_back_at_once_after_a_change_to_a_smaller_burst() {
    let mut bed = bed();
    let burst = |burst| Limit { limit: Some(1), burst_limit: Some(burst) };
    bed.tenant("acme", |limits| limits.concurrency.sandboxes = burst(100));
    assert_eq!(code(&bed.batch_of("acme", 100, 64)), None);
    // They lapse after a minute: 99 for a minute are more than 1 for an hour.
    bed.pass(MINUTE);
    assert_eq!(bed.in_use("acme")[0], 0);
    bed.change_plan("acme", |limits| limits.concurrency.sandboxes = burst(2));
    let left = |bed: &mut Bed| bed.quota("acme").concurrency[0].1.burst_seconds_left;
    assert_eq!(left(&mut bed), Some(0));
    bed.pass(4 * MINUTE);
    assert_eq!(left(&mut bed), Some(10));
}

/// One of the ways to ask for something, or to give it up.
#[derive(Clone, Copy, Debug)]
enum Way {
    Create(u64),
    Queue(u64),
    Fork,
    Reserve(u64),
    Wait(u64),
    DryRun(u64),
    Batch(usize, u64),
    Delete(usize),
    Release(usize),
    Pause(usize),
    Resume(usize),
    Answer,
    Refuse,
    Pass(u64),
    Restart,
}

fn ways() -> impl Strategy<Value = Vec<Way>> {
    let memory = || prop_oneof![Just(64_u64), Just(300), Just(1024)];
    let way = prop_oneof![
        3 => memory().prop_map(Way::Create),
        2 => memory().prop_map(Way::Queue),
        2 => Just(Way::Fork),
        3 => memory().prop_map(Way::Reserve),
        1 => memory().prop_map(Way::Wait),
        1 => memory().prop_map(Way::DryRun),
        2 => (1_usize..6, memory()).prop_map(|(items, memory)| Way::Batch(items, memory)),
        2 => (0_usize..50).prop_map(Way::Delete),
        2 => (0_usize..50).prop_map(Way::Release),
        1 => (0_usize..50).prop_map(Way::Pause),
        1 => (0_usize..50).prop_map(Way::Resume),
        4 => Just(Way::Answer),
        1 => Just(Way::Refuse),
        1 => (1_u64..40_000).prop_map(Way::Pass),
        1 => Just(Way::Restart),
    ];
    vec(way, 1..80)
}

/// What lives of a tenant, by walking all records.
fn alive(bed: &mut Bed, reservations: &[ReservationId]) -> [u64; 3] {
    let filter = SandboxFilter { limit: 10_000, ..SandboxFilter::default() };
    let Reply::Sandboxes { items, .. } =
        bed.call(&super::operator(), Command::Read(Read::Sandboxes(filter)))
    else {
        panic!()
    };
    let mut sum = [0; 3];
    for view in items.iter().filter(|view| view.row.status.counts_for_quota()) {
        sum = [sum[0] + 1, sum[1] + view.row.vcpus.0, sum[2] + view.row.memory_mib.0];
    }
    for id in reservations {
        let read = Command::Read(Read::Reservation(*id));
        if let Reply::Reservation { row, .. } = bed.call(&super::operator(), read)
            && row.state.holds()
        {
            sum = [sum[0] + 1, sum[1] + row.vcpus.0, sum[2] + row.memory_mib.0];
        }
    }
    sum
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Against one cap, by every way at once, interleaved, with refusals by hosts and restarts:
    /// never above it, and nothing leaks below it.
    #[test]
    fn no_mix_of_ways_passes_a_cap_or_leaks_below_it(
        ways in ways(), counter in 0_usize..3, cap in 3_u64..9,
    ) {
        let cap = if counter == 2 { cap * 300 } else { cap };
        let mut bed = bed();
        bed.tenant("acme", |limits| {
            let limits = &mut limits.concurrency;
            *[&mut limits.sandboxes, &mut limits.vcpus, &mut limits.memory_mib][counter] = flat(cap);
        });
        let acme = caller("acme");
        let mut sandboxes: Vec<SandboxId> = Vec::new();
        let mut reservations: Vec<ReservationId> = Vec::new();
        for way in ways {
            match way {
                Way::Create(memory) | Way::Queue(memory) => {
                    let queue = matches!(way, Way::Queue(_));
                    let reply = bed.create_of("acme", |create| {
                        create.memory_mib = Some(plimsoll_types::Mib(memory));
                        create.vcpus = Some(Vcpus(1 + memory / 512));
                        create.on_full = if queue { OnFull::Queue } else { OnFull::Reject };
                    });
                    if code(&reply).is_none() {
                        sandboxes.push(sandbox(&reply).row.id);
                    }
                }
                Way::Fork => {
                    if let Some(from) = sandboxes.last().copied()
                        && let reply = bed.fork_of("acme", from)
                        && code(&reply).is_none()
                    {
                        sandboxes.push(sandbox(&reply).row.id);
                    }
                }
                Way::Reserve(memory) | Way::Wait(memory) | Way::DryRun(memory) => {
                    let mode = match way {
                        Way::Reserve(_) => ReserveMode::Reject,
                        Way::Wait(_) => ReserveMode::Wait { seconds: 20 },
                        _ => ReserveMode::DryRun,
                    };
                    let item = bed.item(memory);
                    reservations.push(item.id);
                    let command = bed.reserve(item, mode);
                    bed.send(&acme, command);
                }
                Way::Batch(items, memory) => {
                    if let Reply::Reservations { rows, .. } = bed.batch_of("acme", items, memory) {
                        reservations.extend(rows.iter().map(|row| row.id));
                    }
                }
                Way::Delete(which) => {
                    if let Some(id) = sandboxes.get(which % sandboxes.len().max(1)).copied() {
                        bed.send(&acme, Command::Delete { id });
                    }
                }
                Way::Release(which) => {
                    if let Some(id) = reservations.get(which % reservations.len().max(1)).copied() {
                        bed.send(&acme, Command::Release { id });
                    }
                }
                Way::Pause(which) => {
                    if let Some(id) = sandboxes.get(which % sandboxes.len().max(1)).copied() {
                        bed.send(&acme, Command::Pause { id });
                    }
                }
                Way::Resume(which) => {
                    if let Some(id) = sandboxes.get(which % sandboxes.len().max(1)).copied() {
                        let decision = bed.decision();
                        bed.send(&acme, Command::Resume { id, decision });
                    }
                }
                Way::Answer => {
                    if !bed.sent.is_empty() {
                        bed.answer(HostOutcome::Done);
                    }
                }
                Way::Refuse => {
                    if !bed.sent.is_empty() {
                        let detail = "full".to_owned();
                        let code = RefusalCode::NoCapacity;
                        bed.answer(HostOutcome::Refused { code, detail });
                    }
                }
                Way::Pass(millis) => bed.later(millis),
                Way::Restart => {
                    bed.restart();
                    bed.later(0);
                }
            }
            let sum = alive(&mut bed, &reservations);
            prop_assert_eq!(bed.in_use("acme"), sum, "after {:?}", way);
            prop_assert!(sum[counter] <= cap, "{} of {cap} after {way:?}", sum[counter]);
        }
        // Give everything up: the whole cap is there again.
        for id in sandboxes {
            bed.send(&acme, Command::Delete { id });
        }
        for id in reservations {
            bed.send(&acme, Command::Release { id });
        }
        bed.pass(2 * MINUTE);
        bed.restart();
        bed.report(Vec::new());
        prop_assert_eq!(bed.in_use("acme"), [0, 0, 0]);
        let items = if counter == 2 { 1 } else { usize::try_from(cap).unwrap() };
        let memory = if counter == 2 { cap } else { 64 };
        prop_assert_eq!(code(&bed.batch_of("acme", items, memory)), None);
        prop_assert_eq!(code(&bed.batch_of("acme", 1, 1)), Some(RefusalCode::QuotaExceeded));
    }
}
