//! Quota.

use plimsoll_api as api;
use plimsoll_engine::{ConcurrencyView, ConsumptionView, QuotaView};
use plimsoll_types::PlanId;

use crate::http::Reject;

/// A tenant's quota.
///
/// # Errors
/// When the engine names a plan, state or counter that the API does not know.
pub(crate) fn quota(view: QuotaView) -> Result<api::QuotaView, Reject> {
    let plan = view.plan.parse::<PlanId>().map_err(|_| Reject::unexpected())?;
    let state = match view.state {
        "ok" => api::QuotaState::Ok,
        "warned" => api::QuotaState::Warned,
        "exhausted" => api::QuotaState::Exhausted,
        "hibernated" => api::QuotaState::Hibernated,
        "deleting" => api::QuotaState::Deleting,
        _ => return Err(Reject::unexpected()),
    };
    let mut concurrency = api::ConcurrencyUsage::default();
    for (name, ConcurrencyView { used, limit, burst_limit, burst_seconds_left }) in view.concurrency
    {
        let usage = api::BurstUsage { used, limit, burst_limit, burst_seconds_left };
        match name {
            "sandboxes" => concurrency.sandboxes = usage,
            "vcpus" => concurrency.vcpus = usage,
            "memory_mib" => concurrency.memory_mib = usage,
            _ => return Err(Reject::unexpected()),
        }
    }
    let mut consumption = api::ConsumptionUsage::default();
    for (name, ConsumptionView { used, limit }) in view.consumption {
        let usage = api::UsedOf { used, limit };
        match name {
            "cpu_seconds" => consumption.cpu_seconds = usage,
            "gib_hours" => consumption.gib_hours = usage,
            "egress_bytes" => consumption.egress_bytes = usage,
            _ => return Err(Reject::unexpected()),
        }
    }
    let rate = view.rate.into_iter().map(|(name, view)| {
        (name.to_owned(), api::TokensLeft { left: view.left, limit: view.limit })
    });
    let top_consumers = view.top_consumers.into_iter().map(|(id, cpu_seconds, thousandths)| {
        let gib_hours = thousandths / 1000;
        api::Consumer { id, cpu_seconds, gib_hours, gib_hours_thousandths: thousandths }
    });
    Ok(api::QuotaView {
        period: view.period,
        starts_at: Some(view.starts_at.into()),
        resets_at: view.resets_at.into(),
        plan,
        state,
        concurrency,
        consumption,
        rate: rate.collect(),
        top_consumers: top_consumers.collect(),
        tenant: Some(view.tenant),
        deletes_at: view.deletes_at.map(Into::into),
    })
}
