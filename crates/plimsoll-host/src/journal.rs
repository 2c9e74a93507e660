//! What outlives the agent: enough to know every guest, its charge and the last command after a
//! `kill -9`.

use plimsoll_types::{EndedGuest, Fence, GuestSpec, Mib, Millis, PauseKind, SandboxId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::input::FoundState;

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum JournalEntry {
    /// Uptimes from here on belong to this boot of the machine.
    Machine {
        /// The kernel's id of the boot.
        boot: String,
    },
    /// The cell has given this start of the agent its place among all starts.
    Registered {
        /// The place.
        incarnation: u64,
    },
    /// A command was answered without anything being done.
    Seen {
        /// Its place in the order of commands.
        fence: Fence,
    },
    /// A guest is about to be started.
    Start {
        /// The command.
        fence: Fence,
        /// The guest, its environment included: the file is for the agent's own user only.
        guest: Box<GuestSpec>,
        /// The attempt at rest whose disk it takes over.
        previous: Option<u32>,
    },
    /// Something else is about to be done with a guest.
    Act {
        /// The command; `None` where the host acts by itself.
        fence: Option<Fence>,
        /// The guest.
        id: SandboxId,
        /// Its attempt.
        attempt: u32,
        /// What.
        act: Act,
        /// Why, where the host acts by itself.
        reason: Option<String>,
    },
    /// A guest has come to a state of some duration.
    Settled {
        /// The guest.
        id: SandboxId,
        /// Its attempt.
        attempt: u32,
        /// The state.
        state: FoundState,
        /// What is worth keeping beyond the state.
        kept: Kept,
    },
    /// A guest is gone with all that it left behind.
    Gone {
        /// The guest.
        id: SandboxId,
        /// Every attempt up to this one.
        attempt: u32,
        /// The last command about it.
        fence: Fence,
        /// Whether its start failed (otherwise it was ended).
        failed: bool,
    },
    /// Totals of a guest, or of an attempt, that is here no more: the cell is to hear of them.
    Ended {
        /// The totals.
        guest: EndedGuest,
    },
}

impl JournalEntry {
    /// Whether the entry has to be on disk before anything that follows begins.
    ///
    /// What is about to be done is; how it came out need not be, for the drivers tell that again
    /// after a restart.
    #[must_use]
    pub const fn must_be_durable(&self) -> bool {
        matches!(self, Self::Start { .. } | Self::Act { .. })
    }
}

/// What the host may do with a guest besides starting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case")]
pub enum Act {
    /// Pause it.
    Pause {
        /// How.
        kind: PauseKind,
    },
    /// Let it run again.
    Resume {
        /// From what.
        from: PauseKind,
    },
    /// End its process.
    Stop,
    /// End it.
    End,
}

/// What a restart must not forget about a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// The uptime from which its reserve decays.
    pub since: Option<Millis>,
    /// Resident memory when it was paused in place.
    pub resident_mib: Option<Mib>,
    /// CPU of this attempt so far, in core-milliseconds.
    pub cpu_millis_total: u64,
    /// Bytes that this attempt has sent out so far, where its driver can tell.
    pub egress_bytes_total: Option<u64>,
    /// Its last activity.
    pub last_active_at: Option<Timestamp>,
    /// Why the host itself paused or stopped it.
    pub reason: Option<String>,
    /// Whether it was stopped by request, so that its disk is wanted.
    pub stopped: bool,
}
