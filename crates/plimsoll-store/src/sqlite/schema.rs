//! Tables, and the steps from one version of them to the next.
//!
//! Ids and names are text, quantities are integers with their unit in the name, instants are
//! milliseconds since 1970 in columns that end in `_at_millis`, and what has no fixed shape is
//! JSON. For every table a view `readable_<table>` shows instants as RFC 3339 and leaves out what
//! holds secrets.
//!
//! Rows that live and end stand in two tables. The live one has nothing but its primary key, which
//! makes a write one descent into one tree, and is all that a restart has to read. The ended one
//! numbers its rows in the order in which they ended, so that the newest come back at a restart
//! and the oldest go when they are pruned, neither with a search.

use rusqlite::Connection;

use super::fail::Context;
use crate::error::StoreError;

/// Marks the file as ours ("PLIM"), so that no other program's database is written into.
pub(super) const APPLICATION_ID: i64 = 0x504c_494d;

/// Every step ever released, in order; a step is never changed once a database may have taken it.
/// `user_version` is the number of steps taken.
const STEPS: &[&str] = &[STEP_1, STEP_2];

/// The newest version that this program knows.
pub(super) const VERSION: i64 = STEPS.len() as i64;

const STEP_1: &str = "
CREATE TABLE lease (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    epoch INTEGER NOT NULL,
    holder TEXT,
    acquired_at_millis INTEGER
);
INSERT INTO lease (only_row, epoch) VALUES (1, 0);

CREATE TABLE plans (
    id TEXT PRIMARY KEY,
    limits TEXT
) WITHOUT ROWID;

CREATE TABLE tenants (
    id TEXT PRIMARY KEY,
    plan TEXT,
    payment_method INTEGER,
    payment_method_ever INTEGER,
    created_at_millis INTEGER,
    overrides TEXT,
    suspended TEXT,
    anchor_day INTEGER
) WITHOUT ROWID;

CREATE TABLE tenant_states (
    tenant TEXT PRIMARY KEY,
    state TEXT
) WITHOUT ROWID;

CREATE TABLE pools (
    name TEXT PRIMARY KEY,
    settings TEXT
) WITHOUT ROWID;

CREATE TABLE policies (
    pool TEXT PRIMARY KEY,
    version INTEGER,
    received_at_millis INTEGER,
    envelope TEXT
) WITHOUT ROWID;

CREATE TABLE templates (
    name TEXT PRIMARY KEY,
    driver TEXT,
    memory_mib INTEGER,
    overhead_mib INTEGER,
    vcpus INTEGER,
    stateful INTEGER,
    rootfs TEXT,
    command TEXT,
    env TEXT,
    host_labels TEXT,
    counted TEXT,
    baked INTEGER,
    pool TEXT
) WITHOUT ROWID;

CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    role TEXT,
    tenant TEXT,
    host TEXT,
    secret_sha256 TEXT,
    created_at_millis INTEGER
) WITHOUT ROWID;

CREATE TABLE hosts (
    id TEXT PRIMARY KEY,
    pool TEXT,
    address TEXT,
    secret TEXT,
    incarnation INTEGER,
    command_numbers_through INTEGER,
    draining INTEGER,
    enrolled_at_millis INTEGER,
    boot_id TEXT
) WITHOUT ROWID;

CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    tenant TEXT,
    template TEXT,
    status TEXT,
    reason TEXT,
    status_since_at_millis INTEGER,
    pool TEXT,
    host TEXT,
    driver TEXT,
    attempt INTEGER,
    fence_epoch INTEGER,
    fence_number INTEGER,
    memory_mib INTEGER,
    overhead_mib INTEGER,
    vcpus INTEGER,
    stateful INTEGER,
    priority INTEGER,
    preemptible INTEGER,
    criticality TEXT,
    on_full TEXT,
    slot_released INTEGER,
    idled INTEGER,
    resume_requested_at_millis INTEGER,
    brought_in_at_millis INTEGER,
    preempted_for TEXT,
    queued_at_millis INTEGER,
    created_at_millis INTEGER,
    started_at_millis INTEGER,
    last_active_at_millis INTEGER,
    ended_at_millis INTEGER,
    exit_code INTEGER,
    charge_mib INTEGER,
    resident_mib INTEGER,
    measured INTEGER,
    decision_id TEXT,
    body_hash INTEGER,
    paused_by TEXT,
    meter TEXT,
    key TEXT,
    labels TEXT,
    spec TEXT
) WITHOUT ROWID;

CREATE TABLE sandboxes_ended (
    place INTEGER PRIMARY KEY,
    id TEXT UNIQUE,
    tenant TEXT,
    template TEXT,
    status TEXT,
    reason TEXT,
    status_since_at_millis INTEGER,
    pool TEXT,
    host TEXT,
    driver TEXT,
    attempt INTEGER,
    fence_epoch INTEGER,
    fence_number INTEGER,
    memory_mib INTEGER,
    overhead_mib INTEGER,
    vcpus INTEGER,
    stateful INTEGER,
    priority INTEGER,
    preemptible INTEGER,
    criticality TEXT,
    on_full TEXT,
    slot_released INTEGER,
    idled INTEGER,
    resume_requested_at_millis INTEGER,
    brought_in_at_millis INTEGER,
    preempted_for TEXT,
    queued_at_millis INTEGER,
    created_at_millis INTEGER,
    started_at_millis INTEGER,
    last_active_at_millis INTEGER,
    ended_at_millis INTEGER,
    exit_code INTEGER,
    charge_mib INTEGER,
    resident_mib INTEGER,
    measured INTEGER,
    decision_id TEXT,
    body_hash INTEGER,
    paused_by TEXT,
    meter TEXT,
    key TEXT,
    labels TEXT,
    spec TEXT
);

CREATE TABLE reservations (
    id TEXT PRIMARY KEY,
    tenant TEXT,
    key TEXT,
    body_hash INTEGER,
    state TEXT,
    pool TEXT,
    host TEXT,
    memory_mib INTEGER,
    vcpus INTEGER,
    stateful INTEGER,
    charge_mib INTEGER,
    generation INTEGER,
    cgroup TEXT,
    created_at_millis INTEGER,
    expires_at_millis INTEGER,
    ended_at_millis INTEGER,
    decision_id TEXT,
    meter TEXT
) WITHOUT ROWID;

CREATE TABLE reservations_ended (
    place INTEGER PRIMARY KEY,
    id TEXT UNIQUE,
    tenant TEXT,
    key TEXT,
    body_hash INTEGER,
    state TEXT,
    pool TEXT,
    host TEXT,
    memory_mib INTEGER,
    vcpus INTEGER,
    stateful INTEGER,
    charge_mib INTEGER,
    generation INTEGER,
    cgroup TEXT,
    created_at_millis INTEGER,
    expires_at_millis INTEGER,
    ended_at_millis INTEGER,
    decision_id TEXT,
    meter TEXT
);

CREATE TABLE decisions (
    id TEXT PRIMARY KEY,
    decided_at_millis INTEGER,
    tenant TEXT,
    verb TEXT,
    code TEXT,
    object TEXT,
    pool TEXT,
    host TEXT,
    memory_mib INTEGER,
    vcpus INTEGER,
    stateful INTEGER,
    charge_mib INTEGER,
    items INTEGER,
    policy_version INTEGER,
    policy_mode TEXT,
    counts TEXT,
    slots_held INTEGER,
    slots_limit INTEGER,
    detail TEXT
) WITHOUT ROWID;
CREATE INDEX decisions_refused ON decisions (code, id) WHERE code IS NOT NULL;

CREATE TABLE events (
    id TEXT PRIMARY KEY,
    happened_at_millis INTEGER,
    kind TEXT,
    tenant TEXT,
    data TEXT
) WITHOUT ROWID;

CREATE TABLE webhook_endpoints (
    id TEXT PRIMARY KEY,
    tenant TEXT,
    url TEXT,
    events TEXT,
    description TEXT,
    secrets TEXT,
    disabled TEXT,
    created_at_millis INTEGER,
    cursor TEXT,
    failing_since_at_millis INTEGER
) WITHOUT ROWID;

CREATE TABLE webhook_deliveries (
    place INTEGER PRIMARY KEY,
    endpoint TEXT,
    event TEXT,
    kind TEXT,
    attempt INTEGER,
    attempted_at_millis INTEGER,
    duration_millis INTEGER,
    outcome TEXT,
    status INTEGER,
    detail TEXT,
    next_attempt_at_millis INTEGER
);
CREATE INDEX webhook_deliveries_by_endpoint ON webhook_deliveries (endpoint, place);

CREATE TABLE usage_hours (
    hour_at_millis INTEGER,
    tenant TEXT,
    claim TEXT,
    cpu_millis INTEGER,
    charged_mib_millis INTEGER,
    resident_mib_millis INTEGER,
    egress_bytes INTEGER,
    PRIMARY KEY (hour_at_millis, tenant, claim)
) WITHOUT ROWID;

CREATE TABLE usage_days (
    day_at_millis INTEGER,
    tenant TEXT,
    claim TEXT,
    cpu_millis INTEGER,
    charged_mib_millis INTEGER,
    resident_mib_millis INTEGER,
    egress_bytes INTEGER,
    PRIMARY KEY (day_at_millis, tenant, claim)
) WITHOUT ROWID;

CREATE TABLE usage_tenant_days (
    day_at_millis INTEGER,
    tenant TEXT,
    cpu_millis INTEGER,
    charged_mib_millis INTEGER,
    resident_mib_millis INTEGER,
    egress_bytes INTEGER,
    PRIMARY KEY (day_at_millis, tenant)
) WITHOUT ROWID;
";

/// Starts of a host's agent that later ones have replaced.
const STEP_2: &str = "ALTER TABLE hosts ADD COLUMN old_boots TEXT;";

/// Columns that no readable view shows: they hold secrets or bulk.
const HIDDEN: [&str; 6] = ["secret", "secrets", "secret_sha256", "env", "spec", "envelope"];

/// Holds a file to be ours, or new, and not newer than this program, before anything is changed in
/// it. Returns its version.
///
/// # Errors
/// [`StoreError::TooNew`] when it is newer than known; [`StoreError::Corrupt`] when it is some
/// other program's.
pub(super) fn recognise(connection: &Connection, path: &str) -> Result<i64, StoreError> {
    let context = Context { doing: "opening the database", path };
    let number = |sql: &str| context.of(connection.query_row(sql, [], |row| row.get::<_, i64>(0)));
    let found = number("PRAGMA user_version")?;
    let application = number("PRAGMA application_id")?;
    if application != APPLICATION_ID && number("SELECT count(*) FROM sqlite_schema")? > 0 {
        return Err(StoreError::Corrupt {
            detail: format!("{path} is a database of some other program"),
        });
    }
    if !(0..=VERSION).contains(&found) {
        return Err(StoreError::TooNew { what: path.to_owned(), found, known: VERSION });
    }
    Ok(found)
}

/// Brings a database to the newest version.
pub(super) fn migrate(connection: &Connection, path: &str) -> Result<(), StoreError> {
    let found = recognise(connection, path)?;
    if found == VERSION {
        return Ok(());
    }
    let context = Context { doing: "migrating the database", path };
    context.of(connection.execute_batch("BEGIN IMMEDIATE"))?;
    let outcome = steps(connection, found, &context)
        .and_then(|()| context.of(connection.execute_batch("COMMIT")));
    if outcome.is_err() && !connection.is_autocommit() {
        // The first error is the one to tell.
        let _ = connection.execute_batch("ROLLBACK");
    }
    outcome
}

fn steps(connection: &Connection, found: i64, context: &Context<'_>) -> Result<(), StoreError> {
    let taken = usize::try_from(found).unwrap_or(0);
    for step in STEPS.iter().skip(taken) {
        context.of(connection.execute_batch(step))?;
    }
    context.of(readable_views(connection))?;
    context.of(connection.pragma_update(None, "application_id", APPLICATION_ID))?;
    context.of(connection.pragma_update(None, "user_version", VERSION))
}

/// Makes every readable view anew.
fn readable_views(connection: &Connection) -> rusqlite::Result<()> {
    let names: Vec<(String, String)> = connection
        .prepare(
            "SELECT type, name FROM sqlite_schema
             WHERE (type = 'view' AND name LIKE 'readable_%')
                OR (type = 'table' AND name NOT LIKE 'sqlite_%')",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (kind, name) in names {
        if kind == "view" {
            connection.execute_batch(&format!("DROP VIEW {name}"))?;
            continue;
        }
        let columns: Vec<String> = connection
            .prepare("SELECT name FROM pragma_table_info(?)")?
            .query_map([&name], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let shown: Vec<String> = columns
            .iter()
            .filter(|column| !HIDDEN.contains(&column.as_str()))
            .map(|column| match column.strip_suffix("_at_millis") {
                Some(stem) => format!(
                    "strftime('%Y-%m-%dT%H:%M:%fZ', {column} / 1000.0, 'unixepoch') AS {stem}_at"
                ),
                None => column.clone(),
            })
            .collect();
        connection.execute_batch(&format!(
            "CREATE VIEW readable_{name} AS SELECT {} FROM {name}",
            shown.join(", ")
        ))?;
    }
    Ok(())
}
