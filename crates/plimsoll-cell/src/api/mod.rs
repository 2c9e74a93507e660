//! The routes. Handlers parse, call and answer; what is decided is decided in the engine.

mod admin;
mod create;
mod events;
mod explain;
mod hosts;
mod open;
mod quota;
mod reservations;
mod sandboxes;
mod verbs;
mod webhooks;

use std::str::FromStr;
use std::sync::Arc;

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::{get, post};
use plimsoll_api::{FieldError, IDEMPOTENCY_KEY_HEADER, ProblemCode, check_idempotency_key};
use plimsoll_types::RefusalCode;

use crate::app::App;
use crate::http::Reject;

/// Every route.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/sandboxes", get(sandboxes::list).post(sandboxes::create))
        .route(
            "/v1/sandboxes/{id}",
            get(sandboxes::show).patch(sandboxes::patch).delete(sandboxes::delete),
        )
        .route("/v1/sandboxes/{id}/fork", post(sandboxes::fork))
        .route("/v1/sandboxes/{id}/wait", get(verbs::wait))
        .route("/v1/sandboxes/{id}/pause", post(verbs::pause))
        .route("/v1/sandboxes/{id}/resume", post(verbs::resume))
        .route("/v1/sandboxes/{id}/stop", post(verbs::stop))
        .route("/v1/sandboxes/{id}/start", post(verbs::start))
        .route("/v1/sandboxes/{id}/keepalive", post(verbs::keepalive))
        .route("/v1/sandboxes/{id}/exec", post(verbs::exec))
        .route("/v1/sandboxes/{id}/logs", get(verbs::logs))
        .route("/v1/reservations", post(reservations::reserve))
        .route("/v1/reservations/batch", post(reservations::batch))
        .route("/v1/reservations/{id}", get(reservations::show).delete(reservations::release))
        .route("/v1/reservations/{id}/commit", post(reservations::commit))
        .route("/v1/reservations/{id}/renew", post(reservations::renew))
        .route("/v1/explain", post(explain::explain))
        .route("/v1/hosts/{host}/heartbeat", post(hosts::heartbeat))
        .route("/v1/hosts/{host}/register", post(hosts::register))
        .route("/v1/quota", get(quota::show))
        .route("/v1/usage", get(quota::usage))
        .route("/v1/events", get(events::list))
        .route("/v1/webhooks/endpoints", get(webhooks::list).post(webhooks::create))
        .route(
            "/v1/webhooks/endpoints/{id}",
            get(webhooks::show).patch(webhooks::patch).delete(webhooks::delete),
        )
        .route("/v1/webhooks/endpoints/{id}/test", post(webhooks::test))
        .route("/v1/webhooks/endpoints/{id}/deliveries", get(webhooks::deliveries))
        .merge(admin::router())
        .route("/healthz", get(open::healthz))
        .route("/readyz", get(open::readyz))
        .route("/metrics", get(open::metrics))
        .route("/openapi.json", get(open::openapi))
        .route("/docs", get(open::docs))
        .route("/", get(open::dashboard))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(app)
}

async fn no_route() -> Reject {
    Reject::new(RefusalCode::NotFound, "there is no such route; /docs lists those that there are")
}

async fn no_method() -> Reject {
    let detail = "the route does not take this method; /docs lists those that it takes";
    Reject::new(ProblemCode::MethodNotAllowed, detail)
}

/// An id or a name of a path. One that is malformed names nothing.
///
/// # Errors
/// As for an object that is not there.
fn named<T: FromStr>(text: &str, what: &str) -> Result<T, Reject> {
    text.parse().map_err(|_| Reject::not_found(what))
}

/// The cursor of a list.
///
/// # Errors
/// When it is none that a list has given out.
fn cursor<T: FromStr>(cursor: Option<&str>) -> Result<Option<T>, Reject> {
    let Some(text) = cursor else { return Ok(None) };
    let bound = "the next_cursor of the page before";
    text.parse().map(Some).map_err(|_| FieldError::new("cursor", text, bound).into())
}

/// The key that makes a create idempotent.
///
/// # Errors
/// When it is out of its bound.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<Arc<str>>, Reject> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY_HEADER) else { return Ok(None) };
    let key = value.to_str().unwrap_or("\u{fffd}");
    check_idempotency_key(key)?;
    Ok(Some(Arc::from(key)))
}

/// A page out of a whole list, by position: for lists that are short and held in memory.
///
/// # Errors
/// When the cursor is none that a list has given out.
fn slice<T, K: FromStr + Ord + ToString>(
    query: &plimsoll_api::ListQuery,
    mut rows: Vec<T>,
    name: impl Fn(&T) -> K,
) -> Result<(Vec<T>, Option<String>), Reject> {
    let after: Option<K> = cursor(query.cursor.as_deref())?;
    rows.sort_by_key(|row| name(row));
    if let Some(after) = after {
        rows.retain(|row| name(row) > after);
    }
    let more = rows.len() > query.limit();
    rows.truncate(query.limit());
    let next = rows.last().filter(|_| more).map(|row| name(row).to_string());
    Ok((rows, next))
}
