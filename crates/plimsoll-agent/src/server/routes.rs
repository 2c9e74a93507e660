//! The routes themselves: parse, ask, answer.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use plimsoll_api::{
    EndGuest, ExecResponse, FieldError, GuestExec, Heartbeat, LogsQuery, ProblemCode,
    check_command, outcome_status,
};
use plimsoll_host::HostInput;
use plimsoll_types::{Driver, HostCommand, HostOutcome, Millis, RefusalCode, SandboxId};

use super::{No, Shared, json, read};
use crate::calls::detail_of;
use crate::driver::{EXECS_MAX, ExecError, ExecRequest, GuestName};
use crate::metrics;

type App = State<Arc<Shared>>;
type Answer = Result<Response, No>;

/// Everything that takes the host's secret.
pub(super) fn guarded() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/capacity", get(capacity))
        .route("/v1/guests", post(start))
        .route("/v1/guests/{id}", axum::routing::delete(end))
        .route("/v1/guests/{id}/pause", post(pause))
        .route("/v1/guests/{id}/resume", post(resume))
        .route("/v1/guests/{id}/stop", post(stop))
        .route("/v1/guests/{id}/exec", post(exec))
        .route("/v1/guests/{id}/keepalive", post(keepalive))
        .route("/v1/guests/{id}/logs", get(logs))
        .route("/metrics", get(metrics))
        .fallback(async || No::new(RefusalCode::NotFound, "no such route of the agent"))
        .method_not_allowed_fallback(async || {
            No::new(ProblemCode::MethodNotAllowed, "the route does not take this method")
        })
}

/// The host's report, from a fresh measurement.
async fn capacity(State(shared): App) -> Answer {
    shared.sampler.freshen().await.map_err(|_| No::busy())?;
    let report = shared.core.ask(|host, now| host.report(now)).await.map_err(|_| No::busy())?;
    Ok(json(200, &Heartbeat::from(report)))
}

async fn start(State(shared): App, request: Request) -> Answer {
    let command: HostCommand = read(request).await?;
    check_command(&command, "start", None)?;
    command_outcome(&shared, command).await
}

async fn pause(state: App, Path(id): Path<String>, request: Request) -> Answer {
    about_guest(state, &id, "pause", request).await
}

async fn resume(state: App, Path(id): Path<String>, request: Request) -> Answer {
    about_guest(state, &id, "resume", request).await
}

async fn stop(state: App, Path(id): Path<String>, request: Request) -> Answer {
    about_guest(state, &id, "stop", request).await
}

async fn about_guest(State(shared): App, id: &str, op: &'static str, request: Request) -> Answer {
    let id = guest_id(id)?;
    let command: HostCommand = read(request).await?;
    check_command(&command, op, Some(id))?;
    command_outcome(&shared, command).await
}

async fn end(
    State(shared): App,
    Path(id): Path<String>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Answer {
    let command = EndGuest::from_pairs(&pairs)?.into_command(guest_id(&id)?);
    command_outcome(&shared, command).await
}

/// Waits for what the command comes to. The driver's own bound is what ends the wait.
async fn command_outcome(shared: &Shared, command: HostCommand) -> Answer {
    let op = command.op.word();
    let receiver = shared.core.command(Box::new(command)).map_err(|_| {
        shared.metrics.busy();
        No::busy()
    })?;
    let outcome = receiver.await.unwrap_or_else(|_| HostOutcome::Unknown {
        detail: "the agent ended while this was under way".to_owned(),
    });
    shared.metrics.command(op, &outcome);
    Ok(json(outcome_status(&outcome), &outcome))
}

/// Runs a command in a guest. Past the state machine, for nothing of the host's changes by it.
async fn exec(State(shared): App, Path(id): Path<String>, request: Request) -> Answer {
    let id = guest_id(&id)?;
    let body: GuestExec = read(request).await?;
    if body.id != id {
        let bound = format!("the id of the path, {id}");
        return Err(FieldError::new("id", body.id, bound).into());
    }
    let (name, kind) = running(&shared, id, Some(body.attempt)).await?;
    let driver = shared.drivers.get(&kind).ok_or_else(|| {
        No::new(ProblemCode::Internal, format!("this host has no {kind} driver any more"))
    })?;
    let Some(_place) = ExecPlace::take(&shared, id) else {
        let detail = format!("{EXECS_MAX} commands run in this guest, which is the bound");
        return Err(No::new(RefusalCode::Overloaded, detail).after(EXEC_AGAIN));
    };
    shared.core.input(HostInput::Active { id }).await;
    let request =
        ExecRequest { command: body.command, timeout: Duration::from_secs(body.timeout_seconds) };
    let outcome = driver.exec(&name, request).await;
    shared.core.input(HostInput::Active { id }).await;
    match outcome {
        Ok(output) => Ok(json(
            200,
            &ExecResponse {
                exit_code: (!output.timed_out).then_some(output.exit_code),
                stdout: output.stdout,
                stderr: output.stderr,
                timed_out: output.timed_out,
                truncated: output.stdout_truncated || output.stderr_truncated,
            },
        )),
        Err(error) => {
            let detail = detail_of(&error);
            Err(match error {
                ExecError::NotFound(_) => No::new(RefusalCode::NotFound, detail),
                ExecError::State { .. } => No::new(RefusalCode::Conflict, detail),
                ExecError::Invalid { .. } => No::new(RefusalCode::InvalidRequest, detail),
                ExecError::Fault(_) => No::new(ProblemCode::Internal, detail),
            })
        }
    }
}

/// When to come back for a place among a guest's commands.
const EXEC_AGAIN: Millis = Millis::from_seconds(1);

/// One command's place among those that may run in a guest at once. Dropping it gives it back.
struct ExecPlace {
    shared: Arc<Shared>,
    guest: SandboxId,
}

impl ExecPlace {
    /// `None` where as many run as may.
    fn take(shared: &Arc<Shared>, guest: SandboxId) -> Option<Self> {
        let mut all = shared.execs.lock().unwrap_or_else(PoisonError::into_inner);
        let running = all.entry(guest).or_insert(0);
        if *running >= EXECS_MAX {
            return None;
        }
        *running += 1;
        Some(Self { shared: Arc::clone(shared), guest })
    }
}

impl Drop for ExecPlace {
    fn drop(&mut self) {
        let mut all = self.shared.execs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = all.get_mut(&self.guest) {
            *running -= 1;
            if *running == 0 {
                all.remove(&self.guest);
            }
        }
    }
}

/// Somebody uses the guest.
async fn keepalive(State(shared): App, Path(id): Path<String>) -> Answer {
    let id = guest_id(&id)?;
    running(&shared, id, None).await?;
    shared.core.input(HostInput::Active { id }).await;
    Ok(json(200, &serde_json::json!({})))
}

/// The newest of a guest's output, and one byte more where there is more.
async fn logs(
    State(shared): App,
    Path(id): Path<String>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Answer {
    let id = guest_id(&id)?;
    // One more than may be asked for: so the cell learns whether there is older output.
    let bytes = LogsQuery::from_pairs(&pairs)?.bytes.saturating_add(1);
    let attempt = shared
        .core
        .ask(move |host, _| host.spec(id).map(|spec| spec.attempt))
        .await
        .map_err(|_| No::busy())?
        .ok_or_else(|| No::new(RefusalCode::NotFound, "no such guest on this host"))?;
    let folder = shared.guests.dir(&GuestName { id, attempt });
    let tail = tokio::task::spawn_blocking(move || folder.log_tail(bytes))
        .await
        .map_err(|_| No::new(ProblemCode::Internal, "the log could not be read"))?;
    Ok(([(CONTENT_TYPE, "application/octet-stream")], tail).into_response())
}

async fn metrics(State(shared): App) -> Answer {
    let gauges = Arc::clone(&shared.metrics);
    shared.core.ask(move |host, now| gauges.see(host, now)).await.map_err(|_| No::busy())?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], shared.metrics.text()).into_response())
}

fn guest_id(text: &str) -> Result<SandboxId, No> {
    text.parse().map_err(|error| FieldError::new("id", text, format!("{error}")).into())
}

/// The guest's name and driver where it runs, in the attempt meant.
async fn running(
    shared: &Shared,
    id: SandboxId,
    attempt: Option<u32>,
) -> Result<(GuestName, Driver), No> {
    let found = shared
        .core
        .ask(move |host, _| {
            let spec = host.spec(id)?;
            Some((spec.attempt, spec.driver, host.running(id).is_some()))
        })
        .await
        .map_err(|_| No::busy())?;
    match found {
        Some((known, driver, runs)) if attempt.is_none_or(|attempt| attempt == known) => {
            if runs {
                Ok((GuestName { id, attempt: known }, driver))
            } else {
                Err(No::new(RefusalCode::Conflict, "the guest does not run"))
            }
        }
        _ => Err(No::new(RefusalCode::NotFound, "no such guest on this host")),
    }
}
