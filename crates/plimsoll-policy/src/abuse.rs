//! Signs of abuse by shape, not by size (seed 002): an event for people to look at, never a
//! refusal.
//!
//! A build saturates eight cores for four minutes; a miner saturates them for four days. The two
//! do not differ in magnitude at any instant. They differ in duration, in the account's age and in
//! whether anybody ever put a payment method behind it.

use plimsoll_types::{BasisPoints, Millis, Timestamp, Vcpus};
use serde::{Deserialize, Serialize};

/// What is known of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// How old the account is.
    pub account_age: Millis,
    /// Whether a payment method was ever attached.
    pub payment_method_ever: bool,
    /// The longest time for which a guest of it has kept all of its vCPUs busy without a break.
    pub full_core: Millis,
    /// Creates of the last hour whose sandbox was deleted again within a minute.
    pub create_delete_loops: u64,
    /// API requests of the last day.
    pub requests: u64,
}

/// From this score on an account is suspected.
pub const SUSPECTED: u32 = 80;

/// What one sign adds at most, and between which values it grows in a straight line.
#[derive(Clone, Copy, Debug)]
struct Slope {
    points: u32,
    from: u64,
    to: u64,
}

impl Slope {
    /// Points of a value, rounded down.
    fn at(self, value: u64) -> u32 {
        let into = value.clamp(self.from, self.to) - self.from;
        let points = u128::from(self.points) * u128::from(into) / u128::from(self.to - self.from);
        u32::try_from(points).unwrap_or(self.points)
    }
}

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

/// Nothing for the first hour, which covers builds and test runs; full after a day.
const FULL_CORE: Slope = Slope { points: 60, from: HOUR, to: DAY };
/// One a minute is somebody trying things out; ten a minute is a loop.
const LOOPS: Slope = Slope { points: 40, from: 60, to: 600 };
/// Counted for accounts in their first day only: a million requests of an hour-old account say
/// something, those of an old customer do not.
const YOUNG_REQUESTS: Slope = Slope { points: 40, from: 10_000, to: 1_000_000 };
/// Points of a new account, falling to none over the first 30 days.
const YOUNG: Slope = Slope { points: 20, from: 0, to: 30 * DAY };
/// Points of an account that nobody ever paid for.
const NO_PAYMENT: u32 = 20;

/// The terms of a score. They add up to it, so the event can say why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// For sustained use of all of a guest's cores.
    pub full_core: u32,
    /// For creating and deleting in a loop.
    pub loops: u32,
    /// For requests of an account in its first day.
    pub young_requests: u32,
    /// For the account's youth.
    pub young: u32,
    /// For never having had a payment method.
    pub no_payment: u32,
}

impl Score {
    /// The sum.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.full_core + self.loops + self.young_requests + self.young + self.no_payment
    }

    /// Whether somebody should look. Youth and missing payment alone never reach it: most new
    /// accounts are simply new.
    #[must_use]
    pub const fn is_suspect(&self) -> bool {
        self.total() >= SUSPECTED
    }

    /// The terms by name, for the event's body.
    #[must_use]
    pub const fn terms(&self) -> [(&'static str, u32); 5] {
        [
            ("full_core", self.full_core),
            ("create_delete_loops", self.loops),
            ("young_requests", self.young_requests),
            ("young_account", self.young),
            ("no_payment_method", self.no_payment),
        ]
    }
}

/// Scores an account by its shape.
///
/// ```
/// use plimsoll_policy::abuse::{Signs, score};
/// use plimsoll_types::Millis;
///
/// let day = 86_400;
/// let build = Signs { full_core: Millis::from_seconds(240), ..Signs::default() };
/// let miner = Signs {
///     account_age: Millis::from_seconds(4 * day),
///     full_core: Millis::from_seconds(4 * day),
///     ..Signs::default()
/// };
/// assert!(!score(&build).is_suspect());
/// assert!(score(&miner).is_suspect());
/// assert!(!score(&Signs { payment_method_ever: true, ..miner }).is_suspect());
/// ```
#[must_use]
pub fn score(signs: &Signs) -> Score {
    let first_day = signs.account_age.0 < DAY;
    Score {
        full_core: FULL_CORE.at(signs.full_core.0),
        loops: LOOPS.at(signs.create_delete_loops),
        young_requests: if first_day { YOUNG_REQUESTS.at(signs.requests) } else { 0 },
        young: YOUNG.points - YOUNG.at(signs.account_age.0),
        no_payment: if signs.payment_method_ever { 0 } else { NO_PAYMENT },
    }
}

/// Over so much time the use of a guest's vCPUs is averaged. Reports come every ten seconds, some
/// seconds early or late: over a minute that is a twentieth.
const FULL_WINDOW: Millis = Millis::from_seconds(60);

/// From this share of all vCPUs on they count as busy: below 1.0 for what the host itself takes,
/// and for the error of the window.
const FULL_SHARE: BasisPoints = BasisPoints(9000);

/// Averages one guest's use of its vCPUs over windows of a minute.
///
/// ```
/// use plimsoll_policy::abuse::FullCore;
/// use plimsoll_types::{Timestamp, Vcpus};
///
/// let (mut guest, mut since) = (FullCore::default(), None);
/// let mut run = |cpu_millis, from: i64, to: i64| {
///     let window = guest.observe(Vcpus(2), cpu_millis, Timestamp(from), Timestamp(to));
///     window.inspect(|window| since = window.busy_since(since)).map(|_| since)
/// };
/// assert_eq!(run(59_000, 0, 30_000), None, "half a window");
/// assert_eq!(run(59_000, 30_000, 60_000), Some(Some(Timestamp(0))));
/// assert_eq!(run(118_000, 60_000, 120_000), Some(Some(Timestamp(0))));
/// assert_eq!(run(0, 120_000, 180_000), Some(None));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FullCore {
    from: Option<Timestamp>,
    cpu_millis: u64,
}

/// One complete window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its beginning.
    pub from: Timestamp,
    /// Whether all vCPUs were busy in it.
    pub full: bool,
}

impl Window {
    /// Since when all vCPUs have been busy without a break, given the same before this window.
    #[must_use]
    pub fn busy_since(self, before: Option<Timestamp>) -> Option<Timestamp> {
        self.full.then(|| before.unwrap_or(self.from))
    }
}

impl FullCore {
    /// Takes what was used between two reports, and gives the window that it completes.
    pub fn observe(
        &mut self,
        vcpus: Vcpus,
        cpu_millis: u64,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<Window> {
        let from = *self.from.get_or_insert(from);
        self.cpu_millis = self.cpu_millis.saturating_add(cpu_millis);
        let length = to.since(from);
        if length < FULL_WINDOW {
            return None;
        }
        let all = u128::from(vcpus.0) * u128::from(length.0) * u128::from(FULL_SHARE.0);
        let used = u128::from(self.cpu_millis) * u128::from(BasisPoints::ONE.0);
        *self = Self { from: Some(to), cpu_millis: 0 };
        Some(Window { from, full: all > 0 && used >= all })
    }
}

/// How often something happened within the last hour, in two numbers: those of this hour of the
/// clock, and of the one before in proportion to how much of it is still within the last hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastHour {
    hour: i64,
    now: u64,
    before: u64,
}

impl LastHour {
    fn turned(mut self, now: Timestamp) -> Self {
        let hour = now.0.div_euclid(HOUR as i64);
        if hour > self.hour {
            self.before = if hour == self.hour + 1 { self.now } else { 0 };
            self.now = 0;
            self.hour = hour;
        }
        self
    }

    /// Counts one more.
    pub fn count(&mut self, now: Timestamp) {
        *self = self.turned(now);
        self.now = self.now.saturating_add(1);
    }

    /// How often, rounded down.
    #[must_use]
    pub fn seen(self, now: Timestamp) -> u64 {
        let of = self.turned(now);
        let left = HOUR - now.0.rem_euclid(HOUR as i64).unsigned_abs();
        let before = u128::from(of.before) * u128::from(left) / u128::from(HOUR);
        of.now.saturating_add(u64::try_from(before).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_break_of_a_minute_ends_a_run_and_jitter_does_not() {
        let (mut guest, mut since) = (FullCore::default(), None);
        let mut run = |vcpus, cpu_millis, from, to| {
            let window = guest.observe(Vcpus(vcpus), cpu_millis, Timestamp(from), Timestamp(to));
            if let Some(window) = window {
                since = window.busy_since(since);
            }
            since
        };
        let mut from = 0;
        // Full cores for an hour, each report up to four seconds early or late.
        for (turn, shift) in [0, 3, -4, 2, 0, -3, 4, 0].into_iter().cycle().take(360).enumerate() {
            let to = (turn as i64 + 1) * 10_000 + shift * 1000;
            run(8, 80_000, from, to);
            from = to;
        }
        assert_eq!(run(8, 480_000, from, from + 60_000), Some(Timestamp(0)));
        // Seven of eight cores are not all of them.
        from += 60_000;
        assert_eq!(run(8, 7 * 120_000, from, from + 120_000), None);
        // A guest without vCPUs keeps none busy.
        assert_eq!(run(0, 0, from + 120_000, from + 240_000), None);
    }

    #[test]
    fn the_last_hour_slides() {
        let mut recent = LastHour::default();
        for minute in 0..60 {
            recent.count(Timestamp(minute * 60_000));
        }
        assert_eq!(recent.seen(Timestamp(59 * 60_000)), 60);
        assert_eq!(recent.seen(Timestamp(90 * 60_000)), 30);
        assert_eq!(recent.seen(Timestamp(120 * 60_000)), 0);
        // A clock that has stepped back counts on where it was.
        recent.count(Timestamp(0));
        assert_eq!(recent.seen(Timestamp(59 * 60_000)), 61);
    }

    fn hours(hours: u64) -> Millis {
        Millis(hours * HOUR)
    }

    #[test]
    fn a_build_and_a_miner_differ_in_duration() {
        let new = Signs { account_age: hours(2), ..Signs::default() };
        let build = Signs { full_core: Millis::from_seconds(240), ..new };
        assert_eq!(score(&build).full_core, 0);
        assert!(!score(&build).is_suspect());
        let miner = Signs { account_age: hours(96), full_core: hours(96), ..new };
        assert!(score(&miner).is_suspect());
        // Days of full cores on an old, paying account are a training run.
        let training = Signs { account_age: hours(5000), payment_method_ever: true, ..miner };
        assert!(!score(&training).is_suspect());
    }

    #[test]
    fn being_new_is_no_offence() {
        let score = score(&Signs::default());
        assert_eq!(score.total(), 40);
        assert!(!score.is_suspect());
    }

    #[test]
    fn a_million_requests_of_an_hour_old_account_say_something() {
        let young = Signs { account_age: hours(1), requests: 1_000_000, ..Signs::default() };
        assert_eq!(score(&young).young_requests, 40);
        let old = Signs { account_age: hours(24), ..young };
        assert_eq!(score(&old).young_requests, 0, "requests of older accounts are no sign at all");
    }

    #[test]
    fn ten_creates_and_deletes_a_second_are_a_loop() {
        let looping = Signs { create_delete_loops: 36_000, ..Signs::default() };
        assert!(score(&looping).is_suspect());
        let trying = Signs { create_delete_loops: 60, ..looping };
        assert_eq!(score(&trying).loops, 0);
    }

    proptest! {
        #[test]
        fn the_terms_explain_the_score_and_more_never_lowers_it(
            age: u32, payment: bool, cpu: u32, loops in 0_u64..2000, requests in 0_u64..2_000_000,
            more: u16,
        ) {
            let signs = Signs {
                account_age: Millis(u64::from(age) * 1000),
                payment_method_ever: payment,
                full_core: Millis(u64::from(cpu)),
                create_delete_loops: loops,
                requests,
            };
            let base = score(&signs);
            let sum: u32 = base.terms().iter().map(|(_, points)| points).sum();
            prop_assert_eq!(sum, base.total());
            let more = u64::from(more);
            for worse in [
                Signs { full_core: Millis(signs.full_core.0 + more), ..signs },
                Signs { create_delete_loops: loops + more, ..signs },
                Signs { requests: requests + more, ..signs },
                Signs { payment_method_ever: false, ..signs },
                Signs { account_age: Millis(signs.account_age.0.saturating_sub(more)), ..signs },
            ] {
                prop_assert!(score(&worse).total() >= base.total());
            }
        }
    }
}
