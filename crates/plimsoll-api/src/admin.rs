//! What operators see: hosts, decisions, status.

use std::collections::BTreeMap;

use plimsoll_types::{
    DecisionId, FilterCounts, HostId, PolicyMode, PoolName, RefusalCode, Regime, ReservationId,
    SandboxId, TenantId,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// Age of its last report by the cell's clock.
    pub age_millis: Option<u64>,
    /// When its last report arrived.
    pub received_at: Option<Time>,
    /// Its own clock at that report.
    pub heartbeat_at: Option<Time>,
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
    /// Given by the cell at the agent's start.
    pub incarnation: Option<u64>,
    /// Of its last report.
    pub sequence: Option<u64>,
    /// Highest command number that its last report accounts for.
    pub seen_through: Option<u64>,
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
    /// Admissions that its last report cannot know of.
    pub pending_mib: u64,
    /// What the cell will still send there: admittable less pending.
    pub admittable_effective_mib: Option<i64>,
    /// Sum of its guests' charges, as it reported them.
    pub charged_mib: u64,
    /// Sum of its guests' resident memory, as measured.
    #[serde(default)]
    pub resident_mib: u64,
    /// Sum of its guests' configured memory, by the cell's records.
    pub committed_mib: u64,
    /// Of that, stateful.
    #[serde(default)]
    pub stateful_mib: u64,
    /// Guests that it listed.
    pub guests: u64,
    /// Of these, guests that it should not have.
    #[serde(default)]
    pub unexpected_guests: Vec<String>,
    /// Reservations held there.
    pub reservations: u64,
    /// Starts under way, those sent since the report included.
    pub starts_in_flight: u32,
    /// Most starts at once; `null` is unbounded.
    pub starts_limit: Option<u32>,
    /// Free counted resources.
    #[serde(default)]
    pub counted: BTreeMap<String, u64>,
    /// Whether guests boot without pulling their whole memory first.
    #[serde(default)]
    pub stream_restore: bool,
    /// Memory pressure in basis points, where known.
    pub pressure_bp: Option<u32>,
    /// Whether an operator is emptying it.
    pub draining: bool,
    /// Set aside after failures or refusals, until then.
    pub set_aside_until: Option<Time>,
    /// Failures or refusals in a row.
    #[serde(default)]
    pub failures_in_a_row: u32,
    /// Whether its last inventory was whole.
    #[serde(default)]
    pub complete: bool,
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
    /// What was asked: `create`, `fork`, `resume`, `start`, `reserve`, ...
    pub kind: String,
    /// `admit`, `queue` or `refuse`.
    pub verdict: crate::explain::Verdict,
    /// Which no.
    #[schema(value_type = Option<schema::RefusalCode>)]
    pub code: Option<RefusalCode>,
    /// For people.
    #[serde(default)]
    pub detail: Option<String>,
    /// The sandbox that it was about.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub sandbox: Option<SandboxId>,
    /// The reservation that it was about.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub reservation: Option<ReservationId>,
    /// The pool chosen, or asked first.
    #[schema(value_type = Option<String>)]
    pub pool: Option<PoolName>,
    /// The host chosen.
    #[schema(value_type = Option<String>)]
    pub host: Option<HostId>,
    /// Configured memory.
    pub memory_mib: u64,
    /// Virtual CPUs.
    pub vcpus: u64,
    /// Whether it was charged in full for its state.
    pub stateful: bool,
    /// What was charged, or would have been.
    pub charge_mib: u64,
    /// Version of the policy snapshot; `null` for the local policy.
    pub policy_version: Option<u64>,
    /// Its mode.
    #[schema(value_type = Option<schema::PolicyMode>)]
    pub policy_mode: Option<PolicyMode>,
    /// How many hosts fell to each filter.
    #[schema(value_type = Option<schema::FilterCounts>)]
    pub counts: Option<FilterCounts>,
    /// The counter that refused, such as `concurrency.vcpus`.
    #[serde(default)]
    pub counter: Option<String>,
    /// When trying again was said to make sense.
    #[serde(default)]
    pub retry_after_millis: Option<u64>,
    /// Whether hosts were left unasked.
    #[serde(default)]
    pub unprobed: bool,
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
    /// Hosts by status.
    pub hosts: BTreeMap<String, u64>,
    /// Sandboxes by status, those at their end left out.
    pub sandboxes: BTreeMap<String, u64>,
    /// Reservations by state.
    pub reservations: BTreeMap<String, u64>,
    /// Tenants.
    pub tenants: u64,
    /// Pools.
    pub pools: u64,
    /// Breaches of invariants since the start, by id; empty when all is well.
    pub invariant_violations: BTreeMap<String, u64>,
}
