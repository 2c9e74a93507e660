//! Calls that wait for a sandbox to get somewhere.
//!
//! The registry knows, for each sandbox that somebody waits for, how many wait and whether anybody
//! has been told of it. From that it knows whether a caller that goes away leaves a guest that
//! nobody owns.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_engine::Refusal;
use plimsoll_types::{SandboxId, SandboxStatus};
use tokio::sync::watch;

/// Most sandboxes that are waited for at once: above it a call is refused as overloaded. Some
/// 300 bytes each.
const WAITED_FOR_MAX: usize = 65_536;

/// What is last known of a sandbox from its changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing has changed since the wait began.
    Nothing,
    /// It stands here.
    At(SandboxStatus),
    /// Its record is gone; why, where hosts refused it after it was admitted.
    Gone(Option<Arc<Refusal>>),
}

#[derive(Debug)]
struct Entry {
    seen: watch::Sender<Seen>,
    waiting: usize,
    /// Whether some caller has been told of the sandbox, or it was there before the wait began:
    /// then it is somebody's, whoever goes away.
    owned: bool,
}

/// The registry.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    entries: Mutex<HashMap<SandboxId, Entry>>,
}

/// No room for another wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait for a sandbox. `owned` says that it is somebody's already.
    ///
    /// # Errors
    /// When too many sandboxes are waited for.
    pub(crate) fn join(self: &Arc<Self>, id: SandboxId, owned: bool) -> Result<Wait, Full> {
        let mut entries = self.lock();
        if !entries.contains_key(&id) && entries.len() >= WAITED_FOR_MAX {
            return Err(Full);
        }
        let entry = entries.entry(id).or_insert_with(|| Entry {
            seen: watch::Sender::new(Seen::Nothing),
            waiting: 0,
            owned,
        });
        entry.waiting += 1;
        let changes = entry.seen.subscribe();
        Ok(Wait { waiters: Arc::clone(self), id, changes, left: false })
    }

    /// Tells those who wait that a sandbox has changed.
    pub(crate) fn changed(
        &self,
        id: SandboxId,
        status: Option<SandboxStatus>,
        refusal: Option<Box<Refusal>>,
    ) {
        if let Some(entry) = self.lock().get(&id) {
            let gone = || Seen::Gone(refusal.map(Arc::from));
            entry.seen.send_replace(status.map_or_else(gone, Seen::At));
        }
    }

    /// Wakes everybody to look again: the engine was rebuilt, and changes may have been missed.
    pub(crate) fn wake_all(&self) {
        for entry in self.lock().values() {
            entry.seen.send_replace(Seen::Nothing);
        }
    }

    /// How many calls wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().values().map(|entry| entry.waiting).sum()
    }

    fn leave(&self, id: SandboxId, told: bool) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(&id) else { return false };
        entry.owned |= told;
        entry.waiting -= 1;
        if entry.waiting > 0 {
            return false;
        }
        let orphan = !entry.owned;
        entries.remove(&id);
        orphan
    }
}

/// One call's wait. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Wait {
    waiters: Arc<Waiters>,
    id: SandboxId,
    changes: watch::Receiver<Seen>,
    left: bool,
}

impl Wait {
    /// Which sandbox.
    pub(crate) fn id(&self) -> SandboxId {
        self.id
    }

    /// What its changes said last.
    pub(crate) fn seen(&mut self) -> Seen {
        self.changes.borrow_and_update().clone()
    }

    /// Waits for the next change after the last [`Wait::seen`].
    pub(crate) async fn changed(&mut self) {
        // The sender lives in the entry for as long as anybody waits.
        let _ = self.changes.changed().await;
    }

    /// Leaves, the caller having been told of the sandbox: it is the caller's from here on.
    pub(crate) fn told(mut self) {
        self.left = true;
        self.waiters.leave(self.id, true);
    }

    /// Whether nobody else waits for the sandbox, and nobody was told of it.
    pub(crate) fn is_last(&self) -> bool {
        let entries = self.waiters.lock();
        entries.get(&self.id).is_some_and(|entry| entry.waiting == 1 && !entry.owned)
    }

    /// Leaves without having been told. Whether the sandbox is now nobody's.
    pub(crate) fn abandon(&mut self) -> bool {
        if self.left {
            return false;
        }
        self.left = true;
        self.waiters.leave(self.id, false)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SandboxId = SandboxId(7);

    #[tokio::test]
    async fn a_change_before_the_wait_is_seen_at_once() {
        let waiters = Arc::new(Waiters::default());
        let mut wait = waiters.join(ID, false).unwrap();
        assert_eq!(wait.seen(), Seen::Nothing);
        waiters.changed(ID, Some(SandboxStatus::Running), None);
        wait.changed().await;
        assert_eq!(wait.seen(), Seen::At(SandboxStatus::Running));
        waiters.changed(ID, None, None);
        wait.changed().await;
        assert_eq!(wait.seen(), Seen::Gone(None));
    }

    #[test]
    fn only_the_last_one_out_orphans_and_only_if_nobody_was_told() {
        let waiters = Arc::new(Waiters::default());
        let mut one = waiters.join(ID, false).unwrap();
        let mut other = waiters.join(ID, false).unwrap();
        assert!(!one.abandon(), "the other still waits");
        assert!(!one.abandon(), "leaving twice is leaving once");
        assert!(other.abandon());
        assert!(waiters.lock().is_empty());

        let one = waiters.join(ID, false).unwrap();
        let mut other = waiters.join(ID, false).unwrap();
        one.told();
        assert!(!other.abandon(), "the first caller owns it");

        let mut late = waiters.join(ID, true).unwrap();
        assert!(!late.abandon(), "it was somebody's before");
    }

    #[test]
    fn changes_of_what_nobody_waits_for_cost_nothing() {
        let waiters = Waiters::default();
        waiters.changed(ID, None, None);
        assert!(waiters.lock().is_empty());
    }
}
