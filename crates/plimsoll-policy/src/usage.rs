//! Metered use: from counters that only grow to amounts in the hours in which they were spent.

use alloc::vec::Vec;

use plimsoll_types::{Mib, Millis, SandboxStatus, Timestamp};
use serde::{Deserialize, Serialize};

/// Attempts of one sandbox whose counters are remembered. A report can come late by a restart or
/// two; about an attempt further back nothing can be told apart from a repetition.
const ATTEMPTS_KEPT: usize = 4;

/// What has been credited of one cumulative counter.
///
/// A host reports totals per attempt. The difference to what was seen is credited, so a report
/// that comes twice, late or out of order credits nothing twice and loses nothing, as long as the
/// attempt is among the four newest. Beyond that the doubt goes to the tenant: nothing is credited.
///
/// ```
/// use plimsoll_policy::usage::Meter;
///
/// let mut meter = Meter::default();
/// assert_eq!(meter.credit(1, 500), 500);
/// assert_eq!(meter.credit(1, 700), 200);
/// assert_eq!(meter.credit(1, 700), 0);
/// assert_eq!(meter.credit(2, 30), 30, "a new attempt counts from zero");
/// assert_eq!(meter.credit(1, 750), 50, "a late total of the old one is credited still");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    /// (attempt, highest total seen), newest first; unused places at the end.
    seen: [Option<(u64, u64)>; ATTEMPTS_KEPT],
}

impl Meter {
    /// Takes a reported total and gives what it adds.
    pub fn credit(&mut self, attempt: u64, total: u64) -> u64 {
        for place in 0..ATTEMPTS_KEPT {
            match &mut self.seen[place] {
                Some((known, seen)) if *known == attempt => {
                    let delta = total.saturating_sub(*seen);
                    *seen = (*seen).max(total);
                    return delta;
                }
                Some((known, _)) if *known > attempt => {}
                _ => {
                    self.seen[place..].rotate_right(1);
                    self.seen[place] = Some((attempt, total));
                    return total;
                }
            }
        }
        0
    }

    /// Each attempt that is remembered with the total credited of it, newest first.
    pub fn remembered(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.seen.iter().flatten().copied()
    }
}

/// One hour in milliseconds.
const HOUR_MILLIS: i64 = 3_600_000;

/// Most hours over which one report is spread: 31 days. No host is silent for longer and alive;
/// a wilder pair of times is a broken clock, which must not cost a million rows.
pub const SPLIT_HOURS_MAX: usize = 31 * 24;

/// The start of the hour that an instant lies in.
#[must_use]
pub const fn hour_of(at: Timestamp) -> Timestamp {
    Timestamp(at.0.saturating_sub(at.0.rem_euclid(HOUR_MILLIS)))
}

/// Spreads an amount over the hours between two instants in proportion to the time in each.
///
/// The parts add up to the amount exactly: each is the difference of two floors of the running
/// total. Hours with nothing are left out. Every billing period starts on an hour, so the parts
/// credit each period with its own. Without a length of time, all goes to the hour of `to`.
///
/// ```
/// use plimsoll_policy::usage::split_hours;
/// use plimsoll_types::Timestamp;
///
/// let half_past = Timestamp(1_800_000);
/// let parts = split_hours(90, half_past, Timestamp(2 * 3_600_000));
/// assert_eq!(parts, [(Timestamp(0), 30), (Timestamp(3_600_000), 60)]);
/// ```
#[must_use]
pub fn split_hours(amount: u64, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, u64)> {
    let mut parts = Vec::new();
    if amount == 0 {
        return parts;
    }
    let longest = Millis((SPLIT_HOURS_MAX as u64 - 1) * HOUR_MILLIS as u64);
    let from = from.max(to - longest);
    let length = u128::from(to.since(from).0);
    if length == 0 {
        parts.push((hour_of(to), amount));
        return parts;
    }
    let mut hour = hour_of(from);
    let mut given = 0;
    while given < amount {
        let next = hour + Millis(HOUR_MILLIS as u64);
        let until = u128::from(next.min(to).since(from).0);
        // The elapsed part is at most the length, so the running total is at most the amount.
        let running = u64::try_from(u128::from(amount) * until / length).unwrap_or(amount);
        if running > given {
            parts.push((hour, running - given));
            given = running;
        }
        hour = next;
    }
    parts
}

/// MiB-milliseconds of one GiB-hour.
pub const MIB_MILLIS_PER_GIB_HOUR: u64 = 1024 * HOUR_MILLIS as u64;

/// Memory held for a time, in MiB-milliseconds: the whole number that GiB-hours are summed in.
#[must_use]
pub fn mib_millis(memory: Mib, length: Millis) -> u64 {
    memory.0.saturating_mul(length.0)
}

/// Whole GiB-hours, rounded down.
#[must_use]
pub const fn gib_hours(mib_millis: u64) -> u64 {
    mib_millis / MIB_MILLIS_PER_GIB_HOUR
}

/// Whether memory is metered in a state: whatever occupies a host's memory does. A guest whose
/// checkpoint was written out has left its host and stops the meter, as does one that is stopped.
#[must_use]
pub const fn meters_memory(status: SandboxStatus, slot_released: bool) -> bool {
    match status {
        SandboxStatus::Running | SandboxStatus::Pausing | SandboxStatus::Resuming => true,
        SandboxStatus::Paused => !slot_released,
        SandboxStatus::Queued
        | SandboxStatus::Provisioning
        | SandboxStatus::Stopped
        | SandboxStatus::Terminating
        | SandboxStatus::Terminated
        | SandboxStatus::Failed => false,
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::period::{AnchorDay, period_at};

    #[test]
    fn late_reports_of_an_old_attempt_are_credited_once_and_only_while_remembered() {
        let mut meter = Meter::default();
        assert_eq!(meter.credit(1, 100), 100);
        for attempt in 2..=4 {
            assert_eq!(meter.credit(attempt, 10), 10);
        }
        assert_eq!(meter.credit(1, 140), 40);
        assert_eq!(meter.credit(1, 140), 0);
        assert_eq!(meter.credit(5, 10), 10);
        // The first is forgotten: in doubt nothing is credited.
        assert_eq!(meter.credit(1, 200), 0);
        let attempts: Vec<_> = meter.remembered().map(|(attempt, _)| attempt).collect();
        assert_eq!(attempts, [5, 4, 3, 2]);
    }

    #[test]
    fn an_attempt_that_was_skipped_is_credited_when_it_comes() {
        let mut meter = Meter::default();
        assert_eq!(meter.credit(3, 5), 5);
        assert_eq!(meter.credit(2, 7), 7);
        assert_eq!(meter.credit(2, 7), 0);
        assert_eq!(meter.credit(3, 6), 1);
    }

    #[test]
    fn a_total_that_falls_within_an_attempt_credits_nothing_until_it_has_caught_up() {
        let mut meter = Meter::default();
        assert_eq!(meter.credit(1, 100), 100);
        assert_eq!(meter.credit(1, 40), 0);
        assert_eq!(meter.credit(1, 101), 1);
    }

    #[test]
    fn a_host_that_was_silent_over_midnight_credits_both_months() {
        // Silent for 90 s around the first of March 2024, then 90 000 ms of CPU at once.
        let midnight = 1_709_251_200_000;
        let (from, to) = (Timestamp(midnight - 30_000), Timestamp(midnight + 60_000));
        let mut periods = BTreeMap::new();
        for (hour, part) in split_hours(90_000, from, to) {
            *periods.entry(period_at(AnchorDay::CALENDAR, hour).start).or_insert(0) += part;
        }
        let february = period_at(AnchorDay::CALENDAR, from).start;
        let march = period_at(AnchorDay::CALENDAR, to).start;
        assert_eq!(periods, BTreeMap::from([(february, 30_000), (march, 60_000)]));
    }

    #[test]
    fn an_amount_without_a_length_of_time_goes_to_its_hour() {
        assert_eq!(
            split_hours(7, Timestamp(3_600_001), Timestamp(3_600_001)),
            [(Timestamp(3_600_000), 7)]
        );
        assert_eq!(split_hours(7, Timestamp(9_999_999), Timestamp(5)), [(Timestamp(0), 7)]);
        assert_eq!(split_hours(0, Timestamp(0), Timestamp(i64::MAX)), []);
    }

    #[test]
    fn a_broken_clock_costs_a_month_of_rows_and_no_more() {
        for (from, to) in [(i64::MIN, i64::MAX), (0, 1_700_000_000_000), (i64::MIN, i64::MIN + 5)] {
            let parts = split_hours(u64::MAX, Timestamp(from), Timestamp(to));
            assert!(parts.len() <= SPLIT_HOURS_MAX, "{}", parts.len());
            let sum: u128 = parts.iter().map(|(_, part)| u128::from(*part)).sum();
            assert_eq!(sum, u128::from(u64::MAX));
        }
    }

    #[test]
    fn a_gib_for_an_hour_is_a_gib_hour() {
        let hour = mib_millis(Mib(1024), Millis::from_seconds(3600));
        assert_eq!(gib_hours(hour), 1);
        assert_eq!(gib_hours(hour - 1), 0);
        assert_eq!(gib_hours(mib_millis(Mib(512), Millis::from_seconds(4 * 3600))), 2);
    }

    #[test]
    fn a_checkpointed_guest_stops_the_meter_and_a_frozen_one_does_not() {
        assert!(meters_memory(SandboxStatus::Running, false));
        assert!(meters_memory(SandboxStatus::Paused, false));
        assert!(!meters_memory(SandboxStatus::Paused, true));
        assert!(!meters_memory(SandboxStatus::Stopped, false));
        assert!(!meters_memory(SandboxStatus::Queued, false));
    }

    proptest! {
        /// Public failure Q2.
        #[test]
        fn reports_that_come_twice_late_or_out_of_order_credit_the_use_once(
            reports in vec((1_u64..=4, 0_u64..1000), 0..60),
        ) {
            let mut meter = Meter::default();
            let mut credited = 0;
            let mut highest: BTreeMap<u64, u64> = BTreeMap::new();
            for (attempt, total) in reports {
                credited += meter.credit(attempt, total);
                let seen = highest.entry(attempt).or_default();
                *seen = (*seen).max(total);
            }
            prop_assert_eq!(credited, highest.values().sum::<u64>());
        }

        #[test]
        fn nothing_is_ever_credited_twice(
            reports in vec((0_u64..20, 0_u64..1000), 0..80),
        ) {
            let mut meter = Meter::default();
            let mut credited: BTreeMap<u64, u64> = BTreeMap::new();
            let mut highest: BTreeMap<u64, u64> = BTreeMap::new();
            for (attempt, total) in reports {
                *credited.entry(attempt).or_default() += meter.credit(attempt, total);
                let seen = highest.entry(attempt).or_default();
                *seen = (*seen).max(total);
                prop_assert!(credited[&attempt] <= highest[&attempt]);
            }
        }

        #[test]
        fn parts_add_up_and_follow_the_time(
            amount in 0_u64..10_000_000, from in -10_000_000_000_i64..10_000_000_000,
            length in 1_i64..2_600_000_000,
        ) {
            let (start, end) = (Timestamp(from), Timestamp(from + length));
            let parts = split_hours(amount, start, end);
            prop_assert_eq!(parts.iter().map(|(_, part)| part).sum::<u64>(), amount);
            prop_assert!(parts.is_sorted_by(|a, b| a.0 < b.0));
            for (hour, part) in parts {
                prop_assert_eq!(hour, hour_of(hour));
                let within = (hour.0 + HOUR_MILLIS).min(end.0) - hour.0.max(start.0);
                prop_assert!(within > 0);
                // Within one of the exact share, either way.
                let exact = u128::from(amount) * within as u128;
                let part = u128::from(part) * length as u128;
                prop_assert!(part.abs_diff(exact) < length as u128);
            }
        }
    }
}
