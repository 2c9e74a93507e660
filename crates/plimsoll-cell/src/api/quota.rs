//! Quota and metered use.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use plimsoll_api as api;
use plimsoll_api::FieldError;
use plimsoll_engine::rows::Role;
use plimsoll_engine::{Command, Read, Reply};
use plimsoll_store::{UsageDay, UsageQuery};
use plimsoll_types::{TenantId, Timestamp};

use super::cursor;
use crate::app::App;
use crate::clock::wall;
use crate::http::{Answered, Query, Reject, Tenant, json, page};
use crate::map;

/// Where no period is known (a tenant that is gone, a `to` before the present one), usage without
/// `from` is of this long before `to`: a month and a day.
const RANGE_MILLIS: i64 = 32 * DAY_MILLIS;

const DAY_MILLIS: i64 = 24 * 3600 * 1000;

pub(super) async fn show(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Query(pairs): Query,
) -> Answered {
    if let Some((name, _)) = pairs.first() {
        let bound = "no parameters";
        return Err(FieldError::new(name, "an unknown parameter", bound).into());
    }
    let of = tenant.caller.tenant.clone();
    match app.call(tenant.caller, Command::Read(Read::Quota(of))).await? {
        Reply::Quota(view) => Ok(json(StatusCode::OK, &map::quota(*view)?)),
        _ => Err(Reject::unexpected()),
    }
}

/// Whose usage: a tenant's own; an operator may name one in the query as in the header.
fn whose(tenant: &Tenant, named: Option<TenantId>) -> Result<TenantId, Reject> {
    match named {
        None => Ok(tenant.caller.tenant.clone()),
        Some(named) if tenant.caller.role == Role::Operator || named == tenant.caller.tenant => {
            Ok(named)
        }
        Some(named) => Err(FieldError::new("tenant", named, "your own, or absent").into()),
    }
}

pub(super) async fn usage(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Query(pairs): Query,
) -> Answered {
    let query = api::UsageQuery::from_pairs(&pairs)?;
    let of = whose(&tenant, query.tenant.clone())?;
    let to: Timestamp = query.to.map_or_else(wall, Into::into);
    let from = match query.from {
        Some(from) => from.into(),
        None => period_start(&app, &tenant, &of)
            .await?
            .filter(|start| *start < to)
            .unwrap_or(Timestamp(to.0 - RANGE_MILLIS)),
    };
    let row = |id: Option<String>, sum: Sum, from: Timestamp, to: Timestamp| api::UsageRow {
        tenant: of.clone(),
        id,
        from: from.into(),
        to: to.into(),
        cpu_seconds: sum.cpu_millis / 1000,
        // GiB-hours, rounded down: MiB-milliseconds over 1 024 MiB and 3 600 000 ms.
        gib_hours: sum.charged_mib_millis / (1024 * 3_600_000),
        egress_bytes: sum.egress_bytes,
        cpu_millis: sum.cpu_millis,
        charged_mib_seconds: sum.charged_mib_millis / 1000,
        resident_mib_seconds: sum.resident_mib_millis / 1000,
    };
    if query.group_by == api::UsageGroup::Sandbox {
        let after = cursor(query.page.cursor.as_deref())?;
        let question =
            UsageQuery { tenant: of.clone(), from, to, after, limit: query.page.limit() };
        let found = app.read(move |reader| reader.usage(&question)).await?;
        let next = found.next.map(|claim| claim.to_string());
        let items = found.items.iter().map(|one| {
            let sum = Sum {
                cpu_millis: one.cpu_millis,
                charged_mib_millis: one.charged_mib_millis,
                resident_mib_millis: one.resident_mib_millis,
                egress_bytes: one.egress_bytes,
            };
            row(Some(one.claim.to_string()), sum, from, to)
        });
        return Ok(page(items.collect(), next));
    }
    let tenant = of.clone();
    let days = app.read(move |reader| reader.usage_by_day(&tenant, from, to)).await?;
    if query.group_by == api::UsageGroup::Total {
        if let Some(text) = query.page.cursor.as_deref() {
            return Err(FieldError::new("cursor", text, "absent: a total is one page").into());
        }
        let mut sum = Sum::default();
        days.iter().for_each(|day| sum.add(day));
        return Ok(page(vec![row(None, sum, from, to)], None));
    }
    // The cursor is where the last day of the page before begins.
    let after: Option<api::Time> = cursor(query.page.cursor.as_deref())?;
    let after: Option<Timestamp> = after.map(Into::into);
    let mut rest = days.iter().skip_while(|day| after.is_some_and(|after| day.day <= after));
    let shown: Vec<&UsageDay> = rest.by_ref().take(query.page.limit()).collect();
    let next = rest.next().and(shown.last()).map(|day| api::Time::from(day.day).to_string());
    let items = shown.iter().map(|day| {
        let mut sum = Sum::default();
        sum.add(day);
        row(None, sum, day.day.max(from), Timestamp(day.day.0 + DAY_MILLIS).min(to))
    });
    Ok(page(items.collect(), next))
}

/// When the present period of a tenant began; `None` where there is no such tenant any more, whose
/// use is known all the same.
async fn period_start(
    app: &App,
    tenant: &Tenant,
    of: &TenantId,
) -> Result<Option<Timestamp>, Reject> {
    let read = Command::Read(Read::Quota(of.clone()));
    match app.core.call(tenant.caller.clone(), read).await? {
        Reply::Quota(view) => Ok(Some(view.starts_at)),
        _ => Ok(None),
    }
}

/// Use over more than one row.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    cpu_millis: u64,
    charged_mib_millis: u64,
    resident_mib_millis: u64,
    egress_bytes: u64,
}

impl Sum {
    fn add(&mut self, one: &UsageDay) {
        self.cpu_millis = self.cpu_millis.saturating_add(one.cpu_millis);
        self.charged_mib_millis = self.charged_mib_millis.saturating_add(one.charged_mib_millis);
        self.resident_mib_millis = self.resident_mib_millis.saturating_add(one.resident_mib_millis);
        self.egress_bytes = self.egress_bytes.saturating_add(one.egress_bytes);
    }
}
