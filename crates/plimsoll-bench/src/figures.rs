//! What a run comes to.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// What one connection saw.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// One latency for each answered request, in microseconds.
    pub micros: Vec<u32>,
    /// Requests by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Connections that broke, with the last reason.
    pub broken: Option<String>,
}

impl Outcome {
    /// Counts one answer.
    pub fn answered(&mut self, status: u16, took: Duration) {
        self.micros.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
        *self.statuses.entry(status).or_default() += 1;
    }

    /// Adds what another connection saw.
    pub fn absorb(&mut self, other: Self) {
        self.micros.extend(other.micros);
        for (status, number) in other.statuses {
            *self.statuses.entry(status).or_default() += number;
        }
        self.broken = self.broken.take().or(other.broken);
    }
}

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// What was run.
    pub name: String,
    /// Answered requests a second, of any status.
    pub requests_per_second: u64,
    /// Accepted items a second: reservations made durable.
    pub items_per_second: u64,
    /// Latency of a request in microseconds.
    pub p50_micros: u32,
    /// Likewise.
    pub p99_micros: u32,
    /// Likewise.
    pub p999_micros: u32,
    /// The slowest.
    pub max_micros: u32,
    /// Requests by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Why connections broke, if any did.
    pub broken: Option<String>,
}

impl Figures {
    /// Sums a run up. `items` is how many items one accepted request carries.
    #[must_use]
    pub fn of(name: &str, mut outcome: Outcome, items: u64, took: Duration) -> Self {
        outcome.micros.sort_unstable();
        let per_second = |count: u64| {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
            u64::try_from(u128::from(count) * 1_000_000 / u128::from(micros)).unwrap_or(u64::MAX)
        };
        let accepted: u64 = outcome.statuses.range(200..300).map(|(_, number)| *number).sum();
        let all: u64 = outcome.statuses.values().sum();
        Self {
            name: name.to_owned(),
            requests_per_second: per_second(all),
            items_per_second: per_second(accepted * items),
            p50_micros: percentile(&outcome.micros, 500),
            p99_micros: percentile(&outcome.micros, 990),
            p999_micros: percentile(&outcome.micros, 999),
            max_micros: outcome.micros.last().copied().unwrap_or(0),
            statuses: outcome.statuses,
            broken: outcome.broken,
        }
    }
}

/// The value at so many thousandths of a sorted list, by the nearest rank.
fn percentile(sorted: &[u32], thousandths: usize) -> u32 {
    if sorted.is_empty() {
        return 0;
    }
    let rank = (sorted.len() * thousandths).div_ceil(1000).max(1);
    sorted[rank - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let values: Vec<u32> = (1..=1000).collect();
        assert_eq!(percentile(&values, 500), 500);
        assert_eq!(percentile(&values, 990), 990);
        assert_eq!(percentile(&values, 999), 999);
        assert_eq!(percentile(&[7], 999), 7);
        assert_eq!(percentile(&[], 500), 0);
    }

    #[test]
    fn only_accepted_requests_count_as_items() {
        let mut outcome = Outcome::default();
        outcome.answered(201, Duration::from_micros(100));
        outcome.answered(503, Duration::from_micros(300));
        let figures = Figures::of("x", outcome, 100, Duration::from_secs(1));
        assert_eq!((figures.requests_per_second, figures.items_per_second), (2, 100));
        assert_eq!((figures.p50_micros, figures.max_micros), (100, 300));
    }
}
