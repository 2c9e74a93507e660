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
