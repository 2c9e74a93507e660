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
