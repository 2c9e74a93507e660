//! The facts that a store keeps, one struct per table. A row is whole: writing it replaces what
//! stood under its key. Nothing here is a verdict; the engine derives every sum from these rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_types::{
    BasisPoints, ClaimId, Counted, Criticality, DecisionId, Driver, EndpointId, EventId, Fence,
    FilterCounts, HostId, KeyId, Lifecycle, Mib, OnFull, PauseKind, Placement, PlanId, PolicyMode,
    PoolName, Preemption, RefusalCode, Regime, ReservationId, ReserveRule, SandboxId,
    SandboxStatus, TemplateName, TenantId, Timestamp, Vcpus,
};
use serde::{Deserialize, Serialize};

pub use crate::labels::Labels;
pub use plimsoll_policy::consumption::ConsumptionLimits;
pub use plimsoll_policy::quota::Limit;
pub use plimsoll_policy::rate::RateLimits;
pub use plimsoll_policy::usage::{Meter, Totals};

/// Limits on what is alive at once: sandboxes, vCPUs and configured memory in MiB.
pub type ConcurrencyLimits = plimsoll_policy::quota::Limits;

/// Everything that a plan limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlanLimits {
    /// What is alive at once.
    pub concurrency: ConcurrencyLimits,
    /// What is used up in a period.
    pub consumption: ConsumptionLimits,
    /// How often.
    pub rate: RateLimits,
}

/// A set of limits that tenants are given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRow {
    /// Its name.
    pub id: PlanId,
    /// Its limits.
    pub limits: PlanLimits,
}

/// Who is charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRow {
    /// Its name.
    pub id: TenantId,
    /// Its plan.
    pub plan: PlanId,
    /// A payment method and a live subscription: never refused for consumption.
    pub payment_method: bool,
    /// Whether a payment method was ever attached.
    pub payment_method_ever: bool,
    /// When the account was made.
    pub created_at: Timestamp,
    /// Limits of its own; each one that is set replaces the plan's.
    pub overrides: PlanLimits,
    /// Why an operator suspended it; a suspended tenant starts nothing.
    pub suspended: Option<String>,
    /// Day of the month on which its period begins; `None` is the calendar month.
    pub anchor_day: Option<u8>,
}

impl TenantRow {
    /// An account of this moment on a plan, as it comes: nobody has paid, and nothing is its own.
    #[must_use]
    pub fn new(id: TenantId, plan: PlanId, created_at: Timestamp) -> Self {
        Self {
            id,
            plan,
            payment_method: false,
            payment_method_ever: false,
            created_at,
            overrides: PlanLimits::default(),
            suspended: None,
            anchor_day: None,
        }
    }
}

/// What moves for a tenant between decisions: burst credit, rate buckets, the ladder. Written at
/// most every few seconds, and at once when the ladder moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantStateRow {
    /// Whose.
    pub tenant: TenantId,
    /// The state as the engine keeps it, as JSON, so that it can grow without a migration.
    pub state: serde_json::Value,
}

/// A named set of hosts, or an external provider, admitted under one policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolSettings {
    /// Slots; `None` is no slot limit.
    pub limit: Option<u64>,
    /// The arithmetic of its hosts, unless a host says its own.
    pub regime: Regime,
    /// What a pause does.
    pub pause: PauseKind,
    /// Whom it may pause to make room.
    pub preemption: Preemption,
    /// Which host is preferred.
    pub placement: Placement,
    /// Pools, in order, that creates overflow to.
    pub overflow: Vec<PoolName>,
    /// Whether it is a provider outside.
    pub external: bool,
    /// What is charged before the first measurement.
    pub reserve: ReserveRule,
    /// No sample counts as a measurement before the guest is this old.
    pub settle_seconds: u64,
    /// The reserve decays to nothing over this long after that.
    pub decay_seconds: u64,
    /// Most promised vCPUs for each physical one; `None` lets CPU degrade.
    pub max_vcpu_ratio_bp: Option<BasisPoints>,
    /// After this long the head of the queue has its need set aside.
    pub queue_hold_seconds: u64,
    /// What was set aside for a waiter is let go after this long, and set aside anew.
    pub hold_ttl_seconds: u64,
    /// A queued resume that nobody renewed lapses after this long.
    pub resume_lapse_seconds: u64,
    /// Most preemptions in a minute.
    pub preemptions_per_minute_max: u32,
    /// A guest brought in by preemption is no victim for this long.
    pub preemption_protect_seconds: u64,
    /// A waiter does not evict the guest that it made way for before this long.
    pub preemption_pair_seconds: u64,
    /// A report older than this is no ground to place on.
    pub stale_seconds: u64,
    /// A host that is silent for this long is declared dead.
    pub dead_seconds: u64,
    /// A guest must be missing from complete lists for this long before it is released.
    pub inventory_grace_seconds: u64,
    /// Limits for sandboxes that name none.
    pub lifecycle: Lifecycle,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            limit: None,
            regime: Regime::WorkingSet,
            pause: PauseKind::Driver,
            preemption: Preemption::default(),
            placement: Placement::Spread,
            overflow: Vec::new(),
            external: false,
            reserve: ReserveRule::default(),
            settle_seconds: 3,
            decay_seconds: 120,
            max_vcpu_ratio_bp: None,
            queue_hold_seconds: 30,
            hold_ttl_seconds: 60,
            resume_lapse_seconds: 3600,
            preemptions_per_minute_max: 30,
            preemption_protect_seconds: 60,
            preemption_pair_seconds: 300,
            stale_seconds: 30,
            dead_seconds: 120,
            inventory_grace_seconds: 5,
            lifecycle: Lifecycle::default(),
        }
    }
}

/// A pool and its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRow {
    /// Its name.
    pub name: PoolName,
    /// Its settings.
    pub settings: PoolSettings,
}

/// A named shape of guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateRow {
    /// Its name.
    pub name: TemplateName,
    /// What runs it.
    pub driver: Driver,
    /// Configured memory of a guest that names none.
    pub memory_mib: Mib,
    /// What the driver needs on top of it.
    pub overhead_mib: Mib,
    /// vCPUs of a guest that names none.
    pub vcpus: Vcpus,
    /// Whether its guests hold state.
    pub stateful: bool,
    /// Root file system folder or image.
    pub rootfs: Option<String>,
    /// Its command where a create names none.
    pub command: Vec<String>,
    /// Its environment, beneath the create's own. Never logged.
    pub env: BTreeMap<String, String>,
    /// Labels that a host must carry.
    pub host_labels: BTreeMap<String, String>,
    /// Counted resources that each guest takes.
    pub counted: Counted,
    /// Whether each create is a restore of the template's own checkpoint.
    pub baked: bool,
    /// Its pool where a create names none.
    pub pool: Option<PoolName>,
}

impl TemplateRow {
    /// A stateless guest of one vCPU that takes nothing but memory and runs what its create says.
    #[must_use]
    pub fn new(name: TemplateName, driver: Driver, memory_mib: Mib) -> Self {
        Self {
            name,
            driver,
            memory_mib,
            overhead_mib: Mib::ZERO,
            vcpus: Vcpus(1),
            stateful: false,
            rootfs: None,
            command: Vec::new(),
            env: BTreeMap::new(),
            host_labels: BTreeMap::new(),
            counted: Counted::new(),
            baked: false,
            pool: None,
        }
    }
}

/// What outlives a host's reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRow {
    /// Its name.
    pub id: HostId,
    /// Its pool.
    pub pool: PoolName,
    /// Where its agent listens, fixed at its enrolment.
    pub address: Option<String>,
    /// The secret that the cell shows to the agent. Never shown to anybody else.
    pub secret: Option<String>,
    /// The last incarnation given out.
    pub incarnation: u64,
    /// Command numbers below this may have been used; raised in blocks.
    pub command_numbers_through: u64,
    /// Whether an operator is emptying it.
    pub draining: bool,
    /// When it was first seen.
    pub enrolled_at: Timestamp,
    /// Its last accepted report's identity, so that a late one from before a restart is known.
    pub boot_id: Option<String>,
    /// The identities before it, oldest first, as many as are remembered: what comes late of one
    /// is dropped, after a restart of the cell too.
    #[serde(default)]
    pub old_boots: Vec<String>,
}

/// What a start needs and nobody reads otherwise. It is shared by all sandboxes that are started
/// alike, so that a record stays small: what tells one sandbox from the next has no place in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxSpec {
    /// The command.
    pub command: Vec<String>,
    /// The environment. Never logged.
    pub env: BTreeMap<String, String>,
    /// Counted resources.
    pub counted: Counted,
    /// Labels that its host must carry.
    pub host_labels: BTreeMap<String, String>,
    /// Root file system.
    pub rootfs: Option<String>,
    /// Whether the template is baked.
    pub baked: bool,
    /// The pool that the caller named.
    pub requested_pool: Option<PoolName>,
    /// The sandbox whose checkpoint it was made from.
    pub fork_of: Option<SandboxId>,
    /// Its lifecycle as asked for.
    pub lifecycle: Lifecycle,
}

/// For what the cell paused a sandbox of its own accord and will let it run again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PausedBy {
    /// Its tenant has used up its budget.
    Quota,
    /// Its tenant is suspected of abuse.
    Abuse,
}

impl PausedBy {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Quota, Self::Abuse];

    /// The word used at every edge.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Abuse => "abuse",
        }
    }
}

impl std::str::FromStr for PausedBy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|by| by.as_str() == text).ok_or(())
    }
}

/// One sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRow {
    /// Its id.
    pub id: SandboxId,
    /// Who is charged.
    pub tenant: TenantId,
    /// Its template.
    pub template: TemplateName,
    /// What a start needs.
    pub spec: Arc<SandboxSpec>,
    /// The caller's idempotency key.
    pub key: Option<Arc<str>>,
    /// Labels for people and lists.
    pub labels: Labels,
    /// Where it stands.
    pub status: SandboxStatus,
    /// Why, for people.
    pub reason: Option<Arc<str>>,
    /// Since when it has stood there.
    pub status_since: Timestamp,
    /// The pool that admitted it; `None` while queued.
    pub pool: Option<PoolName>,
    /// Its host; a checkpointed guest keeps the host that has its checkpoint.
    pub host: Option<HostId>,
    /// What runs it.
    pub driver: Driver,
    /// Which start this is; 0 before the first.
    pub attempt: u32,
    /// The last command sent about it.
    pub fence: Fence,
    /// Configured memory.
    pub memory_mib: Mib,
    /// What the driver needs on top.
    pub overhead_mib: Mib,
    /// vCPUs.
    pub vcpus: Vcpus,
    /// Whether it holds state.
    pub stateful: bool,
    /// Higher is more important.
    pub priority: i32,
    /// Whether it may be paused to make room.
    pub preemptible: bool,
    /// How much it matters when the fleet must shed.
    pub criticality: Criticality,
    /// What to do when there is no room.
    pub on_full: OnFull,
    /// Whether its pause wrote it out and freed slot and memory.
    pub slot_released: bool,
    /// Whether it was paused for another, or for idleness: its next call wakes it.
    pub idled: bool,
    /// When a resume that waits was asked for.
    pub resume_requested_at: Option<Timestamp>,
    /// When it was brought in by preemption, while it runs on from there.
    pub brought_in_at: Option<Timestamp>,
    /// For which waiter it is being paused.
    pub preempted_for: Option<SandboxId>,
    /// When it was first asked for; the age in the queue.
    pub queued_at: Timestamp,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last began to run; `None` before that, and from a stop to the next start.
    pub started_at: Option<Timestamp>,
    /// Its last activity.
    pub last_active_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How its process ended.
    pub exit_code: Option<i32>,
    /// What its host charges for it.
    pub charge_mib: Mib,
    /// What its host measured.
    pub resident_mib: Option<Mib>,
    /// Whether a settled sample stands behind the charge.
    pub measured: bool,
    /// The last decision about it.
    pub decision_id: DecisionId,
    /// Fingerprint of the body that its key is bound to; 0 without a key.
    pub body_hash: u64,
    /// For what the cell paused it, while it will let it run again by itself.
    pub paused_by: Option<PausedBy>,
    /// How far its use has been written.
    pub meter: Meter,
}

impl SandboxRow {
    /// Whether what is under way is a start from its disk, after a stop, not a resume.
    pub(crate) fn began_stopped(&self) -> bool {
        self.status == SandboxStatus::Resuming && self.started_at.is_none()
    }
}

/// Where a reservation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservationState {
    /// Holds until its expiry.
    Reserved,
    /// Holds until released.
    Committed,
    /// Given back.
    Released,
    /// Lapsed.
    Expired,
}

impl ReservationState {
    /// Whether it holds quota, slot and memory.
    #[must_use]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Reserved | Self::Committed)
    }

    /// The word used at every edge.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Committed => "committed",
            Self::Released => "released",
            Self::Expired => "expired",
        }
    }
}

/// One reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationRow {
    /// Its id.
    pub id: ReservationId,
    /// Who is charged.
    pub tenant: TenantId,
    /// The caller's key.
    pub key: Arc<str>,
    /// Fingerprint of the body that the key is bound to.
    pub body_hash: u64,
    /// Where it stands.
    pub state: ReservationState,
    /// Its pool.
    pub pool: PoolName,
    /// Its host.
    pub host: HostId,
    /// Configured memory.
    pub memory_mib: Mib,
    /// vCPUs.
    pub vcpus: Vcpus,
    /// Whether it is charged in full for its state.
    pub stateful: bool,
    /// What the host is charged until it counts the reservation itself.
    pub charge_mib: Mib,
    /// Grows with every commit and renewal.
    pub generation: u64,
    /// The guest's control group, where named at commit.
    pub cgroup: Option<Arc<str>>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it lapses unless committed.
    pub expires_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The decision that made it.
    pub decision_id: DecisionId,
    /// How far its use has been written.
    pub meter: Meter,
}

/// What was decided about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// A sandbox's create.
    Create,
    /// A fork.
    Fork,
    /// A resume or start.
    Resume,
    /// A reservation.
    Reserve,
    /// A batch of reservations.
    ReserveBatch,
}

impl Verb {
    /// The word used at every edge.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Fork => "fork",
            Self::Resume => "resume",
            Self::Reserve => "reserve",
            Self::ReserveBatch => "reserve_batch",
        }
    }
}

/// The record of one verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionRow {
    /// Its id.
    pub id: DecisionId,
    /// When.
    pub at: Timestamp,
    /// For whom.
    pub tenant: TenantId,
    /// About what.
    pub verb: Verb,
    /// `None` admitted it.
    pub code: Option<RefusalCode>,
    /// The sandbox or the (first) reservation.
    pub object: Option<ClaimId>,
    /// The pool that admitted, or the first that was tried.
    pub pool: Option<PoolName>,
    /// The host that took it.
    pub host: Option<HostId>,
    /// Configured memory asked for, in sum.
    pub memory_mib: Mib,
    /// vCPUs asked for, in sum.
    pub vcpus: Vcpus,
    /// Whether it holds state.
    pub stateful: bool,
    /// What was or would be charged, in sum.
    pub charge_mib: Mib,
    /// How many items, for a batch.
    pub items: u32,
    /// Version of the policy snapshot; 0 is the local policy.
    pub policy_version: u64,
    /// Its mode.
    pub policy_mode: PolicyMode,
    /// Hosts per filter.
    pub counts: FilterCounts,
    /// Slots held and allowed in the pool at that moment.
    pub slots: Option<(u64, Option<u64>)>,
    /// What a person should know more; never a secret.
    pub detail: Option<Arc<str>>,
}

/// One event, to be delivered at least once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// Its id, stable over attempts; grows with time.
    pub id: EventId,
    /// When.
    pub at: Timestamp,
    /// Its kind, such as `sandbox.created`.
    pub kind: String,
    /// Whom it concerns; `None` is for operators only.
    pub tenant: Option<TenantId>,
    /// Its data.
    pub data: serde_json::Value,
}

/// A webhook endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRow {
    /// Its id.
    pub id: EndpointId,
    /// Whose; `None` hears of every tenant and of hosts.
    pub tenant: Option<TenantId>,
    /// Where to.
    pub url: String,
    /// Kinds that it wants; empty is all.
    pub events: Vec<String>,
    /// For people.
    pub description: String,
    /// Signing secrets, the newest first; an older one stays valid for a while after a rotation.
    pub secrets: Vec<SigningSecret>,
    /// Why it is off.
    pub disabled: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Every event up to this one was delivered or given up on.
    pub cursor: EventId,
    /// Since when its deliveries have failed.
    pub failing_since: Option<Timestamp>,
}

impl EndpointRow {
    /// Whether it is to hear of an event.
    #[must_use]
    pub fn wants(&self, event: &EventRow) -> bool {
        self.disabled.is_none()
            && (self.tenant.is_none() || self.tenant == event.tenant)
            && (self.events.is_empty() || self.events.contains(&event.kind))
    }
}

/// A secret that deliveries to one endpoint are signed with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningSecret {
    /// `whsec_` and the key in base64. It never reaches a log.
    pub secret: String,
    /// Until when deliveries are signed with it; `None` for the one that is shown last.
    pub valid_until: Option<Timestamp>,
}

impl std::fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningSecret")
            .field("valid_until", &self.valid_until)
            .finish_non_exhaustive()
    }
}

/// What an API key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Its own tenant only.
    Tenant,
    /// Everything.
    Operator,
    /// Heartbeats, and its own host.
    Host,
}

impl Role {
    /// The word used at every edge.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Operator => "operator",
            Self::Host => "host",
        }
    }
}

/// One API key; the secret itself is nowhere.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRow {
    /// Its id.
    pub id: KeyId,
    /// What it may do.
    pub role: Role,
    /// For role tenant: whose.
    pub tenant: Option<TenantId>,
    /// For role host: which; `None` serves any name.
    pub host: Option<HostId>,
    /// SHA-256 of the secret, in hexadecimal.
    pub hash: String,
    /// When it was made.
    pub created_at: Timestamp,
}

impl std::fmt::Debug for KeyRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyRow")
            .field("id", &self.id)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// Metered use of one sandbox in one hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// Who is billed.
    pub tenant: TenantId,
    /// What used it.
    pub claim: ClaimId,
    /// The hour's start.
    pub hour: Timestamp,
    /// CPU in core-milliseconds.
    pub cpu_millis: u64,
    /// Charged memory in MiB-milliseconds.
    pub charged_mib_millis: u64,
    /// Resident memory in MiB-milliseconds.
    pub resident_mib_millis: u64,
    /// Bytes sent out.
    pub egress_bytes: u64,
}

/// Stands in [`Rows::usage`] for all claims of a tenant and day whose rows did not come back one
/// by one. It is no claim's id.
pub const OTHER_CLAIMS: ClaimId = ClaimId::Reservation(plimsoll_types::ReservationId(0));

/// One write to the store.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is the row of its name, put or removed")]
pub enum Change {
    Plan(PlanRow),
    PlanGone(PlanId),
    Tenant(TenantRow),
    TenantGone(TenantId),
    TenantState(TenantStateRow),
    Pool(PoolRow),
    PoolGone(PoolName),
    Template(TemplateRow),
    TemplateGone(TemplateName),
    Key(KeyRow),
    KeyGone(KeyId),
    Host(HostRow),
    HostGone(HostId),
    Sandbox(Box<SandboxRow>),
    /// Removes a sandbox's row with all that hangs on it (a create that kept nothing).
    SandboxGone(SandboxId),
    /// Shared with the engine's own memory and with replies: a row is built once for each change.
    Reservation(Arc<ReservationRow>),
    Decision(Box<DecisionRow>),
    Event(EventRow),
    Endpoint(EndpointRow),
    EndpointGone(EndpointId),
    Usage(UsageRow),
    /// A policy snapshot that was accepted, by pool: version, times, and the signed text.
    Policy {
        pool: PoolName,
        version: u64,
        received_at: Timestamp,
        envelope: String,
    },
}

/// Everything that a restart needs, as loaded from a store.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "each field is the table of its name")]
pub struct Rows {
    pub plans: Vec<PlanRow>,
    pub tenants: Vec<TenantRow>,
    pub tenant_states: Vec<TenantStateRow>,
    pub pools: Vec<PoolRow>,
    pub templates: Vec<TemplateRow>,
    pub keys: Vec<KeyRow>,
    pub hosts: Vec<HostRow>,
    /// Live ones, and the ended ones whose keys are still bound.
    pub sandboxes: Vec<SandboxRow>,
    /// Those that hold, and the ended ones whose keys are still bound.
    pub reservations: Vec<ReservationRow>,
    pub endpoints: Vec<EndpointRow>,
    /// Of the current and the previous period, exact in sum: every hour that a claim may still
    /// write again, of the others as many as a restart has time to read, and the rest summed by
    /// tenant and day under [`OTHER_CLAIMS`].
    pub usage: Vec<UsageRow>,
    pub policies: Vec<(PoolName, u64, Timestamp, String)>,
    /// The newest event that is kept: every later one must lie above it.
    pub last_event: Option<EventId>,
}
