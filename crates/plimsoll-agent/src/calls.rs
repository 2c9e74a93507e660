//! Calls to drivers: bounded in time, one at a time for each guest, and overtaken by an end.

use std::collections::BTreeMap;
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use plimsoll_host::{CallId, DriverCall, DriverOp, DriverResult, FoundState, HostInput};
use plimsoll_types::{Driver, GuestStatus, PauseKind, SandboxId};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::config::CallTimeouts;
use crate::core::Core;
use crate::driver::{FinalUse, GuestDriver, GuestName, GuestState, LookError};
use crate::metrics::Metrics;

/// How long a driver may take to say how a guest stands after a call went wrong.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest detail of a failure in bytes: the first lines of a tool's complaint.
const DETAIL_BYTES_MAX: usize = 2048;

/// The drivers of this host by kind.
pub(crate) type Drivers = BTreeMap<Driver, Arc<dyn GuestDriver>>;

/// Carries out driver calls, each in a task of its own.
pub(crate) struct Calls {
    shared: Arc<Shared>,
    runtime: Handle,
}

struct Shared {
    core: Core,
    drivers: Arc<Drivers>,
    timeouts: CallTimeouts,
    metrics: Arc<Metrics>,
    running: Mutex<BTreeMap<(SandboxId, u32), UnderWay>>,
}

/// The call that is under way with a guest.
struct UnderWay {
    call: CallId,
    task: JoinHandle<()>,
}

impl Calls {
    pub(crate) fn new(
        core: Core,
        drivers: Arc<Drivers>,
        timeouts: CallTimeouts,
        metrics: Arc<Metrics>,
        runtime: Handle,
    ) -> Self {
        let running = Mutex::default();
        Self { shared: Arc::new(Shared { core, drivers, timeouts, metrics, running }), runtime }
    }

    /// Begins a call; its result comes back as an input.
    pub(crate) fn begin(&self, call: DriverCall) {
        let key = (call.id, call.attempt);
        let number = call.call;
        let mut running = self.shared.running.lock().unwrap_or_else(PoisonError::into_inner);
        // An end breaks off whatever is under way; anything else finds nothing under way.
        let overtaken = running.remove(&key).map(|under_way| under_way.task);
        let shared = Arc::clone(&self.shared);
        let task = self.runtime.spawn(async move {
            if let Some(task) = overtaken {
                task.abort();
                // What it comes to does not matter: the end clears it away.
                let _ = task.await;
            }
            shared.run(call).await;
        });
        running.insert(key, UnderWay { call: number, task });
    }
}

impl Shared {
    async fn run(self: Arc<Self>, call: DriverCall) {
        let began = Instant::now();
        let (id, word) = (call.id, call.op.word());
        tracing::debug!(guest = %id, attempt = call.attempt, op = word, "driver call");
        let performed = AssertUnwindSafe(self.perform(&call)).catch_unwind().await;
        self.tell_totals(&call).await;
        let result = performed.unwrap_or_else(|_| DriverResult::Unknown {
            detail: "the driver panicked".to_owned(),
            found: None,
        });
        if let DriverResult::Failed { detail }
        | DriverResult::Rejected { detail }
        | DriverResult::Unknown { detail, .. } = &result
        {
            tracing::warn!(guest = %id, attempt = call.attempt, op = word, detail, "driver call");
        }
        self.metrics.driver_call(word, &result, began.elapsed());
        let key = (call.id, call.attempt);
        {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            if running.get(&key).is_some_and(|under_way| under_way.call == call.call) {
                running.remove(&key);
            }
        }
        self.core.input(HostInput::DriverDone { call: call.call, result }).await;
    }

    async fn perform(&self, call: &DriverCall) -> DriverResult {
        let name = GuestName { id: call.id, attempt: call.attempt };
        let Some(kind) = call.driver else { return self.end_everywhere(&name).await };
        let Some(driver) = self.drivers.get(&kind) else {
            return DriverResult::Failed { detail: format!("this host has no {kind} driver") };
        };
        let limits = &self.timeouts;
        match &call.op {
            DriverOp::Start { guest, previous } => {
                // The attempt that was stopped goes on under its name.
                let start = if *previous == Some(name.attempt) {
                    driver.restart(guest)
                } else {
                    driver.start(guest)
                };
                match timeout(limits.start, start).await {
                    Ok(Ok(started)) => {
                        for note in started.notes {
                            tracing::info!(guest = %name, note, "started");
                        }
                        if let Some(previous) =
                            previous.filter(|previous| *previous != name.attempt)
                        {
                            self.end_previous(&**driver, name.id, previous).await;
                        }
                        DriverResult::Done
                    }
                    Ok(Err(error)) if error.is_the_guests() => {
                        DriverResult::Rejected { detail: detail_of(&error) }
                    }
                    Ok(Err(error)) => DriverResult::Failed { detail: detail_of(&error) },
                    Err(_) => self.late(&**driver, &name, "start", limits.start).await,
                }
            }
            DriverOp::Pause { kind } => {
                match timeout(limits.pause, driver.pause(&name, *kind)).await {
                    Ok(outcome) => self.changed(&**driver, &name, &call.op, outcome).await,
                    Err(_) => self.late(&**driver, &name, "pause", limits.pause).await,
                }
            }
            DriverOp::Resume { .. } => match timeout(limits.start, driver.resume(&name)).await {
                Ok(outcome) => self.changed(&**driver, &name, &call.op, outcome).await,
                Err(_) => self.late(&**driver, &name, "resume", limits.start).await,
            },
            DriverOp::Stop => match timeout(limits.stop, driver.stop(&name)).await {
                Ok(outcome) => self.changed(&**driver, &name, &call.op, outcome).await,
                Err(_) => self.late(&**driver, &name, "stop", limits.stop).await,
            },
            DriverOp::End => match timeout(limits.end, driver.end(&name)).await {
                Ok(Ok(used)) => {
                    self.used(&name, used).await;
                    DriverResult::Done
                }
                Ok(Err(error)) => DriverResult::Failed { detail: detail_of(&error) },
                Err(_) => self.late(&**driver, &name, "end", limits.end).await,
            },
        }
    }

    /// A guest whose process has been stopped or written out is not measured any more: what it
    /// used to its end is read now.
    async fn tell_totals(&self, call: &DriverCall) {
        let at_rest = matches!(
            call.op,
            DriverOp::Stop | DriverOp::Pause { kind: PauseKind::Checkpoint | PauseKind::Driver }
        );
        let Some(driver) = call.driver.filter(|_| at_rest).and_then(|kind| self.drivers.get(&kind))
        else {
            return;
        };
        let name = GuestName { id: call.id, attempt: call.attempt };
        if let Ok(Ok(usage)) = timeout(LOOK_TIMEOUT, driver.usage(&name)).await
            && let Ok(cpu_millis_total) = usage.cpu_millis_total
        {
            let egress_bytes_total = usage.egress_bytes_total;
            self.used(&name, Some(FinalUse { cpu_millis_total, egress_bytes_total })).await;
        }
    }

    async fn used(&self, name: &GuestName, used: Option<FinalUse>) {
        if let Some(used) = used {
            self.core.input(used_input(name, used)).await;
        }
    }

    /// A leftover of which only the name is known: nobody knows whose it is, and none is well.
    async fn end_everywhere(&self, name: &GuestName) -> DriverResult {
        for driver in self.drivers.values() {
            match timeout(self.timeouts.end, driver.end(name)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return DriverResult::Failed { detail: detail_of(&error) },
                Err(_) => return self.late(&**driver, name, "end", self.timeouts.end).await,
            }
        }
        DriverResult::Done
    }

    /// The attempt whose place a start has taken is not needed any more.
    async fn end_previous(&self, driver: &dyn GuestDriver, id: SandboxId, attempt: u32) {
        let name = GuestName { id, attempt };
        match timeout(self.timeouts.end, driver.end(&name)).await {
            // It had ended before, and what it used is known since.
            Ok(Ok(_)) => {}
            // The next start of the agent finds it as a leftover and ends it.
            Ok(Err(error)) => tracing::warn!(guest = %name, %error, "could not be cleared away"),
            Err(_) => tracing::warn!(guest = %name, "could not be cleared away in time"),
        }
    }

    /// A pause, resume or stop has come back. Where it failed, the driver is asked what is there:
    /// a failure that left the guest as it was is one, anything else is the new truth.
    async fn changed<E: Error>(
        &self,
        driver: &dyn GuestDriver,
        name: &GuestName,
        op: &DriverOp,
        outcome: Result<(), E>,
    ) -> DriverResult {
        let Err(error) = outcome else { return DriverResult::Done };
        let detail = detail_of(&error);
        let found = look(driver, name).await;
        let as_before = matches!(
            (op, found),
            (DriverOp::Pause { .. }, Some(FoundState::Running))
                | (DriverOp::Resume { .. }, Some(FoundState::Frozen | FoundState::Checkpointed))
                | (DriverOp::Stop, Some(FoundState::Running | FoundState::Frozen))
        );
        if as_before {
            DriverResult::Failed { detail }
        } else {
            DriverResult::Unknown { detail, found }
        }
    }

    async fn late(
        &self,
        driver: &dyn GuestDriver,
        name: &GuestName,
        what: &str,
        limit: Duration,
    ) -> DriverResult {
        let found = look(driver, name).await;
        let detail = format!("the {what} took longer than {} s", limit.as_secs());
        DriverResult::Unknown { detail, found }
    }
}

/// A guest's last counters as the state machine takes them.
pub(crate) fn used_input(name: &GuestName, used: FinalUse) -> HostInput {
    HostInput::Used {
        id: name.id,
        attempt: name.attempt,
        cpu_millis_total_used: Some(used.cpu_millis_total),
        egress_bytes_total: used.egress_bytes_total,
    }
}

/// How a guest stands, where its driver says so in time and nothing is under way with it.
async fn look(driver: &dyn GuestDriver, name: &GuestName) -> Option<FoundState> {
    match timeout(LOOK_TIMEOUT, driver.status(name)).await {
        Ok(Ok(state)) => settled(&state),
        Ok(Err(LookError::NotFound(_))) => Some(FoundState::Gone),
        Ok(Err(LookError::Fault(_))) | Err(_) => None,
    }
}

/// A driver's word for a guest as the state machine takes it; `None` while something is under
/// way.
pub(crate) fn settled(state: &GuestState) -> Option<FoundState> {
    match state.status {
        GuestStatus::Running => Some(FoundState::Running),
        GuestStatus::Paused if state.paused == Some(PauseKind::Checkpoint) => {
            Some(FoundState::Checkpointed)
        }
        GuestStatus::Paused => Some(FoundState::Frozen),
        GuestStatus::Exited => {
            Some(FoundState::Exited { code: state.exit.as_ref().and_then(|exit| exit.code) })
        }
        GuestStatus::Starting
        | GuestStatus::Pausing
        | GuestStatus::Resuming
        | GuestStatus::Ending => None,
    }
}

/// An error with its causes, for people.
pub(crate) fn detail_of(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    let mut end = text.len().min(DETAIL_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
