//! What the host's state machine wants done.

use plimsoll_types::{Driver, GuestSpec, HostOutcome, Mib, PauseKind, SandboxId};

use crate::input::Token;
use crate::journal::JournalEntry;

/// Ties a driver's answer to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// One thing that the shell has to do. Effects are carried out in order.
#[derive(Clone, Debug)]
pub enum HostEffect {
    /// Append this to the journal. Where [`JournalEntry::must_be_durable`] says so, it is on disk
    /// before any effect after it begins.
    Journal(JournalEntry),
    /// Call a driver, and bring back a [`crate::HostInput::DriverDone`] whatever happens.
    Driver(DriverCall),
    /// Answer a command.
    Answer {
        /// Which.
        token: Token,
        /// How it came out.
        outcome: HostOutcome,
    },
    /// Send [`crate::Host::heartbeat`] to the cell; [`crate::HostInput::HeartbeatAnswered`] or
    /// `HeartbeatFailed` comes back.
    HeartbeatNow,
    /// Tell people.
    Event(HostEvent),
}

/// A call to the driver of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverCall {
    /// Ties the answer to it.
    pub call: CallId,
    /// The guest.
    pub id: SandboxId,
    /// Its attempt.
    pub attempt: u32,
    /// Whose business it is; `None` for a leftover of which only the name is known, which every
    /// driver is to end.
    pub driver: Option<Driver>,
    /// What to do.
    pub op: DriverOp,
}

/// What a driver is asked to do.
///
/// A guest has one call in flight at a time, except that [`DriverOp::End`] overtakes: the shell
/// breaks the older call off, and once the end is done nothing of the guest is left, however far
/// the older call had come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverOp {
    /// Start it. A failure leaves nothing behind.
    Start {
        /// The guest.
        guest: Box<GuestSpec>,
        /// An attempt of this guest at rest here (its own, after a stop, or an older one) whose
        /// disk it takes over. When such a start fails the disk stays.
        previous: Option<u32>,
    },
    /// Pause it.
    Pause {
        /// Freeze in place, or write out and free the memory. From a frozen guest,
        /// [`PauseKind::Checkpoint`] writes it out.
        kind: PauseKind,
    },
    /// Let it run again.
    Resume {
        /// [`PauseKind::Keep`] thaws, [`PauseKind::Checkpoint`] restores what was written out.
        from: PauseKind,
    },
    /// End its process and keep disk and name.
    Stop,
    /// End it with all that it left behind. Done when there is nothing.
    End,
}

impl DriverOp {
    /// The word for logs and metrics.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::Stop => "stop",
            Self::End => "end",
        }
    }
}

/// What people are told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// The gate has shut under memory pressure.
    GateShut {
        /// The figures that shut it.
        reason: String,
    },
    /// The gate is open again.
    GateOpened,
    /// The host pauses a guest by itself.
    PressurePause {
        /// The guest.
        id: SandboxId,
        /// What it was charged.
        charge: Mib,
        /// Why it.
        reason: String,
    },
    /// The host ends a guest's process by itself.
    PressureKill {
        /// The guest.
        id: SandboxId,
        /// What it was charged.
        charge: Mib,
        /// Why it.
        reason: String,
    },
    /// There is pressure to act on, and nobody left whom the host may touch.
    PressureNoVictim {
        /// The figures.
        reason: String,
    },
    /// A guest that the cell does not know is ended on its word.
    UnexpectedEnded {
        /// The guest.
        id: SandboxId,
    },
    /// A stateful guest that the cell does not know; it is kept until a command ends it.
    UnexpectedKept {
        /// The guest.
        id: SandboxId,
    },
    /// A guest that should be here is not.
    NotFound {
        /// The guest.
        id: SandboxId,
    },
    /// A guest could not be ended; it is tried again.
    EndFailed {
        /// The guest.
        id: SandboxId,
        /// Why.
        detail: String,
    },
}
