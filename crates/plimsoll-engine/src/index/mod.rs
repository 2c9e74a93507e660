//! The placement index: which host takes a request, without looking at them all.
//!
//! A host's score does not depend on the request, so hosts can be kept sorted by it. The index is
//! a B+ tree in the order (score, ring position, host), whose inner entries also carry the largest
//! admittable below them. A pick walks from the best score to the first block that has a host with
//! enough, then into it, and passes over whatever has not: the cost is a few blocks whether the
//! fleet is empty, nearly full, or all of one score. A change of one host moves one entry.
//!
//! Nothing here knows what an admittable or a score is made of; that is the policy's.

mod homes;
mod node;
mod pick;
#[cfg(test)]
mod tests;
mod tree;

use std::cmp::Ordering;
use std::fmt;

use plimsoll_types::Placement;

use node::Key;
use pick::Pick;
use tree::Tree;

/// One host as the index holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The host's number, given by the caller.
    pub host: u32,
    /// What the host still accepts in MiB, all that the cell knows netted out; negative where it
    /// is over its budget.
    pub admittable: i64,
    /// How much the host is preferred: the highest first under [`Placement::Spread`], the lowest
    /// first under [`Placement::Pack`]. A caller whose scores have the placement in them already
    /// picks with `Spread`.
    pub score: i64,
    /// The host's fixed position on the ring that settles ties.
    pub ring: u64,
}

/// Whether `a` is preferred to `b` by a request that stands at `start` on the ring.
///
/// The order in which [`PlacementIndex::pick`] offers hosts, for the winners of several
/// partitions: the better score, then the first at or after `start` going round, then the lower
/// host number.
///
/// ```
/// use plimsoll_engine::index::{Slot, better};
/// use plimsoll_types::Placement;
///
/// let a = Slot { host: 1, admittable: 512, score: 7, ring: 10 };
/// let b = Slot { host: 2, admittable: 512, score: 7, ring: 20 };
/// assert!(better(&b, &a, 15, Placement::Spread));
/// assert!(better(&a, &b, 21, Placement::Spread));
/// ```
#[must_use]
pub fn better(a: &Slot, b: &Slot, start: u64, placement: Placement) -> bool {
    let by_score = match placement {
        Placement::Spread => b.score.cmp(&a.score),
        Placement::Pack => a.score.cmp(&b.score),
    };
    let ahead = |slot: &Slot| (slot.ring.wrapping_sub(start), slot.host);
    by_score.then_with(|| ahead(a).cmp(&ahead(b))) == Ordering::Less
}

/// The hosts of one partition, sorted for placement.
///
/// Host numbers are the caller's and may have gaps, but should be dense: each host costs some 50
/// bytes, each run of 512 numbers with a host in it 2 KiB, and each up to the largest 8 bytes.
///
/// ```
/// use plimsoll_engine::index::{PlacementIndex, Slot};
/// use plimsoll_types::Placement;
///
/// let mut index = PlacementIndex::new();
/// index.upsert(Slot { host: 0, admittable: 4096, score: 900, ring: 17 });
/// index.upsert(Slot { host: 1, admittable: 512, score: 1200, ring: 99 });
/// let picked = index.pick(1024, 0, Placement::Spread, |_| true);
/// assert_eq!(picked.map(|slot| slot.host), Some(0));
/// ```
#[derive(Clone)]
pub struct PlacementIndex {
    tree: Tree,
}

impl PlacementIndex {
    /// An index without hosts.
    #[must_use]
    pub fn new() -> Self {
        Self { tree: Tree::new() }
    }

    /// How many hosts it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it holds `host`.
    #[must_use]
    pub fn contains(&self, host: u32) -> bool {
        self.tree.place_of(host).is_some()
    }

    /// What it holds of `host`.
    #[must_use]
    pub fn get(&self, host: u32) -> Option<Slot> {
        self.tree.place_of(host).map(|place| self.tree.slot(place))
    }

    /// Puts a host, or replaces what was held of it.
    pub fn upsert(&mut self, slot: Slot) {
        let key = Key::new(slot.score, slot.ring, slot.host);
        match self.tree.place_of(slot.host) {
            Some(place) => self.tree.change(place, key, slot.admittable),
            None => self.tree.insert(key, slot.admittable),
        }
    }

    /// Takes a host out; `false` where it was not there.
    pub fn remove(&mut self, host: u32) -> bool {
        let place = self.tree.place_of(host);
        if let Some(place) = place {
            self.tree.remove(place);
        }
        place.is_some()
    }

    /// The best host that admits `need` MiB and that `accept` takes.
    ///
    /// Hosts with enough are offered to `accept` one by one, each once, in the order of
    /// [`better`], until it takes one: it is for what the index does not sort by, and each no costs
    /// one more step. `i64::MIN` needs nothing, so every host has enough.
    pub fn pick(
        &self,
        need: i64,
        start: u64,
        placement: Placement,
        accept: impl FnMut(u32) -> bool,
    ) -> Option<Slot> {
        Pick { tree: &self.tree, need, start, placement, accept }.run()
    }

    /// The largest admittable of all hosts; `None` without hosts.
    #[must_use]
    pub fn largest_admittable(&self) -> Option<i64> {
        self.tree.largest()
    }

    /// Every host by score, then ring position, then number, all ascending.
    pub fn iter(&self) -> impl Iterator<Item = Slot> {
        let mut next = self.tree.first_fit(i64::MIN);
        std::iter::from_fn(move || {
            let place = next?;
            next = self.tree.fit_after(place, i64::MIN);
            Some(self.tree.slot(place))
        })
    }
}

impl Default for PlacementIndex {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PlacementIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
