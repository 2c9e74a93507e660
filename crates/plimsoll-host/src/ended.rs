//! The last totals of guests that are here no more, until the cell has taken them.
//!
//! Heartbeats list what is here. What a guest used between the last one that listed it and its end
//! is told by these: again and again until an answer accepts a report that held them, also after a
//! restart of the agent. The cell credits a total once, however often it comes.

use std::collections::BTreeMap;

use plimsoll_types::{ClaimId, EndedGuest};

use crate::effect::HostEffect;
use crate::guest::Guest;
use crate::host::Host;
use crate::journal::JournalEntry;

/// Most that are kept for a cell that does not answer, the newest: hours of churn at one end a
/// second. Beyond it the use of the oldest is nobody's.
const KEPT_MAX: usize = 10_000;
/// Most that one report carries: some 100 kB. The rest follows with the next ones.
pub(crate) const REPORTED_MAX: usize = 1_000;

/// What has been reported of ended guests, and what has not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    next: u64,
    /// Oldest first.
    waiting: BTreeMap<u64, EndedGuest>,
}

impl Ended {
    pub(crate) fn put(&mut self, guest: EndedGuest) {
        self.waiting.insert(self.next, guest);
        self.next += 1;
        while self.waiting.len() > KEPT_MAX {
            self.waiting.pop_first();
        }
    }

    /// The oldest ones, for a report.
    pub(crate) fn report(&self) -> Vec<EndedGuest> {
        self.waiting.values().take(REPORTED_MAX).copied().collect()
    }

    /// What stands for those of a report that is made now.
    pub(crate) fn mark(&self) -> u64 {
        self.waiting.keys().take(REPORTED_MAX).next_back().map_or(0, |number| number + 1)
    }

    /// The cell has taken everything before this mark. Whether something is left.
    pub(crate) fn taken(&mut self, mark: u64) -> bool {
        self.waiting = self.waiting.split_off(&mark);
        !self.waiting.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = EndedGuest> {
        self.waiting.values().copied()
    }
}

impl Host {
    /// A guest, or an attempt of one, is leaving the list for good.
    pub(crate) fn retire(&mut self, guest: &Guest, out: &mut Vec<HostEffect>) {
        self.keep_totals(
            EndedGuest {
                id: ClaimId::Sandbox(guest.spec.id),
                attempt: guest.spec.attempt,
                cpu_millis_total_used: guest.cpu_millis,
                egress_bytes_total: guest.egress_bytes,
            },
            out,
        );
    }

    pub(crate) fn keep_totals(&mut self, guest: EndedGuest, out: &mut Vec<HostEffect>) {
        if guest.cpu_millis_total_used == 0 && guest.egress_bytes_total.unwrap_or(0) == 0 {
            return;
        }
        self.ended.put(guest);
        self.beat.want();
        out.push(HostEffect::Journal(JournalEntry::Ended { guest }));
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_types::SandboxId;

    use super::*;

    fn guest(id: u128) -> EndedGuest {
        EndedGuest {
            id: ClaimId::Sandbox(SandboxId(id)),
            attempt: 1,
            cpu_millis_total_used: 1,
            egress_bytes_total: None,
        }
    }

    #[test]
    fn they_are_told_in_parts_and_kept_until_they_are_taken() {
        let mut ended = Ended::default();
        let all: Vec<EndedGuest> = (0..1_500).map(guest).collect();
        all.iter().for_each(|guest| ended.put(*guest));
        let (first, mark) = (ended.report(), ended.mark());
        assert_eq!(first, all[..REPORTED_MAX]);
        // One more ends while the report is under way: it is not taken with it.
        ended.put(guest(9_999));
        assert_eq!(ended.report(), first);
        assert!(ended.taken(mark));
        let rest = ended.report();
        assert_eq!(rest.len(), 501);
        assert_eq!(rest.last(), Some(&guest(9_999)));
        assert!(!ended.taken(ended.mark()));
        assert_eq!(ended.report(), []);
    }

    #[test]
    fn a_cell_that_never_answers_costs_a_bounded_amount() {
        let mut ended = Ended::default();
        (0..KEPT_MAX as u128 + 5).map(guest).for_each(|guest| ended.put(guest));
        assert_eq!(ended.iter().count(), KEPT_MAX);
        assert_eq!(ended.iter().next(), Some(guest(5)));
    }
}
