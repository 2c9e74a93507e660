//! What goes from the engine's thread to the writer's.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_engine::{Change, Effect, Observation, Output, Reply};
use plimsoll_store::{DeliveryRow, Progress};
use tokio::sync::oneshot;

use super::{Answer, NoAnswer};

/// At so many writes the engine waits for the writer: some 30 ms of SQLite, which bounds both the
/// size of a transaction and what a failure leaves unanswered.
const BATCH_CHANGES_MAX: usize = 20_000;

/// Rows about refusals in one batch beyond this are dropped and counted: under overload the log of
/// refusals must not cost the admissions their time.
const REFUSAL_ROWS_MAX: usize = 2_000;

/// Most delivery records that wait for the writer: each is one round of the delivering task.
const RECORDS_MAX: usize = 256;

/// An answer and the one who waits for it.
pub(crate) type Owed = (oneshot::Sender<Answer>, Reply);

/// One batch: what is to be durable, and what may leave once it is.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) changes: Vec<Change>,
    pub(crate) answers: Vec<Owed>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) observations: Vec<Observation>,
    refusal_rows: usize,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.answers.is_empty()
            && self.effects.is_empty()
            && self.observations.is_empty()
    }

    /// Empties it and keeps the buffers.
    pub(crate) fn clear(&mut self) {
        self.changes.clear();
        self.answers.clear();
        self.effects.clear();
        self.observations.clear();
        self.refusal_rows = 0;
    }

    /// Takes in what a round led to. Returns how many rows about refusals were dropped.
    fn append(&mut self, out: &mut Output, answers: &mut Vec<Owed>) -> u64 {
        let mut dropped = 0;
        for change in out.changes.drain(..) {
            if matches!(&change, Change::Decision(row) if row.code.is_some()) {
                if self.refusal_rows >= REFUSAL_ROWS_MAX {
                    dropped += 1;
                    continue;
                }
                self.refusal_rows += 1;
            }
            self.changes.push(change);
        }
        self.answers.append(answers);
        self.effects.append(&mut out.effects);
        self.observations.append(&mut out.observations);
        dropped
    }
}

/// What the task that delivers webhooks wants kept.
#[derive(Debug)]
pub(crate) struct Record {
    /// Attempts.
    pub(crate) deliveries: Vec<DeliveryRow>,
    /// How far endpoints have come.
    pub(crate) progress: Vec<Progress>,
    /// Told when it is durable; dropped when it could not be made so.
    pub(crate) done: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    batch: Batch,
    records: Vec<Record>,
    /// Whether the writer has taken something that is not durable yet.
    writing: bool,
    /// The engine puts nothing more in.
    closed: bool,
    /// A commit failed; nothing that is put in will be committed.
    failed: bool,
}

/// The place where the batch under way accumulates.
#[derive(Debug, Default)]
pub(crate) struct Handoff {
    state: Mutex<State>,
    filled: Condvar,
    room: Condvar,
}

/// What became of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It is in the batch; so many rows about refusals were dropped.
    Taken(u64),
    /// It writes nothing, and everything before it is durable: it may leave at once.
    Free,
}

/// Why nothing was put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotPut {
    /// The batch is at its bound, and the writer did not take it within the time given.
    NoRoom,
    /// A commit has failed.
    Failed,
}

impl Handoff {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Empties it for a new term.
    pub(crate) fn reset(&self) {
        *self.lock() = State::default();
    }

    /// Appends what a round led to; where the batch is at its bound, waits at most so long for
    /// room.
    ///
    /// # Errors
    /// Says why; what was to be put in stays with the caller, as it does when it is free to leave.
    pub(crate) fn put(
        &self,
        out: &mut Output,
        answers: &mut Vec<Owed>,
        wait: Duration,
    ) -> Result<Put, NotPut> {
        let mut state = self.lock();
        if state.batch.changes.len() >= BATCH_CHANGES_MAX && !state.failed {
            let full =
                |state: &mut State| state.batch.changes.len() >= BATCH_CHANGES_MAX && !state.failed;
            let waited = self.room.wait_timeout_while(state, wait, full);
            let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return Err(NotPut::NoRoom);
            }
            state = after;
        }
        if state.failed {
            return Err(NotPut::Failed);
        }
        let was_empty = state.batch.is_empty();
        if was_empty && !state.writing && out.changes.is_empty() {
            return Ok(Put::Free);
        }
        let dropped = state.batch.append(out, answers);
        let fill = was_empty && !state.batch.is_empty();
        drop(state);
        if fill {
            self.filled.notify_one();
        }
        Ok(Put::Taken(dropped))
    }

    /// Leaves a delivery record for the writer.
    ///
    /// # Errors
    /// When too many wait, or no term is under way.
    pub(crate) fn put_record(&self, record: Record) -> Result<(), NoAnswer> {
        let mut state = self.lock();
        if state.failed || state.closed {
            return Err(NoAnswer::StoreUnavailable);
        }
        if state.records.len() >= RECORDS_MAX {
            return Err(NoAnswer::Overloaded);
        }
        state.records.push(record);
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// Says that everything taken is durable, waits at most so long for something to write and
    /// swaps it for the empty buffers given. `false` once the handoff is closed and everything was
    /// taken.
    pub(crate) fn take(
        &self,
        batch: &mut Batch,
        records: &mut Vec<Record>,
        wait: Duration,
    ) -> bool {
        let idle =
            |state: &mut State| state.batch.is_empty() && state.records.is_empty() && !state.closed;
        let mut state = self.lock();
        state.writing = false;
        let waited = self.filled.wait_timeout_while(state, wait, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        std::mem::swap(&mut state.batch, batch);
        std::mem::swap(&mut state.records, records);
        state.writing = !batch.is_empty();
        let open = !state.closed || !batch.is_empty() || !records.is_empty();
        drop(state);
        self.room.notify_one();
        open
    }

    /// Nothing more will be put in.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }

    /// A commit failed: hands out what has accumulated since, records aside, which are dropped.
    pub(crate) fn fail(&self) -> Batch {
        let mut state = self.lock();
        state.failed = true;
        state.records.clear();
        let batch = std::mem::take(&mut state.batch);
        drop(state);
        self.room.notify_one();
        batch
    }

    /// Whether a commit has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().failed
    }
}
