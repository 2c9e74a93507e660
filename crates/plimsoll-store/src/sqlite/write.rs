//! A batch of changes as statements.
//!
//! Rows of the tables that see traffic are gathered by table and written many to a statement;
//! what an operator changes goes one by one, in order. Order within a table is kept. Order between
//! tables shows to nobody, because the batch is one transaction and no table refers to another.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;

use plimsoll_engine::Change;
use plimsoll_engine::rows::{
    DecisionRow, EndpointRow, EventRow, ReservationRow, SandboxRow, UsageRow,
};
use plimsoll_types::EndpointId;
use rusqlite::{CachedStatement, Connection};

use super::rows::config::PolicyRow;
use super::rows::ledger::LedgerRow;
use super::rows::{Binder, IdText, SqlRow, put_sql};
use super::usage;
use crate::delivery::{DELIVERIES_PER_ENDPOINT_MAX, DeliveryRow, Progress};

/// Rows in one statement. Beyond this a longer statement gains nothing measurable.
const MANY: usize = 16;

/// Applies changes within the transaction that is open.
pub(super) fn apply(connection: &Connection, changes: &[Change]) -> rusqlite::Result<()> {
    let mut gathered = Gathered::default();
    for change in changes {
        match change {
            Change::Sandbox(row) => gathered.sandboxes.push(Step::Put(row)),
            Change::SandboxGone(id) => gathered.sandboxes.push(Step::Gone(*id)),
            Change::Reservation(row) => gathered.reservations.push(Step::Put(row)),
            Change::Decision(row) => gathered.decisions.push(row),
            Change::Event(row) => gathered.events.push(row),
            Change::Usage(row) => gathered.usage.push(row),
            Change::Plan(row) => put(connection, "plans", row)?,
            Change::PlanGone(id) => drop_row(connection, "plans", "id", id)?,
            Change::Tenant(row) => put(connection, "tenants", row)?,
            Change::TenantGone(id) => {
                drop_row(connection, "tenants", "id", id)?;
                drop_row(connection, "tenant_states", "tenant", id)?;
            }
            Change::TenantState(row) => put(connection, "tenant_states", row)?,
            Change::Pool(row) => put(connection, "pools", row)?,
            Change::PoolGone(name) => {
                drop_row(connection, "pools", "name", name)?;
                drop_row(connection, "policies", "pool", name)?;
            }
            Change::Template(row) => put(connection, "templates", row)?,
            Change::TemplateGone(name) => drop_row(connection, "templates", "name", name)?,
            Change::Key(row) => put(connection, "keys", row)?,
            Change::KeyGone(id) => drop_row(connection, "keys", "id", id)?,
            Change::Host(row) => put(connection, "hosts", row)?,
            Change::HostGone(id) => drop_row(connection, "hosts", "id", id)?,
            Change::Endpoint(row) => put_endpoint(connection, row)?,
            Change::EndpointGone(id) => {
                drop_row(connection, "webhook_endpoints", "id", id)?;
                drop_row(connection, "webhook_deliveries", "endpoint", id)?;
            }
            Change::Policy { pool, version, received_at, envelope } => {
                let row: PolicyRow = (pool.clone(), *version, *received_at, envelope.clone());
                put(connection, "policies", &row)?;
            }
        }
    }
    ledger(connection, &gathered.sandboxes)?;
    ledger(connection, &gathered.reservations)?;
    put_sorted(connection, "decisions", gathered.decisions, |row| row.id)?;
    put_sorted(connection, "events", gathered.events, |row| row.id)?;
    usage::put(connection, &gathered.usage)
}

/// The rows of the tables that see traffic.
#[derive(Default)]
struct Gathered<'a> {
    sandboxes: Vec<Step<'a, SandboxRow>>,
    reservations: Vec<Step<'a, ReservationRow>>,
    decisions: Vec<&'a DecisionRow>,
    events: Vec<&'a EventRow>,
    usage: Vec<&'a UsageRow>,
}

/// What becomes of one row of a ledger.
enum Step<'a, R: LedgerRow> {
    Put(&'a R),
    Gone(R::Id),
}

impl<R: LedgerRow> Step<'_, R> {
    fn id(&self) -> R::Id {
        match self {
            Self::Put(row) => row.id(),
            Self::Gone(id) => *id,
        }
    }

    fn keeps_living(&self) -> bool {
        matches!(self, Self::Put(row) if !row.has_ended())
    }
}

/// Writes the steps of one ledger.
fn ledger<R: LedgerRow>(connection: &Connection, steps: &[Step<'_, R>]) -> rusqlite::Result<()> {
    if steps.iter().all(Step::keeps_living) {
        let rows: Vec<&R> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Put(row) => Some(*row),
                Step::Gone(_) => None,
            })
            .collect();
        return put_sorted(connection, R::LIVE, rows, LedgerRow::id);
    }
    // A row is whole, so of several steps about one id only the last shows.
    let last: HashMap<R::Id, usize> =
        steps.iter().enumerate().map(|(place, step)| (step.id(), place)).collect();
    let (mut living, mut ended) = (Vec::new(), Vec::new());
    for (place, step) in steps.iter().enumerate() {
        if last.get(&step.id()) != Some(&place) {
            continue;
        }
        match step {
            Step::Put(row) if !row.has_ended() => living.push(*row),
            Step::Put(row) => {
                drop_row(connection, R::LIVE, "id", &row.id())?;
                ended.push(*row);
            }
            Step::Gone(id) => {
                drop_row(connection, R::LIVE, "id", id)?;
                drop_row(connection, R::ENDED, "id", id)?;
            }
        }
    }
    put_sorted(connection, R::LIVE, living, LedgerRow::id)?;
    put_all(connection, R::ENDED, &ended)
}

/// Puts rows in the order of their keys, of those with one key the last one last. Each then goes
/// next to the one before, which SQLite finds without a descent: that is half as fast again.
fn put_sorted<R: SqlRow, K: Ord>(
    connection: &Connection,
    table: &str,
    mut rows: Vec<&R>,
    key: impl Fn(&R) -> K,
) -> rusqlite::Result<()> {
    rows.sort_by_key(|row| key(row));
    put_all(connection, table, &rows)
}

/// Puts rows, many to a statement.
fn put_all<R: SqlRow>(connection: &Connection, table: &str, rows: &[&R]) -> rusqlite::Result<()> {
    let mut chunks = rows.chunks_exact(MANY);
    if rows.len() >= MANY {
        let mut statement = connection.prepare_cached(&put_sql::<R>(table, MANY))?;
        let mut binder = Binder::new(&mut statement);
        for chunk in chunks.by_ref() {
            for row in chunk {
                row.bind(&mut binder)?;
            }
            binder.run()?;
        }
    }
    let rest = chunks.remainder();
    if !rest.is_empty() {
        let mut statement = connection.prepare_cached(&put_sql::<R>(table, 1))?;
        let mut binder = Binder::new(&mut statement);
        for row in rest {
            row.bind(&mut binder)?;
            binder.run()?;
        }
    }
    Ok(())
}

fn put<R: SqlRow>(connection: &Connection, table: &str, row: &R) -> rusqlite::Result<()> {
    put_all(connection, table, &[row])
}

fn drop_row(
    connection: &Connection,
    table: &str,
    column: &str,
    key: &impl Display,
) -> rusqlite::Result<()> {
    // Names are at most 63 bytes long and ids 30, but only ids are promised to fit `IdText`.
    let key = key.to_string();
    let mut statement: CachedStatement<'_> =
        connection.prepare_cached(&format!("DELETE FROM {table} WHERE {column} = ?"))?;
    statement.execute([key]).map(drop)
}

/// The settings are the engine's to say. How far an endpoint has come is not: it never goes back,
/// and since when it fails stays.
fn put_endpoint(connection: &Connection, row: &EndpointRow) -> rusqlite::Result<()> {
    let columns = EndpointRow::COLUMNS;
    let settings: Vec<String> = columns
        .iter()
        .filter(|column| !matches!(**column, "id" | "cursor" | "failing_since_at_millis"))
        .map(|column| format!("{column} = excluded.{column}"))
        .collect();
    let sql = format!(
        "INSERT INTO webhook_endpoints ({}) VALUES ({})
         ON CONFLICT (id) DO UPDATE SET {}, cursor = max(cursor, excluded.cursor)",
        columns.join(","),
        vec!["?"; columns.len()].join(","),
        settings.join(",")
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut binder = Binder::new(&mut statement);
    row.bind(&mut binder)?;
    binder.run().map(drop)
}

/// Logs delivery attempts and moves cursors, within the transaction that is open.
pub(super) fn record(
    connection: &Connection,
    deliveries: &[DeliveryRow],
    progress: &[Progress],
) -> rusqlite::Result<()> {
    let columns = DeliveryRow::COLUMNS;
    let mut log = connection.prepare_cached(&format!(
        "INSERT INTO webhook_deliveries ({}) SELECT {}
         WHERE EXISTS (SELECT 1 FROM webhook_endpoints WHERE id = ?1)",
        columns.join(","),
        (1..=columns.len()).map(|place| format!("?{place}")).collect::<Vec<_>>().join(",")
    ))?;
    let mut binder = Binder::new(&mut log);
    for row in deliveries {
        row.bind(&mut binder)?;
        binder.run()?;
    }
    let mut trim = connection.prepare_cached(
        "DELETE FROM webhook_deliveries WHERE endpoint = ?1 AND place <=
            (SELECT place FROM webhook_deliveries WHERE endpoint = ?1
             ORDER BY place DESC LIMIT 1 OFFSET ?2)",
    )?;
    let endpoints: BTreeSet<EndpointId> = deliveries.iter().map(|row| row.endpoint).collect();
    for endpoint in endpoints {
        let id = IdText::of(&endpoint);
        trim.execute(rusqlite::params![id.as_str(), DELIVERIES_PER_ENDPOINT_MAX as i64])?;
    }
    let mut step = connection.prepare_cached(
        "UPDATE webhook_endpoints SET cursor = max(cursor, ?), failing_since_at_millis = ?
         WHERE id = ?",
    )?;
    for row in progress {
        step.execute((
            IdText::of(&row.cursor).as_str(),
            row.failing_since.map(plimsoll_types::Timestamp::millis),
            IdText::of(&row.endpoint).as_str(),
        ))?;
    }
    Ok(())
}
