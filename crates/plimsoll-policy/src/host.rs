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
