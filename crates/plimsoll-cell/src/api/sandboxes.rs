//! Sandboxes: create, fork, list, show, change, end.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use plimsoll_api as api;
use plimsoll_api::FieldError;
use plimsoll_engine::rows::{Role, SandboxRow};
use plimsoll_engine::{Caller, Command, Read, Reply, SandboxFilter, SandboxView};
use plimsoll_types::{OnFull, SandboxId};

use super::create::{self, Ask, look};
use super::{cursor, idempotency_key, named};
use crate::app::App;
use crate::http::{
    Answered, Query, Reject, Tenant, json, page, read, read_optional, with_decision,
};
use crate::map;

const WHAT: &str = "sandbox";

/// `?async=true` answers a create at once.
fn at_once(pairs: &[(String, String)]) -> Result<bool, Reject> {
    let mut at_once = false;
    for (name, value) in pairs {
        at_once = match (name.as_str(), value.as_str()) {
            ("async", "true") => true,
            ("async", "false") => false,
            ("async", _) => return Err(FieldError::new("async", value, "true or false").into()),
            _ => {
                let bound = "one of the known parameters: async";
                return Err(FieldError::new(name, "an unknown parameter", bound).into());
            }
        };
    }
    Ok(at_once)
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Query(pairs): Query,
    request: Request,
) -> Answered {
    let at_once = at_once(&pairs)?;
    let key = idempotency_key(request.headers())?;
    let body: api::CreateSandbox = read(&app, request).await?;
    let key = key.map(|key| (key, map::fingerprint(&body)));
    let ask = Ask {
        sees_hosts: tenant.sees_hosts(),
        caller: tenant.caller,
        at_once,
        on_full: body.on_full,
        wait: Duration::from_secs(body.wait_seconds),
    };
    let on_full = ask.engine_on_full();
    create::create(&app, ask, move |id, decision| {
        let create = map::create(body.clone(), id, decision, key.clone(), on_full, at_once);
        Command::Create(Box::new(create))
    })
    .await
}

pub(super) async fn fork(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(from): Path<String>,
    Query(pairs): Query,
    request: Request,
) -> Answered {
    let at_once = at_once(&pairs)?;
    let from: SandboxId = named(&from, WHAT)?;
    let key = idempotency_key(request.headers())?;
    let body: api::ForkSandbox = read_optional(&app, request).await?;
    // The parent is part of what the key stands for.
    let key = key.map(|key| (key, map::fingerprint(&(from, &body))));
    let ask = Ask {
        sees_hosts: tenant.sees_hosts(),
        caller: tenant.caller,
        at_once,
        on_full: body.on_full.unwrap_or(OnFull::Reject),
        wait: Duration::from_secs(body.wait_seconds),
    };
    let on_full = ask.engine_on_full();
    create::create(&app, ask, move |id, decision| {
        let fork = map::fork(body.clone(), from, id, decision, key.clone(), on_full, at_once);
        Command::Fork(Box::new(fork))
    })
    .await
}

/// One sandbox: from the engine, or from the store once the engine has let it go.
///
/// # Errors
/// When there is none of this id, or it is another tenant's.
pub(super) async fn find(app: &App, caller: &Caller, id: SandboxId) -> Result<SandboxView, Reject> {
    if let Some(view) = look(app, caller, id).await? {
        return Ok(view);
    }
    let row = app.read(move |reader| reader.sandbox(id)).await?;
    row.filter(|row| caller.role == Role::Operator || row.tenant == caller.tenant)
        .map(|row| SandboxView { row, agent: None, place: None })
        .ok_or_else(|| Reject::not_found(WHAT))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let view = find(&app, &tenant.caller, named(&id, WHAT)?).await?;
    Ok(json(StatusCode::OK, &map::sandbox(view.row, view.place, tenant.sees_hosts())))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListSandboxes::from_pairs(&pairs)?;
    let of = match (tenant.caller.role, query.tenant) {
        (Role::Operator, Some(named)) => Some(named),
        (Role::Operator, None) if !tenant.named => None,
        (_, Some(named)) if named != tenant.caller.tenant => {
            return Err(FieldError::new("tenant", named, "your own, or absent").into());
        }
        _ => Some(tenant.caller.tenant.clone()),
    };
    let limit = query.page.limit();
    // The engine filters by one state and one label; what else was asked for is filtered here, so
    // that such a page may be short and still have a next one.
    let filter = SandboxFilter {
        tenant: of,
        status: query.statuses.first().copied().filter(|_| query.statuses.len() == 1),
        pool: query.pool,
        label: query.labels.first().cloned(),
        after: cursor(query.page.cursor.as_deref())?,
        limit,
    };
    let command = Command::Read(Read::Sandboxes(filter.clone()));
    let (live, more_live) = match app.call(tenant.caller.clone(), command).await? {
        Reply::Sandboxes { items, next } => (items, next.is_some()),
        _ => return Err(Reject::unexpected()),
    };
    let ends = query.statuses.is_empty() || query.statuses.iter().any(|it| it.is_terminal());
    let (ended, more_ended) = if ends {
        let page = app.read(move |reader| reader.sandboxes_ended(&filter)).await?;
        let more = page.next.is_some();
        (page.items, more)
    } else {
        (Vec::new(), false)
    };
    let (views, next) = merge(live, more_live, ended, more_ended, limit);
    let wanted = |row: &SandboxRow| {
        (query.statuses.is_empty() || query.statuses.contains(&row.status))
            && query.labels.iter().all(|(key, value)| row.labels.get(key) == Some(value.as_str()))
    };
    let sees_hosts = tenant.sees_hosts();
    let items = views
        .into_iter()
        .filter(|view| wanted(&view.row))
        .map(|view| map::sandbox(view.row, view.place, sees_hosts));
    Ok(page(items.collect(), next.map(|id| id.to_string())))
}

/// One page out of two sorted ones. What both have, the engine has newer. Neither page's tail may
/// be passed over: the merged page ends where the shorter knowledge ends.
fn merge(
    live: Vec<SandboxView>,
    more_live: bool,
    ended: Vec<SandboxRow>,
    more_ended: bool,
    limit: usize,
) -> (Vec<SandboxView>, Option<SandboxId>) {
    let known_to = [
        live.last().filter(|_| more_live).map(|view| view.row.id),
        ended.last().filter(|_| more_ended).map(|row| row.id),
    ];
    let known_to = known_to.into_iter().flatten().min();
    let mut merged: std::collections::BTreeMap<SandboxId, SandboxView> = ended
        .into_iter()
        .map(|row| (row.id, SandboxView { row, agent: None, place: None }))
        .collect();
    merged.extend(live.into_iter().map(|view| (view.row.id, view)));
    let mut views: Vec<SandboxView> = merged
        .into_values()
        .filter(|view| known_to.is_none_or(|last| view.row.id <= last))
        .collect();
    let cut = views.len() > limit;
    views.truncate(limit);
    let next = views.last().map(|view| view.row.id).filter(|_| cut || known_to.is_some());
    (views, next)
}

/// The answer with a sandbox's record.
///
/// # Errors
/// When the engine's reply is none.
pub(super) fn record(reply: Reply, status: StatusCode, sees_hosts: bool) -> Answered {
    let Reply::Sandbox { view, decision, .. } = reply else { return Err(Reject::unexpected()) };
    Ok(record_of(*view, decision, status, sees_hosts))
}

/// The answer with a sandbox's record.
pub(super) fn record_of(
    view: SandboxView,
    decision: Option<plimsoll_types::DecisionId>,
    status: StatusCode,
    sees_hosts: bool,
) -> Response {
    let response = json(status, &map::sandbox(view.row, view.place, sees_hosts));
    match decision {
        Some(decision) => with_decision(response, decision),
        None => response,
    }
}

pub(super) async fn patch(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let id = named(&id, WHAT)?;
    let body: api::PatchSandbox = read(&app, request).await?;
    let sees_hosts = tenant.sees_hosts();
    let command = Command::Patch(Box::new(map::patch(id, body)));
    record(app.call(tenant.caller, command).await?, StatusCode::OK, sees_hosts)
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let id = named(&id, WHAT)?;
    let sees_hosts = tenant.sees_hosts();
    match app.core.call(tenant.caller.clone(), Command::Delete { id }).await {
        // Ended so long ago that the engine has let it go: still ended.
        Ok(Reply::Refused(refusal)) if refusal.code == plimsoll_types::RefusalCode::NotFound => {
            let view = find(&app, &tenant.caller, id).await?;
            Ok(record_of(view, None, StatusCode::ACCEPTED, sees_hosts))
        }
        answer => record(app.answer(answer)?, StatusCode::ACCEPTED, sees_hosts),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_types::SandboxStatus;

    use super::*;

    /// Whether a state is one that [`list`] would find in the store alone.
    #[test]
    fn only_ended_ones_are_looked_for_in_the_store() {
        let terminal: Vec<_> =
            SandboxStatus::ALL.iter().filter(|status| status.is_terminal()).collect();
        assert_eq!(terminal, [&SandboxStatus::Terminated, &SandboxStatus::Failed]);
    }

    #[test]
    fn async_is_true_or_false_and_nothing_else_is_taken() {
        let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert!(at_once(&pair("async", "true")).unwrap());
        assert!(!at_once(&pair("async", "false")).unwrap());
        assert!(!at_once(&[]).unwrap());
        let error = at_once(&pair("async", "yes")).unwrap_err();
        assert_eq!(error.problem.field.as_deref(), Some("async"));
        let error = at_once(&pair("sync", "true")).unwrap_err();
        assert_eq!(error.problem.field.as_deref(), Some("sync"));
    }
}
