//! Metered use: what a restart gets of it, what readers get, and what becomes of it in time.

use std::collections::BTreeMap;

use plimsoll_engine::Change;
use plimsoll_engine::rows::{Meter, OTHER_CLAIMS, Totals, UsageRow};
use plimsoll_store::{LoadLimits, Retention, Store, UsageQuery, UsageTotal};
use plimsoll_types::{
    ClaimId, Millis, ReservationId, SandboxId, SandboxStatus, TenantId, Timestamp,
};

use crate::backend::{Backend, NOW, leader};
use crate::make::{HOUR, Make, tenant};
use crate::on_every_backend;

on_every_backend!(
    usage_comes_back_for_as_long_as_asked,
    beyond_the_bound_sums_stay_exact_and_open_hours_come_back,
    usage_is_added_up_by_claim,
    old_hours_become_days_and_no_use_is_lost,
);

const DAY: i64 = 24 * HOUR;

/// CPU by tenant and day.
fn by_day(rows: &[UsageRow]) -> BTreeMap<(TenantId, i64), u64> {
    let mut sums = BTreeMap::new();
    for row in rows {
        let day = row.hour.0.div_euclid(DAY);
        *sums.entry((row.tenant.clone(), day)).or_default() += row.cpu_millis;
    }
    sums
}

fn beyond_the_bound_sums_stay_exact_and_open_hours_come_back(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let mut make = Make::new(7);
    // Twenty sandboxes over fifty hours; each hour is written twice, as its guest goes on.
    let mut held: BTreeMap<(i64, u128), UsageRow> = BTreeMap::new();
    for hours_ago in (0..50).rev() {
        for half in 0..2 {
            let mut batch = Vec::new();
            for id in 1..=20_u128 {
                let claim = ClaimId::Sandbox(SandboxId(id));
                let mut row = make.usage(claim, hours_ago);
                row.tenant = tenant(if id % 2 == 0 { "red" } else { "green" });
                row.cpu_millis = row.cpu_millis % 1_000 + 1_000 * half;
                held.insert((hours_ago, id), row.clone());
                batch.push(Change::Usage(row));
            }
            store.commit(&lease, &batch).unwrap();
        }
    }
    // One guest was last heard of nine hours ago, and its memory is metered up to an hour ago:
    // the hours in between may still be written.
    let mut lagging = make.sandbox(3);
    (lagging.status, lagging.ended_at) = (SandboxStatus::Running, None);
    lagging.tenant = tenant("green");
    lagging.meter = Meter::default();
    lagging.meter.at = Timestamp(NOW.0 - HOUR + 5);
    lagging.meter.heard_at = Timestamp(NOW.0 - 9 * HOUR + 5);
    let _ = lagging.meter.credit(1, Totals { cpu_millis: 1, egress_bytes: 1 });
    store.commit(&lease, &[Change::Sandbox(Box::new(lagging))]).unwrap();

    let every: Vec<UsageRow> = held.values().cloned().collect();
    for usage_rows_max in [1, 30, 10_000] {
        let limits = LoadLimits { usage_rows_max, ..LoadLimits::default() };
        let loaded = store.load(&lease, NOW, &limits).unwrap().usage;
        assert_eq!(by_day(&loaded), by_day(&every), "at most {usage_rows_max}");
        let (rest, single): (Vec<UsageRow>, Vec<UsageRow>) =
            loaded.into_iter().partition(|row| row.claim == OTHER_CLAIMS);
        assert_eq!(rest.is_empty(), usage_rows_max == 10_000);
        assert!(single.iter().all(|row| every.contains(row)));
        for hours_ago in 1..=9 {
            assert!(single.contains(&held[&(hours_ago, 3)]), "the lagging guest's hours");
        }
        assert!(single.contains(&held[&(0, 20)]), "the newest row");
        // The lagging guest's nine hours lie beyond the one or thirty newest rows.
        assert_eq!(single.len(), every.len().min(usage_rows_max + 9));
    }
    // And still when hours have become days, and days are gone.
    let keep = Retention { usage_hourly: Millis::from_seconds(3_600), ..Retention::default() };
    while store.prune(&lease, NOW, &keep).unwrap().more {}
    let limits = LoadLimits { usage_rows_max: 5, ..LoadLimits::default() };
    assert_eq!(by_day(&store.load(&lease, NOW, &limits).unwrap().usage), by_day(&every));
    let keep = Retention { usage: Millis::from_seconds(24 * 3_600), ..keep };
    while store.prune(&lease, NOW, &keep).unwrap().more {}
    let since = (NOW.0 - DAY).div_euclid(DAY);
    let left: Vec<UsageRow> =
        every.into_iter().filter(|row| row.hour.0.div_euclid(DAY) >= since).collect();
    assert_eq!(by_day(&store.load(&lease, NOW, &limits).unwrap().usage), by_day(&left));
}

fn usage_comes_back_for_as_long_as_asked(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let hour = |hour: i64| UsageRow {
        hour: Timestamp(hour),
        ..Make::new(1).usage(ClaimId::Sandbox(SandboxId(1)), 0)
    };
    let day = 24 * 3_600_000;
    let midnight = NOW.0 - NOW.0.rem_euclid(day);
    let kept = [hour(midnight - 2 * day), hour(NOW.0)];
    let batch =
        [hour(midnight - 2 * day - 3_600_000), kept[0].clone(), kept[1].clone()].map(Change::Usage);
    store.commit(&lease, &batch).unwrap();
    // Two days back from noon or any other hour reach to the midnight before.
    let limits = LoadLimits { usage: Millis::from_seconds(2 * 24 * 3600), ..LoadLimits::default() };
    assert_eq!(store.load(&lease, NOW, &limits).unwrap().usage, kept);
}

fn usage_is_added_up_by_claim(backend: &mut dyn Backend) {
    let (mut store, lease) = leader(backend);
    let mut make = Make::new(4);
    let claims: Vec<ClaimId> = (0..5)
        .map(|id| ClaimId::Sandbox(SandboxId(id)))
        .chain((0..5).map(|id| ClaimId::Reservation(ReservationId(id))))
        .collect();
    let mut batch = Vec::new();
    for hours_ago in 0..10 {
        for claim in &claims {
            batch.push(make.usage(*claim, hours_ago));
            let mut foreign = make.usage(*claim, hours_ago);
            foreign.tenant = tenant("foreign");
            batch.push(foreign);
        }
    }
    let changes: Vec<Change> = batch.iter().cloned().map(Change::Usage).collect();
    store.commit(&lease, &changes).unwrap();
    let reader = store.reader();
    let (from, to) = (Timestamp(NOW.0 - 6 * HOUR), Timestamp(NOW.0 - 2 * HOUR));
    let mut wanted: Vec<UsageTotal> = claims
        .iter()
        .map(|claim| {
            let mine = batch.iter().filter(|row| {
                row.claim == *claim
                    && row.tenant.as_str() == "metered"
                    && row.hour >= from
                    && row.hour < to
            });
            let sum = |figure: fn(&plimsoll_engine::rows::UsageRow) -> u64| {
                mine.clone().map(figure).sum()
            };
            UsageTotal {
                claim: *claim,
                cpu_millis: sum(|row| row.cpu_millis),
                charged_mib_millis: sum(|row| row.charged_mib_millis),
                resident_mib_millis: sum(|row| row.resident_mib_millis),
                egress_bytes: sum(|row| row.egress_bytes),
            }
        })
        .collect();
    wanted.sort_by_key(|total| total.claim.to_string());
    for limit in [1, 3, 1_000] {
        let mut query = UsageQuery { tenant: tenant("metered"), from, to, after: None, limit };
        let mut found = Vec::new();
        loop {
            let page = reader.usage(&query).unwrap();
            assert!(page.items.len() <= limit);
            found.extend(page.items);
            query.after = page.next;
            if page.next.is_none() {
                break;
            }
        }
        assert_eq!(found, wanted);
    }
    // The same rows by the day, and no row of anybody else's.
    let day = 24 * HOUR;
    let mut by_day: std::collections::BTreeMap<i64, u64> = std::collections::BTreeMap::new();
    for row in &batch {
        if row.tenant.as_str() == "metered" && row.hour >= from && row.hour < to {
            *by_day.entry(row.hour.0 - row.hour.0.rem_euclid(day)).or_default() += row.cpu_millis;
        }
    }
    let found = reader.usage_by_day(&tenant("metered"), from, to).unwrap();
    let found: Vec<(i64, u64)> = found.iter().map(|one| (one.day.0, one.cpu_millis)).collect();
    assert_eq!(found, by_day.into_iter().collect::<Vec<_>>());
    assert_eq!(reader.usage_by_day(&tenant("nobody"), from, to).unwrap(), []);
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
