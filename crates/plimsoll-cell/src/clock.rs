//! The cell's time: the wall clock, made to never go back within a process.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use plimsoll_types::{Millis, Timestamp};

/// A beat that comes later than this after the one before means that the process was stopped or
/// that the machine's clock was set: what was not heard in between says nothing about the hosts.
/// One heartbeat interval: shorter would take a busy machine for a stopped one, longer would let a
/// stopped cell judge hosts by reports that it could not hear.
pub(crate) const GAP_MAX: Millis = Millis(10_000);

/// The wall clock moves the cell's time by at most one part in so many of what has passed, so that
/// a correction neither turns time back nor makes anything lapse early.
const SLEW_DIVISOR: i64 = 10;

/// A clock that follows the wall clock and never goes back.
///
/// Between beats it runs with the monotonic clock. Each beat moves it a little towards the wall
/// clock; a wall clock that leads by more than [`GAP_MAX`] is followed at once, and the beat says
/// that there was a gap.
#[derive(Debug)]
pub(crate) struct Clock {
    anchor: Instant,
    anchor_at: Timestamp,
    last: Timestamp,
}

/// What a beat found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beat {
    /// The time now.
    pub(crate) now: Timestamp,
    /// Whether more than [`GAP_MAX`] has passed since the last beat, by either clock.
    pub(crate) gap: bool,
}

impl Clock {
    /// A clock that starts at the wall clock.
    pub(crate) fn start() -> Self {
        let at = wall();
        Self { anchor: Instant::now(), anchor_at: at, last: at }
    }

    /// The time, moved towards the wall clock.
    pub(crate) fn beat(&mut self) -> Beat {
        self.beat_at(Instant::now(), wall())
    }

    fn beat_at(&mut self, instant: Instant, wall: Timestamp) -> Beat {
        let run = instant.saturating_duration_since(self.anchor).as_millis();
        let run = i64::try_from(run).unwrap_or(i64::MAX);
        let passed = self.anchor_at.0.saturating_add(run);
        let since_last = passed.saturating_sub(self.last.0).max(0);
        let ahead = wall.0.saturating_sub(passed);
        let gap_max = GAP_MAX.0 as i64;
        let gap = since_last > gap_max || ahead > gap_max;
        let now = if ahead > gap_max {
            wall.0
        } else {
            let most = since_last / SLEW_DIVISOR;
            passed.saturating_add(ahead.clamp(-most, most))
        };
        let now = Timestamp(now.max(self.last.0));
        if now.0 != passed {
            self.anchor = instant;
            self.anchor_at = now;
        }
        self.last = now;
        Beat { now, gap }
    }
}

/// The machine's wall clock.
pub(crate) fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn clock() -> (Clock, Instant) {
        let start = Instant::now();
        (
            Clock { anchor: start, anchor_at: Timestamp(1_000_000), last: Timestamp(1_000_000) },
            start,
        )
    }

    #[test]
    fn runs_with_the_monotonic_clock_when_both_agree() {
        let (mut clock, start) = clock();
        for millis in [1, 500, 501, 9_000] {
            let at = Timestamp(1_000_000 + millis);
            let beat = clock.beat_at(start + Duration::from_millis(millis as u64), at);
            assert_eq!(beat, Beat { now: at, gap: false });
        }
    }

    #[test]
    fn a_wall_clock_set_back_slows_time_and_never_turns_it() {
        let (mut clock, start) = clock();
        let mut last = Timestamp(1_000_000);
        for second in 1..=100_u64 {
            let wall = Timestamp(1_000_000 + second as i64 * 1000 - 3_600_000);
            let beat = clock.beat_at(start + Duration::from_secs(second), wall);
            assert!(beat.now > last && !beat.gap, "{beat:?}");
            last = beat.now;
        }
        assert_eq!(last, Timestamp(1_000_000 + 100 * 900));
    }

    #[test]
    fn a_small_lead_of_the_wall_clock_is_taken_over_by_and_by() {
        let (mut clock, start) = clock();
        let mut beat = Beat { now: Timestamp(0), gap: false };
        for second in 1..=60_u64 {
            let wall = Timestamp(1_000_000 + second as i64 * 1000 + 5_000);
            beat = clock.beat_at(start + Duration::from_secs(second), wall);
            assert!(!beat.gap);
        }
        assert_eq!(beat.now, Timestamp(1_000_000 + 60_000 + 5_000));
    }

    #[test]
    fn a_stopped_process_and_a_clock_set_forward_are_gaps() {
        let (mut clock, start) = clock();
        let beat = clock.beat_at(start + Duration::from_secs(61), Timestamp(1_061_000));
        assert_eq!(beat, Beat { now: Timestamp(1_061_000), gap: true });
        let beat = clock.beat_at(start + Duration::from_secs(62), Timestamp(1_062_000));
        assert_eq!(beat, Beat { now: Timestamp(1_062_000), gap: false });
        let beat = clock.beat_at(start + Duration::from_secs(63), Timestamp(4_663_000));
        assert_eq!(beat, Beat { now: Timestamp(4_663_000), gap: true });
        let beat = clock.beat_at(start + Duration::from_secs(64), Timestamp(4_664_000));
        assert_eq!(beat, Beat { now: Timestamp(4_664_000), gap: false });
    }
}
