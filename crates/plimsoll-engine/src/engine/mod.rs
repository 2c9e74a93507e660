//! The engine itself.

use plimsoll_types::Timestamp;

use crate::command::Input;
use crate::config::EngineConfig;
use crate::output::Output;
use crate::rows::Rows;

/// Why rows do not make an engine.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A row names something that is not there.
    #[error("{table} row {row} names {missing}, which does not exist")]
    Dangling {
        /// The table.
        table: &'static str,
        /// The row's key.
        row: String,
        /// What it names.
        missing: String,
    },
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its id, such as `I3`.
    pub id: &'static str,
    /// What was found.
    pub detail: String,
}

/// One cell's state.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    epoch: u64,
}

impl Engine {
    /// An engine over the rows of a store, led under `epoch`. What must exist and does not (the
    /// default pool, plan, tenant) is made, and written with the first output.
    ///
    /// # Errors
    /// When the rows contradict each other.
    pub fn restore(
        config: EngineConfig,
        epoch: u64,
        rows: Rows,
        now: Timestamp,
        out: &mut Output,
    ) -> Result<Self, RestoreError> {
        let _ = (rows, now, out);
        Ok(Self { config, epoch })
    }

    /// Applies one input.
    pub fn handle(&mut self, now: Timestamp, input: Input, out: &mut Output) {
        let _ = (now, input, out, &self.config, self.epoch);
    }

    /// When [`Input::Tick`] is due next, if nothing else happens.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        None
    }

    /// Checks every invariant by brute force over all records. Slow: for tests and the simulator.
    #[must_use]
    pub fn check(&self, now: Timestamp) -> Vec<Violation> {
        let _ = now;
        Vec::new()
    }
}
