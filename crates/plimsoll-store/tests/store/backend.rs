//! What the suite needs of a backend: data that outlives a store.

use std::path::PathBuf;

use plimsoll_store::{
    Lease, LoadLimits, MemoryStore, SqliteSettings, SqliteStore, Store, StoreError,
};
use plimsoll_types::Timestamp;
use tempfile::TempDir;

/// Makes stores over the same data, one after another.
pub(crate) trait Backend {
    /// Opens the data as a restart does. The store before it has been dropped.
    fn open(&mut self) -> Box<dyn Store>;

    /// Another backend of the same kind, without data.
    fn fresh(&self) -> Box<dyn Backend>;
}

pub(crate) struct Memory(pub(crate) MemoryStore);

impl Memory {
    pub(crate) fn new() -> Self {
        Self(MemoryStore::new())
    }
}

impl Backend for Memory {
    fn open(&mut self) -> Box<dyn Store> {
        Box::new(self.0.clone())
    }

    fn fresh(&self) -> Box<dyn Backend> {
        Box::new(Self::new())
    }
}

pub(crate) struct Sqlite {
    folder: TempDir,
}

impl Sqlite {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("plimsoll.db")
    }

    pub(crate) fn try_open(&self) -> Result<SqliteStore, StoreError> {
        SqliteStore::open(&self.path(), SqliteSettings::default())
    }
}

impl Backend for Sqlite {
    fn open(&mut self) -> Box<dyn Store> {
        Box::new(self.try_open().unwrap())
    }

    fn fresh(&self) -> Box<dyn Backend> {
        Box::new(Self::new())
    }
}

/// Far from the epoch, on a whole hour.
pub(crate) const NOW: Timestamp = Timestamp(1_800_000_000_000);

/// Opens the data and takes the lease.
pub(crate) fn leader(backend: &mut dyn Backend) -> (Box<dyn Store>, Lease) {
    let mut store = backend.open();
    let lease = store.acquire("suite", NOW).unwrap();
    (store, lease)
}

/// What a restart at [`NOW`] would find.
pub(crate) fn rows(store: &mut dyn Store, lease: &Lease) -> plimsoll_engine::rows::Rows {
    store.load(lease, NOW, &LoadLimits::default()).unwrap()
}
