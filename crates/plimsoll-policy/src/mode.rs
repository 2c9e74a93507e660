//! How permissive a policy snapshot is by its age, and the ceiling on promises that it yields
//! (DESIGN 4.6).

use core::fmt;

use plimsoll_types::{BasisPoints, Criticality, Mib, Millis, PolicyMode, Timestamp};
use serde::{Deserialize, Serialize};

/// Largest overcommit ratio that is taken at all: 10.0. Measured fleets stay below 4; above ten a
/// ratio is a slip of the decimal point.
pub const RATIO_MAX: BasisPoints = BasisPoints(100_000);

/// How far ahead of the cell's clock a publication may be dated before it is rejected.
pub const FUTURE_SKEW_MAX: Millis = Millis::from_seconds(60);

/// The terms of a policy snapshot that the arithmetic works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyTerms {
    /// Physical capacity of the whole pool over all cells.
    pub physical_mib: Mib,
    /// Promised per physical memory while the terms are fresh.
    pub ratio_bp: BasisPoints,
    /// This cell's share of the pool.
    pub share_bp: BasisPoints,
    /// What the ratio loses once the soft bound has passed.
    pub conservative_step_bp: BasisPoints,
    /// From this age on CONSERVATIVE.
    pub soft_bound: Millis,
    /// From this age on STATIC.
    pub hard_bound: Millis,
}

impl PolicyTerms {
    /// The terms' bounds where nobody has set others: 15 min and 2 h.
    pub const SOFT_BOUND: Millis = Millis::from_seconds(15 * 60);
    /// See [`PolicyTerms::SOFT_BOUND`].
    pub const HARD_BOUND: Millis = Millis::from_seconds(2 * 3600);
    /// The step where nobody has set another: 0.15.
    pub const CONSERVATIVE_STEP: BasisPoints = BasisPoints(1500);

    /// The mode at this age.
    #[must_use]
    pub fn mode(&self, age: Millis) -> PolicyMode {
        mode(age, self.soft_bound, self.hard_bound)
    }

    /// The ceiling on promises in this mode.
    #[must_use]
    pub fn budget(&self, mode: PolicyMode) -> Mib {
        let ratio = effective_ratio(mode, self.ratio_bp, self.conservative_step_bp);
        budget(self.physical_mib, ratio, self.share_bp)
    }

    /// Whether the terms make sense by themselves.
    ///
    /// # Errors
    /// Names the first term that is out of its bounds.
    pub fn check(&self) -> Result<(), TermsError> {
        let BasisPoints(ratio) = self.ratio_bp;
        if self.physical_mib == Mib::ZERO {
            Err(TermsError::NoCapacity)
        } else if ratio == 0 || self.ratio_bp > RATIO_MAX {
            Err(TermsError::Ratio(self.ratio_bp))
        } else if self.share_bp > BasisPoints::ONE {
            Err(TermsError::Share(self.share_bp))
        } else if self.conservative_step_bp > RATIO_MAX {
            Err(TermsError::Step(self.conservative_step_bp))
        } else if self.soft_bound > self.hard_bound {
            Err(TermsError::Bounds { soft: self.soft_bound, hard: self.hard_bound })
        } else {
            Ok(())
        }
    }
}

/// Which term of a policy snapshot is out of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermsError {
    /// Physical capacity is zero: unknown is not zero.
    NoCapacity,
    /// The ratio is zero or above [`RATIO_MAX`].
    Ratio(BasisPoints),
    /// The share is above 1.
    Share(BasisPoints),
    /// The conservative step is above [`RATIO_MAX`].
    Step(BasisPoints),
    /// The soft bound is above the hard one.
    Bounds {
        /// The soft bound.
        soft: Millis,
        /// The hard bound.
        hard: Millis,
    },
}

impl fmt::Display for TermsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCapacity => f.write_str("physical_mib is 0; it must be at least 1"),
            Self::Ratio(ratio) => {
                write!(f, "ratio_bp is {}; it must be 1 to {}", ratio.0, RATIO_MAX.0)
            }
            Self::Share(share) => {
                write!(f, "share_bp is {}; it must be at most {}", share.0, BasisPoints::ONE.0)
            }
            Self::Step(step) => {
                write!(f, "conservative_step_bp is {}; it must be at most {}", step.0, RATIO_MAX.0)
            }
            Self::Bounds { soft, hard } => {
                write!(f, "soft_bound ({soft}) must be at most hard_bound ({hard})")
            }
        }
    }
}

impl core::error::Error for TermsError {}

/// The age of a policy snapshot: by its receipt or by its publication, whichever is older.
///
/// By publication alone a publisher whose clock runs fast would make old policy young; by receipt
/// alone an old one sent again would be young.
#[must_use]
pub fn age(now: Timestamp, received_at: Timestamp, published_at: Timestamp) -> Millis {
    now.since(received_at.min(published_at))
}

/// The mode at an age. At exactly a bound the stricter mode holds, and the hard bound decides
/// first, whatever the soft one says.
///
/// ```
/// use plimsoll_policy::mode::{PolicyTerms, mode};
/// use plimsoll_types::{Millis, PolicyMode};
///
/// let at = |age| mode(Millis(age), PolicyTerms::SOFT_BOUND, PolicyTerms::HARD_BOUND);
/// assert_eq!(at(899_999), PolicyMode::Normal);
/// assert_eq!(at(900_000), PolicyMode::Conservative);
/// assert_eq!(at(7_200_000), PolicyMode::Static);
/// ```
#[must_use]
pub fn mode(age: Millis, soft_bound: Millis, hard_bound: Millis) -> PolicyMode {
    if age >= hard_bound {
        PolicyMode::Static
    } else if age >= soft_bound {
        PolicyMode::Conservative
    } else {
        PolicyMode::Normal
    }
}

/// The ratio that counts in a mode. Never above the snapshot's own: a ratio below 1.0 is a
/// planner's choice to hold back, and ageing must not undo it.
///
/// ```
/// use plimsoll_policy::mode::effective_ratio;
/// use plimsoll_types::{BasisPoints, PolicyMode};
///
/// let at = |mode, ratio| effective_ratio(mode, BasisPoints(ratio), BasisPoints(1500)).0;
/// assert_eq!(at(PolicyMode::Normal, 13_500), 13_500);
/// assert_eq!(at(PolicyMode::Conservative, 13_500), 12_000);
/// assert_eq!(at(PolicyMode::Conservative, 10_500), 10_000);
/// assert_eq!(at(PolicyMode::Static, 13_500), 10_000);
/// assert_eq!(at(PolicyMode::Static, 9_000), 9_000);
/// ```
#[must_use]
pub fn effective_ratio(mode: PolicyMode, ratio: BasisPoints, step: BasisPoints) -> BasisPoints {
    match mode {
        PolicyMode::Normal => ratio,
        PolicyMode::Conservative => ratio.min(ratio.saturating_sub(step).max(BasisPoints::ONE)),
        PolicyMode::Static => ratio.min(BasisPoints::ONE),
    }
}

/// `physical` x `ratio` x `share`, floored once at the end.
///
/// Flooring in between would lose up to a MiB per factor, and differently in every
/// implementation. Beyond 64 bits the result is held at the largest value; checked terms
/// ([`PolicyTerms::check`]) never get there.
#[must_use]
pub fn budget(physical: Mib, ratio: BasisPoints, share: BasisPoints) -> Mib {
    const ONE: u128 = BasisPoints::ONE.0 as u128;
    let product = (u128::from(ratio.0) * u128::from(share.0)).saturating_mul(physical.0.into());
    Mib(u64::try_from(product / (ONE * ONE)).unwrap_or(u64::MAX))
}

/// Whether promises of `incoming` more stay within the ceiling; `None` is a pool without one.
///
/// What is already above it, because the policy has aged, is left alone: newcomers are refused,
/// nobody is evicted.
#[must_use]
pub fn promise_fits(promised: Mib, incoming: Mib, ceiling: Option<Mib>) -> bool {
    ceiling.is_none_or(|ceiling| {
        promised.checked_add(incoming).is_some_and(|promised| promised <= ceiling)
    })
}

/// Whether work of this criticality is shed in this mode, before anybody else is refused.
#[must_use]
pub fn sheds(mode: PolicyMode, criticality: Criticality) -> bool {
    mode == PolicyMode::Static && criticality == Criticality::Sheddable
}

/// How far the full-ratio budget may move from one snapshot to the next where nobody has set
/// another bound: 5 %.
pub const BUDGET_CHANGE_MAX: BasisPoints = BasisPoints(500);

/// Whether the budget moves by no more than `change_max` of what it was, either way.
///
/// The guard stands on the budget at full ratio and not on the ratio: share and physical capacity
/// move it just as well. The first snapshot (`previous` is `None`) has nothing to be held against.
#[must_use]
pub fn within_guardrail(previous: Option<Mib>, next: Mib, change_max: BasisPoints) -> bool {
    previous.is_none_or(|previous| {
        let moved = u128::from(previous.0.abs_diff(next.0)) * u128::from(BasisPoints::ONE.0);
        moved <= u128::from(previous.0) * u128::from(change_max.0)
    })
}

/// What is compared when a policy snapshot is to replace another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its version.
    pub version: u64,
    /// When it says it was published.
    pub published_at: Timestamp,
    /// Its terms.
    pub terms: &'a PolicyTerms,
    /// How far the budget may move: [`BUDGET_CHANGE_MAX`], or wider where an operator has signed
    /// for one wider step.
    pub change_max: BasisPoints,
}

/// Why a policy snapshot was not taken. What is held stays in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// A term is out of its bounds.
    Terms(TermsError),
    /// Its version is not strictly newer than the one held.
    NotNewer {
        /// The version held.
        held: u64,
        /// The version offered.
        offered: u64,
    },
    /// It is dated further ahead than [`FUTURE_SKEW_MAX`].
    FutureDated {
        /// How far ahead of the cell's clock.
        ahead: Millis,
    },
    /// The budget would move too far at once.
    Guardrail {
        /// The full-ratio budget held.
        held: Mib,
        /// The full-ratio budget offered.
        offered: Mib,
        /// How far it may move.
        change_max: BasisPoints,
    },
}

impl Rejection {
    /// The word for the metric's `why` label.
    #[must_use]
    pub const fn why(&self) -> &'static str {
        match self {
            Self::Terms(_) => "terms",
            Self::NotNewer { .. } => "not_newer",
            Self::FutureDated { .. } => "future_dated",
            Self::Guardrail { .. } => "guardrail",
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Terms(error) => error.fmt(f),
            Self::NotNewer { held, offered } => {
                write!(f, "version {offered} is not newer than version {held}, which is held")
            }
            Self::FutureDated { ahead } => {
                write!(f, "published_at is {ahead} ahead; at most {FUTURE_SKEW_MAX} is taken")
            }
            Self::Guardrail { held, offered, change_max } => write!(
                f,
                "the budget would move from {held} to {offered}; it may move by {} bp at once",
                change_max.0
            ),
        }
    }
}

impl core::error::Error for Rejection {}

/// Whether a snapshot may replace the one that is held, of which version and terms are given.
///
/// The signature has been verified before: this is about what it says.
///
/// # Errors
/// The first reason against it: terms, version, date, guardrail.
pub fn check_successor(
    held: Option<(u64, &PolicyTerms)>,
    next: &Candidate<'_>,
    now: Timestamp,
) -> Result<(), Rejection> {
    next.terms.check().map_err(Rejection::Terms)?;
    if let Some((version, _)) = held
        && next.version <= version
    {
        return Err(Rejection::NotNewer { held: version, offered: next.version });
    }
    let ahead = next.published_at.since(now);
    if ahead > FUTURE_SKEW_MAX {
        return Err(Rejection::FutureDated { ahead });
    }
    if let Some((_, terms)) = held {
        let held = terms.budget(PolicyMode::Normal);
        let offered = next.terms.budget(PolicyMode::Normal);
        if !within_guardrail(Some(held), offered, next.change_max) {
            return Err(Rejection::Guardrail { held, offered, change_max: next.change_max });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;

    const MODES: [PolicyMode; 3] =
        [PolicyMode::Normal, PolicyMode::Conservative, PolicyMode::Static];

    fn terms() -> PolicyTerms {
        PolicyTerms {
            physical_mib: Mib(1_000_000),
            ratio_bp: BasisPoints(13_500),
            share_bp: BasisPoints(2500),
            conservative_step_bp: PolicyTerms::CONSERVATIVE_STEP,
            soft_bound: PolicyTerms::SOFT_BOUND,
            hard_bound: PolicyTerms::HARD_BOUND,
        }
    }

    fn candidate(version: u64, terms: &PolicyTerms) -> Candidate<'_> {
        Candidate { version, published_at: Timestamp(0), terms, change_max: BUDGET_CHANGE_MAX }
    }

    #[test]
    fn a_pool_of_a_million_mib_at_1_35_and_a_quarter() {
        let budget = MODES.map(|mode| terms().budget(mode));
        assert_eq!(budget, [Mib(337_500), Mib(300_000), Mib(250_000)]);
    }

    #[test]
    fn the_budget_is_floored_once() {
        // Flooring after each factor would give 0: 3 x 0.5 = 1, then 1 x 0.7 = 0.
        assert_eq!(budget(Mib(3), BasisPoints(5000), BasisPoints(7000)), Mib(1));
        assert_eq!(budget(Mib(u64::MAX), RATIO_MAX, BasisPoints::ONE), Mib(u64::MAX));
    }

    #[test]
    fn a_hard_bound_below_the_soft_one_decides() {
        assert_eq!(mode(Millis(50), Millis(100), Millis(40)), PolicyMode::Static);
    }

    #[test]
    fn age_is_the_older_of_receipt_and_publication() {
        let at = |received, published| {
            age(Timestamp(1_000), Timestamp(received), Timestamp(published)).0
        };
        assert_eq!(at(900, 400), 600, "an old one received again is old");
        assert_eq!(at(900, 5_000), 100, "a fast publisher does not make it young");
        assert_eq!(at(900, 900), 100);
    }

    #[test]
    fn in_static_newcomers_are_refused_and_nobody_is_evicted() {
        // 330 000 were promised at full ratio; the ceiling has dropped to 250 000.
        let ceiling = Some(terms().budget(PolicyMode::Static));
        assert!(!promise_fits(Mib(330_000), Mib(1), ceiling));
        assert!(promise_fits(Mib(240_000), Mib(10_000), ceiling));
        assert!(promise_fits(Mib(u64::MAX), Mib(1), None), "no planner, no ceiling");
    }

    #[test]
    fn sheddable_work_goes_first_and_only_in_static() {
        for mode in MODES {
            assert_eq!(sheds(mode, Criticality::Sheddable), mode == PolicyMode::Static);
            assert!(!sheds(mode, Criticality::Standard));
            assert!(!sheds(mode, Criticality::Critical));
        }
    }

    #[test]
    fn the_guardrail_is_on_the_budget_and_not_on_the_ratio() {
        let held = terms();
        let check = |next: &PolicyTerms| {
            check_successor(Some((7, &held)), &candidate(8, next), Timestamp(0))
        };
        // 1.35 to 1.41 is 4.4 %, to 1.42 is 5.2 %.
        assert_eq!(check(&PolicyTerms { ratio_bp: BasisPoints(14_100), ..held }), Ok(()));
        for next in [
            PolicyTerms { ratio_bp: BasisPoints(14_200), ..held },
            PolicyTerms { share_bp: BasisPoints(3000), ..held },
            PolicyTerms { share_bp: BasisPoints(2000), ..held },
            PolicyTerms { physical_mib: Mib(2_000_000), ..held },
        ] {
            let rejection = check(&next).unwrap_err();
            assert_eq!(rejection.why(), "guardrail");
        }
        // A larger ratio on a smaller share moves nothing.
        let shifted =
            PolicyTerms { ratio_bp: BasisPoints(27_000), share_bp: BasisPoints(1250), ..held };
        assert_eq!(check(&shifted), Ok(()));
    }

    #[test]
    fn the_first_snapshot_has_no_predecessor_and_a_signed_step_may_be_wider() {
        let far = PolicyTerms { ratio_bp: BasisPoints(40_000), ..terms() };
        assert_eq!(check_successor(None, &candidate(1, &far), Timestamp(0)), Ok(()));
        let held = terms();
        let wide = Candidate { change_max: BasisPoints(30_000), ..candidate(8, &far) };
        assert_eq!(check_successor(Some((7, &held)), &wide, Timestamp(0)), Ok(()));
    }

    #[test]
    fn a_replayed_or_future_dated_snapshot_is_not_taken() {
        let held = terms();
        let replay = check_successor(Some((7, &held)), &candidate(7, &held), Timestamp(0));
        assert_eq!(replay, Err(Rejection::NotNewer { held: 7, offered: 7 }));
        let at = |published_at| {
            let next = Candidate { published_at, ..candidate(8, &held) };
            check_successor(Some((7, &held)), &next, Timestamp(1_000_000))
        };
        assert_eq!(at(Timestamp(1_060_000)), Ok(()));
        let ahead = Millis(60_001);
        assert_eq!(at(Timestamp(1_060_001)), Err(Rejection::FutureDated { ahead }));
    }

    #[test]
    fn terms_out_of_bounds_are_named() {
        for (terms, field) in [
            (PolicyTerms { physical_mib: Mib::ZERO, ..terms() }, "physical_mib"),
            (PolicyTerms { ratio_bp: BasisPoints(0), ..terms() }, "ratio_bp"),
            (PolicyTerms { ratio_bp: BasisPoints(100_001), ..terms() }, "ratio_bp"),
            (PolicyTerms { share_bp: BasisPoints(10_001), ..terms() }, "share_bp"),
            (PolicyTerms { conservative_step_bp: BasisPoints(u64::MAX), ..terms() }, "step_bp"),
            (PolicyTerms { soft_bound: Millis(u64::MAX), ..terms() }, "soft_bound"),
        ] {
            let error = terms.check().unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
            let rejected = check_successor(None, &candidate(1, &terms), Timestamp(0));
            assert_eq!(rejected, Err(Rejection::Terms(error)));
        }
    }

    prop_compose! {
        fn any_terms()(
            physical in 1_u64..10_000_000_000,
            ratio in 1_u64..=100_000,
            share in 0_u64..=10_000,
            step in 0_u64..=100_000,
            bounds in (0_u64..10_000_000, 0_u64..10_000_000),
        ) -> PolicyTerms {
            PolicyTerms {
                physical_mib: Mib(physical),
                ratio_bp: BasisPoints(ratio),
                share_bp: BasisPoints(share),
                conservative_step_bp: BasisPoints(step),
                soft_bound: Millis(bounds.0.min(bounds.1)),
                hard_bound: Millis(bounds.0.max(bounds.1)),
            }
        }
    }

    proptest! {
        /// I9.
        #[test]
        fn an_older_policy_never_admits_what_a_newer_one_refuses(
            terms in any_terms(), age in 0_u64..20_000_000, older in 0_u64..20_000_000,
            promised in 0_u64..10_000_000_000, incoming in 0_u64..1_000_000,
        ) {
            prop_assert_eq!(terms.check(), Ok(()));
            let verdict = |age| {
                let mode = terms.mode(Millis(age));
                let fits = promise_fits(Mib(promised), Mib(incoming), Some(terms.budget(mode)));
                fits && !sheds(mode, Criticality::Sheddable)
            };
            prop_assert!(verdict(age) || !verdict(age + older));
        }

        #[test]
        fn ageing_never_raises_a_ratio_and_never_lowers_one_below_one(
            ratio in 0_u64..200_000, step in 0_u64..200_000,
        ) {
            let [normal, conservative, fixed] =
                MODES.map(|mode| effective_ratio(mode, BasisPoints(ratio), BasisPoints(step)).0);
            prop_assert_eq!(normal, ratio);
            prop_assert!(fixed <= conservative && conservative <= normal);
            prop_assert_eq!(fixed, ratio.min(10_000));
        }

        #[test]
        fn the_budget_is_the_exact_product_rounded_down(
            physical in 0_u64..1_000_000_000_000, ratio in 0_u64..100_000, share in 0_u64..10_000,
        ) {
            let budget = budget(Mib(physical), BasisPoints(ratio), BasisPoints(share)).0;
            let exact = u128::from(physical) * u128::from(ratio) * u128::from(share);
            prop_assert!(u128::from(budget) * 100_000_000 <= exact);
            prop_assert!(u128::from(budget + 1) * 100_000_000 > exact);
        }

        #[test]
        fn shares_of_one_pool_never_promise_more_than_the_whole(
            physical in 0_u64..1_000_000_000, ratio in 0_u64..100_000, cut in 0_u64..=10_000,
        ) {
            let part = |share| budget(Mib(physical), BasisPoints(ratio), BasisPoints(share)).0;
            prop_assert!(part(cut) + part(10_000 - cut) <= part(10_000));
        }

        #[test]
        fn a_planner_can_always_reach_its_target_in_steps(
            from in 1_000_u64..1_000_000, to in 1_000_u64..1_000_000,
        ) {
            // However far the truth has moved during an outage, the guardrail bounds the step and
            // not the way: nothing stays STATIC for ever.
            let mut at = from;
            let mut steps = 0;
            while at != to {
                let reach = at * 5 / 100;
                let next = if to > at { to.min(at + reach) } else { to.max(at - reach) };
                prop_assert!(within_guardrail(Some(Mib(at)), Mib(next), BUDGET_CHANGE_MAX));
                at = next;
                steps += 1;
                prop_assert!(steps < 1000);
            }
        }
    }
}
