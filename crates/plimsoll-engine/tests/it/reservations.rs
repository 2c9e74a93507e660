//! Reservations: admission, netting, expiry, quota.

use plimsoll_engine::rows::{Limit, ReservationRow, ReservationState};
use plimsoll_engine::{Command, Reply, ReserveBatch, ReserveMode};
use plimsoll_types::{GuestStatus, Mib, RefusalCode, RetryHint};

use super::bed::{Bed, caller, guest, operator, refusal};

fn row(reply: &Reply) -> &ReservationRow {
    match reply {
        Reply::Reservation { row, .. } => row,
        other => panic!("no reservation: {other:?}"),
    }
}

#[test]
fn what_is_checked_is_what_is_reserved() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    // 8 GiB admittable; a 4 GiB guest is charged a quarter: eight fit, and no ninth.
    for _ in 0..8 {
        let item = bed.item(4096);
        let command = bed.reserve(item, ReserveMode::Reject);
        let reply = bed.call(&caller("default"), command);
        assert_eq!(row(&reply).charge_mib, Mib(1024));
    }
    let item = bed.item(4096);
    let command = bed.reserve(item, ReserveMode::Reject);
    let reply = bed.call(&caller("default"), command);
    let refusal = refusal(&reply);
    assert_eq!(refusal.code, RefusalCode::NoCapacity);
    assert_eq!(refusal.counts.unwrap().filtered.full, 1);
    assert!(matches!(refusal.retry, RetryHint::After(_)));
}

#[test]
fn committed_hosts_are_charged_in_full() {
    let mut bed = Bed::new();
    bed.pool("local", |settings| settings.regime = plimsoll_types::Regime::Committed);
    bed.heartbeat("h1", |_| {});
    let mut admitted = 0;
    for _ in 0..5 {
        let item = bed.item(4096);
        let command = bed.reserve(item, ReserveMode::Reject);
        if matches!(bed.call(&caller("default"), command), Reply::Reservation { .. }) {
            admitted += 1;
        }
    }
    assert_eq!(admitted, 2);
}

#[test]
fn exactly_one_of_ten_passes_a_limit_with_one_place_left() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(32 * 1024));
    bed.tenant("acme", |limits| limits.concurrency.sandboxes = Limit::flat(100));
    for _ in 0..99 {
        let item = bed.item(64);
        let command = bed.reserve(item, ReserveMode::Reject);
        row(&bed.call(&caller("acme"), command));
    }
    let mut codes = Vec::new();
    for _ in 0..10 {
        let item = bed.item(64);
        let command = bed.reserve(item, ReserveMode::Reject);
        match bed.call(&caller("acme"), command) {
            Reply::Reservation { .. } => codes.push(None),
            reply => codes.push(Some(refusal(&reply).code)),
        }
    }
    assert_eq!(codes[0], None);
    assert!(codes[1..].iter().all(|code| *code == Some(RefusalCode::QuotaExceeded)));
}

#[test]
fn an_uncommitted_reservation_lapses_and_its_late_commit_is_refused() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let item = bed.item(4096);
    let id = item.id;
    let command = bed.reserve(item, ReserveMode::Reject);
    bed.call(&caller("default"), command);
    bed.pass(59_999);
    bed.heartbeat("h1", |_| {});
    bed.pass(2_000);
    let reply = bed.call(&caller("default"), Command::Commit { id, cgroup: None });
    assert_eq!(refusal(&reply).code, RefusalCode::ReservationExpired);
    let hosts = bed.call(&operator(), Command::Read(plimsoll_engine::Read::Hosts(None)));
    let Reply::Hosts(hosts) = hosts else { panic!() };
    assert_eq!(hosts[0].pending_mib, Mib(0));
}

#[test]
fn a_listed_reservation_is_netted_out_exactly() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let item = bed.item(4096);
    let id = item.id;
    let command = bed.reserve(item, ReserveMode::Reject);
    bed.call(&caller("default"), command);
    let pending = |bed: &mut Bed| {
        let reply = bed.call(&operator(), Command::Read(plimsoll_engine::Read::Hosts(None)));
        let Reply::Hosts(hosts) = reply else { panic!() };
        hosts[0].pending_mib
    };
    assert_eq!(pending(&mut bed), Mib(1024));
    // A report that does not list it cannot hold its charge.
    bed.heartbeat("h1", |_| {});
    assert_eq!(pending(&mut bed), Mib(1024));
    bed.call(&caller("default"), Command::Commit { id, cgroup: None });
    bed.heartbeat("h1", |report| report.guests = vec![guest(id, GuestStatus::Running, 300)]);
    assert_eq!(pending(&mut bed), Mib(0));
    // It is missing from one complete list, then from a second one after the grace.
    bed.heartbeat("h1", |_| {});
    bed.pass(10_000);
    bed.heartbeat("h1", |_| {});
    let reply = bed.call(&operator(), Command::Read(plimsoll_engine::Read::Reservation(id)));
    assert_eq!(row(&reply).state, ReservationState::Released);
}

#[test]
fn a_batch_is_made_whole_or_not_at_all() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |_| {});
    let items: Vec<_> = (0..9).map(|_| bed.item(4096)).collect();
    let decision = bed.decision();
    let batch = ReserveBatch { decision, items: items.clone() };
    let reply = bed.call(&caller("default"), Command::ReserveBatch(Box::new(batch)));
    assert_eq!(refusal(&reply).code, RefusalCode::NoCapacity);
    let decision = bed.decision();
    let batch = ReserveBatch { decision, items: items[..8].to_vec() };
    let reply = bed.call(&caller("default"), Command::ReserveBatch(Box::new(batch.clone())));
    let Reply::Reservations { rows, .. } = &reply else { panic!("{reply:?}") };
    assert_eq!(rows.len(), 8);
    // The retry of the same batch is answered with the same reservations.
    let again = bed.call(&caller("default"), Command::ReserveBatch(Box::new(batch)));
    let Reply::Reservations { rows: same, .. } = &again else { panic!("{again:?}") };
    assert_eq!(same, rows);
}

#[test]
fn a_waiting_reservation_gets_what_is_released() {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(1024));
    let item = bed.item(4096);
    let id = item.id;
    let command = bed.reserve(item, ReserveMode::Reject);
    bed.call(&caller("default"), command);
    let item = bed.item(4096);
    let command = bed.reserve(item, ReserveMode::Wait { seconds: 30 });
    let waiting = bed.send(&caller("default"), command);
    assert!(bed.reply(waiting).is_none());
    bed.call(&caller("default"), Command::Release { id });
    let reply = bed.reply(waiting).expect("served by the release");
    assert_eq!(row(&reply).state, ReservationState::Reserved);
    let item = bed.item(4096);
    let command = bed.reserve(item, ReserveMode::Wait { seconds: 5 });
    let waiting = bed.send(&caller("default"), command);
    bed.pass(5_000);
    let reply = bed.reply(waiting).expect("its wait is over");
    assert_eq!(refusal(&reply).code, RefusalCode::NoCapacity);
}
