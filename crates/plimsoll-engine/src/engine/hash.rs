//! Maps of ids: how they spread them, and how they grow.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

/// Parts of one map. The one that grows moves what it holds, and the engine waits for it: a map of
/// a million ids in one piece would stand still for 70 ms.
const PARTS: usize = 64;

/// Ids in a row that lie side by side. Eight of them fill half of what a map looks at in one step,
/// so that rows of different times seldom crowd each other out.
const ROW_BITS: u32 = 3;
/// Bits of an id below its counter, drawn once per process: see the mint of the cell.
const DRAWN_BITS: u32 = 40;
/// An odd number without a pattern: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads 128-bit ids that the cell has made: no caller chooses them, so nothing has to be
/// guarded against but bad luck.
///
/// Ids of one process count up. Those that were made one after the other are mostly looked up and
/// dropped one after the other as well, so a few of them in a row share a place in the map, and
/// with it a line of the processor's cache, of which a map of a million ids misses most.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

/// Makes hashers of ids.
pub(crate) type IdHash = BuildHasherDefault<IdHasher>;

impl Hasher for IdHasher {
    fn write_u128(&mut self, id: u128) {
        let drawn = id as u64 & ((1 << DRAWN_BITS) - 1);
        let count = ((id >> DRAWN_BITS) as u64).wrapping_add(drawn);
        let mut row = (count >> ROW_BITS).wrapping_mul(GOLDEN);
        row ^= row >> 32;
        let in_row = count & ((1 << ROW_BITS) - 1);
        // A map takes the place from the low bits, and tells its neighbours apart by the highest.
        self.0 = (row << ROW_BITS) ^ in_row ^ (in_row << (64 - ROW_BITS));
    }

    fn write(&mut self, bytes: &[u8]) {
        // No key of these maps is made of bytes; a slow hash of them would still be right.
        for byte in bytes {
            self.0 = (self.0.rotate_left(8) ^ u64::from(*byte)).wrapping_mul(GOLDEN);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map from what [`IdHash`] spreads. It is only looked up in, never walked: its order must not
/// show.
#[derive(Debug)]
pub(crate) struct IdMap<K, V> {
    parts: Vec<HashMap<K, V, IdHash>>,
}

impl<K, V> Default for IdMap<K, V> {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| HashMap::default()).collect() }
    }
}

impl<K: Eq + Hash, V> IdMap<K, V> {
    /// Which part: by bits that say nothing about the place in it.
    fn part(key: &K) -> usize {
        (IdHash::default().hash_one(key) >> 40) as usize % PARTS
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.parts[Self::part(key)].get(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.parts[Self::part(&key)].insert(key, value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.parts[Self::part(key)].remove(key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The most ids that fall to one of `places` places of 16, and the mean.
    fn crowd(ids: impl Iterator<Item = u128>, places: u64) -> (u64, u64) {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for id in ids {
            *counts.entry((IdHash::default().hash_one(id) % (places * 16)) / 16).or_default() += 1;
        }
        let all: u64 = counts.values().sum();
        (counts.values().copied().max().unwrap_or(0), all / places)
    }

    #[test]
    fn ids_in_a_row_lie_side_by_side_and_rows_are_spread() {
        let minted = |count: u128| {
            (1_788_865_462_007_u128 << 80)
                | (7 << 76)
                | ((count >> 22) << 64)
                | (2 << 62)
                | ((count & 0x3f_ffff) << 40)
                | 0x12_3456_789a
        };
        for ids in [
            // Every id of one process, every other one, a survivor of many, and plain numbers.
            (0..100_000).map(minted).collect::<Vec<_>>(),
            (0..100_000).map(|n| minted(n * 2)).collect(),
            (0..100_000).map(|n| minted(n * 97)).collect(),
            (0..100_000).collect(),
        ] {
            let (most, mean) = crowd(ids.iter().copied(), 8192);
            assert!(most < 6 * mean, "{most} in one place, {mean} in the mean");
        }
    }

    #[test]
    fn a_map_holds_what_was_put_in_whatever_its_parts() {
        let mut map = IdMap::default();
        for id in 0_u128..10_000 {
            assert_eq!(map.insert(id << 40, id), None);
        }
        assert_eq!(map.insert(0, 7), Some(0));
        assert_eq!((map.get(&(9_999 << 40)), map.get(&1)), (Some(&9_999), None));
        assert_eq!((map.remove(&0), map.remove(&0)), (Some(7), None));
        let sizes = map.parts.iter().map(HashMap::len);
        assert!(sizes.clone().max() < Some(400) && sizes.sum::<usize>() == 9_999);
    }

    #[test]
    fn neighbours_are_told_apart_by_the_highest_bits() {
        let tags: std::collections::BTreeSet<u64> =
            (0_u128..8).map(|id| IdHash::default().hash_one(id) >> 57).collect();
        assert_eq!(tags.len(), 8);
    }
}
