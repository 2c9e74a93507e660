//! The index against a plain scan that shares nothing with it.

use std::collections::BTreeMap;

use plimsoll_types::Placement;
use proptest::prelude::*;

use super::node::{CAPACITY, LEAST};
use super::{PlacementIndex, Slot, better};

/// The same table without an index: each answer by looking at every host.
#[derive(Default)]
struct Plain {
    slots: BTreeMap<u32, Slot>,
}

impl Plain {
    /// Every host with enough, in the order in which a pick has to offer them.
    fn offers(&self, need: i64, start: u64, placement: Placement) -> Vec<u32> {
        let mut fits: Vec<&Slot> = self.slots.values().filter(|s| s.admittable >= need).collect();
        fits.sort_by_key(|s| {
            let score = i128::from(s.score);
            let rank = if placement == Placement::Spread { -score } else { score };
            let wrapped = s.ring < start;
            (rank, wrapped, s.ring, s.host)
        });
        fits.iter().map(|s| s.host).collect()
    }
}

/// Both tables under one hand.
#[derive(Default)]
struct Pair {
    index: PlacementIndex,
    plain: Plain,
}

impl Pair {
    fn upsert(&mut self, slot: Slot) {
        self.index.upsert(slot);
        self.plain.slots.insert(slot.host, slot);
    }

    fn remove(&mut self, host: u32) {
        let held = self.plain.slots.remove(&host).is_some();
        assert_eq!(self.index.remove(host), held, "removing {host}");
    }

    /// Everything that the index offers, in turn.
    fn offered(&self, need: i64, start: u64, placement: Placement) -> Vec<u32> {
        let mut offered = Vec::new();
        let picked = self.index.pick(need, start, placement, |host| {
            offered.push(host);
            false
        });
        assert_eq!(picked, None, "a pick of a host that was not accepted");
        offered
    }

    fn compare_pick(&self, need: i64, start: u64, placement: Placement, accepts: u32) {
        let expected = self.plain.offers(need, start, placement);
        assert_eq!(self.offered(need, start, placement), expected);
        let accept = |host: u32| host.wrapping_mul(0x9e37_79b9).rotate_left(7) % 4 < accepts;
        let winner = expected.iter().find(|&&host| accept(host)).map(|host| self.plain.slots[host]);
        assert_eq!(self.index.pick(need, start, placement, accept), winner);
    }

    fn compare_whole(&self) {
        self.index.tree.check();
        let mut sorted: Vec<Slot> = self.plain.slots.values().copied().collect();
        sorted.sort_by_key(|s| (s.score, s.ring, s.host));
        assert_eq!(self.index.iter().collect::<Vec<_>>(), sorted);
        assert_eq!(self.index.len(), sorted.len());
        assert_eq!(self.index.is_empty(), sorted.is_empty());
        let largest = sorted.iter().map(|s| s.admittable).max();
        assert_eq!(self.index.largest_admittable(), largest);
        for slot in sorted {
            assert_eq!(self.index.get(slot.host), Some(slot));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Upsert(Slot),
    Remove(u32),
    Pick { need: i64, start: u64, placement: Placement, accepts: u32 },
}

/// Numbers that often meet, now and then at an end of the range.
fn signed(few: i64) -> impl Strategy<Value = i64> {
    prop_oneof![
        12 => -few..few,
        4 => any::<i64>(),
        1 => Just(i64::MIN),
        1 => Just(i64::MAX),
    ]
}

fn ring() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..40u64, 4 => any::<u64>(), 1 => Just(0), 1 => Just(u64::MAX)]
}

fn placement() -> impl Strategy<Value = Placement> {
    prop_oneof![Just(Placement::Spread), Just(Placement::Pack)]
}

/// Numbers with gaps, so that they fall on several pages.
fn host() -> impl Strategy<Value = u32> {
    (0..400u32).prop_map(|number| number * 7)
}

fn step() -> impl Strategy<Value = Step> {
    let slot = (host(), signed(2_000), signed(6), ring())
        .prop_map(|(host, admittable, score, ring)| Slot { host, admittable, score, ring });
    let pick = (signed(2_000), ring(), placement(), 0..5u32).prop_map(
        |(need, start, placement, accepts)| Step::Pick { need, start, placement, accepts },
    );
    prop_oneof![
        20 => slot.prop_map(Step::Upsert),
        8 => host().prop_map(Step::Remove),
        1 => pick,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn answers_as_a_plain_scan_does(steps in prop::collection::vec(step(), 1..1_500)) {
        let mut pair = Pair::default();
        for step in steps {
            match step {
                Step::Upsert(slot) => pair.upsert(slot),
                Step::Remove(host) => pair.remove(host),
                Step::Pick { need, start, placement, accepts } => {
                    pair.compare_pick(need, start, placement, accepts);
                }
            }
        }
        pair.compare_whole();
    }

    #[test]
    fn hosts_are_offered_in_the_order_of_better(
        slots in prop::collection::vec((signed(3), ring()), 2..60),
        start in ring(),
        placement in placement(),
    ) {
        let mut pair = Pair::default();
        for (host, (score, ring)) in slots.into_iter().enumerate() {
            pair.upsert(Slot { host: host as u32, admittable: 0, score, ring });
        }
        let offered = pair.offered(i64::MIN, start, placement);
        prop_assert_eq!(offered.len(), pair.index.len());
        for (at, a) in offered.iter().enumerate() {
            for (after, b) in offered.iter().enumerate() {
                let (a, b) = (&pair.plain.slots[a], &pair.plain.slots[b]);
                prop_assert_eq!(better(a, b, start, placement), at < after);
            }
        }
    }
}

/// A fixed sequence of well-mixed numbers.
struct Mixed(u64);

impl Mixed {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) % bound
    }
}

fn slot(host: u32, admittable: i64, score: i64) -> Slot {
    Slot { host, admittable, score, ring: u64::from(host).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

#[test]
fn an_empty_index_has_no_answer() {
    let mut pair = Pair::default();
    assert!(pair.index.is_empty());
    assert!(!pair.index.contains(0));
    assert_eq!(pair.index.get(u32::MAX), None);
    assert!(!pair.index.remove(0));
    assert_eq!(pair.index.largest_admittable(), None);
    assert_eq!(pair.index.pick(i64::MIN, 0, Placement::Spread, |_| true), None);
    assert_eq!(pair.index.pick(i64::MIN, 0, Placement::Pack, |_| true), None);
    assert_eq!(pair.index.iter().next(), None);

    pair.upsert(slot(3, -5, 0));
    pair.remove(3);
    pair.compare_whole();
    assert_eq!(pair.index.pick(i64::MIN, 0, Placement::Spread, |_| true), None);
}

#[test]
fn ends_of_every_range_are_hosts_like_others() {
    let mut pair = Pair::default();
    let ends = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
    let mut host = 0;
    for score in ends {
        for admittable in ends {
            for ring in [0, 1, u64::MAX - 1, u64::MAX] {
                pair.upsert(Slot { host, admittable, score, ring });
                host += 1;
            }
        }
    }
    pair.compare_whole();
    for need in ends {
        for start in [0, 1, u64::MAX] {
            pair.compare_pick(need, start, Placement::Spread, 1);
            pair.compare_pick(need, start, Placement::Pack, 1);
        }
    }
}

#[test]
fn host_numbers_may_be_as_far_apart_as_they_like() {
    let mut pair = Pair::default();
    for host in [0, 511, 512, 100_000, 5_000_000] {
        pair.upsert(slot(host, i64::from(host), 1));
    }
    assert!(!pair.index.contains(513));
    assert!(!pair.index.contains(u32::MAX));
    pair.compare_whole();
    pair.compare_pick(600, 0, Placement::Spread, 4);
    pair.remove(5_000_000);
    pair.compare_whole();
}

#[test]
fn a_tie_goes_to_the_next_host_on_the_ring() {
    let mut index = PlacementIndex::new();
    for (host, ring) in [(0, 100), (1, 200), (2, 300)] {
        index.upsert(Slot { host, admittable: 1_000, score: 5, ring });
    }
    index.upsert(Slot { host: 3, admittable: 10, score: 5, ring: 250 });
    let picked =
        |start, placement| index.pick(500, start, placement, |_| true).map(|slot| slot.host);
    for placement in [Placement::Spread, Placement::Pack] {
        assert_eq!(picked(0, placement), Some(0));
        assert_eq!(picked(100, placement), Some(0));
        assert_eq!(picked(101, placement), Some(1));
        assert_eq!(picked(201, placement), Some(2));
        assert_eq!(picked(301, placement), Some(0));
        assert_eq!(picked(u64::MAX, placement), Some(0));
    }
}

#[test]
fn a_burst_over_equal_hosts_is_spread_over_all_of_them() {
    let mut index = PlacementIndex::new();
    for host in 0..1_000 {
        index.upsert(slot(host, 8_192, 4_800));
    }
    let mut mixed = Mixed(1);
    for round in 0..1_000 {
        let start = mixed.below(u64::MAX);
        let picked = index.pick(512, start, Placement::Spread, |_| true).expect("there is room");
        assert_eq!(picked.score, 4_800, "round {round}");
        index.upsert(Slot { admittable: picked.admittable - 512, score: 4_650, ..picked });
    }
    assert!(index.iter().all(|slot| slot.score == 4_650));
}

#[test]
fn pack_fills_one_host_before_the_next() {
    let mut index = PlacementIndex::new();
    for host in 0..100 {
        index.upsert(slot(host, 2_048, 600));
    }
    let mut hosts = Vec::new();
    for _ in 0..12 {
        let picked = index.pick(512, 0, Placement::Pack, |_| true).expect("there is room");
        hosts.push(picked.host);
        let (admittable, score) = (picked.admittable - 512, picked.score - 150);
        index.upsert(Slot { admittable, score, ..picked });
    }
    hosts.dedup();
    assert_eq!(hosts.len(), 3);
}

#[test]
fn a_block_splits_when_it_is_full_and_not_before() {
    let mut pair = Pair::default();
    for host in 0..CAPACITY as u32 {
        pair.upsert(slot(host, 0, i64::from(host)));
    }
    assert_eq!(pair.index.tree.used(), 1);
    pair.upsert(slot(CAPACITY as u32, 7, -1));
    assert_eq!(pair.index.tree.used(), 3, "two leaves and a root");
    pair.compare_whole();
    pair.compare_pick(7, 0, Placement::Spread, 4);
}

#[test]
fn blocks_join_when_they_are_thin() {
    let mut pair = Pair::default();
    for host in 0..=CAPACITY as u32 {
        pair.upsert(slot(host, i64::from(host), i64::from(host)));
    }
    // Down to one entry below the least of the lower leaf, which is the first time they join.
    for host in 0..(CAPACITY / 2 - LEAST) as u32 {
        pair.remove(host);
        pair.compare_whole();
        assert_eq!(pair.index.tree.used(), 3);
    }
    pair.remove(LEAST as u32);
    pair.compare_whole();
    assert_eq!(pair.index.tree.used(), 1);
}

#[test]
fn a_thin_block_beside_a_full_one_takes_of_it() {
    let half = CAPACITY as i64 / 2;
    for thin_is_lower in [true, false] {
        let mut pair = Pair::default();
        for at in 0..=2 * half {
            pair.upsert(slot(at as u32, at, at * 1_000));
        }
        let (full_end, inwards) = if thin_is_lower { (2 * half, -1) } else { (0, 1) };
        for at in 1..half - 1 {
            pair.upsert(slot(1_000 + at as u32, at, full_end * 1_000 + at * inwards));
        }
        // Far enough to be thin, at first with too many in the other to become one with it.
        for at in 0..half {
            pair.remove((2 * half - full_end + at * -inwards) as u32);
            pair.compare_whole();
            assert_eq!(pair.index.tree.used(), 3);
        }
    }
}

#[test]
fn sorted_inserts_and_removes_from_either_end_keep_the_tree() {
    let count = 20_000u32;
    for (up, from_front) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut index = PlacementIndex::new();
        for at in 0..count {
            let score = if up { i64::from(at) } else { -i64::from(at) };
            index.upsert(slot(at, i64::from(at % 97), score));
        }
        index.tree.check();
        for at in 0..count {
            let host = if from_front { at } else { count - 1 - at };
            assert!(index.remove(host));
            if at % 1_777 == 0 {
                index.tree.check();
            }
        }
        index.tree.check();
        assert!(index.is_empty());
    }
}

#[test]
fn a_long_life_of_a_large_fleet_answers_as_a_plain_scan_does() {
    let mut mixed = Mixed(42);
    let mut pair = Pair::default();
    for round in 0..120_000u64 {
        // The fleet grows, stays, and shrinks.
        let removes = match round / 40_000 {
            0 => 1,
            1 => 3,
            _ => 6,
        };
        let host = mixed.below(12_000) as u32;
        if mixed.below(10) < removes {
            pair.remove(host);
        } else {
            let admittable = mixed.below(9_000) as i64 - 8_000;
            pair.upsert(slot(host, admittable, mixed.below(2_000) as i64));
        }
        if round % 6_000 == 0 {
            let need = mixed.below(1_200) as i64;
            pair.compare_pick(need, mixed.below(u64::MAX), Placement::Spread, 1);
            pair.compare_pick(need, mixed.below(u64::MAX), Placement::Pack, 1);
            pair.compare_whole();
        }
    }
    pair.compare_whole();
}

#[test]
fn four_levels_of_blocks_are_as_good_as_one() {
    let mut index = PlacementIndex::new();
    let count = 3 * (CAPACITY as u32 / 2).pow(3);
    for at in 0..count {
        index.upsert(slot(at, if at == 7 || at == count - 9 { 512 } else { 0 }, i64::from(at)));
    }
    index.tree.check();
    let host = |need, placement| index.pick(need, 0, placement, |_| true).map(|slot| slot.host);
    assert_eq!(host(0, Placement::Spread), Some(count - 1));
    assert_eq!(host(512, Placement::Spread), Some(count - 9));
    assert_eq!(host(512, Placement::Pack), Some(7));
    assert_eq!(host(513, Placement::Pack), None);
}

#[test]
fn a_host_costs_few_bytes_in_a_fleet_that_moves() {
    let mut mixed = Mixed(7);
    let mut index = PlacementIndex::new();
    let hosts = 10_000u64;
    for host in 0..hosts {
        index.upsert(slot(host as u32, 0, mixed.below(100_000) as i64));
    }
    for _ in 0..10 * hosts {
        index.upsert(slot(mixed.below(hosts) as u32, 0, mixed.below(100_000) as i64));
    }
    let bytes = index.tree.used() * size_of::<super::node::Node>();
    assert!(bytes as u64 / hosts < 64, "{} bytes a host", bytes as u64 / hosts);
}
