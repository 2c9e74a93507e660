//! When an event is tried again, and when that ends.

use plimsoll_types::Millis;

/// Waits after the first, second, ... failed attempt, in seconds. Short ones ride out a restart of
/// the receiver, long ones a night; together they are 23 h 42 min, after which the event is given
/// up on.
const WAITS_SECONDS: [u64; 10] = [5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 21_600, 36_000];

/// A wait is spread by this part of it to either side, so that endpoints on one receiver do not
/// return together.
const SPREAD_PER_CENT: u64 = 20;

/// Longest wait: nothing that was stored is due later than this from now.
pub(super) const WAIT_MAX: Millis = Millis(36_000_000 * (100 + SPREAD_PER_CENT) / 100);

/// Longest time that a receiver's own Retry-After is followed for.
const RETRY_AFTER_MAX: Millis = Millis(3_600_000);

/// An endpoint that took nothing for so long is switched off: three events in a row were given up
/// on, and what waits for it is kept meanwhile.
pub(super) const FAILING_MAX: Millis = Millis(3 * 24 * 3_600_000);

/// How long to wait after so many failed attempts; `None` when there is no other attempt. `draw` is
/// any number, drawn anew each time.
pub(super) fn wait(attempts: u32, retry_after: Option<Millis>, draw: u32) -> Option<Millis> {
    let seconds = WAITS_SECONDS.get((attempts as usize).checked_sub(1)?)?;
    let permille = 1_000 - 10 * SPREAD_PER_CENT + u64::from(draw) % (20 * SPREAD_PER_CENT + 1);
    let own = Millis(seconds * permille);
    Some(retry_after.map_or(own, |asked| own.max(asked.min(RETRY_AFTER_MAX))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_over_about_a_day_and_then_end() {
        let total = |draw| -> u64 { (1..=10).map(|n| wait(n, None, draw).unwrap().get()).sum() };
        assert_eq!(total(200), 85_355_000);
        assert_eq!(total(0), 85_355_000 * 8 / 10);
        assert_eq!(total(400), 85_355_000 * 12 / 10);
        assert_eq!(wait(1, None, 200), Some(Millis(5_000)));
        assert_eq!(wait(0, None, 0), None);
        assert_eq!(wait(11, None, 0), None);
        assert_eq!(wait(10, None, 400), Some(WAIT_MAX));
        assert!((1..10).all(|n| wait(n, None, 7) < wait(n + 1, None, 7)));
    }

    #[test]
    fn a_receiver_may_ask_for_more_time_and_not_for_less() {
        assert_eq!(wait(1, Some(Millis(60_000)), 200), Some(Millis(60_000)));
        assert_eq!(wait(4, Some(Millis(1_000)), 200), Some(Millis(600_000)));
        assert_eq!(wait(1, Some(Millis(u64::MAX)), 200), Some(RETRY_AFTER_MAX));
    }
}
