use plimsoll_host::{DriverOp, DriverResult, FoundState, HostEvent, HostInput};
use plimsoll_types::{Fence, GuestStatus, HeartbeatAnswer, Millis, PauseKind, Regime, SandboxId};

use crate::rig::{Rig, config, end, sample, spec, start};

fn beat(rig: &mut Rig, answer: HeartbeatAnswer) {
    let report = rig.host.heartbeat(rig.now);
    rig.input(HostInput::HeartbeatAnswered { sequence: report.sequence, answer: Box::new(answer) });
}

fn accepted() -> HeartbeatAnswer {
    HeartbeatAnswer { accepted: true, ..HeartbeatAnswer::default() }
}

#[test]
fn a_heartbeat_is_due_every_period_and_soon_after_a_change() {
    let mut rig = Rig::new(config());
    assert_eq!(rig.heartbeats_asked, 1, "the first at once");
    rig.input(HostInput::Tick);
    assert_eq!(rig.heartbeats_asked, 1, "asked for once");
    beat(&mut rig, accepted());
    assert_eq!(rig.host.next_wake(), Some(Millis(rig.now.uptime.0 + 10_000)));
    rig.pass(9_999);
    rig.input(HostInput::Tick);
    assert_eq!(rig.heartbeats_asked, 1);
    rig.pass(1);
    rig.input(HostInput::Tick);
    assert_eq!(rig.heartbeats_asked, 2);
    beat(&mut rig, accepted());

    rig.pass(100);
    rig.send(start(spec(1)));
    assert_eq!(rig.heartbeats_asked, 2, "not within a second of the last");
    rig.pass(900);
    rig.input(HostInput::Tick);
    assert_eq!(rig.heartbeats_asked, 3);
}

#[test]
fn the_cell_may_ask_for_more_heartbeats_and_not_for_fewer() {
    let mut rig = Rig::new(config());
    rig.host.limit_heartbeat(Millis(60_000));
    assert_eq!(rig.host.config().heartbeat, Millis(10_000));
    rig.host.limit_heartbeat(Millis(500));
    beat(&mut rig, accepted());
    assert_eq!(rig.host.next_wake(), Some(Millis(rig.now.uptime.0 + 500)));
}

#[test]
fn a_large_change_of_the_machine_is_told_at_once_and_a_small_one_is_not() {
    let mut rig = Rig::new(config());
    beat(&mut rig, accepted());
    rig.pass(2_000);
    rig.input(HostInput::Sample(Box::new(sample(1_500))));
    assert_eq!(rig.heartbeats_asked, 1);
    rig.input(HostInput::Sample(Box::new(sample(1_700))));
    assert_eq!(rig.heartbeats_asked, 2);
}

#[test]
fn an_unheard_heartbeat_is_repeated_soon_and_then_less_often() {
    let mut rig = Rig::new(config());
    let mut waits = Vec::new();
    for _ in 0..6 {
        rig.host.heartbeat(rig.now);
        rig.input(HostInput::HeartbeatFailed);
        let due = rig.host.next_wake().unwrap().0;
        waits.push(due - rig.now.uptime.0);
        rig.pass(waits[waits.len() - 1]);
        rig.input(HostInput::Tick);
    }
    assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
    assert_eq!(rig.heartbeats_asked, 7);
}

#[test]
fn the_pools_regime_holds_unless_the_owner_set_another() {
    let mut rig = Rig::new(config());
    assert_eq!(rig.host.regime(), Regime::WorkingSet);
    let committed = HeartbeatAnswer { regime: Some(Regime::Committed), ..accepted() };
    beat(&mut rig, committed.clone());
    assert_eq!(rig.host.report(rig.now).memory_admission, Some(Regime::Committed));

    let mut own = config();
    own.regime = Some(Regime::None);
    let mut rig = Rig::new(own);
    beat(&mut rig, committed);
    assert_eq!(rig.host.regime(), Regime::None);
}

#[test]
fn a_guest_named_as_unexpected_is_ended_at_the_second_word() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    let named = HeartbeatAnswer {
        unexpected_guests: vec![format!("{}.1", SandboxId(1)), "nonsense".to_owned()],
        ..accepted()
    };
    beat(&mut rig, named.clone());
    rig.pass(10_000);
    beat(&mut rig, named.clone());
    assert!(rig.calls.is_empty());
    rig.pass(5_000);
    beat(&mut rig, accepted());
    beat(&mut rig, named.clone());
    assert!(rig.calls.is_empty(), "the words were not in a row");
    rig.pass(15_000);
    beat(&mut rig, named);
    assert_eq!(rig.calls[0].op, DriverOp::End);
    assert!(rig.events.contains(&HostEvent::UnexpectedEnded { id: SandboxId(1) }));
}

#[test]
fn a_stateful_guest_is_not_ended_on_an_answers_word() {
    let mut rig = Rig::new(config());
    let mut database = spec(1);
    database.stateful = true;
    rig.run(database);
    let named = HeartbeatAnswer { unexpected_guests: vec![SandboxId(1).to_string()], ..accepted() };
    for _ in 0..3 {
        beat(&mut rig, named.clone());
        rig.pass(20_000);
    }
    assert!(rig.calls.is_empty());
    assert!(rig.events.contains(&HostEvent::UnexpectedKept { id: SandboxId(1) }));
    rig.send(end(1));
    assert_eq!(rig.calls[0].op, DriverOp::End);
}

#[test]
fn an_answer_says_nothing_about_a_guest_that_its_report_did_not_know() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    let named = HeartbeatAnswer { unexpected_guests: vec![SandboxId(2).to_string()], ..accepted() };
    let report = rig.host.heartbeat(rig.now);
    // Meanwhile the very guest is started.
    rig.run(spec(2));
    rig.input(HostInput::HeartbeatAnswered { sequence: report.sequence, answer: Box::new(named) });
    rig.pass(20_000);
    beat(&mut rig, accepted());
    assert!(rig.calls.is_empty());
    assert_eq!(rig.host.running(SandboxId(2)), Some(1));
}

#[test]
fn totals_go_on_over_a_restore() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    let see = |rig: &mut Rig, cpu: u64| {
        let mut seen = sample(100);
        seen.guests = vec![crate::rig::measured(1, 50)];
        seen.guests[0].cpu_millis_total_used = Some(cpu);
        rig.input(HostInput::Sample(Box::new(seen)));
        rig.host.report(rig.now).guests[0].cpu_millis_total_used
    };
    assert_eq!(see(&mut rig, 700), 700);
    rig.send(crate::rig::pause(1, plimsoll_types::PauseKind::Checkpoint));
    rig.done(DriverResult::Done);
    rig.send(crate::rig::resume(1));
    rig.done(DriverResult::Done);
    // Drivers tell the total of the attempt's whole life: what was used before is in it.
    assert_eq!(see(&mut rig, 900), 900);
    assert_eq!(see(&mut rig, 850), 900, "a lower total is an older one");
}

fn used(rig: &mut Rig, id: u128, cpu: u64) {
    rig.input(HostInput::Used {
        id: SandboxId(id),
        attempt: 1,
        cpu_millis_total_used: Some(cpu),
        egress_bytes_total: None,
    });
}

/// Ids and CPU of what a report says of ended guests.
fn told(report: &plimsoll_types::HostReport) -> Vec<(String, u64)> {
    report.ended.iter().map(|one| (one.id.to_string(), one.cpu_millis_total_used)).collect()
}

fn end_with(rig: &mut Rig, id: u128, cpu: u64) {
    rig.send(crate::rig::end(id));
    used(rig, id, cpu);
    rig.done(DriverResult::Done);
}

#[test]
fn last_totals_of_an_ended_guest_are_told_until_the_cell_has_taken_them() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    rig.run(spec(2));
    let (first, second) = (SandboxId(1).to_string(), SandboxId(2).to_string());
    // It ends between two samples: only its end tells what it used.
    end_with(&mut rig, 1, 4_200);
    let lost = rig.host.heartbeat(rig.now);
    assert_eq!(told(&lost), [(first.clone(), 4_200)]);
    assert_eq!(lost.guests.len(), 1);
    rig.input(HostInput::HeartbeatFailed);
    // One that the cell does not take as the latest has told it nothing either.
    beat(&mut rig, HeartbeatAnswer::default());
    let taken = rig.host.heartbeat(rig.now);
    assert_eq!(told(&taken), [(first.clone(), 4_200)]);
    // Another ends while that one is under way.
    end_with(&mut rig, 2, 7);
    let answer = Box::new(accepted());
    rig.input(HostInput::HeartbeatAnswered { sequence: taken.sequence, answer });
    let rest = rig.host.heartbeat(rig.now);
    assert_eq!(told(&rest), [(second, 7)]);
    let answer = Box::new(accepted());
    rig.input(HostInput::HeartbeatAnswered { sequence: rest.sequence, answer });
    assert_eq!(told(&rig.host.heartbeat(rig.now)), []);
}

#[test]
fn last_totals_outlive_the_agent() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    end_with(&mut rig, 1, 4_200);
    let wanted = [(SandboxId(1).to_string(), 4_200)];
    let mut again = plimsoll_host::Host::restore(config(), rig.journal.clone());
    assert_eq!(told(&again.report(rig.now)), wanted);
    // And a journal that was written anew.
    let mut again = plimsoll_host::Host::restore(config(), rig.host.snapshot());
    assert_eq!(told(&again.report(rig.now)), wanted);
}

#[test]
fn a_stopped_guest_tells_what_it_used_to_its_end_and_so_does_the_attempt_that_it_was() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    rig.send(crate::rig::stop(1));
    used(&mut rig, 1, 900);
    rig.done(DriverResult::Done);
    let report = rig.host.report(rig.now);
    assert_eq!(report.guests[0].cpu_millis_total_used, 900);
    assert_eq!(told(&report), []);
    // Started again before any heartbeat: the list names the new attempt alone.
    rig.run(plimsoll_types::GuestSpec { attempt: 2, ..spec(1) });
    let report = rig.host.report(rig.now);
    assert_eq!((report.guests.len(), report.guests[0].cpu_millis_total_used), (1, 0));
    assert_eq!((report.ended[0].attempt, report.ended[0].cpu_millis_total_used), (1, 900));
}

#[test]
fn a_report_accounts_for_every_admitted_start() {
    let mut rig = Rig::new(config());
    rig.send_as(Fence { epoch: 1, number: 40 }, None, start(spec(1)));
    let report = rig.host.report(rig.now);
    assert_eq!(report.seen_through, Some(40));
    assert_eq!(report.memory_mib_admittable, Some(31 * 1024 - 1024));
    assert_eq!(report.starts_in_flight, 1);
    assert_eq!(report.sequence + 1, rig.host.report(rig.now).sequence);
}

#[test]
fn what_a_guest_did_by_itself_is_taken_over_and_old_observations_are_not() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    let observe = |rig: &mut Rig, state, as_of| {
        rig.input(HostInput::Observed { id: SandboxId(1), attempt: 1, state, as_of });
    };
    let before = rig.host.revision();
    rig.send(crate::rig::pause(1, PauseKind::Keep));
    observe(&mut rig, FoundState::Exited { code: Some(1) }, before);
    rig.done(DriverResult::Done);
    observe(&mut rig, FoundState::Running, before);
    assert_eq!(rig.host.report(rig.now).guests[0].status, GuestStatus::Paused);

    // Somebody else thawed it, and then it ended.
    let now = rig.host.revision();
    observe(&mut rig, FoundState::Running, now);
    assert_eq!(rig.host.running(SandboxId(1)), Some(1));
    let now = rig.host.revision();
    observe(&mut rig, FoundState::Exited { code: Some(9) }, now);
    assert_eq!(rig.host.report(rig.now).guests[0].exit_code, Some(9));
    assert_eq!(rig.charged(), 0);
}
