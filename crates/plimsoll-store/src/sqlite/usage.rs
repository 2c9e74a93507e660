//! Metered use: written by the hour and summed by tenant and day in the same transaction.

use std::collections::BTreeMap;

use plimsoll_engine::rows::{OTHER_CLAIMS, Rows, UsageRow};
use plimsoll_types::{TenantId, Timestamp};
use rusqlite::{CachedStatement, Connection, params};

use super::fail::Context;
use super::rows::{Binder, Cells, IdText, Shared, SqlRow, put_sql};
use crate::error::StoreError;
use crate::store::LoadLimits;
use crate::usage::{DaySums, Sums, UsageKey, day_of, open_hours, usage_floor, with_rest};

/// `SELECT` of usage by the hour or by the day.
pub(super) fn select(table: &str, column: &str, rest: &str) -> String {
    let columns = UsageRow::COLUMNS[1..].join(",");
    format!("SELECT {column},{columns} FROM {table} {rest}")
}

const ONE_HOUR: &str = "WHERE hour_at_millis = ? AND tenant = ? AND claim = ?";

/// Writes hours, and what they changed in the sums of their days.
pub(super) fn put(connection: &Connection, rows: &[&UsageRow]) -> rusqlite::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let sums = "SELECT cpu_millis, charged_mib_millis, resident_mib_millis, egress_bytes FROM";
    let mut before = connection.prepare_cached(&format!("{sums} usage_hours {ONE_HOUR}"))?;
    let mut put = connection.prepare_cached(&put_sql::<UsageRow>("usage_hours", 1))?;
    let mut binder = Binder::new(&mut put);
    let mut changed: BTreeMap<(Timestamp, &TenantId), Sums> = BTreeMap::new();
    for row in rows {
        let claim = IdText::of(&row.claim);
        let key = params![row.hour.millis(), row.tenant.as_str(), claim.as_str()];
        let before = sums_of(&mut before, key)?;
        row.bind(&mut binder)?;
        binder.run()?;
        let change = changed.entry((day_of(row.hour), &row.tenant)).or_default();
        *change = change.plus(Sums::of(row)).minus(before);
    }
    let mut sum = connection.prepare_cached(&format!(
        "{sums} usage_tenant_days WHERE day_at_millis = ? AND tenant = ?"
    ))?;
    let mut put = connection
        .prepare_cached("INSERT OR REPLACE INTO usage_tenant_days VALUES (?, ?, ?, ?, ?, ?)")?;
    for ((day, tenant), change) in changed {
        let Sums(new) = sums_of(&mut sum, params![day.millis(), tenant.as_str()])?.plus(change);
        let [cpu, charged, resident, egress] = new.map(u64::cast_signed);
        put.execute(params![day.millis(), tenant.as_str(), cpu, charged, resident, egress])?;
    }
    Ok(())
}

/// The sums under a key; nothing where there is no row.
fn sums_of(
    statement: &mut CachedStatement<'_>,
    key: &[&dyn rusqlite::ToSql],
) -> rusqlite::Result<Sums> {
    let mut rows = statement.query(key)?;
    let Some(row) = rows.next()? else { return Ok(Sums::default()) };
    let mut sums = Sums::default();
    for (place, sum) in sums.0.iter_mut().enumerate() {
        *sum = row.get::<_, i64>(place)?.cast_unsigned();
    }
    Ok(sums)
}

/// What a restart needs of it; see [`crate::usage`].
pub(super) fn load(
    connection: &Connection,
    context: &Context<'_>,
    shared: &mut Shared,
    now: Timestamp,
    limits: &LoadLimits,
    rows: &Rows,
) -> Result<Vec<UsageRow>, StoreError> {
    let floor = usage_floor(now, limits.usage);
    let sums = day_sums(connection, context, shared, floor)?;
    let mut newest = |table, column, max: usize| -> Result<Vec<UsageRow>, StoreError> {
        let order =
            format!("WHERE {column} >= ? ORDER BY {column} DESC, tenant DESC, claim DESC LIMIT ?");
        let mut statement = context.of(connection.prepare(&select(table, column, &order)))?;
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let mut found = Vec::new();
        let mut rows = context.of(statement.query(params![floor.millis(), max]))?;
        while let Some(row) = context.of(rows.next())? {
            found.push(Cells::read(row, table, shared)?);
        }
        found.reverse();
        Ok(found)
    };
    let max = limits.usage_rows_max.max(1);
    let hours = newest("usage_hours", "hour_at_millis", max)?;
    let left = max - hours.len();
    let mut found = newest("usage_days", "day_at_millis", left)?;
    if let Some(end) = hours.first().filter(|_| left == 0).map(UsageKey::of) {
        let floor = UsageKey::first(floor);
        let mut open: Vec<UsageKey> =
            open_hours(rows).filter(|key| *key >= floor && *key < end).collect();
        open.sort_unstable();
        let sql = select("usage_hours", "hour_at_millis", ONE_HOUR);
        let mut statement = context.of(connection.prepare(&sql))?;
        for key in &open {
            let Some((tenant, claim)) = key.whose() else { continue };
            let claim = IdText::of(&claim);
            let key = params![key.hour.millis(), tenant.as_str(), claim.as_str()];
            let mut rows = context.of(statement.query(key))?;
            if let Some(row) = context.of(rows.next())? {
                found.push(Cells::read(row, "usage_hours", shared)?);
            }
        }
    }
    found.extend(hours);
    Ok(with_rest(sums, found))
}

fn day_sums(
    connection: &Connection,
    context: &Context<'_>,
    shared: &mut Shared,
    floor: Timestamp,
) -> Result<DaySums, StoreError> {
    let sql = "SELECT day_at_millis, tenant, ?, cpu_millis, charged_mib_millis,
        resident_mib_millis, egress_bytes FROM usage_tenant_days WHERE day_at_millis >= ?";
    let mut statement = context.of(connection.prepare(sql))?;
    let others = IdText::of(&OTHER_CLAIMS);
    let mut rows = context.of(statement.query(params![others.as_str(), floor.millis()]))?;
    let mut sums = DaySums::new();
    while let Some(row) = context.of(rows.next())? {
        let row: UsageRow = Cells::read(row, "usage_tenant_days", shared)?;
        sums.insert((row.hour, row.tenant.clone()), Sums::of(&row));
    }
    Ok(sums)
}
