//! The verdict that a request would get now, with all that led to it.

use plimsoll_types::{FilterCounts, HostFilter, HostId, PolicyMode, PoolName, RefusalCode};
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
    /// What the request needs and would be charged: one figure, for check and reserve alike.
    pub charge_mib: u64,
    /// Version of the policy snapshot; `null` for the local policy.
    #[serde(default)]
    pub policy_version: Option<u64>,
    /// How permissive the policy is by its age.
    #[schema(value_type = schema::PolicyMode)]
    pub policy_mode: PolicyMode,
    /// Everything but hosts, in the order in which it is held against the request: quota counters,
    /// rates, slots, budgets.
    pub checks: Vec<CheckLine>,
    /// Hosts, best first, at most 1 000.
    pub hosts: Vec<HostLine>,
    /// How many hosts fell to each filter; of all hosts.
    #[schema(value_type = schema::FilterCounts)]
    pub counts: FilterCounts,
}

/// One check other than a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckLine {
    /// Which, such as `concurrency.vcpus` or `slots`.
    pub check: String,
    /// Whether it lets the request pass.
    pub passes: bool,
    /// What it refuses with.
    #[serde(default)]
    #[schema(value_type = Option<schema::RefusalCode>)]
    pub code: Option<RefusalCode>,
    /// What is used now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// What the request would add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incoming: Option<u64>,
    /// The limit in force, burst included; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The numbers, for people.
    #[serde(default)]
    pub detail: String,
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
    pub filter: Option<HostFilter>,
    /// What the request needs there and would be charged, in its regime.
    pub charge_mib: u64,
    /// What it would still accept after what is pending; `null` is unknown or shut.
    pub admittable_mib: Option<i64>,
    /// Its score among the candidates, in thousandths.
    #[serde(default)]
    pub score: i64,
    /// The numbers, for people.
    #[serde(default)]
    pub detail: String,
}
