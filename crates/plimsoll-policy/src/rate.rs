//! Rate limits as token buckets that know when they will say yes (DESIGN 4.7).

use plimsoll_types::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// So many operations per length of time; the bucket holds as many.
///
/// A bucket of 100 an hour lets 80 creates through in 90 seconds, which a fixed count over every
/// hour would too; the loop that goes on is stopped by the bucket of a minute first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens per `per`, and the most that the bucket holds.
    pub limit: u64,
    /// The length of time.
    pub per: Millis,
}

/// One token bucket, kept as what is owed.
///
/// The debt is counted in token-milliseconds: a token costs `per`, and each millisecond pays back
/// `limit`. Both are whole numbers whatever the rate, so nothing drifts and the time of the next
/// yes is exact. A new bucket is full; a change of plan keeps the debt.
///
/// ```
/// use plimsoll_policy::rate::{Bucket, Rate};
/// use plimsoll_types::{Millis, Timestamp};
///
/// let rate = Rate { limit: 60, per: Millis(60_000) };
/// let mut bucket = Bucket::default();
/// for _ in 0..60 {
///     assert!(bucket.take(1, &rate, Timestamp(0)).is_ok());
/// }
/// assert_eq!(bucket.take(1, &rate, Timestamp(0)), Err(Some(Millis(1000))));
/// assert!(bucket.take(1, &rate, Timestamp(1000)).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Owed token-milliseconds.
    debt: u64,
    /// When it was last advanced.
    at: Timestamp,
}

impl Bucket {
    /// The state from its parts, as a store keeps them.
    #[must_use]
    pub const fn from_parts(debt: u64, at: Timestamp) -> Self {
        Self { debt, at }
    }

    /// The parts, for a store: owed token-milliseconds, and when.
    #[must_use]
    pub const fn parts(&self) -> (u64, Timestamp) {
        (self.debt, self.at)
    }

    fn is_unused(&self) -> bool {
        self.debt == 0
    }

    fn owed(&self, rate: &Rate, now: Timestamp) -> u64 {
        let paid = u128::from(now.since(self.at).0) * u128::from(rate.limit);
        let owed = u128::from(self.debt).saturating_sub(paid);
        u64::try_from(owed).unwrap_or(self.debt)
    }

    /// Takes `tokens` or none of them.
    ///
    /// # Errors
    /// The exact time until the same call would pass if nothing else took tokens, rounded up to
    /// the millisecond; `None` when it asks for more than the bucket ever holds.
    pub fn take(&mut self, tokens: u64, rate: &Rate, now: Timestamp) -> Result<(), Option<Millis>> {
        let debt = self.debt_after(tokens, rate, now)?;
        self.set(debt, now);
        Ok(())
    }

    /// Whether [`Bucket::take`] would pass, without taking.
    ///
    /// # Errors
    /// As [`Bucket::take`].
    pub fn would_take(
        &self,
        tokens: u64,
        rate: &Rate,
        now: Timestamp,
    ) -> Result<(), Option<Millis>> {
        self.debt_after(tokens, rate, now).map(drop)
    }

    /// What would be owed after taking.
    fn debt_after(&self, tokens: u64, rate: &Rate, now: Timestamp) -> Result<u64, Option<Millis>> {
        let cost = cost(tokens, rate);
        let held = held(rate);
        if cost > held {
            return Err(None);
        }
        let debt = u128::from(self.owed(rate, now)) + cost;
        let excess = debt.saturating_sub(held);
        if excess == 0 {
            // At most what the bucket holds, which a signed 64-bit number does.
            return Ok(u64::try_from(debt).unwrap_or(u64::MAX));
        }
        // The cost is above zero here and at most what the bucket holds, so the limit is too.
        let wait = excess.div_ceil(u128::from(rate.limit.max(1)));
        // A clock that has stepped back pays nothing until it has caught up.
        let behind = u128::from(self.at.since(now).0);
        Err(Some(Millis(u64::try_from(wait + behind).unwrap_or(u64::MAX))))
    }

    fn set(&mut self, debt: u64, now: Timestamp) {
        self.debt = debt;
        self.at = self.at.max(now);
    }

    /// Gives tokens back: the operation was refused for a reason that is not the caller's.
    pub fn give_back(&mut self, tokens: u64, rate: &Rate) {
        let cost = u64::try_from(cost(tokens, rate)).unwrap_or(u64::MAX);
        self.debt = self.debt.saturating_sub(cost);
    }

    /// Whole tokens left.
    #[must_use]
    pub fn left(&self, rate: &Rate, now: Timestamp) -> u64 {
        let left = held(rate).saturating_sub(self.owed(rate, now).into());
        let whole = left / u128::from(rate.per.0.max(1));
        u64::try_from(whole).unwrap_or(rate.limit).min(rate.limit)
    }
}

fn cost(tokens: u64, rate: &Rate) -> u128 {
    u128::from(tokens) * u128::from(rate.per.0)
}

/// What a full bucket holds, in token-milliseconds; at most what a signed 64-bit column keeps
/// (2.5 x 10^12 tokens an hour).
fn held(rate: &Rate) -> u128 {
    const LARGEST: u128 = i64::MAX as u128;
    cost(rate.limit, rate).min(LARGEST)
}

/// What is counted against a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A create, or a reservation: each item of a batch is one.
    Create,
    /// A fork. It makes a sandbox as a create does, so it counts as one too: otherwise a loop of
    /// forks would pass every limit on creates.
    Fork,
    /// A resume or a start, by whatever call brings it about.
    Resume,
}

/// Most limits that one operation counts against: a fork's.
const KINDS_MAX: usize = 4;

impl Operation {
    /// The limits that it counts against, in the order in which they are checked.
    #[must_use]
    pub const fn kinds(self) -> &'static [RateKind] {
        match self {
            Self::Create => &[RateKind::CreatesPerMinute, RateKind::CreatesPerHour],
            Self::Fork => &[
                RateKind::ForksPerMinute,
                RateKind::ForksPerHour,
                RateKind::CreatesPerMinute,
                RateKind::CreatesPerHour,
            ],
            Self::Resume => &[RateKind::ResumesPerMinute, RateKind::ResumesPerHour],
        }
    }
}

/// Declares the kinds of rate limits: each one's word, field, and length of time.
macro_rules! rates {
    ($($(#[$doc:meta])* $kind:ident, $field:ident, $seconds:literal;)*) => {
        /// A tenant's rate limits; `None` is unlimited.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct RateLimits {
            $($(#[$doc])* pub $field: Option<u64>,)*
        }

        /// A kind of rate limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum RateKind {
            $($(#[$doc])* $kind,)*
        }

        impl RateKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// The word used in bodies.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($field),)*
                }
            }
        }

        impl RateLimits {
            /// The rate of a kind; `None` is unlimited.
            #[must_use]
            pub const fn rate(&self, kind: RateKind) -> Option<Rate> {
                let (limit, seconds) = match kind {
                    $(RateKind::$kind => (self.$field, $seconds),)*
                };
                match limit {
                    Some(limit) => Some(Rate { limit, per: Millis::from_seconds(seconds) }),
                    None => None,
                }
            }
        }

        /// A tenant's token buckets, one for each kind of limit.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Buckets {
            $(
                #[serde(skip_serializing_if = "Bucket::is_unused")]
                $field: Bucket,
            )*
        }

        impl Buckets {
            const fn of(&self, kind: RateKind) -> &Bucket {
                match kind {
                    $(RateKind::$kind => &self.$field,)*
                }
            }

            const fn of_mut(&mut self, kind: RateKind) -> &mut Bucket {
                match kind {
                    $(RateKind::$kind => &mut self.$field,)*
                }
            }
        }
    };
}

rates! {
    /// Creates and reservations per minute, against loops.
    CreatesPerMinute, creates_per_minute, 60;
    /// Creates and reservations per hour, sustained.
    CreatesPerHour, creates_per_hour, 3600;
    /// Forks per minute.
    ForksPerMinute, forks_per_minute, 60;
    /// Forks per hour, sustained.
    ForksPerHour, forks_per_hour, 3600;
    /// Resumes and starts per minute.
    ResumesPerMinute, resumes_per_minute, 60;
    /// Resumes and starts per hour, sustained.
    ResumesPerHour, resumes_per_hour, 3600;
}

impl RateLimits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

/// A refusal for rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The limit that holds longest.
    pub kind: RateKind,
    /// Its number.
    pub limit: u64,
    /// When the same call passes if nothing else takes tokens: by then every limit says yes.
    /// `None` when it asks for more at once than the limit ever lets through.
    pub retry_after: Option<Millis>,
}

impl Buckets {
    /// Takes `count` tokens from every bucket that the operation counts against, or from none.
    ///
    /// # Errors
    /// With the limit that holds longest, and the exact time until all of them would pass.
    pub fn take(
        &mut self,
        operation: Operation,
        count: u64,
        limits: &RateLimits,
        now: Timestamp,
    ) -> Result<(), Limited> {
        // What each bucket would owe, worked out once for the check and the taking.
        let mut debts = [None; KINDS_MAX];
        let mut refused = false;
        for (kind, debt) in operation.kinds().iter().zip(&mut debts) {
            if let Some(rate) = limits.rate(*kind) {
                match self.of(*kind).debt_after(count, &rate, now) {
                    Ok(after) => *debt = Some(after),
                    Err(_) => refused = true,
                }
            }
        }
        if refused {
            return self.would_take(operation, count, limits, now);
        }
        for (kind, debt) in operation.kinds().iter().zip(debts) {
            if let Some(debt) = debt {
                self.of_mut(*kind).set(debt, now);
            }
        }
        Ok(())
    }

    /// Whether [`Buckets::take`] would pass, without taking.
    ///
    /// # Errors
    /// As [`Buckets::take`].
    pub fn would_take(
        &self,
        operation: Operation,
        count: u64,
        limits: &RateLimits,
        now: Timestamp,
    ) -> Result<(), Limited> {
        let mut worst: Option<Limited> = None;
        for kind in operation.kinds() {
            let kind = *kind;
            let Some(rate) = limits.rate(kind) else { continue };
            let Err(retry_after) = self.of(kind).would_take(count, &rate, now) else { continue };
            // "Never" holds longer than any time.
            let length = |limited: &Limited| limited.retry_after.unwrap_or(Millis(u64::MAX));
            let limited = Limited { kind, limit: rate.limit, retry_after };
            if worst.as_ref().is_none_or(|worst| length(worst) < length(&limited)) {
                worst = Some(limited);
            }
        }
        worst.map_or(Ok(()), Err)
    }

    /// Gives tokens back to every bucket that they were taken from, after a capacity refusal.
    pub fn give_back(&mut self, operation: Operation, count: u64, limits: &RateLimits) {
        for kind in operation.kinds() {
            if let Some(rate) = limits.rate(*kind) {
                self.of_mut(*kind).give_back(count, &rate);
            }
        }
    }

    /// Whole tokens left under a limit; `None` is unlimited.
    #[must_use]
    pub fn left(&self, kind: RateKind, limits: &RateLimits, now: Timestamp) -> Option<u64> {
        limits.rate(kind).map(|rate| self.of(kind).left(&rate, now))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::Operation::{Create, Fork, Resume};
    use super::*;

    fn plan(minute: u64, hour: u64) -> RateLimits {
        RateLimits {
            creates_per_minute: Some(minute),
            creates_per_hour: Some(hour),
            ..RateLimits::default()
        }
    }

    /// Tries a create every `every` milliseconds and counts those that pass.
    fn run(limits: &RateLimits, every: i64, millis: i64) -> u64 {
        let mut buckets = Buckets::default();
        let mut passed = 0;
        let mut now = 0;
        while now < millis {
            passed += u64::from(buckets.take(Create, 1, limits, Timestamp(now)).is_ok());
            now += every;
        }
        passed
    }

    #[test]
    fn a_matrix_of_80_jobs_in_90_seconds_passes_on_100_an_hour() {
        assert_eq!(run(&plan(60, 100), 1125, 90_000), 80);
    }

    #[test]
    fn a_loop_of_ten_a_second_does_not() {
        let hour = run(&plan(60, 100), 100, 3_600_000);
        // The bucket's hundred, and what an hour pays back.
        assert_eq!(hour, 199);
        let minute = run(&plan(60, 100), 100, 60_000);
        assert!(minute <= 101, "{minute}");
        // Detected within seconds: the minute's bucket is empty after its 60 and what trickles in.
        assert_eq!(run(&plan(60, 10_000), 100, 6_000), 60);
        assert_eq!(run(&plan(60, 10_000), 100, 16_000), 75);
    }

    #[test]
    fn a_refusal_takes_from_no_bucket_and_names_the_one_that_holds_longest() {
        let limits = plan(10, 12);
        let mut buckets = Buckets::default();
        for _ in 0..10 {
            assert!(buckets.take(Create, 1, &limits, Timestamp(0)).is_ok());
        }
        let refused = buckets.take(Create, 1, &limits, Timestamp(0)).unwrap_err();
        assert_eq!(refused.kind, RateKind::CreatesPerMinute);
        assert_eq!(refused.retry_after, Some(Millis(6000)));
        assert_eq!(buckets.left(RateKind::CreatesPerHour, &limits, Timestamp(0)), Some(2));
        for now in [6000, 12_000] {
            assert!(buckets.take(Create, 1, &limits, Timestamp(now)).is_ok());
        }
        let refused = buckets.take(Create, 1, &limits, Timestamp(18_000)).unwrap_err();
        assert_eq!(refused.kind, RateKind::CreatesPerHour);
        // Twelve an hour: one each 300 s, of which 18 have passed.
        assert_eq!(refused.retry_after, Some(Millis(282_000)));
        assert!(buckets.take(Create, 1, &limits, Timestamp(300_000)).is_ok());
    }

    #[test]
    fn a_batch_larger_than_the_bucket_never_passes_and_says_so() {
        let mut buckets = Buckets::default();
        let refused = buckets.take(Create, 61, &plan(60, 1000), Timestamp(0)).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after), (RateKind::CreatesPerMinute, None));
        assert!(buckets.take(Create, 60, &plan(60, 1000), Timestamp(0)).is_ok());
    }

    #[test]
    fn a_limit_of_nothing_lets_nothing_through() {
        let mut buckets = Buckets::default();
        let refused = buckets.take(Create, 1, &plan(0, 10), Timestamp(0)).unwrap_err();
        assert_eq!(refused.retry_after, None);
        assert!(buckets.take(Create, 0, &plan(0, 10), Timestamp(0)).is_ok());
    }

    #[test]
    fn a_fork_counts_as_a_create_too_and_a_resume_by_itself() {
        let limits =
            RateLimits { forks_per_minute: Some(2), resumes_per_hour: Some(1), ..plan(3, 100) };
        let mut buckets = Buckets::default();
        let now = Timestamp(0);
        assert!(buckets.take(Fork, 2, &limits, now).is_ok());
        let refused = buckets.take(Fork, 1, &limits, now).unwrap_err();
        assert_eq!(
            (refused.kind, refused.retry_after),
            (RateKind::ForksPerMinute, Some(Millis(30_000)))
        );
        assert!(buckets.take(Create, 1, &limits, now).is_ok());
        let refused = buckets.take(Create, 1, &limits, now).unwrap_err();
        assert_eq!(refused.kind, RateKind::CreatesPerMinute);
        assert!(buckets.take(Resume, 1, &limits, now).is_ok());
        let refused = buckets.take(Resume, 1, &limits, now).unwrap_err();
        assert_eq!(
            (refused.kind, refused.retry_after),
            (RateKind::ResumesPerHour, Some(Millis(3_600_000)))
        );
        // What is given back goes where it was taken from.
        buckets.give_back(Fork, 1, &limits);
        assert!(buckets.take(Create, 1, &limits, now).is_ok());
        assert!(buckets.take(Fork, 1, &limits, now).is_err());
        assert_eq!(buckets.left(RateKind::ForksPerMinute, &limits, now), Some(1));
    }

    #[test]
    fn every_kind_is_counted_against_by_some_operation() {
        let of = |operation: Operation| operation.kinds().iter().copied();
        let mut all: Vec<RateKind> = of(Create).chain(of(Fork)).chain(of(Resume)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, RateKind::ALL);
        assert!(RateLimits::default().is_unlimited() && !plan(1, 1).is_unlimited());
    }

    #[test]
    fn no_limit_is_no_bucket() {
        let mut buckets = Buckets::default();
        let unlimited = RateLimits::default();
        for _ in 0..1000 {
            assert!(buckets.take(Create, 1000, &unlimited, Timestamp(0)).is_ok());
        }
        assert_eq!(buckets.left(RateKind::CreatesPerMinute, &unlimited, Timestamp(0)), None);
        assert_eq!(buckets, Buckets::default());
    }

    #[test]
    fn no_size_of_limit_overflows() {
        let rate = Rate { limit: u64::MAX, per: Millis(u64::MAX) };
        let mut bucket = Bucket::default();
        assert_eq!(bucket.take(u64::MAX, &rate, Timestamp(0)), Err(None));
        let rate = Rate { limit: u64::MAX, per: Millis(3_600_000) };
        assert!(bucket.take(1_000_000, &rate, Timestamp(i64::MAX)).is_ok());
        bucket.give_back(u64::MAX, &rate);
        assert_eq!(bucket.parts().0, 0);
    }

    fn rates() -> impl Strategy<Value = Rate> {
        (1_u64..500, prop_oneof![Just(1000_u64), Just(7919), Just(60_000), Just(3_600_000)])
            .prop_map(|(limit, per)| Rate { limit, per: Millis(per) })
    }

    proptest! {
        #[test]
        fn the_time_of_the_next_yes_is_exact(
            rate in rates(), steps in vec((0_i64..5000, 1_u64..8), 1..60),
        ) {
            let mut bucket = Bucket::default();
            let mut now = 0;
            for (wait, tokens) in steps {
                now += wait;
                if let Err(retry) = bucket.take(tokens, &rate, Timestamp(now)) {
                    let Some(Millis(retry)) = retry else {
                        prop_assert!(tokens > rate.limit);
                        continue;
                    };
                    let later = |millis: u64| {
                        bucket.would_take(tokens, &rate, Timestamp(now) + Millis(millis))
                    };
                    prop_assert!(retry > 0);
                    prop_assert_eq!(later(retry), Ok(()));
                    prop_assert_eq!(later(retry - 1), Err(Some(Millis(1))));
                }
            }
        }

        #[test]
        fn over_any_window_no_more_passes_than_the_bucket_and_the_rate_allow(
            rate in rates(), steps in vec((0_i64..5000, 1_u64..8), 1..80),
        ) {
            let mut bucket = Bucket::default();
            let mut now = 0;
            let mut passed: Vec<(i64, u64)> = Vec::new();
            for (wait, tokens) in steps {
                now += wait;
                if bucket.take(tokens, &rate, Timestamp(now)).is_ok() {
                    passed.push((now, tokens));
                }
            }
            for from in 0..passed.len() {
                let mut sum = 0;
                for (at, tokens) in &passed[from..] {
                    sum += tokens;
                    let elapsed = (at - passed[from].0) as u64;
                    prop_assert!(sum * rate.per.0 <= rate.limit * (rate.per.0 + elapsed));
                }
            }
        }

        #[test]
        fn a_token_given_back_was_never_taken(
            rate in rates(), before in 0_u64..100, tokens in 1_u64..50, wait in 0_i64..5000,
        ) {
            let mut bucket = Bucket::default();
            let _ = bucket.take(before, &rate, Timestamp(0));
            let now = Timestamp(wait);
            let left = bucket.left(&rate, now);
            let untouched = bucket;
            if bucket.take(tokens, &rate, now).is_ok() {
                bucket.give_back(tokens, &rate);
            }
            prop_assert_eq!(bucket.left(&rate, now), left);
            for later in [0, 1, 777, 100_000] {
                let later = now + Millis(later);
                prop_assert_eq!(bucket.left(&rate, later), untouched.left(&rate, later));
            }
        }

        #[test]
        fn what_is_left_can_be_taken_and_one_more_cannot(
            rate in rates(), before in 0_u64..500, wait in 0_i64..100_000,
        ) {
            let mut bucket = Bucket::default();
            let _ = bucket.take(before, &rate, Timestamp(0));
            let now = Timestamp(wait);
            let left = bucket.left(&rate, now);
            prop_assert_eq!(bucket.would_take(left, &rate, now), Ok(()));
            prop_assert!(bucket.would_take(left + 1, &rate, now).is_err());
        }
    }
}
