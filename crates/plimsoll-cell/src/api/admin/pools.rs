//! Pools and templates.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use plimsoll_api as api;
use plimsoll_engine::rows::TemplateRow;
use plimsoll_engine::{Admin, Caller, Command, PoolView, Read, Reply};
use plimsoll_types::{PoolName, TemplateName};

use super::{as_patch, change};
use crate::api::{named, slice};
use crate::app::App;
use crate::http::{Answered, Operator, Query, Reject, json, no_content, page, read, whole_body};
use crate::map;

const POOL: &str = "pool";
const TEMPLATE: &str = "template";

pub(super) async fn all_pools(app: &App, caller: Caller) -> Result<Vec<PoolView>, Reject> {
    match app.call(caller, Command::Read(Read::Pools)).await? {
        Reply::Pools(views) => Ok(views),
        _ => Err(Reject::unexpected()),
    }
}

async fn find_pool(app: &App, caller: Caller, name: &PoolName) -> Result<Option<PoolView>, Reject> {
    Ok(all_pools(app, caller).await?.into_iter().find(|view| view.row.name == *name))
}

pub(super) async fn pools(
    State(app): State<Arc<App>>,
    operator: Operator,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListQuery::from_pairs(&pairs)?;
    let views = all_pools(&app, operator.caller).await?;
    let (views, next) = slice(&query, views, |view| view.row.name.clone())?;
    Ok(page(views.into_iter().map(|view| map::pool(view.row)).collect(), next))
}

pub(super) async fn pool(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(name): Path<String>,
) -> Answered {
    let view = find_pool(&app, operator.caller, &named(&name, POOL)?).await?;
    let view = view.ok_or_else(|| Reject::not_found(POOL))?;
    Ok(json(StatusCode::OK, &map::pool(view.row)))
}

/// Makes a pool. Where its name is taken, changes of that pool what the body names.
pub(super) async fn put_pool(
    State(app): State<Arc<App>>,
    operator: Operator,
    request: Request,
) -> Answered {
    let bytes = whole_body(&app, request).await?;
    let body: api::Pool = api::parse(&bytes)?;
    let _one_at_a_time = app.changes.lock().await;
    if let Some(held) = find_pool(&app, operator.caller.clone(), &body.name).await? {
        return change_pool(&app, operator, held, as_patch(&bytes, &["name"])?).await;
    }
    let row = map::pool_row(body);
    change(&app, operator.caller, Admin::PutPool(row.clone())).await?;
    Ok(json(StatusCode::CREATED, &map::pool(row)))
}

pub(super) async fn patch_pool(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(name): Path<String>,
    request: Request,
) -> Answered {
    let name: PoolName = named(&name, POOL)?;
    let body: api::PoolPatch = read(&app, request).await?;
    let _one_at_a_time = app.changes.lock().await;
    let held = find_pool(&app, operator.caller.clone(), &name).await?;
    let held = held.ok_or_else(|| Reject::not_found(POOL))?;
    change_pool(&app, operator, held, body).await
}

async fn change_pool(
    app: &App,
    operator: Operator,
    held: PoolView,
    patch: api::PoolPatch,
) -> Answered {
    let row = map::pool_row(patch.apply(&map::pool(held.row))?);
    change(app, operator.caller, Admin::PutPool(row.clone())).await?;
    Ok(json(StatusCode::OK, &map::pool(row)))
}

pub(super) async fn drop_pool(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(name): Path<String>,
) -> Answered {
    change(&app, operator.caller, Admin::DropPool(named(&name, POOL)?)).await?;
    Ok(no_content())
}

async fn all_templates(app: &App, caller: Caller) -> Result<Vec<TemplateRow>, Reject> {
    match app.call(caller, Command::Read(Read::Templates)).await? {
        Reply::Templates(rows) => Ok(rows),
        _ => Err(Reject::unexpected()),
    }
}

async fn find_template(
    app: &App,
    caller: Caller,
    name: &TemplateName,
) -> Result<Option<TemplateRow>, Reject> {
    Ok(all_templates(app, caller).await?.into_iter().find(|row| row.name == *name))
}

pub(super) async fn templates(
    State(app): State<Arc<App>>,
    operator: Operator,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListQuery::from_pairs(&pairs)?;
    let rows = all_templates(&app, operator.caller).await?;
    let (rows, next) = slice(&query, rows, |row| row.name.clone())?;
    Ok(page(rows.into_iter().map(map::template).collect(), next))
}

pub(super) async fn template(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(name): Path<String>,
) -> Answered {
    let row = find_template(&app, operator.caller, &named(&name, TEMPLATE)?).await?;
    let row = row.ok_or_else(|| Reject::not_found(TEMPLATE))?;
    Ok(json(StatusCode::OK, &map::template(row)))
}

/// Makes a template. Where its name is taken, changes of that template what the body names.
pub(super) async fn put_template(
    State(app): State<Arc<App>>,
    operator: Operator,
    request: Request,
) -> Answered {
    let bytes = whole_body(&app, request).await?;
    let body: api::Template = api::parse(&bytes)?;
    let _one_at_a_time = app.changes.lock().await;
    if let Some(held) = find_template(&app, operator.caller.clone(), &body.name).await? {
        return change_template(&app, operator, held, as_patch(&bytes, &["name"])?).await;
    }
    let row = map::template_row(body);
    change(&app, operator.caller, Admin::PutTemplate(row.clone())).await?;
    Ok(json(StatusCode::CREATED, &map::template(row)))
}

pub(super) async fn patch_template(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(name): Path<String>,
    request: Request,
) -> Answered {
    let name: TemplateName = named(&name, TEMPLATE)?;
    let body: api::TemplatePatch = read(&app, request).await?;
    let _one_at_a_time = app.changes.lock().await;
    let held = find_template(&app, operator.caller.clone(), &name).await?;
    let held = held.ok_or_else(|| Reject::not_found(TEMPLATE))?;
    change_template(&app, operator, held, body).await
}

/// Changes a template; sandboxes made from it stay as they are.
async fn change_template(
    app: &App,
    operator: Operator,
    held: TemplateRow,
    patch: api::TemplatePatch,
) -> Answered {
    let row = map::template_row(patch.apply(&map::template(held))?);
    change(app, operator.caller, Admin::PutTemplate(row.clone())).await?;
    Ok(json(StatusCode::OK, &map::template(row)))
}

pub(super) async fn drop_template(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(name): Path<String>,
) -> Answered {
    change(&app, operator.caller, Admin::DropTemplate(named(&name, TEMPLATE)?)).await?;
    Ok(no_content())
}
