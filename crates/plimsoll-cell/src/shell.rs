//! What the engine's threads and the API's tasks share.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use plimsoll_engine::{Change, Effect};
use plimsoll_store::Reader;
use tokio::sync::{Notify, watch};

use crate::auth::Keys;
use crate::core::{Owed, Standing};
use crate::hosts::Calls;
use crate::metrics::Metrics;
use crate::waiters::Waiters;

/// Answers on their way from the writer to those who wait.
///
/// They are handed out by a task: each of the waiting tasks is then woken from within the runtime,
/// which costs a push to a queue of its own thread, where a wake-up from a thread outside costs a
/// lock on a shared queue and often a system call.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    waiting: Mutex<Vec<Owed>>,
    arrived: Notify,
}

impl Mail {
    /// Leaves answers for the task.
    pub(crate) fn post(&self, answers: &mut Vec<Owed>) {
        if answers.is_empty() {
            return;
        }
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).append(answers);
        self.arrived.notify_one();
    }

    /// Hands answers out for as long as the runtime lives.
    pub(crate) async fn deliver(&self) {
        let mut answers = Vec::new();
        loop {
            self.arrived.notified().await;
            answers.append(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            for (to, reply) in answers.drain(..) {
                // Nobody may wait any more.
                let _ = to.send(Ok(reply));
            }
        }
    }
}

/// The state around the engine.
pub(crate) struct Shell {
    /// Who calls.
    pub(crate) keys: Keys,
    /// Who waits for a sandbox.
    pub(crate) waiters: Arc<Waiters>,
    /// Counters and timings.
    pub(crate) metrics: Metrics,
    /// The way to hosts.
    pub(crate) calls: Calls,
    /// Where the cell stands.
    pub(crate) standing: watch::Sender<Standing>,
    /// Moves when there are new events.
    pub(crate) events: watch::Sender<()>,
    /// Moves when webhook endpoints have changed.
    pub(crate) endpoints: watch::Sender<()>,
    /// Answers on their way.
    pub(crate) mail: Mail,
    reader: RwLock<Option<Arc<dyn Reader>>>,
}

impl Shell {
    /// A shell without a store as yet.
    pub(crate) fn new(calls: Calls) -> Self {
        Self {
            keys: Keys::default(),
            waiters: Arc::default(),
            metrics: Metrics::new(),
            calls,
            standing: watch::Sender::new(Standing::Loading),
            events: watch::Sender::new(()),
            endpoints: watch::Sender::new(()),
            mail: Mail::default(),
            reader: RwLock::new(None),
        }
    }

    /// The readers' side of the store; `None` before the first term.
    pub(crate) fn reader(&self) -> Option<Arc<dyn Reader>> {
        self.reader.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_reader(&self, reader: Arc<dyn Reader>) {
        *self.reader.write().unwrap_or_else(PoisonError::into_inner) = Some(reader);
    }

    /// Lets effects out, their batch being durable. Runs before the answers of the same batch
    /// leave, so that a caller who was told of a key can use it.
    pub(crate) fn deliver(&self, changes: &[Change], effects: &mut Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::SandboxChanged { id, status, refusal } => {
                    self.waiters.changed(id, status, refusal);
                }
                Effect::KeysChanged => self.keys.apply(changes),
                Effect::Events => {
                    if changes.iter().any(is_endpoint) {
                        self.endpoints.send_replace(());
                    }
                    self.events.send_replace(());
                }
                Effect::HostCommand { .. }
                | Effect::ProbeHost { .. }
                | Effect::Unreachable { .. } => self.calls.submit(&self.metrics.host_calls, effect),
            }
        }
    }
}

fn is_endpoint(change: &Change) -> bool {
    matches!(change, Change::Endpoint(_) | Change::EndpointGone(_))
}
