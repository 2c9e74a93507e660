//! What the simulator has found, each as the shortest story that shows it.

use plimsoll_engine::{Command, Input, Read, Reply, ReserveMode, Token};
use plimsoll_types::{
    Driver, Fence, GuestStatus, HostOp, HostOutcome, Mib, OnFull, PauseKind, Preemption,
    PreemptionMode, SandboxId, SandboxStatus,
};

use std::sync::Arc;

use super::bed::{Bed, caller, guest, host, operator, pool, refusal, sandbox};

fn done() -> HostOutcome {
    HostOutcome::Done
}

fn failed() -> HostOutcome {
    HostOutcome::Failed { detail: "broken".to_owned() }
}

fn unknown() -> HostOutcome {
    HostOutcome::Unknown { detail: "no answer".to_owned() }
}

fn fenced(epoch: u64, number: u64) -> HostOutcome {
    HostOutcome::Fenced { highest: Fence { epoch, number } }
}

fn vm(create: &mut plimsoll_engine::CreateSandbox) {
    create.template = plimsoll_types::TemplateName::new("vm").unwrap();
}

fn resume(bed: &mut Bed, id: SandboxId) -> Reply {
    let decision = bed.decision();
    bed.call(&caller("default"), Command::Resume { id, decision })
}

fn register(bed: &mut Bed, boot_id: &str) -> Reply {
    let token = Token(bed.number());
    let boot_id = boot_id.to_owned();
    let (host, pool) = (host("h1"), pool("local"));
    bed.input(Input::Register { token, host, pool, address: None, secret: None, boot_id });
    bed.reply(token).unwrap()
}

fn incarnation(reply: &Reply) -> u64 {
    match reply {
        Reply::Registered { incarnation, .. } => *incarnation,
        other => panic!("not registered: {other:?}"),
    }
}

/// A pool of so many slots whose pauses free them, with preemption of idle guests.
fn small_pool(bed: &mut Bed, slots: u64) {
    bed.pool("local", |settings| {
        settings.limit = Some(slots);
        settings.preemption =
            Preemption { mode: PreemptionMode::Idle, idle_seconds: 10, ..Preemption::default() };
    });
    bed.template("vm", |template| template.driver = Driver::Gvisor);
    bed.heartbeat("h1", |_| {});
}

#[test]
fn a_reservation_that_heads_the_queue_keeps_what_is_held_for_it() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    let first = bed.running(|_| {});
    let item = bed.item(512);
    let command = bed.reserve(item, ReserveMode::Wait { seconds: 300 });
    let waiting = bed.send(&caller("default"), command);
    // Its need is set aside by age; a newcomer does not get the memory that comes free.
    bed.pass(31_000);
    bed.call(&caller("default"), Command::Delete { id: first });
    bed.answer(done());
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    assert!(matches!(bed.reply(waiting), Some(Reply::Reservation { .. })));
}

#[test]
fn two_waits_under_one_key_get_one_reservation() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(0));
    let item = bed.item(512);
    let wait = |bed: &mut Bed| {
        let command = bed.reserve(item.clone(), ReserveMode::Wait { seconds: 300 });
        bed.send(&caller("default"), command)
    };
    let tokens = [wait(&mut bed), wait(&mut bed)];
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(4096));
    let made = tokens.map(|token| match bed.reply(token) {
        Some(Reply::Reservation { row, .. }) => row.id,
        other => panic!("no reservation: {other:?}"),
    });
    assert_eq!(made[0], made[1]);
}

#[test]
fn one_victim_for_each_waiter_whoever_comes_in_between() {
    let mut bed = Bed::new();
    small_pool(&mut bed, 3);
    let guests = [bed.running(vm), bed.running(vm), bed.running(vm)];
    bed.pass(11_000);
    bed.heartbeat("h1", |report| {
        report.guests = guests.map(|id| guest(id, GuestStatus::Running, 512)).to_vec();
    });
    let wait = |bed: &mut Bed, priority| {
        let command = bed.create(|create| {
            vm(create);
            create.on_full = OnFull::Queue;
            create.priority = priority;
        });
        bed.call(&caller("default"), command);
    };
    let pauses = |bed: &Bed| {
        bed.sent.iter().filter(|(_, sent)| matches!(sent.op, HostOp::Pause { .. })).count()
    };
    wait(&mut bed, 0);
    assert_eq!(pauses(&bed), 1);
    // A more important one steps in front: it gets a victim of its own, and nobody a second.
    wait(&mut bed, 5);
    assert_eq!(pauses(&bed), 2);
    bed.pass(1_000);
    assert_eq!(pauses(&bed), 2);
}

#[test]
fn guests_that_are_being_paused_count_after_a_restart_too() {
    let mut bed = Bed::new();
    small_pool(&mut bed, 2);
    let guests = [bed.running(vm), bed.running(vm)];
    bed.pass(11_000);
    let command = bed.create(|create| {
        vm(create);
        create.on_full = OnFull::Queue;
    });
    bed.call(&caller("default"), command);
    assert_eq!(bed.sent.len(), 1);
    bed.restart();
    bed.heartbeat("h1", |report| {
        report.guests = guests.map(|id| guest(id, GuestStatus::Running, 512)).to_vec();
    });
    bed.pass(5_000);
    let pauses = bed.sent.iter().filter(|(_, sent)| matches!(sent.op, HostOp::Pause { .. }));
    assert_eq!(pauses.count(), 1, "the one that was under way, once more");
}

#[test]
fn a_refusal_says_when_hosts_were_not_asked() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    bed.pass(31_000);
    // A dry run is not worth a question, and says so.
    let item = bed.item(512);
    let command = bed.reserve(item, ReserveMode::DryRun);
    let reply = bed.call(&caller("default"), command);
    assert!(refusal(&reply).unprobed);
    // A real one asks, and then it knows.
    let item = bed.item(512);
    let command = bed.reserve(item, ReserveMode::Reject);
    let token = bed.send(&caller("default"), command);
    assert_eq!(bed.probes, [host("h1")]);
    bed.input(Input::ProbeFailed { host: host("h1") });
    let reply = bed.reply(token).unwrap();
    assert!(!refusal(&reply).unprobed);
}

#[test]
fn a_full_pool_does_not_keep_the_hosts_of_the_next_from_being_asked() {
    let mut bed = Bed::new();
    bed.pool("outside", |settings| settings.external = true);
    bed.pool("local", |settings| {
        settings.limit = Some(1);
        settings.overflow = vec![pool("outside")];
    });
    bed.heartbeat("h1", |_| {});
    bed.heartbeat("x1", |report| report.pool = pool("outside"));
    bed.running(|_| {});
    bed.pass(20_000);
    bed.heartbeat("h1", |_| {});
    bed.pass(20_000);
    let command = bed.create(|_| {});
    bed.send(&caller("default"), command);
    assert_eq!(bed.probes, [host("x1")]);
}

#[test]
fn a_frozen_guest_that_runs_again_is_charged_its_reserve_anew() {
    let mut bed = Bed::new();
    bed.template("shell", |template| template.memory_mib = Mib(2048));
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(600));
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Pause { id });
    bed.answer(done());
    // Its charge has decayed to 100; it will be 512 again.
    bed.heartbeat("h1", |report| {
        report.memory_mib_admittable = Some(500);
        report.guests = vec![guest(id, GuestStatus::Paused, 100)];
    });
    resume(&mut bed, id);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Resuming);
    let item = bed.item(128);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    assert_eq!(refusal(&reply).code, plimsoll_types::RefusalCode::NoCapacity, "88 MiB are left");
}

#[test]
fn a_thaw_adds_what_the_last_report_does_not_charge_yet() {
    let mut bed = Bed::new();
    bed.template("shell", |template| template.memory_mib = Mib(2048));
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Pause { id });
    let pause = bed.answer(done());
    // Unread: charged in full, so that a thaw adds nothing.
    bed.heartbeat("h1", |report| {
        report.memory_mib_admittable = Some(0);
        report.guests = vec![guest(id, GuestStatus::Paused, 2048)];
    });
    resume(&mut bed, id);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Resuming);
    // The next report came before the resume did: the guest is frozen still, and cheap.
    bed.heartbeat("h1", |report| {
        report.memory_mib_admittable = Some(600);
        report.seen_through = Some(pause.fence.number);
        report.guests = vec![guest(id, GuestStatus::Paused, 100)];
    });
    let item = bed.item(256);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    assert_eq!(refusal(&reply).code, plimsoll_types::RefusalCode::NoCapacity, "188 MiB are left");
}

#[test]
fn a_restart_remembers_what_a_resume_under_way_was_admitted_for() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Stop { id });
    bed.answer(done());
    resume(&mut bed, id);
    // Its host has heard of the resume and begun nothing.
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Exited, 0)]);
    assert_eq!(bed.show(id).row.charge_mib, Mib(512));
    bed.restart();
    bed.heartbeat("h1", |report| {
        report.memory_mib_admittable = Some(700);
        report.seen_through = Some(0);
        report.guests = vec![guest(id, GuestStatus::Exited, 0)];
    });
    let item = bed.item(512);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    assert_eq!(refusal(&reply).code, plimsoll_types::RefusalCode::NoCapacity, "188 MiB are left");
}

#[test]
fn counted_resources_that_were_given_out_since_the_last_report_are_not_given_out_again() {
    // Public failure M3, in a burst.
    let mut bed = Bed::new();
    bed.template("gpu", |template| template.counted = [("gpu".to_owned(), 1)].into());
    bed.heartbeat("h1", |report| report.counted = [("gpu".to_owned(), 2)].into());
    let gpu = |bed: &mut Bed| {
        let command = bed.create(|create| {
            create.template = plimsoll_types::TemplateName::new("gpu").unwrap();
        });
        bed.call(&caller("default"), command)
    };
    let first = gpu(&mut bed);
    let id = sandbox(&first).row.id;
    let second = sandbox(&gpu(&mut bed)).row.id;
    assert_eq!(refusal(&gpu(&mut bed)).code, plimsoll_types::RefusalCode::NoCapacity);
    // The report that holds the first two says what is left; what has ended is free again.
    bed.heartbeat("h1", |report| {
        report.guests = [id, second].map(|id| guest(id, GuestStatus::Running, 40)).to_vec();
        report.counted = [("gpu".to_owned(), 1)].into();
    });
    sandbox(&gpu(&mut bed));
    assert_eq!(refusal(&gpu(&mut bed)).code, plimsoll_types::RefusalCode::NoCapacity);
}

#[test]
fn a_thaw_that_is_refused_leaves_the_charge_that_no_report_holds() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(600));
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Pause { id });
    bed.answer(done());
    resume(&mut bed, id);
    // No report has shown it so far.
    bed.answer(HostOutcome::Refused {
        code: plimsoll_types::RefusalCode::HostPressure,
        detail: "under pressure".to_owned(),
    });
    assert_eq!(bed.show(id).row.status, SandboxStatus::Paused);
    let item = bed.item(128);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    assert_eq!(refusal(&reply).code, plimsoll_types::RefusalCode::NoCapacity, "88 MiB are left");
}

#[test]
fn a_refused_resume_is_asked_for_again_when_its_own_host_has_reported() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Pause { id });
    bed.answer(done());
    resume(&mut bed, id);
    bed.answer(HostOutcome::Refused {
        code: plimsoll_types::RefusalCode::HostPressure,
        detail: "under pressure".to_owned(),
    });
    // Another host's word, and a call, do not bring the question up again.
    bed.heartbeat("h2", |_| {});
    resume(&mut bed, id);
    assert!(bed.sent.is_empty(), "{:?}", bed.sent);
    assert!(bed.show(id).row.resume_requested_at.is_some());
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Paused, 100)]);
    assert!(matches!(bed.answer(done()).op, HostOp::Resume { .. }));
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
}

#[test]
fn a_thaw_is_charged_anew_after_a_restart_too() {
    let mut bed = Bed::new();
    bed.template("shell", |template| template.memory_mib = Mib(2048));
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Pause { id });
    let pause = bed.answer(done());
    bed.pass(10_000);
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Paused, 40)]);
    resume(&mut bed, id);
    bed.answer(done());
    bed.restart();
    // A report from before the resume, as a cell hears again that lost its store for a moment.
    bed.heartbeat("h1", |report| {
        report.memory_mib_admittable = Some(600);
        report.seen_through = Some(pause.fence.number);
        report.guests = vec![guest(id, GuestStatus::Paused, 40)];
    });
    let item = bed.item(256);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    assert_eq!(refusal(&reply).code, plimsoll_types::RefusalCode::NoCapacity);
}

#[test]
fn a_late_word_of_an_earlier_start_of_the_agent_is_dropped_after_a_restart_too() {
    let mut bed = Bed::new();
    assert_eq!(incarnation(&register(&mut bed, "boot-1")), 1);
    assert_eq!(incarnation(&register(&mut bed, "boot-2")), 2);
    bed.restart();
    // The first start's question, and a report of it, come late.
    assert_eq!(refusal(&register(&mut bed, "boot-1")).code, plimsoll_types::RefusalCode::Conflict);
    let accepted = |bed: &mut Bed, boot: &str, incarnation| {
        let token = Token(bed.number());
        let mut report = bed.next_report("h1");
        (report.boot_id, report.incarnation) = (boot.to_owned(), incarnation);
        bed.input(Input::Report { token, report: Box::new(report), probe: false });
        match bed.reply(token) {
            Some(Reply::Heartbeat(answer)) => answer.accepted,
            other => panic!("not answered: {other:?}"),
        }
    };
    assert!(!accepted(&mut bed, "boot-1", Some(1)));
    assert!(accepted(&mut bed, "boot-2", Some(2)));
    // A third start answers a fresh question before it has a place of its own: it gets one all
    // the same, and what comes late of the second is told from it.
    assert!(!accepted(&mut bed, "boot-3", None));
    assert_eq!(incarnation(&register(&mut bed, "boot-3")), 3);
    assert!(accepted(&mut bed, "boot-3", Some(3)));
    assert!(!accepted(&mut bed, "boot-2", Some(2)));
}

#[test]
fn a_start_that_is_sent_again_is_charged_again() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(700));
    let command = bed.create(|_| {});
    bed.call(&caller("default"), command);
    let (name, start) = bed.sent.remove(0);
    // The report has accounted for the number before the command came: it is fenced there.
    bed.heartbeat("h1", |report| {
        report.memory_mib_admittable = Some(700);
        report.seen_through = Some(start.fence.number);
    });
    let outcome = fenced(start.fence.epoch, start.fence.number);
    bed.input(Input::Outcome { host: name, command: Box::new(start), outcome });
    assert_eq!(bed.sent.len(), 1, "sent again");
    let item = bed.item(512);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    assert_eq!(refusal(&reply).code, plimsoll_types::RefusalCode::NoCapacity);
}

#[test]
fn an_agent_that_asks_twice_for_its_incarnation_is_still_heard() {
    let mut bed = Bed::new();
    let first = incarnation(&register(&mut bed, "boot-1"));
    let again = incarnation(&register(&mut bed, "boot-1"));
    assert_eq!(first, again);
    bed.heartbeat("h1", |report| report.incarnation = Some(first));
    bed.running(|_| {});
    let next = incarnation(&register(&mut bed, "boot-2"));
    assert!(next > first);
    // What the earlier start asked for late changes nothing.
    assert!(matches!(register(&mut bed, "boot-1"), Reply::Refused(_)));
}

#[test]
fn a_stopped_guest_holds_its_memory_until_its_process_is_gone() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Stop { id });
    let item = bed.item(512);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    assert_eq!(refusal(&reply).code, plimsoll_types::RefusalCode::NoCapacity);
    bed.answer(done());
    let item = bed.item(512);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    assert!(matches!(reply, Reply::Reservation { .. }), "{reply:?}");
}

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
fn a_command_that_was_lost_with_its_host_does_not_make_the_host_unheard() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let ids = [bed.running(|_| {}), bed.running(|_| {})];
    for id in ids {
        bed.call(&caller("default"), Command::Pause { id });
    }
    let (_, first) = bed.sent.remove(0);
    bed.sent.clear();
    bed.pass(121_000);
    // It never got the pauses. One guest runs on, the other has ended.
    let through = Some(first.fence.number - 1);
    bed.heartbeat("h1", |report| {
        report.seen_through = through;
        report.guests =
            vec![guest(ids[0], GuestStatus::Running, 40), guest(ids[1], GuestStatus::Exited, 0)];
    });
    assert_eq!(bed.show(ids[0]).row.status, SandboxStatus::Running);
    assert_eq!(bed.sent.len(), 1);
    assert!(matches!(&bed.sent[0].1.op, HostOp::End { id, .. } if *id == ids[1]));
    // Also what it says next, before any later command.
    bed.heartbeat("h1", |report| {
        report.seen_through = through;
        report.guests = vec![guest(ids[0], GuestStatus::Exited, 0)];
    });
    assert_eq!(bed.show(ids[0]).row.status, SandboxStatus::Terminating);
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
fn a_guest_that_cannot_be_paused_is_not_asked_to_without_end() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let id = bed.running(|create| create.lifecycle.max_run_seconds = Some(60));
    let mut pauses = 0;
    for _ in 0..180 {
        bed.pass(1_000);
        bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Running, 40)]);
        while !bed.sent.is_empty() {
            pauses += 1;
            assert!(matches!(bed.answer(failed()).op, HostOp::Pause { .. }));
        }
    }
    assert_eq!(pauses, 3, "after 60, 120 and 180 s");
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
fn a_start_that_stays_fenced_is_given_up_there() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let command = bed.create(|_| {});
    let id = sandbox(&bed.call(&caller("default"), command)).row.id;
    // Its undoing was under way when the cell was killed: the host has ended the attempt.
    bed.answer(unknown());
    bed.restart();
    bed.heartbeat("h1", |_| {});
    bed.heartbeat("h2", |_| {});
    let again = bed.answer(fenced(2, 1));
    assert!(matches!(again.op, HostOp::Start { .. }));
    let mut commands = 0;
    while bed.show(id).row.attempt == 1 {
        let (_, command) = bed.sent.first().cloned().unwrap();
        let started = matches!(command.op, HostOp::Start { .. });
        bed.answer(if started { fenced(2, 1) } else { done() });
        commands += 1;
        assert!(commands < 10, "it goes on for ever");
    }
    let row = bed.show(id).row;
    assert_eq!(row.status, SandboxStatus::Provisioning);
    assert_eq!(row.host, Some(host("h2")));
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
fn a_host_that_names_an_absurd_command_number_breaks_nothing() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let command = bed.create(|_| {});
    bed.call(&caller("default"), command);
    let epoch = bed.sent[0].1.fence.epoch;
    bed.answer(fenced(epoch, u64::MAX));
    let again = bed.answer(done());
    assert!(again.fence.number < 1_000);
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
fn a_start_that_was_taken_over_waits_for_its_host_and_blames_it_for_nothing() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let command = bed.create(|_| {});
    let id = sandbox(&bed.call(&caller("default"), command)).row.id;
    bed.restart();
    // Its host is starting, too, and nobody answers: it is asked again, under the same attempt.
    for _ in 0..5 {
        let sent = bed.answer(unknown());
        assert!(matches!(sent.op, HostOp::Start { ref guest } if guest.attempt == 1), "{sent:?}");
        assert_eq!(bed.show(id).row.status, SandboxStatus::Provisioning);
    }
    bed.heartbeat("h1", |_| {});
    bed.answer(done());
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
    let reply = bed.call(&operator(), Command::Read(Read::Hosts(None)));
    let Reply::Hosts(hosts) = reply else { panic!("{reply:?}") };
    assert!(hosts.iter().all(|host| host.failures == 0), "{hosts:?}");
}

#[test]
fn a_create_whose_start_failed_binds_no_key() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let keyed = |bed: &mut Bed| {
        let command = bed.create(|create| create.key = Some((Arc::from("k"), 7)));
        sandbox(&bed.call(&caller("default"), command)).row.id
    };
    let first = keyed(&mut bed);
    bed.answer(failed());
    assert_eq!(bed.show(first).row.status, SandboxStatus::Failed);
    let second = keyed(&mut bed);
    assert_ne!(first, second, "the same key tries again");
    bed.answer(done());
    assert_eq!(keyed(&mut bed), second, "and holds once it runs");
    bed.restart();
    assert_eq!(keyed(&mut bed), second);
}

/// What one report comes to.
fn reported(bed: &mut Bed, change: impl FnOnce(&mut plimsoll_types::HostReport)) -> Reply {
    let mut report = bed.next_report("h1");
    change(&mut report);
    let token = Token(bed.number());
    bed.input(Input::Report { token, report: Box::new(report), probe: false });
    bed.reply(token).unwrap()
}

#[test]
fn a_report_that_leaps_ahead_is_refused_and_shuts_nobody_out() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.sequence = 7);
    let refused = reported(&mut bed, |report| report.sequence = 1 << 52);
    let (field, bound) = refusal(&refused).field.as_ref().unwrap();
    assert_eq!(*field, "sequence");
    assert!(bound.contains("at most 4294967303"), "{bound}");
    let next = reported(&mut bed, |report| report.sequence = 8);
    assert!(matches!(next, Reply::Heartbeat(answer) if answer.accepted));

    // The same for incarnations, beyond those that a cell may have forgotten.
    let refused = reported(&mut bed, |report| report.incarnation = Some((1 << 20) + 1));
    assert_eq!(refusal(&refused).field.as_ref().unwrap().0, "incarnation");
    let next = reported(&mut bed, |report| report.sequence = 9);
    assert!(matches!(next, Reply::Heartbeat(answer) if answer.accepted));
    let later = reported(&mut bed, |report| report.incarnation = Some(3));
    assert!(matches!(later, Reply::Heartbeat(answer) if answer.accepted));

    // Who numbers reports with a clock of microseconds may be silent for as long as they like.
    bed.pass(14 * 24 * 3_600_000);
    let clock = reported(&mut bed, |report| {
        report.incarnation = Some(3);
        report.sequence = 14 * 24 * 3_600_000_000;
    });
    assert!(matches!(clock, Reply::Heartbeat(answer) if answer.accepted));
}

#[test]
fn a_clock_far_from_the_cells_is_told_and_not_shown() {
    let mut bed = Bed::new();
    let now = bed.now;
    for (ahead, shown) in [(-300_000, -300_000), (-300_001, 0), (i64::MAX / 2, 0), (250, 250)] {
        let said = plimsoll_types::Timestamp(now.millis() + ahead);
        bed.heartbeat("h1", |report| report.heartbeat_at = said);
        let reply = bed.call(&operator(), Command::Read(Read::Hosts(None)));
        let Reply::Hosts(views) = reply else { panic!("no hosts: {reply:?}") };
        assert_eq!(views[0].clock_skew_millis, Some(ahead));
        let at = views[0].heartbeat_at.unwrap();
        assert_eq!(at.millis() - now.millis(), shown);
    }
}
