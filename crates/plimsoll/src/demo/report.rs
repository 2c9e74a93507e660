//! What the demo found.

use serde::Serialize;

use super::fill::GUESTS_MAX;
use crate::show::Table;

/// How a host was filled under one regime.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fill {
    /// Which.
    pub(super) regime: String,
    /// Memory that guests may be charged with.
    pub(super) budget_mib: u64,
    /// Memory of each guest.
    pub(super) guest_mib: u64,
    /// Guests that ran at once.
    pub(super) admitted: u64,
    /// Sum of their configured memory.
    pub(super) configured_mib: u64,
    /// Largest measured sum of what they used.
    pub(super) resident_mib_max: u64,
    /// Sum of what they were charged at the end.
    pub(super) charged_mib: u64,
    /// Largest sum of charges seen.
    pub(super) charged_mib_max: u64,
    /// Creates refused for lack of room.
    pub(super) refused: u64,
}

/// Creates that came at once.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Burst {
    /// How many.
    pub(super) creates: u64,
    /// What one reserves.
    pub(super) reserve_mib: u64,
    /// Memory that guests may be charged with.
    pub(super) budget_mib: u64,
    /// How many the budget has room for.
    pub(super) room_for: u64,
    /// How many got in.
    pub(super) admitted: u64,
    /// How many were refused with `no_capacity`.
    pub(super) refused: u64,
    /// Sum of charges right after.
    pub(super) charged_mib: u64,
}

/// A refusal, and a client that waited.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Wait {
    /// The code of a refusal on the full host.
    pub(super) refused_with: String,
    /// What it said about trying again.
    pub(super) retry_after_millis: Option<u64>,
    /// How long the client had waited when a guest was ended.
    pub(super) freed_after_millis: u64,
    /// How long the client waited in all.
    pub(super) admitted_after_millis: u64,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) committed: Fill,
    pub(super) working_set: Fill,
    pub(super) burst: Burst,
    pub(super) wait: Wait,
    /// How long the demo took.
    pub(super) seconds: u64,
}

/// How many times more guests working-set must admit.
const TIMES_MORE: u64 = 3;

impl Report {
    /// The first claim that does not hold.
    pub(super) fn broken(&self) -> Option<String> {
        let (few, many) = (&self.committed, &self.working_set);
        if many.admitted < few.admitted.saturating_mul(TIMES_MORE) || few.admitted == 0 {
            return Some(format!(
                "working-set admitted {} guests, committed {}",
                many.admitted, few.admitted
            ));
        }
        for fill in [few, many] {
            let most = fill.resident_mib_max.max(fill.charged_mib_max);
            if most > fill.budget_mib {
                return Some(format!(
                    "{}: {most} MiB used or charged of {}",
                    fill.regime, fill.budget_mib
                ));
            }
        }
        let burst = &self.burst;
        if burst.admitted != burst.room_for || burst.charged_mib > burst.budget_mib {
            return Some(format!(
                "a burst admitted {} where {} fit",
                burst.admitted, burst.room_for
            ));
        }
        if self.wait.refused_with != "no_capacity" {
            return Some(format!("a full host refused with {}", self.wait.refused_with));
        }
        (self.wait.admitted_after_millis < self.wait.freed_after_millis)
            .then(|| "a client got in before there was room".to_owned())
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new(&[
            "charged by",
            ">guests",
            ">configured mib",
            ">resident mib",
            ">charged mib",
            ">budget mib",
            ">refused",
        ]);
        for fill in [&self.committed, &self.working_set] {
            table.row(vec![
                fill.regime.clone(),
                fill.admitted.to_string(),
                fill.configured_mib.to_string(),
                fill.resident_mib_max.to_string(),
                fill.charged_mib_max.to_string(),
                fill.budget_mib.to_string(),
                fill.refused.to_string(),
            ]);
        }
        let (burst, wait) = (&self.burst, &self.wait);
        let retry = wait
            .retry_after_millis
            .map_or_else(String::new, |wait| format!(", try again in {wait} ms"));
        format!(
            "One host, one budget, guests of {} MiB that use little of it; stopped at {GUESTS_MAX} \
             guests (largest sums seen):\n\n\
             {}\n\
             {} creates at once, each with a reserve of {} MiB: the budget of {} MiB has room for \
             {}; {} admitted,\n{} refused, {} MiB charged.\n\n\
             On the full host a create is refused: {}{retry}. A client that waits got in {} ms \
             after it asked,\nonce a guest had been ended at {} ms.\n\n\
             {} s in all; nothing is left behind.\n",
            self.committed.guest_mib,
            table.text(),
            burst.creates,
            burst.reserve_mib,
            burst.budget_mib,
            burst.room_for,
            burst.admitted,
            burst.refused,
            burst.charged_mib,
            wait.refused_with,
            wait.admitted_after_millis,
            wait.freed_after_millis,
            self.seconds,
        )
    }
}
