//! SQLite with full sync: the store of a cell that stands alone.
//!
//! One connection writes, and belongs to the writer's thread. Readers have connections of their
//! own and see what was committed, by way of the write-ahead log, without ever making the writer
//! wait. A thread copies the log into the database as it grows.

mod checkpoint;
mod fail;
mod file;
mod load;
mod prune;
mod read;
mod rows;
mod schema;
mod usage;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::Change;
use plimsoll_engine::rows::Rows;
use plimsoll_types::Timestamp;
use rusqlite::Connection;
use tracing::warn;

use self::checkpoint::Checkpointer;
use self::fail::Context;
use self::file::{FileLock, Purpose, connect};
use self::read::Pool;
use crate::delivery::{DeliveryRow, Progress};
use crate::error::StoreError;
use crate::store::{Lease, LoadLimits, Pruned, Reader, Retention, Store};

/// Prepared statements kept by the writer: every statement that it has, with room to spare.
const STATEMENTS_MAX: usize = 128;

/// Settings of a [`SqliteStore`].
#[derive(Clone, Debug)]
pub struct SqliteSettings {
    /// The writer's page cache in KiB. It should hold the pages that are being written to: the
    /// ends of the hot tables and their inner pages.
    pub cache_kib: u32,
    /// Connections for readers: as many questions are answered at once, the others wait.
    pub readers_max: usize,
    /// Most bytes that the database may grow to, its log aside; beyond it commits fail with
    /// [`StoreError::Full`]. `None` leaves that to the disk.
    pub bytes_max: Option<u64>,
    /// How long a statement waits for another program's lock, such as an operator's `sqlite3` in
    /// the middle of a write, before it fails with [`StoreError::Busy`].
    pub busy_timeout: Duration,
}

impl Default for SqliteSettings {
    fn default() -> Self {
        Self {
            cache_kib: 64 * 1024,
            readers_max: 4,
            bytes_max: None,
            busy_timeout: Duration::from_secs(5),
        }
    }
}

/// The store.
#[derive(Debug)]
pub struct SqliteStore {
    // In the order in which they are dropped: the writer's connection first, the lock last.
    writer: Connection,
    checkpointer: Checkpointer,
    pool: Arc<Pool>,
    path: Arc<str>,
    _lock: FileLock,
}

impl SqliteStore {
    /// Opens a database, or makes one, of mode 0600.
    ///
    /// # Errors
    /// [`StoreError::Held`] at once when another process has it open; [`StoreError::TooNew`] when
    /// a newer version wrote it; [`StoreError::Corrupt`] when it is no database of ours;
    /// [`StoreError::Io`] when its folder or the file does not let itself be written.
    pub fn open(path: &Path, settings: SqliteSettings) -> Result<Self, StoreError> {
        let path = absolute(path)?;
        let lock = FileLock::take(&path)?;
        file::prepare(&path)?;
        let writer = connect(&path, Purpose::Write { cache_kib: settings.cache_kib })?;
        let context = Context { doing: "opening the database", path: &path };
        context.of(writer.busy_timeout(settings.busy_timeout))?;
        // What a log holds that was found here may be in the machine's memory alone, where a sync
        // failed before the last writer ended. Copied, it is synced anew, and the log begins anew.
        match context.of(checkpoint::progress(&writer, "PASSIVE")) {
            Ok(_) => {}
            Err(error @ (StoreError::Full { .. } | StoreError::Busy { .. })) => {
                warn!(%error, "the log is not copied; it is read where it is");
            }
            Err(error) => return Err(error),
        }
        schema::migrate(&writer, &path)?;
        if let Some(bytes) = settings.bytes_max {
            file::bound(&writer, &path, bytes)?;
        }
        let path: Arc<str> = Arc::from(path);
        let checkpointer = Checkpointer::start(&path)?;
        let pool = Arc::new(Pool::new(Arc::clone(&path), settings.readers_max));
        Ok(Self { writer, checkpointer, pool, path, _lock: lock })
    }

    /// One transaction: the epoch, then the work, all of it durable or none.
    fn transaction<T>(
        &mut self,
        lease: Option<&Lease>,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.checkpointer.before_write(&self.writer);
        let context = Context { doing, path: &self.path };
        context.of(run(&self.writer, "BEGIN IMMEDIATE"))?;
        let outcome = check_epoch(&self.writer, lease, &context)
            .and_then(|()| context.of(work(&self.writer)))
            .and_then(|value| context.of(run(&self.writer, "COMMIT")).map(|()| value));
        if outcome.is_err() && !self.writer.is_autocommit() {
            // The first error is the one to tell.
            let _ = self.writer.execute_batch("ROLLBACK");
        }
        outcome
    }
}

/// Runs a statement without parameters, prepared once.
fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

/// Holds the lease against the store's epoch.
fn check_epoch(
    connection: &Connection,
    lease: Option<&Lease>,
    context: &Context<'_>,
) -> Result<(), StoreError> {
    let Some(lease) = lease else { return Ok(()) };
    let current = context.of(connection
        .prepare_cached("SELECT epoch FROM lease")
        .and_then(|mut statement| statement.query_row([], |row| row.get::<_, i64>(0))))?;
    if current.cast_unsigned() == lease.epoch {
        Ok(())
    } else {
        Err(StoreError::Fenced { epoch: lease.epoch, current: current.cast_unsigned() })
    }
}

/// The path from the root: a relative one that begins with `file:` would be read as a URI.
fn absolute(path: &Path) -> Result<String, StoreError> {
    let broken = |detail: String| StoreError::Io {
        doing: format!("opening the database ({})", path.display()),
        detail,
    };
    std::path::absolute(path)
        .map(PathBuf::into_os_string)
        .map_err(|error| broken(error.to_string()))?
        .into_string()
        .map_err(|_| broken("its path is not UTF-8".to_owned()))
}

impl Store for SqliteStore {
    fn acquire(&mut self, holder: &str, now: Timestamp) -> Result<Lease, StoreError> {
        // The file lock keeps other processes off, so nothing else has to run out first.
        let epoch = self.transaction(None, "taking the lease", |connection| {
            connection.query_row(
                "UPDATE lease SET epoch = epoch + 1, holder = ?, acquired_at_millis = ?
                 RETURNING epoch",
                (holder, now.millis()),
                |row| row.get::<_, i64>(0),
            )
        })?;
        Ok(Lease { epoch: epoch.cast_unsigned(), holder: holder.to_owned(), expires_at: None })
    }

    fn renew(&mut self, lease: &mut Lease, _now: Timestamp) -> Result<(), StoreError> {
        let context = Context { doing: "renewing the lease", path: &self.path };
        check_epoch(&self.writer, Some(lease), &context)
    }

    fn load(
        &mut self,
        lease: &Lease,
        now: Timestamp,
        limits: &LoadLimits,
    ) -> Result<Rows, StoreError> {
        let context = Context { doing: "loading", path: &self.path };
        check_epoch(&self.writer, Some(lease), &context)?;
        load::load(&self.writer, &context, now, limits)
    }

    fn peek(&mut self, now: Timestamp, limits: &LoadLimits) -> Result<Rows, StoreError> {
        let context = Context { doing: "looking", path: &self.path };
        load::load(&self.writer, &context, now, limits)
    }

    fn commit(&mut self, lease: &Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.transaction(Some(lease), "committing a batch", |connection| {
            write::apply(connection, changes)
        })
    }

    fn record(
        &mut self,
        lease: &Lease,
        deliveries: &[DeliveryRow],
        progress: &[Progress],
    ) -> Result<(), StoreError> {
        self.transaction(Some(lease), "recording deliveries", |connection| {
            write::record(connection, deliveries, progress)
        })
    }

    fn prune(
        &mut self,
        lease: &Lease,
        now: Timestamp,
        retention: &Retention,
    ) -> Result<Pruned, StoreError> {
        self.transaction(Some(lease), "pruning", |connection| {
            prune::prune(connection, now, retention)
        })
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.pool.clone()
    }
}
