//! Reading everything that a restart needs.

use std::sync::{Mutex, PoisonError};

use plimsoll_engine::rows::Rows;
use plimsoll_types::{EventId, Timestamp};
use rusqlite::Connection;

use super::fail::Context;
use super::file::{Purpose, connect};
use super::rows::ledger::LedgerRow;
use super::rows::{Cells, Shared, SqlRow, select_sql};
use super::usage;
use crate::error::StoreError;
use crate::store::LoadLimits;

/// Rows that one end of a table reads before it looks at how far the other has come. The ends
/// overlap by at most so many.
const CHUNK: usize = 1_024;

/// Loads every table. Nothing writes in the meantime: the caller has the writer.
pub(super) fn load(
    connection: &Connection,
    context: &Context<'_>,
    now: Timestamp,
    limits: &LoadLimits,
) -> Result<Rows, StoreError> {
    let shared = &mut Shared::default();
    let mut rows = Rows {
        sandboxes: ledger(connection, context, shared, now, limits)?,
        reservations: ledger(connection, context, shared, now, limits)?,
        plans: all(connection, context, shared, "plans", "ORDER BY id")?,
        tenants: all(connection, context, shared, "tenants", "ORDER BY id")?,
        tenant_states: all(connection, context, shared, "tenant_states", "ORDER BY tenant")?,
        pools: all(connection, context, shared, "pools", "ORDER BY name")?,
        templates: all(connection, context, shared, "templates", "ORDER BY name")?,
        keys: all(connection, context, shared, "keys", "ORDER BY id")?,
        hosts: all(connection, context, shared, "hosts", "ORDER BY id")?,
        endpoints: all(connection, context, shared, "webhook_endpoints", "ORDER BY id")?,
        usage: Vec::new(),
        policies: all(connection, context, shared, "policies", "ORDER BY pool")?,
        last_event: last_event(connection, context)?,
    };
    rows.usage = usage::load(connection, context, shared, now, limits, &rows)?;
    Ok(rows)
}

/// The newest event that is kept.
pub(super) fn last_event(
    connection: &Connection,
    context: &Context<'_>,
) -> Result<Option<EventId>, StoreError> {
    let found = context.of(connection
        .query_row("SELECT max(id) FROM events", [], |row| row.get::<_, Option<String>>(0)))?;
    let parse = |id: String| {
        id.parse()
            .map_err(|_| StoreError::Corrupt { detail: "events.id holds what is no id".to_owned() })
    };
    found.map(parse).transpose()
}

/// Every row of a table, or those that `rest` leaves.
pub(super) fn all<R: SqlRow>(
    connection: &Connection,
    context: &Context<'_>,
    shared: &mut Shared,
    table: &'static str,
    rest: &str,
) -> Result<Vec<R>, StoreError> {
    let mut statement = context.of(connection.prepare(&select_sql::<R>(table, rest)))?;
    let mut rows = statement.raw_query();
    let mut found = Vec::new();
    while let Some(row) = context.of(rows.next())? {
        found.push(Cells::read(row, table, shared)?);
    }
    Ok(found)
}

/// Live rows, and the newest of the ended ones, in the order of ids.
fn ledger<R: LedgerRow>(
    connection: &Connection,
    context: &Context<'_>,
    shared: &mut Shared,
    now: Timestamp,
    limits: &LoadLimits,
) -> Result<Vec<R>, StoreError> {
    let mut rows = live::<R>(connection, context, shared)?;
    let since = (now - limits.key_ttl).millis();
    let max = i64::try_from(limits.ended_max).unwrap_or(i64::MAX);
    let newest = format!(
        "WHERE place > (SELECT coalesce(max(place), 0) FROM {table}) - {max}
         AND coalesce(ended_at_millis, created_at_millis) >= {since}",
        table = R::ENDED
    );
    let ended: Vec<R> = all(connection, context, shared, R::ENDED, &newest)?;
    if !ended.is_empty() {
        rows.extend(ended);
        // Stable: of a row that ended once and lives again, the live one comes first and stays.
        rows.sort_by_key(LedgerRow::id);
        rows.dedup_by_key(|row| row.id());
    }
    Ok(rows)
}

/// How far the two ends of a table have come.
struct Meeting<I> {
    below: Option<I>,
    above: Option<I>,
}

/// Every live row in the order of ids, read from both ends by two threads until they meet.
fn live<R: LedgerRow>(
    connection: &Connection,
    context: &Context<'_>,
    shared: &mut Shared,
) -> Result<Vec<R>, StoreError> {
    let meeting = Mutex::new(Meeting { below: None, above: None });
    let (low, high) = std::thread::scope(|scope| {
        let upper = scope.spawn(|| {
            let connection = connect(context.path, Purpose::Read)?;
            half::<R>(&connection, context, &mut Shared::default(), &meeting, false)
        });
        let low = half::<R>(connection, context, shared, &meeting, true);
        (low, upper.join())
    });
    let high = high.map_err(|_| StoreError::Io {
        doing: format!("{} ({})", context.doing, context.path),
        detail: "the second reading thread panicked".to_owned(),
    })?;
    let mut rows = low?;
    rows.extend(high?.into_iter().rev());
    Ok(rows)
}

/// One end's rows in the order in which it reads them.
fn half<R: LedgerRow>(
    connection: &Connection,
    context: &Context<'_>,
    shared: &mut Shared,
    meeting: &Mutex<Meeting<R::Id>>,
    upwards: bool,
) -> Result<Vec<R>, StoreError> {
    let order = if upwards { "ORDER BY id" } else { "ORDER BY id DESC" };
    let mut statement = context.of(connection.prepare(&select_sql::<R>(R::LIVE, order)))?;
    let mut rows = statement.raw_query();
    let mut found: Vec<R> = Vec::new();
    loop {
        let claimed = found.len();
        while found.len() < claimed + CHUNK {
            let Some(row) = context.of(rows.next())? else { break };
            found.push(Cells::read(row, R::LIVE, shared)?);
        }
        let read = found.len() - claimed;
        let mut meeting = meeting.lock().unwrap_or_else(PoisonError::into_inner);
        // What the other end has claimed is the other end's.
        let Meeting { below, above } = *meeting;
        let free = |row: &R| {
            if upwards {
                above.is_none_or(|above| row.id() < above)
            } else {
                below.is_none_or(|below| row.id() > below)
            }
        };
        let kept = found[claimed..].partition_point(free);
        found.truncate(claimed + kept);
        let end = found.last().map(LedgerRow::id);
        if upwards {
            meeting.below = end.or(below);
        } else {
            meeting.above = end.or(above);
        }
        if kept < read || read < CHUNK {
            return Ok(found);
        }
    }
}
