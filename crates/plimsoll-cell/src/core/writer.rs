//! The writer's thread: one batch durable after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_store::{Lease, Retention, Store, StoreError};

use super::handoff::{Batch, Record};
use super::{Core, NoAnswer, Standing};
use crate::clock::wall;
use crate::shell::Shell;

/// How often the lease is renewed and its epoch checked while nothing is written: often enough
/// that a writer that lost it stops within seconds.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// How often old rows are looked for.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// While there is more to remove, one bounded piece this often: about 3 % of the writer's time.
const PRUNE_MORE_INTERVAL: Duration = Duration::from_millis(200);

/// The writer of one term.
pub(super) struct Writer {
    pub(super) store: Box<dyn Store>,
    pub(super) lease: Lease,
    pub(super) core: Arc<Core>,
    pub(super) shell: Arc<Shell>,
    pub(super) retention: Retention,
}

/// How a term ended for the writer.
pub(super) struct Written {
    /// The store, to be led anew or let go.
    pub(super) store: Box<dyn Store>,
    /// What the store failed with.
    pub(super) error: Option<StoreError>,
}

impl Writer {
    /// Commits until the handoff is closed or the store fails.
    pub(super) fn run(mut self) -> Written {
        let mut batch = Batch::default();
        let mut records = Vec::new();
        let mut renew_at = Instant::now() + RENEW_INTERVAL;
        let mut prune_at = Instant::now() + PRUNE_INTERVAL;
        loop {
            let due = renew_at.min(prune_at);
            let wait = due.saturating_duration_since(Instant::now());
            if !self.core.handoff().take(&mut batch, &mut records, wait) {
                return Written { store: self.store, error: None };
            }
            let mut outcome = self.commit(&mut batch);
            if outcome.is_ok() {
                outcome = self.record(&mut records);
            }
            let now = Instant::now();
            if outcome.is_ok() && now >= renew_at {
                renew_at = now + RENEW_INTERVAL;
                outcome = self.store.renew(&mut self.lease, wall());
            }
            if outcome.is_ok() && now >= prune_at {
                let pruned = self.store.prune(&self.lease, wall(), &self.retention);
                let more = pruned.as_ref().is_ok_and(|pruned| pruned.more);
                prune_at = now + if more { PRUNE_MORE_INTERVAL } else { PRUNE_INTERVAL };
                outcome = pruned.map(drop);
            }
            if let Err(error) = outcome {
                self.fail(batch, &error);
                return Written { store: self.store, error: Some(error) };
            }
        }
    }

    fn commit(&mut self, batch: &mut Batch) -> Result<(), StoreError> {
        if !batch.changes.is_empty() {
            let begun = Instant::now();
            self.store.commit(&self.lease, &batch.changes)?;
            self.shell.metrics.committed(batch.changes.len(), begun.elapsed());
        }
        self.shell.deliver(&batch.changes, &mut batch.effects);
        self.shell.metrics.observe(&batch.observations);
        self.shell.mail.post(&mut batch.answers);
        batch.clear();
        Ok(())
    }

    fn record(&mut self, records: &mut Vec<Record>) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        // Together, in order: one transaction for all endpoints that wait.
        let (mut deliveries, mut progress, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for record in records.drain(..) {
            deliveries.extend(record.deliveries);
            progress.extend(record.progress);
            waiting.push(record.done);
        }
        self.store.record(&self.lease, &deliveries, &progress)?;
        for done in waiting {
            let _ = done.send(());
        }
        Ok(())
    }

    /// Answers everything that is not durable, and says that the term is over.
    fn fail(&self, batch: Batch, error: &StoreError) {
        tracing::error!(%error, why = error.word(), "the store failed; the state is loaded anew");
        self.shell.metrics.commit_failed(error.word());
        let why = match error {
            StoreError::Fenced { .. } => NoAnswer::NotLeader,
            _ => NoAnswer::StoreUnavailable,
        };
        // Nothing more comes in, and nobody is told that this cell leads, before anybody is told
        // that it failed.
        self.shell.standing.send_replace(Standing::Loading);
        self.core.shut(why);
        let later = self.core.handoff().fail();
        for (to, _) in batch.answers.into_iter().chain(later.answers) {
            let _ = to.send(Err(why));
        }
        self.core.lanes().kick();
    }
}
