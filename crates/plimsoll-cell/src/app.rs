//! What every handler is given.

use std::sync::Arc;

use plimsoll_engine::{Caller, Command, Reply};
use plimsoll_store::{Reader, StoreError};
use plimsoll_types::{RefusalCode, Timestamp};
use tokio::sync::{Semaphore, watch};

use crate::config::CellConfig;
use crate::core::{Core, NoAnswer, Standing};
use crate::http::Reject;
use crate::ids::Ids;
use crate::replays::Replays;
use crate::shell::Shell;
use crate::webhooks::Hooks;

/// The state behind the handlers.
pub(crate) struct App {
    pub(crate) config: CellConfig,
    pub(crate) core: Arc<Core>,
    pub(crate) shell: Arc<Shell>,
    pub(crate) ids: Arc<Ids>,
    pub(crate) standing: watch::Receiver<Standing>,
    pub(crate) started_at: Timestamp,
    /// Held while a row is read, changed and written back, so that no change is lost to another.
    pub(crate) changes: tokio::sync::Mutex<()>,
    /// Answers that hold a secret, for callers that repeat their call.
    pub(crate) replays: Replays,
    /// Room for large bodies, in units of 16 KiB.
    pub(crate) bodies: Arc<Semaphore>,
    /// The sending of events.
    pub(crate) hooks: Hooks,
}

impl App {
    /// Asks the engine. A refusal is an error.
    ///
    /// # Errors
    /// When the engine refuses, or gives no answer.
    pub(crate) async fn call(&self, caller: Caller, command: Command) -> Result<Reply, Reject> {
        self.answer(self.core.call(caller, command).await)
    }

    /// Turns what the engine came back with into a reply or a rejection.
    ///
    /// # Errors
    /// When the engine refused, or gave no answer.
    pub(crate) fn answer(&self, answer: Result<Reply, NoAnswer>) -> Result<Reply, Reject> {
        match answer {
            Ok(Reply::Refused(refusal)) => Err(Reject::from(*refusal)),
            Ok(reply) => Ok(reply),
            Err(why) => Err(why.into()),
        }
    }

    /// Checks that the state is loaded and this replica leads.
    ///
    /// # Errors
    /// Says why not.
    pub(crate) fn check_leading(&self) -> Result<(), Reject> {
        match &*self.standing.borrow() {
            Standing::Leading(_) => Ok(()),
            Standing::Loading => Err(NoAnswer::Loading.into()),
            Standing::Stopped => Err(NoAnswer::Stopping.into()),
            Standing::Waiting(_) => Err(NoAnswer::StoreUnavailable.into()),
        }
    }

    /// Asks the readers' side of the store, away from the threads that serve calls.
    ///
    /// # Errors
    /// When there is no store yet, or reading fails.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Reject> {
        let reader = self.shell.reader().ok_or(NoAnswer::Loading)?;
        let asked = tokio::task::spawn_blocking(move || question(&*reader)).await;
        match asked {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                tracing::error!(%error, "the store could not be read");
                Err(Reject::new(RefusalCode::StoreUnavailable, "the store could not be read"))
            }
            Err(error) => {
                tracing::error!(%error, "a question to the store failed");
                Err(Reject::new(RefusalCode::StoreUnavailable, "the store could not be read"))
            }
        }
    }
}
