//! The database's files: the lock beside it, its mode, its connections.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::fail::{Context, file as file_error, sqlite};
use crate::error::StoreError;

/// The data holds environment values and host secrets: its owner's alone.
const MODE: u32 = 0o600;

/// How long a reader or a checkpoint waits for a lock. The log lets them pass a writer, so there
/// is one to wait for only while a file is recovered.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The lock that keeps a second cell off the file. The kernel drops it with the process, however
/// that ends, so that a restart never waits.
#[derive(Debug)]
pub(super) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Takes the lock at once or not at all.
    ///
    /// The database itself is not touched before: closing any descriptor of it would drop the
    /// locks that SQLite holds on it elsewhere in this process.
    pub(super) fn take(path: &str) -> Result<Self, StoreError> {
        let lock_path = format!("{path}-lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(MODE)
            .open(&lock_path)
            .map_err(|error| file_error(&error, "opening", &lock_path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // Only for the message: who holds it is not known where this does not read.
                let known = file.read_to_string(&mut holder).is_ok() && !holder.trim().is_empty();
                let holder = if known {
                    format!("process {}", holder.trim())
                } else {
                    "another process".to_owned()
                };
                return Err(StoreError::Held { what: path.to_owned(), holder, until: None });
            }
            Err(error) => return Err(file_error(&error.into(), "locking", &lock_path)),
        }
        file.set_len(0)
            .and_then(|()| file.write_all(std::process::id().to_string().as_bytes()))
            .map_err(|error| file_error(&error, "writing", &lock_path))?;
        Ok(Self { _file: file })
    }
}

/// Makes the file if there is none, and sees to its mode.
pub(super) fn prepare(path: &str) -> Result<(), StoreError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path);
    match made {
        Ok(_) => {
            // The file's name must survive a power loss as its content does.
            let folder = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(folder.unwrap_or_else(|| Path::new(".")))
                .and_then(|folder| folder.sync_all())
                .map_err(|error| file_error(&error, "syncing the folder of", path))
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let mode = std::fs::metadata(path)
                .map_err(|error| file_error(&error, "looking at", path))?
                .permissions()
                .mode();
            if mode & 0o077 != 0 {
                std::fs::set_permissions(path, Permissions::from_mode(MODE))
                    .map_err(|error| file_error(&error, "setting the mode of", path))?;
            }
            Ok(())
        }
        Err(error) => Err(file_error(&error, "creating", path)),
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The one that writes.
    Write {
        /// Its page cache in KiB.
        cache_kib: u32,
    },
    /// Copies the log into the database.
    Checkpoint,
    /// Answers questions.
    Read,
}

/// Opens one connection.
pub(super) fn connect(path: &str, purpose: Purpose) -> Result<Connection, StoreError> {
    // Every connection stays with one thread at a time, so SQLite need not lock it. The file
    // exists; a name with a question mark or a leading `file:` is no URI.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)
        .map_err(|error| sqlite(error, "opening the database", path))?;
    let context = Context { doing: "opening the database", path };
    context.of(connection.busy_timeout(BUSY_TIMEOUT))?;
    match purpose {
        Purpose::Write { cache_kib } => {
            super::schema::recognise(&connection, path)?;
            let mode: String = context.of(connection.pragma_update_and_check(
                None,
                "journal_mode",
                "WAL",
                |row| row.get(0),
            ))?;
            if mode != "wal" {
                return Err(StoreError::Io {
                    doing: format!("opening the database ({path})"),
                    detail: "its file system has no shared memory, which the log needs".to_owned(),
                });
            }
            // FULL: a commit returns when its log is on the disk. Checkpoints are run by hand.
            context.of(connection.execute_batch(&format!(
                "PRAGMA synchronous = FULL;
                 PRAGMA wal_autocheckpoint = 0;
                 PRAGMA journal_size_limit = {};
                 PRAGMA cache_size = -{cache_kib};
                 PRAGMA temp_store = MEMORY;
                 PRAGMA foreign_keys = OFF;",
                super::checkpoint::LOG_KEPT_BYTES,
            )))?;
            connection.set_prepared_statement_cache_capacity(super::STATEMENTS_MAX);
        }
        Purpose::Checkpoint => {
            context.of(connection
                .execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;"))?;
        }
        Purpose::Read => {
            context.of(connection.execute_batch(
                "PRAGMA query_only = ON; PRAGMA wal_autocheckpoint = 0;
                 PRAGMA temp_store = MEMORY;",
            ))?;
        }
    }
    Ok(connection)
}

/// Holds the database to so many bytes, whole pages rounded down. One that is larger stays as it
/// is and grows no more.
pub(super) fn bound(connection: &Connection, path: &str, bytes: u64) -> Result<(), StoreError> {
    let context = Context { doing: "opening the database", path };
    let page: i64 = context.of(connection.query_row("PRAGMA page_size", [], |row| row.get(0)))?;
    let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / page;
    let set = connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()));
    context.of(set)
}
