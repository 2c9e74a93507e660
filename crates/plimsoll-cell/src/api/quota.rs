//! Quota and metered use.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use plimsoll_api as api;
use plimsoll_api::FieldError;
use plimsoll_engine::rows::Role;
use plimsoll_engine::{Command, Read, Reply};
use plimsoll_store::UsageQuery;
use plimsoll_types::{TenantId, Timestamp};

use super::cursor;
use crate::app::App;
use crate::clock::wall;
use crate::http::{Answered, Query, Reject, Tenant, json, page};
use crate::map;

/// Without `from`, usage is of this long before `to`: a month and a day.
const RANGE_MILLIS: i64 = 32 * 24 * 3600 * 1000;

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
    if query.group_by == api::UsageGroup::Day {
        let bound = "sandbox or total";
        return Err(FieldError::new("group_by", query.group_by.as_str(), bound).into());
    }
    let of = whose(&tenant, query.tenant.clone())?;
    let to: Timestamp = query.to.map_or_else(wall, Into::into);
    let from = query.from.map_or(Timestamp(to.0 - RANGE_MILLIS), Into::into);
    let by_sandbox = query.group_by == api::UsageGroup::Sandbox;
    let limit =
        if by_sandbox { query.page.limit() } else { plimsoll_types::bounds::PAGE_LIMIT_MAX };
    let mut question = UsageQuery {
        tenant: of.clone(),
        from,
        to,
        after: cursor(query.page.cursor.as_deref())?,
        limit,
    };
    let row = |id: Option<String>, sum: Sum| api::UsageRow {
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
    if by_sandbox {
        let found = app.read(move |reader| reader.usage(&question)).await?;
        let next = found.next.map(|claim| claim.to_string());
        let items = found.items.iter().map(|one| {
            let mut sum = Sum::default();
            sum.add(one);
            row(Some(one.claim.to_string()), sum)
        });
        return Ok(page(items.collect(), next));
    }
    let sum = app
        .read(move |reader| {
            let mut sum = Sum::default();
            loop {
                let found = reader.usage(&question)?;
                found.items.iter().for_each(|one| sum.add(one));
                match found.next {
                    Some(next) => question.after = Some(next),
                    None => return Ok(sum),
                }
            }
        })
        .await?;
    Ok(page(vec![row(None, sum)], None))
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
    fn add(&mut self, one: &plimsoll_store::UsageTotal) {
        self.cpu_millis = self.cpu_millis.saturating_add(one.cpu_millis);
        self.charged_mib_millis = self.charged_mib_millis.saturating_add(one.charged_mib_millis);
        self.resident_mib_millis = self.resident_mib_millis.saturating_add(one.resident_mib_millis);
        self.egress_bytes = self.egress_bytes.saturating_add(one.egress_bytes);
    }
}
