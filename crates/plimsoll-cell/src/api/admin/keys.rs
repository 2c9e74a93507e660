//! API keys.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use plimsoll_api as api;
use plimsoll_api::Secret;
use plimsoll_engine::rows::KeyRow;
use plimsoll_engine::{Admin, Caller, Command, Read, Reply};
use plimsoll_types::KeyId;

use super::{change, once};
use crate::api::{idempotency_key, named, slice};
use crate::app::App;
use crate::auth::NewKey;
use crate::clock::wall;
use crate::http::{Answered, Operator, Query, Reject, json, no_content, page, read};
use crate::map;

const WHAT: &str = "key";

async fn all(app: &App, caller: Caller) -> Result<Vec<KeyRow>, Reject> {
    match app.call(caller, Command::Read(Read::Keys)).await? {
        Reply::Keys(rows) => Ok(rows),
        _ => Err(Reject::unexpected()),
    }
}

async fn find(app: &App, caller: Caller, id: &str) -> Result<KeyRow, Reject> {
    let id: KeyId = named(id, WHAT)?;
    let rows = all(app, caller).await?;
    rows.into_iter().find(|row| row.id == id).ok_or_else(|| Reject::not_found(WHAT))
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    operator: Operator,
    request: Request,
) -> Answered {
    let key = idempotency_key(request.headers())?;
    let body: api::CreateKey = read(&app, request).await?;
    once(&app, operator.key, "keys", key, &body.clone(), async {
        let new = NewKey::draw().map_err(|_| Reject::unexpected())?;
        let row = KeyRow {
            id: app.ids.key(),
            role: map::key_role(body.role),
            tenant: body.tenant,
            host: body.host,
            hash: new.hash,
            created_at: wall(),
        };
        change(&app, operator.caller, Admin::PutKey(row.clone())).await?;
        Ok(api::NewKey { key: Secret::new(new.text), info: map::key(row) })
    })
    .await
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    operator: Operator,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListQuery::from_pairs(&pairs)?;
    let (rows, next) = slice(&query, all(&app, operator.caller).await?, |row| row.id)?;
    Ok(page(rows.into_iter().map(map::key).collect(), next))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Answered {
    let row = find(&app, operator.caller, &id).await?;
    Ok(json(StatusCode::OK, &map::key(row)))
}

pub(super) async fn delete(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Answered {
    let row = find(&app, operator.caller.clone(), &id).await?;
    change(&app, operator.caller, Admin::DropKey(row.id)).await?;
    Ok(no_content())
}
