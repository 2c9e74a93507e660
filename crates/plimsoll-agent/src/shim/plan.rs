//! What agent and shim tell each other: files in the guest's folder, one line when it has
//! started, and one line each way per call.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::runsc::Runsc;
use crate::driver::ExecOutput;
use crate::driver::tree::GuestTree;
use crate::probe::{GuestCgroup, Membership, ProcessId};

/// Longest line of a call: a command with its words is at most 64 KiB, and JSON may write each of
/// its bytes as six.
pub(crate) const CALL_BYTES_MAX: usize = 512 * 1024;
/// Longest line of an answer: two outputs of 1 MiB, each byte written as six at worst.
pub(crate) const ANSWER_BYTES_MAX: usize = 13 * 1024 * 1024;

/// As whom a guest of the process driver runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestUser {
    /// User.
    pub uid: u32,
    /// Group; there are no others.
    pub gid: u32,
}

/// What the shim has to do, beside the guest's specification.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchPlan {
    /// How to call this binary again: the words before the shim's own.
    pub again: Vec<String>,
    /// The command, empty for a sleeper.
    pub command: Vec<String>,
    /// As whom it runs; `None` is as the agent does.
    pub user: Option<GuestUser>,
    /// Whether no other guest runs as that user.
    pub user_is_own: bool,
    /// What the guest's `HOME` says unless its environment does.
    pub home: String,
    /// Where the guest is counted.
    pub cgroup: GuestCgroup,
    /// Where the shim itself is counted: neither with the guest, whose limit would end it, nor
    /// with the agent, whose end may end all that is counted with it.
    pub shim_cgroup: GuestCgroup,
    /// For a guest of the gVisor driver.
    pub sandbox: Option<SandboxPlan>,
}

/// What the shim has to do for a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SandboxPlan {
    pub runsc: Runsc,
    /// Its name for `runsc`, unique on the machine.
    pub container: String,
    /// Where its memory comes from; `None` boots it.
    pub restore: Option<RestoreFrom>,
    /// Handed to the waiting init of a baked image: what the guest is to become.
    pub wake: Option<String>,
}

/// Whose checkpoint a sandbox is restored from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RestoreFrom {
    /// Its own, which is consumed.
    Own,
    /// A baked one in this folder, which stays.
    Baked(std::path::PathBuf),
}

/// Where a guest with a living shim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    Starting,
    Running,
    Checkpointing,
}

/// Kept by the shim in the guest's folder. Speaks of this boot only.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StateFile {
    pub phase: Phase,
    pub boot_id: String,
    pub shim: ProcessId,
    /// The guest's first process, or its sandbox.
    pub main: Option<ProcessId>,
    /// The process that became the first process, or made the sandbox, in a session of its own.
    pub entered: Option<ProcessId>,
    pub started_at_unix_millis: i64,
    /// CPU used before this start, in checkpointed lives of the same attempt.
    pub cpu_base_millis: u64,
}

/// How a guest ended. Written once, synced and renamed into place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// Its exit code, 128 and the signal where a signal ended it, `None` where nobody saw its end.
    pub code: Option<i32>,
    /// Whether the kernel killed some of it for want of memory.
    pub out_of_memory: bool,
    /// For people.
    pub reason: String,
    /// CPU used over its whole life, in core-milliseconds.
    pub cpu_millis_total: u64,
    /// When, by the machine's clock.
    pub at_unix_millis: i64,
}

/// The shim's one line when the guest has started, or has not.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StartLine {
    Started {
        started_at_unix_millis: i64,
    },
    Failed {
        detail: String,
        /// The guest's own command is why: it could not be run on any machine.
        #[serde(default)]
        of_command: bool,
    },
}

/// One call to a shim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    /// Run a command beside the guest's own.
    Exec { command: Vec<String>, timeout_millis: u64 },
    /// Write the guest out and end it.
    Checkpoint {
        /// Whether it is paused already.
        paused: bool,
    },
}

/// The answer to a call.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Exec(ExecOutput),
    Checkpointed,
    Failed { detail: String },
}

/// What an entering process is told through its standard input before it becomes the command.
/// By this way environment values reach no argument list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EnterRequest {
    pub again: Vec<String>,
    pub command: Vec<String>,
    pub env: std::collections::BTreeMap<String, String>,
    pub folder: String,
    pub user: Option<GuestUser>,
    pub user_is_own: bool,
    pub cgroup: GuestCgroup,
    /// Whether it is a guest itself, to be held down, or a tool that makes one.
    pub confine: bool,
}

impl LaunchPlan {
    /// All processes of the guest, by what is known of them.
    pub(crate) fn tree(&self, state: Option<&StateFile>) -> GuestTree {
        let known = |ids: [Option<ProcessId>; 2]| ids.into_iter().flatten().collect();
        GuestTree {
            cgroup: self.cgroup.clone(),
            membership: Membership {
                descendants_of: known(
                    state.map_or([None, None], |state| [Some(state.shim), state.main]),
                ),
                sessions: known(state.map_or([None, None], |state| [state.main, state.entered])),
            },
        }
    }
}

/// The machine's clock in milliseconds since 1970, zero before that.
pub(crate) fn unix_millis() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
