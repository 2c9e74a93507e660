//! Plans and tenants.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use plimsoll_api as api;
use plimsoll_api::{Body as _, FieldError};
use plimsoll_engine::rows::{PlanRow, TenantRow};
use plimsoll_engine::{Admin, Caller, Command, Read, Reply};
use plimsoll_types::{PlanId, RefusalCode, TenantId};

use super::{as_patch, change};
use crate::api::{cursor, named, slice};
use crate::app::App;
use crate::clock::wall;
use crate::http::{Answered, Operator, Query, Reject, json, no_content, page, read, whole_body};
use crate::map;

const PLAN: &str = "plan";
const TENANT: &str = "tenant";
/// The plan of a tenant that names none.
const DEFAULT_PLAN: &str = "default";

async fn all_plans(app: &App, caller: Caller) -> Result<Vec<PlanRow>, Reject> {
    match app.call(caller, Command::Read(Read::Plans)).await? {
        Reply::Plans(rows) => Ok(rows),
        _ => Err(Reject::unexpected()),
    }
}

async fn find_plan(app: &App, caller: Caller, id: &PlanId) -> Result<Option<PlanRow>, Reject> {
    Ok(all_plans(app, caller).await?.into_iter().find(|row| row.id == *id))
}

async fn find_tenant(
    app: &App,
    caller: Caller,
    id: &TenantId,
) -> Result<Option<TenantRow>, Reject> {
    match app.core.call(caller, Command::Read(Read::Tenant(id.clone()))).await {
        Ok(Reply::Tenants(rows)) => Ok(rows.into_iter().find(|row| row.id == *id)),
        Ok(Reply::Refused(refusal)) if refusal.code == RefusalCode::NotFound => Ok(None),
        answer => app.answer(answer).and(Err(Reject::unexpected())),
    }
}

pub(super) async fn plans(
    State(app): State<Arc<App>>,
    operator: Operator,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListQuery::from_pairs(&pairs)?;
    let rows = all_plans(&app, operator.caller).await?;
    let (rows, next) = slice(&query, rows, |row| row.id.clone())?;
    Ok(page(rows.into_iter().map(map::plan).collect(), next))
}

pub(super) async fn plan(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Answered {
    let row = find_plan(&app, operator.caller, &named(&id, PLAN)?).await?;
    let row = row.ok_or_else(|| Reject::not_found(PLAN))?;
    Ok(json(StatusCode::OK, &map::plan(row)))
}

/// Makes a plan. Where its name is taken, changes of that plan what the body names.
pub(super) async fn put_plan(
    State(app): State<Arc<App>>,
    operator: Operator,
    request: Request,
) -> Answered {
    let bytes = whole_body(&app, request).await?;
    let body: api::Plan = api::parse(&bytes)?;
    let _one_at_a_time = app.changes.lock().await;
    let row = map::plan_row(&body);
    if let Some(held) = find_plan(&app, operator.caller.clone(), &row.id).await? {
        return change_plan(&app, operator, held, as_patch(&bytes, &["id"])?).await;
    }
    change(&app, operator.caller, Admin::PutPlan(row.clone())).await?;
    Ok(json(StatusCode::CREATED, &map::plan(row)))
}

pub(super) async fn patch_plan(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let id: PlanId = named(&id, PLAN)?;
    let body: api::LimitsPatch = read(&app, request).await?;
    let _one_at_a_time = app.changes.lock().await;
    let held = find_plan(&app, operator.caller.clone(), &id).await?;
    let held = held.ok_or_else(|| Reject::not_found(PLAN))?;
    change_plan(&app, operator, held, body).await
}

async fn change_plan(
    app: &App,
    operator: Operator,
    held: PlanRow,
    patch: api::LimitsPatch,
) -> Answered {
    let id = held.id.clone();
    let mut limits = map::plan(held).limits();
    patch.apply(&mut limits);
    limits.validate()?;
    let row = map::plan_row(&api::Plan::new(id, limits));
    change(app, operator.caller, Admin::PutPlan(row.clone())).await?;
    Ok(json(StatusCode::OK, &map::plan(row)))
}

pub(super) async fn drop_plan(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Answered {
    change(&app, operator.caller, Admin::DropPlan(named(&id, PLAN)?)).await?;
    Ok(no_content())
}

pub(super) async fn tenants(
    State(app): State<Arc<App>>,
    operator: Operator,
    Query(pairs): Query,
) -> Answered {
    let query = api::ListQuery::from_pairs(&pairs)?;
    let after = cursor(query.cursor.as_deref())?;
    let limit = query.limit();
    let command = Command::Read(Read::Tenants { after, limit });
    let Reply::Tenants(rows) = app.call(operator.caller, command).await? else {
        return Err(Reject::unexpected());
    };
    let next = rows.last().filter(|_| rows.len() >= limit).map(|row| row.id.to_string());
    Ok(page(rows.into_iter().map(map::tenant).collect(), next))
}

pub(super) async fn tenant(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Answered {
    let row = find_tenant(&app, operator.caller, &named(&id, TENANT)?).await?;
    let row = row.ok_or_else(|| Reject::not_found(TENANT))?;
    Ok(json(StatusCode::OK, &map::tenant(row)))
}

/// Makes a tenant. Where its name is taken, changes of that tenant what the body names.
pub(super) async fn put_tenant(
    State(app): State<Arc<App>>,
    operator: Operator,
    request: Request,
) -> Answered {
    let bytes = whole_body(&app, request).await?;
    let body: api::CreateTenant = api::parse(&bytes)?;
    let _one_at_a_time = app.changes.lock().await;
    let default: PlanId = named(DEFAULT_PLAN, PLAN)?;
    if let Some(mut held) = find_tenant(&app, operator.caller.clone(), &body.id).await? {
        let patch = as_patch(&bytes, &["id", "created_at"])?;
        if body.created_at.is_some() {
            held.created_at = map::tenant_row(body, default, wall()).created_at;
        }
        return change_tenant(&app, operator, held, patch).await;
    }
    let row = map::tenant_row(body, default, wall());
    check_plan(&app, &operator.caller, &row.plan).await?;
    change(&app, operator.caller, Admin::PutTenant(row.clone())).await?;
    Ok(json(StatusCode::CREATED, &map::tenant(row)))
}

/// A tenant's plan must exist, or its limits would be anybody's guess.
async fn check_plan(app: &App, caller: &Caller, plan: &PlanId) -> Result<(), Reject> {
    let plans = all_plans(app, caller.clone()).await?;
    if plans.iter().any(|row| row.id == *plan) {
        return Ok(());
    }
    let known: Vec<&str> = plans.iter().map(|row| row.id.as_str()).take(20).collect();
    let bound = format!("a plan that exists: {}", known.join(", "));
    Err(FieldError::new("plan", plan, bound).into())
}

pub(super) async fn patch_tenant(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let id: TenantId = named(&id, TENANT)?;
    let body: api::TenantPatch = read(&app, request).await?;
    let _one_at_a_time = app.changes.lock().await;
    let held = find_tenant(&app, operator.caller.clone(), &id).await?;
    let held = held.ok_or_else(|| Reject::not_found(TENANT))?;
    change_tenant(&app, operator, held, body).await
}

async fn change_tenant(
    app: &App,
    operator: Operator,
    held: TenantRow,
    patch: api::TenantPatch,
) -> Answered {
    let mut shown = map::tenant(held.clone());
    patch.apply(&mut shown);
    shown.overrides.validate().map_err(|error| error.within("overrides"))?;
    check_plan(app, &operator.caller, &shown.plan).await?;
    let row = map::tenant_row_changed(&held, shown);
    change(app, operator.caller, Admin::PutTenant(row.clone())).await?;
    Ok(json(StatusCode::OK, &map::tenant(row)))
}

pub(super) async fn drop_tenant(
    State(app): State<Arc<App>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Answered {
    change(&app, operator.caller, Admin::DropTenant(named(&id, TENANT)?)).await?;
    Ok(no_content())
}
