//! What hosts say.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use plimsoll_api as api;
use plimsoll_api::FieldError;
use plimsoll_engine::{Input, Reply};
use plimsoll_types::HostId;

use crate::app::App;
use crate::clock::wall;
use crate::http::{Answered, Host, Reject, json, raw_body, read};

/// The host of the path.
fn host_of(text: &str) -> Result<HostId, Reject> {
    text.parse().map_err(|error: plimsoll_types::NameError| {
        FieldError::new("host", format_args!("{text:?}"), error.to_string()).into()
    })
}

pub(super) async fn heartbeat(
    State(app): State<Arc<App>>,
    who: Host,
    Path(host): Path<String>,
    request: Request,
) -> Answered {
    let host = host_of(&host)?;
    who.check(&app, &host)?;
    let bytes = raw_body(&app, request, app.config.limits.heartbeat_bytes_max).await?;
    let body: api::Heartbeat = api::parse(&bytes)?;
    drop(bytes);
    let defaults = api::HeartbeatDefaults {
        pool: app.config.engine.default_pool.clone(),
        received_at: wall(),
    };
    let report = Box::new(body.into_report(host, &defaults)?);
    let answer = app.core.host(|token| Input::Report { token, report, probe: false }).await;
    match app.answer(answer)? {
        Reply::Heartbeat(answer) => Ok(json(StatusCode::OK, &answer)),
        _ => Err(Reject::unexpected()),
    }
}

pub(super) async fn register(
    State(app): State<Arc<App>>,
    who: Host,
    Path(host): Path<String>,
    request: Request,
) -> Answered {
    let host = host_of(&host)?;
    who.check(&app, &host)?;
    let body: api::RegisterHost = read(&app, request).await?;
    let pool = body.pool.unwrap_or_else(|| app.config.engine.default_pool.clone());
    let answer = app.core.host(|token| Input::Register {
        token,
        host,
        pool,
        address: body.address,
        secret: body.secret.map(|secret| secret.expose().to_owned()),
        boot_id: body.boot_id,
    });
    match app.answer(answer.await)? {
        Reply::Registered { incarnation, epoch } => {
            let answer =
                api::RegisterAnswer { incarnation, epoch: Some(epoch), heartbeat_millis: None };
            Ok(json(StatusCode::OK, &answer))
        }
        _ => Err(Reject::unexpected()),
    }
}
