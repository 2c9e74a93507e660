//! What both backends must agree on about metered use.
//!
//! Use is kept by claim and hour, and later by claim and day. A fleet that starts a hundred
//! thousand short guests a day makes millions of such rows in a period, more than a restart can
//! read. Beside them stands the sum of each tenant and day. A restart reads the sums, the newest
//! rows up to a bound, and those that may still be written again; what it has not read one by one
//! it knows by subtraction, so that the engine's sums are exact however much there is.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use plimsoll_engine::rows::{Meter, OTHER_CLAIMS, Rows, UsageRow};
use plimsoll_types::{ClaimId, Millis, ReservationId, SandboxId, TenantId, Timestamp};

/// A day in milliseconds; days are those of UTC.
pub(crate) const DAY_MILLIS: i64 = 24 * HOUR_MILLIS;

const HOUR_MILLIS: i64 = 3600 * 1000;

/// Most rows that one question about usage adds up: some two seconds of reading.
pub(crate) const USAGE_EXAMINED_MAX: usize = 2_000_000;

/// Most hours of one claim that come back because they may be written again: engines credit no
/// further back than two days.
const OPEN_HOURS_MAX: i64 = 48;

/// The start of the day in which an instant lies.
pub(crate) fn day_of(at: Timestamp) -> Timestamp {
    Timestamp(at.0 - at.0.rem_euclid(DAY_MILLIS))
}

/// Usage from here on is younger than `age`; a whole day is, or is not.
pub(crate) fn usage_floor(now: Timestamp, age: Millis) -> Timestamp {
    day_of(now - age)
}

/// Where a row stands: hours lie together, so that the rows that are being written do. Claims
/// follow one another as their texts do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UsageKey {
    pub(crate) hour: Timestamp,
    whose: Option<(TenantId, Place)>,
}

/// A claim in the order of texts: `rsv_` before `sbx_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Reservation(ReservationId),
    Sandbox(SandboxId),
}

impl UsageKey {
    pub(crate) fn new(hour: Timestamp, tenant: &TenantId, claim: ClaimId) -> Self {
        let place = match claim {
            ClaimId::Reservation(id) => Place::Reservation(id),
            ClaimId::Sandbox(id) => Place::Sandbox(id),
        };
        Self { hour, whose: Some((tenant.clone(), place)) }
    }

    pub(crate) fn of(row: &UsageRow) -> Self {
        Self::new(row.hour, &row.tenant, row.claim)
    }

    /// Below every row of the hour.
    pub(crate) fn first(hour: Timestamp) -> Self {
        Self { hour, whose: None }
    }

    /// Whose row it is; `None` below every row.
    pub(crate) fn whose(&self) -> Option<(&TenantId, ClaimId)> {
        self.whose.as_ref().map(|(tenant, place)| {
            let claim = match place {
                Place::Reservation(id) => ClaimId::Reservation(*id),
                Place::Sandbox(id) => ClaimId::Sandbox(*id),
            };
            (tenant, claim)
        })
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

/// Sums of a tenant and day: CPU, charged and resident memory, egress. They wrap, so that taking
/// away what was added leaves what was there, in whichever order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums(pub(crate) [u64; 4]);

impl Sums {
    pub(crate) const fn of(row: &UsageRow) -> Self {
        Self([row.cpu_millis, row.charged_mib_millis, row.resident_mib_millis, row.egress_bytes])
    }

    pub(crate) fn plus(self, more: Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place].wrapping_add(more.0[place])))
    }

    pub(crate) fn minus(self, less: Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place].wrapping_sub(less.0[place])))
    }
}

/// Sums by day and tenant.
pub(crate) type DaySums = BTreeMap<(Timestamp, TenantId), Sums>;

/// The hours that claims may still write again, with whose they are. A claim's row is written
/// whole, so an engine must know it before it adds to it.
pub(crate) fn open_hours(rows: &Rows) -> impl Iterator<Item = UsageKey> + '_ {
    let sandboxes =
        rows.sandboxes.iter().map(|row| (&row.tenant, ClaimId::Sandbox(row.id), &row.meter));
    let reservations =
        rows.reservations.iter().map(|row| (&row.tenant, ClaimId::Reservation(row.id), &row.meter));
    sandboxes.chain(reservations).filter(|(_, _, meter)| !meter.is_unused()).flat_map(
        |(tenant, claim, meter)| {
            meter_hours(meter).map(move |hour| UsageKey::new(hour, tenant, claim))
        },
    )
}

/// From the hour in which the slower of a meter's clocks stands to that of the faster one.
fn meter_hours(meter: &Meter) -> impl Iterator<Item = Timestamp> {
    let hour = |at: i64| at - at.rem_euclid(HOUR_MILLIS);
    let (slow, fast) = (meter.at.min(meter.heard_at), meter.at.max(meter.heard_at));
    let last = hour(fast.0);
    let first = hour(slow.0).max(last.saturating_sub((OPEN_HOURS_MAX - 1) * HOUR_MILLIS));
    (0..OPEN_HOURS_MAX)
        .map(move |step| Timestamp(first.saturating_add(step * HOUR_MILLIS)))
        .take_while(move |at| at.0 <= last)
}

/// What comes back: the sums without what follows one by one, and then that.
pub(crate) fn with_rest(mut sums: DaySums, one_by_one: Vec<UsageRow>) -> Vec<UsageRow> {
    for row in &one_by_one {
        let sum = sums.entry((day_of(row.hour), row.tenant.clone())).or_default();
        *sum = sum.minus(Sums::of(row));
    }
    sums.into_iter()
        .filter(|(_, sum)| *sum != Sums::default())
        .map(|((day, tenant), Sums(sum))| UsageRow {
            tenant,
            claim: OTHER_CLAIMS,
            hour: day,
            cpu_millis: sum[0],
            charged_mib_millis: sum[1],
            resident_mib_millis: sum[2],
            egress_bytes: sum[3],
        })
        .chain(one_by_one)
        .collect()
}
