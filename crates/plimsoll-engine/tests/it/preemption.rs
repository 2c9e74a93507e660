//! Making room (seed 001, section 3). The order of victims is held by the policy's own tests.

use plimsoll_engine::{Command, CreateSandbox, PatchSandbox};
use plimsoll_types::{
    Driver, GuestStatus, HostOp, HostOutcome, OnFull, Preemption, PreemptionMode, SandboxId,
    SandboxStatus, TemplateName,
};

use super::bed::{Bed, caller, guest, pool, sandbox};

fn vm(create: &mut CreateSandbox) {
    create.template = TemplateName::new("vm").unwrap();
}

fn bed(slots: u64, mode: PreemptionMode) -> Bed {
    let mut bed = Bed::new();
    bed.pool("local", |settings| {
        settings.limit = Some(slots);
        settings.preemption = Preemption { mode, idle_seconds: 60, min_run_seconds: 600 };
    });
    bed.template("vm", |template| template.driver = Driver::Gvisor);
    bed.heartbeat("h1", |_| {});
    bed
}

fn wait(bed: &mut Bed) -> SandboxId {
    let command = bed.create(|create| {
        vm(create);
        create.on_full = OnFull::Queue;
    });
    sandbox(&bed.call(&caller("default"), command)).row.id
}

/// Time passes in which the host reports that all of these run and do nothing.
fn idle(bed: &mut Bed, ids: &[SandboxId], seconds: u64) {
    for _ in 0..seconds / 10 {
        bed.pass(10_000);
        bed.report_running(ids);
    }
}

fn touch(bed: &mut Bed, id: SandboxId) {
    let decision = bed.decision();
    bed.call(&caller("default"), Command::Touch { id, decision });
}

fn pauses(bed: &Bed) -> usize {
    bed.sent.iter().filter(|(_, sent)| matches!(sent.op, HostOp::Pause { .. })).count()
}

#[test]
fn mode_off_pauses_nobody() {
    let mut bed = bed(1, PreemptionMode::Off);
    let first = bed.running(vm);
    let waiting = wait(&mut bed);
    idle(&mut bed, &[first], 3_600);
    assert_eq!(pauses(&bed), 0);
    assert_eq!(bed.status(waiting), SandboxStatus::Queued);
}

#[test]
fn mode_idle_pauses_who_had_no_call_for_so_long_and_says_why() {
    let mut bed = bed(1, PreemptionMode::Idle);
    let first = bed.running(vm);
    let waiting = wait(&mut bed);
    idle(&mut bed, &[first], 50);
    assert_eq!(pauses(&bed), 0);
    // A call into it is activity.
    touch(&mut bed, first);
    idle(&mut bed, &[first], 50);
    assert_eq!(pauses(&bed), 0);
    idle(&mut bed, &[first], 10);
    assert_eq!(pauses(&bed), 1);
    let row = bed.show(first).row;
    assert_eq!((row.status, row.idled), (SandboxStatus::Pausing, true));
    assert_eq!(row.reason.as_deref(), Some("paused to make room on pool local"));
    assert_eq!(bed.events("sandbox.preempted").len(), 1);
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.status(waiting), SandboxStatus::Provisioning);
}

#[test]
fn cpu_that_its_host_sees_it_use_is_activity_too() {
    let mut bed = bed(1, PreemptionMode::Idle);
    let first = bed.running(vm);
    wait(&mut bed);
    let mut cpu = 0;
    for _ in 0..20 {
        bed.pass(10_000);
        cpu += 1_000;
        bed.heartbeat("h1", |report| {
            let mut busy = guest(first, GuestStatus::Running, 512);
            busy.cpu_millis_total_used = cpu;
            report.guests = vec![busy];
        });
    }
    assert_eq!(pauses(&bed), 0, "a tenth of a core is work");
    for _ in 0..7 {
        bed.pass(10_000);
        cpu += 100;
        bed.heartbeat("h1", |report| {
            let mut quiet = guest(first, GuestStatus::Running, 512);
            quiet.cpu_millis_total_used = cpu;
            report.guests = vec![quiet];
        });
    }
    assert_eq!(pauses(&bed), 1, "a hundredth is none");
}

#[test]
fn mode_lru_pauses_the_busy_too_and_nobody_who_has_just_begun() {
    let mut bed = bed(1, PreemptionMode::Lru);
    let first = bed.running(vm);
    wait(&mut bed);
    for _ in 0..59 {
        idle(&mut bed, &[first], 10);
        touch(&mut bed, first);
    }
    assert_eq!(pauses(&bed), 0);
    idle(&mut bed, &[first], 20);
    assert_eq!(pauses(&bed), 1);
}

#[test]
fn one_that_is_not_preemptible_or_was_patched_so_is_no_victim() {
    let mut bed = bed(2, PreemptionMode::Idle);
    let asked = bed.running(|create| {
        vm(create);
        create.preemptible = false;
    });
    let patched = bed.running(vm);
    let patch = |preemptible| PatchSandbox {
        id: patched,
        labels: None,
        priority: None,
        preemptible: Some(preemptible),
        lifecycle: None,
    };
    bed.call(&caller("default"), Command::Patch(Box::new(patch(false))));
    wait(&mut bed);
    idle(&mut bed, &[asked, patched], 600);
    assert_eq!(pauses(&bed), 0);
    bed.call(&caller("default"), Command::Patch(Box::new(patch(true))));
    idle(&mut bed, &[asked, patched], 10);
    assert_eq!(pauses(&bed), 1);
    assert_eq!(bed.status(patched), SandboxStatus::Pausing);
}

#[test]
fn a_pool_whose_pause_frees_nothing_pauses_nobody() {
    let mut bed = bed(1, PreemptionMode::Idle);
    let first = bed.running(|_| {});
    wait(&mut bed);
    idle(&mut bed, &[first], 600);
    assert_eq!(pauses(&bed), 0);
}

#[test]
fn a_create_that_another_pool_takes_pauses_nobody() {
    let mut bed = bed(1, PreemptionMode::Idle);
    bed.pool("next", |_| {});
    bed.pool("local", |settings| {
        settings.limit = Some(1);
        settings.preemption = Preemption { mode: PreemptionMode::Idle, ..Preemption::default() };
        settings.overflow = vec![pool("next")];
    });
    let first = bed.running(vm);
    idle(&mut bed, &[first], 300);
    bed.heartbeat("n1", |report| report.pool = pool("next"));
    let waiting = wait(&mut bed);
    assert_eq!(bed.show(waiting).row.pool, Some(pool("next")));
    assert_eq!(pauses(&bed), 0);
}

#[test]
fn a_create_that_waits_comes_up_where_it_may_overflow_to() {
    let mut bed = bed(1, PreemptionMode::Off);
    bed.pool("next", |_| {});
    bed.pool("local", |settings| {
        settings.limit = Some(1);
        settings.overflow = vec![pool("next")];
    });
    bed.running(vm);
    let waiting = wait(&mut bed);
    assert_eq!(bed.status(waiting), SandboxStatus::Queued);
    bed.heartbeat("n1", |report| report.pool = pool("next"));
    assert_eq!(bed.show(waiting).row.pool, Some(pool("next")));
}

/// Public failure P2, and the seed's own trap: a victim's next call does not at once evict whoever
/// it made room for.
#[test]
fn a_victims_next_call_resumes_it_through_the_queue_and_the_pair_does_not_take_turns() {
    let mut bed = bed(1, PreemptionMode::Idle);
    let first = bed.running(vm);
    idle(&mut bed, &[first], 60);
    let second = wait(&mut bed);
    assert_eq!(pauses(&bed), 1);
    bed.answer(HostOutcome::Done);
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.status(second), SandboxStatus::Running);
    touch(&mut bed, first);
    assert_eq!(bed.status(first), SandboxStatus::Paused);
    for _ in 0..6 {
        bed.pass(10_000);
        bed.heartbeat("h1", |report| {
            let paused = guest(first, GuestStatus::Paused, 0);
            report.guests = vec![paused, guest(second, GuestStatus::Running, 512)];
        });
    }
    assert_eq!(pauses(&bed), 0, "it is protected for a while");
    bed.call(&caller("default"), Command::Delete { id: second });
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.status(first), SandboxStatus::Resuming);
}
