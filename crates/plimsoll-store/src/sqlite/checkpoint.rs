//! Copying the write-ahead log into the database, off the writer's path.
//!
//! SQLite would do this inside whichever commit makes the log long, and that commit would take
//! tens of milliseconds. Here a thread with a connection of its own copies while the writer goes
//! on. Only the last, short piece is the writer's: once a log is copied whole between two
//! commits, the next commit begins it anew and the file stops growing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tracing::{debug, warn};

use super::file::{Purpose, connect};
use crate::error::StoreError;

/// Frames (pages) in the log that are not copied yet from which on the thread copies: 16 MiB. A
/// longer log copies fewer pages in sum; a shorter one is read faster at a restart, and its copy
/// is synced faster, which commits on the same disk wait behind. Measured: with 32 MiB the longest
/// commits take twice as long, below 16 MiB nothing is gained.
const COPY_FROM_FRAMES: i64 = 4_096;

/// Frames not copied yet that the writer copies itself: half a MiB takes a few milliseconds.
const TAIL_FRAMES: i64 = 128;

/// Runs in a row after which the thread leaves a tail of whatever length to the writer: the disk
/// is then as fast as the load, and waiting longer would let the log grow without bound.
const RUNS_MAX: usize = 8;

/// Transactions between two looks at the log's length, which takes some microseconds.
const LOOK_EVERY: u32 = 16;

/// The log file is cut to this size when it begins anew, so that a surge leaves no large file.
pub(super) const LOG_KEPT_BYTES: u64 = 64 << 20;

/// The writer's side of the thread.
#[derive(Debug)]
pub(super) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    tail: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    since_look: u32,
}

impl Checkpointer {
    pub(super) fn start(path: &str) -> Result<Self, StoreError> {
        let connection = connect(path, Purpose::Checkpoint)?;
        let (wake, woken) = sync_channel(1);
        let tail = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&tail);
        let thread = std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || copy_when_woken(&connection, &woken, &shared))
            .map_err(|error| StoreError::Io {
                doing: "starting the checkpoint thread".to_owned(),
                detail: error.to_string(),
            })?;
        Ok(Self { wake: Some(wake), tail, thread: Some(thread), since_look: 0 })
    }

    /// Called by the writer between two transactions.
    pub(super) fn before_write(&mut self, writer: &Connection) {
        if self.tail.swap(false, Ordering::AcqRel) {
            // Failure harms nothing: the log stays as it is and is copied later.
            if let Err(error) = progress(writer, "PASSIVE") {
                warn!(%error, "copying the log's tail failed");
            }
        }
        self.since_look += 1;
        if self.since_look < LOOK_EVERY {
            return;
        }
        self.since_look = 0;
        let due = progress(writer, "NOOP").is_ok_and(|log| log.left() >= COPY_FROM_FRAMES);
        if due && let Some(wake) = &self.wake {
            match wake.try_send(()) {
                Ok(()) | Err(TrySendError::Full(())) => {}
                Err(TrySendError::Disconnected(())) => {
                    warn!("the checkpoint thread has ended; the writer copies the log itself");
                    self.tail.store(true, Ordering::Release);
                }
            }
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// How far the log is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    pub(super) frames: i64,
    pub(super) copied: i64,
}

impl Log {
    fn left(self) -> i64 {
        self.frames - self.copied
    }
}

/// Runs a checkpoint of a mode; `NOOP` only asks.
pub(super) fn progress(connection: &Connection, mode: &str) -> rusqlite::Result<Log> {
    connection
        .prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?
        .query_row([], |row| Ok(Log { frames: row.get(1)?, copied: row.get(2)? }))
}

fn copy_when_woken(connection: &Connection, woken: &Receiver<()>, tail: &AtomicBool) {
    while woken.recv().is_ok() {
        for run in 1..=RUNS_MAX {
            match progress(connection, "PASSIVE") {
                Ok(copied) => {
                    debug!(run, copied.frames, copied.copied, "copied the log");
                    // What was written while this run copied is the next run's, and less.
                    let left = progress(connection, "NOOP").map_or(0, Log::left);
                    if left <= TAIL_FRAMES {
                        break;
                    }
                }
                Err(error) => {
                    warn!(%error, "copying the log failed");
                    break;
                }
            }
        }
        tail.store(true, Ordering::Release);
    }
}
