//! The decision log.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use plimsoll_api as api;
use plimsoll_store::{CodeFilter, DecisionQuery};
use plimsoll_types::DecisionId;

use crate::api::{cursor, named};
use crate::app::App;
use crate::http::{Answered, Operator, Query, Reject, json, page};
use crate::map;

pub(super) async fn list(
    State(app): State<Arc<App>>,
    _: Operator,
    Query(pairs): Query,
) -> Answered {
    let query = api::DecisionQuery::from_pairs(&pairs)?;
    let question = DecisionQuery {
        tenant: query.tenant,
        code: query.code.map(CodeFilter::Code),
        from: query.from.map(Into::into),
        before: cursor(query.page.cursor.as_deref())?,
        limit: query.page.limit(),
    };
    let to = query.to;
    let found = app.read(move |reader| reader.decisions(&question)).await?;
    let next = found.next.map(|id| id.to_string());
    let items = found.items.into_iter().filter(|row| to.is_none_or(|to| row.at < to.into()));
    Ok(page(items.map(map::decision).collect(), next))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    _: Operator,
    Path(id): Path<String>,
) -> Answered {
    let id: DecisionId = named(&id, "decision")?;
    let row = app.read(move |reader| reader.decision(id)).await?;
    let row = row.ok_or_else(|| Reject::not_found("decision"))?;
    Ok(json(StatusCode::OK, &map::decision(row)))
}
