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
/// fell to nothing that lasts: once these went away, no other cause would still refuse. Hosts without
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

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use proptest::prelude::*;
    use proptest::sample::subsequence;

    use super::*;

    fn counts(filters: &[(HostFilter, u32)]) -> FilterCounts {
        let mut counts = FilterCounts::default();
        for (filter, hosts) in filters {
            for _ in 0..*hosts {
                counts.count(*filter);
            }
        }
        counts
    }

    fn code(filters: &[(HostFilter, u32)]) -> RefusalCode {
        capacity_code(&counts(filters), false)
    }

    #[test]
    fn no_two_codes_share_a_rank() {
        let ranks: BTreeSet<_> = RefusalCode::ALL.iter().map(|code| rank(*code)).collect();
        assert_eq!(ranks.len(), RefusalCode::ALL.len());
    }

    #[test]
    fn the_order_is_the_documented_one() {
        let order = [
            RefusalCode::Forbidden,
            RefusalCode::InvalidRequest,
            RefusalCode::Conflict,
            RefusalCode::TenantSuspended,
            RefusalCode::NeverFits,
            RefusalCode::RateLimited,
            RefusalCode::BudgetExhausted,
            RefusalCode::QuotaExceeded,
            RefusalCode::Degraded,
            RefusalCode::NoCapacity,
        ];
        assert!(order.is_sorted_by(|a, b| rank(*a) < rank(*b)));
        let capacity = RefusalCode::ALL.iter().filter(|code| code.is_capacity());
        assert!(capacity.clone().all(|code| rank(*code) > rank(RefusalCode::QuotaExceeded)));
        assert!(capacity.clone().all(|code| rank(*code) >= rank(RefusalCode::Degraded)));
    }

    #[test]
    fn full_slots_are_no_capacity_whatever_the_hosts_say() {
        for filter in HostFilter::ALL {
            let code = capacity_code(&counts(&[(filter, 3)]), true);
            assert_eq!(code, RefusalCode::NoCapacity);
        }
        assert_eq!(capacity_code(&FilterCounts::default(), true), RefusalCode::NoCapacity);
    }

    #[test]
    fn nothing_to_go_by_is_no_healthy_hosts() {
        use HostFilter::{Dead, Driver, Full, Labels, Stale, Unknown};
        assert_eq!(code(&[]), RefusalCode::NoHealthyHosts);
        assert_eq!(code(&[(Dead, 1), (Stale, 2), (Unknown, 3)]), RefusalCode::NoHealthyHosts);
        // Hosts that could never run it do not hide that all others are silent.
        assert_eq!(code(&[(Driver, 5), (Labels, 1), (Stale, 1)]), RefusalCode::NoHealthyHosts);
        // Nothing is silent: the fleet is there and lacks what was asked for.
        assert_eq!(code(&[(Driver, 5), (Labels, 1)]), RefusalCode::NoCapacity);
        // One host with a report is enough to speak of capacity.
        assert_eq!(code(&[(Stale, 9), (Full, 1)]), RefusalCode::NoCapacity);
    }

    #[test]
    fn a_passing_cause_is_named_when_a_host_fell_to_it_alone() {
        use HostFilter::{Draining, Full, Pressure, Stale, StartsSaturated};
        assert_eq!(code(&[(StartsSaturated, 2)]), RefusalCode::HostStartsSaturated);
        assert_eq!(code(&[(Pressure, 2)]), RefusalCode::HostPressure);
        assert_eq!(
            code(&[(Full, 9), (Stale, 1), (StartsSaturated, 1)]),
            RefusalCode::HostStartsSaturated
        );
        assert_eq!(code(&[(Full, 9), (Draining, 1), (Pressure, 1)]), RefusalCode::HostPressure);
        // Saturation passes sooner, and its hosts are known to have room.
        assert_eq!(code(&[(Pressure, 5), (StartsSaturated, 1)]), RefusalCode::HostStartsSaturated);
    }

    #[test]
    fn everything_else_is_no_capacity() {
        use HostFilter::{Counted, CpuRatio, Draining, Full, Held, SetAside, StatefulFull, Tried};
        for filter in [Draining, SetAside, Tried, Held, Full, StatefulFull, CpuRatio, Counted] {
            assert_eq!(code(&[(filter, 2)]), RefusalCode::NoCapacity);
        }
    }

    proptest! {
        #[test]
        fn what_is_said_does_not_depend_on_the_order_of_asking(
            codes in subsequence(RefusalCode::ALL, 0..=RefusalCode::ALL.len()),
        ) {
            let said = first(codes.iter().copied());
            prop_assert_eq!(said, first(codes.iter().rev().copied()));
            let lowest: Vec<_> =
                codes.iter().filter(|code| Some(rank(**code)) == said.map(rank)).collect();
            prop_assert_eq!(lowest.len(), usize::from(!codes.is_empty()));
            prop_assert!(codes.iter().all(|code| said.is_some_and(|said| rank(said) <= rank(*code))));
        }

        #[test]
        fn a_capacity_code_is_always_about_capacity(
            hosts in proptest::collection::vec((0_usize..15, 0_u32..3), 0..15), slots_full: bool,
        ) {
            let filters: Vec<_> =
                hosts.iter().map(|(at, hosts)| (HostFilter::ALL[*at], *hosts)).collect();
            let code = capacity_code(&counts(&filters), slots_full);
            prop_assert!(code.is_capacity() && code != RefusalCode::Degraded);
        }
    }
}
