//! The readers' side: a few connections, shared.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use plimsoll_engine::SandboxFilter;
use plimsoll_engine::rows::{
    DecisionRow, EndpointRow, EventRow, ReservationRow, SandboxRow, UsageRow,
};
use plimsoll_types::{
    DecisionId, EndpointId, EventId, ReservationId, SandboxId, TenantId, Timestamp,
};
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

use super::fail::Context;
use super::file::{Purpose, connect};
use super::load::all;
use super::rows::ledger::LedgerRow;
use super::rows::{Cells, IdText, Shared, SqlRow, select_sql};
use super::usage;
use crate::delivery::{DeliveryPage, DeliveryRow, Progress};
use crate::error::StoreError;
use crate::query::{
    CodeFilter, DecisionPage, DecisionQuery, EXAMINED_MAX, EventPage, EventQuery, SandboxPage,
    UsageDay, UsagePage, UsageQuery, UsageTotal, page_limit, sandbox_matches,
};
use crate::store::{Reader, StoreStatus};
use crate::usage::{USAGE_EXAMINED_MAX, day_of};

/// Sorts after every id: they are lower-case letters, digits and an underscore.
const ABOVE_ANY_ID: &str = "~";

/// A few connections that only read.
#[derive(Debug)]
pub(super) struct Pool {
    path: Arc<str>,
    connections_max: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Connection>,
    open: usize,
}

impl Pool {
    pub(super) fn new(path: Arc<str>, connections_max: usize) -> Self {
        Self {
            path,
            connections_max: connections_max.max(1),
            state: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    /// Lends a connection, which comes back when `work` is done, however that ends.
    fn with<T>(
        &self,
        work: impl FnOnce(&Connection, &Context<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let lent = self.lend()?;
        let connection = lent.connection.as_ref();
        let context = Context { doing: "reading", path: &self.path };
        connection.map_or_else(
            || Err(StoreError::Io { doing: "reading".to_owned(), detail: "no connection".into() }),
            |connection| work(connection, &context),
        )
    }

    fn lend(&self) -> Result<Lent<'_>, StoreError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(connection) = state.idle.pop() {
                return Ok(Lent { pool: self, connection: Some(connection) });
            }
            if state.open < self.connections_max {
                state.open += 1;
                drop(state);
                // From here on the place is given back by `Lent`, with a connection or without.
                let mut lent = Lent { pool: self, connection: None };
                lent.connection = Some(connect(&self.path, Purpose::Read)?);
                return Ok(lent);
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct Lent<'p> {
    pool: &'p Pool,
    connection: Option<Connection>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.connection.take() {
            Some(connection) => state.idle.push(connection),
            None => state.open -= 1,
        }
        self.pool.returned.notify_one();
    }
}

/// The one row with a key.
fn one<R: SqlRow>(
    connection: &Connection,
    context: &Context<'_>,
    table: &'static str,
    key: &str,
) -> Result<Option<R>, StoreError> {
    let sql = select_sql::<R>(table, "WHERE id = ?");
    let mut statement = context.of(connection.prepare_cached(&sql))?;
    let mut rows = context.of(statement.query([key]))?;
    match context.of(rows.next())? {
        Some(row) => Cells::read(row, table, &mut Shared::default()).map(Some),
        None => Ok(None),
    }
}

/// One row of a ledger, alive or ended.
fn either<R: LedgerRow>(pool: &Pool, id: R::Id) -> Result<Option<R>, StoreError> {
    pool.with(|connection, context| {
        let key = IdText::of(&id);
        // One transaction, or a row could move from the one table to the other in between.
        let transaction = context.of(connection.unchecked_transaction())?;
        match one::<R>(&transaction, context, R::LIVE, key.as_str())? {
            Some(row) => Ok(Some(row)),
            None => one::<R>(&transaction, context, R::ENDED, key.as_str()),
        }
    })
}

/// A scan that is bounded by what it returns and by what it looks at.
struct Scan<R> {
    items: Vec<R>,
    last: Option<R>,
    more: bool,
}

/// Reads rows until `limit` of them match, `EXAMINED_MAX` were looked at, or `ends` says so.
fn scan<R: SqlRow>(
    connection: &Connection,
    context: &Context<'_>,
    table: &'static str,
    (rest, values): (&str, Vec<Value>),
    limit: usize,
    mut step: impl FnMut(&R) -> Step,
) -> Result<Scan<R>, StoreError> {
    let mut statement = context.of(connection.prepare_cached(&select_sql::<R>(table, rest)))?;
    let mut rows = context.of(statement.query(params_from_iter(values)))?;
    let mut shared = Shared::default();
    let mut found = Scan { items: Vec::new(), last: None, more: false };
    let mut examined = 0;
    while let Some(row) = context.of(rows.next())? {
        if found.items.len() == limit || examined == EXAMINED_MAX {
            found.more = true;
            break;
        }
        examined += 1;
        let row: R = Cells::read(row, table, &mut shared)?;
        match step(&row) {
            Step::Take => {
                found.last = None;
                found.items.push(row);
            }
            Step::Pass => found.last = Some(row),
            Step::End => break,
        }
    }
    Ok(found)
}

/// What a scan does with a row.
enum Step {
    Take,
    Pass,
    End,
}

impl<R> Scan<R> {
    /// The last row looked at.
    fn through(&self) -> Option<&R> {
        self.last.as_ref().or(self.items.last())
    }
}

/// Shows every row of a tenant's use within a range of hours.
fn each_usage(
    connection: &Connection,
    context: &Context<'_>,
    (tenant, from, to): (&TenantId, Timestamp, Timestamp),
    mut see: impl FnMut(&UsageRow),
) -> Result<(), StoreError> {
    let mut shared = Shared::default();
    let mut examined = 0;
    // Both tables from one point in time, or hours could be seen on their way into a day.
    let transaction = context.of(connection.unchecked_transaction())?;
    for (table, column) in [("usage_days", "day_at_millis"), ("usage_hours", "hour_at_millis")] {
        // One step from hour to hour, and within each hour only the tenant's rows: the key begins
        // with the hour, and hours hold every tenant.
        let next = format!("SELECT min({column}) FROM {table} WHERE {column} >= ?");
        let mut next = context.of(transaction.prepare_cached(&next))?;
        let sql = usage::select(table, column, &format!("WHERE {column} = ? AND tenant = ?"));
        let mut statement = context.of(transaction.prepare_cached(&sql))?;
        let mut from = from.millis();
        loop {
            let hour: Option<i64> = context.of(next.query_row([from], |row| row.get(0)))?;
            let Some(hour) = hour.filter(|hour| *hour < to.millis()) else { break };
            let mut rows = context.of(statement.query(params![hour, tenant.as_str()]))?;
            while let Some(row) = context.of(rows.next())? {
                if examined == USAGE_EXAMINED_MAX {
                    return Err(StoreError::TooWide {
                        what: "usage",
                        rows_max: USAGE_EXAMINED_MAX,
                    });
                }
                examined += 1;
                let row: UsageRow = Cells::read(row, table, &mut shared)?;
                see(&row);
            }
            from = hour + 1;
        }
    }
    Ok(())
}

fn text(id: &impl std::fmt::Display) -> Value {
    Value::Text(id.to_string())
}

impl Reader for Pool {
    fn decision(&self, id: DecisionId) -> Result<Option<DecisionRow>, StoreError> {
        self.with(|connection, context| {
            one(connection, context, "decisions", IdText::of(&id).as_str())
        })
    }

    fn decisions(&self, query: &DecisionQuery) -> Result<DecisionPage, StoreError> {
        let before =
            query.before.map_or_else(|| Value::Text(ABOVE_ANY_ID.to_owned()), |id| text(&id));
        let mut values = vec![before];
        // An index holds the refusals by their code; everything else is filtered on the way.
        let rest = match query.code {
            Some(CodeFilter::Code(code)) => {
                values.push(Value::Text(code.as_str().to_owned()));
                "WHERE id < ?1 AND code = ?2 ORDER BY id DESC"
            }
            Some(CodeFilter::Admitted | CodeFilter::Refused) | None => {
                "WHERE id < ?1 ORDER BY id DESC"
            }
        };
        let limit = page_limit(query.limit);
        self.with(|connection, context| {
            let found = scan::<DecisionRow>(
                connection,
                context,
                "decisions",
                (rest, values),
                limit,
                |row| {
                    if query.ends_at(row.at) {
                        Step::End
                    } else if query.matches(row) {
                        Step::Take
                    } else {
                        Step::Pass
                    }
                },
            )?;
            let next = found.through().filter(|_| found.more).map(|row| row.id);
            Ok(DecisionPage { items: found.items, next })
        })
    }

    fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        let after = query.after.map_or_else(|| Value::Text(String::new()), |id| text(&id));
        self.with(|connection, context| {
            let found = scan::<EventRow>(
                connection,
                context,
                "events",
                ("WHERE id > ? ORDER BY id", vec![after]),
                page_limit(query.limit),
                |row| {
                    if query.tenant.is_none() || row.tenant == query.tenant {
                        Step::Take
                    } else {
                        Step::Pass
                    }
                },
            )?;
            let through = found.through().map(|row| row.id);
            Ok(EventPage { items: found.items, through, more: found.more })
        })
    }

    fn last_event(&self) -> Result<Option<EventId>, StoreError> {
        self.with(super::load::last_event)
    }

    fn sandbox(&self, id: SandboxId) -> Result<Option<SandboxRow>, StoreError> {
        either::<SandboxRow>(self, id)
    }

    fn reservation(&self, id: ReservationId) -> Result<Option<ReservationRow>, StoreError> {
        either::<ReservationRow>(self, id)
    }

    fn sandboxes_ended(&self, filter: &SandboxFilter) -> Result<SandboxPage, StoreError> {
        let after = filter.after.map_or_else(|| Value::Text(String::new()), |id| text(&id));
        self.with(|connection, context| {
            let found = scan::<SandboxRow>(
                connection,
                context,
                "sandboxes_ended",
                (
                    "WHERE id > ? AND NOT EXISTS
                        (SELECT 1 FROM sandboxes AS live WHERE live.id = sandboxes_ended.id)
                     ORDER BY id",
                    vec![after],
                ),
                page_limit(filter.limit),
                |row| if sandbox_matches(filter, row) { Step::Take } else { Step::Pass },
            )?;
            let next = found.through().filter(|_| found.more).map(|row| row.id);
            Ok(SandboxPage { items: found.items, next })
        })
    }

    fn usage(&self, query: &UsageQuery) -> Result<UsagePage, StoreError> {
        // By the text of their ids.
        let mut totals: BTreeMap<String, UsageTotal> = BTreeMap::new();
        self.with(|connection, context| {
            each_usage(connection, context, (&query.tenant, query.from, query.to), |row| {
                let total = totals.entry(row.claim.to_string());
                total.or_insert_with(|| UsageTotal::of(row.claim)).add(row);
            })
        })?;
        let after = query.after.map(|claim| claim.to_string());
        let mut rest =
            totals.into_iter().skip_while(|(key, _)| after.as_ref().is_some_and(|at| key <= at));
        let items: Vec<UsageTotal> =
            rest.by_ref().take(page_limit(query.limit)).map(|(_, total)| total).collect();
        let next = rest.next().and(items.last()).map(|total| total.claim);
        Ok(UsagePage { items, next })
    }

    fn usage_by_day(
        &self,
        tenant: &TenantId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<UsageDay>, StoreError> {
        let mut days: BTreeMap<Timestamp, UsageDay> = BTreeMap::new();
        self.with(|connection, context| {
            each_usage(connection, context, (tenant, from, to), |row| {
                let day = day_of(row.hour);
                days.entry(day).or_insert_with(|| UsageDay::of(day)).add(row);
            })
        })?;
        Ok(days.into_values().collect())
    }

    fn deliveries(
        &self,
        endpoint: EndpointId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<DeliveryPage, StoreError> {
        let before = before.map_or(i64::MAX, |place| i64::try_from(place).unwrap_or(i64::MAX));
        let limit = page_limit(limit);
        self.with(|connection, context| {
            let sql = format!(
                "SELECT {}, place FROM webhook_deliveries
                 WHERE endpoint = ? AND place < ? ORDER BY place DESC LIMIT ?",
                DeliveryRow::COLUMNS.join(",")
            );
            let mut statement = context.of(connection.prepare_cached(&sql))?;
            let mut rows = context.of(statement.query(params![
                IdText::of(&endpoint).as_str(),
                before,
                limit as i64 + 1
            ]))?;
            let mut page = DeliveryPage::default();
            let mut last = None;
            while let Some(row) = context.of(rows.next())? {
                if page.items.len() == limit {
                    page.next = last;
                    break;
                }
                let place: i64 = context.of(row.get(DeliveryRow::COLUMNS.len()))?;
                last = Some(place.cast_unsigned());
                page.items.push(Cells::read(row, "webhook_deliveries", &mut Shared::default())?);
            }
            Ok(page)
        })
    }

    fn progress(&self) -> Result<Vec<Progress>, StoreError> {
        self.with(|connection, context| {
            all::<EndpointRow>(
                connection,
                context,
                &mut Shared::default(),
                "webhook_endpoints",
                "ORDER BY id",
            )
        })
        .map(|rows| {
            rows.into_iter()
                .map(|row| Progress {
                    endpoint: row.id,
                    cursor: row.cursor,
                    failing_since: row.failing_since,
                })
                .collect()
        })
    }

    fn status(&self) -> Result<StoreStatus, StoreError> {
        let (epoch, holder) = self.with(|connection, context| {
            context.of(connection.query_row("SELECT epoch, holder FROM lease", [], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?))
            }))
        })?;
        let size = |path: &str| std::fs::metadata(path).map_or(0, |file| file.len());
        let log_bytes = size(&format!("{}-wal", self.path));
        Ok(StoreStatus {
            backend: "sqlite",
            epoch: epoch.cast_unsigned(),
            holder,
            bytes: Some(size(&self.path) + log_bytes),
            log_bytes: Some(log_bytes),
        })
    }
}
