//! When trying again makes sense: the estimate behind Retry-After (DESIGN 4.9).

use plimsoll_types::{Millis, Timestamp};

/// Shortest estimate: Retry-After counts whole seconds.
pub const ESTIMATE_MIN: Millis = Millis::from_seconds(1);

/// Longest estimate. Beyond five minutes what is known now says little, and a caller that slept
/// longer would miss room that came sooner.
pub const ESTIMATE_MAX: Millis = Millis::from_seconds(300);

/// The estimate when nothing is known: one heartbeat, after which the hosts will have said
/// something new.
pub const ESTIMATE_DEFAULT: Millis = Millis::from_seconds(10);

/// What a cell knows about coming releases.
///
/// Each list ascends, and holds only what would free room for the request. Instants that have
/// passed count as due now.
#[derive(Clone, Copy, Debug, Default)]
pub struct RetryFacts<'a> {
    /// The moment of the refusal.
    pub now: Timestamp,
    /// Expected ends of pauses in progress that give back slot and memory.
    pub pauses: &'a [Timestamp],
    /// When reservations that nobody has committed lapse.
    pub lapses: &'a [Timestamp],
    /// When lifecycle limits fall due that free something.
    pub limits: &'a [Timestamp],
    /// Releases seen over the window that ends now.
    pub releases: u32,
    /// How long that window is.
    pub window: Millis,
    /// Requests that stand before this one.
    pub queue_ahead: u32,
}

/// The estimated time until the (queue ahead + 1)-th release, rounded up and within
/// [`ESTIMATE_MIN`] and [`ESTIMATE_MAX`].
///
/// The releases to come are at least those that are known by their instant, and about as many as
/// the recent rate gives. The known ones were part of that rate in their time, so the two are not
/// added: whichever reaches the wanted number first is the estimate. When the known ones are too
/// few and there is no rate, their own pace is carried on.
///
/// ```
/// use plimsoll_policy::retry::{RetryFacts, estimate};
/// use plimsoll_types::{Millis, Timestamp};
///
/// let pauses = [Timestamp(40_000), Timestamp(170_000)];
/// let facts = RetryFacts { pauses: &pauses, ..RetryFacts::default() };
/// assert_eq!(estimate(&facts), Millis(40_000));
/// assert_eq!(estimate(&RetryFacts { queue_ahead: 1, ..facts }), Millis(170_000));
/// // Six releases a minute: the second comes after about 20 s.
/// let rate = RetryFacts { queue_ahead: 1, releases: 6, window: Millis(60_000), ..facts };
/// assert_eq!(estimate(&rate), Millis(20_000));
/// ```
#[must_use]
pub fn estimate(facts: &RetryFacts<'_>) -> Millis {
    let wanted = u64::from(facts.queue_ahead) + 1;
    let by_instant = match nth_known(facts, wanted) {
        Known::At(wait) => Some(wait),
        Known::Fewer { count, last } if facts.releases == 0 => carried_on(wanted, count, last),
        Known::Fewer { .. } => None,
    };
    let by_rate = carried_on(wanted, u64::from(facts.releases), facts.window);
    let estimate = match (by_instant, by_rate) {
        (Some(instant), Some(rate)) => instant.min(rate),
        (Some(only), None) | (None, Some(only)) => only,
        (None, None) => ESTIMATE_DEFAULT,
    };
    estimate.clamp(ESTIMATE_MIN, ESTIMATE_MAX)
}

/// An estimate as the Retry-After header says it: whole seconds, rounded up, at least 1.
///
/// ```
/// use plimsoll_policy::retry::whole_seconds;
/// use plimsoll_types::Millis;
///
/// assert_eq!(whole_seconds(Millis(0)), 1);
/// assert_eq!(whole_seconds(Millis(1001)), 2);
/// ```
#[must_use]
pub fn whole_seconds(wait: Millis) -> u64 {
    wait.seconds_ceil().max(1)
}

/// How long `wanted` events take at a pace of `count` in `span`, rounded up; `None` without a
/// pace.
fn carried_on(wanted: u64, count: u64, span: Millis) -> Option<Millis> {
    if count == 0 {
        return None;
    }
    let wait = (u128::from(wanted) * u128::from(span.0)).div_ceil(u128::from(count));
    Some(Millis(u64::try_from(wait).unwrap_or(u64::MAX)))
}

enum Known {
    /// The wait until the wanted release.
    At(Millis),
    /// Fewer are known than wanted: how many, and the wait until the last of them.
    Fewer { count: u64, last: Millis },
}

/// Merges the three ascending lists up to the wanted place.
fn nth_known(facts: &RetryFacts<'_>, wanted: u64) -> Known {
    let mut lists = [facts.pauses, facts.lapses, facts.limits];
    let mut last = Millis::ZERO;
    let mut count = 0;
    while count < wanted {
        let next = lists
            .iter_mut()
            .filter(|list| !list.is_empty())
            .min_by_key(|list| list.first().copied());
        let Some(list) = next else {
            return Known::Fewer { count, last };
        };
        if let Some((first, rest)) = list.split_first() {
            last = last.max(first.since(facts.now));
            *list = rest;
        }
        count += 1;
    }
    Known::At(last)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_known_is_one_heartbeat() {
        assert_eq!(estimate(&RetryFacts::default()), ESTIMATE_DEFAULT);
    }

    #[test]
    fn what_is_overdue_is_due_now_and_rounds_up_to_a_second() {
        let lapses = [Timestamp(1000)];
        let facts = RetryFacts { now: Timestamp(9000), lapses: &lapses, ..RetryFacts::default() };
        assert_eq!(estimate(&facts), ESTIMATE_MIN);
    }

    #[test]
    fn a_three_minute_checkpoint_is_waited_for_and_not_two_of_them() {
        let pauses = [Timestamp(180_000)];
        let facts = RetryFacts { pauses: &pauses, ..RetryFacts::default() };
        assert_eq!(estimate(&facts), Millis(180_000));
        // With one ahead in the queue and no rate, the pace of what is known is carried on.
        assert_eq!(estimate(&RetryFacts { queue_ahead: 1, ..facts }), ESTIMATE_MAX);
        let soon = [Timestamp(20_000)];
        let facts = RetryFacts { pauses: &soon, queue_ahead: 1, ..facts };
        assert_eq!(estimate(&facts), Millis(40_000));
    }

    fn instants() -> impl Strategy<Value = Vec<Timestamp>> {
        vec(-50_000_i64..400_000, 0..8).prop_map(|mut instants| {
            instants.sort_unstable();
            instants.into_iter().map(Timestamp).collect()
        })
    }

    proptest! {
        #[test]
        fn the_estimate_is_the_nth_known_release_or_the_rate_whichever_is_sooner(
            pauses in instants(),
            lapses in instants(),
            limits in instants(),
            releases in 0_u32..50,
            window in 0_u64..600_000,
            queue_ahead in 0_u32..30,
        ) {
            let facts = RetryFacts {
                now: Timestamp(0),
                pauses: &pauses,
                lapses: &lapses,
                limits: &limits,
                releases,
                window: Millis(window),
                queue_ahead,
            };
            let said = estimate(&facts);
            prop_assert!((ESTIMATE_MIN..=ESTIMATE_MAX).contains(&said));
            let mut all: Vec<u64> = [&pauses, &lapses, &limits]
                .into_iter()
                .flatten()
                .map(|at| at.since(Timestamp(0)).0)
                .collect();
            all.sort_unstable();
            let wanted = u64::from(queue_ahead) + 1;
            let known = all.get(queue_ahead as usize).copied();
            let rate = (releases > 0).then(|| (wanted * window).div_ceil(releases.into()));
            if let Some(sooner) = known.into_iter().chain(rate).min() {
                prop_assert_eq!(said, Millis(sooner).clamp(ESTIMATE_MIN, ESTIMATE_MAX));
            }
        }

        #[test]
        fn a_longer_queue_never_waits_less_and_a_faster_rate_never_longer(
            pauses in instants(),
            releases in 1_u32..50,
            window in 1_u64..600_000,
            queue_ahead in 0_u32..30,
        ) {
            let facts = RetryFacts {
                pauses: &pauses,
                releases,
                window: Millis(window),
                queue_ahead,
                ..RetryFacts::default()
            };
            let longer = RetryFacts { queue_ahead: queue_ahead + 1, ..facts };
            prop_assert!(estimate(&longer) >= estimate(&facts));
            let faster = RetryFacts { releases: releases + 1, ..facts };
            prop_assert!(estimate(&faster) <= estimate(&facts));
            let nothing_measured = RetryFacts { releases: 0, ..facts };
            let longer = RetryFacts { queue_ahead: queue_ahead + 1, ..nothing_measured };
            prop_assert!(estimate(&longer) >= estimate(&nothing_measured));
        }
    }
}
