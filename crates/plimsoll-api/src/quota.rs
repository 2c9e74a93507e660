//! Quota as its owner sees it, and metered use.

use std::collections::BTreeMap;

use plimsoll_types::{PlanId, TenantId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::input::FieldError;
use crate::page::{ListQuery, Pairs, push, unknown, word};
use crate::time::Time;

/// Where a tenant stands on the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuotaState {
    /// Below 80 % of each budget.
    Ok,
    /// At 80 % or more of a budget.
    Warned,
    /// At 100 %: new work is refused, running work finishes.
    Exhausted,
    /// Idle resources are paused.
    Hibernated,
    /// The clock to deletion runs.
    Deleting,
}

/// Answer of `GET /v1/quota`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaView {
    /// The period, named by its first day or month.
    pub period: String,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Time>,
    /// When it ends.
    pub resets_at: Time,
    /// The plan.
    #[schema(value_type = String)]
    pub plan: PlanId,
    /// Where the tenant stands on the ladder.
    pub state: QuotaState,
    /// How much is alive.
    pub concurrency: ConcurrencyUsage,
    /// How much was used in the period.
    pub consumption: ConsumptionUsage,
    /// How often something may still be done, by counter, such as `creates_per_minute`.
    pub rate: BTreeMap<String, TokensLeft>,
    /// What used most in the period, most first.
    pub top_consumers: Vec<Consumer>,
    /// The tenant.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantId>,
    /// State deleting: when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletes_at: Option<Time>,
}

/// How much is alive, by counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConcurrencyUsage {
    /// Sandboxes.
    pub sandboxes: BurstUsage,
    /// Virtual CPUs.
    pub vcpus: BurstUsage,
    /// Configured memory.
    pub memory_mib: BurstUsage,
}

/// One counter with a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BurstUsage {
    /// What is used.
    pub used: u64,
    /// What may be held for ever; `null` is unlimited.
    pub limit: Option<u64>,
    /// What may be held while there is credit; `null` is unlimited.
    pub burst_limit: Option<u64>,
    /// How long the credit lasts at what is used now, or, at or below the limit, at the whole
    /// burst; `null` without a burst.
    pub burst_seconds_left: Option<u64>,
}

/// How much was used in the period, by counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConsumptionUsage {
    /// CPU-seconds.
    pub cpu_seconds: UsedOf,
    /// GiB-hours.
    pub gib_hours: UsedOf,
    /// Bytes sent out.
    pub egress_bytes: UsedOf,
}

/// One counter of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsedOf {
    /// What was used, rounded down.
    pub used: u64,
    /// The budget; `null` is unlimited.
    pub limit: Option<u64>,
}

/// One bucket. Both are `null` where it is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokensLeft {
    /// Whole tokens left now.
    pub left: Option<u64>,
    /// The limit.
    pub limit: Option<u64>,
}

/// One sandbox or reservation that uses the budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Consumer {
    /// Which.
    pub id: String,
    /// CPU-seconds in the period.
    pub cpu_seconds: u64,
    /// GiB-hours in the period, rounded down.
    pub gib_hours: u64,
    /// The same in thousandths, since one guest rarely fills whole ones.
    #[serde(default)]
    pub gib_hours_thousandths: u64,
}

/// By what use is summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsageGroup {
    /// One row for each sandbox.
    Sandbox,
    /// One row for each UTC day.
    Day,
    /// One row.
    #[default]
    Total,
}

impl UsageGroup {
    /// The word at every edge.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Day => "day",
            Self::Total => "total",
        }
    }
}

/// Query of `GET /v1/usage`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// Which page.
    pub page: ListQuery,
    /// Not before; the start of the period where absent.
    pub from: Option<Time>,
    /// Before; now where absent.
    pub to: Option<Time>,
    /// By what to sum up.
    pub group_by: UsageGroup,
    /// Whose; operators only.
    pub tenant: Option<TenantId>,
}

impl UsageQuery {
    /// Reads the query.
    ///
    /// # Errors
    /// Names the parameter that is unknown or out of its bound.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Self, FieldError> {
        let mut query = Self::default();
        for (name, value) in pairs {
            match name.as_str() {
                "from" => query.from = Some(word("from", value)?),
                "to" => query.to = Some(word("to", value)?),
                "tenant" => query.tenant = Some(word("tenant", value)?),
                "group_by" => {
                    query.group_by = match value.as_str() {
                        "sandbox" => UsageGroup::Sandbox,
                        "day" => UsageGroup::Day,
                        "total" => UsageGroup::Total,
                        _ => {
                            let given = format_args!("{value:?}");
                            return Err(FieldError::new(
                                "group_by",
                                given,
                                "one of sandbox, day, total",
                            ));
                        }
                    }
                }
                _ if query.page.take(name, value)? => {}
                _ => return Err(unknown(name, "from, to, group_by, tenant, limit, cursor")),
            }
        }
        if let (Some(from), Some(to)) = (query.from, query.to)
            && to < from
        {
            return Err(FieldError::new("to", to, format!("not before from, {from}")));
        }
        Ok(query)
    }

    /// The query as pairs.
    #[must_use]
    pub fn to_pairs(&self) -> Pairs {
        let mut pairs = self.page.to_pairs();
        push(&mut pairs, "from", self.from);
        push(&mut pairs, "to", self.to);
        push(&mut pairs, "tenant", self.tenant.as_ref());
        push(&mut pairs, "group_by", Some(self.group_by.as_str()));
        pairs
    }
}

/// One row of metered use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageRow {
    /// The tenant.
    #[schema(value_type = String)]
    pub tenant: TenantId,
    /// Grouped by sandbox: which sandbox or reservation.
    #[serde(default)]
    pub id: Option<String>,
    /// Where the row begins.
    pub from: Time,
    /// Where it ends.
    pub to: Time,
    /// CPU-seconds, rounded down.
    pub cpu_seconds: u64,
    /// GiB-hours of memory charged, rounded down.
    pub gib_hours: u64,
    /// Bytes sent out.
    pub egress_bytes: u64,
    /// CPU exactly, in core-milliseconds.
    #[serde(default)]
    pub cpu_millis: u64,
    /// Memory charged, in MiB-seconds.
    #[serde(default)]
    pub charged_mib_seconds: u64,
    /// Memory measured, in MiB-seconds.
    #[serde(default)]
    pub resident_mib_seconds: u64,
}
