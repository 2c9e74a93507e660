//! Removing what is older than it must be kept, from the front of each table.

use plimsoll_types::{EventId, Timestamp};
use rusqlite::{Connection, params};

use super::rows::IdText;
use crate::store::{Pruned, Retention};
use crate::usage::{DAY_MILLIS, day_of, usage_floor};

/// One bounded piece of each table, within the transaction that is open.
pub(super) fn prune(
    connection: &Connection,
    now: Timestamp,
    keep: &Retention,
) -> rusqlite::Result<Pruned> {
    let max = i64::try_from(keep.rows_max).unwrap_or(i64::MAX);
    let before = |age| (now - age).millis();
    let mut counts = Vec::new();
    for table in ["sandboxes_ended", "reservations_ended"] {
        // Places follow the order of ends, so the oldest stand at the front.
        let sql = format!(
            "DELETE FROM {table} WHERE place IN (SELECT place FROM {table} ORDER BY place LIMIT ?)
             AND coalesce(ended_at_millis, created_at_millis) < ?"
        );
        counts.push(connection.prepare_cached(&sql)?.execute(params![max, before(keep.ended)])?);
    }
    counts.push(
        connection
            .prepare_cached(
                "DELETE FROM decisions WHERE id IN (SELECT id FROM decisions ORDER BY id LIMIT ?)
                 AND decided_at_millis < ?",
            )?
            .execute(params![max, before(keep.decisions)])?,
    );
    let passed = passed(connection)?;
    counts.push(
        connection
            .prepare_cached(
                "DELETE FROM events WHERE id IN (SELECT id FROM events ORDER BY id LIMIT ?)
                 AND happened_at_millis < ? AND id <= ?",
            )?
            .execute(params![max, before(keep.events), passed])?,
    );
    counts.push(
        connection
            .prepare_cached(
                "DELETE FROM webhook_deliveries WHERE place IN
                    (SELECT place FROM webhook_deliveries ORDER BY place LIMIT ?)
                 AND attempted_at_millis < ?",
            )?
            .execute(params![max, before(keep.deliveries)])?,
    );
    counts.push(roll_usage(connection, now, keep, max)?);
    counts.push(
        connection
            .prepare_cached(
                "DELETE FROM usage_days WHERE (day_at_millis, tenant, claim) IN
                    (SELECT day_at_millis, tenant, claim FROM usage_days
                     WHERE day_at_millis < ?1
                     ORDER BY day_at_millis, tenant, claim LIMIT ?2)",
            )?
            .execute(params![usage_floor(now, keep.usage).millis(), max])?,
    );
    counts.push(
        connection
            .prepare_cached(
                "DELETE FROM usage_tenant_days WHERE (day_at_millis, tenant) IN
                    (SELECT day_at_millis, tenant FROM usage_tenant_days
                     WHERE day_at_millis < ?1 ORDER BY day_at_millis, tenant LIMIT ?2)",
            )?
            .execute(params![usage_floor(now, keep.usage).millis(), max])?,
    );
    Ok(Pruned {
        rows: counts.iter().map(|count| *count as u64).sum(),
        more: counts.iter().any(|count| *count >= keep.rows_max),
    })
}

/// Up to which event every endpoint that is still served has come.
fn passed(connection: &Connection) -> rusqlite::Result<String> {
    let slowest: Option<String> = connection
        .prepare_cached("SELECT min(cursor) FROM webhook_endpoints WHERE disabled IS NULL")?
        .query_row([], |row| row.get(0))?;
    Ok(slowest.unwrap_or_else(|| IdText::of(&EventId(u128::MAX)).as_str().to_owned()))
}

/// Moves hours of old days into their days.
fn roll_usage(
    connection: &Connection,
    now: Timestamp,
    keep: &Retention,
    max: i64,
) -> rusqlite::Result<usize> {
    let before = day_of(now - keep.usage_hourly.min(keep.usage)).millis();
    // The same rows both times: the first of those that are old enough, in the order of keys.
    const OLD: &str = "FROM usage_hours WHERE hour_at_millis < ?1
        ORDER BY hour_at_millis, tenant, claim LIMIT ?2";
    connection
        .prepare_cached(&format!(
            "INSERT INTO usage_days
             SELECT hour_at_millis - (hour_at_millis % {DAY_MILLIS} + {DAY_MILLIS}) % {DAY_MILLIS},
                    tenant, claim, cpu_millis, charged_mib_millis, resident_mib_millis,
                    egress_bytes
             FROM (SELECT * {OLD}) WHERE true
             ON CONFLICT (day_at_millis, tenant, claim) DO UPDATE SET
                 cpu_millis = cpu_millis + excluded.cpu_millis,
                 charged_mib_millis = charged_mib_millis + excluded.charged_mib_millis,
                 resident_mib_millis = resident_mib_millis + excluded.resident_mib_millis,
                 egress_bytes = egress_bytes + excluded.egress_bytes"
        ))?
        .execute(params![before, max])?;
    connection
        .prepare_cached(&format!(
            "DELETE FROM usage_hours WHERE (hour_at_millis, tenant, claim) IN
                (SELECT hour_at_millis, tenant, claim {OLD})"
        ))?
        .execute(params![before, max])
}
