//! What is removed, when, and how much at a time.

use plimsoll_engine::Change;
use plimsoll_engine::rows::{DecisionRow, EventRow, ReservationState};
use plimsoll_store::{
    DeliveryOutcome, DeliveryRow, EventQuery, Progress, Pruned, Retention, Store,
};
use plimsoll_types::{
    DecisionId, EndpointId, EventId, Millis, ReservationId, SandboxId, SandboxStatus,
};

use crate::backend::{Backend, NOW, leader, rows};
use crate::make::Make;
use crate::on_every_backend;

on_every_backend!(
    what_is_old_goes_a_bounded_piece_at_a_time,
    what_lives_is_never_pruned,
    events_stay_for_the_slowest_endpoint_that_is_served,
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
