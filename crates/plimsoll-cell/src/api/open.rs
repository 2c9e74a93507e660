//! Routes that need no key.

use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::extract::FromRequestParts as _;
use axum::extract::State;
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::response::IntoResponse as _;
use plimsoll_engine::rows::Role;
use plimsoll_engine::{Caller, Command, Read, Reply};

use crate::app::App;
use crate::http::{Answered, Operator};
use crate::metrics;

/// The pages carry all that they need; nothing is fetched from elsewhere, and nothing may frame
/// them.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src \
                           'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; \
                           base-uri 'none'; form-action 'none'";

/// The process is there.
pub(super) async fn healthz() -> Answered {
    Ok("ok\n".into_response())
}

/// State is loaded and this replica leads; hosts or not.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> Answered {
    app.check_leading()?;
    Ok("ready\n".into_response())
}

/// Counters always; gauges while the state is loaded.
pub(super) async fn metrics(State(app): State<Arc<App>>, mut parts: Parts) -> Answered {
    if !app.config.metrics_open {
        Operator::from_request_parts(&mut parts, &app).await?;
    }
    let tenant = app.config.engine.default_tenant.clone();
    let caller = Caller { role: Role::Operator, tenant };
    let gauges = match app.core.call(caller, Command::Read(Read::Gauges)).await {
        Ok(Reply::Gauges(gauges)) => Some(gauges),
        _ => None,
    };
    let waiting = app.shell.waiters.waiting();
    let text = app.shell.metrics.encode(waiting, gauges.as_deref());
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

/// The interface as the code has it.
pub(super) async fn openapi() -> Answered {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let document = plimsoll_api::document();
        // The document is plain data; writing it does not fail.
        Bytes::from(serde_json::to_vec_pretty(&document).unwrap_or_default())
    });
    Ok(([(CONTENT_TYPE, "application/json")], text.clone()).into_response())
}

/// The interface for people.
pub(super) async fn docs() -> Answered {
    Ok(page(include_str!("../pages/docs.html")))
}

/// The dashboard.
pub(super) async fn dashboard() -> Answered {
    Ok(page(include_str!("../pages/dashboard.html")))
}

fn page(text: &'static str) -> axum::response::Response {
    const NO_SNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (CACHE_CONTROL, "no-cache"),
        (NO_SNIFF, "nosniff"),
    ];
    (headers, text).into_response()
}
