//! Delivery of events to one endpoint: one after the other, each until it is taken or given up on
//! (I11).
//!
//! All that has to survive a crash is how far an endpoint has come and since when it has failed.
//! Whoever sends makes both durable after the step that moved them, never before: what a crash
//! forgets is sent again under the same id.

use plimsoll_types::{EventId, Millis, Timestamp};

/// Kinds of events by which the quota ladder wants to know whether they got through.
pub const NOTICES: [&str; 2] = ["quota.suspended", "quota.deletion_scheduled"];

/// When an event is tried again, and when that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryRule {
    /// Waits after the first, second, ... failed attempt; after one more the event is given up on.
    pub waits: &'static [Millis],
    /// A wait is spread by this part of it in per cent to either side, at most 100, so that
    /// endpoints on one receiver do not return together.
    pub spread_per_cent: u64,
    /// Longest time that a receiver's own Retry-After is followed for.
    pub retry_after_max: Millis,
    /// An endpoint that took nothing for so long is switched off.
    pub failing_max: Millis,
}

impl Default for DeliveryRule {
    /// 5 s, 30 s, 2 min, 10 min, 30 min, 1, 2, 4, 6 and 10 h: short waits ride out a restart of the
    /// receiver, long ones a night; together 23 h 42 min. Spread by 20 %; a Retry-After counts for
    /// an hour; off after 3 days, in which three events in a row were given up on and what waits
    /// was kept.
    fn default() -> Self {
        const WAITS: [Millis; 10] = [
            Millis::from_seconds(5),
            Millis::from_seconds(30),
            Millis::from_seconds(120),
            Millis::from_seconds(600),
            Millis::from_seconds(1_800),
            Millis::from_seconds(3_600),
            Millis::from_seconds(7_200),
            Millis::from_seconds(14_400),
            Millis::from_seconds(21_600),
            Millis::from_seconds(36_000),
        ];
        Self {
            waits: &WAITS,
            spread_per_cent: 20,
            retry_after_max: Millis::from_seconds(3_600),
            failing_max: Millis::from_seconds(3 * 24 * 3_600),
        }
    }
}

impl DeliveryRule {
    /// How long to wait after so many failed attempts; `None` when there is no other attempt.
    /// `draw` is any number, drawn anew each time.
    ///
    /// ```
    /// use plimsoll_policy::delivery::DeliveryRule;
    /// use plimsoll_types::Millis;
    ///
    /// let rule = DeliveryRule::default();
    /// assert_eq!(rule.wait(1, None, 200), Some(Millis(5_000)));
    /// assert_eq!(rule.wait(1, Some(Millis(60_000)), 200), Some(Millis(60_000)));
    /// assert_eq!(rule.wait(11, None, 200), None);
    /// ```
    #[must_use]
    pub fn wait(&self, attempts: u32, retry_after: Option<Millis>, draw: u32) -> Option<Millis> {
        let place = usize::try_from(attempts).ok()?.checked_sub(1)?;
        let wait = self.waits.get(place)?;
        // In thousandths of the wait, from 1 - spread to 1 + spread.
        let spread = 10 * self.spread_per_cent.min(100);
        let share = 1_000 - spread + u64::from(draw) % (2 * spread + 1);
        let own = Millis(wait.0.saturating_mul(share) / 1_000);
        Some(retry_after.map_or(own, |asked| own.max(asked.min(self.retry_after_max))))
    }

    /// Longest wait: no attempt is due later than this from now.
    #[must_use]
    pub fn wait_max(&self) -> Millis {
        let longest = self.waits.iter().map(|wait| wait.0).max().unwrap_or(0);
        let spread = longest.saturating_mul(100 + self.spread_per_cent.min(100)) / 100;
        Millis(spread.max(self.retry_after_max.0))
    }
}

/// What became of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has the event.
    Taken,
    /// The receiver wants no more.
    Gone,
    /// Anything else, no answer included: it may have the event or not.
    Failed {
        /// How long it asked to be left alone.
        retry_after: Option<Millis>,
    },
}

/// Why an endpoint is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// Its receiver wants no more.
    Gone,
    /// It took nothing for [`DeliveryRule::failing_max`].
    Failing,
}

/// What follows from an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// On to the next event: this one was taken.
    Advance {
        /// Whether attempts before it had failed.
        after_failures: bool,
    },
    /// The same event again, not before this instant.
    RetryAt(Timestamp),
    /// On to the next event: this one is given up on.
    GiveUp,
    /// The endpoint is switched off. What it did not take stays before it, should it be switched
    /// on again.
    Disable(Off),
}

impl Next {
    /// What the sender of an event that matters is to be told of this endpoint: that it came, or that
    /// it will not. The word must be durable before the cursor is, or a crash between the two loses
    /// it.
    #[must_use]
    pub const fn tells(self) -> Option<bool> {
        match self {
            Self::Advance { .. } => Some(true),
            Self::GiveUp => Some(false),
            Self::RetryAt(_) | Self::Disable(_) => None,
        }
    }

    /// Whether it is made durable at once, and not together with some of what follows: failures
    /// are what a restart goes on from.
    #[must_use]
    pub const fn is_written_at_once(self) -> bool {
        !matches!(self, Self::Advance { after_failures: false })
    }
}

/// The event that an endpoint is to take next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which.
    pub event: EventId,
    /// Attempts that have failed.
    pub attempts: u32,
    /// When the next one is due; `None` is at once.
    pub due: Option<Timestamp>,
}

/// How far one endpoint has come.
///
/// ```
/// use plimsoll_policy::delivery::{Delivery, DeliveryRule, Next, Outcome};
/// use plimsoll_types::{EventId, Timestamp};
///
/// let rule = DeliveryRule::default();
/// let mut delivery = Delivery::new(EventId(0), None);
/// delivery.begin(EventId(7), None, Timestamp(0), &rule);
/// let failed = Outcome::Failed { retry_after: None };
/// let next = delivery.attempted(Timestamp(0), failed, 200, &rule);
/// assert_eq!(next, Next::RetryAt(Timestamp(5_000)));
/// assert_eq!(delivery.cursor(), EventId(0));
/// let next = delivery.attempted(Timestamp(5_000), Outcome::Taken, 0, &rule);
/// assert_eq!(next, Next::Advance { after_failures: true });
/// assert_eq!(delivery.cursor(), EventId(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    cursor: EventId,
    failing_since: Option<Timestamp>,
    head: Option<Head>,
}

impl Delivery {
    /// An endpoint that has come as far as is durable.
    #[must_use]
    pub const fn new(cursor: EventId, failing_since: Option<Timestamp>) -> Self {
        Self { cursor, failing_since, head: None }
    }

    /// Every event up to this one was taken, given up on, or is not wanted.
    #[must_use]
    pub const fn cursor(&self) -> EventId {
        self.cursor
    }

    /// Since when every attempt has failed.
    #[must_use]
    pub const fn failing_since(&self) -> Option<Timestamp> {
        self.failing_since
    }

    /// The event that is being delivered.
    #[must_use]
    pub const fn head(&self) -> Option<Head> {
        self.head
    }

    /// Goes on to an event. `last`: how many attempts at it had failed before a restart, and when
    /// the next was due, as far as that is known.
    pub fn begin(
        &mut self,
        event: EventId,
        last: Option<(u32, Option<Timestamp>)>,
        now: Timestamp,
        rule: &DeliveryRule,
    ) {
        let (attempts, due) = last.filter(|_| self.failing_since.is_some()).unwrap_or((0, None));
        // A clock that was set back since must not stretch the wait.
        let latest = now + rule.wait_max();
        self.head = Some(Head { event, attempts, due: due.map(|due| due.min(latest)) });
    }

    /// Passes over events up to this one: nothing among them is wanted.
    pub fn pass(&mut self, through: EventId) {
        self.cursor = self.cursor.max(through);
    }

    /// Takes what became of an attempt at the present event, made at this instant. `draw` is any
    /// number, drawn anew each time. Without a present event nothing moves.
    pub fn attempted(
        &mut self,
        at: Timestamp,
        outcome: Outcome,
        draw: u32,
        rule: &DeliveryRule,
    ) -> Next {
        let Some(mut head) = self.head else { return Next::RetryAt(at) };
        head.attempts = head.attempts.saturating_add(1);
        self.head = Some(head);
        let since = self.failing_since.unwrap_or(at);
        let retry_after = match outcome {
            Outcome::Taken => {
                let after_failures = self.failing_since.take().is_some();
                self.leave(head.event);
                return Next::Advance { after_failures };
            }
            Outcome::Gone => return Next::Disable(Off::Gone),
            Outcome::Failed { .. } if at.since(since) >= rule.failing_max => {
                return Next::Disable(Off::Failing);
            }
            Outcome::Failed { retry_after } => retry_after,
        };
        self.failing_since = Some(since);
        if let Some(wait) = rule.wait(head.attempts, retry_after, draw) {
            let due = at + wait;
            self.head = Some(Head { due: Some(due), ..head });
            Next::RetryAt(due)
        } else {
            self.leave(head.event);
            Next::GiveUp
        }
    }

    fn leave(&mut self, event: EventId) {
        self.head = None;
        self.pass(event);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FAILED: Outcome = Outcome::Failed { retry_after: None };
    const RULE: fn() -> DeliveryRule = DeliveryRule::default;

    fn at_head(event: u128) -> Delivery {
        let mut delivery = Delivery::new(EventId(0), None);
        delivery.begin(EventId(event), None, Timestamp(0), &RULE());
        delivery
    }

    #[test]
    fn waits_grow_over_about_a_day_and_then_end() {
        let wait = |attempts, retry_after, draw| RULE().wait(attempts, retry_after, draw);
        let total = |draw| -> u64 { (1..=10).map(|n| wait(n, None, draw).unwrap().get()).sum() };
        assert_eq!(total(200), 85_355_000);
        assert_eq!(total(0), 85_355_000 * 8 / 10);
        assert_eq!(total(400), 85_355_000 * 12 / 10);
        assert_eq!(wait(1, None, 200), Some(Millis(5_000)));
        assert_eq!(wait(0, None, 0), None);
        assert_eq!(wait(11, None, 0), None);
        assert_eq!(wait(10, None, 400), Some(RULE().wait_max()));
        assert!((1..10).all(|n| wait(n, None, 7) < wait(n + 1, None, 7)));
    }

    #[test]
    fn a_receiver_may_ask_for_more_time_and_not_for_less() {
        let wait = |attempts, asked| RULE().wait(attempts, Some(Millis(asked)), 200);
        assert_eq!(wait(1, 60_000), Some(Millis(60_000)));
        assert_eq!(wait(4, 1_000), Some(Millis(600_000)));
        assert_eq!(wait(1, u64::MAX), Some(RULE().retry_after_max));
    }

    #[test]
    fn an_event_is_given_up_on_after_its_last_attempt() {
        let (mut delivery, mut at) = (at_head(3), Timestamp(0));
        for _ in 0..10 {
            let Next::RetryAt(due) = delivery.attempted(at, FAILED, 200, &RULE()) else { panic!() };
            assert_eq!(delivery.cursor(), EventId(0));
            at = due;
        }
        assert_eq!(delivery.attempted(at, FAILED, 200, &RULE()), Next::GiveUp);
        assert_eq!((delivery.cursor(), delivery.head()), (EventId(3), None));
        assert_eq!(delivery.failing_since(), Some(Timestamp(0)));
    }

    #[test]
    fn an_endpoint_that_takes_nothing_for_days_is_switched_off_with_its_event_before_it() {
        let mut delivery = at_head(3);
        let _ = delivery.attempted(Timestamp(0), FAILED, 200, &RULE());
        let late = Timestamp(0) + RULE().failing_max;
        assert_eq!(delivery.attempted(late, FAILED, 0, &RULE()), Next::Disable(Off::Failing));
        assert_eq!(delivery.cursor(), EventId(0));
        let gone = at_head(3).attempted(late, Outcome::Gone, 0, &RULE());
        assert_eq!(gone, Next::Disable(Off::Gone));
    }

    #[test]
    fn attempts_go_on_after_a_restart_where_they_stood() {
        let since = Some(Timestamp(0));
        let mut delivery = Delivery::new(EventId(2), since);
        let now = Timestamp(1_000);
        delivery.begin(EventId(3), Some((4, Some(Timestamp(9_000)))), now, &RULE());
        let head = Head { event: EventId(3), attempts: 4, due: Some(Timestamp(9_000)) };
        assert_eq!(delivery.head(), Some(head));
        // Due times from a clock that ran ahead are bounded.
        delivery.begin(EventId(3), Some((4, Some(Timestamp(i64::MAX)))), now, &RULE());
        let due = delivery.head().and_then(|head| head.due);
        assert_eq!(due, Some(now + RULE().wait_max()));
        // One that is not failing begins at once, whatever its log says.
        let mut well = Delivery::new(EventId(2), None);
        well.begin(EventId(3), Some((4, Some(Timestamp(9_000)))), now, &RULE());
        assert_eq!(well.head(), Some(Head { event: EventId(3), attempts: 0, due: None }));
    }

    #[test]
    fn a_notice_is_told_once_it_came_or_nobody_is_left_for_it_to_come_to() {
        let advance = Next::Advance { after_failures: false };
        assert_eq!(advance.tells(), Some(true));
        assert_eq!(Next::GiveUp.tells(), Some(false));
        assert_eq!(Next::RetryAt(Timestamp(0)).tells(), None);
        assert_eq!(Next::Disable(Off::Gone).tells(), None);
        assert!(!advance.is_written_at_once());
        assert!(Next::Advance { after_failures: true }.is_written_at_once());
    }

    proptest! {
        /// Whatever receivers do, the cursor passes an event only when it was taken or after its
        /// last attempt.
        #[test]
        fn the_cursor_passes_nothing_that_was_neither_taken_nor_tried_to_the_end(
            outcomes in proptest::collection::vec((0_u8..3, 0_u64..100_000, any::<u32>()), 1..60),
        ) {
            let mut delivery = Delivery::new(EventId(0), None);
            let (mut event, mut failed, mut at) = (1, 0, Timestamp(0));
            delivery.begin(EventId(event), None, at, &RULE());
            for (kind, wait, draw) in outcomes {
                at = at + Millis(wait);
                let outcome = match kind {
                    0 => Outcome::Taken,
                    1 => FAILED,
                    _ => Outcome::Failed { retry_after: Some(Millis(wait)) },
                };
                failed = if kind == 0 { 0 } else { failed + 1 };
                let next = delivery.attempted(at, outcome, draw, &RULE());
                let goes_on = matches!(next, Next::Advance { .. } | Next::GiveUp);
                prop_assert_eq!(goes_on, kind == 0 || failed == 11);
                prop_assert_eq!(delivery.cursor(), EventId(if goes_on { event } else { event - 1 }));
                if goes_on {
                    (event, failed) = (event + 1, 0);
                    delivery.begin(EventId(event), None, at, &RULE());
                }
            }
        }
    }
}
