//! Policy snapshots.

use std::sync::Arc;

use axum::extract::{Request, State};
use plimsoll_api as api;
use plimsoll_types::RefusalCode;

use super::pools::all_pools;
use crate::app::App;
use crate::http::{Answered, Operator, Query, Reject, page, read};

/// What each pool is admitted under.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    operator: Operator,
    Query(pairs): Query,
) -> Answered {
    api::ListQuery::from_pairs(&pairs)?;
    let views = all_pools(&app, operator.caller).await?.into_iter().map(|view| {
        let (_, mode, age) = view.policy;
        api::PolicyView {
            pool: view.row.name,
            mode,
            age_seconds: age.map(|age| age.get() / 1000),
            snapshot: None,
            received_at: None,
            budget_mib: None,
            promised_mib: 0,
        }
    });
    Ok(page(views.collect(), None))
}

/// A snapshot is believed on the word of a planner whose key the operator has set. This cell has
/// none, so that it believes nobody.
pub(super) async fn put(State(app): State<Arc<App>>, _: Operator, request: Request) -> Answered {
    let _: api::Envelope = read(&app, request).await?;
    app.shell.metrics.policy_rejected("no_trusted_key");
    let detail = "this cell trusts no planner's key, so that no snapshot can be accepted";
    Err(Reject::new(RefusalCode::Conflict, detail))
}
