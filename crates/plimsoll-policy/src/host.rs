//! What one host can promise (DESIGN 4.2).

use plimsoll_types::Mib;

/// Smallest default headroom band: what a kernel and its services need on any machine.
const HEADROOM_FLOOR: Mib = Mib(1024);

/// The headroom band of a host whose operator has set none.
///
/// The larger of 1 GiB and 6 % of the physical memory (rounded up), yet at most a quarter of it
/// (rounded down), so that a small machine is not all headroom.
///
/// ```
/// use plimsoll_policy::host::default_headroom;
/// use plimsoll_types::Mib;
///
/// assert_eq!(default_headroom(Mib(32 * 1024)), Mib(1967));
/// assert_eq!(default_headroom(Mib(8 * 1024)), Mib(1024));
/// assert_eq!(default_headroom(Mib(2 * 1024)), Mib(512));
/// ```
#[must_use]
pub fn default_headroom(physical: Mib) -> Mib {
    let share = (u128::from(physical.0) * 6).div_ceil(100);
    // 6 % of a 64-bit number fits in 64 bits.
    let share = Mib(u64::try_from(share).unwrap_or(physical.0));
    share.max(HEADROOM_FLOOR).min(Mib(physical.0 / 4))
}

/// What the machine uses outside guests, beyond the part that its agent does not offer.
///
/// An agent told to offer 24 of 32 GiB leaves 8 GiB to everything else; only what goes beyond
/// these 8 eats into what it offers. Never below zero.
#[must_use]
pub fn system_used(used_outside_guests: Mib, machine: Mib, offered: Mib) -> Mib {
    used_outside_guests.saturating_sub(machine.saturating_sub(offered))
}

/// The memory that all charges on a host may add up to. Negative when system use and headroom
/// alone exceed what is there.
#[must_use]
pub fn budget(physical: Mib, headroom: Mib, system_used: Mib) -> i64 {
    physical.signed().saturating_sub(headroom.signed()).saturating_sub(system_used.signed())
}

/// What a host will still accept: its budget less the charges on it. Negative when over budget.
///
/// ```
/// use plimsoll_policy::host::{admittable, budget, default_headroom};
/// use plimsoll_types::Mib;
///
/// let physical = Mib(32 * 1024);
/// let budget = budget(physical, default_headroom(physical), Mib::ZERO);
/// // Seven guests of 4 GiB under committed arithmetic, and no eighth.
/// assert!(admittable(budget, Mib(6 * 4096)) >= 4096);
/// assert!(admittable(budget, Mib(7 * 4096)) < 4096);
/// ```
#[must_use]
pub fn admittable(budget: i64, charges: Mib) -> i64 {
    budget.saturating_sub(charges.signed())
}

/// Whether `incoming` stateful memory fits beside the stateful memory already promised, all of it
/// counted in full, within `bound` (the budget, or the physical memory where that is not known).
#[must_use]
pub fn stateful_fits(promised: Mib, incoming: Mib, bound: i64) -> bool {
    promised.saturating_add(incoming).signed() <= bound
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn memory_that_is_not_offered_absorbs_system_use_first() {
        let machine = Mib(32 * 1024);
        // The agent offers 24 of 32 GiB: 8 GiB are for everything else.
        let offered = Mib(24 * 1024);
        assert_eq!(system_used(Mib(6 * 1024), machine, offered), Mib::ZERO);
        assert_eq!(system_used(Mib(9 * 1024), machine, offered), Mib(1024));
        assert_eq!(system_used(Mib(900), machine, machine), Mib(900));
        // An agent that offers more than there is gains nothing by it.
        assert_eq!(system_used(Mib(900), machine, Mib(64 * 1024)), Mib(900));
    }

    #[test]
    fn a_host_over_its_budget_says_so_with_a_negative_number() {
        assert_eq!(budget(Mib(1000), Mib(200), Mib(1100)), -300);
        assert_eq!(admittable(-300, Mib(50)), -350);
    }

    #[test]
    fn stateful_memory_never_exceeds_its_bound() {
        assert!(stateful_fits(Mib(6000), Mib(2000), 8000));
        assert!(!stateful_fits(Mib(6000), Mib(2001), 8000));
        assert!(!stateful_fits(Mib::ZERO, Mib::ZERO, -1));
        assert!(!stateful_fits(Mib(u64::MAX), Mib(1), i64::MAX - 1));
    }

    proptest! {
        #[test]
        fn headroom_is_between_its_bounds(
            physical in prop_oneof![0_u64..20_000, 0_u64..100_000_000],
        ) {
            let headroom = default_headroom(Mib(physical)).0;
            prop_assert!(headroom * 4 <= physical);
            let wanted = (physical * 6).div_ceil(100).max(1024);
            prop_assert!(headroom == wanted || headroom == physical / 4);
            prop_assert!(headroom <= wanted);
        }

        #[test]
        fn budget_and_charges_add_up_to_what_is_admittable(
            physical in 0_u64..1_000_000,
            headroom in 0_u64..100_000,
            used in 0_u64..1_000_000,
            charges in 0_u64..10_000_000,
        ) {
            let budget = budget(Mib(physical), Mib(headroom), Mib(used));
            prop_assert_eq!(budget + (headroom + used) as i64, physical as i64);
            prop_assert_eq!(admittable(budget, Mib(charges)) + charges as i64, budget);
        }
    }
}
