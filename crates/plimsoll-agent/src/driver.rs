//! Drivers: what starts, pauses, resumes, ends and measures guests.
//!
//! One trait, three drivers. `process` runs child processes; `gvisor` runs sandboxes of gVisor's
//! `runsc`, whose pause writes memory out; `simulated` keeps guests that exist only as numbers.
//! The first two give every guest a shim of its own (see [`crate::shim`]), so that guests outlive
//! the agent, and a folder from which the next agent adopts them.
//!
//! Calls about one guest wait for each other, calls about different guests do not. Dropping a
//! call's future does not undo what it began: ask for the status, or end the guest.

mod adopt;
mod cgroup;
mod folder;
pub(crate) mod gvisor;
pub(crate) mod launch;
mod look;
mod process;
mod shared;
mod simulated;
pub(crate) mod tree;

use std::time::Duration;

use futures_util::future::BoxFuture;
use plimsoll_types::{Driver, GuestSpec, GuestStatus, PauseKind};
use serde::{Deserialize, Serialize};

use crate::probe::{Reading, Resident};
pub use crate::shim::{ExitRecord, GuestUser};
pub use cgroup::{PARENT as CGROUP_PARENT, PIDS_MAX};
pub use folder::{GuestDir, GuestName, GuestNameError, Guests, ShimCommand};
pub use gvisor::{GvisorConfig, GvisorDriver};
pub use process::{ProcessConfig, ProcessDriver, UserRange};
pub use simulated::{SimulatedConfig, SimulatedDriver};

/// Most bytes of each output of one exec that are kept; the rest is read, dropped and said to be
/// missing. One MiB is ample for a command's answer, and bounds what an answer takes in memory.
pub const EXEC_OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Longest exec: an hour, as a longer one belongs into the guest's own command.
pub const EXEC_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Most execs of one guest at once: each may hold two outputs in memory.
pub const EXECS_MAX: usize = 32;

/// What a driver can do on this machine, found by trying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Which tool of which version, for people.
    pub version: String,
    /// Whether a pause can write memory out and leave the host.
    pub checkpoint: bool,
    /// What is missing or works otherwise than elsewhere, for people.
    pub notes: Vec<String>,
}

/// Why a driver does not work on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// What went wrong in a step that should have worked.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A step took too long and was given up.
    #[error("{step} took longer than {limit_millis} ms")]
    Timeout {
        /// Which step.
        step: &'static str,
        /// Its limit.
        limit_millis: u64,
    },
    /// A file or process could not be handled.
    #[error("{what}")]
    Io {
        /// Which one, and to what end.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The guest's own command is why: no machine could run it.
    #[error("the command cannot be run: {detail}")]
    Command {
        /// For people.
        detail: String,
    },
    /// A step was carried out and failed.
    #[error("{step} failed: {detail}")]
    Step {
        /// Which step.
        step: &'static str,
        /// For people.
        detail: String,
    },
}

impl Fault {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn step(step: &'static str, detail: impl std::fmt::Display) -> Self {
        Self::Step { step, detail: detail.to_string() }
    }

    pub(crate) fn timeout(step: &'static str, limit: Duration) -> Self {
        Self::Timeout { step, limit_millis: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) }
    }
}

/// An error with everything that lies behind it, on one line, for answers and logs.
#[must_use]
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut behind = error.source();
    while let Some(cause) = behind {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        behind = cause.source();
    }
    text
}

/// Why a start failed. Nothing of it is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The specification asks for what this driver does not have.
    #[error("{field}: {why}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// For people.
        why: String,
    },
    /// This attempt ran before and has ended, or rests. A new start needs a new attempt.
    #[error("{name} is {status} already; a new start needs a new attempt")]
    Used {
        /// Which guest.
        name: GuestName,
        /// Where it stands.
        status: GuestStatus,
    },
    /// Something else went wrong.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl StartError {
    /// Whether the guest's own description is why, and not the host: no other would start it.
    #[must_use]
    pub const fn is_the_guests(&self) -> bool {
        matches!(self, Self::Invalid { .. } | Self::Fault(Fault::Command { .. }))
    }
}

/// Why a guest could not be paused, resumed or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// This host has no such guest.
    #[error("{0} is not on this host")]
    NotFound(GuestName),
    /// The guest is in another state than the change needs.
    #[error("{name} is {status}")]
    State {
        /// Which guest.
        name: GuestName,
        /// Where it stands.
        status: GuestStatus,
    },
    /// This driver cannot do that.
    #[error("the {driver} driver has no {what}")]
    Unsupported {
        /// Which driver.
        driver: Driver,
        /// What was asked.
        what: &'static str,
    },
    /// Something else went wrong; the guest is as it was unless the status says otherwise.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why a guest could not be ended. Ending it again takes up where this left off.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// Some process would not die in time.
    #[error("{name}: {count} processes are still alive")]
    Survivors {
        /// Which guest.
        name: GuestName,
        /// How many.
        count: usize,
    },
    /// Something else went wrong.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why a command could not be run in a guest.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// This host has no such guest.
    #[error("{0} is not on this host")]
    NotFound(GuestName),
    /// The guest does not run.
    #[error("{name} is {status}")]
    State {
        /// Which guest.
        name: GuestName,
        /// Where it stands.
        status: GuestStatus,
    },
    /// The command or its timeout is out of bounds.
    #[error("{field}: {why}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// For people.
        why: String,
    },
    /// Something else went wrong. The command may have run.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why a guest's state or use cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// This host has no such guest.
    #[error("{0} is not on this host")]
    NotFound(GuestName),
    /// Something else went wrong.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A guest that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// When it started, by the machine's clock in milliseconds since 1970.
    pub started_at_unix_millis: i64,
    /// What could not be held down or found as asked, for people.
    pub notes: Vec<String>,
}

/// A command to run beside the guest's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRequest {
    /// The command and its arguments; not empty.
    pub command: Vec<String>,
    /// After this long it is killed; at most [`EXEC_TIMEOUT_MAX`].
    pub timeout: Duration,
}

/// What a command left behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecOutput {
    /// Its exit code, 128 and the signal where a signal ended it, 124 where its time ran out.
    pub exit_code: i32,
    /// Whether its time ran out.
    pub timed_out: bool,
    /// Its output; bytes that are no UTF-8 are replaced.
    pub stdout: String,
    /// Whether there was more than is kept.
    pub stdout_truncated: bool,
    /// Its errors; bytes that are no UTF-8 are replaced.
    pub stderr: String,
    /// Whether there was more than is kept.
    pub stderr_truncated: bool,
}

/// What a guest uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Memory on this host; a checkpointed or ended guest has a measured zero.
    pub resident: Reading<Resident>,
    /// CPU over the attempt's whole life, pauses included, in core-milliseconds.
    pub cpu_millis_total: Reading<u64>,
    /// Bytes sent out, where the driver can tell.
    pub egress_bytes_total: Option<u64>,
}

/// What a guest has used over its whole life, as told at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalUse {
    /// CPU in core-milliseconds.
    pub cpu_millis_total: u64,
    /// Bytes sent out, where the driver can tell.
    pub egress_bytes_total: Option<u64>,
}

/// Where a guest stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestState {
    /// The word for the heartbeat.
    pub status: GuestStatus,
    /// For a paused guest, whether it is frozen or written out.
    pub paused: Option<PauseKind>,
    /// For an ended guest, how.
    pub exit: Option<ExitRecord>,
    /// When it was started or resumed last, by the machine's clock in milliseconds since 1970.
    pub started_at_unix_millis: Option<i64>,
}

/// A guest that was found on this host.
#[derive(Clone, Debug)]
pub struct Adopted {
    /// Which.
    pub name: GuestName,
    /// What it was started from.
    pub spec: Box<GuestSpec>,
    /// Where it stands. `Starting`, `Pausing` and `Resuming` end by themselves: its shim is at it.
    pub state: GuestState,
}

/// What was found on this host.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Guests, in order of their names.
    pub guests: Vec<Adopted>,
    /// Folders that could not be made sense of, and why. Nothing was done to them.
    pub broken: Vec<(String, String)>,
}

/// Starts, pauses, resumes, ends and measures guests of one kind.
///
/// Object-safe, so that the agent holds several side by side and tests bring their own.
pub trait GuestDriver: Send + Sync {
    /// Which driver this is.
    fn kind(&self) -> Driver;

    /// Finds out, by trying, whether it works on this machine. Takes seconds at most, and is
    /// remembered.
    fn available(&self) -> BoxFuture<'_, Result<Abilities, Unavailable>>;

    /// Whether its own kind of pause takes the guest's memory off this host.
    fn pause_frees_memory(&self) -> bool;

    /// Whether what its guests use is part of what the machine uses. False for guests that exist
    /// only as numbers: their use must not be taken out of the machine's.
    fn uses_machine(&self) -> bool {
        true
    }

    /// Starts a guest and waits until it runs. A guest that runs already under this name is
    /// answered as the first start was.
    fn start<'a>(&'a self, spec: &'a GuestSpec) -> BoxFuture<'a, Result<Started, StartError>>;

    /// Starts a guest that was stopped, under the name and, where the driver keeps one, with the
    /// disk that it had. One that runs is answered as by [`Self::start`]. When it fails, the guest
    /// is stopped as before.
    fn restart<'a>(&'a self, spec: &'a GuestSpec) -> BoxFuture<'a, Result<Started, StartError>>;

    /// Pauses a running guest; comes back once it stands still, or is written out and gone from
    /// memory. [`PauseKind::Driver`] means this driver's own kind. One that is paused in the same
    /// way already is well.
    fn pause<'a>(
        &'a self,
        name: &'a GuestName,
        kind: PauseKind,
    ) -> BoxFuture<'a, Result<(), ChangeError>>;

    /// Lets a paused guest run again. One that runs already is well. When a restore fails, the
    /// checkpoint is kept.
    fn resume<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<(), ChangeError>>;

    /// Ends a guest's processes, politely first, and keeps its folder and name. One that has ended
    /// already is well.
    fn stop<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<(), ChangeError>>;

    /// Ends a guest, whatever its state, with all that it left: processes, control group, folder.
    /// None is well, too. Brings the guest's last counters: nobody can read them any more.
    fn end<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<Option<FinalUse>, EndError>>;

    /// Runs a command in a running guest, with the guest's own user, limits and environment. When
    /// the guest is written out meanwhile the command goes along and is answered with a fault.
    fn exec<'a>(
        &'a self,
        name: &'a GuestName,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<ExecOutput, ExecError>>;

    /// What a guest uses now.
    fn usage<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<Usage, LookError>>;

    /// Where a guest stands.
    fn status<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<GuestState, LookError>>;

    /// Finds this driver's guests after the agent's start, finishes or undoes what was cut short,
    /// and, the first time, clears away what belongs to no guest. That first time must come before
    /// anything is started.
    fn adopt(&self) -> BoxFuture<'_, Result<Found, Fault>>;
}
