//! Concurrency limits and the burst above them (DESIGN 4.7).

use plimsoll_types::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// A sustained limit and the higher one that may be drawn on for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limit {
    /// May be held for ever; absent is unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// May be held while there is credit; absent equals `limit`: no burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_limit: Option<u64>,
}

impl Limit {
    /// No limit.
    pub const UNLIMITED: Self = Self { limit: None, burst_limit: None };

    /// A limit without burst.
    #[must_use]
    pub const fn flat(limit: u64) -> Self {
        Self { limit: Some(limit), burst_limit: None }
    }

    /// The highest use that can ever be admitted; `None` is unlimited. A burst limit below the
    /// limit takes nothing away.
    #[must_use]
    pub fn ceiling(&self) -> Option<u64> {
        self.limit.map(|limit| self.burst_limit.map_or(limit, |burst| burst.max(limit)))
    }

    /// How far the burst reaches above the limit.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.ceiling().unwrap_or(0).saturating_sub(self.limit.unwrap_or(0))
    }

    /// Whether so much at once could never be admitted, however empty the tenant's account.
    #[must_use]
    pub fn never_fits(&self, incoming: u64) -> bool {
        self.ceiling().is_some_and(|ceiling| incoming > ceiling)
    }
}

/// Why a counter refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// In use before.
    pub used: u64,
    /// Asked for on top.
    pub incoming: u64,
    /// The sustained limit.
    pub limit: u64,
    /// The ceiling with burst.
    pub ceiling: u64,
    /// Whether it would have passed with burst credit left.
    pub out_of_credit: bool,
}

/// Whether `incoming` more stays within a limit.
///
/// The incoming amount is part of the sum: a check of what is used alone makes a cap of 10 GiB
/// admit 12. What adds nothing is never refused, so a resume passes even above a lowered limit.
///
/// # Errors
/// With both figures when the sum is above the limit, and above the burst limit or without credit.
///
/// ```
/// use plimsoll_policy::quota::{Limit, check};
///
/// let cap = Limit::flat(10 * 1024);
/// assert!(check(4096, 4096, &cap, false).is_ok());
/// assert!(check(8192, 4096, &cap, false).is_err());
/// ```
pub fn check(used: u64, incoming: u64, limit: &Limit, has_credit: bool) -> Result<(), Exceeded> {
    let (Some(sustained), Some(ceiling)) = (limit.limit, limit.ceiling()) else {
        return Ok(());
    };
    if incoming == 0 {
        return Ok(());
    }
    let sum = used.checked_add(incoming);
    if sum.is_some_and(|sum| sum <= sustained) {
        return Ok(());
    }
    let within_burst = sum.is_some_and(|sum| sum <= ceiling);
    if within_burst && has_credit {
        return Ok(());
    }
    Err(Exceeded { used, incoming, limit: sustained, ceiling, out_of_credit: within_burst })
}

/// The counters of concurrency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counter {
    /// Sandboxes and reservations.
    Sandboxes,
    /// Virtual CPUs.
    Vcpus,
    /// Configured memory without overhead.
    MemoryMib,
}

impl Counter {
    /// Every counter, in the order in which they are checked.
    pub const ALL: [Self; 3] = [Self::Sandboxes, Self::Vcpus, Self::MemoryMib];

    /// The word used in bodies.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sandboxes => "sandboxes",
            Self::Vcpus => "vcpus",
            Self::MemoryMib => "memory_mib",
        }
    }
}

/// One value for each counter of concurrency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PerCounter<T> {
    /// For sandboxes.
    pub sandboxes: T,
    /// For virtual CPUs.
    pub vcpus: T,
    /// For configured memory in MiB.
    pub memory_mib: T,
}

impl<T> PerCounter<T> {
    /// The value for a counter.
    pub const fn of(&self, counter: Counter) -> &T {
        match counter {
            Counter::Sandboxes => &self.sandboxes,
            Counter::Vcpus => &self.vcpus,
            Counter::MemoryMib => &self.memory_mib,
        }
    }

    /// The value for a counter, to change it.
    pub const fn of_mut(&mut self, counter: Counter) -> &mut T {
        match counter {
            Counter::Sandboxes => &mut self.sandboxes,
            Counter::Vcpus => &mut self.vcpus,
            Counter::MemoryMib => &mut self.memory_mib,
        }
    }
}

/// What is in use, or what is asked for.
pub type Usage = PerCounter<u64>;

/// A tenant's concurrency limits.
pub type Limits = PerCounter<Limit>;

/// A tenant's burst credit.
pub type Bursts = PerCounter<Burst>;

impl Bursts {
    /// Accounts for `used` having been in use since the last call, on every counter.
    pub fn advance(&mut self, used: &Usage, limits: &Limits, now: Timestamp) {
        for counter in Counter::ALL {
            self.of_mut(counter).advance(*used.of(counter), limits.of(counter), now);
        }
    }
}

/// Checks every counter; the bursts must have been advanced to now.
///
/// # Errors
/// The first counter, in the order of [`Counter::ALL`], that does not take its part.
pub fn check_all(
    used: &Usage,
    incoming: &Usage,
    limits: &Limits,
    bursts: &Bursts,
) -> Result<(), (Counter, Exceeded)> {
    for counter in Counter::ALL {
        let limit = limits.of(counter);
        let has_credit = bursts.of(counter).has_credit(limit);
        check(*used.of(counter), *incoming.of(counter), limit, has_credit)
            .map_err(|exceeded| (counter, exceeded))?;
    }
    Ok(())
}

/// How long the full burst can be held: an hour.
pub const BURST_LENGTH: Millis = Millis::from_seconds(3600);

/// How long spent credit takes to come back: a day.
pub const BURST_REFILL: Millis = Millis::from_seconds(86_400);

/// Refill runs at 1/24 of the burst's span per unit of time. Counting in 24ths of a
/// unit-millisecond makes both directions whole numbers: no rounding, so the credit does not
/// depend on how often it is looked at.
const PARTS: u64 = BURST_REFILL.0 / BURST_LENGTH.0;

/// Burst credit of one counter, kept as what has been spent of it.
///
/// Credit is worth at most `span x 3600` unit-seconds, is drained at `used - limit` and comes
/// back over a day while `used <= limit`. A new account has spent nothing, and a change of plan
/// keeps what was spent. At zero credit nothing is evicted: newcomers above the limit are refused.
///
/// The state advances when it is looked at: call [`Burst::advance`] before every change of the
/// amount in use, and before every check.
///
/// ```
/// use plimsoll_policy::quota::{Burst, Limit};
/// use plimsoll_types::Timestamp;
///
/// let limit = Limit { limit: Some(10), burst_limit: Some(30) };
/// let mut burst = Burst::default();
/// burst.advance(0, &limit, Timestamp(0));
/// assert_eq!(burst.seconds_left(30, &limit), 3600);
/// // Half an hour at the ceiling spends half of it; half a day within the limit brings it back.
/// burst.advance(30, &limit, Timestamp(1_800_000));
/// assert_eq!(burst.seconds_left(30, &limit), 1800);
/// burst.advance(10, &limit, Timestamp(1_800_000 + 43_200_000));
/// assert_eq!(burst.seconds_left(30, &limit), 3600);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Burst {
    /// Spent credit in 24ths of a unit-millisecond.
    spent: u64,
    /// When it was last advanced.
    at: Timestamp,
}

impl Burst {
    /// The state from its parts, as a store keeps them.
    #[must_use]
    pub const fn from_parts(spent: u64, at: Timestamp) -> Self {
        Self { spent, at }
    }

    /// The parts, for a store: spent credit in 24ths of a unit-millisecond, and when.
    #[must_use]
    pub const fn parts(&self) -> (u64, Timestamp) {
        (self.spent, self.at)
    }

    /// Accounts for `used` having been in use since the last call. A clock that steps back
    /// changes nothing until it has caught up.
    pub fn advance(&mut self, used: u64, limit: &Limit, now: Timestamp) {
        let elapsed = u128::from(now.since(self.at).0);
        self.at = self.at.max(now);
        let Some(sustained) = limit.limit else {
            return;
        };
        let over = used.saturating_sub(sustained);
        let spent = if over > 0 {
            let drained = (u128::from(over) * u128::from(PARTS)).saturating_mul(elapsed);
            u128::from(self.spent).saturating_add(drained)
        } else {
            u128::from(self.spent).saturating_sub(u128::from(limit.span()) * elapsed)
        };
        let cap = cap(limit);
        self.spent = u64::try_from(spent).unwrap_or(cap).min(cap);
    }

    /// Whether use above the limit may begin or grow.
    #[must_use]
    pub fn has_credit(&self, limit: &Limit) -> bool {
        self.spent < cap(limit)
    }

    /// How long the credit lasts in whole seconds, rounded down: at the present use where that
    /// draws on it, else at the full burst. Zero without a burst.
    #[must_use]
    pub fn seconds_left(&self, used: u64, limit: &Limit) -> u64 {
        let over = match used.saturating_sub(limit.limit.unwrap_or(0)) {
            0 => limit.span(),
            over => over,
        };
        let left = u128::from(cap(limit).saturating_sub(self.spent));
        let per_second = u128::from(over) * u128::from(PARTS) * 1000;
        if per_second == 0 {
            return 0;
        }
        u64::try_from(left / per_second).unwrap_or(u64::MAX)
    }
}

/// The most credit that can be spent, in 24ths of a unit-millisecond.
///
/// Held at the largest number that a signed 64-bit column keeps: that is the hour's credit of a
/// span of 10^11 units (100 PiB of memory), above which a burst merely lasts less than an hour.
fn cap(limit: &Limit) -> u64 {
    const LARGEST: u64 = i64::MAX as u64;
    let full = u128::from(limit.span()) * u128::from(BURST_LENGTH.0) * u128::from(PARTS);
    u64::try_from(full).unwrap_or(LARGEST).min(LARGEST)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const HOUR: i64 = 3_600_000;
    const DAY: i64 = 24 * HOUR;

    fn burstable(limit: u64, burst: u64) -> Limit {
        Limit { limit: Some(limit), burst_limit: Some(burst) }
    }

    /// Admits amounts one by one, each counted into the next.
    fn admit(limit: &Limit, mut used: u64, amounts: impl IntoIterator<Item = u64>) -> (u64, u32) {
        let mut admitted = 0;
        for amount in amounts {
            if check(used, amount, limit, false).is_ok() {
                used += amount;
                admitted += 1;
            }
        }
        (used, admitted)
    }

    #[test]
    fn a_cap_of_10_gib_admits_two_guests_of_4_and_not_three() {
        assert_eq!(admit(&Limit::flat(10_240), 0, [4096; 5]), (8192, 2));
    }

    /// Public failures R1 and R2.
    #[test]
    fn a_burst_of_creates_is_admitted_up_to_the_limit_and_not_one_more() {
        assert_eq!(admit(&Limit::flat(100), 99, [1; 10]), (100, 1));
        assert_eq!(admit(&Limit::flat(5), 0, [1; 50]), (5, 5));
    }

    #[test]
    fn a_refusal_says_both_figures_and_whether_credit_would_have_helped() {
        let limit = burstable(10, 30);
        let refused = check(10, 5, &limit, false).unwrap_err();
        let expected =
            Exceeded { used: 10, incoming: 5, limit: 10, ceiling: 30, out_of_credit: true };
        assert_eq!(refused, expected);
        assert!(check(10, 20, &limit, true).is_ok());
        let refused = check(10, 21, &limit, true).unwrap_err();
        assert!(!refused.out_of_credit);
    }

    #[test]
    fn what_adds_nothing_is_never_refused() {
        // A resume, after the plan was made smaller.
        assert!(check(50, 0, &Limit::flat(10), false).is_ok());
        assert!(check(50, 0, &Limit::flat(0), false).is_ok());
    }

    #[test]
    fn unlimited_is_no_number() {
        assert!(check(u64::MAX, u64::MAX, &Limit::UNLIMITED, false).is_ok());
        assert!(check(u64::MAX, 1, &Limit::flat(u64::MAX), false).is_err());
        assert_eq!(Limit::UNLIMITED.ceiling(), None);
        assert!(!Limit::UNLIMITED.never_fits(u64::MAX));
    }

    #[test]
    fn a_request_above_the_ceiling_never_fits() {
        assert!(burstable(10, 30).never_fits(31));
        assert!(!burstable(10, 30).never_fits(30));
        assert!(Limit::flat(10).never_fits(11));
        // A burst limit below the limit takes nothing away.
        assert!(!burstable(10, 5).never_fits(10));
    }

    #[test]
    fn the_first_counter_that_refuses_is_named() {
        let limits = Limits {
            sandboxes: Limit::flat(10),
            vcpus: Limit::flat(32),
            memory_mib: Limit::flat(10_240),
        };
        let used = Usage { sandboxes: 2, vcpus: 30, memory_mib: 8192 };
        let small = Usage { sandboxes: 1, vcpus: 2, memory_mib: 2048 };
        let bursts = Bursts::default();
        assert_eq!(check_all(&used, &small, &limits, &bursts), Ok(()));
        let large = Usage { vcpus: 4, memory_mib: 4096, ..small };
        let (counter, exceeded) = check_all(&used, &large, &limits, &bursts).unwrap_err();
        assert_eq!((counter, exceeded.used), (Counter::Vcpus, 30));
    }

    #[test]
    fn three_times_the_limit_lasts_an_hour_and_comes_back_in_a_day() {
        let limit = burstable(10, 30);
        let mut burst = Burst::default();
        burst.advance(30, &limit, Timestamp(0));
        burst.advance(30, &limit, Timestamp(HOUR - 1));
        assert!(burst.has_credit(&limit));
        burst.advance(30, &limit, Timestamp(HOUR));
        assert!(!burst.has_credit(&limit));
        assert_eq!(burst.seconds_left(30, &limit), 0);
        // Use stays where it is: nobody is evicted, and credit does not go below zero.
        burst.advance(30, &limit, Timestamp(10 * HOUR));
        burst.advance(10, &limit, Timestamp(10 * HOUR + 1));
        assert!(burst.has_credit(&limit), "the first millisecond within the limit refills");
        burst.advance(10, &limit, Timestamp(10 * HOUR + DAY - 1));
        assert_ne!(burst.parts().0, 0);
        burst.advance(10, &limit, Timestamp(10 * HOUR + DAY));
        assert_eq!(burst.parts().0, 0);
    }

    #[test]
    fn half_the_burst_lasts_twice_as_long() {
        let limit = burstable(10, 30);
        let mut burst = Burst::default();
        burst.advance(20, &limit, Timestamp(0));
        assert_eq!(burst.seconds_left(20, &limit), 7200);
        burst.advance(20, &limit, Timestamp(2 * HOUR - 1));
        assert!(burst.has_credit(&limit));
        burst.advance(20, &limit, Timestamp(2 * HOUR));
        assert!(!burst.has_credit(&limit));
    }

    #[test]
    fn a_new_tenant_has_all_of_its_credit_however_late_it_comes() {
        let limit = burstable(10, 30);
        let mut burst = Burst::default();
        burst.advance(0, &limit, Timestamp(1_700_000_000_000));
        assert_eq!(burst.seconds_left(0, &limit), 3600);
    }

    #[test]
    fn a_plan_without_burst_has_no_credit() {
        for limit in [Limit::flat(10), burstable(10, 10), burstable(10, 5)] {
            let mut burst = Burst::default();
            burst.advance(10, &limit, Timestamp(HOUR));
            assert!(!burst.has_credit(&limit));
            assert_eq!(burst.seconds_left(10, &limit), 0);
        }
    }

    #[test]
    fn a_clock_that_steps_back_is_waited_for() {
        let limit = burstable(10, 30);
        let mut burst = Burst::from_parts(0, Timestamp(HOUR));
        burst.advance(30, &limit, Timestamp(0));
        assert_eq!(burst, Burst::from_parts(0, Timestamp(HOUR)));
    }

    #[test]
    fn no_size_of_limit_overflows() {
        let limit = burstable(0, u64::MAX);
        let mut burst = Burst::default();
        burst.advance(u64::MAX, &limit, Timestamp(i64::MAX));
        assert_eq!(burst.parts().0, i64::MAX as u64);
        assert!(!burst.has_credit(&limit));
        burst.advance(0, &limit, Timestamp(i64::MAX));
        assert_eq!(burst.seconds_left(u64::MAX, &limit), 0);
    }

    proptest! {
        /// I1, whatever the order of amounts.
        #[test]
        fn no_sequence_of_admissions_passes_the_ceiling(
            limit in 0_u64..100, burst in 0_u64..300, credit: bool,
            amounts in vec(0_u64..50, 0..60),
        ) {
            let limit = burstable(limit, burst);
            let mut used = 0_u64;
            for amount in amounts {
                if check(used, amount, &limit, credit).is_ok() {
                    used += amount;
                }
                let bound = if credit { limit.ceiling() } else { limit.limit };
                prop_assert!(Some(used) <= bound);
            }
        }

        #[test]
        fn refusing_is_monotone(
            used in 0_u64..200, more in 0_u64..50, incoming in 1_u64..50, extra in 0_u64..50,
            limit in 0_u64..200, burst in 0_u64..300, credit: bool,
        ) {
            let limit = burstable(limit, burst);
            if check(used, incoming, &limit, credit).is_err() {
                prop_assert!(check(used + more, incoming, &limit, credit).is_err());
                prop_assert!(check(used, incoming + extra, &limit, credit).is_err());
                prop_assert!(check(used, incoming, &limit, false).is_err());
            }
        }

        #[test]
        fn credit_does_not_depend_on_how_often_it_is_looked_at(
            limit in 0_u64..50, burst in 0_u64..200, used in 0_u64..300,
            spent in 0_u64..1_000_000_000_000, cuts in vec(0_i64..3 * DAY, 0..20),
        ) {
            let limit = burstable(limit, burst);
            let start = Burst::from_parts(spent.min(cap(&limit)), Timestamp(0));
            let end = Timestamp(3 * DAY);
            let mut once = start;
            once.advance(used, &limit, end);
            let mut often = start;
            let mut cuts = cuts;
            cuts.sort_unstable();
            for cut in cuts {
                often.advance(used, &limit, Timestamp(cut));
            }
            often.advance(used, &limit, end);
            prop_assert_eq!(once, often);
        }

        #[test]
        fn credit_stays_within_its_bounds_and_moves_the_right_way(
            limit in 0_u64..50, burst in 0_u64..200, steps in vec((0_u64..300, 0_i64..DAY), 0..30),
        ) {
            let limit = burstable(limit, burst);
            let mut state = Burst::default();
            let mut now = 0;
            for (used, wait) in steps {
                let before = state.parts().0;
                now += wait;
                state.advance(used, &limit, Timestamp(now));
                let after = state.parts().0;
                prop_assert!(after <= cap(&limit));
                if Some(used) > limit.limit {
                    prop_assert!(after >= before);
                } else {
                    prop_assert!(after <= before);
                }
                prop_assert!(state.seconds_left(used, &limit) <= 3600 * limit.span());
            }
        }

        #[test]
        fn seconds_left_is_when_credit_ends(
            limit in 0_u64..50, span in 1_u64..100, over in 1_u64..100, spent_millis in 0_i64..HOUR,
        ) {
            let over = over.min(span);
            let limit = burstable(limit, limit + span);
            let used = limit.limit.unwrap_or(0) + over;
            let mut burst = Burst::default();
            burst.advance(used, &limit, Timestamp(spent_millis));
            let left = burst.seconds_left(used, &limit) as i64;
            let at = |seconds: i64| {
                let mut later = burst;
                later.advance(used, &limit, Timestamp(spent_millis + seconds * 1000));
                later.has_credit(&limit)
            };
            prop_assert!(left == 0 || at(left - 1));
            prop_assert!(!at(left + 1));
        }
    }
}
