//! What a provider turns out to take: a limit that nobody tells, learned from its refusals.
//!
//! A refusal says that what is held now is all there is. Whether that still holds can only be
//! found out by asking again, which costs one refused start; so the learned limit rises by one
//! after a while, and the while doubles for as long as the provider goes on refusing. A start that
//! it takes above the limit proves the limit wrong.

use plimsoll_types::{Millis, Timestamp};

/// First time after which one more is tried: providers free and add capacity within minutes.
pub const STEP_FIRST: Millis = Millis::from_seconds(60);
/// Longest such time: a provider that is full for days is asked once an hour.
pub const STEP_MAX: Millis = Millis::from_seconds(3_600);

/// A limit that was learned.
///
/// ```
/// use plimsoll_policy::learned::{Learned, STEP_FIRST};
/// use plimsoll_types::Timestamp;
///
/// let mut learned = Learned::refused(None, 4, Timestamp(0));
/// assert_eq!(learned.limit, 4);
/// learned.advance(Timestamp(0) + STEP_FIRST);
/// assert_eq!(learned.limit, 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Most that the provider is asked to hold at once.
    pub limit: u64,
    /// When that was learned or raised last.
    pub since: Timestamp,
    /// After so long it is raised by one.
    pub step: Millis,
    /// Whether it was raised since, and nobody knows yet whether that holds.
    pub on_trial: bool,
}

impl Learned {
    /// The provider has refused one more while it held `held`. The limit falls to that, also to
    /// none at all, and is raised more slowly than before.
    #[must_use]
    pub fn refused(before: Option<Self>, held: u64, now: Timestamp) -> Self {
        let step = match before {
            Some(before) if before.on_trial => {
                Millis(before.step.0.saturating_mul(2).min(STEP_MAX.0))
            }
            // Several refusals of one burst are one finding.
            Some(before) => before.step,
            None => STEP_FIRST,
        };
        Self { limit: held, since: now, step, on_trial: false }
    }

    /// The provider has taken one and holds `held` now, the newcomer included.
    pub fn took(&mut self, held: u64, now: Timestamp) {
        if held >= self.limit {
            *self = Self { limit: held, since: now, step: STEP_FIRST, on_trial: false };
        }
    }

    /// Raises the limit by one for each step that has passed.
    pub fn advance(&mut self, now: Timestamp) {
        while self.next() <= now {
            self.since = self.next();
            self.limit = self.limit.saturating_add(1);
            self.on_trial = true;
        }
    }

    /// When it is raised next.
    #[must_use]
    pub fn next(&self) -> Timestamp {
        self.since + self.step.max(Millis(1))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1_000)
    }

    #[test]
    fn a_burst_of_refusals_ends_at_what_is_held_and_is_one_finding() {
        let mut learned = None;
        for held in [9, 8, 7, 6, 5, 4] {
            learned = Some(Learned::refused(learned, held, at(1)));
        }
        assert_eq!(
            learned,
            Some(Learned { limit: 4, since: at(1), step: STEP_FIRST, on_trial: false })
        );
    }

    #[test]
    fn each_trial_that_is_refused_makes_the_next_wait_longer_up_to_a_bound() {
        let mut learned = Learned::refused(None, 4, at(0));
        let mut now = at(0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let next = learned.next();
            waits.push(next.since(now).0 / 1_000);
            now = next;
            learned.advance(now);
            assert_eq!(learned.limit, 5);
            learned = Learned::refused(Some(learned), 4, now + Millis(5));
            now = now + Millis(5);
        }
        assert_eq!(waits, [60, 120, 240, 480, 960, 1_920, 3_600, 3_600]);
    }

    #[test]
    fn a_start_that_is_taken_at_the_limit_makes_the_next_trial_come_soon() {
        let mut learned = Learned::refused(None, 4, at(0));
        learned.step = STEP_MAX;
        learned.advance(at(3_600));
        assert_eq!(learned.limit, 5);
        learned.took(3, at(3_601));
        assert_eq!(learned.step, STEP_MAX, "it says nothing about the limit");
        learned.took(5, at(3_602));
        assert_eq!((learned.limit, learned.step), (5, STEP_FIRST));
        learned.advance(at(3_602 + 180));
        assert_eq!(learned.limit, 8);
    }

    #[test]
    fn a_provider_that_takes_nothing_is_tried_again() {
        let mut learned = Learned::refused(None, 0, at(0));
        assert_eq!(learned.limit, 0);
        learned.advance(at(60));
        assert_eq!(learned.limit, 1);
    }
}
