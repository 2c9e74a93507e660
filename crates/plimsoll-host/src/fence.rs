//! The order of commands: what is older than what was acted on is not acted on (DESIGN 7).

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_types::{Fence, SandboxId};

/// Most command numbers above the floor that are told apart. Reports raise the floor every few
/// seconds, so this is hundreds of commands a second; beyond it the lowest close early.
const SEEN_MAX: usize = 4096;

/// Which commands may still be acted on.
///
/// A command of an older epoch never is. Within an epoch, numbers at or below the *floor* are
/// closed: a report has stated that it accounts for them, so the cell may have taken a guest's
/// absence from it as final. Above the floor, each number is taken once, in whatever order the
/// network brings them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fences {
    highest: Fence,
    floor: u64,
    seen: BTreeSet<u64>,
}

impl Fences {
    /// After a restart: everything up to the highest that was persisted is closed.
    pub(crate) fn restore(&mut self, fence: Fence) {
        self.highest.epoch = self.highest.epoch.max(fence.epoch);
        self.highest.number = self.highest.number.max(fence.number);
        self.floor = self.highest.number;
        self.seen.clear();
    }

    pub(crate) fn highest(&self) -> Fence {
        self.highest
    }

    pub(crate) fn is_fresh(&self, fence: Fence) -> bool {
        fence.epoch >= self.highest.epoch
            && fence.number > self.floor
            && !self.seen.contains(&fence.number)
    }

    /// Takes a command that [`Fences::is_fresh`]; it is not taken again.
    pub(crate) fn take(&mut self, fence: Fence) {
        if fence.epoch > self.highest.epoch {
            // What an older leader still has under way is closed by its epoch.
            self.floor = self.highest.number;
            self.seen.clear();
        }
        self.highest.epoch = self.highest.epoch.max(fence.epoch);
        self.highest.number = self.highest.number.max(fence.number);
        self.seen.insert(fence.number);
        while self.seen.len() > SEEN_MAX {
            self.floor = self.seen.pop_first().unwrap_or(self.floor).max(self.floor);
        }
    }

    /// A report states that it accounts for everything up to here: lower numbers close.
    pub(crate) fn publish(&mut self) -> u64 {
        self.floor = self.highest.number;
        self.seen.clear();
        self.floor
    }
}

/// An ended guest, remembered so that nothing late brings it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tombstone {
    /// Every attempt up to this one has ended.
    pub(crate) attempt: u32,
    /// The last command about it.
    pub(crate) fence: Fence,
    /// Whether its start failed (otherwise it was ended).
    pub(crate) failed: bool,
}

/// The most recent tombstones, up to a bound.
#[derive(Clone, Debug)]
pub(crate) struct Tombstones {
    max: usize,
    next: u64,
    by_guest: BTreeMap<SandboxId, (u64, Tombstone)>,
    by_age: BTreeMap<u64, SandboxId>,
}

impl Tombstones {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, next: 0, by_guest: BTreeMap::new(), by_age: BTreeMap::new() }
    }

    pub(crate) fn get(&self, id: SandboxId) -> Option<&Tombstone> {
        self.by_guest.get(&id).map(|(_, tombstone)| tombstone)
    }

    pub(crate) fn put(&mut self, id: SandboxId, tombstone: Tombstone) {
        let age = self.next;
        self.next += 1;
        let attempt =
            self.get(id).map_or(tombstone.attempt, |known| known.attempt.max(tombstone.attempt));
        if let Some((old, _)) = self.by_guest.insert(id, (age, Tombstone { attempt, ..tombstone }))
        {
            self.by_age.remove(&old);
        }
        self.by_age.insert(age, id);
        while self.by_age.len() > self.max {
            if let Some((_, oldest)) = self.by_age.pop_first() {
                self.by_guest.remove(&oldest);
            }
        }
    }

    /// Oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SandboxId, &Tombstone)> {
        self.by_age.values().filter_map(|id| self.get(*id).map(|tombstone| (*id, tombstone)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(epoch: u64, number: u64) -> Fence {
        Fence { epoch, number }
    }

    #[test]
    fn numbers_may_overtake_each_other_until_a_report_closes_them() {
        let mut fences = Fences::default();
        fences.take(fence(1, 6));
        assert!(fences.is_fresh(fence(1, 5)));
        assert!(!fences.is_fresh(fence(1, 6)), "each number is taken once");
        assert_eq!(fences.publish(), 6);
        assert!(!fences.is_fresh(fence(1, 5)), "the report has accounted for it");
        assert!(fences.is_fresh(fence(1, 7)));
    }

    #[test]
    fn a_new_epoch_closes_the_old_one() {
        let mut fences = Fences::default();
        fences.take(fence(1, 6));
        fences.take(fence(2, 8));
        assert!(!fences.is_fresh(fence(1, 9)));
        assert!(!fences.is_fresh(fence(2, 6)));
        assert!(fences.is_fresh(fence(2, 7)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut fences = Fences::default();
        for number in 1..=(SEEN_MAX as u64 + 10) {
            fences.take(fence(1, number * 2));
        }
        assert_eq!(fences.seen.len(), SEEN_MAX);
        assert!(!fences.is_fresh(fence(1, 1)), "closed early, never reopened");

        let mut tombstones = Tombstones::new(3);
        for id in 0..5 {
            tombstones.put(
                SandboxId(id),
                Tombstone { attempt: 1, fence: Fence::default(), failed: false },
            );
        }
        let kept: Vec<_> = tombstones.iter().map(|(id, _)| id.0).collect();
        assert_eq!(kept, [2, 3, 4]);
    }

    #[test]
    fn a_tombstone_never_covers_less_than_before() {
        let mut tombstones = Tombstones::new(3);
        let stone = |attempt| Tombstone { attempt, fence: Fence::default(), failed: false };
        tombstones.put(SandboxId(1), stone(4));
        tombstones.put(SandboxId(1), stone(2));
        assert_eq!(tombstones.get(SandboxId(1)).map(|stone| stone.attempt), Some(4));
        assert_eq!(tombstones.iter().count(), 1);
    }
}
