//! Metering: once, in its own hour and period, whatever is late, repeated, lost or restarted (Q2).

use std::collections::BTreeMap;

use plimsoll_engine::rows::{Change, OTHER_CLAIMS, Rows, UsageRow};
use plimsoll_engine::{Command, EngineConfig, Input, ReserveMode, Token};
use plimsoll_types::{
    ClaimId, Driver, GuestReport, GuestStatus, HostOutcome, Millis, RefusalCode, SandboxId,
    SandboxStatus, TemplateName, Timestamp,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::kept;
use super::{Bed, DAY, HOUR, MINUTE, at_rest, caller, code, gib, guest, used};

/// 31 January 2027, 23:00 UTC.
pub(super) const LAST_HOUR_OF_JANUARY: Timestamp = Timestamp(1_801_436_400_000);
pub(super) const FEBRUARY: Timestamp = Timestamp(1_801_440_000_000);

pub(super) fn rows_of(bed: &Bed, id: impl Into<super::super::bed::Guest>) -> Vec<UsageRow> {
    let claim = guest(id, GuestStatus::Running, 0).id;
    kept::usage(&bed.changes).into_iter().filter(|row| row.claim == claim).collect()
}

pub(super) fn sum(rows: &[UsageRow], of: impl Fn(&UsageRow) -> u64) -> u64 {
    rows.iter().map(of).sum()
}

pub(super) fn end(bed: &mut Bed, id: SandboxId) {
    let row = bed.show(id).row;
    bed.call(&caller(row.tenant.as_str()), Command::Delete { id });
}

/// A guest that keeps one core busy from `since` on.
pub(super) fn busy(id: SandboxId, since: Timestamp, now: Timestamp) -> GuestReport {
    used(id, 512, now.since(since).0)
}

pub(super) fn bed_at(now: Timestamp) -> Bed {
    let mut bed = Bed::with(EngineConfig::default(), Rows::default(), 1, now);
    bed.report(Vec::new());
    bed.tenant("acme", |_| {});
    bed
}

pub(super) fn bed() -> Bed {
    bed_at(Timestamp(1_800_000_000_000))
}

#[test]
fn a_host_that_was_away_for_90_seconds_reports_late_and_twice_and_is_billed_once() {
    let mut bed = bed();
    bed.change_plan("acme", |limits| limits.consumption.cpu_seconds = Some(160));
    let id = bed.run_of("acme", |_| {});
    let start = bed.now;
    bed.beat(MINUTE, |now| vec![busy(id, start, now)]);
    assert_eq!(bed.consumed("acme")[0], 60);
    bed.pass(90_000);
    // Nothing is refused for the gap itself, of which another host knows nothing either: what is
    // not known is not used.
    bed.heartbeat("h2", |report| report.memory_mib_admittable = Some(30 * 1024));
    let other = bed.run_of("acme", |create| create.memory_mib = Some(plimsoll_types::Mib(64)));
    end(&mut bed, other);
    bed.answer(HostOutcome::Done);
    assert!(bed.events("quota.warning").is_empty());
    assert_eq!(bed.consumed("acme")[0], 60);
    bed.report(vec![busy(id, start, bed.now)]);
    assert_eq!(bed.consumed("acme")[0], 150);
    // The same report again, and an older one that was under way all the while.
    for (sequence, at) in [(8, bed.now), (5, start + Millis(50_000))] {
        let guests = vec![busy(id, start, at)];
        bed.heartbeat("h1", |report| {
            report.sequence = sequence;
            report.guests = guests;
        });
    }
    // And the same total under a new number.
    bed.report(vec![busy(id, start, bed.now)]);
    assert_eq!(bed.consumed("acme")[0], 150);
    end(&mut bed, id);
    let rows = rows_of(&bed, id);
    assert_eq!(sum(&rows, |row| row.cpu_millis), 150_000);
    assert_eq!(sum(&rows, |row| row.charged_mib_millis), 512 * 150_000);
    assert_eq!(bed.events("quota.warning").len(), 1);
}

#[test]
fn counters_that_begin_anew_are_billed_on_from_there_and_none_that_only_waver() {
    let mut bed = bed();
    let id = bed.run_of("acme", |_| {});
    let mut total = |boot: &str, seconds: u64, cpu_seconds: u64| {
        bed.pass(seconds * 1_000);
        let guests = vec![used(id, 512, cpu_seconds * 1_000)];
        bed.heartbeat("h1", |report| {
            report.boot_id = boot.to_owned();
            report.guests = guests;
        });
        bed.consumed("acme")[0]
    };
    assert_eq!(total("boot-1", 400, 4_000), 4_000);
    // Its reporter starts again, and counts from its start.
    assert_eq!(total("boot-2", 3, 3), 4_003);
    assert_eq!(total("boot-2", 2, 5), 4_005);
    assert_eq!(total("boot-2", 400, 4_005), 8_005);
    // So do the counters under a reporter that goes on.
    assert_eq!(total("boot-2", 4, 1), 8_006);
    assert_eq!(total("boot-2", 400, 2_001), 10_006);
    // More than sixteen cores can have used since the last report is no new beginning.
    assert_eq!(total("boot-2", 10, 1_990), 10_006);
    assert_eq!(total("boot-2", 10, 2_002), 10_007);
}

#[test]
fn a_restart_credits_on_exactly_where_it_was() {
    let mut bed = bed();
    let id = bed.run_of("acme", |_| {});
    let start = bed.now;
    for _ in 0..7 {
        // Killed at any moment between two writes; the reports in between were answered.
        bed.beat(130_000, |now| vec![busy(id, start, now)]);
        bed.restart();
        bed.report(vec![busy(id, start, bed.now)]);
        let live = bed.now.since(start).0;
        assert_eq!(bed.consumed("acme")[0], live / 1000);
    }
    end(&mut bed, id);
    let live = bed.now.since(start).0;
    let rows = rows_of(&bed, id);
    assert_eq!(sum(&rows, |row| row.cpu_millis), live);
    assert_eq!(sum(&rows, |row| row.charged_mib_millis), 512 * live);
    assert_eq!(sum(&rows, |row| row.resident_mib_millis), 512 * (live - 10_000));
}

#[test]
fn a_checkpointed_guest_stops_the_meter_and_a_frozen_one_does_not() {
    let mut bed = bed();
    bed.template("vm", |template| template.driver = Driver::Gvisor);
    let vm = TemplateName::new("vm").unwrap();
    let written = bed.run_of("acme", |create| create.template = vm);
    let frozen = bed.run_of("acme", |_| {});
    let start = bed.now;
    bed.beat(MINUTE, |now| vec![busy(written, start, now), busy(frozen, start, now)]);
    for id in [written, frozen] {
        bed.call(&caller("acme"), Command::Pause { id });
        bed.answer(HostOutcome::Done);
    }
    bed.beat(HOUR, |_| vec![at_rest(written, 0, 60_000), at_rest(frozen, 512, 60_000)]);
    assert!(bed.show(written).row.slot_released);
    // A restart in between does not bill the time at rest either.
    bed.restart();
    bed.report(vec![at_rest(written, 0, 60_000), at_rest(frozen, 512, 60_000)]);
    assert_eq!(bed.show(written).row.status, SandboxStatus::Paused);
    for id in [written, frozen] {
        assert_eq!(code(&bed.resume_of("acme", id)), None);
        bed.answer(HostOutcome::Done);
    }
    // The cell is killed right after the resume.
    bed.restart();
    bed.sent.clear();
    bed.beat(MINUTE, |now| {
        let cpu = 60_000 + now.since(start).0 - 61 * MINUTE;
        vec![used(written, 512, cpu), used(frozen, 512, cpu)]
    });
    for id in [written, frozen] {
        end(&mut bed, id);
    }
    let memory = |bed: &Bed, id| sum(&rows_of(bed, id), |row| row.charged_mib_millis);
    assert_eq!(memory(&bed, written), 512 * 2 * MINUTE);
    assert_eq!(memory(&bed, frozen), 512 * (HOUR + 2 * MINUTE));
    assert_eq!(sum(&rows_of(&bed, written), |row| row.cpu_millis), 120_000);
}

#[test]
fn a_guest_that_is_started_again_counts_from_zero_and_loses_nothing() {
    let mut bed = bed();
    let id = bed.run_of("acme", |_| {});
    let start = bed.now;
    bed.beat(MINUTE, |now| vec![busy(id, start, now)]);
    bed.call(&caller("acme"), Command::Stop { id });
    bed.answer(HostOutcome::Done);
    let decision = bed.decision();
    bed.call(&caller("acme"), Command::Start { id, decision });
    bed.answer(HostOutcome::Done);
    // The old attempt's last word comes late, beside the new one's first.
    let second = GuestReport { attempt: 2, ..used(id, 512, 4_000) };
    bed.pass(10_000);
    bed.report(vec![used(id, 512, 61_000), second.clone()]);
    assert_eq!(bed.consumed("acme")[0], 65);
    bed.pass(10_000);
    bed.report(vec![second]);
    assert_eq!(bed.consumed("acme")[0], 65);
}

#[test]
fn a_total_that_cannot_be_is_not_believed_and_said_once() {
    let mut bed = bed();
    let id = bed.run_of("acme", |_| {});
    bed.pass(10_000);
    // Sixteen cores for the ten seconds and the minute of slack, and a millisecond.
    for _ in 0..3 {
        bed.report(vec![used(id, 512, 16 * 70_000 + 1)]);
    }
    assert_eq!(bed.consumed("acme")[0], 0);
    let said = bed.events("quota.corrected");
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].data["correction"], "usage_not_believed");
    bed.report(vec![used(id, 512, 16 * 70_000)]);
    assert_eq!(bed.consumed("acme")[0], 16 * 70);
}

#[test]
fn a_lost_guest_is_billed_to_its_last_sign_of_life_and_its_last_total_still_comes() {
    let mut bed = bed();
    let id = bed.run_of("acme", |_| {});
    let start = bed.now;
    bed.beat(MINUTE, |now| vec![busy(id, start, now)]);
    bed.pass(121_000);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Failed);
    assert_eq!(sum(&rows_of(&bed, id), |row| row.charged_mib_millis), 512 * MINUTE);
    // Its host comes back and lists it as ended, with what it has used in the end.
    let last = GuestReport { status: GuestStatus::Exited, ..used(id, 0, 75_000) };
    bed.report(vec![last.clone()]);
    bed.report(vec![last]);
    assert_eq!(sum(&rows_of(&bed, id), |row| row.cpu_millis), 75_000);
    assert_eq!(bed.consumed("acme")[0], 75);
}

#[test]
fn a_reservation_uses_memory_from_its_commit_to_its_release() {
    let mut bed = bed();
    let reserve = |bed: &mut Bed| {
        let item = bed.item(4096);
        let id = item.id;
        let command = bed.reserve(item, ReserveMode::Reject);
        assert_eq!(code(&bed.call(&caller("acme"), command)), None);
        id
    };
    let (plain, measured, forgotten) = (reserve(&mut bed), reserve(&mut bed), reserve(&mut bed));
    bed.later(30_000);
    for (id, cgroup) in [(plain, None), (measured, Some("/machine/1".into()))] {
        bed.call(&caller("acme"), Command::Commit { id, cgroup });
    }
    let mut total = 0;
    for _ in 0..6 {
        bed.pass(10_000);
        total += 5_000;
        let guest = GuestReport {
            cpu_millis_total_used: total,
            ..guest(measured, GuestStatus::Running, 300)
        };
        bed.heartbeat("h1", |report| {
            report.guests = vec![guest];
            report.reservations = vec![plain];
        });
    }
    bed.restart();
    bed.pass(10_000);
    for id in [plain, measured, forgotten] {
        bed.call(&caller("acme"), Command::Release { id });
    }
    let of = |id: plimsoll_types::ReservationId| {
        let rows: Vec<UsageRow> = kept::usage(&bed.changes)
            .into_iter()
            .filter(|row| row.claim == ClaimId::Reservation(id))
            .collect();
        (sum(&rows, |row| row.charged_mib_millis), sum(&rows, |row| row.cpu_millis))
    };
    // Without a cgroup its host charges all of it; with one, its reserve until it is measured.
    assert_eq!(of(plain), (4096 * 70_000, 0));
    assert_eq!(of(measured).1, 30_000);
    let memory = of(measured).0;
    assert!((1024 * 10_000 + 300 * 50_000..=1024 * 20_000 + 300 * 60_000).contains(&memory));
    assert_eq!(of(forgotten), (0, 0));
    assert_eq!(bed.consumed("acme")[0], 30);
}

#[test]
fn egress_is_counted_and_every_counter_has_its_limit() {
    let mut bed = bed();
    bed.change_plan("acme", |limits| limits.consumption.egress_bytes = Some(1_000_000));
    let id = bed.run_of("acme", |_| {});
    bed.pass(10_000);
    bed.report(vec![GuestReport { egress_bytes_total: 999_999, ..used(id, 512, 0) }]);
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
    bed.report(vec![GuestReport { egress_bytes_total: 1_000_000, ..used(id, 512, 0) }]);
    assert_eq!(bed.consumed("acme")[2], 1_000_000);
    let reply = bed.create_of("acme", |_| {});
    assert_eq!(code(&reply), Some(RefusalCode::BudgetExhausted));
    let hit = super::refusal(&reply).limit.clone().unwrap();
    assert_eq!((hit.name, hit.used, hit.limit), ("egress_bytes", 1_000_000, 1_000_000));
}

#[test]
fn memory_is_billed_by_the_gib_hour_as_charged() {
    let mut bed = bed();
    bed.change_plan("acme", |limits| limits.consumption.gib_hours = Some(8));
    let id = bed.run_of("acme", |create| {
        create.memory_mib = gib(4);
        create.stateful = Some(true);
    });
    bed.beat(HOUR, |_| vec![used(id, 4096, 0)]);
    assert_eq!(bed.consumed("acme"), [0, 4, 0]);
    let top = bed.quota("acme").top_consumers;
    assert_eq!(top, [(id.to_string(), 0, 4_000)]);
    bed.beat(HOUR - 10_000, |_| vec![used(id, 4096, 0)]);
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
    bed.beat(10_000, |_| vec![used(id, 4096, 0)]);
    assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::BudgetExhausted));
}

#[test]
fn top_consumers_are_those_who_have_used_most_dead_or_alive() {
    let mut bed = bed();
    let mut ids = Vec::new();
    for n in 0..12_u64 {
        let id = bed.run_of("acme", |create| create.memory_mib = Some(plimsoll_types::Mib(64)));
        ids.push((id, n * 1000));
    }
    bed.pass(20_000);
    bed.report(ids.iter().map(|(id, cpu)| used(*id, 64, *cpu)).collect());
    end(&mut bed, ids[11].0);
    let check = |bed: &mut Bed| {
        let top = bed.quota("acme").top_consumers;
        let expected: Vec<(String, u64)> =
            ids.iter().rev().take(8).map(|(id, cpu)| (id.to_string(), cpu / 1000)).collect();
        let got: Vec<(String, u64)> = top.into_iter().map(|(id, cpu, _)| (id, cpu)).collect();
        assert_eq!(got, expected);
    };
    check(&mut bed);
    bed.pass(MINUTE);
    bed.report(ids[..11].iter().map(|(id, cpu)| used(*id, 64, *cpu)).collect());
    bed.restart();
    check(&mut bed);
}

#[test]
fn what_comes_back_summed_counts_and_is_nobodys() {
    let mut bed = bed();
    let id = bed.run_of("acme", |_| {});
    bed.pass(10_000);
    bed.report(vec![used(id, 512, 3_000)]);
    end(&mut bed, id);
    let mut rows = kept::rows(&bed.changes);
    let others =
        |row: &UsageRow| UsageRow { claim: OTHER_CLAIMS, cpu_millis: 7_000, ..row.clone() };
    let summed = others(&rows.usage[0]);
    rows.usage.insert(0, summed);
    let mut bed = Bed::over(rows, 9, bed.now);
    assert_eq!(bed.consumed("acme")[0], 10);
    let top = bed.quota("acme").top_consumers;
    assert_eq!(top.iter().map(|(id, ..)| id.clone()).collect::<Vec<_>>(), [id.to_string()]);
}

#[test]
fn an_anchor_day_that_is_changed_holds_from_the_next_period_on() {
    let mut bed = bed();
    // While nothing was ever used it holds at once.
    bed.change_tenant("acme", |row| row.anchor_day = Some(20));
    assert_eq!(bed.quota("acme").period, "2026-12-20");
    bed.change_tenant("acme", |row| row.anchor_day = None);
    let id = bed.run_of("acme", |_| {});
    bed.pass(10_000);
    bed.report(vec![used(id, 512, 10_000)]);
    let resets = bed.quota("acme").resets_at;
    assert_eq!((bed.quota("acme").period.as_str(), resets), ("2027-01", FEBRUARY));
    bed.change_tenant("acme", |row| row.anchor_day = Some(10));
    assert_eq!(bed.consumed("acme")[0], 10);
    assert_eq!(bed.quota("acme").resets_at, resets);
    bed.pass(5_000);
    bed.restart();
    assert_eq!(bed.quota("acme").resets_at, resets);
    bed.pass(resets.since(bed.now).0);
    let quota = bed.quota("acme");
    assert_eq!(quota.period, "2027-02-01");
    assert_eq!(quota.resets_at, FEBRUARY + Millis(9 * DAY));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Time passes, and a report arrives.
    Report(u64),
    /// Time passes, and the report is lost.
    Lost(u64),
    /// The last report arrives again.
    Again,
    Kill,
    Pause,
    Resume,
    Stop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (1_u64..12_000).prop_map(Step::Report),
        2 => (1_u64..40_000).prop_map(Step::Lost),
        2 => Just(Step::Again),
        2 => Just(Step::Kill),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => Just(Step::Stop),
    ];
    vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever is late, lost, repeated or killed: CPU comes out to the millisecond, every row
    /// keeps within its hour, memory is never billed for time at rest, and the sum that decides
    /// is the sum of the rows.
    #[test]
    fn use_is_credited_once_whatever_happens_to_reports_and_cells(
        steps in steps(), into_hour in 0_u64..3_600_000,
    ) {
        let mut bed = bed_at(LAST_HOUR_OF_JANUARY + Millis(into_hour));
        bed.template("vm", |template| template.driver = Driver::Gvisor);
        let vm = TemplateName::new("vm").unwrap();
        let id = bed.run_of("acme", |create| create.template = vm);
        // The truth: totals by attempt, and the time in which memory was held.
        let mut cpu: BTreeMap<u32, u64> = BTreeMap::new();
        let mut held = 0;
        let (mut attempt, mut last) = (1, bed.now);
        let mut sequence = 100;
        let running = |bed: &mut Bed| bed.show(id).row.status == SandboxStatus::Running;
        let live = |bed: &mut Bed, cpu: &mut BTreeMap<u32, u64>, held: &mut u64, attempt: u32,
                    last: &mut Timestamp| {
            let length = bed.now.since(*last).0;
            if bed.show(id).row.status == SandboxStatus::Running {
                *cpu.entry(attempt).or_default() += length;
                *held += length;
            }
            *last = bed.now;
        };
        let say = |bed: &mut Bed, cpu: &BTreeMap<u32, u64>, attempt: u32, sequence: u64| {
            let row = bed.show(id).row;
            let guests = cpu.range(..=attempt).map(|(attempt, total)| {
                let newest = *attempt == row.attempt;
                let status = match row.status {
                    _ if !newest => GuestStatus::Exited,
                    SandboxStatus::Running => GuestStatus::Running,
                    SandboxStatus::Stopped => GuestStatus::Exited,
                    _ => GuestStatus::Paused,
                };
                let charge = if status == GuestStatus::Running { 512 } else { 0 };
                GuestReport { attempt: *attempt, status, ..used(id, charge, *total) }
            });
            let guests: Vec<GuestReport> = guests.collect();
            bed.heartbeat("h1", |report| {
                report.sequence = sequence;
                report.guests = guests;
                report.memory_mib_admittable = Some(30 * 1024);
                report.complete = false;
            });
        };
        cpu.insert(1, 0);
        for step in steps {
            // Ends of strays are answered at once.
            while !bed.sent.is_empty() {
                bed.answer(HostOutcome::Done);
            }
            match step {
                Step::Report(wait) => {
                    bed.pass(wait);
                    live(&mut bed, &mut cpu, &mut held, attempt, &mut last);
                    sequence += 1;
                    say(&mut bed, &cpu, attempt, sequence);
                }
                Step::Lost(wait) => {
                    bed.pass(wait);
                    live(&mut bed, &mut cpu, &mut held, attempt, &mut last);
                    sequence += 1;
                    // Never silent for so long that it is given up on.
                    if last.since(Timestamp(0)).0 % 3 == 0 || wait > 20_000 {
                        sequence += 1;
                        say(&mut bed, &cpu, attempt, sequence);
                    }
                }
                Step::Again => say(&mut bed, &cpu, attempt, sequence),
                Step::Kill => {
                    bed.restart();
                    bed.sent.clear();
                }
                Step::Pause if running(&mut bed) => {
                    live(&mut bed, &mut cpu, &mut held, attempt, &mut last);
                    bed.call(&caller("acme"), Command::Pause { id });
                    bed.answer(HostOutcome::Done);
                }
                Step::Stop if running(&mut bed) => {
                    live(&mut bed, &mut cpu, &mut held, attempt, &mut last);
                    bed.call(&caller("acme"), Command::Stop { id });
                    bed.answer(HostOutcome::Done);
                }
                Step::Resume if !running(&mut bed) => {
                    sequence += 1;
                    say(&mut bed, &cpu, attempt, sequence);
                    bed.resume_of("acme", id);
                    while !bed.sent.is_empty() {
                        bed.answer(HostOutcome::Done);
                    }
                    attempt = bed.show(id).row.attempt;
                    cpu.entry(attempt).or_default();
                    last = bed.now;
                }
                Step::Pause | Step::Stop | Step::Resume => {}
            }
        }
        while !bed.sent.is_empty() {
            bed.answer(HostOutcome::Done);
        }
        live(&mut bed, &mut cpu, &mut held, attempt, &mut last);
        sequence += 1;
        say(&mut bed, &cpu, attempt, sequence);
        bed.call(&caller("acme"), Command::Delete { id });
        let rows = rows_of(&bed, id);
        prop_assert_eq!(sum(&rows, |row| row.cpu_millis), cpu.values().sum::<u64>());
        prop_assert_eq!(sum(&rows, |row| row.charged_mib_millis), 512 * held);
        for row in &rows {
            prop_assert_eq!(row.hour.0 % 3_600_000, 0);
            // Two attempts can be credited with the same time by the two reports around it.
            prop_assert!(row.charged_mib_millis <= 512 * 3_600_000);
        }
        for _ in 0..2 {
            let period = if bed.now < FEBRUARY { LAST_HOUR_OF_JANUARY } else { FEBRUARY };
            let within: Vec<UsageRow> =
                rows.iter().filter(|row| row.hour >= period).cloned().collect();
            prop_assert_eq!(bed.consumed("acme")[0], sum(&within, |row| row.cpu_millis) / 1000);
            bed.restart();
        }
    }
}

#[test]
fn what_a_claim_keeps_is_bounded_however_long_it_lives() {
    let mut bed = bed();
    let id = bed.run_of("acme", |_| {});
    let start = bed.now;
    let before = bed.changes.len();
    bed.beat(6 * HOUR, |now| vec![busy(id, start, now)]);
    let written =
        bed.changes[before..].iter().filter(|change| matches!(change, Change::Usage(_))).count();
    // Once a minute, and once more at the end of each hour.
    assert!(written <= 6 * 61, "{written}");
    assert_eq!(rows_of(&bed, id).len(), 6);
    // Nobody asks for a token that was never given out.
    bed.input(Input::Requests { counts: Vec::new() });
    assert!(bed.reply(Token(0)).is_none());
}
