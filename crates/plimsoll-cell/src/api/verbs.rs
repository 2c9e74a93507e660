//! Calls on one sandbox that change its state, wait for it, or go into it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use plimsoll_api as api;
use plimsoll_api::Problem;
use plimsoll_client::AgentError;
use plimsoll_engine::{Caller, Command, Reply, SandboxView};
use plimsoll_types::{DecisionId, RefusalCode, SandboxId, SandboxStatus};
use tokio::time::{Instant, timeout_at};

use super::named;
use super::sandboxes::{find, record, record_of};
use crate::app::App;
use crate::core::NoAnswer;
use crate::http::{Answered, Query, Reject, Tenant, json, read, with_decision};
use crate::map;
use crate::waiters::{Seen, Wait};

const WHAT: &str = "sandbox";
/// Longest wait of a pause, stop, start or resume for its host: a frozen or small guest takes
/// milliseconds, a large checkpoint minutes; what takes longer is answered as under way (202).
const TRANSITION_WAIT: Duration = Duration::from_secs(30);
/// Longest wait of an exec for a paused guest to run. Then the resume stays queued.
const WAKE_WAIT: Duration = Duration::from_secs(60);

/// A wait for what exists already.
fn join(app: &App, id: SandboxId) -> Result<Wait, Reject> {
    app.shell.waiters.join(id, true).map_err(|_| NoAnswer::Overloaded.into())
}

/// Waits until the sandbox stands somewhere else than in `passing`, at most until `until`.
/// `false` when time ran out.
async fn settled(
    app: &App,
    caller: &Caller,
    wait: &mut Wait,
    passing: &[SandboxStatus],
    until: Instant,
) -> Result<bool, Reject> {
    loop {
        if timeout_at(until, wait.changed()).await.is_err() {
            return Ok(false);
        }
        let status = match wait.seen() {
            Seen::At(status) => status,
            Seen::Gone(_) => return Ok(true),
            Seen::Nothing => find(app, caller, wait.id()).await?.row.status,
        };
        if !passing.contains(&status) {
            return Ok(true);
        }
    }
}

/// Sends a command and waits for its host to have done it: 200 in a state of `done`, else 202.
async fn transition(
    app: &App,
    tenant: Tenant,
    id: &str,
    command: impl FnOnce(SandboxId) -> Command,
    passing: &[SandboxStatus],
    done: &[SandboxStatus],
) -> Answered {
    let id = named(id, WHAT)?;
    let sees_hosts = tenant.sees_hosts();
    let mut wait = join(app, id)?;
    let until = Instant::now() + TRANSITION_WAIT;
    let reply = app.call(tenant.caller.clone(), command(id)).await?;
    let Reply::Sandbox { view, decision, .. } = reply else { return Err(Reject::unexpected()) };
    let mut view = *view;
    while passing.contains(&view.row.status)
        && settled(app, &tenant.caller, &mut wait, passing, until).await?
    {
        view = find(app, &tenant.caller, id).await?;
    }
    let reached = done.contains(&view.row.status);
    let status = if reached { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok(record_of(view, decision, status, sees_hosts))
}

pub(super) async fn pause(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let command = |id| Command::Pause { id };
    transition(&app, tenant, &id, command, &[SandboxStatus::Pausing], &[SandboxStatus::Paused])
        .await
}

/// 200 once it runs; 202 where it waits for room (`resume_requested_at` is set) or its host is
/// still at it.
pub(super) async fn resume(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let decision = app.ids.decision();
    let command = |id| Command::Resume { id, decision };
    // A resume that meets a pause under way waits for its end, and then resumes.
    let passing = [SandboxStatus::Resuming, SandboxStatus::Pausing];
    transition(&app, tenant, &id, command, &passing, &[SandboxStatus::Running]).await
}

pub(super) async fn stop(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let passing = [SandboxStatus::Running, SandboxStatus::Pausing, SandboxStatus::Paused];
    let command = |id| Command::Stop { id };
    transition(&app, tenant, &id, command, &passing, &[SandboxStatus::Stopped]).await
}

pub(super) async fn start(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let decision = app.ids.decision();
    let command = |id| Command::Start { id, decision };
    let passing = [SandboxStatus::Provisioning, SandboxStatus::Resuming, SandboxStatus::Pausing];
    transition(&app, tenant, &id, command, &passing, &[SandboxStatus::Running]).await
}

pub(super) async fn keepalive(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let id = named(&id, WHAT)?;
    let sees_hosts = tenant.sees_hosts();
    let command = Command::Keepalive { id, decision: app.ids.decision() };
    let reply = app.call(tenant.caller, command).await?;
    let waits = matches!(&reply, Reply::Sandbox { view, .. }
        if view.row.status == SandboxStatus::Paused && view.row.resume_requested_at.is_some());
    record(reply, if waits { StatusCode::ACCEPTED } else { StatusCode::OK }, sees_hosts)
}

/// 200 when the state is reached, 408 otherwise, at once where it cannot be reached any more.
pub(super) async fn wait(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
    Query(pairs): Query,
) -> Answered {
    let query = api::WaitQuery::from_pairs(&pairs)?;
    let id = named(&id, WHAT)?;
    let until = Instant::now() + Duration::from_secs(query.timeout_seconds);
    let mut wait = join(&app, id)?;
    let mut passed = false;
    loop {
        let view = find(&app, &tenant.caller, id).await?;
        let status = view.row.status;
        // A state that was passed through while this call looked the other way was reached.
        if status == query.status || passed {
            return Ok(record_of(view, None, StatusCode::OK, tenant.sees_hosts()));
        }
        let over = status.is_terminal() || Instant::now() >= until;
        let over = over || timeout_at(until, wait.changed()).await.is_err();
        if over {
            let sandbox = map::sandbox(view.row, view.place, tenant.sees_hosts());
            let detail = format!("the sandbox is {status} and was to be {}", query.status);
            return Err(Problem::wait_timeout(sandbox, detail).into());
        }
        passed = wait.seen() == Seen::At(query.status);
    }
}

/// Runs a command in a guest. Wakes a paused one and waits up to [`WAKE_WAIT`] for it.
pub(super) async fn exec(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let id = named(&id, WHAT)?;
    let body: api::ExecRequest = read(&app, request).await?;
    let (view, decision) = awake(&app, &tenant.caller, id).await?;
    let Some(done) = app.shell.calls.exec(view, body).await else {
        let detail = "the guest's host has no agent that takes calls";
        return Err(Reject::new(RefusalCode::StartFailed, detail));
    };
    let response = done.map_err(|error| unreached(error, "the command was not carried out"))?;
    let response = json(StatusCode::OK, &response);
    Ok(match decision {
        Some(decision) => with_decision(response, decision),
        None => response,
    })
}

/// The sandbox, running.
async fn awake(
    app: &App,
    caller: &Caller,
    id: SandboxId,
) -> Result<(SandboxView, Option<DecisionId>), Reject> {
    let until = Instant::now() + WAKE_WAIT;
    let mut wait = join(app, id)?;
    let mut first = None;
    loop {
        let command = Command::Touch { id, decision: app.ids.decision() };
        let reply = app.call(caller.clone(), command).await?;
        let Reply::Sandbox { view, decision, .. } = reply else {
            return Err(Reject::unexpected());
        };
        first = first.or(decision);
        let status = view.row.status;
        if status == SandboxStatus::Running {
            return Ok((*view, first));
        }
        let passing = [status, SandboxStatus::Resuming, SandboxStatus::Paused];
        if status.is_terminal() || !settled(app, caller, &mut wait, &passing, until).await? {
            let seconds = WAKE_WAIT.as_secs();
            let detail =
                format!("the sandbox is {status} after {seconds} s; its resume stays queued");
            let mut reject = Reject::new(RefusalCode::WaitingTimeout, detail);
            reject.problem.decision_id = first;
            return Err(reject);
        }
    }
}

/// The newest of what a sandbox's command has written, as its host keeps it. Wakes nobody.
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
    Query(pairs): Query,
) -> Answered {
    let query = api::LogsQuery::from_pairs(&pairs)?;
    let id = named(&id, WHAT)?;
    let view = find(&app, &tenant.caller, id).await?;
    let status = view.row.status;
    if status.is_terminal() || view.row.host.is_none() {
        let detail = format!("the sandbox is {status}: output is kept with its guest, on its host");
        return Err(Reject::new(RefusalCode::Conflict, detail));
    }
    let Some(tail) = app.shell.calls.logs(view, query.bytes).await else {
        let detail = "the guest's host has no agent that takes calls";
        return Err(Reject::new(RefusalCode::StartFailed, detail));
    };
    let tail = tail.map_err(|error| unreached(error, "the output could not be read"))?;
    Ok(json(StatusCode::OK, &api::SandboxLogs::of(id, &tail, query.bytes)))
}

/// What the agent says of the guest is the caller's; how the agent was not reached is not.
fn unreached(error: AgentError, what: &'static str) -> Reject {
    match error {
        AgentError::Refused(problem) if problem.code.refusal().is_some() => Reject::from(*problem),
        error => {
            tracing::warn!(%error, what, "a guest's host did not do what it was asked");
            let detail = match error {
                AgentError::Refused(_) => format!("the guest's host refused: {what}"),
                AgentError::NotSent(_) | AgentError::Lost(_) => {
                    format!("the guest's host did not answer: {what}")
                }
            };
            Reject::new(RefusalCode::StartFailed, detail)
        }
    }
}
