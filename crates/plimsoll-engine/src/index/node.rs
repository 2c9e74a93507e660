//! One node of the tree: columns of keys, of largest admittables, and of what they belong to.

use std::ops::Range;

/// Entries in a full node. Of 32, 64 and 128, 64 took the least time in most rows of the `verdict`
/// benchmark; a larger node costs more to search and shift than the level that it saves.
pub(super) const CAPACITY: usize = 64;

/// The strides of [`Node::lower_bound`]: each a quarter of the one before, down to one entry.
const STRIDES: [usize; 3] = [16, 4, 1];
const _: () = assert!(STRIDES[0] * 4 == CAPACITY, "the strides cover a node");

/// Every node but the root keeps this many entries. A quarter leaves a split node (half full)
/// far enough from its next merge that hosts moving to and fro do not split and merge in turn.
pub(super) const LEAST: usize = CAPACITY / 4;

/// Two neighbours are joined when they hold no more than this together, else evened out. Three
/// quarters leave room before the joined node splits again.
pub(super) const JOINED: usize = CAPACITY / 4 * 3;

/// Running maxima that [`Node::largest`] keeps apart, so that none waits for another.
const LANES: usize = 8;

/// Fills the orders past the last entry. None is below it, so that a search may read them.
const PAST: u128 = u128::MAX;

/// Stands for no node. There can be no such number: nodes are fewer than hosts, and those are
/// numbered in 32 bits.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Where a host stands in the order: by score, then ring position, then host number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Score above ring position in one number, so that one comparison settles both.
    order: u128,
    host: u32,
}

impl Key {
    /// Flips the sign bit, so that signed scores order as unsigned numbers.
    const SIGN: u64 = 1 << 63;

    pub(super) fn new(score: i64, ring: u64, host: u32) -> Self {
        let score = score.cast_unsigned() ^ Self::SIGN;
        Self { order: (u128::from(score) << 64) | u128::from(ring), host }
    }

    pub(super) fn score(self) -> i64 {
        (((self.order >> 64) as u64) ^ Self::SIGN).cast_signed()
    }

    pub(super) fn ring(self) -> u64 {
        self.order as u64
    }

    pub(super) fn host(self) -> u32 {
        self.host
    }
}

/// One entry: of a leaf a host, of an inner node a child.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The host's key; of a child, a key at or below all of its keys and above all of those in
    /// the child before it.
    pub(super) key: Key,
    /// The host's admittable; of a child, the largest in it.
    pub(super) most: i64,
    /// The child's number; [`NOWHERE`] in a leaf.
    pub(super) child: u32,
}

/// A leaf or an inner node. Columns, not rows: a search reads the keys alone, a fit reads the
/// admittables alone, both at full cache lines.
#[derive(Clone)]
pub(super) struct Node {
    len: usize,
    parent: u32,
    leaf: bool,
    most: [i64; CAPACITY],
    hosts: [u32; CAPACITY],
    children: [u32; CAPACITY],
    orders: [u128; CAPACITY],
}

impl Node {
    pub(super) fn new(leaf: bool, parent: u32) -> Self {
        Self {
            len: 0,
            parent,
            leaf,
            most: [0; CAPACITY],
            hosts: [0; CAPACITY],
            children: [NOWHERE; CAPACITY],
            orders: [PAST; CAPACITY],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.leaf
    }

    pub(super) fn parent(&self) -> u32 {
        self.parent
    }

    pub(super) fn set_parent(&mut self, parent: u32) {
        self.parent = parent;
    }

    pub(super) fn key(&self, at: usize) -> Key {
        Key { order: self.orders[at], host: self.hosts[at] }
    }

    pub(super) fn set_key(&mut self, at: usize, key: Key) {
        self.orders[at] = key.order;
        self.hosts[at] = key.host;
    }

    pub(super) fn most(&self, at: usize) -> i64 {
        self.most[at]
    }

    pub(super) fn set_most(&mut self, at: usize, most: i64) {
        self.most[at] = most;
    }

    pub(super) fn child(&self, at: usize) -> u32 {
        self.children[at]
    }

    /// The hosts in `range`.
    pub(super) fn hosts(&self, range: Range<usize>) -> &[u32] {
        &self.hosts[range]
    }

    /// Where `host` stands in this leaf.
    pub(super) fn position_of_host(&self, host: u32) -> Option<usize> {
        self.hosts[..self.len].iter().position(|&held| held == host)
    }

    /// Where `child` stands in this inner node.
    pub(super) fn position_of_child(&self, child: u32) -> Option<usize> {
        self.children[..self.len].iter().position(|&held| held == child)
    }

    /// The largest admittable in the node, `i64::MIN` where it is empty.
    pub(super) fn largest(&self) -> i64 {
        let (groups, rest) = self.most[..self.len].as_chunks::<LANES>();
        let mut lanes = [i64::MIN; LANES];
        for group in groups {
            for (lane, &most) in lanes.iter_mut().zip(group) {
                *lane = most.max(*lane);
            }
        }
        rest.iter().chain(&lanes).copied().fold(i64::MIN, i64::max)
    }

    /// How many keys are below `key`: its own place, or where it would be put.
    pub(super) fn lower_bound(&self, key: Key) -> usize {
        // Quarters of quarters: three rounds of three comparisons that do not wait for each other,
        // where halving would be six that do.
        let mut at = 0;
        for stride in STRIDES {
            let below =
                |strides: usize| usize::from(self.orders[at + strides * stride - 1] < key.order);
            at += stride * (below(3) + below(2) + below(1));
        }
        // Still open in the last quarter alone: whether its last entry is below as well.
        at += usize::from(self.orders[at] < key.order);
        // Equal orders need two hosts at one ring position: next to never, and yet exact.
        while at < self.len && self.orders[at] == key.order && self.hosts[at] < key.host {
            at += 1;
        }
        at
    }

    /// The child whose range holds `key`; the first one where `key` is below them all.
    pub(super) fn child_for(&self, key: Key) -> usize {
        let at = self.lower_bound(key);
        if at < self.len && self.key(at) == key { at } else { at.saturating_sub(1) }
    }

    /// The first entry at or after `from` that has at least `need`.
    pub(super) fn fit_from(&self, from: usize, need: i64) -> Option<usize> {
        self.most[from..self.len].iter().position(|&most| most >= need).map(|at| from + at)
    }

    /// The last entry before `end` that has at least `need`.
    pub(super) fn fit_before(&self, end: usize, need: i64) -> Option<usize> {
        self.most[..end].iter().rposition(|&most| most >= need)
    }

    pub(super) fn insert(&mut self, at: usize, entry: Entry) {
        let end = self.len;
        self.orders.copy_within(at..end, at + 1);
        self.hosts.copy_within(at..end, at + 1);
        self.most.copy_within(at..end, at + 1);
        if !self.leaf {
            self.children.copy_within(at..end, at + 1);
            self.children[at] = entry.child;
        }
        self.set_key(at, entry.key);
        self.most[at] = entry.most;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, at: usize) {
        let end = self.len;
        self.orders.copy_within(at + 1..end, at);
        self.hosts.copy_within(at + 1..end, at);
        self.most.copy_within(at + 1..end, at);
        if !self.leaf {
            self.children.copy_within(at + 1..end, at);
        }
        self.orders[end - 1] = PAST;
        self.len -= 1;
    }

    /// Moves the entry at `from` of this leaf to where `key` belongs in it.
    pub(super) fn relocate(&mut self, from: usize, key: Key, most: i64) {
        let to = self.lower_bound(key);
        let at = if to > from {
            self.orders.copy_within(from + 1..to, from);
            self.hosts.copy_within(from + 1..to, from);
            self.most.copy_within(from + 1..to, from);
            to - 1
        } else {
            self.orders.copy_within(to..from, to + 1);
            self.hosts.copy_within(to..from, to + 1);
            self.most.copy_within(to..from, to + 1);
            to
        };
        self.set_key(at, key);
        self.most[at] = most;
    }

    /// Moves the last `count` entries of this node to the front of `right`.
    pub(super) fn give_last(&mut self, right: &mut Self, count: usize) {
        let held = right.len;
        let from = self.len - count;
        right.orders.copy_within(0..held, count);
        right.hosts.copy_within(0..held, count);
        right.most.copy_within(0..held, count);
        right.children.copy_within(0..held, count);
        right.copy_from(0, self, from..self.len);
        self.orders[from..self.len].fill(PAST);
        right.len += count;
        self.len = from;
    }

    /// Moves the first `count` entries of `right` to the end of this node.
    pub(super) fn take_first(&mut self, right: &mut Self, count: usize) {
        let held = right.len;
        self.copy_from(self.len, right, 0..count);
        self.len += count;
        right.orders.copy_within(count..held, 0);
        right.hosts.copy_within(count..held, 0);
        right.most.copy_within(count..held, 0);
        right.children.copy_within(count..held, 0);
        right.orders[held - count..held].fill(PAST);
        right.len = held - count;
    }

    fn copy_from(&mut self, at: usize, other: &Self, range: Range<usize>) {
        let into = at..at + range.len();
        self.orders[into.clone()].copy_from_slice(&other.orders[range.clone()]);
        self.hosts[into.clone()].copy_from_slice(&other.hosts[range.clone()]);
        self.most[into.clone()].copy_from_slice(&other.most[range.clone()]);
        self.children[into].copy_from_slice(&other.children[range]);
    }
}
