//! Who waits, who is asked, and who has to make room.

use super::*;

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
