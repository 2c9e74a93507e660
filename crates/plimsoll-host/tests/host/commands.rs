use plimsoll_host::{DriverOp, DriverResult, FoundState, HostInput, JournalEntry};
use plimsoll_types::{Fence, HostOutcome, Mib, PauseKind, RefusalCode, SandboxId};

use crate::rig::{Rig, config, end, failed, pause, resume, spec, start, stop};

fn refused(outcome: &HostOutcome) -> Option<RefusalCode> {
    match outcome {
        HostOutcome::Refused { code, .. } => Some(*code),
        _ => None,
    }
}

#[test]
fn a_start_is_journaled_before_it_begins_and_answered_when_done() {
    let mut rig = Rig::new(config());
    let token = rig.send(start(spec(1)));
    assert!(matches!(rig.journal.last(), Some(JournalEntry::Start { .. })));
    assert!(matches!(rig.calls[0].op, DriverOp::Start { previous: None, .. }));
    assert!(!rig.answers.contains_key(&token));
    rig.done(DriverResult::Done);
    assert_eq!(rig.answers[&token], HostOutcome::Done);
    assert_eq!(rig.host.running(SandboxId(1)), Some(1));
}

#[test]
fn a_repeated_start_joins_and_then_answers_as_the_first_did() {
    let mut rig = Rig::new(config());
    let fence = Fence { epoch: 1, number: 1 };
    let first = rig.send_as(fence, None, start(spec(1)));
    let same = rig.send_as(fence, None, start(spec(1)));
    let newer = rig.send_as(Fence { epoch: 1, number: 2 }, None, start(spec(1)));
    assert_eq!(rig.calls.len(), 1, "one guest, one start");
    rig.done(DriverResult::Done);
    let late = rig.send_as(Fence { epoch: 1, number: 2 }, None, start(spec(1)));
    for token in [first, same, newer, late] {
        assert_eq!(rig.answers[&token], HostOutcome::Done);
    }
    assert!(rig.calls.is_empty());
}

#[test]
fn a_refused_start_is_not_begun_by_its_own_repeat() {
    let mut rig = Rig::new(config());
    let fence = Fence { epoch: 1, number: 1 };
    let mut large = spec(1);
    large.stateful = true;
    large.memory_mib = Mib(40_000);
    let refusal = rig.send_as(fence, None, start(large));
    assert_eq!(refused(&rig.answers[&refusal]), Some(RefusalCode::NoCapacity));
    // The cell has placed it elsewhere by now.
    let repeat = rig.send_as(fence, None, start(spec(1)));
    assert_eq!(rig.answers[&repeat], HostOutcome::Fenced { highest: fence });
    assert!(rig.calls.is_empty());
}

#[test]
fn numbers_may_overtake_until_a_report_has_accounted_for_them() {
    let mut rig = Rig::new(config());
    let number = |number| Fence { epoch: 1, number };
    rig.send_as(number(6), None, start(spec(6)));
    rig.send_as(number(5), None, start(spec(5)));
    assert_eq!(rig.calls.len(), 2);
    assert_eq!(rig.host.report(rig.now).seen_through, Some(6));
    let late = rig.send_as(number(4), None, start(spec(4)));
    assert_eq!(rig.answers[&late], HostOutcome::Fenced { highest: number(6) });
    assert_eq!(rig.calls.len(), 2);
}

#[test]
fn an_old_leader_can_start_nothing() {
    let mut rig = Rig::new(config());
    rig.send_as(Fence { epoch: 2, number: 3 }, None, start(spec(1)));
    let old = rig.send_as(Fence { epoch: 1, number: 9 }, None, start(spec(2)));
    let highest = Fence { epoch: 2, number: 3 };
    assert_eq!(rig.answers[&old], HostOutcome::Fenced { highest });
    assert_eq!(rig.calls.len(), 1);
}

#[test]
fn a_late_command_is_not_begun() {
    let mut rig = Rig::new(config());
    let deadline = Some(rig.now.uptime.0 - 1);
    let fence = Fence { epoch: 1, number: 1 };
    let token = rig.send_as(fence, deadline, start(spec(1)));
    assert_eq!(rig.answers[&token], HostOutcome::Fenced { highest: fence });
    assert!(rig.calls.is_empty());
    assert_eq!(rig.host.report(rig.now).seen_through, Some(1), "it is accounted for");
}

#[test]
fn an_end_of_nothing_is_done_and_keeps_a_late_start_out() {
    let mut rig = Rig::new(config());
    let token = rig.send_as(Fence { epoch: 1, number: 2 }, None, end(1));
    assert_eq!(rig.answers[&token], HostOutcome::Done);
    for number in [1, 3] {
        let fence = Fence { epoch: 1, number };
        let late = rig.send_as(fence, None, start(spec(1)));
        assert!(matches!(rig.answers[&late], HostOutcome::Fenced { .. }), "{number}");
    }
    assert!(rig.calls.is_empty());
    let mut again = spec(1);
    again.attempt = 2;
    rig.send_as(Fence { epoch: 1, number: 4 }, None, start(again));
    assert_eq!(rig.calls.len(), 1, "the next attempt is another guest");
}

#[test]
fn a_start_that_no_host_could_make_is_refused_as_the_callers_own() {
    let mut rig = Rig::new(config());
    let token = rig.send(start(spec(1)));
    rig.done(DriverResult::Rejected { detail: "/nope: no such file".to_owned() });
    let detail = "/nope: no such file".to_owned();
    let refused = HostOutcome::Refused { code: RefusalCode::InvalidRequest, detail };
    assert_eq!(rig.answers[&token], refused);
    assert_eq!(rig.charged(), 0);
    assert!(rig.host.report(rig.now).guests.is_empty());
}

#[test]
fn an_end_overtakes_a_start_and_nobody_waits_for_ever() {
    let mut rig = Rig::new(config());
    let starting = rig.send(start(spec(1)));
    let ending = rig.send(end(1));
    assert!(matches!(rig.answers[&starting], HostOutcome::Failed { .. }));
    let overtaken = rig.calls.remove(0).call;
    rig.done(DriverResult::Done);
    assert_eq!(rig.answers[&ending], HostOutcome::Done);
    // The broken-off start says something after all: it is nobody's any more.
    rig.input(HostInput::DriverDone { call: overtaken, result: DriverResult::Done });
    assert_eq!(rig.host.running(SandboxId(1)), None);
    assert_eq!(rig.charged(), 0);
}

#[test]
fn an_end_that_fails_is_tried_again_until_it_is_done() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    let token = rig.send(end(1));
    rig.done(failed("busy"));
    assert!(matches!(rig.answers[&token], HostOutcome::Unknown { .. }));
    assert!(rig.charged() > 0, "what may still be there is charged");
    rig.pass(4_999);
    rig.input(HostInput::Tick);
    assert!(rig.calls.is_empty());
    rig.pass(1);
    rig.input(HostInput::Tick);
    assert_eq!(rig.calls[0].op, DriverOp::End);
    rig.done(DriverResult::Done);
    assert_eq!(rig.charged(), 0);
    assert_eq!(rig.host.report(rig.now).guests.len(), 0);
}

#[test]
fn a_start_of_unknown_outcome_is_cleaned_up() {
    let mut rig = Rig::new(config());
    let token = rig.send(start(spec(1)));
    rig.done(DriverResult::Unknown {
        detail: "took too long".to_owned(),
        found: Some(FoundState::Running),
    });
    assert!(matches!(rig.answers[&token], HostOutcome::Unknown { .. }));
    assert_eq!(rig.calls[0].op, DriverOp::End);
    rig.done(DriverResult::Done);
    let repeat = rig.send(start(spec(1)));
    assert!(matches!(rig.answers[&repeat], HostOutcome::Fenced { .. }), "the attempt is over");
}

#[test]
fn a_failed_start_leaves_nothing_and_is_not_tried_again() {
    let mut rig = Rig::new(config());
    let fence = Fence { epoch: 1, number: 1 };
    let token = rig.send_as(fence, None, start(spec(1)));
    rig.done(failed("no such image"));
    assert_eq!(rig.answers[&token], HostOutcome::Failed { detail: "no such image".to_owned() });
    assert_eq!(rig.charged(), 0);
    let repeat = rig.send_as(fence, None, start(spec(1)));
    assert!(matches!(rig.answers[&repeat], HostOutcome::Failed { .. }));
    assert!(rig.calls.is_empty());
}

#[test]
fn pause_and_resume_go_through_their_states() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    let first = rig.send(pause(1, PauseKind::Checkpoint));
    let joined = rig.send(pause(1, PauseKind::Checkpoint));
    let during = rig.send(resume(1));
    assert_eq!(refused(&rig.answers[&during]), Some(RefusalCode::Conflict));
    assert!(rig.charged() > 0, "a pause that is not finished frees nothing");
    rig.done(DriverResult::Done);
    assert_eq!(rig.answers[&first], HostOutcome::Done);
    assert_eq!(rig.answers[&joined], HostOutcome::Done);
    assert_eq!(rig.charged(), 0);
    let resumed = rig.send(resume(1));
    assert_eq!(rig.calls[0].op, DriverOp::Resume { from: PauseKind::Checkpoint });
    assert_eq!(rig.host.starts_in_flight(), 1, "a restore is a start");
    assert_eq!(rig.charged(), 1024, "and is charged as one");
    rig.done(DriverResult::Done);
    assert_eq!(rig.answers[&resumed], HostOutcome::Done);
    assert_eq!(rig.host.running(SandboxId(1)), Some(1));
}

#[test]
fn a_pause_that_fails_leaves_the_guest_running() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    let token = rig.send(pause(1, PauseKind::Keep));
    rig.done(failed("device or resource busy"));
    assert!(matches!(rig.answers[&token], HostOutcome::Failed { .. }));
    assert_eq!(rig.host.running(SandboxId(1)), Some(1));
}

#[test]
fn a_stopped_guest_runs_again_from_its_disk() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    rig.send(stop(1));
    rig.done(DriverResult::Done);
    assert_eq!(rig.charged(), 0);
    rig.send(resume(1));
    assert!(matches!(rig.calls[0].op, DriverOp::Start { previous: Some(1), .. }));
    rig.done(failed("no room on the disk"));
    // The guest is still there, and a later attempt takes its disk over.
    let mut again = spec(1);
    again.attempt = 2;
    let token = rig.send(start(again));
    assert!(matches!(rig.calls[0].op, DriverOp::Start { previous: Some(1), .. }));
    rig.done(DriverResult::Done);
    assert_eq!(rig.answers[&token], HostOutcome::Done);
    assert_eq!(rig.host.running(SandboxId(1)), Some(2));
}

#[test]
fn a_guest_that_ended_by_itself_is_not_run_twice() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    rig.input(HostInput::GuestExited { id: SandboxId(1), attempt: 1, code: Some(3) });
    let report = rig.host.report(rig.now);
    assert_eq!(report.guests[0].exit_code, Some(3));
    assert_eq!(report.guests[0].charge_mib, Mib(0));
    let token = rig.send(start(spec(1)));
    assert_eq!(rig.answers[&token], HostOutcome::Done);
    assert!(rig.calls.is_empty());
}

#[test]
fn an_exit_that_is_heard_of_before_the_start_is_done_is_not_lost() {
    let mut rig = Rig::new(config());
    let token = rig.send(start(spec(1)));
    rig.input(HostInput::GuestExited { id: SandboxId(1), attempt: 1, code: Some(0) });
    rig.done(DriverResult::Done);
    assert_eq!(rig.answers[&token], HostOutcome::Done);
    assert_eq!(rig.host.report(rig.now).guests[0].exit_code, Some(0));
}

#[test]
fn an_exit_during_a_pause_that_then_fails_is_not_lost() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    rig.send(pause(1, PauseKind::Checkpoint));
    rig.input(HostInput::GuestExited { id: SandboxId(1), attempt: 1, code: Some(137) });
    rig.done(failed("no such process"));
    assert_eq!(rig.host.report(rig.now).guests[0].exit_code, Some(137));
}

#[test]
fn another_attempt_waits_for_the_end_of_the_first() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    let mut second = spec(1);
    second.attempt = 2;
    let token = rig.send(start(second));
    assert_eq!(refused(&rig.answers[&token]), Some(RefusalCode::Conflict));
    assert!(rig.calls.is_empty());
}

#[test]
fn starts_are_bounded() {
    // Public failure B4: hundreds of starts in one second; W2: the two limits are distinct.
    let mut limited = config();
    limited.starts_limit = Some(2);
    let mut rig = Rig::new(limited);
    rig.send(start(spec(1)));
    rig.send(start(spec(2)));
    let third = rig.send(start(spec(3)));
    assert_eq!(refused(&rig.answers[&third]), Some(RefusalCode::HostStartsSaturated));
    rig.done(DriverResult::Done);
    rig.send(start(spec(4)));
    assert_eq!(rig.calls.len(), 2);
}

#[test]
fn a_guest_that_nobody_could_tell_about_is_looked_at_until_somebody_can() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    rig.send(pause(1, PauseKind::Checkpoint));
    rig.done(DriverResult::Done);
    assert_eq!(rig.host.measurable().count(), 0, "it has left the memory");
    rig.send(resume(1));
    rig.done(DriverResult::Unknown { detail: "it took too long".to_owned(), found: None });
    // It is taken for what it was, and looked at all the same.
    assert_eq!(rig.host.running(SandboxId(1)), None);
    assert_eq!(rig.host.measurable().count(), 1);
    let as_of = rig.host.revision();
    let state = FoundState::Running;
    rig.input(HostInput::Observed { id: SandboxId(1), attempt: 1, state, as_of });
    assert_eq!(rig.host.running(SandboxId(1)), Some(1));
    rig.send(pause(1, PauseKind::Checkpoint));
    rig.done(DriverResult::Done);
    assert_eq!(rig.host.measurable().count(), 0);
}

#[test]
fn nothing_is_done_before_the_guests_are_found() {
    let mut rig = Rig::bare(plimsoll_host::Host::new(config()));
    let fence = Fence { epoch: 1, number: 1 };
    let early = rig.send_as(fence, None, end(1));
    assert!(matches!(rig.answers[&early], HostOutcome::Unknown { .. }));
    assert!(!rig.host.report(rig.now).complete);
    rig.adopt(vec![]);
    let again = rig.send_as(fence, None, end(1));
    assert_eq!(rig.answers[&again], HostOutcome::Done);
    assert!(rig.host.report(rig.now).complete);
}

#[test]
fn a_fork_that_was_stopped_starts_again_as_itself() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    let mut fork = spec(2);
    fork.fork_of = Some(SandboxId(1));
    rig.run(fork.clone());
    rig.send(stop(2));
    rig.done(DriverResult::Done);
    // What it was made from is no more; it does not need it either.
    rig.send(end(1));
    rig.done(DriverResult::Done);
    let token = rig.send(start(fork));
    let DriverOp::Start { guest, previous } = &rig.calls[0].op else {
        panic!("no start: {:?}", rig.calls)
    };
    assert_eq!((guest.fork_of, *previous), (None, Some(1)));
    rig.done(DriverResult::Done);
    assert_eq!(rig.answers[&token], HostOutcome::Done);
}
