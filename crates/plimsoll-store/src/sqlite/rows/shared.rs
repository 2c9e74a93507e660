//! What many rows have in common, held once.
//!
//! A million sandboxes name a handful of tenants and pools and a few thousand hosts. Reading each
//! name into an allocation of its own would cost a restart more than all the rest, and the engine
//! some 200 bytes a record for good.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::str::FromStr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use plimsoll_engine::rows::SandboxSpec;
use plimsoll_types::{HostId, PoolName, TemplateName, TenantId};

/// Most specs held for sharing. Fleets start guests from few templates; where every spec is its
/// own, more would only fill memory.
const SPECS_MAX: usize = 1_024;

/// Values met so far.
#[derive(Default)]
pub(in crate::sqlite) struct Shared {
    tenants: Names<TenantId>,
    pools: Names<PoolName>,
    hosts: Names<HostId>,
    templates: Names<TemplateName>,
    specs: HashMap<String, Arc<SandboxSpec>, RandomState>,
}

type Names<N> = HashSet<N, RandomState>;

/// A name that rows have in common.
pub(in crate::sqlite) trait SharedName:
    Clone + Eq + Hash + FromStr + std::borrow::Borrow<str>
{
    /// Where it is held.
    fn names(shared: &mut Shared) -> &mut Names<Self>;
}

macro_rules! shared_name {
    ($($name:ty => $field:ident),*) => {
        $(impl SharedName for $name {
            fn names(shared: &mut Shared) -> &mut Names<Self> {
                &mut shared.$field
            }
        })*
    };
}

shared_name!(
    TenantId => tenants,
    PoolName => pools,
    HostId => hosts,
    TemplateName => templates
);

impl Shared {
    /// The name with this text.
    pub(super) fn name<N: SharedName>(&mut self, text: &str) -> Result<N, N::Err> {
        let names = N::names(self);
        if let Some(name) = names.get(text) {
            return Ok(name.clone());
        }
        let name: N = text.parse()?;
        names.insert(name.clone());
        Ok(name)
    }

    /// A spec that was read from this text before.
    pub(super) fn spec(&self, text: &str) -> Option<Arc<SandboxSpec>> {
        self.specs.get(text).cloned()
    }

    /// Holds a spec for those that are read from the same text.
    pub(super) fn hold_spec(&mut self, text: &str, spec: &Arc<SandboxSpec>) {
        if self.specs.len() < SPECS_MAX {
            self.specs.insert(text.to_owned(), Arc::clone(spec));
        }
    }
}
