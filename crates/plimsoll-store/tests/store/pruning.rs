//! What is removed, when, and how much at a time.

use plimsoll_engine::Change;
use plimsoll_engine::rows::{DecisionRow, EventRow, ReservationState, UsageRow};
use plimsoll_store::{
    DeliveryOutcome, DeliveryRow, EventQuery, LoadLimits, Progress, Pruned, Retention, Store,
    UsageQuery,
};
use plimsoll_types::{
    ClaimId, DecisionId, EndpointId, EventId, Millis, ReservationId, SandboxId, SandboxStatus,
    Timestamp,
};

use crate::backend::{Backend, NOW, leader, rows};
use crate::make::{HOUR, Make, tenant};
use crate::on_every_backend;

on_every_backend!(
    what_is_old_goes_a_bounded_piece_at_a_time,
    what_lives_is_never_pruned,
    events_stay_for_the_slowest_endpoint_that_is_served,
    old_hours_become_days_and_no_use_is_lost,
);

/// Ten rows of each kind, of ages from 0 to 9 days.
fn fill(store: &mut dyn Store, lease: &plimsoll_store::Lease) {
    let mut make = Make::new(3);
    let mut endpoint = make.endpoint(1);
    (endpoint.cursor, endpoint.disabled) = (EventId(1_000), None);
    let mut batch = vec![Change::Endpoint(endpoint)];
    let mut deliveries = Vec::new();
    // The oldest are written first, as in life.
    for days in (0..10_u64).rev() {
        let at = NOW - Millis::from_seconds(days * 24 * 3600);
        let id = u128::from(10 - days);
        let mut sandbox = make.sandbox(id);
        (sandbox.status, sandbox.ended_at) = (SandboxStatus::Terminated, Some(at));
        let mut reservation = make.reservation(id);
        (reservation.state, reservation.ended_at) = (ReservationState::Released, Some(at));
        batch.extend([
            Change::Sandbox(Box::new(sandbox)),
            Change::Reservation(reservation.into()),
            Change::Decision(DecisionRow { at, ..make.decision(id) }.into()),
            Change::Event(EventRow { at, ..make.event(id) }),
        ]);
        deliveries.push(DeliveryRow {
            endpoint: EndpointId(1),
            event: EventId(id),
            kind: String::new(),
            attempt: 1,
            at,
            duration_millis: 1,
            outcome: DeliveryOutcome::Delivered,
            status: Some(200),
            detail: None,
            next_attempt_at: None,
        });
    }
    store.commit(lease, &batch).unwrap();
    store.record(lease, &deliveries, &[]).unwrap();
}

/// How many of each kind are left.
fn left(store: &dyn Store) -> [usize; 5] {
    let reader = store.reader();
    let ids = 1..=10_u128;
    [
        ids.clone().filter(|id| reader.sandbox(SandboxId(*id)).unwrap().is_some()).count(),
        ids.clone().filter(|id| reader.reservation(ReservationId(*id)).unwrap().is_some()).count(),
        ids.filter(|id| reader.decision(DecisionId(*id)).unwrap().is_some()).count(),
        reader.events(&EventQuery { limit: 100, ..Default::default() }).unwrap().items.len(),
        reader.deliveries(EndpointId(1), None, 100).unwrap().items.len(),
    ]
}

fn what_is_old_goes_a_bounded_piece_at_a_time(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    fill(&mut *store, &lease);
    assert_eq!(left(&*store), [10; 5]);
    // Ended rows are kept for a day, the rest for seven; what is exactly as old is kept.
    let keep = Retention { rows_max: 3, ..Retention::default() };
    let steps = [
        (Pruned { rows: 12, more: true }, [7, 7, 8, 8, 8]),
        (Pruned { rows: 6, more: true }, [4, 4, 8, 8, 8]),
        (Pruned { rows: 4, more: false }, [2, 2, 8, 8, 8]),
        (Pruned { rows: 0, more: false }, [2, 2, 8, 8, 8]),
    ];
    for (pruned, counts) in steps {
        assert_eq!(store.prune(&lease, NOW, &keep).unwrap(), pruned);
        assert_eq!(left(&*store), counts);
    }
    let much_later = NOW + Millis::from_seconds(100 * 24 * 3600);
    store.prune(&lease, much_later, &Retention::default()).unwrap();
    assert_eq!(left(&*store), [0; 5]);
}

fn what_lives_is_never_pruned(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let mut make = Make::new(3);
    let mut sandbox = make.sandbox(1);
    (sandbox.status, sandbox.ended_at) = (SandboxStatus::Paused, None);
    let mut reservation = make.reservation(1);
    (reservation.state, reservation.ended_at) = (ReservationState::Committed, None);
    let batch = [
        Change::Sandbox(Box::new(sandbox)),
        Change::Reservation(reservation.into()),
        Change::Tenant(make.tenant("t")),
        Change::Plan(make.plan("p")),
        Change::Key(make.key(1)),
        Change::Host(make.host("h")),
        Change::Pool(make.pool("p")),
        make.policy("p"),
    ];
    store.commit(&lease, &batch).unwrap();
    let before = rows(&mut *store, &lease);
    let much_later = NOW + Millis::from_seconds(10 * 365 * 24 * 3600);
    assert_eq!(store.prune(&lease, much_later, &Retention::default()).unwrap(), Pruned::default());
    assert_eq!(rows(&mut *store, &lease), before);
}

fn events_stay_for_the_slowest_endpoint_that_is_served(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    fill(&mut *store, &lease);
    let mut make = Make::new(4);
    let mut slow = make.endpoint(2);
    (slow.cursor, slow.disabled) = (EventId(1), None);
    let mut off = make.endpoint(3);
    (off.cursor, off.disabled) = (EventId(0), Some("its address is gone".to_owned()));
    let batch = [Change::Endpoint(slow.clone()), Change::Endpoint(off)];
    store.commit(&lease, &batch).unwrap();
    let events = |store: &dyn Store| -> Vec<u128> {
        let page = store.reader().events(&EventQuery { limit: 100, ..Default::default() });
        page.unwrap().items.iter().map(|row| row.id.0).collect()
    };
    // Two are old enough; the slow endpoint has passed one of them.
    store.prune(&lease, NOW, &Retention::default()).unwrap();
    assert_eq!(events(&*store), (2..=10).collect::<Vec<_>>());
    let step = Progress { endpoint: slow.id, cursor: EventId(2), failing_since: None };
    store.record(&lease, &[], &[step]).unwrap();
    store.prune(&lease, NOW, &Retention::default()).unwrap();
    assert_eq!(events(&*store), (3..=10).collect::<Vec<_>>());
    // Given up on, it holds nothing.
    slow.disabled = Some("failing for too long".to_owned());
    store.commit(&lease, &[Change::Endpoint(slow)]).unwrap();
    let later = NOW + Millis::from_seconds(2 * 24 * 3600);
    store.prune(&lease, later, &Retention::default()).unwrap();
    assert_eq!(events(&*store), (5..=10).collect::<Vec<_>>());
}

fn old_hours_become_days_and_no_use_is_lost(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let mut make = Make::new(4);
    let claims = [ClaimId::Sandbox(SandboxId(1)), ClaimId::Reservation(ReservationId(2))];
    let hours = 6 * 24;
    let batch: Vec<UsageRow> = (0..hours)
        .rev()
        .flat_map(|hour| claims.map(|claim| (claim, hour)))
        .map(|(claim, hour)| make.usage(claim, hour))
        .collect();
    let changes: Vec<Change> = batch.iter().cloned().map(Change::Usage).collect();
    store.commit(&lease, &changes).unwrap();
    let reader = store.reader();
    let query = UsageQuery {
        tenant: tenant("metered"),
        from: Timestamp(NOW.0 - 7 * 24 * HOUR),
        to: Timestamp(NOW.0 + HOUR),
        after: None,
        limit: 100,
    };
    let before = reader.usage(&query).unwrap();
    assert_eq!(before.items.len(), 2);

    let keep = Retention { rows_max: 37, ..Retention::default() };
    let mut calls = 0;
    loop {
        let pruned = store.prune(&lease, NOW, &keep).unwrap();
        calls += 1;
        assert_eq!(reader.usage(&query).unwrap(), before, "after {calls} calls");
        if !pruned.more {
            break;
        }
    }
    assert!(calls > 3, "{calls}");
    // Whole days, in UTC, up to three days ago; from there on hours.
    let day = 24 * HOUR;
    let boundary = (NOW.0 - 3 * day) - (NOW.0 - 3 * day).rem_euclid(day);
    let loaded = store.load(&lease, NOW, &LoadLimits::default()).unwrap().usage;
    for row in &loaded {
        assert!(row.hour.0 >= boundary || row.hour.0.rem_euclid(day) == 0, "{row:?}");
    }
    let sum = |rows: &[UsageRow]| rows.iter().map(|row| row.cpu_millis).sum::<u64>();
    assert_eq!(sum(&loaded), sum(&batch));
    assert!(loaded.len() < batch.len());

    // What comes late for an hour that is a day by now is added to that day.
    let late = UsageRow { cpu_millis: 5, ..make.usage(claims[0], hours - 1) };
    store.commit(&lease, &[Change::Usage(late)]).unwrap();
    let total = |store: &dyn Store| {
        let page = store.reader().usage(&query).unwrap();
        page.items.iter().map(|total| total.cpu_millis).sum::<u64>()
    };
    assert_eq!(total(&*store), sum(&batch) + 5);
    store.prune(&lease, NOW, &keep).unwrap();
    assert_eq!(total(&*store), sum(&batch) + 5);

    // And after its time it goes, day by day.
    let later = NOW + Millis::from_seconds(401 * 24 * 3600);
    while store.prune(&lease, later, &keep).unwrap().more {}
    let left = store.load(
        &lease,
        later,
        &LoadLimits { usage: Millis(i64::MAX as u64), ..LoadLimits::default() },
    );
    let oldest = left.unwrap().usage.iter().map(|row| row.hour.0).min();
    assert!(oldest.is_none_or(|hour| hour >= later.0 - 401 * day), "{oldest:?}");
}
