//! The verdict that a request would get now, with all that led to it.

use plimsoll_types::{FilterCounts, HostFilter, HostId, PolicyMode, PoolName, RefusalCode, Regime};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::input::{FieldError, parse};
use crate::reservation::ReserveRequest;
use crate::sandbox::CreateSandbox;
use crate::schema;

/// Body of `POST /v1/explain`: a create where it has `template`, else a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ExplainRequest {
    /// A create.
    Create(Box<CreateSandbox>),
    /// A reservation.
    Reserve(ReserveRequest),
}

/// Which of the two bodies it is.
#[derive(Deserialize)]
struct Probe {
    template: Option<IgnoredAny>,
}

impl ExplainRequest {
    /// Reads and checks the body. Errors name fields as those of the body meant do.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn parse(bytes: &[u8]) -> Result<Self, FieldError> {
        let is_create =
            serde_json::from_slice::<Probe>(bytes).is_ok_and(|probe| probe.template.is_some());
        if is_create {
            parse(bytes).map(Box::new).map(Self::Create)
        } else {
            parse(bytes).map(Self::Reserve)
        }
    }
}

/// Yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It would be admitted.
    Admit,
    /// It would be queued.
    Queue,
    /// It would be refused.
    Refuse,
}

/// Answer of `POST /v1/explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Yes or no.
    pub verdict: Verdict,
    /// Which no.
    #[serde(default)]
    #[schema(value_type = Option<schema::RefusalCode>)]
    pub code: Option<RefusalCode>,
    /// The whole in one sentence, for people.
    pub detail: String,
    /// When trying again would make sense.
    #[serde(default)]
    pub retry_after_millis: Option<u64>,
    /// The host that would be chosen; operators only.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub host: Option<HostId>,
    /// The pool that would be chosen.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub pool: Option<PoolName>,
    /// Configured memory, with the driver's overhead.
    pub configured_mib: u64,
    /// What a host must have admittable, in the regime of the pool asked first.
    pub need_mib: u64,
    /// What the chosen host's budget would be charged at once.
    pub charge_mib: u64,
    /// Virtual CPUs.
    pub vcpus: u64,
    /// The tenant's limits.
    pub quota: QuotaPart,
    /// Pools in the order in which they would be asked.
    pub pools: Vec<PoolLine>,
    /// Hosts, filter by filter.
    pub hosts: Vec<HostLine>,
    /// Whether `hosts` was cut at its bound; the counts are of all.
    #[serde(default)]
    pub hosts_truncated: bool,
    /// How many hosts fell to each filter.
    #[schema(value_type = schema::FilterCounts)]
    pub counts: FilterCounts,
}

/// The tenant's part of a verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaPart {
    /// The first counter that refuses, such as `concurrency.vcpus`.
    #[serde(default)]
    pub refused_by: Option<String>,
    /// Whether the tenant is suspended.
    #[serde(default)]
    pub suspended: bool,
    /// Each counter.
    pub counters: Vec<QuotaCounterLine>,
}

/// One counter of a tenant held against one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaCounterLine {
    /// Its name, such as `concurrency.vcpus` or `rate.creates_per_minute`.
    pub counter: String,
    /// What is used now; for a rate, of its bucket.
    pub used: u64,
    /// What the request would add.
    pub incoming: u64,
    /// The limit in force, burst included; `null` is unlimited.
    pub limit: Option<u64>,
    /// Whether `used + incoming` is within the limit.
    pub passes: bool,
}

/// One pool's part of a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolLine {
    /// The pool.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// Why it would not take the request; `null` where it would.
    #[serde(default)]
    #[schema(value_type = Option<schema::RefusalCode>)]
    pub code: Option<RefusalCode>,
    /// Its arithmetic, where hosts do not say otherwise.
    #[schema(value_type = schema::Regime)]
    pub regime: Regime,
    /// Its slots.
    pub slots: SlotPart,
    /// Its policy.
    pub policy: PolicyPart,
    /// How many of its hosts fell to each filter.
    #[schema(value_type = schema::FilterCounts)]
    pub counts: FilterCounts,
}

/// Slots of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotPart {
    /// Slots held.
    pub held: u64,
    /// Of these, set aside for a waiter.
    #[serde(default)]
    pub held_for_waiters: u64,
    /// Resumes that wait.
    pub waiting_resume: u64,
    /// Creates that wait.
    #[serde(default)]
    pub waiting_create: u64,
    /// The limit; `null` is unlimited.
    pub limit: Option<u64>,
}

/// The policy that a pool is admitted under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyPart {
    /// How permissive it is by its age.
    #[schema(value_type = schema::PolicyMode)]
    pub mode: PolicyMode,
    /// Version of the snapshot; `null` for the local policy.
    #[serde(default)]
    pub version: Option<u64>,
    /// Ceiling on configured memory; `null` without a planner.
    #[serde(default)]
    pub budget_mib: Option<u64>,
    /// Configured memory admitted under it.
    #[serde(default)]
    pub promised_mib: u64,
}

/// One host's part of a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostLine {
    /// The host; operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub host: Option<HostId>,
    /// Its pool.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// The filter that it fell to; `null` for a candidate.
    #[schema(value_type = Option<String>)]
    pub filtered: Option<HostFilter>,
    /// What it said that it would accept; `null` is unknown or shut.
    pub admittable_mib: Option<i64>,
    /// Admissions that its last report cannot know of.
    pub pending_mib: u64,
    /// What this request needs there, in its regime.
    pub need_mib: u64,
    /// Age of its last report by the cell's own clock.
    pub age_millis: Option<u64>,
    /// Starts under way, those sent since the report included.
    pub starts_in_flight: u32,
    /// Most starts at once; `null` is unbounded.
    pub starts_limit: Option<u32>,
    /// Its score among the candidates, in thousandths.
    #[serde(default)]
    pub score: Option<i64>,
    /// Why, for people.
    #[serde(default)]
    pub detail: Option<String>,
}
