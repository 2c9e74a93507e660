//! What the host's state machine is told.

use plimsoll_types::{
    BasisPoints, Counted, GuestSpec, HeartbeatAnswer, HostCommand, Mib, MilliCpu, ReservationId,
    SandboxId, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::effect::CallId;

/// Ties an answer to the command that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A value that was read, or the reason why it could not be. Unknown is never zero.
pub type Reading<T> = Result<T, String>;

/// One thing that happened to a host.
#[derive(Clone, Debug)]
pub enum HostInput {
    /// The cell wants something done.
    Command {
        /// Ties the answer to it.
        token: Token,
        /// What.
        command: Box<HostCommand>,
    },
    /// A driver has finished a [`crate::DriverCall`].
    DriverDone {
        /// Which call.
        call: CallId,
        /// How it came out.
        result: DriverResult,
    },
    /// A driver has told a guest's totals outside a sample: at the end of a process that is not
    /// measured any more. Comes before the [`HostInput::DriverDone`] of the call that ended it.
    Used {
        /// The guest.
        id: SandboxId,
        /// Its attempt.
        attempt: u32,
        /// CPU over the attempt's whole life, in core-milliseconds.
        cpu_millis_total_used: Option<u64>,
        /// Bytes sent out over the attempt's whole life.
        egress_bytes_total: Option<u64>,
    },
    /// A guest's process has ended without being told to.
    GuestExited {
        /// The guest.
        id: SandboxId,
        /// Its attempt.
        attempt: u32,
        /// Its exit code, where there is one.
        code: Option<i32>,
    },
    /// A driver was asked how a guest stands, without a call. What changed by itself (an exit, a
    /// container that somebody else froze) comes in so.
    Observed {
        /// The guest.
        id: SandboxId,
        /// Its attempt.
        attempt: u32,
        /// Its state.
        state: FoundState,
        /// [`crate::Host::revision`] before the driver was asked. What has been begun or has come
        /// out since is newer than the observation.
        as_of: u64,
    },
    /// An exec, a keepalive or another call that shows that somebody uses the guest.
    Active {
        /// The guest.
        id: SandboxId,
    },
    /// Machine and guests were measured.
    Sample(Box<Sample>),
    /// The drivers have said which guests they found when the agent started.
    Adopted {
        /// Guests of this cell.
        found: Vec<Found>,
        /// Names that are no guest's of this cell.
        foreign: Vec<String>,
    },
    /// The cell has given this start of the agent its place among all starts.
    Registered {
        /// The place; grows with each start.
        incarnation: u64,
    },
    /// The cell has answered a heartbeat.
    HeartbeatAnswered {
        /// Which report.
        sequence: u64,
        /// What it said.
        answer: Box<HeartbeatAnswer>,
    },
    /// No cell took the heartbeat.
    HeartbeatFailed,
    /// Time has passed: see [`crate::Host::next_wake`].
    Tick,
}

/// How a driver call came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverResult {
    /// Done: the guest is in the state that was asked for.
    Done,
    /// It did not work, and the guest is as it was before: a failed start has left nothing behind.
    Failed {
        /// For people.
        detail: String,
    },
    /// A start that no host could make: what the guest asks for, or its command, is not there.
    /// Nothing was left behind. Of any other operation it is a failure.
    Rejected {
        /// For people.
        detail: String,
    },
    /// It took too long or broke off. The driver was asked afresh what is there.
    Unknown {
        /// For people.
        detail: String,
        /// What is there; `None` where even that brought no answer.
        found: Option<FoundState>,
    },
}

/// A guest that a driver found on its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The guest.
    pub id: SandboxId,
    /// Its attempt.
    pub attempt: u32,
    /// Its state.
    pub state: FoundState,
    /// Its description where the driver keeps one, for a guest that the journal does not know.
    pub spec: Option<Box<GuestSpec>>,
}

/// The state in which a driver found a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundState {
    /// Its process runs.
    Running,
    /// Its process is frozen in memory.
    Frozen,
    /// It is written out; no process.
    Checkpointed,
    /// Its process has ended; disk and name are kept.
    Exited {
        /// How, where known.
        code: Option<i32>,
    },
    /// Nothing of it is there.
    Gone,
}

/// Machine and guests as measured at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// All memory of the machine.
    pub memory_total: Reading<Mib>,
    /// Memory in use that could not be reclaimed at once: all of it less the available part.
    pub memory_used: Reading<Mib>,
    /// What could be had without swapping.
    pub memory_available: Reading<Mib>,
    /// All CPU.
    pub cpu_total: Reading<MilliCpu>,
    /// CPU in use since the last sample.
    pub cpu_used: Reading<MilliCpu>,
    /// Memory pressure: PSI some, 10 s average.
    pub pressure_some: Reading<BasisPoints>,
    /// Memory pressure: PSI full, 10 s average.
    pub pressure_full: Reading<BasisPoints>,
    /// Counted resources that were measured as free (disk, huge pages).
    pub counted: Counted,
    /// Guests with a process.
    pub guests: Vec<GuestSample>,
    /// Reservations whose control group was measured.
    pub reservations: Vec<ReservationSample>,
}

/// One guest as measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSample {
    /// The guest.
    pub id: SandboxId,
    /// Its attempt.
    pub attempt: u32,
    /// Resident memory of the guest itself, its overhead not included.
    pub resident: Reading<Mib>,
    /// Whether that memory is part of the machine's own `memory_used`. It is not for guests that
    /// exist only as numbers.
    pub in_machine: bool,
    /// CPU over the attempt's whole life, in core-milliseconds.
    pub cpu_millis_total_used: Option<u64>,
    /// Bytes sent out over the attempt's whole life.
    pub egress_bytes_total: Option<u64>,
    /// Its last activity, where the driver can tell.
    pub last_active_at: Option<Timestamp>,
}

/// The control group of one reservation as measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationSample {
    /// The reservation.
    pub id: ReservationId,
    /// Resident memory of everything in the group.
    pub resident: Reading<Mib>,
    /// CPU of everything in the group, in core-milliseconds.
    pub cpu_millis_total_used: Option<u64>,
}
