//! Hosts that fail every start: set aside, and probed back in (DESIGN 4.3).
//!
//! A host on which nothing can start looks empty, so a scorer that spreads would send it
//! everything. After a few failures in a row it is no candidate for a while; then one trial is
//! let through, and its outcome decides.

use plimsoll_types::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// When a host is set aside and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsideRule {
    /// So many failures or refusals in a row set a host aside. Below three, one unlucky pair of
    /// starts would take out a good host.
    pub failures: u32,
    /// How long the first time: one heartbeat, so that the host has reported anew.
    pub first: Millis,
    /// Each failed trial doubles the time up to this, so that a repaired host is found again
    /// within minutes.
    pub longest: Millis,
}

impl Default for AsideRule {
    /// 3 in a row; 10 s, doubling up to 300 s.
    fn default() -> Self {
        Self { failures: 3, first: Millis::from_seconds(10), longest: Millis::from_seconds(300) }
    }
}

/// Whether a host may be picked, as far as its record of starts goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Yes.
    Open,
    /// No, until then.
    Aside {
        /// When a trial becomes possible.
        until: Timestamp,
    },
    /// For one trial, which must be claimed by [`Aside::begin_trial`].
    HalfOpen,
}

/// One host's record of failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aside {
    in_a_row: u32,
    /// The current length of being set aside; zero while trusted.
    backoff: Millis,
    /// Not picked before this; `None` while trusted.
    until: Option<Timestamp>,
    /// Whether `until` bounds a trial rather than a wait.
    trial: bool,
}

impl Aside {
    /// Whether the host may be picked now.
    ///
    /// A trial whose outcome never came frees its place after the length for which the host was
    /// set aside.
    #[must_use]
    pub fn trust(&self, now: Timestamp) -> Trust {
        match self.until {
            None => Trust::Open,
            Some(until) if now < until => Trust::Aside { until },
            Some(_) => Trust::HalfOpen,
        }
    }

    /// Whether the host is no candidate now. Half-open is a candidate: for one.
    #[must_use]
    pub fn is_set_aside(&self, now: Timestamp) -> bool {
        matches!(self.trust(now), Trust::Aside { .. })
    }

    /// When [`Aside::is_set_aside`] changes by time alone, for a caller that keeps an index.
    #[must_use]
    pub fn until(&self, now: Timestamp) -> Option<Timestamp> {
        self.until.filter(|until| now < *until)
    }

    /// Failures and refusals since the last success.
    #[must_use]
    pub fn failures_in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Called when something is sent to the host: while it is half-open this claims the one
    /// trial. Returns whether the start may go ahead.
    pub fn begin_trial(&mut self, now: Timestamp) -> bool {
        match self.trust(now) {
            Trust::Open => true,
            Trust::Aside { .. } => false,
            Trust::HalfOpen => {
                self.trial = true;
                self.until = Some(now + self.backoff);
                true
            }
        }
    }

    /// A start succeeded: all is forgiven.
    pub fn succeed(&mut self) {
        *self = Self::default();
    }

    /// A start failed or was refused.
    ///
    /// Failures of starts that were sent before the host was set aside do not lengthen the time:
    /// eight starts that fail together are one piece of news.
    pub fn fail(&mut self, now: Timestamp, rule: &AsideRule) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.until.is_none() {
            if self.in_a_row >= rule.failures {
                self.set_aside(now, rule.first.min(rule.longest));
            }
        } else if self.trial || !self.is_set_aside(now) {
            let doubled = Millis(self.backoff.0.saturating_mul(2));
            self.set_aside(now, doubled.clamp(rule.first, rule.longest.max(rule.first)));
        }
    }

    fn set_aside(&mut self, now: Timestamp, backoff: Millis) {
        self.backoff = backoff;
        self.until = Some(now + backoff);
        self.trial = false;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const RULE: AsideRule =
        AsideRule { failures: 3, first: Millis(10_000), longest: Millis(300_000) };

    /// A host on which every start fails: when is it given another?
    fn trials(until: i64) -> Vec<i64> {
        let mut aside = Aside::default();
        let mut trials = Vec::new();
        for second in 0..until {
            let now = Timestamp(second * 1000);
            if !aside.is_set_aside(now) && aside.begin_trial(now) {
                trials.push(second);
                aside.fail(now, &RULE);
            }
        }
        trials
    }

    #[test]
    fn a_host_that_fails_every_start_gets_fewer_and_fewer() {
        // Three in a row, then 10, 20, 40, 80, 160, 300, 300 s apart.
        assert_eq!(trials(1000), [0, 1, 2, 12, 32, 72, 152, 312, 612, 912]);
    }

    #[test]
    fn a_success_forgives() {
        let mut aside = Aside::default();
        for _ in 0..2 {
            aside.fail(Timestamp(0), &RULE);
        }
        aside.succeed();
        aside.fail(Timestamp(0), &RULE);
        assert_eq!(aside.trust(Timestamp(0)), Trust::Open);
        for _ in 0..2 {
            aside.fail(Timestamp(0), &RULE);
        }
        assert_eq!(aside.trust(Timestamp(0)), Trust::Aside { until: Timestamp(10_000) });
        assert_eq!(aside.trust(Timestamp(10_000)), Trust::HalfOpen);
        assert!(aside.begin_trial(Timestamp(10_000)));
        aside.succeed();
        assert_eq!(aside, Aside::default());
    }

    #[test]
    fn only_one_trial_is_let_through() {
        let mut aside = Aside::default();
        for _ in 0..3 {
            aside.fail(Timestamp(0), &RULE);
        }
        assert!(aside.begin_trial(Timestamp(10_000)));
        assert!(aside.is_set_aside(Timestamp(10_001)));
        assert!(!aside.begin_trial(Timestamp(10_001)));
        // Its outcome never came: the place is free again after the same time.
        assert!(aside.begin_trial(Timestamp(20_000)));
    }

    #[test]
    fn eight_starts_that_fail_together_are_one_piece_of_news() {
        let mut aside = Aside::default();
        for _ in 0..8 {
            aside.fail(Timestamp(0), &RULE);
        }
        assert_eq!(aside.trust(Timestamp(1)), Trust::Aside { until: Timestamp(10_000) });
        assert_eq!(aside.failures_in_a_row(), 8);
    }

    proptest! {
        #[test]
        fn being_set_aside_always_ends(
            steps in vec((0_i64..400_000, any::<bool>(), any::<bool>()), 1..60),
        ) {
            let mut aside = Aside::default();
            let mut now = 0;
            for (wait, start, works) in steps {
                now += wait;
                let at = Timestamp(now);
                if start && !aside.begin_trial(at) {
                    continue;
                }
                if works { aside.succeed() } else { aside.fail(at, &RULE) }
                if let Trust::Aside { until } = aside.trust(at) {
                    prop_assert!(until <= at + RULE.longest);
                    prop_assert_eq!(aside.until(at), Some(until));
                    prop_assert!(!aside.is_set_aside(until));
                    prop_assert!(aside.failures_in_a_row() >= RULE.failures);
                }
            }
        }
    }
}
