//! Which refusal is said when several apply (DESIGN 4.9).

use plimsoll_types::{FilterCounts, HostFilter, RefusalCode};

/// Where a code stands: the lowest of those that apply is said.
///
/// Role, body, whether this replica can decide at all, conflict, suspension, never fits, rate,
/// budget, quota, degraded, capacity, and last what can only follow an admission. What the caller
/// must change comes before what will pass by waiting, and nothing about the fleet is said to a
/// caller who may not ask.
#[must_use]
pub const fn rank(code: RefusalCode) -> u8 {
    match code {
        RefusalCode::Unauthenticated => 0,
        RefusalCode::Forbidden => 1,
        RefusalCode::NotFound => 2,
        RefusalCode::PayloadTooLarge => 3,
        RefusalCode::InvalidRequest => 4,
        RefusalCode::UnknownTemplate => 5,
        RefusalCode::UnknownPool => 6,
        RefusalCode::NotLeader => 7,
        RefusalCode::Overloaded => 8,
        RefusalCode::StoreUnavailable => 9,
        RefusalCode::Conflict => 10,
        RefusalCode::ReservationExpired => 11,
        RefusalCode::TenantSuspended => 12,
        RefusalCode::NeverFits => 13,
        RefusalCode::RateLimited => 14,
        RefusalCode::BudgetExhausted => 15,
        RefusalCode::QuotaExceeded => 16,
        RefusalCode::Degraded => 17,
        RefusalCode::NoCapacity => 18,
        RefusalCode::NoHealthyHosts => 19,
        RefusalCode::HostStartsSaturated => 20,
        RefusalCode::HostPressure => 21,
        RefusalCode::WaitingTimeout => 22,
        RefusalCode::StartFailed => 23,
    }
}

/// The code to say out of those that apply; `None` when none does.
///
/// ```
/// use plimsoll_policy::precedence::first;
/// use plimsoll_types::RefusalCode::{NoCapacity, QuotaExceeded, RateLimited};
///
/// assert_eq!(first([NoCapacity, QuotaExceeded, RateLimited]), Some(RateLimited));
/// assert_eq!(first([]), None);
/// ```
#[must_use]
pub fn first(codes: impl IntoIterator<Item = RefusalCode>) -> Option<RefusalCode> {
    codes.into_iter().min_by_key(|code| rank(*code))
}

/// The capacity refusal that the counts over all eligible pools amount to.
///
/// In this order:
/// 1. full slots are `no_capacity`, whatever the hosts say;
/// 2. no host known, or none of those that could run it has a report to go by (each dead, stale
///    or unknown): `no_healthy_hosts`;
/// 3. a host that fits in all else is at its bound of starts: `host_starts_saturated`, the cause
///    that passes soonest;
/// 4. a host that is fit in all else, as far as is known, has shut its gate: `host_pressure`;
/// 5. anything else: `no_capacity`.
///
/// [`HostFilter::ALL`] puts pressure and saturation last, so a host counted under one of them
/// fell to nothing else: once that cause went away, no other would still refuse. Hosts without
/// the driver or the labels asked for are no part of the question; when no others exist the
/// answer is `no_capacity`.
#[must_use]
pub fn capacity_code(counts: &FilterCounts, slots_full: bool) -> RefusalCode {
    if slots_full {
        return RefusalCode::NoCapacity;
    }
    let sum = |filters: &[HostFilter]| -> u64 {
        filters.iter().map(|filter| u64::from(counts.of(*filter))).sum()
    };
    let unsuited = sum(&[HostFilter::Driver, HostFilter::Labels]);
    let silent = sum(&[HostFilter::Dead, HostFilter::Stale, HostFilter::Unknown]);
    let hosts = u64::from(counts.hosts);
    if hosts == 0 || (silent > 0 && silent + unsuited >= hosts) {
        RefusalCode::NoHealthyHosts
    } else if counts.of(HostFilter::StartsSaturated) > 0 {
        RefusalCode::HostStartsSaturated
    } else if counts.of(HostFilter::Pressure) > 0 {
        RefusalCode::HostPressure
    } else {
        RefusalCode::NoCapacity
    }
}
