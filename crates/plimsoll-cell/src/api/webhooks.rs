//! Webhook endpoints.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use plimsoll_api as api;
use plimsoll_api::Secret;
use plimsoll_engine::rows::{EndpointRow, EventRow, Role, SigningSecret};
use plimsoll_engine::{Admin, Caller, Command, Read, Reply};
use plimsoll_store::{DeliveryOutcome, Progress};
use plimsoll_types::{EndpointId, EventId, RefusalCode};

use super::admin::once;
use super::{cursor, named, slice};
use crate::app::App;
use crate::clock::wall;
use crate::http::{Answered, Query, Reject, Tenant, json, no_content, page, read};
use crate::map;
use crate::webhooks::{
    ENDPOINTS_MAX, ENDPOINTS_PER_OWNER_MAX, SECRET_OVERLAP, Verdict, check_names, check_url,
    delivery, new_secret,
};

const WHAT: &str = "webhook endpoint";

/// Whose endpoints a caller means: a tenant's, or for an operator who names no tenant, those that
/// hear of everything.
fn owner(tenant: &Tenant) -> Option<plimsoll_types::TenantId> {
    let all = tenant.caller.role == Role::Operator && !tenant.named;
    (!all).then(|| tenant.caller.tenant.clone())
}

/// The endpoints that the caller may see.
async fn own(app: &App, tenant: &Tenant) -> Result<Vec<EndpointRow>, Reject> {
    // An operator who names no tenant sees every endpoint.
    let command = Command::Read(Read::Endpoints(owner(tenant)));
    match app.call(tenant.caller.clone(), command).await? {
        Reply::Endpoints(mut rows) => {
            // The engine does not follow deliveries; the store does.
            let progress = app.read(|reader| reader.progress()).await?;
            for step in progress {
                if let Some(row) = rows.iter_mut().find(|row| row.id == step.endpoint) {
                    row.cursor = row.cursor.max(step.cursor);
                    row.failing_since = step.failing_since;
                }
            }
            Ok(rows)
        }
        _ => Err(Reject::unexpected()),
    }
}

/// Refuses one endpoint more than there may be.
async fn check_room(app: &App, tenant: &Tenant) -> Result<(), Reject> {
    let command = Command::Read(Read::Endpoints(None));
    let Reply::Endpoints(rows) = app.call(tenant.caller.clone(), command).await? else {
        return Err(Reject::unexpected());
    };
    let owner = owner(tenant);
    let own = rows.iter().filter(|row| row.tenant == owner).count();
    let (count, max, whose) = if own >= ENDPOINTS_PER_OWNER_MAX {
        (own, ENDPOINTS_PER_OWNER_MAX, "of one owner")
    } else {
        (rows.len(), ENDPOINTS_MAX, "of this cell")
    };
    if count < max {
        return Ok(());
    }
    let detail = format!("there are {count} webhook endpoints {whose} and may be {max}");
    Err(Reject::new(RefusalCode::Conflict, detail))
}

fn fresh_secret() -> Result<SigningSecret, Reject> {
    let secret = new_secret().map_err(|_| Reject::unexpected())?;
    Ok(SigningSecret { secret, valid_until: None })
}

async fn find(app: &App, tenant: &Tenant, id: &str) -> Result<EndpointRow, Reject> {
    let id: EndpointId = named(id, WHAT)?;
    let rows = own(app, tenant).await?;
    rows.into_iter().find(|row| row.id == id).ok_or_else(|| Reject::not_found(WHAT))
}

/// Writes an endpoint. The engine takes such changes from operators; that this caller may make it
/// was checked here.
async fn put(app: &App, tenant: &Tenant, admin: Admin) -> Result<(), Reject> {
    let caller = Caller { role: Role::Operator, tenant: tenant.caller.tenant.clone() };
    app.call(caller, Command::Admin(Box::new(admin))).await.map(drop)
}

/// Checks where an endpoint lies. What a name stands for is looked at again at each delivery.
async fn check(app: &App, url: &str) -> Result<(), Reject> {
    let private = app.config.webhooks_private;
    let parsed = check_url(url, private)?;
    Ok(check_names(&parsed, private).await?)
}

fn words(events: &[api::EventType]) -> Vec<String> {
    events.iter().map(|event| event.as_str().to_owned()).collect()
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    request: Request,
) -> Answered {
    let key = super::idempotency_key(request.headers())?;
    let body: api::CreateEndpoint = read(&app, request).await?;
    check(&app, &body.url).await?;
    once(&app, tenant.key, "webhooks", key, &body.clone(), async {
        check_room(&app, &tenant).await?;
        let secret = fresh_secret()?;
        // Nothing that happened before is delivered.
        let cursor = app.read(|reader| reader.last_event()).await?.unwrap_or(EventId(0));
        let row = EndpointRow {
            id: app.ids.endpoint(),
            tenant: owner(&tenant),
            url: body.url,
            events: words(&body.events),
            description: body.description,
            secrets: vec![secret.clone()],
            disabled: None,
            created_at: wall(),
            cursor,
            failing_since: None,
        };
        put(&app, &tenant, Admin::PutEndpoint(row.clone())).await?;
        Ok(api::NewEndpoint { secret: Secret::new(secret.secret), info: map::endpoint(row) })
    })
    .await
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListQuery::from_pairs(&pairs)?;
    let (rows, next) = slice(&query, own(&app, &tenant).await?, |row| row.id)?;
    Ok(page(rows.into_iter().map(map::endpoint).collect(), next))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let row = find(&app, &tenant, &id).await?;
    Ok(json(StatusCode::OK, &map::endpoint(row)))
}

pub(super) async fn patch(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let body: api::EndpointPatch = read(&app, request).await?;
    if let Some(url) = &body.url {
        check(&app, url).await?;
    }
    let _one_at_a_time = app.changes.lock().await;
    let mut row = find(&app, &tenant, &id).await?;
    row.url = body.url.unwrap_or(row.url);
    row.description = body.description.unwrap_or(row.description);
    if let Some(events) = body.events {
        row.events = words(&events);
    }
    match body.enabled {
        Some(true) if row.disabled.is_some() => {
            row.disabled = None;
            // Nothing is delivered while it is off, so nothing can come between.
            let (endpoint, cursor) = (row.id, row.cursor);
            let step = Progress { endpoint, cursor, failing_since: None };
            app.core.record(Vec::new(), vec![step]).await?;
            row.failing_since = None;
        }
        Some(false) if row.disabled.is_none() => {
            row.disabled = Some("switched off by its owner".to_owned());
        }
        _ => {}
    }
    let mut secret = None;
    if body.rotate_secret {
        let fresh = fresh_secret()?;
        let until = app.hooks.time().now() + SECRET_OVERLAP;
        // Two at most: of two rotations within a day the first secret ends with the second.
        row.secrets.truncate(1);
        for old in &mut row.secrets {
            old.valid_until = Some(until);
        }
        secret = Some(Secret::new(fresh.secret.clone()));
        row.secrets.insert(0, fresh);
    }
    put(&app, &tenant, Admin::PutEndpoint(row.clone())).await?;
    let answer = api::PatchedEndpoint { secret, info: map::endpoint(row) };
    Ok(json(StatusCode::OK, &answer))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let _one_at_a_time = app.changes.lock().await;
    let row = find(&app, &tenant, &id).await?;
    put(&app, &tenant, Admin::DropEndpoint(row.id)).await?;
    Ok(no_content())
}

/// Sends a test event to the endpoint, once, and answers what came of it. The event stands in no
/// log: nobody but the one endpoint hears of it.
pub(super) async fn test(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let row = find(&app, &tenant, &id).await?;
    let event = EventRow {
        id: app.ids.event(),
        at: wall(),
        kind: api::EventType::EndpointTest.as_str().to_owned(),
        tenant: row.tenant.clone(),
        data: serde_json::json!({ "endpoint": row.id }),
    };
    let Some(attempt) = app.hooks.try_out(&row, &event).await else {
        let detail = "too many test events are being delivered";
        return Err(Reject::new(RefusalCode::Overloaded, detail));
    };
    let outcome = match attempt.verdict {
        Verdict::Taken => DeliveryOutcome::Delivered,
        Verdict::Gone | Verdict::Failed { .. } => DeliveryOutcome::GivenUp,
    };
    app.shell.metrics.webhook_attempted(outcome);
    let log = delivery(&row, &event, 1, &attempt, outcome, None);
    app.core.record(vec![log.clone()], Vec::new()).await?;
    Ok(json(StatusCode::OK, &map::delivery(log)))
}

pub(super) async fn deliveries(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListQuery::from_pairs(&pairs)?;
    let before: Option<u64> = cursor(query.cursor.as_deref())?;
    let row = find(&app, &tenant, &id).await?;
    let limit = query.limit();
    let found = app.read(move |reader| reader.deliveries(row.id, before, limit)).await?;
    let next = found.next.map(|next| next.to_string());
    Ok(page(found.items.into_iter().map(map::delivery).collect(), next))
}
