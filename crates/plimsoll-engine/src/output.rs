//! What comes out of the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_types::{
    BasisPoints, Counted, DecisionId, FilterCounts, HeartbeatAnswer, HostCommand, HostFilter,
    HostId, Mib, MilliCpu, Millis, PolicyMode, PoolName, RefusalCode, Regime, RetryHint, SandboxId,
    SandboxStatus, TenantId, Timestamp,
};

use crate::command::Token;
use crate::rows::{
    Change, EndpointRow, HostRow, KeyRow, PlanRow, PoolRow, ReservationRow, SandboxRow,
    TemplateRow, TenantRow,
};

/// Everything that one or more inputs led to. Changes are to be made durable first; replies and
/// effects leave only after that.
#[derive(Debug, Default)]
pub struct Output {
    /// Writes, in order.
    pub changes: Vec<Change>,
    /// Answers.
    pub replies: Vec<(Token, Reply)>,
    /// What the shell has to do.
    pub effects: Vec<Effect>,
    /// What the shell counts.
    pub observations: Vec<Observation>,
}

impl Output {
    /// Whether nothing came of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.replies.is_empty()
            && self.effects.is_empty()
            && self.observations.is_empty()
    }

    /// Empties it and keeps the buffers.
    pub fn clear(&mut self) {
        self.changes.clear();
        self.replies.clear();
        self.effects.clear();
        self.observations.clear();
    }
}

/// What the shell has to do once the changes are durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a command to a host and bring back an [`crate::Input::Outcome`], whatever happens.
    HostCommand {
        /// Which host.
        host: HostId,
        /// Where its agent listens.
        address: String,
        /// What to show it.
        secret: Option<String>,
        /// The command.
        command: Box<HostCommand>,
        /// Give up on an answer after this long and report `Unknown`.
        timeout: Millis,
        /// Not before so long from now (a repeat after an unknown outcome).
        delay: Millis,
    },
    /// Ask a host for its capacity afresh and bring back an [`crate::Input::Report`] with `probe`,
    /// or [`crate::Input::ProbeFailed`].
    ProbeHost {
        /// Which host.
        host: HostId,
        /// Where its agent listens.
        address: String,
        /// What to show it.
        secret: Option<String>,
        /// The longest wait for an answer.
        timeout: Millis,
    },
    /// A command for a host that has said no address: bring back an [`crate::Input::Outcome`] of
    /// `Failed` at once.
    Unreachable {
        /// Which host.
        host: HostId,
        /// The command.
        command: Box<HostCommand>,
    },
    /// Somebody may wait for this record: it stands here now.
    SandboxChanged {
        /// Which.
        id: SandboxId,
        /// Where it stands; `None` when its record is gone.
        status: Option<SandboxStatus>,
        /// Why its record is gone, where hosts refused a create after it was admitted.
        refusal: Option<Box<Refusal>>,
    },
    /// The table of keys has changed.
    KeysChanged,
    /// Webhook endpoints have changed, or events wait for them.
    Events,
}

/// Something to count or to time.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// An admission, by pool and policy mode.
    Admission(PoolName, PolicyMode),
    /// A refusal, by code and pool.
    Refusal(RefusalCode, Option<PoolName>),
    /// From the first refusal of a key to its success.
    FirstRefusalToSuccess(Millis),
    /// How far a Retry-After estimate was off: positive, room came later than said.
    RetryAfterError(i64),
    /// A resume had to wait.
    ResumeQueued(PoolName),
    /// How long it waited.
    ResumeWait(PoolName, Millis),
    /// A guest was paused to make room.
    Preemption(PoolName, &'static str),
    /// The cell's own pause or deletion, by action.
    Lifecycle(&'static str, PoolName),
    /// A record was corrected to what its host reports.
    Correction(&'static str),
    /// An invariant was found broken: the input was refused.
    Violation(&'static str),
}

/// An answer.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A sandbox's record.
    Sandbox {
        /// The record.
        view: Box<SandboxView>,
        /// The decision that this call led to.
        decision: Option<DecisionId>,
        /// What became of the call.
        disposition: Disposition,
    },
    /// A reservation.
    Reservation {
        /// The record.
        row: Arc<ReservationRow>,
        /// The decision behind it.
        decision: DecisionId,
        /// What became of the call; `DryRun` for one that was only decided.
        disposition: Disposition,
    },
    /// A batch.
    Reservations {
        /// The records, in the order of the items.
        rows: Vec<Arc<ReservationRow>>,
        /// The decision behind them.
        decision: DecisionId,
        /// What became of the call.
        disposition: Disposition,
    },
    /// The arithmetic.
    Explained(Box<Explanation>),
    /// A page of sandboxes; `next` is where the next one begins.
    Sandboxes {
        /// The records.
        items: Vec<SandboxView>,
        /// The last id of a full page.
        next: Option<SandboxId>,
    },
    /// A tenant's quota.
    Quota(Box<QuotaView>),
    /// Hosts.
    Hosts(Vec<HostView>),
    /// Pools.
    Pools(Vec<PoolView>),
    /// Plans.
    Plans(Vec<PlanRow>),
    /// Tenants.
    Tenants(Vec<TenantRow>),
    /// Templates.
    Templates(Vec<TemplateRow>),
    /// Keys.
    Keys(Vec<KeyRow>),
    /// Webhook endpoints.
    Endpoints(Vec<EndpointRow>),
    /// Counts.
    Counts(Counts),
    /// Figures for `/metrics`.
    Gauges(Box<Gauges>),
    /// A heartbeat's answer.
    Heartbeat(HeartbeatAnswer),
    /// An agent's incarnation.
    Registered {
        /// The incarnation.
        incarnation: u64,
        /// The epoch of the leader that gave it.
        epoch: u64,
    },
    /// Done, with nothing to say.
    Done,
    /// No.
    Refused(Box<Refusal>),
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// New, and admitted.
    Created,
    /// New, and waiting.
    Queued,
    /// The key was bound to this object already.
    Replayed,
    /// Under way, or already so.
    Accepted,
    /// Decided and not made.
    DryRun,
}

/// A no that explains itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Refusal {
    /// Which no.
    pub code: RefusalCode,
    /// For people: what was asked, what stands against it, with both numbers.
    pub detail: String,
    /// When trying again makes sense.
    pub retry: RetryHint,
    /// The decision's record.
    pub decision: Option<DecisionId>,
    /// Hosts per filter, for capacity refusals.
    pub counts: Option<FilterCounts>,
    /// Starts under way on the hosts that would take it, and how many they allow, for
    /// `host_starts_saturated`.
    pub starts: Option<(u64, u64)>,
    /// Whether hosts that should have been asked afresh were not, for want of room.
    pub unprobed: bool,
    /// The field at fault and its bound, for bad input.
    pub field: Option<(&'static str, String)>,
    /// The limit in the way: its name, used, incoming, limit.
    pub limit: Option<LimitHit>,
    /// Largest host known, for `never_fits`.
    pub largest_host_mib: Option<Mib>,
    /// What exists, for unknown names.
    pub known: Vec<String>,
    /// The period's end, for `budget_exhausted`.
    pub resets_at: Option<Timestamp>,
}

/// A limit that was hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitHit {
    /// Its name, as in the plan.
    pub name: &'static str,
    /// In use.
    pub used: u64,
    /// Asked for on top.
    pub incoming: u64,
    /// Allowed now.
    pub limit: u64,
}

/// A sandbox with what is derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxView {
    /// The record.
    pub row: SandboxRow,
    /// Where its host's agent listens, and what to show it; for the shell, never for callers.
    pub agent: Option<(String, Option<String>)>,
    /// Place in the queue, from 1, where it waits.
    pub place: Option<u64>,
}

/// One line of an explanation: a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLine {
    /// Which.
    pub host: HostId,
    /// Its pool.
    pub pool: PoolName,
    /// Why it is no candidate; `None` would take it.
    pub filter: Option<HostFilter>,
    /// The numbers behind that, for people.
    pub detail: String,
    /// What it would be charged.
    pub charge_mib: Mib,
    /// What it would still accept after what is pending.
    pub admittable_mib: Option<i64>,
    /// Its score in thousandths.
    pub score: i64,
}

/// One line of an explanation: a check other than a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckLine {
    /// Which check, in the order of precedence.
    pub check: &'static str,
    /// What it would refuse with.
    pub refuses: Option<RefusalCode>,
    /// The numbers.
    pub detail: String,
}

/// The verdict that a request would get now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// `None` would be admitted.
    pub code: Option<RefusalCode>,
    /// For people.
    pub detail: String,
    /// When trying again makes sense.
    pub retry: RetryHint,
    /// Where it would go.
    pub host: Option<HostId>,
    /// In which pool.
    pub pool: Option<PoolName>,
    /// What it would be charged.
    pub charge_mib: Mib,
    /// Version of the policy; 0 is the local one.
    pub policy_version: u64,
    /// Its mode.
    pub policy_mode: PolicyMode,
    /// Each check.
    pub checks: Vec<CheckLine>,
    /// Each host, best first, at most 1 000.
    pub hosts: Vec<HostLine>,
    /// Hosts per filter.
    pub counts: FilterCounts,
}

/// One concurrency figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConcurrencyView {
    /// In use, from records.
    pub used: u64,
    /// Sustained; `None` is unlimited.
    pub limit: Option<u64>,
    /// For bursts.
    pub burst_limit: Option<u64>,
    /// How long the credit lasts at the present use; `None` where nothing is drained.
    pub burst_seconds_left: Option<u64>,
}

/// One consumption figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumptionView {
    /// Used in this period.
    pub used: u64,
    /// Allowed; `None` is unlimited.
    pub limit: Option<u64>,
}

/// One rate figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateView {
    /// Operations that would pass now; `None` where there is no limit.
    pub left: Option<u64>,
    /// Allowed; `None` is unlimited.
    pub limit: Option<u64>,
}

/// A tenant's quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaView {
    /// Whose.
    pub tenant: TenantId,
    /// Its plan.
    pub plan: String,
    /// Name of the period, such as `2026-08`.
    pub period: String,
    /// When it began.
    pub starts_at: Timestamp,
    /// When the next one begins.
    pub resets_at: Timestamp,
    /// `ok`, `warned`, `exhausted`, `hibernated` or `deleting`.
    pub state: &'static str,
    /// In state `deleting`, the earliest instant of the deletion: no earlier than this, and not
    /// before a whole grace has passed since the notice was delivered.
    pub deletes_at: Option<Timestamp>,
    /// `sandboxes`, `vcpus`, `memory_mib`.
    pub concurrency: [(&'static str, ConcurrencyView); 3],
    /// `cpu_seconds`, `gib_hours`, `egress_bytes`.
    pub consumption: [(&'static str, ConsumptionView); 3],
    /// Every rate that the plan may limit.
    pub rate: Vec<(&'static str, RateView)>,
    /// Largest users of the period: id, CPU-seconds, GiB-hours in thousandths.
    pub top_consumers: Vec<(String, u64, u64)>,
}

/// A host as the cell sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// What outlives its reports; the secret is left out.
    pub row: HostRow,
    /// Why nothing new is placed on it; `None` is ready.
    pub standing: Option<HostFilter>,
    /// Age of its last report by the cell's clock.
    pub age: Option<Millis>,
    /// Its regime.
    pub regime: Regime,
    /// As reported.
    pub admittable_mib: Option<i64>,
    /// As reported.
    pub not_admitting: Option<String>,
    /// Charges that the report does not hold yet.
    pub pending_mib: Mib,
    /// The one less the other.
    pub effective_mib: Option<i64>,
    /// Memory as reported.
    pub memory_mib_total: Mib,
    /// Memory as reported.
    pub memory_mib_used: Mib,
    /// CPU as reported.
    pub cpu_millis_total: MilliCpu,
    /// CPU as reported.
    pub cpu_millis_used: MilliCpu,
    /// Live sandboxes and reservations on it.
    pub guests: u64,
    /// Sum of their charges.
    pub charged_mib: Mib,
    /// Sum of their configured memory.
    pub configured_mib: Mib,
    /// Sum of their measured memory.
    pub resident_mib: Mib,
    /// Starts under way: as reported, and sent since.
    pub starts_in_flight: u32,
    /// Most at once.
    pub starts_limit: Option<u32>,
    /// Failures in a row.
    pub failures: u32,
    /// Set aside until then.
    pub set_aside_until: Option<Timestamp>,
    /// Labels as reported.
    pub labels: BTreeMap<String, String>,
    /// Region as reported.
    pub region: String,
    /// Drivers as reported, as words.
    pub drivers: Vec<&'static str>,
    /// Its present boot.
    pub boot_id: String,
    /// Its present incarnation, where it has one.
    pub reported_incarnation: Option<u64>,
    /// Its last sequence number.
    pub sequence: u64,
    /// When it reported: by its own clock where that is near the cell's, else by the cell's.
    pub heartbeat_at: Option<Timestamp>,
    /// How far its clock was ahead of the cell's when the report came, in milliseconds; its way
    /// counts as behind.
    pub clock_skew_millis: Option<i64>,
    /// Free counted resources as reported.
    pub counted: Counted,
    /// Memory pressure as reported, in basis points.
    pub pressure_bp: Option<u32>,
    /// Guests that it should not have.
    pub unexpected: Vec<String>,
}

/// A pool with what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// Its settings.
    pub row: PoolRow,
    /// Slots held.
    pub held: u64,
    /// Paused sandboxes that hold none.
    pub released: u64,
    /// Waiting resumes.
    pub waiting_resume: u64,
    /// Waiting creates and reservations.
    pub waiting_create: u64,
    /// Slots held beyond the limit.
    pub overcommitted: u64,
    /// Hosts.
    pub hosts: u64,
    /// Hosts that would take something.
    pub ready: u64,
    /// Policy: version, mode, age.
    pub policy: (u64, PolicyMode, Option<Millis>),
    /// What the provider of an external pool was seen to take, where it has refused more.
    pub learned: Option<u64>,
    /// Largest measured over configured memory, in basis points, where anything is measured.
    pub resident_committed: Option<BasisPoints>,
}

/// Counts over everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field counts what its name says")]
pub struct Counts {
    pub epoch: u64,
    pub tenants: u64,
    pub pools: u64,
    pub hosts: u64,
    pub hosts_ready: u64,
    pub sandboxes_live: u64,
    pub sandboxes_queued: u64,
    pub reservations_held: u64,
    pub parked: u64,
}

/// Figures for `/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Per host: name, reserved MiB (claims not yet measured), reservations by state (reserved,
    /// committed), heartbeat age in milliseconds, admittable, pressure in basis points.
    pub hosts: Vec<HostGauge>,
    /// Per pool.
    pub pools: Vec<PoolView>,
    /// Counts.
    pub counts: Counts,
}

/// Figures of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostGauge {
    /// Which.
    pub host: HostId,
    /// Charges of admissions that no measurement has seen yet.
    pub reserved_mib: Mib,
    /// Reservations not committed.
    pub reserved: u64,
    /// Reservations committed.
    pub committed: u64,
    /// Age of its last report.
    pub age: Option<Millis>,
    /// As reported.
    pub admittable_mib: Option<i64>,
    /// As reported, in basis points.
    pub pressure_bp: Option<u32>,
    /// Guests that it should not have.
    pub unexpected: u64,
}

impl Refusal {
    /// A refusal that is for good unless more is said.
    pub fn new(code: RefusalCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            retry: RetryHint::Never,
            decision: None,
            counts: None,
            starts: None,
            unprobed: false,
            field: None,
            limit: None,
            largest_host_mib: None,
            known: Vec::new(),
            resets_at: None,
        }
    }
}
