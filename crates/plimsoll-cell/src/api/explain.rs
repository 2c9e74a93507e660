//! The verdict that a body would get now.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use plimsoll_api::ExplainRequest;
use plimsoll_engine::{Command, Explain, Reply};
use plimsoll_types::OnFull;

use crate::app::App;
use crate::http::{Answered, Reject, Tenant, json, raw_body};
use crate::map;

pub(super) async fn explain(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    request: Request,
) -> Answered {
    let bytes = raw_body(&app, request, app.config.limits.body_bytes_max).await?;
    let (explain, queues) = match ExplainRequest::parse(&bytes)? {
        ExplainRequest::Create(body) => {
            let on_full = body.on_full;
            let id = app.ids.sandbox();
            let create = map::create(*body, id, app.ids.decision(), None, on_full, true);
            (Explain::Create(create), on_full == OnFull::Queue)
        }
        ExplainRequest::Reserve(body) => {
            let item = map::reserve_item(body, app.ids.reservation());
            (Explain::Reserve(item), false)
        }
    };
    let sees_hosts = tenant.sees_hosts();
    match app.call(tenant.caller, Command::Explain(Box::new(explain))).await? {
        Reply::Explained(explanation) => {
            Ok(json(StatusCode::OK, &map::explanation(*explanation, queues, sees_hosts)))
        }
        _ => Err(Reject::unexpected()),
    }
}
