//! What cell and host say to each other, as plain values. The HTTP bodies in `plimsoll-api` carry
//! these; the simulator passes them by hand.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::ids::{HostId, IdError, PoolName, ReservationId, SandboxId, TemplateName, TenantId};
use crate::refusal::RefusalCode;
use crate::state::{Driver, DriverSet, GuestStatus, PauseKind, Regime, ReserveRule};
use crate::time::Timestamp;
use crate::units::{Mib, MilliCpu, Vcpus};

/// Version of the protocol between cell and agent. The two may differ by one; unknown fields are
/// ignored.
pub const HOST_PROTOCOL_VERSION: u32 = 1;

/// Counted resources by name (huge pages, GPUs, disk): whole numbers of the owner's own unit.
pub type Counted = BTreeMap<String, u64>;

/// The order of commands to one host. A leader's epoch is higher than its predecessor's, the
/// number grows with each command to the host; an agent acts on nothing below what it has seen.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Fence {
    /// The leader's epoch.
    pub epoch: u64,
    /// The command's number on this host. Numbers grow over epochs too.
    pub number: u64,
}

/// Whom a charge on a host belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimId {
    /// A sandbox of this cell.
    Sandbox(SandboxId),
    /// A reservation made by an orchestrator outside.
    Reservation(ReservationId),
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox(id) => id.fmt(f),
            Self::Reservation(id) => id.fmt(f),
        }
    }
}

impl FromStr for ClaimId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.starts_with(ReservationId::PREFIX) {
            text.parse().map(Self::Reservation)
        } else {
            text.parse().map(Self::Sandbox)
        }
    }
}

impl Serialize for ClaimId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ClaimId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <alloc::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Everything that a host needs to start one guest.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSpec {
    /// The sandbox.
    pub id: SandboxId,
    /// Which try this is; guests are named `id.attempt` on their host.
    pub attempt: u32,
    /// Who is charged.
    pub tenant: TenantId,
    /// The template, by which a baked checkpoint is found.
    pub template: TemplateName,
    /// What runs it.
    pub driver: Driver,
    /// Configured memory.
    pub memory_mib: Mib,
    /// What the driver needs on top of it.
    pub overhead_mib: Mib,
    /// Virtual CPUs.
    pub vcpus: Vcpus,
    /// Whether its state must never be lost: charged in full, never a victim of pressure.
    pub stateful: bool,
    /// Whether the host may pause it under pressure before others.
    pub preemptible: bool,
    /// Higher is more important.
    pub priority: i32,
    /// The command and its arguments; empty means the template's own, or a plain sleeper.
    pub command: Vec<String>,
    /// Environment. Never logged.
    pub env: BTreeMap<String, String>,
    /// Root file system folder or image of the template, where the driver takes one.
    pub rootfs: Option<String>,
    /// Whether each create is a restore of the template's own checkpoint.
    pub baked: bool,
    /// Restore from the checkpoint of this other guest on the same host (a fork).
    pub fork_of: Option<SandboxId>,
    /// Counted resources that it holds.
    pub counted: Counted,
    /// The pool's rule of what is charged before the first measurement.
    pub reserve: ReserveRule,
    /// No sample counts as a measurement before the guest is this old, in seconds.
    pub settle_seconds: u64,
    /// The reserve decays to nothing over this long after that, in seconds.
    pub decay_seconds: u64,
}

impl fmt::Debug for GuestSpec {
    /// Leaves out what must never reach a log: the environment's values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestSpec")
            .field("id", &self.id)
            .field("attempt", &self.attempt)
            .field("tenant", &self.tenant)
            .field("template", &self.template)
            .field("driver", &self.driver)
            .field("memory_mib", &self.memory_mib)
            .field("overhead_mib", &self.overhead_mib)
            .field("vcpus", &self.vcpus)
            .field("stateful", &self.stateful)
            .field("command", &self.command)
            .field("env", &self.env.keys())
            .field("fork_of", &self.fork_of)
            .finish_non_exhaustive()
    }
}

/// What a host is told to do with a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum HostOp {
    /// Start it. Idempotent by `id` and `attempt`: a repeated start of a guest that runs answers
    /// as the first did.
    Start {
        /// The guest.
        guest: alloc::boxed::Box<GuestSpec>,
    },
    /// Pause it.
    Pause {
        /// The guest.
        id: SandboxId,
        /// The attempt meant.
        attempt: u32,
        /// Freeze in place, or write out and leave the host. Never `driver`: the cell has
        /// resolved that.
        kind: PauseKind,
    },
    /// Let it run again, from the frozen process or the written checkpoint.
    Resume {
        /// The guest.
        id: SandboxId,
        /// The attempt meant.
        attempt: u32,
    },
    /// End its process and keep its disk and name.
    Stop {
        /// The guest.
        id: SandboxId,
        /// The attempt meant.
        attempt: u32,
    },
    /// End it, whatever its state, with all that it left behind. Answers well when there is none.
    End {
        /// The guest.
        id: SandboxId,
        /// Every attempt up to this one.
        attempt: u32,
    },
}

impl HostOp {
    /// The guest that the command is about.
    #[must_use]
    pub fn guest(&self) -> SandboxId {
        match self {
            Self::Start { guest } => guest.id,
            Self::Pause { id, .. }
            | Self::Resume { id, .. }
            | Self::Stop { id, .. }
            | Self::End { id, .. } => *id,
        }
    }

    /// The attempt that the command is about.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        match self {
            Self::Start { guest } => guest.attempt,
            Self::Pause { attempt, .. }
            | Self::Resume { attempt, .. }
            | Self::Stop { attempt, .. }
            | Self::End { attempt, .. } => *attempt,
        }
    }

    /// The word for logs and metrics.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::Stop { .. } => "stop",
            Self::End { .. } => "end",
        }
    }
}

/// One fenced command to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCommand {
    /// Its place in the order of commands to this host.
    pub fence: Fence,
    /// Not to be begun once the host's own uptime has passed this many milliseconds; `None` where
    /// the host has not said its uptime.
    pub deadline_uptime_millis: Option<u64>,
    /// What to do.
    #[serde(flatten)]
    pub op: HostOp,
}

/// How a command to a host came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum HostOutcome {
    /// Done, and the guest is in the state that was asked for.
    Done,
    /// The host's own gate said no. Nothing was started.
    Refused {
        /// Which no.
        code: RefusalCode,
        /// For people.
        detail: String,
    },
    /// It was tried and failed; nothing of it is left running.
    Failed {
        /// For people.
        detail: String,
    },
    /// The command was older than one already acted on, or past its deadline. Nothing was done.
    Fenced {
        /// The highest that the host has acted on.
        highest: Fence,
    },
    /// No answer that tells: the connection broke, or time ran out. The command may have been
    /// carried out.
    Unknown {
        /// For people.
        detail: String,
    },
}

/// One guest as its host sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestReport {
    /// A sandbox or a reservation of this cell.
    pub id: ClaimId,
    /// Which try; 1 where the host does not say.
    pub attempt: u32,
    /// Its state.
    pub status: GuestStatus,
    /// Configured memory.
    pub memory_mib: Mib,
    /// Measured resident memory, overhead included; `None` when not measured yet.
    pub resident_mib: Option<Mib>,
    /// What the host's budget is charged for it now.
    pub charge_mib: Mib,
    /// Whether a sample taken after the settle time stands behind the charge.
    pub measured: bool,
    /// CPU used over the attempt's whole life, in core-milliseconds, never falling within one.
    pub cpu_millis_total_used: u64,
    /// Bytes sent out over the attempt's whole life, where the driver can tell.
    pub egress_bytes_total: u64,
    /// Its last activity by the host's clock, where the host can tell.
    pub last_active_at: Option<Timestamp>,
    /// For an exited guest, how.
    pub exit_code: Option<i32>,
    /// Why the host itself paused or stopped it, where it did (memory pressure).
    pub reason: Option<String>,
}

impl GuestReport {
    /// The first attempt of a guest that has used no CPU yet and is charged so much, its own memory
    /// as resident as that.
    #[must_use]
    pub fn new(id: ClaimId, status: GuestStatus, memory_mib: Mib, charge_mib: Mib) -> Self {
        Self {
            id,
            attempt: 1,
            status,
            memory_mib,
            resident_mib: Some(charge_mib),
            charge_mib,
            measured: true,
            cpu_millis_total_used: 0,
            egress_bytes_total: 0,
            last_active_at: None,
            exit_code: None,
            reason: None,
        }
    }
}

/// The last totals of a guest that its host has no more: what it used between the last report that
/// listed it and its end would be billed to nobody otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedGuest {
    /// A sandbox or a reservation of this cell.
    pub id: ClaimId,
    /// Which try; 1 where the host does not say.
    pub attempt: u32,
    /// CPU used over its whole life, in core-milliseconds.
    pub cpu_millis_total_used: u64,
    /// Bytes sent out over its whole life, where the driver can tell.
    pub egress_bytes_total: Option<u64>,
}

/// One heartbeat, parsed and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostReport {
    /// Which host.
    pub host: HostId,
    /// New at each start of the agent (or of the orchestrator's own reporter).
    pub boot_id: String,
    /// Given by the cell at the agent's start; `None` from a host without our agent.
    pub incarnation: Option<u64>,
    /// Grows by one or more with each report of one boot.
    pub sequence: u64,
    /// Highest command number that this report accounts for; `None` without our agent.
    pub seen_through: Option<u64>,
    /// The host's own clock. Shown, never compared with the cell's.
    pub heartbeat_at: Timestamp,
    /// The host's uptime in milliseconds, for deadlines of commands.
    pub uptime_millis: Option<u64>,
    /// Its pool.
    pub pool: PoolName,
    /// Where it stands, for people.
    pub region: String,
    /// Where its agent listens; `None` cannot be asked or commanded.
    pub address: Option<String>,
    /// Labels that templates may ask for.
    pub labels: BTreeMap<String, String>,
    /// What it can run guests with.
    pub drivers: DriverSet,
    /// All CPU.
    pub cpu_millis_total: MilliCpu,
    /// CPU in use.
    pub cpu_millis_used: MilliCpu,
    /// Memory offered to guests and system.
    pub memory_mib_total: Mib,
    /// Memory in use.
    pub memory_mib_used: Mib,
    /// Which arithmetic its gate enforces; `None` takes the pool's.
    pub memory_admission: Option<Regime>,
    /// What it will still accept, negative where it is over its budget; `None` is unknown or shut.
    pub memory_mib_admittable: Option<i64>,
    /// Why the above is `None`.
    pub not_admitting: Option<String>,
    /// Starts under way.
    pub starts_in_flight: u32,
    /// Most starts at once; `None` is unbounded.
    pub starts_limit: Option<u32>,
    /// Free counted resources.
    pub counted: Counted,
    /// Whether guests boot without pulling their whole memory first.
    pub stream_restore: bool,
    /// Memory pressure (PSI some, 10 s average) in basis points, where known.
    pub pressure_bp: Option<u32>,
    /// Reservations whose charge `memory_mib_admittable` already holds.
    pub reservations: Vec<ReservationId>,
    /// Guests, those at rest included.
    pub guests: Vec<GuestReport>,
    /// Guests whose ids are none of this cell's.
    pub foreign_guests: Vec<String>,
    /// Guests that are here no more, until an answer shows that the cell has taken their totals.
    pub ended: Vec<EndedGuest>,
    /// Whether `guests` is everything; an unfinished list releases nothing.
    pub complete: bool,
}

impl HostReport {
    /// A report that says who speaks and no more: nothing is measured, offered or listed, and the
    /// list of guests is not whole.
    #[must_use]
    pub fn new(host: HostId, pool: PoolName, boot_id: &str, sequence: u64, at: Timestamp) -> Self {
        Self {
            host,
            boot_id: String::from(boot_id),
            incarnation: None,
            sequence,
            seen_through: None,
            heartbeat_at: at,
            uptime_millis: None,
            pool,
            region: String::new(),
            address: None,
            labels: BTreeMap::new(),
            drivers: DriverSet::ALL,
            cpu_millis_total: MilliCpu::ZERO,
            cpu_millis_used: MilliCpu::ZERO,
            memory_mib_total: Mib::ZERO,
            memory_mib_used: Mib::ZERO,
            memory_admission: None,
            memory_mib_admittable: None,
            not_admitting: None,
            starts_in_flight: 0,
            starts_limit: None,
            counted: Counted::new(),
            stream_restore: false,
            pressure_bp: None,
            reservations: Vec::new(),
            guests: Vec::new(),
            foreign_guests: Vec::new(),
            ended: Vec::new(),
            complete: false,
        }
    }
}

/// A reservation that a host is told of, so that it counts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReservation {
    /// Which.
    pub id: ReservationId,
    /// Configured memory.
    pub memory_mib: Mib,
    /// Whether it is charged in full for its state.
    pub stateful: bool,
    /// The guest's control group where its orchestrator named one: then it is measured as a guest.
    pub cgroup: Option<String>,
}

/// What the cell answers to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeartbeatAnswer {
    /// Whether the report was taken; an older one than what is held is not.
    pub accepted: bool,
    /// Guests that the host should not have, as `id` or `id.attempt`.
    pub unexpected_guests: Vec<String>,
    /// Committed reservations on this host, for its own arithmetic.
    pub reservations: Vec<HostReservation>,
    /// The pool's regime, which the host's gate enforces unless its owner has set another.
    pub regime: Option<Regime>,
}
