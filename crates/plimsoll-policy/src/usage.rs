//! Metered use: from counters that only grow to amounts in the hours in which they were spent.

use alloc::vec::Vec;

use plimsoll_types::{Mib, Millis, SandboxStatus, Timestamp};
use serde::{Deserialize, Serialize};

/// Attempts of one guest whose counters are remembered. A report can come late by a restart or
/// two; about an attempt further back nothing can be told apart from a repetition.
const ATTEMPTS_KEPT: usize = 4;

/// Cumulative counters of one attempt, or what they have grown by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// CPU in core-milliseconds.
    pub cpu_millis: u64,
    /// Bytes sent out.
    pub egress_bytes: u64,
}

/// How far one guest's use has been credited. It is written together with what was credited, so
/// that a restart goes on exactly there.
///
/// A host reports totals per attempt. The difference to what was seen is credited, so a report
/// that comes twice, late or out of order credits nothing twice and loses nothing, as long as the
/// attempt is among the four newest. Beyond that the doubt goes to the tenant: nothing is credited.
///
/// ```
/// use plimsoll_policy::usage::{Meter, Totals};
///
/// let mut meter = Meter::default();
/// let mut cpu = |attempt, cpu_millis| {
///     meter.credit(attempt, Totals { cpu_millis, egress_bytes: 0 }).cpu_millis
/// };
/// assert_eq!(cpu(1, 500), 500);
/// assert_eq!(cpu(1, 700), 200);
/// assert_eq!(cpu(1, 700), 0);
/// assert_eq!(cpu(2, 30), 30, "a new attempt counts from zero");
/// assert_eq!(cpu(1, 750), 50, "a late total of the old one is credited still");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meter {
    /// Its memory is credited up to here.
    pub at: Timestamp,
    /// Its CPU and egress are: when the last report that listed it was received.
    pub heard_at: Timestamp,
    /// Since when it has kept all of its vCPUs busy ([`crate::abuse::Window::busy_since`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_since: Option<Timestamp>,
    /// The highest totals seen, newest attempt first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    seen: Vec<(u32, Totals)>,
}

impl Meter {
    /// Nothing before this moment is credited for memory or belongs to the next report.
    pub fn begin(&mut self, now: Timestamp) {
        (self.at, self.heard_at) = (now, now);
    }

    /// Takes reported totals and gives what they add.
    pub fn credit(&mut self, attempt: u32, totals: Totals) -> Totals {
        for place in 0..ATTEMPTS_KEPT {
            match self.seen.get_mut(place) {
                Some((known, seen)) if *known == attempt => {
                    let more = Totals {
                        cpu_millis: totals.cpu_millis.saturating_sub(seen.cpu_millis),
                        egress_bytes: totals.egress_bytes.saturating_sub(seen.egress_bytes),
                    };
                    seen.cpu_millis = seen.cpu_millis.max(totals.cpu_millis);
                    seen.egress_bytes = seen.egress_bytes.max(totals.egress_bytes);
                    return more;
                }
                Some((known, _)) if *known > attempt => {}
                _ => {
                    self.seen.truncate(ATTEMPTS_KEPT - 1);
                    self.seen.insert(place, (attempt, totals));
                    return totals;
                }
            }
        }
        Totals::default()
    }

    /// Takes note of counters that have begun anew within an attempt, as those of a host's own reporter
    /// may when it starts again. CPU that has fallen, to what can have been used since the last
    /// report (`most`, in core-milliseconds), counts from zero then, and egress that has fallen with
    /// it; a fall to more than that is no such thing. `true` where it was one.
    ///
    /// ```
    /// use plimsoll_policy::usage::{Meter, Totals};
    ///
    /// let (mut meter, egress_bytes) = (Meter::default(), 0);
    /// meter.credit(1, Totals { cpu_millis: 90_000, egress_bytes });
    /// let fallen = Totals { cpu_millis: 3_000, egress_bytes };
    /// assert!(meter.begins_anew(1, fallen, 10_000));
    /// assert_eq!(meter.credit(1, fallen).cpu_millis, 3_000);
    /// ```
    pub fn begins_anew(&mut self, attempt: u32, totals: Totals, most: u64) -> bool {
        let Some((_, seen)) = self.seen.iter_mut().find(|(known, _)| *known == attempt) else {
            return false;
        };
        let fell = totals.cpu_millis < seen.cpu_millis && totals.cpu_millis <= most;
        if fell {
            seen.cpu_millis = 0;
            if totals.egress_bytes < seen.egress_bytes {
                seen.egress_bytes = 0;
            }
        }
        fell
    }

    /// Each attempt that is remembered with the totals credited of it, newest first.
    pub fn remembered(&self) -> impl Iterator<Item = (u32, Totals)> + '_ {
        self.seen.iter().copied()
    }

    /// Whether nothing was ever metered.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        *self == Self::default()
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

    fn cpu(meter: &mut Meter, attempt: u32, cpu_millis: u64) -> u64 {
        meter.credit(attempt, Totals { cpu_millis, egress_bytes: 0 }).cpu_millis
    }

    #[test]
    fn counters_begin_anew_only_where_what_they_show_is_new() {
        let totals = |cpu_millis, egress_bytes| Totals { cpu_millis, egress_bytes };
        let mut meter = Meter::default();
        meter.credit(1, totals(50_000, 700));
        assert!(
            !meter.begins_anew(2, totals(10, 0), 100),
            "another attempt counts from zero as is"
        );
        assert!(!meter.begins_anew(1, totals(50_000, 0), 60_000), "it has not fallen");
        assert!(
            !meter.begins_anew(1, totals(49_990, 700), 10_000),
            "too much since the last report"
        );
        assert_eq!(meter.credit(1, totals(49_990, 700)), totals(0, 0));
        assert!(meter.begins_anew(1, totals(10_000, 20), 10_000));
        assert_eq!(meter.credit(1, totals(10_000, 20)), totals(10_000, 20));
        assert_eq!(meter.credit(1, totals(10_000, 20)), totals(0, 0), "once");
        assert!(meter.begins_anew(1, totals(4_000, 25), 10_000));
        assert_eq!(meter.credit(1, totals(4_000, 25)), totals(4_000, 5), "egress went on");
    }

    #[test]
    fn each_counter_of_an_attempt_is_credited_by_itself() {
        let mut meter = Meter::default();
        let totals = |cpu_millis, egress_bytes| Totals { cpu_millis, egress_bytes };
        assert_eq!(meter.credit(1, totals(10, 5)), totals(10, 5));
        // A counter that has fallen adds nothing; its neighbour does.
        assert_eq!(meter.credit(1, totals(4, 8)), totals(0, 3));
        assert_eq!(meter.credit(1, totals(12, 8)), totals(2, 0));
    }

    #[test]
    fn late_reports_of_an_old_attempt_are_credited_once_and_only_while_remembered() {
        let mut meter = Meter::default();
        assert_eq!(cpu(&mut meter, 1, 100), 100);
        for attempt in 2..=4 {
            assert_eq!(cpu(&mut meter, attempt, 10), 10);
        }
        assert_eq!(cpu(&mut meter, 1, 140), 40);
        assert_eq!(cpu(&mut meter, 1, 140), 0);
        assert_eq!(cpu(&mut meter, 5, 10), 10);
        // The first is forgotten: in doubt nothing is credited.
        assert_eq!(cpu(&mut meter, 1, 200), 0);
        let attempts: Vec<_> = meter.remembered().map(|(attempt, _)| attempt).collect();
        assert_eq!(attempts, [5, 4, 3, 2]);
    }

    #[test]
    fn an_attempt_that_was_skipped_is_credited_when_it_comes() {
        let mut meter = Meter::default();
        assert_eq!(cpu(&mut meter, 3, 5), 5);
        assert_eq!(cpu(&mut meter, 2, 7), 7);
        assert_eq!(cpu(&mut meter, 2, 7), 0);
        assert_eq!(cpu(&mut meter, 3, 6), 1);
    }

    #[test]
    fn a_total_that_falls_within_an_attempt_credits_nothing_until_it_has_caught_up() {
        let mut meter = Meter::default();
        assert_eq!(cpu(&mut meter, 1, 100), 100);
        assert_eq!(cpu(&mut meter, 1, 40), 0);
        assert_eq!(cpu(&mut meter, 1, 101), 1);
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
            reports in vec((1_u32..=4, 0_u64..1000), 0..60),
        ) {
            let mut meter = Meter::default();
            let mut credited = 0;
            let mut highest: BTreeMap<u32, u64> = BTreeMap::new();
            for (attempt, total) in reports {
                credited += cpu(&mut meter, attempt, total);
                let seen = highest.entry(attempt).or_default();
                *seen = (*seen).max(total);
            }
            prop_assert_eq!(credited, highest.values().sum::<u64>());
        }

        #[test]
        fn nothing_is_ever_credited_twice(
            reports in vec((0_u32..20, 0_u64..1000), 0..80),
        ) {
            let mut meter = Meter::default();
            let mut credited: BTreeMap<u32, u64> = BTreeMap::new();
            let mut highest: BTreeMap<u32, u64> = BTreeMap::new();
            for (attempt, total) in reports {
                *credited.entry(attempt).or_default() += cpu(&mut meter, attempt, total);
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
