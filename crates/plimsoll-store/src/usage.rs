//! What both backends must agree on about metered use.

use std::collections::btree_map::Entry;

use plimsoll_engine::rows::UsageRow;
use plimsoll_types::{ClaimId, Millis, ReservationId, TenantId, Timestamp};

/// A day in milliseconds; days are those of UTC.
pub(crate) const DAY_MILLIS: i64 = 24 * 3600 * 1000;

/// Most rows that one question about usage adds up: some two seconds of reading.
pub(crate) const USAGE_EXAMINED_MAX: usize = 2_000_000;

/// The start of the day in which an instant lies.
pub(crate) fn day_of(at: Timestamp) -> Timestamp {
    Timestamp(at.0 - at.0.rem_euclid(DAY_MILLIS))
}

/// Usage from here on is younger than `age`; a whole day is, or is not.
pub(crate) fn usage_floor(now: Timestamp, age: Millis) -> Timestamp {
    day_of(now - age)
}

/// Where a row stands: hours lie together, so that the rows that are being written do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UsageKey {
    pub(crate) hour: Timestamp,
    tenant: Option<TenantId>,
    claim: ClaimId,
}

impl UsageKey {
    pub(crate) fn of(row: &UsageRow) -> Self {
        Self { hour: row.hour, tenant: Some(row.tenant.clone()), claim: row.claim }
    }

    /// Below every row of the hour.
    pub(crate) fn first(hour: Timestamp) -> Self {
        Self { hour, tenant: None, claim: ClaimId::Reservation(ReservationId(0)) }
    }
}

/// Adds a row to what stands under its key.
pub(crate) fn add_usage(entry: Entry<'_, UsageKey, UsageRow>, row: &UsageRow) {
    match entry {
        Entry::Vacant(place) => drop(place.insert(row.clone())),
        Entry::Occupied(mut place) => {
            let sum = place.get_mut();
            sum.cpu_millis = sum.cpu_millis.saturating_add(row.cpu_millis);
            sum.charged_mib_millis = sum.charged_mib_millis.saturating_add(row.charged_mib_millis);
            sum.resident_mib_millis =
                sum.resident_mib_millis.saturating_add(row.resident_mib_millis);
            sum.egress_bytes = sum.egress_bytes.saturating_add(row.egress_bytes);
        }
    }
}
