//! Carries out the engine's effects on hosts, a bounded number at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_api::{ExecRequest, ExecResponse, FieldError, GuestExec, HeartbeatDefaults, Secret};
use plimsoll_client::{AgentClient, AgentError, AgentTarget};
use plimsoll_engine::rows::SandboxRow;
use plimsoll_engine::{Effect, Input, SandboxView, Token};
use plimsoll_types::{HostCommand, HostId, HostOp, HostOutcome, HostReport, Millis, PoolName};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use crate::clock::wall;
use crate::core::{Core, NoAnswer};
use crate::metrics::HostCalls;

/// Most calls under way to one host: its own bound on starts is below that, and pauses, ends and a
/// fresh question must still come through beside them.
const CALLS_PER_HOST_MAX: usize = 64;
/// Most calls under way in all: one connection each.
const CALLS_MAX: usize = 2_048;
/// Most calls that wait or are under way. Beyond it a command comes back at once as not known, and
/// the engine repeats it later; some 2 KiB each.
const CALLS_WAITING_MAX: usize = 50_000;
/// Above so many hosts, those without a call under way are forgotten here.
const HOSTS_KEPT_MAX: usize = 16_384;
/// An outcome that finds the lane full, or the state not loaded, is handed over again after this
/// long.
const HAND_OVER_INTERVAL: Duration = Duration::from_millis(100);
/// An outcome that could not be handed over for so long is let go: the engine has repeated the
/// command by then.
const HAND_OVER_MAX: Duration = Duration::from_secs(60);
/// What an exec may take beyond the command's own limit: the way there and back.
const EXEC_SLACK: Duration = Duration::from_secs(10);

/// What a question for a guest's output may take: half a MiB from a disk that is busy.
const LOGS_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Inner {
    core: Arc<Core>,
    agent: AgentClient,
    default_pool: PoolName,
    runtime: Handle,
    waiting: Arc<Semaphore>,
    all: Semaphore,
    hosts: Mutex<HashMap<HostId, Arc<Semaphore>>>,
}

/// The way to hosts.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    inner: Arc<Inner>,
}

impl Calls {
    /// The way to hosts, on this runtime.
    pub(crate) fn new(
        core: Arc<Core>,
        agent: AgentClient,
        default_pool: PoolName,
        runtime: Handle,
    ) -> Self {
        let inner = Inner {
            core,
            agent,
            default_pool,
            runtime,
            waiting: Arc::new(Semaphore::new(CALLS_WAITING_MAX)),
            all: Semaphore::new(CALLS_MAX),
            hosts: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Runs a command in a guest. `None` where its host has no agent that takes calls.
    ///
    /// # Errors
    /// When the agent refuses or cannot be reached.
    pub(crate) async fn exec(
        &self,
        view: SandboxView,
        exec: ExecRequest,
    ) -> Option<Result<ExecResponse, AgentError>> {
        let (address, secret) = view.agent?;
        let ExecRequest { command, timeout_seconds } = exec;
        let SandboxRow { id, attempt, .. } = view.row;
        let exec = GuestExec { id, attempt, command, timeout_seconds };
        Some(self.inner.agent.exec(&target(address, secret), &exec, EXEC_SLACK).await)
    }

    /// The newest of a guest's output. `None` where its host has no agent that takes calls.
    ///
    /// # Errors
    /// When the agent refuses or cannot be reached.
    pub(crate) async fn logs(
        &self,
        view: SandboxView,
        bytes: usize,
    ) -> Option<Result<Vec<u8>, AgentError>> {
        let (address, secret) = view.agent?;
        let id = view.row.id;
        Some(self.inner.agent.logs(&target(address, secret), id, bytes, LOGS_WAIT).await)
    }

    /// Carries out an effect on a host and brings back what came of it. Returns at once.
    pub(crate) fn submit(&self, metrics: &HostCalls, effect: Effect) {
        let inner = Arc::clone(&self.inner);
        let metrics = metrics.clone();
        let Ok(place) = Arc::clone(&inner.waiting).try_acquire_owned() else {
            let back = without_call(effect, "too many calls to hosts are under way");
            self.inner.runtime.spawn(async move { inner.hand_over(back).await });
            return;
        };
        self.inner.runtime.spawn(async move {
            let back = inner.carry_out(effect).await;
            count(&metrics, &back);
            inner.hand_over(back).await;
            drop::<OwnedSemaphorePermit>(place);
        });
    }
}

/// Counts a call by what it was and how it ended.
fn count(metrics: &HostCalls, back: &Back) {
    match back {
        Some(Input::Outcome { command, outcome, .. }) => {
            let word = match outcome {
                HostOutcome::Done => "done",
                HostOutcome::Refused { .. } => "refused",
                HostOutcome::Failed { .. } => "failed",
                HostOutcome::Fenced { .. } => "fenced",
                HostOutcome::Unknown { .. } => "unknown",
            };
            metrics.called(command.op.word(), word);
        }
        Some(Input::Report { .. }) => metrics.called("probe", "done"),
        Some(Input::ProbeFailed { .. }) => metrics.called("probe", "failed"),
        _ => {}
    }
}

/// What a call to a host brought.
type Back = Option<Input>;

/// What to bring back of an effect that cannot be carried out.
fn without_call(effect: Effect, why: &str) -> Back {
    match effect {
        Effect::HostCommand { host, command, .. } => {
            Some(outcome(host, command, HostOutcome::Unknown { detail: why.to_owned() }))
        }
        Effect::Unreachable { host, command } => {
            let detail = "the host has said no address".to_owned();
            Some(outcome(host, command, HostOutcome::Failed { detail }))
        }
        Effect::ProbeHost { host, .. } => Some(Input::ProbeFailed { host }),
        Effect::SandboxChanged { .. } | Effect::KeysChanged | Effect::Events => None,
    }
}

/// Why a host's answer to a fresh question does not count.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Field(#[from] FieldError),
}

fn target(address: String, secret: Option<String>) -> AgentTarget {
    AgentTarget { address, secret: secret.map(Secret::new) }
}

/// What a command without an outcome of the agent's comes to. Only a first start that never left
/// is known to have begun nothing; a repeated one may have arrived the time before, and an end
/// that never left has ended nothing.
fn failed(command: &HostCommand, delay: Millis, error: AgentError) -> HostOutcome {
    let first_start = matches!(command.op, HostOp::Start { .. }) && delay == Millis::ZERO;
    match error {
        AgentError::NotSent(detail) if first_start => HostOutcome::Failed { detail },
        error => HostOutcome::Unknown { detail: error.to_string() },
    }
}

fn outcome(host: HostId, command: Box<HostCommand>, outcome: HostOutcome) -> Input {
    Input::Outcome { host, command, outcome }
}

impl Inner {
    fn of_host(&self, host: &HostId) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() > HOSTS_KEPT_MAX {
            hosts.retain(|_, calls| Arc::strong_count(calls) > 1);
        }
        let calls = hosts.entry(host.clone());
        Arc::clone(calls.or_insert_with(|| Arc::new(Semaphore::new(CALLS_PER_HOST_MAX))))
    }

    async fn carry_out(&self, effect: Effect) -> Back {
        match effect {
            Effect::HostCommand { host, address, secret, command, timeout, delay } => {
                if delay > Millis::ZERO {
                    sleep(Duration::from_millis(delay.get())).await;
                }
                let limit = Duration::from_millis(timeout.get());
                let deadline = Instant::now() + limit;
                let target = target(address, secret);
                let call = self.agent.try_command(&target, &command, limit);
                let result = match timeout_at(deadline, self.bounded(&host, call)).await {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(error)) => failed(&command, delay, error),
                    Err(_) => {
                        HostOutcome::Unknown { detail: format!("no answer within {timeout}") }
                    }
                };
                Some(outcome(host, command, result))
            }
            Effect::ProbeHost { host, address, secret, timeout } => {
                let limit = Duration::from_millis(timeout.get());
                let target = target(address, secret);
                let call = self.capacity(&host, &target, limit);
                match timeout_at(Instant::now() + limit, self.bounded(&host, call)).await {
                    Ok(Ok(report)) => {
                        let report = Box::new(report);
                        Some(Input::Report { token: Token(0), report, probe: true })
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(%host, %error, "a host did not answer a fresh question");
                        Some(Input::ProbeFailed { host })
                    }
                    Err(_) => Some(Input::ProbeFailed { host }),
                }
            }
            other => without_call(other, "no call"),
        }
    }

    async fn capacity(
        &self,
        host: &HostId,
        target: &AgentTarget,
        limit: Duration,
    ) -> Result<HostReport, ProbeError> {
        let beat = self.agent.capacity(target, limit).await?;
        let pool = self.default_pool.clone();
        let defaults = HeartbeatDefaults { pool, received_at: wall() };
        Ok(beat.into_report(host.clone(), &defaults)?)
    }

    /// Makes a call when its host and the cell have room for it.
    async fn bounded<T>(&self, host: &HostId, call: impl Future<Output = T>) -> T {
        let of_host = self.of_host(host);
        // The semaphores are never closed.
        let _own = of_host.acquire().await;
        let _all = self.all.acquire().await;
        call.await
    }

    async fn hand_over(&self, back: Back) {
        let Some(mut input) = back else { return };
        let give_up = Instant::now() + HAND_OVER_MAX;
        loop {
            match self.core.host_says(input) {
                Ok(()) | Err((NoAnswer::Stopping, _)) => return,
                Err((why, again)) if Instant::now() >= give_up => {
                    tracing::warn!(%why, input = ?kind(&again), "what a host answered was let go");
                    return;
                }
                Err((_, again)) => input = again,
            }
            sleep(HAND_OVER_INTERVAL).await;
        }
    }
}

fn kind(input: &Input) -> &'static str {
    match input {
        Input::Outcome { .. } => "outcome",
        Input::Report { .. } => "report",
        _ => "probe",
    }
}
