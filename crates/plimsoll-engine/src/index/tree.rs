//! The tree over the nodes: a B+ tree whose inner entries carry the largest admittable below them.
//!
//! What holds between calls: all leaves are at one depth; every node but the root has at least
//! [`LEAST`] entries; an inner entry's key is at or below every key of its child and above every
//! key of the child before; its largest admittable is exact; each host's home is its leaf.

use super::Slot;
use super::homes::Homes;
use super::node::{CAPACITY, Entry, JOINED, Key, LEAST, NOWHERE, Node};

/// One entry of one leaf. Holds until the next change of the tree.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) leaf: u32,
    pub(super) at: usize,
}

#[derive(Clone)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Numbers of nodes that hold nothing and may be used again.
    spare: Vec<u32>,
    root: u32,
    len: usize,
    homes: Homes,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            spare: Vec::new(),
            root: NOWHERE,
            len: 0,
            homes: Homes::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn key(&self, place: Place) -> Key {
        self.node(place.leaf).key(place.at)
    }

    /// The key before, in the same leaf.
    pub(super) fn key_before(&self, place: Place) -> Option<Key> {
        place.at.checked_sub(1).map(|at| self.node(place.leaf).key(at))
    }

    /// The key after, in the same leaf.
    pub(super) fn key_after(&self, place: Place) -> Option<Key> {
        let (leaf, at) = (self.node(place.leaf), place.at + 1);
        (at < leaf.len()).then(|| leaf.key(at))
    }

    pub(super) fn slot(&self, place: Place) -> Slot {
        let leaf = self.node(place.leaf);
        let key = leaf.key(place.at);
        let admittable = leaf.most(place.at);
        Slot { host: key.host(), admittable, score: key.score(), ring: key.ring() }
    }

    pub(super) fn largest(&self) -> Option<i64> {
        (self.len > 0).then(|| self.node(self.root).largest())
    }

    pub(super) fn place_of(&self, host: u32) -> Option<Place> {
        let leaf = self.homes.get(host)?;
        let at = self.node(leaf).position_of_host(host)?;
        Some(Place { leaf, at })
    }

    /// The first place in order with at least `need`.
    pub(super) fn first_fit(&self, need: i64) -> Option<Place> {
        let at = self.top()?.fit_from(0, need)?;
        self.first_fit_below(self.root, at, need)
    }

    /// The last place in order with at least `need`.
    pub(super) fn last_fit(&self, need: i64) -> Option<Place> {
        let root = self.top()?;
        let at = root.fit_before(root.len(), need)?;
        self.last_fit_below(self.root, at, need)
    }

    /// The place of the first key that is not below `key`. It may be one past the last entry of
    /// its leaf, which [`Self::fit_from`] and [`Self::fit_before`] take as well.
    pub(super) fn seek(&self, key: Key) -> Option<Place> {
        let mut node = self.top()?;
        let mut number = self.root;
        while !node.is_leaf() {
            number = node.child(node.child_for(key));
            node = self.node(number);
        }
        Some(Place { leaf: number, at: node.lower_bound(key) })
    }

    /// The first place at or after `place` with at least `need`.
    pub(super) fn fit_from(&self, place: Place, need: i64) -> Option<Place> {
        let (mut number, mut from) = (place.leaf, place.at);
        loop {
            let node = self.node(number);
            if let Some(at) = node.fit_from(from, need) {
                return self.first_fit_below(number, at, need);
            }
            from = self.position_in_parent(number)? + 1;
            number = node.parent();
        }
    }

    /// The first place after `place` with at least `need`.
    pub(super) fn fit_after(&self, place: Place, need: i64) -> Option<Place> {
        self.fit_from(Place { at: place.at + 1, ..place }, need)
    }

    /// The last place before `place` with at least `need`.
    pub(super) fn fit_before(&self, place: Place, need: i64) -> Option<Place> {
        let (mut number, mut end) = (place.leaf, place.at);
        loop {
            let node = self.node(number);
            if let Some(at) = node.fit_before(end, need) {
                return self.last_fit_below(number, at, need);
            }
            end = self.position_in_parent(number)?;
            number = node.parent();
        }
    }

    /// Puts a host that is not in the tree.
    pub(super) fn insert(&mut self, key: Key, admittable: i64) {
        if self.root == NOWHERE {
            self.root = self.allocate(true, NOWHERE);
        }
        if self.node(self.root).len() == CAPACITY {
            self.grow();
        }
        let mut number = self.root;
        while !self.node(number).is_leaf() {
            number = self.step_down(number, key, admittable);
        }
        let leaf = self.node_mut(number);
        let at = leaf.lower_bound(key);
        leaf.insert(at, Entry { key, most: admittable, child: NOWHERE });
        self.homes.set(key.host(), number);
        self.len += 1;
    }

    /// Takes out what stands at `place`.
    pub(super) fn remove(&mut self, place: Place) {
        let leaf = self.node_mut(place.leaf);
        let host = leaf.key(place.at).host();
        let held = leaf.most(place.at);
        leaf.remove(place.at);
        let left = leaf.len();
        self.homes.clear(host);
        self.len -= 1;
        self.settle(place.leaf, held, i64::MIN);
        if left < LEAST {
            self.refill(place.leaf);
        }
    }

    /// Gives the host at `place` another key and admittable.
    pub(super) fn change(&mut self, place: Place, key: Key, admittable: i64) {
        let leaf = self.node_mut(place.leaf);
        let held = leaf.most(place.at);
        let last = leaf.len() - 1;
        if key == leaf.key(place.at) {
            leaf.set_most(place.at, admittable);
        } else if leaf.key(0) < key && key < leaf.key(last) {
            leaf.relocate(place.at, key, admittable);
        } else if self.is_home_of(place.leaf, key) {
            self.node_mut(place.leaf).relocate(place.at, key, admittable);
        } else {
            self.remove(place);
            self.insert(key, admittable);
            return;
        }
        self.settle(place.leaf, held, admittable);
    }

    fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    fn node_mut(&mut self, number: u32) -> &mut Node {
        &mut self.nodes[number as usize]
    }

    fn top(&self) -> Option<&Node> {
        self.nodes.get(self.root as usize)
    }

    /// Whether a key belongs into this leaf by what the nodes above say of its range: between the
    /// key that they hold for it and the one of the leaf after it.
    fn is_home_of(&self, leaf: u32, key: Key) -> bool {
        let mut number = leaf;
        while let Some(at) = self.position_in_parent(number) {
            let parent = self.node(number).parent();
            let node = self.node(parent);
            if key < node.key(at) {
                return false;
            }
            if at + 1 < node.len() {
                return key < node.key(at + 1);
            }
            number = parent;
        }
        // The last leaf takes every key above its own.
        true
    }

    fn position_in_parent(&self, number: u32) -> Option<usize> {
        let parent = self.node(number).parent();
        if parent == NOWHERE { None } else { self.node(parent).position_of_child(number) }
    }

    fn first_fit_below(&self, mut number: u32, mut at: usize, need: i64) -> Option<Place> {
        let mut node = self.node(number);
        while !node.is_leaf() {
            number = node.child(at);
            node = self.node(number);
            at = node.fit_from(0, need)?;
        }
        Some(Place { leaf: number, at })
    }

    fn last_fit_below(&self, mut number: u32, mut at: usize, need: i64) -> Option<Place> {
        let mut node = self.node(number);
        while !node.is_leaf() {
            number = node.child(at);
            node = self.node(number);
            at = node.fit_before(node.len(), need)?;
        }
        Some(Place { leaf: number, at })
    }

    /// One step of an insert towards its leaf: splits the child ahead where it is full, so that
    /// there is always room for what a split below adds.
    fn step_down(&mut self, number: u32, key: Key, admittable: i64) -> u32 {
        let node = self.node(number);
        let mut at = node.child_for(key);
        if self.node(node.child(at)).len() == CAPACITY {
            self.split(number, at);
            at = self.node(number).child_for(key);
        }
        let node = self.node_mut(number);
        if key < node.key(at) {
            node.set_key(at, key);
        }
        if admittable > node.most(at) {
            node.set_most(at, admittable);
        }
        node.child(at)
    }

    /// Puts a new root above a full one.
    fn grow(&mut self) {
        let below = self.root;
        let root = self.allocate(false, NOWHERE);
        let full = self.node_mut(below);
        full.set_parent(root);
        let entry = Entry { key: full.key(0), most: full.largest(), child: below };
        self.node_mut(root).insert(0, entry);
        self.root = root;
        self.split(root, 0);
    }

    /// Halves the full child at `at` of `parent`, which has room.
    fn split(&mut self, parent: u32, at: usize) {
        let left = self.node(parent).child(at);
        let right = self.allocate(self.node(left).is_leaf(), parent);
        self.with_pair(left, right, |left, right| left.give_last(right, CAPACITY / 2));
        let upper = self.node(right);
        let entry = Entry { key: upper.key(0), most: upper.largest(), child: right };
        let lower = self.node(left).largest();
        let node = self.node_mut(parent);
        node.set_most(at, lower);
        node.insert(at + 1, entry);
        self.adopt(right, 0, CAPACITY / 2);
    }

    /// Carries a change of one admittable in `number` from `old` to `new` up to the root, as far
    /// as it shows. `i64::MIN` stands for a host that is gone.
    fn settle(&mut self, mut number: u32, old: i64, mut new: i64) {
        let falls = new < old;
        loop {
            let node = self.node(number);
            if falls {
                if node.fit_from(0, old).is_some() {
                    return;
                }
                new = node.largest();
            }
            let parent = node.parent();
            let Some(at) = self.position_in_parent(number) else { return };
            let node = self.node_mut(parent);
            if !falls && new <= node.most(at) {
                return;
            }
            node.set_most(at, new);
            number = parent;
        }
    }

    /// Brings a node that has too few entries back to [`LEAST`], by its neighbour, and on upwards
    /// where the two become one.
    fn refill(&mut self, mut number: u32) {
        while let Some(at) = self.position_in_parent(number) {
            if self.node(number).len() >= LEAST {
                return;
            }
            let parent = self.node(number).parent();
            let at = if at + 1 < self.node(parent).len() { at } else { at - 1 };
            if !self.join(parent, at) {
                return;
            }
            number = parent;
        }
        let root = self.node(self.root);
        if !root.is_leaf() && root.len() == 1 {
            let below = root.child(0);
            self.spare.push(self.root);
            self.node_mut(below).set_parent(NOWHERE);
            self.root = below;
        }
    }

    /// Joins the children at `at` and `at + 1` of `parent` where they fit into one, which is then
    /// `true`; else gives each the half of what they hold together.
    fn join(&mut self, parent: u32, at: usize) -> bool {
        let node = self.node(parent);
        let (left, right) = (node.child(at), node.child(at + 1));
        let (lower, upper) = (self.node(left).len(), self.node(right).len());
        let total = lower + upper;
        let joined = total <= JOINED;
        let half = total / 2;
        if joined {
            self.with_pair(left, right, |left, right| left.take_first(right, upper));
            self.adopt(left, lower, total);
        } else if lower < half {
            self.with_pair(left, right, |left, right| left.take_first(right, half - lower));
            self.adopt(left, lower, half);
        } else {
            self.with_pair(left, right, |left, right| left.give_last(right, lower - half));
            self.adopt(right, 0, lower - half);
        }
        let most = self.node(left).largest();
        self.node_mut(parent).set_most(at, most);
        if joined {
            self.node_mut(parent).remove(at + 1);
            self.spare.push(right);
        } else {
            let upper = self.node(right);
            let (key, most) = (upper.key(0), upper.largest());
            let node = self.node_mut(parent);
            node.set_key(at + 1, key);
            node.set_most(at + 1, most);
        }
        joined
    }

    /// Tells the entries from `from` to `to` of `number` that this is where they are now.
    fn adopt(&mut self, number: u32, from: usize, to: usize) {
        if self.node(number).is_leaf() {
            for &host in self.nodes[number as usize].hosts(from..to) {
                self.homes.set(host, number);
            }
        } else {
            for at in from..to {
                let child = self.node(number).child(at);
                self.node_mut(child).set_parent(number);
            }
        }
    }

    fn allocate(&mut self, leaf: bool, parent: u32) -> u32 {
        let node = Node::new(leaf, parent);
        if let Some(number) = self.spare.pop() {
            self.nodes[number as usize] = node;
            number
        } else {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        }
    }

    fn with_pair(&mut self, left: u32, right: u32, change: impl FnOnce(&mut Node, &mut Node)) {
        let [left, right] = self
            .nodes
            .get_disjoint_mut([left as usize, right as usize])
            .expect("two children of one parent are two nodes of the arena");
        change(left, right);
    }

    /// How many nodes hold something.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.nodes.len() - self.spare.len()
    }

    /// Checks what holds between calls, node by node.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut hosts = 0;
        let mut nodes = 0;
        let mut depths = std::collections::BTreeSet::new();
        let mut last = None;
        let mut rest = Vec::new();
        if self.root != NOWHERE {
            assert_eq!(self.node(self.root).parent(), NOWHERE);
            rest.push((self.root, 0));
        }
        while let Some((number, depth)) = rest.pop() {
            nodes += 1;
            let node = self.node(number);
            assert!(number == self.root || node.len() >= LEAST, "{} entries", node.len());
            assert!(node.len() <= CAPACITY);
            if node.is_leaf() {
                depths.insert(depth);
                for at in 0..node.len() {
                    let key = node.key(at);
                    assert!(last < Some(key), "out of order");
                    last = Some(key);
                    assert_eq!(self.homes.get(key.host()), Some(number));
                    hosts += 1;
                }
                continue;
            }
            assert!(node.len() > 1, "an inner node with one child");
            for at in (0..node.len()).rev() {
                let child = self.node(node.child(at));
                assert_eq!(child.parent(), number);
                assert!(node.key(at) <= child.key(0), "a key above its child's");
                assert_eq!(node.most(at), child.largest());
                if at > 0 {
                    let before = self.node(node.child(at - 1));
                    assert!(
                        before.key(before.len() - 1) < node.key(at),
                        "a key within the child before"
                    );
                }
                rest.push((node.child(at), depth + 1));
            }
        }
        assert_eq!(hosts, self.len);
        assert!(depths.len() <= 1, "leaves at depths {depths:?}");
        assert_eq!(nodes + self.spare.len(), self.nodes.len());
    }
}
