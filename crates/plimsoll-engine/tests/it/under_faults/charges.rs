//! What is charged for a guest while no report holds it.

use super::*;

/// There is no room for a reservation of so many MiB.
fn assert_full(bed: &mut Bed, memory: u64, why: &str) {
    let item = bed.item(memory);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    assert_eq!(refusal(&reply).code, plimsoll_types::RefusalCode::NoCapacity, "{why}");
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
    assert_full(&mut bed, 128, "88 MiB are left");
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
    assert_full(&mut bed, 256, "188 MiB are left");
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
    assert_full(&mut bed, 512, "188 MiB are left");
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
    assert_full(&mut bed, 128, "88 MiB are left");
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
    assert_full(&mut bed, 256, "128 MiB are left");
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
    assert_full(&mut bed, 512, "188 MiB are left");
}

#[test]
fn a_stopped_guest_holds_its_memory_until_its_process_is_gone() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    let id = bed.running(|_| {});
    bed.call(&caller("default"), Command::Stop { id });
    assert_full(&mut bed, 512, "its process is there");
    bed.answer(done());
    let item = bed.item(512);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    assert!(matches!(reply, Reply::Reservation { .. }), "{reply:?}");
}
