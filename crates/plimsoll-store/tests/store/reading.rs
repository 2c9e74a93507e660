//! The readers' side: pages, filters, and what is seen while a writer works.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_engine::rows::{DecisionRow, EventRow};
use plimsoll_engine::{Change, SandboxFilter};
use plimsoll_store::{
    CodeFilter, DELIVERIES_PER_ENDPOINT_MAX, DecisionQuery, DeliveryOutcome, DeliveryRow,
    EventQuery, Reader, StoreError,
};
use plimsoll_types::{
    DecisionId, EndpointId, EventId, Millis, RefusalCode, ReservationId, SandboxId, SandboxStatus,
};

use crate::backend::{Backend, NOW, leader};
use crate::make::{Make, pool, tenant};
use crate::on_every_backend;

on_every_backend!(
    decisions_are_found_by_id_and_in_pages,
    a_rare_decision_in_a_long_log_is_found_over_short_pages,
    events_are_pulled_in_order_without_a_gap,
    ended_sandboxes_are_listed_by_id_and_filter,
    delivery_attempts_are_listed_the_newest_first,
    only_the_newest_attempts_of_an_endpoint_are_kept,
    readers_see_whole_batches_while_the_writer_works,
    a_reader_outlives_its_store,
);

/// Every page of a question, one after another, with at most `limit` rows each.
fn every_decision(reader: &dyn Reader, mut query: DecisionQuery) -> Vec<DecisionRow> {
    let mut found = Vec::new();
    loop {
        let page = reader.decisions(&query).unwrap();
        assert!(page.items.len() <= query.limit);
        found.extend(page.items);
        let Some(next) = page.next else { return found };
        query.before = Some(next);
    }
}

fn decisions_are_found_by_id_and_in_pages(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let mut make = Make::new(5);
    let rows: Vec<DecisionRow> = (0..60_u32)
        .map(|place| DecisionRow {
            at: NOW + Millis(u64::from(place) * 60_000),
            tenant: tenant(["red", "green", "blue"][place as usize % 3]),
            code: [None, Some(RefusalCode::NoCapacity), Some(RefusalCode::RateLimited), None]
                [place as usize % 4],
            ..make.decision(u128::from(place) + 1)
        })
        .collect();
    let batch: Vec<Change> = rows.iter().map(|row| Change::Decision(row.clone().into())).collect();
    store.commit(&lease, &batch).unwrap();
    let reader = store.reader();

    assert_eq!(reader.decision(DecisionId(9)).unwrap().as_ref(), Some(&rows[8]));
    assert_eq!(reader.decision(DecisionId(900)).unwrap(), None);

    let codes = [
        None,
        Some(CodeFilter::Admitted),
        Some(CodeFilter::Refused),
        Some(CodeFilter::Code(RefusalCode::NoCapacity)),
        Some(CodeFilter::Code(RefusalCode::Overloaded)),
    ];
    for code in codes {
        for whose in [None, Some(tenant("green")), Some(tenant("nobody"))] {
            for from in [None, Some(NOW + Millis(40 * 60_000))] {
                let wanted: Vec<DecisionRow> = rows
                    .iter()
                    .rev()
                    .filter(|row| whose.as_ref().is_none_or(|whose| *whose == row.tenant))
                    .filter(|row| from.is_none_or(|from| row.at >= from))
                    .filter(|row| match code {
                        None => true,
                        Some(CodeFilter::Admitted) => row.code.is_none(),
                        Some(CodeFilter::Refused) => row.code.is_some(),
                        Some(CodeFilter::Code(wanted)) => row.code == Some(wanted),
                    })
                    .cloned()
                    .collect();
                for limit in [1, 7, 1_000] {
                    let query =
                        DecisionQuery { tenant: whose.clone(), code, from, before: None, limit };
                    assert_eq!(
                        every_decision(&*reader, query),
                        wanted,
                        "{code:?} {whose:?} {from:?}"
                    );
                }
            }
        }
    }
}

fn a_rare_decision_in_a_long_log_is_found_over_short_pages(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let common = DecisionRow { tenant: tenant("common"), at: NOW, ..Make::new(5).decision(0) };
    let batch: Vec<Change> = (0..45_000)
        .map(|id| {
            let mut row = DecisionRow { id: DecisionId(id), ..common.clone() };
            if id == 3 {
                row.tenant = tenant("rare");
            }
            Change::Decision(row.into())
        })
        .collect();
    store.commit(&lease, &batch).unwrap();
    let reader = store.reader();
    let mut query = DecisionQuery { tenant: Some(tenant("rare")), limit: 10, ..Default::default() };
    let first = reader.decisions(&query).unwrap();
    assert!(first.items.is_empty());
    assert!(first.next.is_some(), "a page that looked at its bound says where to go on");
    let found = every_decision(&*reader, query.clone());
    assert_eq!(found.iter().map(|row| row.id.0).collect::<Vec<_>>(), [3]);
    // Since an instant after all of them: the scan ends at once.
    query.from = Some(NOW + Millis::from_seconds(3_600));
    assert_eq!(reader.decisions(&query).unwrap(), Default::default());
}

fn events_are_pulled_in_order_without_a_gap(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let reader = store.reader();
    assert_eq!(reader.last_event().unwrap(), None);
    let empty = reader.events(&EventQuery { limit: 5, ..Default::default() }).unwrap();
    assert_eq!((empty.items.len(), empty.through, empty.more), (0, None, false));

    let mut make = Make::new(6);
    let rows: Vec<EventRow> = (1..=30_u128)
        .map(|id| EventRow {
            tenant: [None, Some(tenant("red")), Some(tenant("green"))][id as usize % 3].clone(),
            ..make.event(id)
        })
        .collect();
    let batch: Vec<Change> = rows.iter().cloned().map(Change::Event).collect();
    store.commit(&lease, &batch).unwrap();
    assert_eq!(reader.last_event().unwrap(), Some(EventId(30)));

    for whose in [None, Some(tenant("red")), Some(tenant("nobody"))] {
        let wanted: Vec<EventRow> =
            rows.iter().filter(|row| whose.is_none() || row.tenant == whose).cloned().collect();
        for limit in [1, 4, 1_000] {
            let mut query = EventQuery { after: None, tenant: whose.clone(), limit };
            let mut found = Vec::new();
            loop {
                let page = reader.events(&query).unwrap();
                assert!(page.items.len() <= limit);
                found.extend(page.items);
                query.after = page.through.or(query.after);
                if !page.more {
                    break;
                }
            }
            assert_eq!(found, wanted, "{whose:?} by {limit}");
            // The cursor has passed what was not asked for as well.
            assert!(limit == 1 || query.after >= Some(EventId(28)), "{:?}", query.after);
        }
    }
    let rest = reader.events(&EventQuery { after: Some(EventId(28)), tenant: None, limit: 10 });
    assert_eq!(rest.unwrap().items, rows[28..]);
}

fn ended_sandboxes_are_listed_by_id_and_filter(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let mut make = Make::new(8);
    let rows: Vec<_> = (0..40_u128)
        .map(|id| {
            let mut row = make.sandbox(id);
            row.status = [
                SandboxStatus::Failed,
                SandboxStatus::Terminated,
                SandboxStatus::Running,
                SandboxStatus::Terminated,
            ][id as usize % 4];
            row.ended_at = row.status.is_terminal().then_some(NOW);
            row.tenant = tenant(if id % 3 == 0 { "red" } else { "green" });
            row.pool = Some(pool(if id % 5 == 0 { "west" } else { "east" }));
            row.labels = [("team", if id % 2 == 0 { "ci" } else { "dev" })].into();
            row
        })
        .collect();
    // In two halves, the later ids first: the list is in the order of ids, not of ends.
    for half in [&rows[20..], &rows[..20]] {
        let batch: Vec<Change> =
            half.iter().cloned().map(|row| Change::Sandbox(Box::new(row))).collect();
        store.commit(&lease, &batch).unwrap();
    }
    let reader = store.reader();
    let filters = [
        SandboxFilter::default(),
        SandboxFilter { tenant: Some(tenant("red")), ..Default::default() },
        SandboxFilter { pool: Some(pool("west")), ..Default::default() },
        SandboxFilter { status: Some(SandboxStatus::Failed), ..Default::default() },
        SandboxFilter { label: Some(("team".into(), "dev".into())), ..Default::default() },
        SandboxFilter { label: Some(("team".into(), "nobody".into())), ..Default::default() },
    ];
    for filter in filters {
        let wanted: Vec<u128> = rows
            .iter()
            .filter(|row| row.status.is_terminal())
            .filter(|row| filter.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant))
            .filter(|row| filter.pool.is_none() || filter.pool == row.pool)
            .filter(|row| filter.status.is_none_or(|status| status == row.status))
            .filter(|row| {
                filter
                    .label
                    .as_ref()
                    .is_none_or(|(key, value)| row.labels.get(key) == Some(value.as_str()))
            })
            .map(|row| row.id.0)
            .collect();
        for limit in [1, 6, 1_000] {
            let mut query = SandboxFilter { limit, ..filter.clone() };
            let mut found = Vec::new();
            loop {
                let page = reader.sandboxes_ended(&query).unwrap();
                assert!(page.items.len() <= limit);
                found.extend(page.items.iter().map(|row| row.id.0));
                query.after = page.next;
                if page.next.is_none() {
                    break;
                }
            }
            assert_eq!(found, wanted, "{filter:?}");
        }
    }
    for row in &rows {
        assert_eq!(reader.sandbox(row.id).unwrap().as_ref(), Some(row));
    }
    assert_eq!(reader.sandbox(SandboxId(999)).unwrap(), None);
    assert_eq!(reader.reservation(ReservationId(999)).unwrap(), None);
}

fn attempt(endpoint: u128, event: u128, attempt: u32) -> DeliveryRow {
    DeliveryRow {
        endpoint: EndpointId(endpoint),
        event: EventId(event),
        kind: "sandbox.created".to_owned(),
        attempt,
        at: NOW + Millis(u64::from(attempt)),
        duration_millis: 12,
        outcome: DeliveryOutcome::ALL[attempt as usize % 3],
        status: attempt.is_multiple_of(2).then_some(500),
        detail: (attempt % 2 == 1).then(|| "it said \"no\"".to_owned()),
        next_attempt_at: (attempt % 3 == 1).then_some(NOW),
    }
}

fn delivery_attempts_are_listed_the_newest_first(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let mut make = Make::new(2);
    let endpoints: Vec<Change> = (1..=2).map(|id| Change::Endpoint(make.endpoint(id))).collect();
    store.commit(&lease, &endpoints).unwrap();
    let rows: Vec<DeliveryRow> =
        (1..=20).map(|number| attempt(1 + u128::from(number % 2), 7, number)).collect();
    for pair in rows.chunks(3) {
        store.record(&lease, pair, &[]).unwrap();
    }
    // Of an endpoint that is not there, nothing is kept.
    store.record(&lease, &[attempt(9, 7, 1)], &[]).unwrap();
    let reader = store.reader();
    for endpoint in [1, 2, 9] {
        let wanted: Vec<DeliveryRow> =
            rows.iter().rev().filter(|row| row.endpoint.0 == endpoint).cloned().collect();
        for limit in [1, 4, 1_000] {
            let (mut found, mut before) = (Vec::new(), None);
            loop {
                let page = reader.deliveries(EndpointId(endpoint), before, limit).unwrap();
                assert!(page.items.len() <= limit);
                found.extend(page.items);
                before = page.next;
                if before.is_none() {
                    break;
                }
            }
            assert_eq!(found, wanted);
        }
    }
    store.commit(&lease, &[Change::EndpointGone(EndpointId(1))]).unwrap();
    assert!(reader.deliveries(EndpointId(1), None, 10).unwrap().items.is_empty());
    assert_eq!(reader.deliveries(EndpointId(2), None, 100).unwrap().items.len(), 10);
}

fn only_the_newest_attempts_of_an_endpoint_are_kept(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let mut make = Make::new(2);
    let endpoints: Vec<Change> = (1..=2).map(|id| Change::Endpoint(make.endpoint(id))).collect();
    store.commit(&lease, &endpoints).unwrap();
    store.record(&lease, &[attempt(2, 7, 1)], &[]).unwrap();
    let max = DELIVERIES_PER_ENDPOINT_MAX as u32;
    let rows: Vec<DeliveryRow> = (1..=max + 5).map(|number| attempt(1, 7, number)).collect();
    for many in rows.chunks(300) {
        store.record(&lease, many, &[]).unwrap();
    }
    let reader = store.reader();
    let page = reader.deliveries(EndpointId(1), None, 1_000).unwrap();
    assert_eq!((page.items.len(), page.next), (DELIVERIES_PER_ENDPOINT_MAX, None));
    assert_eq!(page.items[0].attempt, max + 5);
    assert_eq!(reader.deliveries(EndpointId(2), None, 10).unwrap().items.len(), 1);
}

fn readers_see_whole_batches_while_the_writer_works(backend: &mut dyn Backend) {
    const BATCHES: u128 = 120;
    const ROWS: u128 = 25;
    let (mut store, lease) = leader(backend);
    let writing = AtomicBool::new(true);
    let reader = store.reader();
    let follow = |reader: &dyn Reader| -> Result<u128, StoreError> {
        let (mut seen, mut after) = (0, None);
        loop {
            let done = !writing.load(Ordering::Acquire);
            let page = reader.events(&EventQuery { after, tenant: None, limit: 1_000 })?;
            seen += page.items.len() as u128;
            assert_eq!(seen % ROWS, 0, "a part of a batch was seen");
            if let Some(through) = page.through {
                // What was seen of a batch in one table was written to the other as well.
                assert!(reader.decision(DecisionId(through.0))?.is_some());
            }
            after = page.through.or(after);
            if done && !page.more {
                return Ok(seen);
            }
        }
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(|| follow(&*reader))).collect();
        let mut make = Make::new(1);
        for batch in 0..BATCHES {
            let changes: Vec<Change> = (0..ROWS)
                .map(|row| batch * ROWS + row + 1)
                .flat_map(|id| {
                    [Change::Event(make.event(id)), Change::Decision(make.decision(id).into())]
                })
                .collect();
            store.commit(&lease, &changes).unwrap();
        }
        writing.store(false, Ordering::Release);
        for reader in readers {
            assert_eq!(reader.join().unwrap().unwrap(), BATCHES * ROWS);
        }
    });
}

fn a_reader_outlives_its_store(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let row = Make::new(1).decision(1);
    store.commit(&lease, &[Change::Decision(row.clone().into())]).unwrap();
    let reader = store.reader();
    assert!(reader.decision(row.id).unwrap().is_some());
    drop(store);
    let (mut store, lease) = leader(backend);
    store.commit(&lease, &[Change::Decision(Make::new(1).decision(2).into())]).unwrap();
    assert_eq!(reader.decision(row.id).unwrap(), Some(row));
    assert!(reader.decision(DecisionId(2)).unwrap().is_some());
}
