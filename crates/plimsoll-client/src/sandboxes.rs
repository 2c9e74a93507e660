//! Sandboxes.

use std::time::Duration;

use plimsoll_api::{
    CreateSandbox, ExecRequest, ExecResponse, ForkSandbox, ListSandboxes, LogsQuery, Page,
    PatchSandbox, Sandbox, SandboxLogs, WaitQuery,
};
use plimsoll_types::SandboxId;

use crate::call::Call;
use crate::error::Error;
use crate::retry::Repeat;
use crate::transport::Client;

/// What a create that answers once running may take beside its wait for room: three starts of a
/// minute each.
const START_WAIT: Duration = Duration::from_secs(180);
/// What a call that wakes a guest waits at most.
const WAKE_WAIT: Duration = Duration::from_secs(60);

/// How to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// The caller's own key for this create; one is made where absent.
    pub idempotency_key: Option<String>,
    /// Answer at once with `provisioning`, and not once it runs.
    pub run_async: bool,
}

/// How a long poll came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The state was reached.
    Reached(Box<Sandbox>),
    /// It was not, in time; the record as it stands.
    NotYet(Box<Sandbox>),
}

fn one(id: SandboxId) -> String {
    format!("/v1/sandboxes/{id}")
}

impl Client {
    /// Creates a sandbox; where it waits, the record says `queued`.
    ///
    /// # Errors
    /// [`Error::Refused`] for good, [`Error::CapacityUnavailable`] where patience ended.
    pub async fn create_sandbox(
        &self,
        body: &CreateSandbox,
        options: &CreateOptions,
    ) -> Result<Sandbox, Error> {
        let call = Call::post("/v1/sandboxes")
            .query(run_async(options.run_async))
            .body(body)?
            .idempotent(options.idempotency_key.as_deref())?
            .service_wait(START_WAIT + Duration::from_secs(body.wait_seconds));
        self.call(call).await
    }

    /// A page of sandboxes.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn sandboxes(&self, query: &ListSandboxes) -> Result<Page<Sandbox>, Error> {
        self.call(Call::get("/v1/sandboxes").query(query.to_pairs())).await
    }

    /// One sandbox.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn sandbox(&self, id: SandboxId) -> Result<Sandbox, Error> {
        self.call(Call::get(one(id))).await
    }

    /// Changes a sandbox.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn patch_sandbox(
        &self,
        id: SandboxId,
        body: &PatchSandbox,
    ) -> Result<Sandbox, Error> {
        self.call(Call::patch(one(id)).body(body)?).await
    }

    /// Terminates a sandbox; answers the record, which may still be `terminating`.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn delete_sandbox(&self, id: SandboxId) -> Result<Sandbox, Error> {
        self.call(Call::delete(one(id))).await
    }

    /// Pauses a sandbox; answers the record, which may still be `pausing`.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn pause_sandbox(&self, id: SandboxId) -> Result<Sandbox, Error> {
        self.act(id, "pause").await
    }

    /// Resumes a sandbox; where it waits for a slot, the record is still `paused` and has
    /// `resume_requested_at`.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn resume_sandbox(&self, id: SandboxId) -> Result<Sandbox, Error> {
        self.act(id, "resume").await
    }

    /// Ends a sandbox's process and keeps its record, slot and disk.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn stop_sandbox(&self, id: SandboxId) -> Result<Sandbox, Error> {
        self.act(id, "stop").await
    }

    /// Starts a stopped sandbox.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn start_sandbox(&self, id: SandboxId) -> Result<Sandbox, Error> {
        self.act(id, "start").await
    }

    /// Counts as activity, and wakes an idled sandbox.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn keepalive_sandbox(&self, id: SandboxId) -> Result<Sandbox, Error> {
        self.act(id, "keepalive").await
    }

    async fn act(&self, id: SandboxId, what: &str) -> Result<Sandbox, Error> {
        let call = Call::post(format!("{}/{what}", one(id))).service_wait(WAKE_WAIT);
        self.call(call).await
    }

    /// Runs a command in a sandbox, waking it first. Repeated only where it certainly did not run;
    /// a command under way is not cut off by the deadline of retries.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`]; transport errors after which it may have run come back as they
    /// are.
    pub async fn exec(&self, id: SandboxId, body: &ExecRequest) -> Result<ExecResponse, Error> {
        let call = Call::post(format!("{}/exec", one(id)))
            .body(body)?
            .repeat(Repeat::IfUndone)
            .service_wait(WAKE_WAIT + Duration::from_secs(body.timeout_seconds))
            .outlives_deadline();
        self.call(call).await
    }

    /// The newest of what a sandbox's command has written.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn sandbox_logs(
        &self,
        id: SandboxId,
        query: &LogsQuery,
    ) -> Result<SandboxLogs, Error> {
        self.call(Call::get(format!("{}/logs", one(id))).query(query.to_pairs())).await
    }

    /// A new sandbox from this one's checkpoint.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`].
    pub async fn fork_sandbox(
        &self,
        id: SandboxId,
        body: &ForkSandbox,
        options: &CreateOptions,
    ) -> Result<Sandbox, Error> {
        let call = Call::post(format!("{}/fork", one(id)))
            .query(run_async(options.run_async))
            .body(body)?
            .idempotent(options.idempotency_key.as_deref())?
            .service_wait(START_WAIT + Duration::from_secs(body.wait_seconds));
        self.call(call).await
    }

    /// Waits for a state.
    ///
    /// # Errors
    /// As [`Self::create_sandbox`]. A state that is not reached in time is no error.
    pub async fn wait_sandbox(&self, id: SandboxId, query: &WaitQuery) -> Result<Waited, Error> {
        let call = Call::get(format!("{}/wait", one(id)))
            .query(query.to_pairs())
            .service_wait(Duration::from_secs(query.timeout_seconds))
            .outlives_deadline();
        match self.send(&call).await {
            Ok(answer) => answer.read().map(Waited::Reached),
            Err(Error::Refused(mut refused)) if refused.status == 408 => {
                let record = refused.problem.as_mut().and_then(|problem| problem.sandbox.take());
                record.map(Waited::NotYet).ok_or(Error::Refused(refused))
            }
            Err(error) => Err(error),
        }
    }
}

fn run_async(wanted: bool) -> plimsoll_api::Pairs {
    if wanted { vec![("async".into(), "true".into())] } else { Vec::new() }
}
