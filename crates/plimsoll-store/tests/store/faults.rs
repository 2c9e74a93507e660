//! Faults that the memory store injects.

use plimsoll_engine::Change;
use plimsoll_store::{Fault, MemoryStore, Store, StoreError};
use plimsoll_types::Millis;

use crate::backend::{NOW, rows};
use crate::make::Make;

fn change(id: u128) -> [Change; 2] {
    let mut make = Make::new(1);
    [Change::Plan(make.plan(&format!("p{id}"))), Change::Key(make.key(id))]
}

#[test]
fn each_fault_comes_once_in_its_order_and_leaves_all_or_nothing() {
    let mut store = MemoryStore::new();
    let lease = store.acquire("a", NOW).unwrap();
    store.inject([Fault::None, Fault::Fail, Fault::FailAfterApply, Fault::Full, Fault::Busy]);
    let outcomes: Vec<Option<&str>> = (0..6)
        .map(|id| store.commit(&lease, &change(id)).err().map(|error| error.word()))
        .collect();
    assert_eq!(outcomes, [None, Some("io"), Some("io"), Some("full"), Some("busy"), None]);
    let found = rows(&mut store, &lease);
    let plans: Vec<&str> = found.plans.iter().map(|row| row.id.as_str()).collect();
    let keys: Vec<u128> = found.keys.iter().map(|row| row.id.0).collect();
    assert_eq!(plans, ["p0", "p2", "p5"]);
    assert_eq!(keys, [0, 2, 5]);
}

#[test]
fn a_writer_that_another_overtakes_is_fenced_until_it_takes_the_lease_anew() {
    let mut store = MemoryStore::new();
    let lease = store.acquire("a", NOW).unwrap();
    store.inject([Fault::Fenced]);
    for _ in 0..2 {
        let error = store.commit(&lease, &change(1)).unwrap_err();
        assert!(matches!(error, StoreError::Fenced { epoch: 1, current: 2 }), "{error}");
        assert!(!error.outcome_unknown());
    }
    let lease = store.acquire("a", NOW).unwrap();
    assert_eq!(lease.epoch, 3);
    store.commit(&lease, &change(1)).unwrap();
}

#[test]
fn a_lease_that_runs_keeps_others_off_until_it_is_not_renewed() {
    let ttl = Millis(10_000);
    let mut one = MemoryStore::with_lease_ttl(ttl);
    let mut other = one.clone();
    let mut lease = one.acquire("one", NOW).unwrap();
    assert_eq!(lease.expires_at, Some(NOW + ttl));
    let refused = other.acquire("other", NOW + Millis(9_999)).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Held { holder, until, .. }
            if holder == "one" && *until == Some(NOW + ttl)),
        "{refused}"
    );
    one.renew(&mut lease, NOW + Millis(5_000)).unwrap();
    assert!(other.acquire("other", NOW + Millis(14_999)).is_err());
    // Its holder may take it anew at any time, as after a crash.
    let again = one.acquire("one", NOW + Millis(14_999)).unwrap();
    assert_eq!(again.epoch, 2);
    let taken = other.acquire("other", NOW + Millis(25_000)).unwrap();
    assert_eq!(taken.epoch, 3);
    assert!(matches!(one.renew(&mut lease, NOW), Err(StoreError::Fenced { .. })));
}
