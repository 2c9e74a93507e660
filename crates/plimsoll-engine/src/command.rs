//! What goes into the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_types::{
    Criticality, DecisionId, EndpointId, EventId, HostCommand, HostId, HostOutcome, HostReport,
    KeyId, Lifecycle, Mib, OnFull, PlanId, PoolName, ReservationId, SandboxId, SandboxStatus,
    TemplateName, TenantId, Vcpus,
};

use crate::rows::{EndpointRow, KeyRow, PlanRow, PoolRow, Role, TemplateRow, TenantRow};

/// Ties a reply to its question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Who asks. The shell has checked the key; the engine holds every command against this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The key's role.
    pub role: Role,
    /// For a tenant its own name; for an operator the tenant acted for.
    pub tenant: TenantId,
}

/// One input. Time is the other argument of [`crate::Engine::handle`].
#[derive(Clone, Debug)]
pub enum Input {
    /// A command or question of a caller.
    Call {
        /// Ties the reply to it.
        token: Token,
        /// Who asks.
        caller: Caller,
        /// What.
        command: Command,
    },
    /// A host's report, parsed and checked.
    Report {
        /// Ties the answer to it.
        token: Token,
        /// The report.
        report: Box<HostReport>,
        /// Whether it answers a [`crate::Effect::ProbeHost`].
        probe: bool,
    },
    /// An agent has started and asks for its incarnation.
    Register {
        /// Ties the answer to it.
        token: Token,
        /// Which host.
        host: HostId,
        /// Its pool.
        pool: PoolName,
        /// Where it listens.
        address: Option<String>,
        /// The secret that the cell will show it.
        secret: Option<String>,
        /// Its boot.
        boot_id: String,
    },
    /// A fresh question to a host brought no answer.
    ProbeFailed {
        /// Which host.
        host: HostId,
    },
    /// How a [`crate::Effect::HostCommand`] came out.
    Outcome {
        /// Which host.
        host: HostId,
        /// The command as it was sent.
        command: Box<HostCommand>,
        /// How it came out.
        outcome: HostOutcome,
    },
    /// What became of a notice to a tenant at one endpoint of the tenant's own: it took the event, or
    /// was given up on. Asked for `quota.suspended` and `quota.deletion_scheduled`; any other event
    /// is none of the engine's concern. A delivery counts whatever was said before it.
    Delivered {
        /// Which event.
        event: EventId,
        /// Where.
        endpoint: EndpointId,
        /// Delivered, or given up on.
        delivered: bool,
    },
    /// API requests since the last such input, by tenant: a sign of abuse, and nothing else.
    Requests {
        /// How many each has made.
        counts: Vec<(TenantId, u64)>,
    },
    /// Time has passed: see [`crate::Engine::next_wakeup`].
    Tick,
}

/// What a caller wants.
#[derive(Clone, Debug)]
pub enum Command {
    /// A new sandbox.
    Create(Box<CreateSandbox>),
    /// A new sandbox from another's checkpoint.
    Fork(Box<ForkSandbox>),
    /// Change what may be changed.
    Patch(Box<PatchSandbox>),
    /// End it. Idempotent.
    Delete {
        /// Which.
        id: SandboxId,
    },
    /// Pause it. Cancels a queued resume.
    Pause {
        /// Which.
        id: SandboxId,
    },
    /// Let it run again.
    Resume {
        /// Which.
        id: SandboxId,
        /// Id for the decision.
        decision: DecisionId,
    },
    /// End its process and keep the record, slot and disk.
    Stop {
        /// Which.
        id: SandboxId,
    },
    /// Start a stopped one, or resume a paused one.
    Start {
        /// Which.
        id: SandboxId,
        /// Id for the decision.
        decision: DecisionId,
    },
    /// Activity: wakes an idled one and restarts its idle clock.
    Keepalive {
        /// Which.
        id: SandboxId,
        /// Id for the decision.
        decision: DecisionId,
    },
    /// A call into the guest is about to be made (exec): activity, and wakes a paused one. The
    /// reply is the record; where it runs, with its host's address.
    Touch {
        /// Which.
        id: SandboxId,
        /// Id for the decision.
        decision: DecisionId,
    },
    /// The caller that waits for this create has waited its longest (`gone: false`): a sandbox
    /// that is still queued is forgotten and refused, one that was admitted meanwhile is answered
    /// with its record. Or the caller has left (`gone: true`): whatever there is of it ends.
    Withdraw {
        /// Which.
        id: SandboxId,
        /// Whether the caller has left.
        gone: bool,
    },
    /// A claim for an orchestrator outside.
    Reserve(Box<Reserve>),
    /// Several claims, all or nothing.
    ReserveBatch(Box<ReserveBatch>),
    /// The guest of a reservation exists.
    Commit {
        /// Which.
        id: ReservationId,
        /// The guest's control group.
        cgroup: Option<Arc<str>>,
    },
    /// Hold a reservation for longer.
    Renew {
        /// Which.
        id: ReservationId,
        /// From now; `None` takes what it was made with.
        ttl_seconds: Option<u64>,
    },
    /// Give a reservation back, in any state.
    Release {
        /// Which.
        id: ReservationId,
    },
    /// The caller behind this token is gone: answer it no more, hold nothing for it.
    Abandon {
        /// Whose call.
        token: Token,
    },
    /// The verdict that a create or a reservation would get now, changing nothing.
    Explain(Box<Explain>),
    /// An operator's change.
    Admin(Box<Admin>),
    /// A question about what the engine holds.
    Read(Read),
}

/// A create, checked by the shell against every bound of `plimsoll_types::bounds`.
#[derive(Clone, Debug)]
pub struct CreateSandbox {
    /// Id for the record.
    pub id: SandboxId,
    /// Id for the decision.
    pub decision: DecisionId,
    /// The caller's key and a fingerprint of the body it stands for.
    pub key: Option<(Arc<str>, u64)>,
    /// The template's name, known or not.
    pub template: TemplateName,
    /// Configured memory; `None` takes the template's.
    pub memory_mib: Option<Mib>,
    /// vCPUs; `None` takes the template's.
    pub vcpus: Option<Vcpus>,
    /// State; `None` takes the template's.
    pub stateful: Option<bool>,
    /// Command; empty takes the template's.
    pub command: Vec<String>,
    /// Environment on top of the template's.
    pub env: BTreeMap<String, String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Pool; `None` takes the template's or the default.
    pub pool: Option<PoolName>,
    /// Higher is more important.
    pub priority: i32,
    /// May be paused to make room.
    pub preemptible: bool,
    /// How much it matters.
    pub criticality: Criticality,
    /// What to do when there is no room. A caller that waits before a `reject` sends `queue` and
    /// [`Command::Withdraw`] at the end of its wait.
    pub on_full: OnFull,
    /// Lifecycle limits.
    pub lifecycle: Lifecycle,
    /// The caller gets its answer at once (`async=true`): if hosts then refuse, the sandbox is
    /// queued instead of forgotten.
    pub answered: bool,
}

impl CreateSandbox {
    /// A sandbox as its template has it, by a caller that waits and may be told no.
    #[must_use]
    pub fn new(id: SandboxId, decision: DecisionId, template: TemplateName) -> Self {
        Self {
            id,
            decision,
            key: None,
            template,
            memory_mib: None,
            vcpus: None,
            stateful: None,
            command: Vec::new(),
            env: BTreeMap::new(),
            labels: BTreeMap::new(),
            pool: None,
            priority: 0,
            preemptible: true,
            criticality: Criticality::Standard,
            on_full: OnFull::Reject,
            lifecycle: Lifecycle::default(),
            answered: false,
        }
    }
}

/// A fork.
#[derive(Clone, Debug)]
pub struct ForkSandbox {
    /// The sandbox to fork.
    pub from: SandboxId,
    /// Id for the new record.
    pub id: SandboxId,
    /// Id for the decision.
    pub decision: DecisionId,
    /// The caller's key and a fingerprint of the body.
    pub key: Option<(Arc<str>, u64)>,
    /// Labels of the new one; `None` copies.
    pub labels: Option<BTreeMap<String, String>>,
    /// Priority; `None` copies.
    pub priority: Option<i32>,
    /// What to do when there is no room.
    pub on_full: OnFull,
    /// As in [`CreateSandbox`].
    pub answered: bool,
}

/// A change to a sandbox; `None` leaves as it is.
#[derive(Clone, Debug)]
pub struct PatchSandbox {
    /// Which.
    pub id: SandboxId,
    /// All labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Priority.
    pub priority: Option<i32>,
    /// May be paused to make room.
    pub preemptible: Option<bool>,
    /// Lifecycle limits; each one that is `None` stays.
    pub lifecycle: Option<Lifecycle>,
}

/// How a reservation meets a full fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveMode {
    /// Refused at once.
    Reject,
    /// Waits in the queue, at most so long; the reply comes when it is admitted or the wait ends.
    Wait {
        /// The longest wait.
        seconds: u64,
    },
    /// Decided and not made.
    DryRun,
}

/// One claim.
#[derive(Clone, Debug)]
pub struct ReserveItem {
    /// Id for the record.
    pub id: ReservationId,
    /// The caller's key.
    pub key: Arc<str>,
    /// Fingerprint of the body.
    pub body_hash: u64,
    /// Configured memory.
    pub memory_mib: Mib,
    /// vCPUs.
    pub vcpus: Vcpus,
    /// Charged in full for its state.
    pub stateful: bool,
    /// Pool; `None` is the default.
    pub pool: Option<PoolName>,
    /// Higher is more important.
    pub priority: i32,
    /// How much it matters.
    pub criticality: Criticality,
    /// Time to live until committed; `None` takes the pool's.
    pub ttl_seconds: Option<u64>,
}

impl ReserveItem {
    /// A stateless claim of one vCPU on the default pool.
    #[must_use]
    pub fn new(id: ReservationId, key: Arc<str>, body_hash: u64, memory_mib: Mib) -> Self {
        Self {
            id,
            key,
            body_hash,
            memory_mib,
            vcpus: Vcpus(1),
            stateful: false,
            pool: None,
            priority: 0,
            criticality: Criticality::Standard,
            ttl_seconds: None,
        }
    }
}

/// A reservation.
#[derive(Clone, Debug)]
pub struct Reserve {
    /// Id for the decision.
    pub decision: DecisionId,
    /// The claim.
    pub item: ReserveItem,
    /// What to do when there is no room.
    pub mode: ReserveMode,
}

/// Several reservations, all or nothing, under one decision.
#[derive(Clone, Debug)]
pub struct ReserveBatch {
    /// Id for the decision.
    pub decision: DecisionId,
    /// The claims, at most `bounds::BATCH_ITEMS_MAX`.
    pub items: Vec<ReserveItem>,
}

/// What to explain.
#[derive(Clone, Debug)]
pub enum Explain {
    /// A create.
    Create(CreateSandbox),
    /// A reservation.
    Reserve(ReserveItem),
}

/// An operator's change. The shell has checked every bound.
#[derive(Clone, Debug)]
pub enum Admin {
    /// Makes or replaces a plan.
    PutPlan(PlanRow),
    /// Removes a plan that no tenant has.
    DropPlan(PlanId),
    /// Makes or replaces a tenant.
    PutTenant(TenantRow),
    /// Removes a tenant that has nothing alive.
    DropTenant(TenantId),
    /// Makes or replaces a pool.
    PutPool(PoolRow),
    /// Removes a pool that has neither hosts nor sandboxes.
    DropPool(PoolName),
    /// Makes or replaces a template.
    PutTemplate(TemplateRow),
    /// Removes a template; sandboxes made from it stay.
    DropTemplate(TemplateName),
    /// Makes a key.
    PutKey(KeyRow),
    /// Makes a key, or gives the one of its id a new hash, and says so in an event.
    RenewKey(KeyRow),
    /// Removes a key.
    DropKey(KeyId),
    /// Places nothing new on a host.
    Drain(HostId),
    /// Takes it back in.
    Undrain(HostId),
    /// Forgets a host that is dead and empty.
    DropHost(HostId),
    /// Says where a provider of an external pool is.
    PutProvider(EnrolProvider),
    /// Ends a guest that a host has and should not have, by the name that the host gives it.
    EndUnexpected {
        /// Which host.
        host: HostId,
        /// The name, as the host's view lists it.
        guest: String,
    },
    /// Makes or replaces a webhook endpoint.
    PutEndpoint(EndpointRow),
    /// Removes one.
    DropEndpoint(EndpointId),
}

/// A provider of an external pool: it serves the agent's guest API and reports when asked.
#[derive(Clone, PartialEq, Eq)]
pub struct EnrolProvider {
    /// The name that it gets as a host.
    pub id: HostId,
    /// An external pool.
    pub pool: PoolName,
    /// The base URL of its guest API.
    pub address: String,
    /// What it is shown. Never shown to anybody else.
    pub secret: String,
}

impl std::fmt::Debug for EnrolProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnrolProvider")
            .field("id", &self.id)
            .field("pool", &self.pool)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A question.
#[derive(Clone, Debug)]
pub enum Read {
    /// One sandbox.
    Sandbox(SandboxId),
    /// Sandboxes in the order of their ids, after `after`, at most `limit`.
    Sandboxes(SandboxFilter),
    /// One reservation.
    Reservation(ReservationId),
    /// A tenant's quota.
    Quota(TenantId),
    /// All hosts, or one.
    Hosts(Option<HostId>),
    /// All pools, with what they hold.
    Pools,
    /// All plans.
    Plans,
    /// Tenants after `after`, at most `limit`.
    Tenants {
        /// The last name seen.
        after: Option<TenantId>,
        /// Most rows.
        limit: usize,
    },
    /// One tenant.
    Tenant(TenantId),
    /// All templates.
    Templates,
    /// All keys.
    Keys,
    /// Webhook endpoints: of one tenant, or all.
    Endpoints(Option<TenantId>),
    /// Counts over everything.
    Counts,
    /// Figures for `/metrics`.
    Gauges,
}

/// Which sandboxes.
#[derive(Clone, Debug, Default)]
pub struct SandboxFilter {
    /// Of this tenant; `None` is all, for operators.
    pub tenant: Option<TenantId>,
    /// In this state.
    pub status: Option<SandboxStatus>,
    /// In this pool.
    pub pool: Option<PoolName>,
    /// With this label.
    pub label: Option<(String, String)>,
    /// After this id.
    pub after: Option<SandboxId>,
    /// Most rows.
    pub limit: usize,
}
