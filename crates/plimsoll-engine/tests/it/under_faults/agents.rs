//! Agents that start again, fall behind, or talk nonsense.

use super::*;

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
