//! Who holds a slot, state by state, and how a slot moves (seed 001, sections 1 and 2).

use plimsoll_engine::{Command, CreateSandbox, Reply};
use plimsoll_types::{
    Driver, GuestStatus, HostOp, HostOutcome, Mib, OnFull, PauseKind, RefusalCode, SandboxId,
    SandboxStatus, TemplateName,
};

use super::bed::{Bed, caller, guest, host, pool, refusal, sandbox};

fn vm(create: &mut CreateSandbox) {
    create.template = TemplateName::new("vm").unwrap();
}

fn queued(create: &mut CreateSandbox) {
    vm(create);
    create.on_full = OnFull::Queue;
}

/// A pool of so many slots, and a template whose guests leave the host when they are paused.
fn bed(slots: u64) -> Bed {
    let mut bed = Bed::new();
    bed.pool("local", |settings| settings.limit = Some(slots));
    bed.template("vm", |template| template.driver = Driver::Gvisor);
    bed.heartbeat("h1", |_| {});
    bed
}

fn held(bed: &mut Bed) -> (u64, u64) {
    let view = bed.pool_view("local");
    (view.held, view.released)
}

fn call(bed: &mut Bed, command: Command) -> Reply {
    bed.call(&caller("default"), command)
}

#[test]
fn provisioning_running_stopped_and_terminating_hold_a_slot_and_the_ended_none() {
    let mut bed = bed(1);
    let command = bed.create(vm);
    let id = sandbox(&call(&mut bed, command)).row.id;
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Provisioning, (1, 0)));
    bed.answer(HostOutcome::Done);
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Running, (1, 0)));
    call(&mut bed, Command::Stop { id });
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Stopped, (1, 0)));
    bed.answer(HostOutcome::Done);
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Stopped, (1, 0)));
    call(&mut bed, Command::Delete { id });
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Terminating, (1, 0)));
    bed.answer(HostOutcome::Done);
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Terminated, (0, 0)));
}

#[test]
fn a_failed_one_and_a_queued_one_hold_none() {
    let mut bed = bed(1);
    let first = bed.running(vm);
    let command = bed.create(queued);
    let waiting = sandbox(&call(&mut bed, command)).row.id;
    assert_eq!((bed.status(waiting), held(&mut bed)), (SandboxStatus::Queued, (1, 0)));
    // Its host is lost with it.
    bed.pass(121_000);
    assert_eq!((bed.status(first), held(&mut bed)), (SandboxStatus::Failed, (0, 0)));
    bed.heartbeat("h2", |_| {});
    assert_eq!((bed.status(waiting), held(&mut bed)), (SandboxStatus::Provisioning, (1, 0)));
}

#[test]
fn a_pause_that_keeps_the_guest_on_its_host_keeps_the_slot() {
    let mut bed = Bed::new();
    bed.pool("local", |settings| settings.limit = Some(1));
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    call(&mut bed, Command::Pause { id });
    let pause = bed.answer(HostOutcome::Done);
    assert!(matches!(pause.op, HostOp::Pause { kind: PauseKind::Keep, .. }), "{pause:?}");
    let row = bed.show(id).row;
    assert_eq!((row.status, row.slot_released), (SandboxStatus::Paused, false));
    assert_eq!(held(&mut bed), (1, 0));
    let command = bed.create(|_| {});
    assert_eq!(refusal(&call(&mut bed, command)).code, RefusalCode::NoCapacity);
    // And so it is resumed at once, full pool or not.
    assert_eq!(sandbox(&bed.resume(id)).row.status, SandboxStatus::Resuming);
}

#[test]
fn pausing_and_resuming_hold_it_and_paused_does_not_where_the_pool_checkpoints() {
    let mut bed = bed(1);
    let id = bed.running(vm);
    call(&mut bed, Command::Pause { id });
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Pausing, (1, 0)));
    bed.answer(HostOutcome::Done);
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Paused, (0, 1)));
    bed.resume(id);
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Resuming, (1, 0)));
    bed.answer(HostOutcome::Done);
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Running, (1, 0)));
}

#[test]
fn a_pool_may_say_how_its_guests_are_paused() {
    let mut bed = bed(1);
    bed.pool("local", |settings| {
        settings.limit = Some(1);
        settings.pause = PauseKind::Keep;
    });
    let id = bed.running(vm);
    call(&mut bed, Command::Pause { id });
    let pause = bed.answer(HostOutcome::Done);
    assert!(matches!(pause.op, HostOp::Pause { kind: PauseKind::Keep, .. }), "{pause:?}");
    assert_eq!((bed.status(id), held(&mut bed)), (SandboxStatus::Paused, (1, 0)));
}

/// Three that are paused, and one that runs in the pool's only slot.
fn three_paused(bed: &mut Bed, priorities: [i32; 3]) -> ([SandboxId; 3], SandboxId) {
    let paused = priorities.map(|priority| {
        let id = bed.running(|create| {
            vm(create);
            create.priority = priority;
        });
        call(bed, Command::Pause { id });
        bed.answer(HostOutcome::Done);
        id
    });
    (paused, bed.running(vm))
}

#[test]
fn waiting_resumes_are_served_by_priority_and_then_by_age() {
    let mut bed = bed(1);
    let ([old, young, urgent], mut runs) = three_paused(&mut bed, [0, 0, 7]);
    for id in [old, young, urgent] {
        bed.pass(1_000);
        assert_eq!(sandbox(&bed.resume(id)).row.status, SandboxStatus::Paused);
    }
    // Asked for again, one keeps its place.
    bed.resume(young);
    for expected in [urgent, old, young] {
        call(&mut bed, Command::Delete { id: runs });
        bed.answer(HostOutcome::Done);
        assert_eq!(bed.status(expected), SandboxStatus::Resuming);
        bed.answer(HostOutcome::Done);
        runs = expected;
    }
}

#[test]
fn a_call_that_wakes_an_idled_guest_queues_as_a_resume_does() {
    for keepalive in [false, true] {
        let mut bed = bed(1);
        let ([id, ..], runs) = three_paused(&mut bed, [0, 0, 0]);
        let decision = bed.decision();
        let command = if keepalive {
            Command::Keepalive { id, decision }
        } else {
            Command::Touch { id, decision }
        };
        let reply = call(&mut bed, command);
        let row = &sandbox(&reply).row;
        assert_eq!(row.status, SandboxStatus::Paused);
        assert!(row.resume_requested_at.is_some());
        assert!(row.reason.as_deref().unwrap().contains("waiting for a free slot on pool local"));
        // Whoever asked may be gone: the resume stays.
        call(&mut bed, Command::Delete { id: runs });
        bed.answer(HostOutcome::Done);
        assert_eq!(bed.status(id), SandboxStatus::Resuming, "keepalive: {keepalive}");
    }
}

#[test]
fn a_waiting_resume_stays_where_its_memory_is_and_a_create_overflows() {
    let mut bed = bed(1);
    bed.pool("outside", |settings| settings.external = true);
    bed.pool("local", |settings| {
        settings.limit = Some(1);
        settings.overflow = vec![pool("outside")];
    });
    bed.heartbeat("x1", |report| report.pool = pool("outside"));
    let ([id, ..], _) = three_paused(&mut bed, [0, 0, 0]);
    bed.resume(id);
    bed.pass(1_000);
    assert_eq!(bed.status(id), SandboxStatus::Paused);
    let command = bed.create(vm);
    let reply = call(&mut bed, command);
    assert_eq!(sandbox(&reply).row.host, Some(host("x1")));
    assert_eq!(sandbox(&reply).row.pool, Some(pool("outside")));
}

#[test]
fn a_guest_that_its_host_wakes_takes_a_slot_and_shows_as_overcommitted() {
    let mut bed = bed(1);
    let ([id, ..], runs) = three_paused(&mut bed, [0, 0, 0]);
    bed.report_running(&[id, runs]);
    assert_eq!(bed.status(id), SandboxStatus::Running);
    let view = bed.pool_view("local");
    assert_eq!((view.held, view.overcommitted), (2, 1));
    // A pause that frees one brings it back within its limit.
    call(&mut bed, Command::Pause { id });
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.pool_view("local").overcommitted, 0);
}

/// Public failure R6.
#[test]
fn a_resume_that_meets_a_pause_under_way_waits_for_its_end() {
    let mut bed = bed(1);
    let id = bed.running(vm);
    call(&mut bed, Command::Pause { id });
    let reply = bed.resume(id);
    assert_eq!(sandbox(&reply).row.status, SandboxStatus::Pausing);
    bed.resume(id);
    assert_eq!(bed.sent.len(), 1, "nothing but the pause");
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.status(id), SandboxStatus::Resuming);
    assert_eq!(bed.sent.len(), 1, "one resume");
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.status(id), SandboxStatus::Running);
    // Where the pause fails, it simply runs on.
    call(&mut bed, Command::Pause { id });
    bed.resume(id);
    bed.answer(HostOutcome::Failed { detail: "disk full".to_owned() });
    assert_eq!(bed.status(id), SandboxStatus::Running);
    assert!(bed.sent.is_empty());
}

/// Public failure R6: the pause wins again where it was asked for last.
#[test]
fn a_pause_takes_back_the_resume_that_waits() {
    let mut bed = bed(1);
    let ([id, ..], runs) = three_paused(&mut bed, [0, 0, 0]);
    bed.resume(id);
    call(&mut bed, Command::Pause { id });
    call(&mut bed, Command::Delete { id: runs });
    bed.answer(HostOutcome::Done);
    let row = bed.show(id).row;
    assert_eq!((row.status, row.resume_requested_at), (SandboxStatus::Paused, None));
}

/// Public failure R4: what one has taken, nobody else gets.
#[test]
fn two_resumes_of_one_checkpoint_make_one_guest() {
    let mut bed = bed(2);
    let id = bed.running(vm);
    call(&mut bed, Command::Pause { id });
    bed.answer(HostOutcome::Done);
    bed.resume(id);
    bed.resume(id);
    assert_eq!(bed.sent.len(), 1);
    assert_eq!(held(&mut bed), (1, 0));
    // A fork of it takes a slot and a charge of its own, or none.
    bed.answer(HostOutcome::Done);
    let fork = |bed: &mut Bed| {
        let (number, decision) = (bed.number(), bed.decision());
        let fork = plimsoll_engine::ForkSandbox {
            id: SandboxId(u128::from(number)),
            from: id,
            decision,
            key: None,
            labels: None,
            priority: None,
            on_full: OnFull::Reject,
            answered: false,
        };
        call(bed, Command::Fork(Box::new(fork)))
    };
    let first = fork(&mut bed);
    assert_eq!(sandbox(&first).row.status, SandboxStatus::Provisioning);
    assert_eq!(refusal(&fork(&mut bed)).code, RefusalCode::NoCapacity);
}

/// Public failure P1.
#[test]
fn a_resume_whose_host_is_full_waits_and_does_not_fail() {
    let mut bed = Bed::new();
    bed.template("vm", |template| template.driver = Driver::Gvisor);
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    let id = bed.running(vm);
    call(&mut bed, Command::Pause { id });
    bed.answer(HostOutcome::Done);
    let other = bed.running(vm);
    let reply = bed.resume(id);
    let row = &sandbox(&reply).row;
    assert_eq!(row.status, SandboxStatus::Paused);
    assert!(row.reason.as_deref().unwrap().contains("waiting for room on its host"));
    call(&mut bed, Command::Delete { id: other });
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.status(id), SandboxStatus::Resuming);
    // Its host's own gate says no after all.
    let detail = "full".to_owned();
    bed.answer(HostOutcome::Refused { code: RefusalCode::NoCapacity, detail });
    assert_eq!(bed.status(id), SandboxStatus::Paused);
    bed.heartbeat("h1", |report| {
        report.memory_mib_admittable = Some(512);
        report.guests = vec![guest(id, GuestStatus::Paused, 0)];
    });
    assert_eq!(bed.status(id), SandboxStatus::Resuming);
}

/// The host says what it admits, and nothing final about its guests.
fn admits(bed: &mut Bed, memory: i64) {
    bed.heartbeat("h1", |report| {
        report.memory_mib_admittable = Some(memory);
        report.complete = false;
    });
}

/// Public failure B2: what is behind a head that does not fit may pass it.
/// Public failure B3: but not for ever.
#[test]
fn small_work_passes_a_large_head_until_its_need_is_set_aside() {
    let mut bed = Bed::new();
    bed.template("large", |template| template.memory_mib = Mib(8192));
    admits(&mut bed, 1024);
    let first = bed.running(|_| {});
    let second = bed.running(|_| {});
    let command = bed.create(|create| {
        create.template = TemplateName::new("large").unwrap();
        create.stateful = Some(true);
        create.on_full = OnFull::Queue;
    });
    let large = sandbox(&call(&mut bed, command)).row.id;
    let small = |bed: &mut Bed| {
        let command = bed.create(|create| create.on_full = OnFull::Queue);
        sandbox(&call(bed, command)).row.id
    };
    let third = small(&mut bed);
    call(&mut bed, Command::Delete { id: first });
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.status(third), SandboxStatus::Provisioning, "it passes the head");
    bed.answer(HostOutcome::Done);
    // The head has waited for its bound: what comes free on its host is its own from now on.
    bed.pass(20_000);
    admits(&mut bed, 0);
    bed.pass(11_000);
    let fourth = small(&mut bed);
    for id in [second, third] {
        call(&mut bed, Command::Delete { id });
        bed.answer(HostOutcome::Done);
        admits(&mut bed, 4096);
    }
    assert_eq!(bed.status(fourth), SandboxStatus::Queued, "it does not pass any more");
    admits(&mut bed, 8192);
    assert_eq!(bed.status(large), SandboxStatus::Provisioning);
}
