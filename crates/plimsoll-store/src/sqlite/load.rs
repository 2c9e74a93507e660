//! Reading everything that a restart needs.

use std::collections::BTreeMap;

use plimsoll_engine::rows::{EndpointRow, ReservationRow, Rows, SandboxRow, UsageRow};
use plimsoll_types::Timestamp;
use rusqlite::Connection;

use super::fail::Context;
use super::rows::ledger::LedgerRow;
use super::rows::{Cells, SqlRow, select_sql};
use crate::error::StoreError;
use crate::store::LoadLimits;
use crate::usage::{UsageKey, add_usage, usage_floor};

pub(super) fn load(
    connection: &Connection,
    path: &str,
    threads: usize,
    now: Timestamp,
    limits: &LoadLimits,
) -> Result<Rows, StoreError> {
    let _ = threads;
    let context = Context { doing: "loading", path };
    Ok(Rows {
        plans: all(connection, &context, "plans", "ORDER BY id")?,
        tenants: all(connection, &context, "tenants", "ORDER BY id")?,
        tenant_states: all(connection, &context, "tenant_states", "ORDER BY tenant")?,
        pools: all(connection, &context, "pools", "ORDER BY name")?,
        templates: all(connection, &context, "templates", "ORDER BY name")?,
        keys: all(connection, &context, "keys", "ORDER BY id")?,
        hosts: all(connection, &context, "hosts", "ORDER BY id")?,
        sandboxes: ledger::<SandboxRow>(connection, &context, now, limits)?,
        reservations: ledger::<ReservationRow>(connection, &context, now, limits)?,
        endpoints: all::<EndpointRow>(connection, &context, "webhook_endpoints", "ORDER BY id")?,
        usage: usage(connection, &context, now, limits)?,
        policies: all(connection, &context, "policies", "ORDER BY pool")?,
    })
}

/// Every row of a table.
pub(super) fn all<R: SqlRow>(
    connection: &Connection,
    context: &Context<'_>,
    table: &'static str,
    rest: &str,
) -> Result<Vec<R>, StoreError> {
    let mut statement = context.of(connection.prepare(&select_sql::<R>(table, rest)))?;
    let mut rows = statement.raw_query();
    let mut found = Vec::new();
    while let Some(row) = context.of(rows.next())? {
        found.push(R::read(&mut Cells::of::<R>(row, table))?);
    }
    Ok(found)
}

/// Live rows, and the newest of the ended ones, in the order of ids.
fn ledger<R: LedgerRow>(
    connection: &Connection,
    context: &Context<'_>,
    now: Timestamp,
    limits: &LoadLimits,
) -> Result<Vec<R>, StoreError> {
    let mut rows = all::<R>(connection, context, R::LIVE, "ORDER BY id")?;
    let ended = ended::<R>(connection, context, now, limits)?;
    let living = rows.len();
    rows.extend(ended);
    // Stable: of a row that ended once and lives again, the live one comes first and is kept.
    if rows.len() > living {
        rows.sort_by_key(LedgerRow::id);
        rows.dedup_by_key(|row| row.id());
    }
    Ok(rows)
}

fn ended<R: LedgerRow>(
    connection: &Connection,
    context: &Context<'_>,
    now: Timestamp,
    limits: &LoadLimits,
) -> Result<Vec<R>, StoreError> {
    let since = (now - limits.key_ttl).millis();
    let max = i64::try_from(limits.ended_max).unwrap_or(i64::MAX);
    let newest = format!(
        "WHERE place > (SELECT coalesce(max(place), 0) FROM {table}) - {max}
         AND coalesce(ended_at_millis, created_at_millis) >= {since}",
        table = R::ENDED
    );
    all::<R>(connection, context, R::ENDED, &newest)
}

fn usage(
    connection: &Connection,
    context: &Context<'_>,
    now: Timestamp,
    limits: &LoadLimits,
) -> Result<Vec<UsageRow>, StoreError> {
    let from = usage_floor(now, limits.usage).millis();
    let mut sums: BTreeMap<UsageKey, UsageRow> = BTreeMap::new();
    for (table, column) in [("usage_days", "day_at_millis"), ("usage_hours", "hour_at_millis")] {
        let sql = usage_sql(table, column, &format!("WHERE {column} >= {from}"));
        let mut statement = context.of(connection.prepare(&sql))?;
        let mut rows = statement.raw_query();
        while let Some(row) = context.of(rows.next())? {
            let row = UsageRow::read(&mut Cells::of::<UsageRow>(row, table))?;
            add_usage(sums.entry(UsageKey::of(&row)), &row);
        }
    }
    Ok(sums.into_values().collect())
}

/// `SELECT` of usage by the hour or by the day.
pub(super) fn usage_sql(table: &str, column: &str, rest: &str) -> String {
    let columns = UsageRow::COLUMNS[1..].join(",");
    format!("SELECT {column},{columns} FROM {table} {rest}")
}
