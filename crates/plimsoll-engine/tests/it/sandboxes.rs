//! Sandboxes: start, failure, pause, resume, queue, loss.

use plimsoll_engine::rows::Change;
use plimsoll_engine::{Command, ForkSandbox, Read, Reply};
use plimsoll_types::{
    Driver, GuestStatus, HostOp, HostOutcome, OnFull, PauseKind, RefusalCode, SandboxId,
    SandboxStatus,
};

use super::bed::{Bed, caller, guest, operator, refusal, sandbox};

#[test]
fn a_create_runs_and_its_delete_frees_it() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
    let reply = bed.call(&caller("default"), Command::Delete { id });
    assert_eq!(sandbox(&reply).row.status, SandboxStatus::Terminating);
    let command = bed.answer(HostOutcome::Done);
    assert!(matches!(command.op, HostOp::End { .. }));
    assert_eq!(bed.show(id).row.status, SandboxStatus::Terminated);
}

#[test]
fn a_refusal_by_the_host_is_no_failure() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let command = bed.create(|create| create.on_full = OnFull::Queue);
    let reply = bed.call(&caller("default"), command);
    let id = sandbox(&reply).row.id;
    let detail = "full".to_owned();
    bed.answer(HostOutcome::Refused { code: RefusalCode::NoCapacity, detail });
    assert_eq!(bed.show(id).row.status, SandboxStatus::Queued);
    bed.heartbeat("h1", |_| {});
    assert_eq!(bed.show(id).row.status, SandboxStatus::Provisioning);
}

#[test]
fn a_start_of_unknown_outcome_is_undone_before_another_is_tried() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    bed.heartbeat("h2", |report| report.host = super::bed::host("h2"));
    let command = bed.create(|_| {});
    let id = sandbox(&bed.call(&caller("default"), command)).row.id;
    let first = bed.show(id).row.host;
    bed.answer(HostOutcome::Unknown { detail: "no answer".to_owned() });
    assert_eq!(bed.show(id).row.host, first);
    let undo = bed.answer(HostOutcome::Done);
    assert!(matches!(undo.op, HostOp::End { .. }));
    let view = bed.show(id);
    assert_eq!(view.row.status, SandboxStatus::Provisioning);
    assert_ne!(view.row.host, first);
    assert_eq!(view.row.attempt, 2);
}

#[test]
fn a_checkpointed_guest_gives_its_slot_back_when_the_pause_has_finished() {
    let mut bed = Bed::new();
    bed.pool("local", |settings| settings.limit = Some(1));
    bed.template("vm", |template| template.driver = Driver::Gvisor);
    bed.heartbeat("h1", |_| {});
    let vm = |create: &mut plimsoll_engine::CreateSandbox| {
        create.template = plimsoll_types::TemplateName::new("vm").unwrap();
    };
    let first = bed.running(vm);
    bed.call(&caller("default"), Command::Pause { id: first });
    let command = bed.create(vm);
    let reply = bed.call(&caller("default"), command);
    assert_eq!(refusal(&reply).code, RefusalCode::NoCapacity);
    let pause = bed.answer(HostOutcome::Done);
    assert!(matches!(pause.op, HostOp::Pause { kind: PauseKind::Checkpoint, .. }));
    assert!(bed.show(first).row.slot_released);
    let second = bed.running(vm);
    // The first wants to run again: it queues, still paused, and says why.
    let decision = bed.decision();
    let reply = bed.call(&caller("default"), Command::Resume { id: first, decision });
    let row = &sandbox(&reply).row;
    assert_eq!(row.status, SandboxStatus::Paused);
    assert!(row.resume_requested_at.is_some());
    assert!(row.reason.as_deref().unwrap().contains("waiting for a free slot on pool local"));
    bed.call(&caller("default"), Command::Delete { id: second });
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.show(first).row.status, SandboxStatus::Resuming);
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.show(first).row.status, SandboxStatus::Running);
}

#[test]
fn a_queued_create_comes_up_when_room_comes() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    let first = bed.running(|_| {});
    let command = bed.create(|create| create.on_full = OnFull::Queue);
    let reply = bed.call(&caller("default"), command);
    let Reply::Sandbox { view, .. } = &reply else { panic!("{reply:?}") };
    assert_eq!(view.row.status, SandboxStatus::Queued);
    assert_eq!(view.place, Some(1));
    let id = view.row.id;
    bed.call(&caller("default"), Command::Delete { id: first });
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Provisioning);
}

#[test]
fn a_dead_host_loses_its_guests_and_wins_them_back_when_it_returns() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.pass(119_000);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
    bed.pass(2_000);
    let row = bed.show(id).row;
    assert_eq!(row.status, SandboxStatus::Failed);
    assert_eq!(row.reason.as_deref(), Some("host_lost"));
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Running, 40)]);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
}

#[test]
fn a_guest_missing_from_an_unfinished_list_is_kept() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    for _ in 0..3 {
        bed.pass(10_000);
        bed.heartbeat("h1", |report| report.complete = false);
    }
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
    bed.pass(10_000);
    bed.heartbeat("h1", |_| {});
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
    bed.pass(10_000);
    bed.heartbeat("h1", |_| {});
    assert_eq!(bed.show(id).row.status, SandboxStatus::Failed);
}

#[test]
fn hosts_that_fail_every_start_are_set_aside() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.cpu_millis_used = plimsoll_types::MilliCpu(8_000));
    bed.heartbeat("h2", |_| {});
    // The empty one attracts everything and fails everything.
    for _ in 0..3 {
        let command = bed.create(|_| {});
        let id = sandbox(&bed.call(&caller("default"), command)).row.id;
        assert_eq!(bed.show(id).row.host, Some(super::bed::host("h2")));
        bed.answer(HostOutcome::Failed { detail: "broken".to_owned() });
        assert_eq!(bed.show(id).row.host, Some(super::bed::host("h1")));
        bed.answer(HostOutcome::Done);
    }
    let id = bed.running(|_| {});
    assert_eq!(bed.show(id).row.host, Some(super::bed::host("h1")));
}

#[test]
fn a_bad_command_is_its_callers_fault_and_no_mark_against_the_host() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    bed.heartbeat("h2", |_| {});
    let refused = |bed: &mut Bed| {
        let detail = "/nope".to_owned();
        bed.answer(HostOutcome::Refused { code: RefusalCode::InvalidRequest, detail });
    };
    // More than enough to set every host aside, were each one a failure of its host.
    for _ in 0..8 {
        let command = bed.create(|_| {});
        let id = sandbox(&bed.call(&caller("default"), command)).row.id;
        refused(&mut bed);
        let reply = bed.call(&caller("default"), Command::Read(Read::Sandbox(id)));
        assert_eq!(refusal(&reply).code, RefusalCode::NotFound, "it leaves nothing");
        assert!(bed.sent.is_empty(), "no other host was asked");
        let said = bed.changes.iter().rev().find_map(|change| match change {
            Change::Decision(row) => Some((row.code, row.detail.clone())),
            _ => None,
        });
        let detail = Some("refused by its host: /nope".into());
        assert_eq!(said, Some((Some(RefusalCode::InvalidRequest), detail)));
    }
    // One that its caller was told of already fails, with the reason on its record.
    let command = bed.create(|create| create.answered = true);
    let id = sandbox(&bed.call(&caller("default"), command)).row.id;
    refused(&mut bed);
    let row = bed.show(id).row;
    assert_eq!(row.status, SandboxStatus::Failed);
    assert_eq!(row.reason.as_deref(), Some("start_failed: /nope"));
    let reply = bed.call(&operator(), Command::Read(Read::Hosts(None)));
    let Reply::Hosts(hosts) = reply else { panic!("{reply:?}") };
    assert_eq!(hosts.iter().map(|host| host.failures).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn only_what_can_be_written_out_can_be_forked() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let from = bed.running(|_| {});
    let (id, decision) = (SandboxId(u128::from(bed.number())), bed.decision());
    let fork = ForkSandbox {
        from,
        id,
        decision,
        key: None,
        labels: None,
        priority: None,
        on_full: OnFull::Reject,
        answered: false,
    };
    let reply = bed.call(&caller("default"), Command::Fork(Box::new(fork)));
    assert_eq!(refusal(&reply).code, RefusalCode::Conflict);
    assert!(refusal(&reply).detail.contains("process driver"), "{reply:?}");
    assert!(bed.sent.is_empty(), "no host was asked");
}
