//! A store without a disk: for tests, for the simulator, and for cells that may forget.
//!
//! It keeps the promises of the durable ones except durability across processes: handles cloned
//! from one [`MemoryStore`] share its tables, so dropping an engine and loading again is a restart.
//! Faults can be injected commit by commit.

mod read;
mod tables;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use plimsoll_engine::Change;
use plimsoll_engine::rows::Rows;
use plimsoll_types::{Millis, Timestamp};

use crate::delivery::{DeliveryRow, Progress};
use crate::error::StoreError;
use crate::store::{Lease, LoadLimits, Pruned, Reader, Retention, Store};

pub(crate) use tables::Tables;

/// How a commit is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It succeeds: a place in the order of faults.
    None,
    /// Nothing is written, and the caller cannot know that.
    Fail,
    /// Everything is written, and the caller is told that it failed.
    FailAfterApply,
    /// The disk is full; nothing is written.
    Full,
    /// The database is locked; nothing is written.
    Busy,
    /// Another writer takes the lease just before.
    Fenced,
}

#[derive(Debug, Default)]
struct Shared {
    tables: RwLock<Tables>,
    faults: Mutex<VecDeque<Fault>>,
}

/// The store. Clones share its tables and its faults.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    lease_ttl: Option<Millis>,
}

impl MemoryStore {
    /// An empty store whose lease anybody may take at any time, as after a crash.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store whose lease runs for so long: until then another holder is refused, as with
    /// replicas on one database.
    #[must_use]
    pub fn with_lease_ttl(ttl: Millis) -> Self {
        Self { lease_ttl: Some(ttl), ..Self::default() }
    }

    /// Makes the next calls that write (`commit`, `record`, `prune`) come out as said, one fault
    /// each, after those injected before.
    pub fn inject(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults().extend(faults);
    }

    fn faults(&self) -> MutexGuard<'_, VecDeque<Fault>> {
        self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One transaction: the fault that is due, then the epoch, then the work.
    fn write<T>(
        &self,
        lease: &Lease,
        doing: &'static str,
        work: impl FnOnce(&mut Tables) -> T,
    ) -> Result<T, StoreError> {
        let fault = self.faults().pop_front().unwrap_or(Fault::None);
        let mut tables = self.shared.tables.write().unwrap_or_else(PoisonError::into_inner);
        if fault == Fault::Fenced {
            tables.lease.epoch += 1;
            tables.lease.holder = Some("another writer".to_owned());
            tables.lease.expires_at = None;
        }
        tables.check(lease)?;
        let unknown =
            || StoreError::Io { doing: doing.to_owned(), detail: "injected fault".to_owned() };
        match fault {
            Fault::None | Fault::Fenced => Ok(work(&mut tables)),
            Fault::Fail => Err(unknown()),
            Fault::FailAfterApply => {
                work(&mut tables);
                Err(unknown())
            }
            Fault::Full => Err(StoreError::Full { doing }),
            Fault::Busy => Err(StoreError::Busy { doing }),
        }
    }
}

impl Store for MemoryStore {
    fn acquire(&mut self, holder: &str, now: Timestamp) -> Result<Lease, StoreError> {
        let mut tables = self.shared.tables.write().unwrap_or_else(PoisonError::into_inner);
        tables.acquire(holder, now, self.lease_ttl)
    }

    fn renew(&mut self, lease: &mut Lease, now: Timestamp) -> Result<(), StoreError> {
        let mut tables = self.shared.tables.write().unwrap_or_else(PoisonError::into_inner);
        tables.check(lease)?;
        lease.expires_at = self.lease_ttl.map(|ttl| now + ttl);
        tables.lease.expires_at = lease.expires_at;
        Ok(())
    }

    fn load(
        &mut self,
        lease: &Lease,
        now: Timestamp,
        limits: &LoadLimits,
    ) -> Result<Rows, StoreError> {
        let tables = self.shared.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.check(lease)?;
        Ok(tables.load(now, limits))
    }

    fn peek(&mut self, now: Timestamp, limits: &LoadLimits) -> Result<Rows, StoreError> {
        let tables = self.shared.tables.read().unwrap_or_else(PoisonError::into_inner);
        Ok(tables.load(now, limits))
    }

    fn commit(&mut self, lease: &Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.write(lease, "committing a batch", |tables| {
            for change in changes {
                tables.apply(change);
            }
        })
    }

    fn record(
        &mut self,
        lease: &Lease,
        deliveries: &[DeliveryRow],
        progress: &[Progress],
    ) -> Result<(), StoreError> {
        self.write(lease, "recording deliveries", |tables| tables.record(deliveries, progress))
    }

    fn prune(
        &mut self,
        lease: &Lease,
        now: Timestamp,
        retention: &Retention,
    ) -> Result<Pruned, StoreError> {
        self.write(lease, "pruning", |tables| tables.prune(now, retention))
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(read::MemoryReader { shared: Arc::clone(&self.shared) })
    }
}
