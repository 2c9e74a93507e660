//! Tenants by name.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::ops::Bound::{Excluded, Unbounded};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use plimsoll_types::TenantId;

use super::slab::Slab;
use super::state::{Ix, Tenant};

/// Parts of the table. The one that grows reads the names of all that it holds, and the engine waits
/// for it: with a million tenants that is some ten thousand names.
const PARTS: usize = 64;

/// The numbers of tenants by their names: one table to find one, and one order to list them.
///
/// The table holds numbers alone, five bytes a tenant, so that with many tenants it still lies in a
/// near cache. The name itself is compared in the tenant's record, beside what a decision reads next.
#[derive(Debug)]
pub(crate) struct TenantNames {
    parts: Vec<HashTable<Ix>>,
    ordered: BTreeMap<TenantId, Ix>,
}

impl Default for TenantNames {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| HashTable::new()).collect(), ordered: BTreeMap::new() }
    }
}

/// A hash, and the part that it falls to: by bits that say nothing about the place in it.
fn place(name: &TenantId) -> (u64, usize) {
    let hash = FixedState::with_seed(0).hash_one(name.as_str());
    (hash, (hash >> 40) as usize % PARTS)
}

impl TenantNames {
    /// The tenant of this name.
    pub(crate) fn get(&self, tenants: &Slab<Tenant>, name: &TenantId) -> Option<Ix> {
        let (hash, part) = place(name);
        self.parts[part].find(hash, |ix| tenants[*ix].id == *name).copied()
    }

    /// Which tenant is likely to have this name, by the table alone.
    pub(crate) fn guess(&self, name: &TenantId) -> Option<Ix> {
        let (hash, part) = place(name);
        self.parts[part].iter_hash(hash).next().copied()
    }

    /// Names a tenant that has been put in. The name must be free.
    pub(crate) fn insert(&mut self, tenants: &Slab<Tenant>, ix: Ix) {
        let name = &tenants[ix].id;
        let (hash, part) = place(name);
        self.parts[part].insert_unique(hash, ix, |ix| place(&tenants[*ix].id).0);
        self.ordered.insert(name.clone(), ix);
    }

    /// Forgets a name.
    pub(crate) fn remove(&mut self, name: &TenantId) {
        let Some(ix) = self.ordered.remove(name) else { return };
        let (hash, part) = place(name);
        if let Ok(entry) = self.parts[part].find_entry(hash, |known| *known == ix) {
            entry.remove();
        }
    }

    /// Those whose names come after this one, in the order of their names.
    pub(crate) fn after(&self, name: Option<&TenantId>) -> impl Iterator<Item = Ix> {
        let from = name.map_or(Unbounded, Excluded);
        self.ordered.range::<TenantId, _>((from, Unbounded)).map(|(_, ix)| *ix)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use plimsoll_policy::period::{AnchorDay, Anchors};
    use plimsoll_types::{PlanId, Timestamp};

    use super::*;
    use crate::rows::{PlanLimits, TenantRow};

    fn tenant(number: u32) -> Tenant {
        let plan = PlanId::new("plan").expect("a valid name");
        let row = TenantRow::new(name(number), plan, Timestamp(0));
        let anchors = Anchors::new(AnchorDay::CALENDAR);
        Tenant::new(Timestamp(0), row, anchors, Arc::new(PlanLimits::default()))
    }

    fn name(number: u32) -> TenantId {
        TenantId::new(&format!("tenant-{number:05}")).expect("a valid name")
    }

    #[test]
    fn names_find_their_tenants_while_tables_grow_and_shrink() {
        let (mut tenants, mut names) = (Slab::default(), TenantNames::default());
        for number in 0..10_000 {
            let ix = tenants.insert(tenant(number));
            names.insert(&tenants, ix);
        }
        for number in 0..10_000 {
            assert_eq!(names.get(&tenants, &name(number)), Some(number));
        }
        assert_eq!(names.get(&tenants, &name(10_000)), None);
        let right = (0..10_000).filter(|number| names.guess(&name(*number)) == Some(*number));
        assert!(right.count() > 9_000, "a guess is a name's hash away from the truth");
        names.remove(&name(10_000));
        for number in (0..10_000).step_by(2) {
            names.remove(&name(number));
        }
        assert_eq!(names.get(&tenants, &name(4)), None);
        assert_eq!(names.get(&tenants, &name(5)), Some(5));
        assert_eq!(names.parts.iter().map(HashTable::len).sum::<usize>(), 5_000);
    }

    #[test]
    fn a_name_may_go_to_another_tenant_while_the_first_is_there() {
        let (mut tenants, mut names) = (Slab::default(), TenantNames::default());
        for _ in 0..2 {
            names.remove(&name(7));
            let ix = tenants.insert(tenant(7));
            names.insert(&tenants, ix);
            assert_eq!(names.get(&tenants, &name(7)), Some(ix));
        }
        assert_eq!(names.after(None).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_list_goes_on_after_a_name_whether_it_is_there_or_not() {
        let (mut tenants, mut names) = (Slab::default(), TenantNames::default());
        for number in [5, 3, 9] {
            let ix = tenants.insert(tenant(number));
            names.insert(&tenants, ix);
        }
        let after = |number: u32| names.after(Some(&name(number))).collect::<Vec<_>>();
        assert_eq!((after(3), after(4), after(9)), (vec![0, 2], vec![0, 2], vec![]));
    }
}
