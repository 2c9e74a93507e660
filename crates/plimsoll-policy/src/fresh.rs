//! How old a host's last report is, and what that makes of the host (DESIGN 4.4).

use plimsoll_types::Millis;

/// What the age of the last report says about a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Freshness {
    /// Recent enough to decide by.
    Fresh,
    /// Too old to place anything on it. A hint: nothing else follows.
    Stale,
    /// Declared dead: its guests are given up. A decision, with a bound of its own.
    Dead,
}

/// Classes the age of a host's last report, taken by the cell's own clock.
///
/// A bound is the last age that is still good: at exactly `stale` the host is fresh. Should
/// `dead` be set below `stale`, dead holds.
///
/// ```
/// use plimsoll_policy::fresh::{Freshness, freshness};
/// use plimsoll_types::Millis;
///
/// let at = |seconds| {
///     freshness(Millis::from_seconds(seconds), Millis(30_000), Millis(120_000))
/// };
/// assert_eq!(at(30), Freshness::Fresh);
/// assert_eq!(at(31), Freshness::Stale);
/// assert_eq!(at(121), Freshness::Dead);
/// ```
#[must_use]
pub fn freshness(age: Millis, stale: Millis, dead: Millis) -> Freshness {
    if age > dead {
        Freshness::Dead
    } else if age > stale {
        Freshness::Stale
    } else {
        Freshness::Fresh
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_dead_bound_below_the_stale_one_decides() {
        assert_eq!(freshness(Millis(50), Millis(100), Millis(40)), Freshness::Dead);
    }

    proptest! {
        #[test]
        fn a_host_never_grows_fresher_by_waiting(
            age in 0_u64..1_000_000, more in 0_u64..1_000_000, stale: u32, dead: u32,
        ) {
            let at = |age| freshness(Millis(age), Millis(stale.into()), Millis(dead.into()));
            prop_assert!(at(age) <= at(age + more));
        }
    }
}
