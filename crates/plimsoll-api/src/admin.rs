//! What operators see: hosts, decisions, status.

use std::collections::BTreeMap;

use plimsoll_types::{
    DecisionId, FilterCounts, HostFilter, HostId, PolicyMode, PoolName, RefusalCode, Regime,
    TenantId,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::explain::Verdict;
use crate::input::FieldError;
use crate::page::{ListQuery, Pairs, push, unknown, word};
use crate::schema;
use crate::time::Time;

/// What the cell holds a host for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostStatus {
    /// Its last report is fresh.
    Fresh,
    /// Its last report is older than the stale bound: no candidate.
    Stale,
    /// Declared dead.
    Dead,
    /// It has not reported since this cell started.
    Unknown,
}

/// A host as the cell sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Its name.
    #[schema(value_type = String)]
    pub id: HostId,
    /// Its pool.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// What the cell holds it for.
    pub status: HostStatus,
    /// Why nothing new is placed on it; `null` where something is.
    #[schema(value_type = Option<String>)]
    pub standing: Option<HostFilter>,
    /// Age of its last report by the cell's clock.
    pub age_millis: Option<u64>,
    /// When that report was made: by the host's own clock where it is within five minutes of the
    /// cell's, else when the cell received it.
    #[serde(default)]
    pub heartbeat_at: Option<Time>,
    /// How far the host's clock was ahead of the cell's then; negative is behind.
    #[serde(default)]
    pub clock_skew_millis: Option<i64>,
    /// When it was first seen.
    #[serde(default)]
    pub enrolled_at: Option<Time>,
    /// Where it stands.
    #[serde(default)]
    pub region: Option<String>,
    /// Where its agent listens.
    pub address: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What it runs guests with.
    #[serde(default)]
    pub drivers: Vec<String>,
    /// Start of its reporter.
    pub boot_id: Option<String>,
    /// Given by the cell at the agent's start; `null` without our agent.
    pub incarnation: Option<u64>,
    /// Of its last report.
    pub sequence: Option<u64>,
    /// All CPU.
    pub cpu_millis_total: u64,
    /// CPU in use.
    pub cpu_millis_used: u64,
    /// Memory offered.
    pub memory_mib_total: u64,
    /// Memory in use.
    pub memory_mib_used: u64,
    /// The arithmetic in force there.
    #[schema(value_type = schema::Regime)]
    pub memory_admission: Regime,
    /// What it said that it would accept; `null` is unknown or shut.
    pub memory_mib_admittable: Option<i64>,
    /// Why the above is `null`.
    pub not_admitting: Option<String>,
    /// Charges of admissions that its last report cannot know of.
    pub pending_mib: u64,
    /// What the cell will still send there: the one less the other.
    pub effective_mib: Option<i64>,
    /// Sandboxes and reservations on it.
    pub guests: u64,
    /// Sum of their charges.
    pub charged_mib: u64,
    /// Sum of their configured memory.
    pub configured_mib: u64,
    /// Sum of their measured memory.
    pub resident_mib: u64,
    /// Guests that it should not have.
    #[serde(default)]
    pub unexpected_guests: Vec<String>,
    /// Starts under way, those sent since the report included.
    pub starts_in_flight: u32,
    /// Most starts at once; `null` is unbounded.
    pub starts_limit: Option<u32>,
    /// Free counted resources, as reported.
    #[serde(default)]
    pub counted: BTreeMap<String, u64>,
    /// Memory pressure in basis points, where known.
    #[serde(default)]
    pub pressure_bp: Option<u32>,
    /// Whether an operator is emptying it.
    pub draining: bool,
    /// Failures or refusals in a row.
    #[serde(default)]
    pub failures_in_a_row: u32,
    /// Set aside after these, until then.
    pub set_aside_until: Option<Time>,
}

/// One row of the decision log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// Its id.
    #[schema(value_type = String)]
    pub id: DecisionId,
    /// When it was made.
    pub at: Time,
    /// Whose request it was.
    #[schema(value_type = String)]
    pub tenant: TenantId,
    /// What was asked: `create`, `fork`, `resume`, `reserve` or `reserve_batch`.
    pub verb: String,
    /// Yes or no.
    pub verdict: Verdict,
    /// Which no.
    #[schema(value_type = Option<schema::RefusalCode>)]
    pub code: Option<RefusalCode>,
    /// For people.
    #[serde(default)]
    pub detail: Option<String>,
    /// The sandbox, or the first reservation, that it was about.
    #[serde(default)]
    pub object: Option<String>,
    /// The pool chosen, or asked first.
    #[schema(value_type = Option<String>)]
    pub pool: Option<PoolName>,
    /// The host chosen.
    #[schema(value_type = Option<String>)]
    pub host: Option<HostId>,
    /// Configured memory, in sum.
    pub memory_mib: u64,
    /// Virtual CPUs, in sum.
    pub vcpus: u64,
    /// Whether it was charged in full for its state.
    pub stateful: bool,
    /// What was charged, or would have been, in sum.
    pub charge_mib: u64,
    /// How many items, for a batch; else 1.
    #[serde(default)]
    pub items: u32,
    /// Version of the policy snapshot; `null` for the local policy.
    pub policy_version: Option<u64>,
    /// Its mode.
    #[schema(value_type = schema::PolicyMode)]
    pub policy_mode: PolicyMode,
    /// How many hosts fell to each filter.
    #[schema(value_type = schema::FilterCounts)]
    pub counts: FilterCounts,
    /// Slots held in the pool at that moment.
    #[serde(default)]
    pub slots_held: Option<u64>,
    /// Its limit then; `null` is unlimited.
    #[serde(default)]
    pub slots_limit: Option<u64>,
}

/// Query of `GET /v1/admin/decisions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionQuery {
    /// Which page.
    pub page: ListQuery,
    /// Only this tenant.
    pub tenant: Option<TenantId>,
    /// Only this refusal.
    pub code: Option<RefusalCode>,
    /// Not before.
    pub from: Option<Time>,
    /// Before.
    pub to: Option<Time>,
}

impl DecisionQuery {
    /// Reads the query.
    ///
    /// # Errors
    /// Names the parameter that is unknown or out of its bound.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Self, FieldError> {
        let mut query = Self::default();
        for (name, value) in pairs {
            match name.as_str() {
                "tenant" => query.tenant = Some(word("tenant", value)?),
                "code" => {
                    let code = value.parse().map_err(|()| {
                        FieldError::new("code", format_args!("{value:?}"), "a refusal's code")
                    })?;
                    query.code = Some(code);
                }
                "from" => query.from = Some(word("from", value)?),
                "to" => query.to = Some(word("to", value)?),
                _ if query.page.take(name, value)? => {}
                _ => return Err(unknown(name, "tenant, code, from, to, limit, cursor")),
            }
        }
        Ok(query)
    }

    /// The query as pairs.
    #[must_use]
    pub fn to_pairs(&self) -> Pairs {
        let mut pairs = self.page.to_pairs();
        push(&mut pairs, "tenant", self.tenant.as_ref());
        push(&mut pairs, "code", self.code);
        push(&mut pairs, "from", self.from);
        push(&mut pairs, "to", self.to);
        pairs
    }
}

/// Whether a replica decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaRole {
    /// It holds the lease and decides.
    Leader,
    /// It forwards to the leader.
    Follower,
    /// It is reading its state.
    Loading,
}

/// Answer of `GET /v1/admin/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// The cell's name.
    pub cell: String,
    /// Whether this replica decides.
    pub role: ReplicaRole,
    /// The leader's epoch.
    pub epoch: Option<u64>,
    /// Kind of store: `memory`, `sqlite` or `postgres`.
    pub store: String,
    /// Since when this process runs.
    pub started_at: Time,
    /// How long that is.
    pub uptime_seconds: u64,
    /// Counts.
    pub counts: StatusCounts,
}

/// Counts of a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StatusCounts {
    /// Tenants.
    pub tenants: u64,
    /// Pools.
    pub pools: u64,
    /// Hosts.
    pub hosts: u64,
    /// Hosts that would take something.
    pub hosts_ready: u64,
    /// Sandboxes that have neither ended nor wait for their first start.
    pub sandboxes_live: u64,
    /// Sandboxes that wait for their first start.
    pub sandboxes_queued: u64,
    /// Reservations that hold.
    pub reservations_held: u64,
    /// Requests that wait for hosts to be asked afresh.
    pub parked: u64,
    /// Breaches of invariants since the start, by id; empty when all is well.
    pub invariant_violations: BTreeMap<String, u64>,
}
