//! Creates and forks: from the call to a sandbox that runs, waits, or was refused.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use plimsoll_engine::rows::SandboxRow;
use plimsoll_engine::{Caller, Command, Read, Refusal, Reply, SandboxView};
use plimsoll_types::{DecisionId, OnFull, RefusalCode, SandboxId, SandboxStatus};
use tokio::time::{Instant, timeout, timeout_at};

use crate::app::App;
use crate::core::NoAnswer;
use crate::http::{Answered, Reject, json, with_decision};
use crate::map;
use crate::waiters::{Seen, Wait};

/// A create that joined another one under the same key, which was then withdrawn, is tried afresh
/// at most so often: each time somebody else would have to leave at the same moment.
const JOINS_MAX: usize = 3;

/// How long a call that finds its sandbox gone waits to be told why. Both come from one batch of
/// the engine's work and are handed out one after the other; where nobody says why, others have
/// withdrawn it, and so long costs nothing.
const GONE_WAIT: Duration = Duration::from_millis(250);

/// What a create-shaped call asks for.
pub(super) struct Ask {
    /// Who asks.
    pub(super) caller: Caller,
    /// Answered at once, whatever the state.
    pub(super) at_once: bool,
    /// What becomes of it when it has waited in vain.
    pub(super) on_full: OnFull,
    /// How long it waits in the queue.
    pub(super) wait: Duration,
    /// Whether the answer shows hosts.
    pub(super) sees_hosts: bool,
}

impl Ask {
    /// What the engine is told: who waits before giving up is queued meanwhile.
    pub(super) fn engine_on_full(&self) -> OnFull {
        let waits = self.wait > Duration::ZERO && !self.at_once;
        if waits { OnFull::Queue } else { self.on_full }
    }
}

/// The wait of a create. Dropped before the caller was told of the sandbox, it withdraws the
/// sandbox unless somebody else has joined: a caller that goes away leaves no guest that nobody
/// owns.
struct Owner<'a> {
    app: &'a App,
    caller: &'a Caller,
    wait: Option<Wait>,
}

impl<'a> Owner<'a> {
    fn join(app: &'a App, caller: &'a Caller, id: SandboxId, owned: bool) -> Result<Self, Reject> {
        let wait = app.shell.waiters.join(id, owned);
        let wait = wait.map_err(|_| Reject::from(NoAnswer::Overloaded))?;
        Ok(Self { app, caller, wait: Some(wait) })
    }

    fn wait(&mut self) -> Result<&mut Wait, Reject> {
        self.wait.as_mut().ok_or_else(Reject::unexpected)
    }

    /// The caller is told of the sandbox.
    fn told(mut self) {
        if let Some(wait) = self.wait.take() {
            wait.told();
        }
    }

    /// There is nothing to withdraw.
    fn forget(mut self) {
        self.wait = None;
    }
}

impl Drop for Owner<'_> {
    fn drop(&mut self) {
        let Some(mut wait) = self.wait.take() else { return };
        if wait.abandon() {
            let command = Command::Withdraw { id: wait.id(), gone: true };
            if let Err(why) = self.app.core.send(self.caller.clone(), command) {
                tracing::warn!(id = %wait.id(), %why, "a create whose caller left stays");
            }
        }
    }
}

/// How one attempt ended.
enum Attempt {
    Done(Response),
    /// What it joined was withdrawn by others.
    Again,
}

/// Carries a create-shaped call through. `command` builds the engine's command anew for each
/// attempt.
///
/// # Errors
/// When it is refused, or its start fails.
pub(super) async fn create(
    app: &Arc<App>,
    ask: Ask,
    command: impl Fn(SandboxId, DecisionId) -> Command,
) -> Answered {
    for _ in 0..JOINS_MAX {
        if let Attempt::Done(response) = attempt(app, &ask, &command).await? {
            return Ok(response);
        }
    }
    Err(Reject::new(
        RefusalCode::Conflict,
        "others withdrew the sandbox of this idempotency key again and again",
    ))
}

async fn attempt(
    app: &Arc<App>,
    ask: &Ask,
    command: &impl Fn(SandboxId, DecisionId) -> Command,
) -> Result<Attempt, Reject> {
    let id = app.ids.sandbox();
    let mut owner = Owner::join(app, &ask.caller, id, false)?;
    let answer = app.core.call(ask.caller.clone(), command(id, app.ids.decision())).await;
    let (view, decision) = match app.answer(answer) {
        Ok(Reply::Sandbox { view, decision, .. }) => (view, decision),
        Ok(_) => {
            owner.forget();
            return Err(Reject::unexpected());
        }
        Err(reject) => {
            // Refused, or not known: then the key tells on retry.
            owner.forget();
            return Err(reject);
        }
    };
    let mut view = *view;
    if view.row.id != id {
        // The key is bound already: join whoever waits for that one, and look again, because it
        // may have changed before this call had joined.
        owner.forget();
        owner = Owner::join(app, &ask.caller, view.row.id, true)?;
        match look_again(app, &mut owner).await? {
            Some(now) => view = now,
            None => return Ok(Attempt::Again),
        }
    }
    follow(app, ask, owner, view, decision).await
}

/// Follows a sandbox until it has an answer.
async fn follow(
    app: &Arc<App>,
    ask: &Ask,
    mut owner: Owner<'_>,
    view: SandboxView,
    decision: Option<DecisionId>,
) -> Result<Attempt, Reject> {
    let begun = Instant::now();
    let queue_until = begun + ask.wait;
    let mut start_until = begun + app.config.limits.start_wait;
    let decision = decision.or(Some(view.row.decision_id));
    let mut status = view.row.status;
    // The record, where it is known to stand as `status` says.
    let mut view = Some(view);
    loop {
        let until = match status {
            _ if ask.at_once => begun,
            SandboxStatus::Queued => queue_until,
            SandboxStatus::Provisioning => start_until,
            _ => begun,
        };
        if Instant::now() < until {
            let wait = owner.wait()?;
            if timeout_at(until, wait.changed()).await.is_err() {
                continue;
            }
            view = None;
            match wait.seen() {
                Seen::At(now) => {
                    if now == SandboxStatus::Provisioning && now != status {
                        start_until = Instant::now() + app.config.limits.start_wait;
                    }
                    status = now;
                    continue;
                }
                Seen::Gone(refusal) => {
                    owner.forget();
                    return match refusal {
                        Some(refusal) => Err(Refusal::clone(&refusal).into()),
                        None => Ok(Attempt::Again),
                    };
                }
                // The state was loaded anew, and changes may have been missed.
                Seen::Nothing => {}
            }
        }
        let now = match view.take() {
            Some(view) => view,
            None => match look_again(app, &mut owner).await? {
                Some(view) => view,
                None => return Ok(Attempt::Again),
            },
        };
        let over = now.row.status == status && Instant::now() >= until;
        status = now.row.status;
        if !over {
            view = Some(now);
        } else if status == SandboxStatus::Queued && ask.on_full == OnFull::Reject && !ask.at_once {
            // Waited in vain. It may have been admitted in this very moment: then it goes on.
            let admitted = withdraw(app, ask, &mut owner, decision).await?;
            status = admitted.row.status;
            view = Some(admitted);
            start_until = Instant::now() + app.config.limits.start_wait;
        } else {
            return conclude(ask, owner, now, decision).map(Attempt::Done);
        }
    }
}

/// The sandbox that a call waits for, as it stands now; `None` where it is gone.
///
/// # Errors
/// The refusal that ended it, where one did. When the engine gives no answer: what becomes of the
/// sandbox is not known, and the key tells on retry.
async fn look_again(app: &App, owner: &mut Owner<'_>) -> Result<Option<SandboxView>, Reject> {
    let id = owner.wait()?.id();
    let found = look(app, owner.caller, id).await;
    if matches!(found, Ok(Some(_))) {
        return found;
    }
    let Some(mut wait) = owner.wait.take() else { return found };
    if matches!(found, Ok(None)) {
        // It may have been refused while this call looked, and its end be told only now.
        if !matches!(wait.seen(), Seen::Gone(_)) {
            let _ = timeout(GONE_WAIT, wait.changed()).await;
        }
        if let Seen::Gone(Some(refusal)) = wait.seen() {
            return Err(Refusal::clone(&refusal).into());
        }
    }
    found
}

/// Withdraws a create that has waited its longest, unless another call waits for the same one.
/// Its record where it was admitted meanwhile.
///
/// # Errors
/// The refusal.
async fn withdraw(
    app: &App,
    ask: &Ask,
    owner: &mut Owner<'_>,
    decision: Option<DecisionId>,
) -> Result<SandboxView, Reject> {
    let wait = owner.wait()?;
    if !wait.is_last() {
        let detail = format!("there was no room within {} s", ask.wait.as_secs());
        let mut reject = Reject::new(RefusalCode::NoCapacity, detail);
        reject.problem.decision_id = decision;
        owner.wait = None;
        return Err(reject);
    }
    let command = Command::Withdraw { id: wait.id(), gone: false };
    let answer = app.core.call(ask.caller.clone(), command).await;
    match app.answer(answer) {
        Ok(Reply::Sandbox { view, .. }) => Ok(*view),
        Ok(_) => Err(Reject::unexpected()),
        Err(reject) => {
            owner.wait = None;
            Err(reject)
        }
    }
}

/// Answers with the sandbox as it stands after all waiting.
fn conclude(
    ask: &Ask,
    owner: Owner<'_>,
    view: SandboxView,
    decision: Option<DecisionId>,
) -> Answered {
    let SandboxView { row, place, .. } = view;
    let status = match row.status {
        SandboxStatus::Failed => {
            owner.told();
            return Err(start_failed(&row, decision));
        }
        SandboxStatus::Queued => StatusCode::ACCEPTED,
        _ => StatusCode::CREATED,
    };
    let response = json(status, &map::sandbox(row, place, ask.sees_hosts));
    owner.told();
    Ok(match decision {
        Some(decision) => with_decision(response, decision),
        None => response,
    })
}

/// A start that has failed for good.
fn start_failed(row: &SandboxRow, decision: Option<DecisionId>) -> Reject {
    let why = row.reason.as_deref().unwrap_or("the host gave no reason");
    let detail = format!("sandbox {} could not be started: {why}", row.id);
    let mut reject = Reject::new(RefusalCode::StartFailed, detail);
    reject.problem.decision_id = decision;
    reject
}

/// One sandbox as the engine has it now; `None` where it has none of this id.
///
/// # Errors
/// When the engine gives no answer.
pub(super) async fn look(
    app: &App,
    caller: &Caller,
    id: SandboxId,
) -> Result<Option<SandboxView>, Reject> {
    match app.core.call(caller.clone(), Command::Read(Read::Sandbox(id))).await {
        Ok(Reply::Sandbox { view, .. }) => Ok(Some(*view)),
        Ok(Reply::Refused(refusal)) if refusal.code == RefusalCode::NotFound => Ok(None),
        Ok(Reply::Refused(refusal)) => Err(Reject::from(*refusal)),
        Ok(_) => Err(Reject::unexpected()),
        Err(why) => Err(why.into()),
    }
}
