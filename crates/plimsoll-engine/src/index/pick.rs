//! One pick: scores from the best down, and round the ring within a score.

use plimsoll_types::Placement;

use super::Slot;
use super::node::Key;
use super::tree::{Place, Tree};

/// What one pick needs and whom it asks.
pub(super) struct Pick<'a, F> {
    pub(super) tree: &'a Tree,
    pub(super) need: i64,
    pub(super) start: u64,
    pub(super) placement: Placement,
    pub(super) accept: F,
}

impl<F: FnMut(u32) -> bool> Pick<'_, F> {
    /// Offers hosts, the best first, until one is accepted.
    pub(super) fn run(mut self) -> Option<Slot> {
        // The edge of a score is its fitting host that a walk from the best score meets first.
        let mut edge = match self.placement {
            Placement::Spread => self.tree.last_fit(self.need),
            Placement::Pack => self.tree.first_fit(self.need),
        };
        while let Some(place) = edge {
            let score = self.tree.key(place).score();
            let alone = self.is_alone(place, score);
            let accepted = if alone {
                self.offer(Some(place), score, |_| true)
            } else {
                self.offer_round(place, score)
            };
            if accepted.is_some() {
                return accepted;
            }
            edge = self.next_edge(place, score, alone);
        }
        None
    }

    /// Whether no other host of the edge's score can fit, as far as the edge's own leaf tells.
    fn is_alone(&self, edge: Place, score: i64) -> bool {
        let beside = match self.placement {
            Placement::Spread => self.tree.key_before(edge),
            Placement::Pack => self.tree.key_after(edge),
        };
        beside.is_some_and(|key| key.score() != score)
    }

    /// Offers the hosts of one score from the start round the ring.
    fn offer_round(&mut self, edge: Place, score: i64) -> Option<Slot> {
        let start = self.start;
        let reaches = self.tree.key(edge).ring() >= start;
        let ahead = match self.placement {
            // The edge is the last on the ring: where it falls short of the start, all do.
            Placement::Spread if !reaches => None,
            // The edge is the first on the ring: where it is past the start, all are.
            Placement::Pack if reaches => Some(edge),
            _ => self.seek(score, start),
        };
        self.offer(ahead, score, |_| true).or_else(|| {
            let first = match self.placement {
                Placement::Spread => self.seek(score, 0),
                Placement::Pack => Some(edge),
            };
            self.offer(first, score, |ring| ring < start)
        })
    }

    /// Offers the hosts of `score` from `next` up, while their ring position is `within`.
    fn offer(
        &mut self,
        mut next: Option<Place>,
        score: i64,
        within: impl Fn(u64) -> bool,
    ) -> Option<Slot> {
        while let Some(place) = next {
            let key = self.tree.key(place);
            if key.score() != score || !within(key.ring()) {
                return None;
            }
            if (self.accept)(key.host()) {
                return Some(self.tree.slot(place));
            }
            next = self.tree.fit_after(place, self.need);
        }
        None
    }

    /// The edge of the next score.
    fn next_edge(&self, edge: Place, score: i64, alone: bool) -> Option<Place> {
        match self.placement {
            Placement::Spread => {
                let first = if alone { edge } else { self.tree.seek(Key::new(score, 0, 0))? };
                self.tree.fit_before(first, self.need)
            }
            Placement::Pack if alone => self.tree.fit_after(edge, self.need),
            Placement::Pack => self.seek(score.checked_add(1)?, 0),
        }
    }

    /// The first fitting host at or after a score and ring position.
    fn seek(&self, score: i64, ring: u64) -> Option<Place> {
        let place = self.tree.seek(Key::new(score, ring, 0))?;
        self.tree.fit_from(place, self.need)
    }
}
