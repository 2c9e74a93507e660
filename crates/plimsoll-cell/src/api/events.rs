//! Events, pulled.

use std::sync::Arc;

use axum::extract::State;
use plimsoll_api as api;
use plimsoll_engine::rows::Role;
use plimsoll_store::EventQuery;

use super::cursor;
use crate::app::App;
use crate::http::{Answered, Query, Tenant, page};
use crate::map;

/// A tenant's own events; all of them for an operator who names no tenant. After the last page the
/// next pull goes on with `after` the last event seen.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    tenant: Tenant,
    Query(pairs): Query,
) -> Answered {
    let query = api::EventQuery::from_pairs(&pairs)?;
    let all = tenant.caller.role == Role::Operator && !tenant.named;
    let after = match cursor(query.page.cursor.as_deref())? {
        Some(cursor) => Some(cursor),
        None => query.after,
    };
    let question = EventQuery {
        after,
        tenant: (!all).then_some(tenant.caller.tenant),
        limit: query.page.limit(),
    };
    let found = app.read(move |reader| reader.events(&question)).await?;
    let wanted = |kind: &str| {
        query.kinds.is_empty() || query.kinds.iter().any(|wanted| wanted.as_str() == kind)
    };
    let items = found.items.into_iter().filter(|row| wanted(&row.kind)).map(map::event);
    let next = found.through.filter(|_| found.more).map(|id| id.to_string());
    Ok(page(items.collect(), next))
}
