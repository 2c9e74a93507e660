//! One copy of each specification, however many sandboxes are started alike.

use std::hash::BuildHasher;
use std::sync::{Arc, Weak};

use foldhash::fast::FixedState;

use super::state::Map;
use crate::rows::SandboxSpec;

/// Most specifications that are remembered for sharing. Fleets start guests from few templates;
/// where every command is its own, more would only fill memory.
const SPECS_MAX: usize = 1_024;

/// Specifications that some record holds. None is kept alive from here.
#[derive(Debug, Default)]
pub(super) struct Specs {
    held: Map<u64, Weak<SandboxSpec>>,
}

impl Specs {
    /// The copy that others hold of this specification, or this one from now on.
    pub(super) fn share(&mut self, spec: Arc<SandboxSpec>) -> Arc<SandboxSpec> {
        let hash = FixedState::default().hash_one(&*spec);
        // Of two that meet in one hash only the later is shared.
        if let Some(held) = self.held.get(&hash).and_then(Weak::upgrade)
            && held == spec
        {
            return held;
        }
        if self.held.len() >= SPECS_MAX {
            self.held.retain(|_, held| held.strong_count() > 0);
            // So that the next look through all of them is not the next create's.
            if self.held.len() > SPECS_MAX / 2 {
                self.held.clear();
            }
        }
        self.held.insert(hash, Arc::downgrade(&spec));
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(word: &str) -> Arc<SandboxSpec> {
        Arc::new(SandboxSpec { command: vec![word.to_owned()], ..SandboxSpec::default() })
    }

    #[test]
    fn what_is_alike_is_held_once_and_no_longer_than_by_its_records() {
        let mut specs = Specs::default();
        let first = specs.share(spec("sleep"));
        assert!(Arc::ptr_eq(&first, &specs.share(spec("sleep"))));
        assert!(!Arc::ptr_eq(&first, &specs.share(spec("wake"))));
        assert_eq!(Arc::strong_count(&first), 1);
        let gone = Arc::downgrade(&first);
        drop(first);
        assert!(gone.upgrade().is_none());
        assert_eq!(*specs.share(spec("sleep")), *spec("sleep"));
    }

    #[test]
    fn many_of_their_own_do_not_pile_up() {
        let mut specs = Specs::default();
        let mut held = Vec::new();
        for number in 0..4 * SPECS_MAX {
            held.push(specs.share(spec(&number.to_string())));
            assert!(specs.held.len() <= SPECS_MAX);
        }
        let last = specs.share(spec(&(4 * SPECS_MAX - 1).to_string()));
        assert!(held.last().is_some_and(|held| Arc::ptr_eq(held, &last)));
    }
}
