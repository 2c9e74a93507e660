//! What happens as a tenant uses up its period: a ladder, not a wall (DESIGN 4.7).
//!
//! Warn at 80 %; at 100 % refuse new work and let running work finish; then pause what is idle;
//! then, announced twice and after a long grace, delete. At every rung payment or a larger plan
//! takes all of it back by itself. A tenant that pays climbs none of this: its overage is an event
//! and a number.
//!
//! The meter behind it is late and approximate. Each rung is as reversible as its evidence is
//! weak, and the one that is not reversible re-checks everything at the moment it acts
//! ([`crate::deletion`]).

use alloc::vec::Vec;

use plimsoll_types::{BasisPoints, Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// The rung on which a tenant stands.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// Below the warning.
    #[default]
    Ok,
    /// Warned.
    Warned,
    /// New work is refused; running work goes on.
    Exhausted,
    /// Idle guests are paused too.
    Hibernated,
    /// Deletion is announced, its clock runs.
    Deleting,
}

impl Rung {
    /// Every rung, upwards.
    pub const ALL: [Self; 5] =
        [Self::Ok, Self::Warned, Self::Exhausted, Self::Hibernated, Self::Deleting];

    /// The word used in bodies.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warned => "warned",
            Self::Exhausted => "exhausted",
            Self::Hibernated => "hibernated",
            Self::Deleting => "deleting",
        }
    }

    /// Whether new work (creates, forks, resumes, starts) is refused on it.
    #[must_use]
    pub const fn refuses_new_work(self) -> bool {
        matches!(self, Self::Exhausted | Self::Hibernated | Self::Deleting)
    }
}

/// Where the rungs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LadderRule {
    /// Share of the period's budget at which the tenant is warned.
    pub warn_at: BasisPoints,
    /// Once warned, the warning is taken back only below this, so that a corrected figure does
    /// not warn twice.
    pub warn_clears_below: BasisPoints,
    /// From exhaustion to pausing what is idle: long enough for late usage to be corrected.
    pub hibernate_after: Millis,
    /// From hibernation to announcing a deletion.
    pub announce_after: Millis,
    /// From the announcement, and from its delivery, to the deletion. Anything shorter is a trap
    /// for somebody on holiday.
    pub grace: Millis,
    /// A paying tenant's overage is an event each time it passes another of these.
    pub overage_step: BasisPoints,
}

impl Default for LadderRule {
    /// 80 % (cleared below 75 %), 10 min, 24 h, 72 h, and every 25 % of overage.
    fn default() -> Self {
        Self {
            warn_at: BasisPoints(8000),
            warn_clears_below: BasisPoints(7500),
            hibernate_after: Millis::from_seconds(600),
            announce_after: Millis::from_seconds(24 * 3600),
            grace: Millis::from_seconds(72 * 3600),
            overage_step: BasisPoints(2500),
        }
    }
}

/// What became of a notice to the tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// Not sent, or under way.
    #[default]
    Pending,
    /// An endpoint took it.
    Delivered(Timestamp),
    /// Every endpoint was given up on, or there is none.
    Undeliverable,
}

impl Notice {
    /// When it was delivered, if that was at or after `event`: a notice about something earlier
    /// is no notice of this.
    pub(crate) fn delivered_since(self, event: Option<Timestamp>) -> Option<Timestamp> {
        match self {
            Self::Delivered(at) if event.is_some_and(|event| event <= at) => Some(at),
            _ => None,
        }
    }
}

/// What is known about a tenant at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The moment.
    pub now: Timestamp,
    /// The key of the present billing period.
    pub period: Timestamp,
    /// The largest share of any consumption limit used in this period ([`used_share`]).
    pub used: BasisPoints,
    /// Payment method and live subscription.
    pub paying: bool,
    /// What became of the latest notice of hibernation (`quota.suspended`). One delivered before
    /// the present hibernation counts as not delivered.
    pub suspended_notice: Notice,
    /// What became of the latest notice of deletion (`quota.deletion_scheduled`). One delivered
    /// before the present announcement counts as not delivered.
    pub deletion_notice: Notice,
    /// Whether the ladder has paused anything that a deletion would take: nothing is announced
    /// about nothing.
    pub deletable: bool,
}

/// What is to be done because of a step on the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Say `quota.warning`.
    Warn,
    /// Say `quota.exhausted`.
    Exhausted,
    /// Say `quota.suspended`, the first of the two notices.
    Suspended,
    /// Pause the tenant's idle guests; given at every step while it holds, since others become
    /// idle later.
    PauseIdle,
    /// Say `quota.deletion_scheduled`, the second notice: what, and not before this instant.
    AnnounceDeletion {
        /// The earliest instant of the deletion.
        not_before: Timestamp,
    },
    /// The grace is over: run the deletion job, which asks
    /// [`crate::deletion::preconditions`] for each resource; given at every step while it holds.
    RunDeletion,
    /// Tell the operator that the tenant cannot be notified: nothing of it is ever deleted.
    TellOperator,
    /// Take back an announced deletion.
    CancelDeletion,
    /// Resume what the ladder has paused, and say `quota.resumed`.
    Resume,
    /// Say `quota.overage` of a paying tenant.
    Overage {
        /// The share of the budget that has been passed.
        passed: BasisPoints,
    },
}

/// One tenant's place on the ladder, as it is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ladder {
    /// The rung.
    pub rung: Rung,
    /// Since when.
    pub since: Timestamp,
    /// The period that it is about.
    pub period: Timestamp,
    /// When the present hibernation began.
    pub hibernated_at: Option<Timestamp>,
    /// When deletion was announced.
    pub announced_at: Option<Timestamp>,
    /// Whether the operator has been told that no notice gets through.
    pub operator_told: bool,
    /// How many steps of overage have been said in this period.
    pub overage_steps: u64,
}

impl Ladder {
    /// Moves to where the facts put the tenant and says what to do about it. Stepping again with
    /// the same facts repeats only the acts that are meant to repeat.
    pub fn step(&mut self, rule: &LadderRule, facts: &Facts) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.period != facts.period {
            self.period = facts.period;
            self.overage_steps = 0;
            if self.rung == Rung::Warned {
                self.enter(Rung::Ok, facts.now);
            }
        }
        let exhausted = facts.used >= BasisPoints::ONE;
        if self.rung.refuses_new_work() && (facts.paying || !exhausted) {
            self.recover(rule, facts, &mut acts);
        }
        if exhausted && facts.paying {
            self.overage(rule, facts, &mut acts);
        }
        match self.rung {
            Rung::Ok | Rung::Warned if exhausted && !facts.paying => {
                self.enter(Rung::Exhausted, facts.now);
                acts.push(Act::Exhausted);
            }
            Rung::Ok if facts.used >= rule.warn_at => {
                self.enter(Rung::Warned, facts.now);
                // The overage event has said more than a warning would.
                if !exhausted {
                    acts.push(Act::Warn);
                }
            }
            Rung::Warned if facts.used < rule.warn_clears_below => {
                self.enter(Rung::Ok, facts.now);
            }
            Rung::Exhausted if facts.now >= self.since + rule.hibernate_after => {
                self.enter(Rung::Hibernated, facts.now);
                self.hibernated_at = Some(facts.now);
                acts.extend([Act::Suspended, Act::PauseIdle]);
            }
            Rung::Hibernated => self.hibernated(rule, facts, &mut acts),
            Rung::Deleting => self.deleting(rule, facts, &mut acts),
            Rung::Ok | Rung::Warned | Rung::Exhausted => {}
        }
        acts
    }

    /// The earliest instant of an announced deletion: the grace after the announcement, and after
    /// its delivery. `None` while nothing is announced or the notice has not got through.
    #[must_use]
    pub fn deletion_due(&self, rule: &LadderRule, notice: Notice) -> Option<Timestamp> {
        // Delivery comes after the announcement, so the grace after it covers both.
        notice.delivered_since(self.announced_at).map(|delivered| delivered + rule.grace)
    }

    /// The tenant has been given more, whether or not it is enough: everything is taken back, and
    /// if the budget is still used up the ladder begins anew with the next step.
    pub fn start_over(&mut self, now: Timestamp) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.rung.refuses_new_work() {
            self.take_back(&mut acts);
            self.enter(Rung::Warned, now);
        }
        acts
    }

    /// The announced deletion is over: what has come to rest since is announced anew, as long
    /// before.
    pub fn deletion_over(&mut self, now: Timestamp) {
        if self.rung == Rung::Deleting {
            self.announced_at = None;
            self.enter(Rung::Hibernated, now);
        }
    }

    /// The announcement could be delivered to nobody and somebody can be told now: it is made
    /// again, and the grace runs from then.
    pub fn announced_again(&mut self, now: Timestamp) {
        if self.rung == Rung::Deleting {
            self.announced_at = Some(now);
        }
    }

    /// When a step with the same facts would do something else, if ever: the end of the period is
    /// the caller's to know. `None` where only other facts would.
    #[must_use]
    pub fn next_step(&self, rule: &LadderRule, deletion_notice: Notice) -> Option<Timestamp> {
        match self.rung {
            Rung::Ok | Rung::Warned => None,
            Rung::Exhausted => Some(self.since + rule.hibernate_after),
            Rung::Hibernated => Some(self.since + rule.announce_after),
            Rung::Deleting => self.deletion_due(rule, deletion_notice),
        }
    }

    fn enter(&mut self, rung: Rung, now: Timestamp) {
        self.rung = rung;
        self.since = now;
    }

    fn recover(&mut self, rule: &LadderRule, facts: &Facts, acts: &mut Vec<Act>) {
        self.take_back(acts);
        // Straight to Warned where the warning holds: it has been said already.
        let rung = if facts.used >= rule.warn_at { Rung::Warned } else { Rung::Ok };
        self.enter(rung, facts.now);
    }

    fn take_back(&mut self, acts: &mut Vec<Act>) {
        if self.announced_at.take().is_some() {
            acts.push(Act::CancelDeletion);
        }
        self.operator_told = false;
        self.hibernated_at = None;
        acts.push(Act::Resume);
    }

    fn overage(&mut self, rule: &LadderRule, facts: &Facts, acts: &mut Vec<Act>) {
        let step = rule.overage_step.0.max(1);
        let steps = (facts.used.0 - BasisPoints::ONE.0) / step + 1;
        if steps > self.overage_steps {
            self.overage_steps = steps;
            let passed = BasisPoints::ONE.0.saturating_add((steps - 1).saturating_mul(step));
            acts.push(Act::Overage { passed: BasisPoints(passed) });
        }
    }

    fn hibernated(&mut self, rule: &LadderRule, facts: &Facts, acts: &mut Vec<Act>) {
        acts.push(Act::PauseIdle);
        if facts.suspended_notice == Notice::Undeliverable {
            self.tell_operator(acts);
        }
        let notified = facts.suspended_notice.delivered_since(self.hibernated_at).is_some();
        if notified && facts.deletable && facts.now >= self.since + rule.announce_after {
            self.enter(Rung::Deleting, facts.now);
            self.announced_at = Some(facts.now);
            acts.push(Act::AnnounceDeletion { not_before: facts.now + rule.grace });
        }
    }

    fn deleting(&mut self, rule: &LadderRule, facts: &Facts, acts: &mut Vec<Act>) {
        acts.push(Act::PauseIdle);
        if facts.deletion_notice == Notice::Undeliverable {
            self.tell_operator(acts);
        }
        if self.deletion_due(rule, facts.deletion_notice).is_some_and(|due| facts.now >= due) {
            acts.push(Act::RunDeletion);
        }
    }

    fn tell_operator(&mut self, acts: &mut Vec<Act>) {
        if !self.operator_told {
            self.operator_told = true;
            acts.push(Act::TellOperator);
        }
    }
}

/// The share of a consumption limit that is used, rounded down: 10 000 is reached exactly when
/// the limit is. A limit of nothing is used up from the start; no limit is never used.
///
/// ```
/// use plimsoll_policy::ladder::used_share;
/// use plimsoll_types::BasisPoints;
///
/// assert_eq!(used_share(79_999, Some(100_000)), BasisPoints(7_999));
/// assert_eq!(used_share(99_999, Some(100_000)), BasisPoints(9_999));
/// assert_eq!(used_share(100_000, Some(100_000)), BasisPoints(10_000));
/// assert_eq!(used_share(5, None), BasisPoints(0));
/// ```
#[must_use]
pub fn used_share(used: u64, limit: Option<u64>) -> BasisPoints {
    match limit {
        None => BasisPoints::ZERO,
        Some(0) => BasisPoints::ONE,
        Some(limit) => {
            let share = u128::from(used) * u128::from(BasisPoints::ONE.0) / u128::from(limit);
            BasisPoints(u64::try_from(share).unwrap_or(u64::MAX))
        }
    }
}

/// Whether new work is refused for consumption: the budget is used up and nobody pays for more.
///
/// The check at admission rests on the figure of the moment and not on the rung, which follows
/// with the next step: between the two, an upgrade is never refused.
#[must_use]
pub fn budget_refuses(used: BasisPoints, paying: bool) -> bool {
    !paying && used >= BasisPoints::ONE
}

/// What the tests of the ladder and of its last step share.
#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;

    pub(crate) const MINUTE: i64 = 60_000;
    pub(crate) const HOUR: i64 = 60 * MINUTE;

    pub(crate) fn facts(now: i64, used: u64) -> Facts {
        Facts {
            now: Timestamp(now),
            period: Timestamp(0),
            used: BasisPoints(used),
            paying: false,
            suspended_notice: Notice::Pending,
            deletion_notice: Notice::Pending,
            deletable: true,
        }
    }

    pub(crate) fn delivered(at: i64) -> Notice {
        Notice::Delivered(Timestamp(at))
    }

    /// A tenant whose deletion was announced at 24 h 10 min and whose notices got through.
    pub(crate) fn announced() -> (Ladder, Facts) {
        let mut ladder = Ladder::default();
        ladder.step(&LadderRule::default(), &facts(0, 10_000));
        ladder.step(&LadderRule::default(), &facts(10 * MINUTE, 10_000));
        let at = 24 * HOUR + 10 * MINUTE;
        let notified = Facts { suspended_notice: delivered(11 * MINUTE), ..facts(at, 10_000) };
        ladder.step(&LadderRule::default(), &notified);
        assert_eq!(ladder.rung, Rung::Deleting);
        (ladder, Facts { deletion_notice: delivered(at), ..notified })
    }
}

#[cfg(test)]
mod tests;
