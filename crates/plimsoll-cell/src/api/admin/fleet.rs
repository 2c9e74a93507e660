//! Hosts as the cell sees them, and the cell itself.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use plimsoll_api as api;
use plimsoll_engine::{Admin, Caller, Command, EnrolProvider, HostView, Read, Reply};
use plimsoll_types::{HostId, RefusalCode};

use super::change;
use crate::api::{named, slice};
use crate::app::App;
use crate::clock::wall;
use crate::config::StoreUrl;
use crate::core::Standing;
use crate::http::{Answered, Operator, Query, Reject, json, no_content, page, read};
use crate::map;

const HOST: &str = "host";

async fn read_hosts(
    app: &App,
    caller: Caller,
    id: Option<HostId>,
) -> Result<Vec<HostView>, Reject> {
    match app.core.call(caller, Command::Read(Read::Hosts(id))).await {
        Ok(Reply::Hosts(views)) => Ok(views),
        Ok(Reply::Refused(refusal)) if refusal.code == RefusalCode::NotFound => Ok(Vec::new()),
        answer => app.answer(answer).and(Err(Reject::unexpected())),
    }
}

async fn find_host(app: &App, caller: Caller, id: &HostId) -> Result<HostView, Reject> {
    let views = read_hosts(app, caller, Some(id.clone())).await?;
    views.into_iter().find(|view| view.row.id == *id).ok_or_else(|| Reject::not_found(HOST))
}

pub(super) async fn hosts(
    State(app): State<Arc<App>>,
    operator: Operator,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListQuery::from_pairs(&pairs)?;
    let views = read_hosts(&app, operator.caller, None).await?;
    let (views, next) = slice(&query, views, |view| view.row.id.clone())?;
    Ok(page(views.into_iter().map(map::host).collect(), next))
}

pub(super) async fn host(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Answered {
    let view = find_host(&app, operator.caller, &named(&id, HOST)?).await?;
    Ok(json(StatusCode::OK, &map::host(view)))
}

/// Says where a provider of an external pool is; said again, it takes the place of what was said.
pub(super) async fn enrol(
    State(app): State<Arc<App>>,
    operator: Operator,
    request: Request,
) -> Answered {
    let body: api::EnrolHost = read(&app, request).await?;
    let provider = EnrolProvider {
        id: body.id.clone(),
        pool: body.pool,
        address: body.address,
        secret: body.secret.expose().to_owned(),
    };
    change(&app, operator.caller.clone(), Admin::PutProvider(provider)).await?;
    let view = find_host(&app, operator.caller, &body.id).await?;
    Ok(json(StatusCode::OK, &map::host(view)))
}

/// Ends a guest that a host has and should not have.
pub(super) async fn end_guest(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path((host, guest)): Path<(String, String)>,
) -> Answered {
    let admin = Admin::EndUnexpected { host: named(&host, HOST)?, guest };
    change(&app, operator.caller, admin).await?;
    Ok(StatusCode::ACCEPTED.into_response())
}

pub(super) async fn drop_host(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Answered {
    change(&app, operator.caller, Admin::DropHost(named(&id, HOST)?)).await?;
    Ok(no_content())
}

async fn after(app: &App, caller: Caller, id: HostId, admin: Admin) -> Answered {
    change(app, caller.clone(), admin).await?;
    Ok(json(StatusCode::OK, &map::host(find_host(app, caller, &id).await?)))
}

pub(super) async fn drain(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Answered {
    let id: HostId = named(&id, HOST)?;
    after(&app, operator.caller, id.clone(), Admin::Drain(id)).await
}

pub(super) async fn undrain(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Answered {
    let id: HostId = named(&id, HOST)?;
    after(&app, operator.caller, id.clone(), Admin::Undrain(id)).await
}

/// Says where the cell stands, loaded or not.
pub(super) async fn status(State(app): State<Arc<App>>, operator: Operator) -> Answered {
    let standing = app.standing.borrow().clone();
    let (role, epoch) = match standing {
        Standing::Leading(epoch) => (api::ReplicaRole::Leader, Some(epoch)),
        Standing::Loading | Standing::Stopped => (api::ReplicaRole::Loading, None),
        Standing::Waiting(_) => (api::ReplicaRole::Follower, None),
    };
    let counts = match app.core.call(operator.caller, Command::Read(Read::Counts)).await {
        Ok(Reply::Counts(counts)) => map::counts(counts, app.shell.metrics.violations()),
        _ => api::StatusCounts::default(),
    };
    let store = match &app.config.store {
        StoreUrl::Memory => "memory",
        StoreUrl::Sqlite(_) => "sqlite",
        StoreUrl::Postgres(_) => "postgres",
    };
    let now = wall();
    let status = api::Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cell: app.config.name.clone(),
        role,
        epoch,
        store: store.to_owned(),
        started_at: app.started_at.into(),
        uptime_seconds: now.since(app.started_at).get() / 1000,
        counts,
    };
    Ok(json(StatusCode::OK, &status))
}
