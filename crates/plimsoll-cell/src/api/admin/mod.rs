//! Operators' routes.

mod decisions;
mod fleet;
mod keys;
mod policy;
mod pools;
mod tenants;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse as _;
use axum::routing::{delete, get, post};
use plimsoll_api as api;
use plimsoll_engine::{Admin, Caller, Command};
use plimsoll_types::{KeyId, RefusalCode};
use serde::Serialize;

use crate::app::App;
use crate::clock::wall;
use crate::http::{Answered, Reject};
use crate::map;
use crate::replays::{Known, Question};

/// Operators' routes.
pub(super) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/admin/plans", get(tenants::plans).post(tenants::put_plan))
        .route(
            "/v1/admin/plans/{id}",
            get(tenants::plan).patch(tenants::patch_plan).delete(tenants::drop_plan),
        )
        .route("/v1/admin/tenants", get(tenants::tenants).post(tenants::put_tenant))
        .route(
            "/v1/admin/tenants/{id}",
            get(tenants::tenant).patch(tenants::patch_tenant).delete(tenants::drop_tenant),
        )
        .route("/v1/admin/keys", get(keys::list).post(keys::create))
        .route("/v1/admin/keys/{id}", get(keys::show).delete(keys::delete))
        .route("/v1/admin/pools", get(pools::pools).post(pools::put_pool))
        .route(
            "/v1/admin/pools/{name}",
            get(pools::pool).patch(pools::patch_pool).delete(pools::drop_pool),
        )
        .route("/v1/admin/templates", get(pools::templates).post(pools::put_template))
        .route(
            "/v1/admin/templates/{name}",
            get(pools::template).patch(pools::patch_template).delete(pools::drop_template),
        )
        .route("/v1/admin/hosts", get(fleet::hosts).post(fleet::enrol))
        .route("/v1/admin/hosts/{id}", get(fleet::host).delete(fleet::drop_host))
        .route("/v1/admin/hosts/{id}/guests/{guest}", delete(fleet::end_guest))
        .route("/v1/admin/hosts/{id}/drain", post(fleet::drain))
        .route("/v1/admin/hosts/{id}/undrain", post(fleet::undrain))
        .route("/v1/admin/status", get(fleet::status))
        .route("/v1/admin/decisions", get(decisions::list))
        .route("/v1/admin/decisions/{id}", get(decisions::show))
        .route("/v1/admin/policy", get(policy::show).put(policy::put))
}

/// Makes a change.
async fn change(app: &App, caller: Caller, admin: Admin) -> Result<(), Reject> {
    app.call(caller, Command::Admin(Box::new(admin))).await.map(drop)
}

/// What a POST about something that is there says of it, as the PATCH that it then is: what it
/// does not name stays as it is. `own` are the members that a PATCH does not have.
///
/// # Errors
/// When it says something that only a new one can be given.
fn as_patch<T: api::Body>(body: &[u8], own: &[&str]) -> Result<T, Reject> {
    let mut members: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(body).map_err(|_| Reject::unexpected())?;
    members.retain(|name, _| !own.contains(&name.as_str()));
    let body = serde_json::to_vec(&members).map_err(|_| Reject::unexpected())?;
    Ok(api::parse(&body)?)
}

/// Makes something whose answer holds a secret, once: a repeated call under the same idempotency
/// key gets the same answer.
///
/// # Errors
/// When the key stands for another body, or the making fails.
pub(super) async fn once<T: Serialize>(
    app: &App,
    by: KeyId,
    route: &'static str,
    key: Option<Arc<str>>,
    body: &impl Serialize,
    make: impl Future<Output = Result<T, Reject>>,
) -> Answered {
    let asked = key.map(|key| (Question { by, route, key }, map::fingerprint(body)));
    // Two calls under one key must not both make it.
    let _one_at_a_time = app.changes.lock().await;
    if let Some((question, body)) = &asked {
        match app.replays.known(question, *body, wall()) {
            Known::No => {}
            Known::Same(answer) => {
                let kind = [(CONTENT_TYPE, "application/json")];
                return Ok((StatusCode::CREATED, kind, answer).into_response());
            }
            Known::Other => {
                let detail = "this idempotency key stands for another body";
                return Err(Reject::new(RefusalCode::Conflict, detail));
            }
        }
    }
    let made = make.await?;
    let bytes = axum::body::Bytes::from(serde_json::to_vec(&made).unwrap_or_default());
    if let Some((question, body)) = asked {
        app.replays.keep(question, body, bytes.clone(), wall());
    }
    Ok((StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], bytes).into_response())
}
