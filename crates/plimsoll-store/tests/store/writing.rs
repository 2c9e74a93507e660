//! Writing, fencing, and what a restart finds.

use plimsoll_engine::Change;
use plimsoll_engine::rows::ReservationState;
use plimsoll_store::{LoadLimits, Progress, Retention, StoreError};
use plimsoll_types::{
    ClaimId, EndpointId, EventId, HostId, KeyId, Millis, PlanId, SandboxId, SandboxStatus,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::backend::{Backend, Memory, NOW, Sqlite, leader, rows};
use crate::make::{Make, pool, template, tenant};
use crate::on_every_backend;
use crate::oracle::Oracle;

on_every_backend!(
    every_kind_of_change_is_found_after_a_restart,
    any_history_leaves_the_last_write_of_every_key,
    changes_take_effect_in_order_within_a_batch,
    a_store_that_lost_its_lease_changes_nothing,
    epochs_grow_over_restarts,
    an_empty_batch_is_a_commit,
    ended_rows_come_back_while_their_keys_are_bound,
    of_too_many_ended_rows_the_newest_come_back,
    what_ended_can_live_again,
    an_endpoint_that_is_edited_keeps_its_progress,
);

/// One change of each kind that writes, by number, under a key of its own.
fn put(kind: usize, key: u8, seed: u64) -> Change {
    let mut make = Make::new(seed);
    let name = format!("k{key}");
    let id = u128::from(key) << 80 | 1;
    match kind {
        0 => Change::Plan(make.plan(&name)),
        1 => Change::Tenant(make.tenant(&name)),
        2 => Change::TenantState(make.tenant_state(&name)),
        3 => Change::Pool(make.pool(&name)),
        4 => Change::Template(make.template(&name)),
        5 => Change::Key(make.key(id)),
        6 => Change::Host(make.host(&name)),
        7 => Change::Sandbox(Box::new(make.sandbox(id))),
        8 => Change::Reservation(make.reservation(id).into()),
        9 => Change::Decision(make.decision(id).into()),
        10 => Change::Event(make.event(id)),
        11 => Change::Usage(make.usage(ClaimId::Sandbox(SandboxId(id)), i64::from(key))),
        12 => make.policy(&name),
        _ => Change::Endpoint(make.endpoint(id)),
    }
}

/// How many kinds [`put`] knows.
const KINDS: usize = 14;

/// The change that removes a row of a kind, where there is one.
fn gone(kind: usize, key: u8) -> Option<Change> {
    let name = format!("k{key}");
    let id = u128::from(key) << 80 | 1;
    Some(match kind {
        0 => Change::PlanGone(PlanId::new(&name).unwrap()),
        1 => Change::TenantGone(tenant(&name)),
        3 => Change::PoolGone(pool(&name)),
        4 => Change::TemplateGone(template(&name)),
        5 => Change::KeyGone(KeyId(id)),
        6 => Change::HostGone(HostId::new(&name).unwrap()),
        7 => Change::SandboxGone(SandboxId(id)),
        13 => Change::EndpointGone(EndpointId(id)),
        _ => return None,
    })
}

fn every_kind_of_change_is_found_after_a_restart(backend: &mut dyn Backend) {
    for seed in 0..50 {
        let (mut store, lease) = leader(backend);
        let mut oracle = Oracle::default();
        let batch: Vec<Change> =
            (0..KINDS).map(|kind| put(kind, kind as u8, seed * 100 + kind as u64)).collect();
        // An endpoint keeps its progress when it is written again, so each seed begins anew.
        store.commit(&lease, &[gone(13, 13).unwrap()]).unwrap();
        store.commit(&lease, &batch).unwrap();
        for change in &batch {
            oracle.apply(change);
        }
        drop(store);
        let (mut store, lease) = leader(backend);
        assert_eq!(rows(&mut *store, &lease), oracle.rows(), "seed {seed}");
        for change in &batch {
            match change {
                Change::Decision(row) => {
                    assert_eq!(store.reader().decision(row.id).unwrap().as_ref(), Some(&**row));
                }
                Change::Event(row) => {
                    let page = store.reader().events(&Default::default()).unwrap();
                    assert!(page.items.contains(row), "seed {seed}");
                }
                _ => {}
            }
        }
    }
}

fn any_history_leaves_the_last_write_of_every_key(backend: &mut dyn Backend) {
    // A step: a kind, a key, a seed, and whether the row is removed instead. Few keys, so that
    // steps meet; endpoints aside, whose progress is no last write.
    let step = (0..KINDS - 1, 0..6_u8, any::<u64>(), prop::bool::weighted(0.2));
    let batches = vec(vec(step, 1..60), 1..6);
    let mut runner =
        TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&batches, |batches| {
        let mut fresh = backend.fresh();
        let (mut store, lease) = leader(&mut *fresh);
        let mut oracle = Oracle::default();
        for batch in batches {
            let changes: Vec<Change> = batch
                .into_iter()
                .filter_map(
                    |(kind, key, seed, remove)| {
                        if remove { gone(kind, key) } else { Some(put(kind, key, seed)) }
                    },
                )
                .collect();
            store.commit(&lease, &changes).unwrap();
            for change in &changes {
                oracle.apply(change);
            }
            prop_assert_eq!(rows(&mut *store, &lease), oracle.rows());
        }
        Ok(())
    });
    outcome.unwrap();
}

fn changes_take_effect_in_order_within_a_batch(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    for kind in 0..KINDS {
        let (first, second) = (put(kind, 1, 10), put(kind, 1, 20));
        let mut oracle = Oracle::default();
        let mut batch = vec![first.clone(), second.clone()];
        if let Some(gone) = gone(kind, 1) {
            batch = vec![first, gone.clone(), second.clone(), put(kind, 2, 30), gone, second];
        }
        store.commit(&lease, &batch).unwrap();
        for change in &batch {
            oracle.apply(change);
        }
        let found = rows(&mut *store, &lease);
        let wanted = oracle.rows();
        let table = |rows: &plimsoll_engine::rows::Rows| match kind {
            0 => format!("{:?}", rows.plans),
            1 => format!("{:?}", rows.tenants),
            2 => format!("{:?}", rows.tenant_states),
            3 => format!("{:?}", rows.pools),
            4 => format!("{:?}", rows.templates),
            5 => format!("{:?}", rows.keys),
            6 => format!("{:?}", rows.hosts),
            7 => format!("{:?}", rows.sandboxes),
            8 => format!("{:?}", rows.reservations),
            11 => format!("{:?}", rows.usage),
            12 => format!("{:?}", rows.policies),
            13 => format!("{:?}", rows.endpoints),
            _ => String::new(),
        };
        assert_eq!(table(&found), table(&wanted), "kind {kind}");
    }
}

fn a_store_that_lost_its_lease_changes_nothing(backend: &mut dyn Backend) {
    let (mut store, old) = leader(backend);
    store.commit(&old, &[put(7, 1, 1)]).unwrap();
    // Long after any lease has run out.
    let later = NOW + Millis::from_seconds(24 * 3600);
    let new = store.acquire("another", later).unwrap();
    assert_eq!(new.epoch, old.epoch + 1);
    let before = rows(&mut *store, &new);

    let fenced = |outcome: Result<(), StoreError>| match outcome {
        Err(StoreError::Fenced { epoch, current }) => {
            assert_eq!((epoch, current), (old.epoch, new.epoch));
        }
        other => panic!("expected a fenced writer, found {other:?}"),
    };
    let batch: Vec<Change> = (0..KINDS).map(|kind| put(kind, 2, 5)).collect();
    fenced(store.commit(&old, &batch));
    fenced(store.record(&old, &[], &[]));
    fenced(store.prune(&old, later, &Retention::default()).map(drop));
    fenced(store.load(&old, later, &LoadLimits::default()).map(drop));
    fenced(store.renew(&mut old.clone(), later));

    assert_eq!(rows(&mut *store, &new), before);
    assert_eq!(store.reader().last_event().unwrap(), None);
    store.commit(&new, &batch).unwrap();
    store.renew(&mut new.clone(), later).unwrap();
}

fn epochs_grow_over_restarts(backend: &mut dyn Backend) {
    for expected in 1..=4 {
        let (store, lease) = leader(backend);
        assert_eq!(lease.epoch, expected);
        assert_eq!(lease.holder, "suite");
        let status = store.reader().status().unwrap();
        assert_eq!((status.epoch, status.holder.as_deref()), (expected, Some("suite")));
    }
}

fn an_empty_batch_is_a_commit(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    store.commit(&lease, &[]).unwrap();
    assert_eq!(rows(&mut *store, &lease), Default::default());
}

fn ended_rows_come_back_while_their_keys_are_bound(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let limits = LoadLimits::default();
    let mut batch = Vec::new();
    // The place in this list is the id: what ended just within the bound, on it, and beyond.
    let ages = [limits.key_ttl.get() - 1, limits.key_ttl.get(), limits.key_ttl.get() + 1];
    for (id, age) in ages.iter().enumerate() {
        let ended = Some(NOW - Millis(*age));
        let mut make = Make::new(id as u64);
        let mut sandbox = make.sandbox(id as u128);
        sandbox.status = SandboxStatus::Failed;
        sandbox.ended_at = ended;
        let mut reservation = make.reservation(id as u128);
        reservation.state = ReservationState::Expired;
        reservation.ended_at = ended;
        batch.extend([Change::Sandbox(Box::new(sandbox)), Change::Reservation(reservation.into())]);
    }
    store.commit(&lease, &batch).unwrap();
    let found = rows(&mut *store, &lease);
    let sandboxes: Vec<u128> = found.sandboxes.iter().map(|row| row.id.0).collect();
    let reservations: Vec<u128> = found.reservations.iter().map(|row| row.id.0).collect();
    assert_eq!((sandboxes, reservations), (vec![0, 1], vec![0, 1]));
}

fn of_too_many_ended_rows_the_newest_come_back(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    // Ids fall while ends advance: the newest end is told by when it was written, not by its id.
    for id in (0..10_u128).rev() {
        let mut sandbox = Make::new(1).sandbox(id);
        sandbox.status = SandboxStatus::Terminated;
        sandbox.ended_at = Some(NOW);
        let mut living = Make::new(2).sandbox(id + 100);
        living.status = SandboxStatus::Running;
        let batch = [Change::Sandbox(Box::new(sandbox)), Change::Sandbox(Box::new(living))];
        store.commit(&lease, &batch).unwrap();
    }
    let limits = LoadLimits { ended_max: 3, ..LoadLimits::default() };
    let found = store.load(&lease, NOW, &limits).unwrap();
    let ids: Vec<u128> = found.sandboxes.iter().map(|row| row.id.0).collect();
    let wanted: Vec<u128> = (0..3).chain(100..110).collect();
    assert_eq!(ids, wanted);
}

fn what_ended_can_live_again(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let mut row = Make::new(1).reservation(7);
    for (generation, state) in [
        ReservationState::Reserved,
        ReservationState::Expired,
        ReservationState::Committed,
        ReservationState::Released,
    ]
    .into_iter()
    .enumerate()
    {
        row.state = state;
        row.generation = generation as u64;
        row.ended_at = (!state.holds()).then_some(NOW);
        store.commit(&lease, &[Change::Reservation(row.clone().into())]).unwrap();
        assert_eq!(rows(&mut *store, &lease).reservations, vec![row.clone()]);
        assert_eq!(store.reader().reservation(row.id).unwrap(), Some(row.clone()));
    }
    let mut sandbox = Make::new(1).sandbox(7);
    for status in [SandboxStatus::Failed, SandboxStatus::Running] {
        sandbox.status = status;
        sandbox.ended_at = status.is_terminal().then_some(NOW);
        store.commit(&lease, &[Change::Sandbox(Box::new(sandbox.clone()))]).unwrap();
        assert_eq!(store.reader().sandbox(sandbox.id).unwrap(), Some(sandbox.clone()));
        let ended = store.reader().sandboxes_ended(&Default::default()).unwrap();
        assert_eq!(ended.items.len(), usize::from(status.is_terminal()));
    }
    store.commit(&lease, &[Change::SandboxGone(sandbox.id)]).unwrap();
    assert_eq!(store.reader().sandbox(sandbox.id).unwrap(), None);
    assert!(rows(&mut *store, &lease).sandboxes.is_empty());
}

fn an_endpoint_that_is_edited_keeps_its_progress(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let mut row = Make::new(3).endpoint(1);
    row.cursor = EventId(100);
    row.failing_since = None;
    store.commit(&lease, &[Change::Endpoint(row.clone())]).unwrap();
    let step = |cursor, failing_since| Progress {
        endpoint: EndpointId(1),
        cursor: EventId(cursor),
        failing_since,
    };
    store.record(&lease, &[], &[step(200, Some(NOW))]).unwrap();
    assert_eq!(store.reader().progress().unwrap(), vec![step(200, Some(NOW))]);

    // The engine knows of none of that.
    row.url = "https://example.org/new".to_owned();
    store.commit(&lease, &[Change::Endpoint(row.clone())]).unwrap();
    row.cursor = EventId(200);
    row.failing_since = Some(NOW);
    assert_eq!(rows(&mut *store, &lease).endpoints, vec![row.clone()]);

    // A cursor goes forward by either way, and back by none.
    store.record(&lease, &[], &[step(150, None), step(150, None)]).unwrap();
    row.cursor = EventId(300);
    store.commit(&lease, &[Change::Endpoint(row.clone())]).unwrap();
    assert_eq!(store.reader().progress().unwrap(), vec![step(300, None)]);

    store.commit(&lease, &[Change::EndpointGone(row.id)]).unwrap();
    store.record(&lease, &[], &[step(400, None)]).unwrap();
    assert_eq!(store.reader().progress().unwrap(), vec![]);
}

#[test]
fn both_backends_tell_the_same_story_of_one_history() {
    let (mut memory, mut sqlite) = (Memory::new(), Sqlite::new());
    let (mut one, mut other) = (memory.open(), sqlite.open());
    let leases = (one.acquire("a", NOW).unwrap(), other.acquire("a", NOW).unwrap());
    let mut make = Make::new(9);
    for round in 0..30_u64 {
        let batch: Vec<Change> = (0..40)
            .map(|step| {
                put(step % KINDS, (round as u8).wrapping_mul(7) % 20, round * 1_000 + step as u64)
            })
            .chain((0..5).map(|id| Change::Event(make.event(u128::from(round * 10 + id)))))
            .collect();
        one.commit(&leases.0, &batch).unwrap();
        other.commit(&leases.1, &batch).unwrap();
        let now = NOW + Millis::from_seconds(round * 20_000);
        let keep = Retention { rows_max: 5, ..Retention::default() };
        assert_eq!(
            one.prune(&leases.0, now, &keep).unwrap(),
            other.prune(&leases.1, now, &keep).unwrap()
        );
        for usage_rows_max in [0, 1, 7, 1_000] {
            let limits = LoadLimits { usage_rows_max, ended_max: 3, ..LoadLimits::default() };
            assert_eq!(
                one.load(&leases.0, now, &limits).unwrap(),
                other.load(&leases.1, now, &limits).unwrap()
            );
        }
    }
}
