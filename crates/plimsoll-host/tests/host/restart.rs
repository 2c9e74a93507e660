use plimsoll_host::{
    DriverOp, DriverResult, Found, FoundState, Host, HostEvent, HostInput, JournalEntry,
};
use plimsoll_types::{Fence, GuestStatus, HostOutcome, Mib, PauseKind, SandboxId};

use crate::rig::{Rig, config, end, measured, pause, sample, spec, start, stop};

fn found(id: u128, state: FoundState) -> Found {
    Found { id: SandboxId(id), attempt: 1, state, spec: None }
}

/// The same machine some time later, the agent started anew from the text of its journal.
fn restart(old: &Rig, later_millis: u64, machine_boot: &str) -> Rig {
    let text: Vec<String> =
        old.journal.iter().map(|entry| serde_json::to_string(entry).unwrap()).collect();
    let entries: Vec<JournalEntry> =
        text.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut config = config();
    config.boot_id = "boot-2".to_owned();
    config.machine_boot = machine_boot.to_owned();
    let machine = JournalEntry::Machine { boot: "machine-1".to_owned() };
    let mut rig = Rig::bare(Host::restore(config, [machine].into_iter().chain(entries)));
    rig.now = old.now;
    rig.next_number = old.next_number;
    rig.pass(later_millis);
    rig
}

fn see(rig: &mut Rig, guests: &[(u128, u64)]) {
    let mut seen = sample(guests.iter().map(|(_, resident)| resident).sum());
    seen.guests = guests.iter().map(|(id, resident)| measured(*id, *resident)).collect();
    rig.input(HostInput::Sample(Box::new(seen)));
}

#[test]
fn start_times_and_decay_survive_a_restart_of_the_agent() {
    // Public failure H5.
    let mut old = Rig::new(config());
    old.run(spec(1));
    old.pass(33_000);
    let mut new = restart(&old, 30_000, "machine-1");
    let early = new.host.report(new.now);
    assert!(!early.complete);
    assert_eq!(early.memory_mib_admittable, None);
    new.adopt(vec![found(1, FoundState::Running)]);
    see(&mut new, &[(1, 300)]);
    assert_eq!(new.charged(), 512, "60 of 120 s of decay have passed");
    let report = new.host.report(new.now);
    assert!(report.complete);
    assert_eq!(report.guests[0].status, GuestStatus::Running);
    assert!(report.guests[0].measured);
}

#[test]
fn uptimes_of_another_boot_of_the_machine_mean_nothing() {
    let mut old = Rig::new(config());
    old.run(spec(1));
    old.send(pause(1, PauseKind::Checkpoint));
    old.done(DriverResult::Done);
    old.run(spec(2));
    let mut new = restart(&old, 500_000, "machine-2");
    new.now.uptime.0 = 9_000;
    new.adopt(vec![found(1, FoundState::Checkpointed)]);
    see(&mut new, &[]);
    assert_eq!(new.charged(), 0);
    let report = new.host.report(new.now);
    assert_eq!(report.guests[0].status, GuestStatus::Paused);
    assert_eq!(report.guests[1].status, GuestStatus::Exited);
    assert!(new.events.contains(&HostEvent::NotFound { id: SandboxId(2) }));
}

#[test]
fn nothing_older_than_the_journal_is_acted_on() {
    let mut old = Rig::new(config());
    old.send_as(Fence { epoch: 3, number: 8 }, None, start(spec(1)));
    old.send_as(Fence { epoch: 3, number: 9 }, None, end(7));
    let mut new = restart(&old, 1_000, "machine-1");
    new.adopt(vec![found(1, FoundState::Running)]);
    for (epoch, number) in [(3, 7), (3, 9), (2, 50)] {
        let token = new.send_as(Fence { epoch, number }, None, start(spec(5)));
        assert!(matches!(new.answers[&token], HostOutcome::Fenced { .. }), "{epoch} {number}");
    }
    assert_eq!(new.host.report(new.now).seen_through, Some(9));
    let repeat = new.send_as(Fence { epoch: 3, number: 8 }, None, start(spec(1)));
    assert_eq!(new.answers[&repeat], HostOutcome::Done, "the very same, and it runs");
    assert!(new.calls.is_empty());
}

#[test]
fn nothing_is_refused_that_may_have_been_done_before_the_restart() {
    let mut old = Rig::new(config());
    old.run(spec(1));
    let stopped = Fence { epoch: 1, number: 5 };
    old.send_as(stopped, None, stop(1));
    let mut new = restart(&old, 1_000, "machine-1");
    let number = |number| Fence { epoch: 1, number };
    // The same once more, and others about what is not found again yet.
    let asked = [
        new.send_as(stopped, None, stop(1)),
        new.send_as(number(6), None, stop(1)),
        new.send_as(number(7), None, pause(1, PauseKind::Keep)),
        new.send_as(number(3), None, start(spec(4))),
        // A cell that was started anew sends what it has not heard of again, under a new number.
        new.send_as(number(8), None, start(spec(1))),
    ];
    for token in asked {
        assert!(matches!(new.answers[&token], HostOutcome::Unknown { .. }), "{:?}", new.answers);
    }
    new.adopt(vec![found(1, FoundState::Exited { code: None })]);
    let again = new.send_as(number(9), None, stop(1));
    assert_eq!(new.answers[&again], HostOutcome::Done);
}

#[test]
fn a_start_that_was_refused_before_adoption_stays_refused() {
    let old = Rig::new(config());
    let mut new = restart(&old, 1_000, "machine-1");
    let fence = Fence { epoch: 1, number: 5 };
    let refused = new.send_as(fence, None, start(spec(1)));
    assert!(matches!(new.answers[&refused], HostOutcome::Refused { .. }));
    new.adopt(vec![]);
    see(&mut new, &[]);
    // The cell has placed it elsewhere by now: a late copy starts nothing.
    let copy = new.send_as(fence, None, start(spec(1)));
    assert!(matches!(new.answers[&copy], HostOutcome::Fenced { .. }), "{:?}", new.answers);
    assert!(new.calls.is_empty());
    assert_eq!(new.host.report(new.now).seen_through, Some(5));
}

#[test]
fn what_was_under_way_is_resolved_by_what_is_there() {
    let mut old = Rig::new(config());
    for id in 1..=5 {
        old.run(spec(id));
    }
    old.send(start(spec(6)));
    old.send(start(spec(7)));
    old.send(pause(1, PauseKind::Keep));
    old.send(pause(2, PauseKind::Keep));
    old.send(stop(3));
    old.send(end(4));
    let mut new = restart(&old, 1_000, "machine-1");
    new.adopt(vec![
        found(1, FoundState::Frozen),
        found(2, FoundState::Running),
        found(3, FoundState::Exited { code: Some(143) }),
        found(4, FoundState::Running),
        found(5, FoundState::Running),
        found(6, FoundState::Running),
    ]);
    let ends: Vec<u128> = new
        .calls
        .iter()
        .map(|call| {
            assert_eq!(call.op, DriverOp::End);
            call.id.0
        })
        .collect();
    assert_eq!(ends, [4, 7], "the end goes on, the start that came to nothing is cleaned up");
    let report = new.host.report(new.now);
    let status = |id: usize| report.guests[id - 1].status;
    assert_eq!(status(1), GuestStatus::Paused);
    assert_eq!(status(2), GuestStatus::Running);
    assert_eq!(status(3), GuestStatus::Exited);
    assert_eq!(status(5), GuestStatus::Running);
    assert_eq!(status(6), GuestStatus::Running);
    new.done(DriverResult::Done);
    new.done(DriverResult::Done);
    assert_eq!(new.host.report(new.now).guests.len(), 5);
}

#[test]
fn guests_that_the_journal_does_not_know_are_taken_in_or_shown() {
    let mut rig = Rig::bare(Host::new(config()));
    let with_spec = Found { spec: Some(Box::new(spec(1))), ..found(1, FoundState::Running) };
    rig.adopt(vec![with_spec, found(2, FoundState::Running)]);
    let report = rig.host.report(rig.now);
    assert_eq!(report.guests.len(), 1);
    assert_eq!(report.guests[0].charge_mib, Mib(1024));
    assert_eq!(report.foreign_guests, [format!("{}.1", SandboxId(2))]);
}

#[test]
fn a_leftover_of_an_ended_guest_is_ended_and_never_resurrected() {
    let mut old = Rig::new(config());
    old.run(spec(1));
    old.send(end(1));
    old.done(DriverResult::Done);
    let mut new = restart(&old, 1_000, "machine-1");
    new.adopt(vec![found(1, FoundState::Running)]);
    assert_eq!(new.calls[0].op, DriverOp::End);
    assert_eq!(new.host.report(new.now).guests, []);
    new.done(crate::rig::failed("busy"));
    new.pass(5_000);
    new.input(HostInput::Tick);
    assert_eq!(new.calls[0].op, DriverOp::End, "tried again");
}

#[test]
fn a_start_over_a_stopped_guest_that_never_came_about_leaves_the_stopped_guest() {
    let mut old = Rig::new(config());
    old.run(spec(1));
    old.send(stop(1));
    old.done(DriverResult::Done);
    let mut second = spec(1);
    second.attempt = 2;
    old.send(start(second.clone()));
    let mut new = restart(&old, 1_000, "machine-1");
    new.adopt(vec![found(1, FoundState::Exited { code: None })]);
    assert!(new.calls.is_empty(), "its disk is not ended");
    see(&mut new, &[]);
    new.send(start(second));
    assert!(matches!(new.calls[0].op, DriverOp::Start { previous: Some(1), .. }));
}

#[test]
fn the_shortest_journal_says_the_same_and_hides_the_environment_from_logs() {
    let mut old = Rig::new(config());
    for id in 1..=4 {
        old.run(spec(id));
    }
    old.send(pause(1, PauseKind::Checkpoint));
    old.done(DriverResult::Done);
    old.send(pause(2, PauseKind::Keep));
    old.send(end(3));
    old.done(DriverResult::Done);
    old.calls.clear();
    let long = restart(&old, 0, "machine-1");
    old.journal = old.host.snapshot();
    assert!(!format!("{:?}", old.journal).contains("hunter2"));
    let short = restart(&old, 0, "machine-1");
    let view = |mut rig: Rig| {
        rig.adopt(vec![
            found(1, FoundState::Checkpointed),
            found(2, FoundState::Running),
            found(4, FoundState::Running),
        ]);
        see(&mut rig, &[(2, 10), (4, 10)]);
        let report = rig.host.report(rig.now);
        (report.guests, report.seen_through, rig.host.snapshot())
    };
    assert_eq!(view(long), view(short));
}
