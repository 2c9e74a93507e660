//! Guests and commands that are lost, and come back.

use super::*;

#[test]
fn a_start_waits_for_the_stop_before_it_and_goes_back_to_stopped() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Stop { id });
    let reply = resume(&mut bed, id);
    let row = &sandbox(&reply).row;
    assert_eq!(row.status, SandboxStatus::Stopped);
    assert!(row.resume_requested_at.is_some());
    let stop = bed.answer(done());
    assert!(matches!(stop.op, HostOp::Stop { .. }));
    assert_eq!(bed.show(id).row.status, SandboxStatus::Resuming);
    // Also when the cell is started anew meanwhile.
    bed.restart();
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Exited, 0)]);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Resuming);
    let start = bed.answer(failed());
    assert!(matches!(start.op, HostOp::Resume { attempt: 1, .. }), "{start:?}");
    assert_eq!(bed.show(id).row.status, SandboxStatus::Stopped);
    resume(&mut bed, id);
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Exited, 0)]);
    bed.answer(done());
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
}

#[test]
fn a_stop_that_was_lost_is_sent_again() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Stop { id });
    bed.restart();
    // Its predecessor may never have sent it.
    assert!(matches!(bed.sent.remove(0).1.op, HostOp::Stop { .. }));
    assert!(bed.sent.is_empty());
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Running, 40)]);
    let again = bed.answer(done());
    assert!(matches!(again.op, HostOp::Stop { .. }));
    assert_eq!(bed.show(id).row.status, SandboxStatus::Stopped);
}

#[test]
fn a_stopped_guest_whose_host_has_lost_it_is_lost() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Stop { id });
    let stop = bed.answer(done());
    for _ in 0..2 {
        bed.pass(10_000);
        bed.heartbeat("h1", |report| report.seen_through = Some(stop.fence.number));
    }
    assert_eq!(bed.show(id).row.status, SandboxStatus::Failed);
}

#[test]
fn a_frozen_guest_that_its_host_has_lost_ends() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Pause { id });
    bed.answer(done());
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Exited, 0)]);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Terminating);
}

#[test]
fn a_host_that_comes_back_brings_its_paused_guests_back() {
    let mut bed = Bed::new();
    bed.template("vm", |template| template.driver = Driver::Gvisor);
    bed.heartbeat("h1", |_| {});
    let id = bed.running(vm);
    bed.call(&caller("default"), Command::Pause { id });
    let pause = bed.answer(done());
    assert!(matches!(pause.op, HostOp::Pause { kind: PauseKind::Checkpoint, .. }));
    bed.pass(121_000);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Failed);
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Paused, 0)]);
    let row = bed.show(id).row;
    assert_eq!(row.status, SandboxStatus::Paused);
    assert!(row.slot_released);
    resume(&mut bed, id);
    bed.answer(done());
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
}

#[test]
fn what_is_deleted_while_its_host_is_lost_stays_deleted() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.pass(121_000);
    let reply = bed.call(&caller("default"), Command::Delete { id });
    assert_eq!(sandbox(&reply).row.status, SandboxStatus::Terminated);
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Running, 40)]);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Terminated);
    assert!(matches!(bed.answer(done()).op, HostOp::End { .. }));
}

#[test]
fn what_a_lost_guest_leaves_on_a_host_that_returns_goes() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.pass(121_000);
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Exited, 0)]);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Failed);
    assert!(matches!(bed.answer(done()).op, HostOp::End { .. }));
}

#[test]
fn a_stop_that_was_lost_with_its_host_does_not_keep_the_guest_from_running_again() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Stop { id });
    bed.sent.clear();
    bed.pass(121_000);
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Paused, 100)]);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Paused);
    resume(&mut bed, id);
    bed.answer(done());
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
}

#[test]
fn what_is_deleted_while_its_start_is_undone_stays_deleted() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    bed.heartbeat("h2", |_| {});
    let command = bed.create(|_| {});
    let reply = bed.call(&caller("default"), command);
    let row = &sandbox(&reply).row;
    let (id, first) = (row.id, row.host.clone().unwrap());
    bed.answer(unknown());
    bed.call(&caller("default"), Command::Delete { id });
    // Its host shows that it has gone before it answers the end.
    bed.heartbeat(first.as_str(), |report| report.seen_through = Some(1_000_000));
    assert_eq!(bed.show(id).row.status, SandboxStatus::Terminated);
    while !bed.sent.is_empty() {
        assert!(matches!(bed.answer(done()).op, HostOp::End { .. }));
    }
    assert_eq!(bed.show(id).row.status, SandboxStatus::Terminated);
}

#[test]
fn what_an_earlier_try_has_left_elsewhere_is_ended_by_command() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let command = bed.create(|create| create.stateful = Some(true));
    let id = sandbox(&bed.call(&caller("default"), command)).row.id;
    bed.heartbeat("h2", |_| {});
    bed.answer(failed());
    assert_eq!(bed.show(id).row.host, Some(host("h2")));
    bed.answer(done());
    // It said that it had failed, and has it after all: state is not ended on a host's own word.
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Running, 40)]);
    let end = bed.answer(done());
    assert!(matches!(end.op, HostOp::End { attempt: 1, .. }));
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
}

#[test]
fn a_record_that_came_back_is_not_forgotten_by_its_first_end() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.pass(121_000);
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Running, 40)]);
    for _ in 0..60 {
        bed.pass(60_000);
        bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Running, 40)]);
    }
    bed.call(&caller("default"), Command::Delete { id });
    bed.answer(done());
    bed.pass(84_000_000);
    // A day after its first end, and less after its last, it can still be read.
    let read = Command::Read(plimsoll_engine::Read::Sandbox(id));
    assert!(matches!(bed.call(&operator(), read), Reply::Sandbox { .. }));
}

#[test]
fn a_stop_in_which_a_guest_was_lost_is_void_when_it_comes_back_running() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    // Its host goes away with the stop, and comes back without it.
    bed.call(&caller("default"), Command::Stop { id });
    bed.pass(121_000);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Failed);
    bed.sent.clear();
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Running, 40)]);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
    bed.call(&caller("default"), Command::Pause { id });
    bed.answer(done());
    resume(&mut bed, id);
    let row = bed.show(id).row;
    assert_eq!(
        row.status,
        SandboxStatus::Resuming,
        "it waits for an end that never comes: {row:?}"
    );
}

#[test]
fn a_host_that_is_not_forgotten_yet_keeps_what_was_on_it() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    let item = bed.item(64);
    let claim = item.id;
    let command = bed.reserve(item, ReserveMode::Reject);
    bed.call(&caller("default"), command);
    bed.call(&caller("default"), Command::Release { id: claim });
    bed.pass(121_000);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Failed);
    let forget = Command::Admin(Box::new(plimsoll_engine::Admin::DropHost(host("h1"))));
    let reply = bed.call(&operator(), forget);
    assert!(refusal(&reply).detail.contains("ended within the last day"), "{reply:?}");
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Running, 40)]);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
    bed.call(&caller("default"), Command::Delete { id });
    assert!(matches!(bed.sent.last().map(|(_, sent)| &sent.op), Some(HostOp::End { .. })));
}
