//! Reservations, for an orchestrator of one's own.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use plimsoll_api as api;
use plimsoll_engine::rows::Role;
use plimsoll_engine::{Command, Disposition, Read, Reply, Reserve, ReserveBatch};
use plimsoll_types::{RefusalCode, ReservationId};

use super::named;
use crate::app::App;
use crate::http::{Answered, Reject, Tenant, json, no_content, read, read_optional, with_decision};
use crate::map;

const WHAT: &str = "reservation";

pub(super) async fn reserve(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    request: Request,
) -> Answered {
    let body: api::ReserveRequest = read(&app, request).await?;
    let mode = map::reserve_mode(&body);
    let item = map::reserve_item(body, app.ids.reservation());
    let command = Command::Reserve(Box::new(Reserve { decision: app.ids.decision(), item, mode }));
    let reply = app.call(tenant.caller, command).await?;
    let Reply::Reservation { row, decision, disposition } = reply else {
        return Err(Reject::unexpected());
    };
    let response = if disposition == Disposition::DryRun {
        let dry_run = api::DryRun {
            dry_run: true,
            host: row.host.clone(),
            pool: row.pool.clone(),
            charge_mib: row.charge_mib.get(),
            decision_id: decision,
        };
        json(StatusCode::OK, &dry_run)
    } else {
        json(StatusCode::CREATED, &map::reservation(&row))
    };
    Ok(with_decision(response, decision))
}

pub(super) async fn batch(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    request: Request,
) -> Answered {
    let body: api::ReservationBatch = read(&app, request).await?;
    let items = body.items.into_iter();
    let items = items.map(|item| map::reserve_item(item, app.ids.reservation())).collect();
    let batch = ReserveBatch { decision: app.ids.decision(), items };
    let reply = app.call(tenant.caller, Command::ReserveBatch(Box::new(batch))).await?;
    let Reply::Reservations { rows, decision, .. } = reply else {
        return Err(Reject::unexpected());
    };
    let items = rows.iter().map(|row| map::reservation(row)).collect();
    Ok(with_decision(json(StatusCode::CREATED, &api::Reservations { items }), decision))
}

/// The answer with a reservation's record.
fn record(reply: Reply) -> Answered {
    let Reply::Reservation { row, decision, .. } = reply else {
        return Err(Reject::unexpected());
    };
    Ok(with_decision(json(StatusCode::OK, &map::reservation(&row)), decision))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let id: ReservationId = named(&id, WHAT)?;
    let caller = tenant.caller;
    match app.core.call(caller.clone(), Command::Read(Read::Reservation(id))).await {
        // The engine lets go of what has ended before the store does.
        Ok(Reply::Refused(refusal)) if refusal.code == RefusalCode::NotFound => {
            let row = app.read(move |reader| reader.reservation(id)).await?;
            row.filter(|row| caller.role == Role::Operator || row.tenant == caller.tenant)
                .map(|row| json(StatusCode::OK, &map::reservation(&row)))
                .ok_or_else(|| Reject::not_found(WHAT))
        }
        answer => record(app.answer(answer)?),
    }
}

pub(super) async fn commit(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let id = named(&id, WHAT)?;
    let body: api::CommitReservation = read_optional(&app, request).await?;
    let command = Command::Commit { id, cgroup: body.cgroup.map(Into::into) };
    record(app.call(tenant.caller, command).await?)
}

pub(super) async fn renew(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let id = named(&id, WHAT)?;
    let body: api::RenewReservation = read_optional(&app, request).await?;
    let command = Command::Renew { id, ttl_seconds: body.ttl_seconds };
    record(app.call(tenant.caller, command).await?)
}

pub(super) async fn release(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Path(id): Path<String>,
) -> Answered {
    let id = named(&id, WHAT)?;
    match app.call(tenant.caller, Command::Release { id }).await? {
        Reply::Done => Ok(no_content()),
        reply => record(reply),
    }
}
