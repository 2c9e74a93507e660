//! What happens, in the order of its time.

use std::collections::BTreeMap;

use plimsoll_host::CallId;
use plimsoll_types::{
    HeartbeatAnswer, HostCommand, HostId, HostOutcome, HostReport, SandboxId, Timestamp,
};

use super::client::{Answer, Request};
use super::hooks::HookEvent;
use super::trouble::Trouble;

/// One thing that happens. `process` and `agent` count starts: what was meant for an earlier one
/// reaches nobody.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The store answers the commit that the cell has asked for.
    Committed { process: u64 },
    /// A cell takes the lead.
    Lead,
    /// A leader that was frozen goes on with what it had durable and not yet sent.
    Thawed,
    /// A client's request arrives.
    Request { conn: u64, client: usize, request: Box<Request> },
    /// The caller has closed its connection.
    HungUp { conn: u64 },
    /// The cell's own bound on a call that waits.
    WaitOver { process: u64, conn: u64 },
    /// The answer to a command of the cell arrives.
    Outcome { process: u64, rpc: u64, outcome: HostOutcome },
    /// No answer to it came in time.
    RpcOver { process: u64, rpc: u64 },
    /// No answer to a fresh question came in time.
    ProbeOver { process: u64, probe: u64 },
    /// A host's report arrives.
    Report { node: usize, agent: u64, report: Box<HostReport>, probe: Option<(u64, u64)> },
    /// An agent asks for its incarnation.
    Register { node: usize, agent: u64, boot_id: String },
    /// Something arrives at a host or happens on it.
    Node { node: usize, what: AtNode },
    /// An answer arrives at a client.
    Answered { client: usize, conn: u64, answer: Box<Answer> },
    /// A client does something.
    Act { client: usize },
    /// A client tries an operation again, or gives it up.
    Retry { client: usize, op: u64 },
    /// Something about a delivery.
    Hook(HookEvent),
    /// Something goes wrong, or is mended.
    Trouble(Trouble),
    /// Everything is mended and clients stop.
    Quiet,
    /// Records and fleet must agree by now; from here on everything is deleted.
    Settled,
    /// Whatever can be deleted is.
    Sweep,
    /// Nothing may be left.
    End,
}

/// Something that arrives at a host or happens on it.
#[derive(Clone, Debug)]
pub(super) enum AtNode {
    /// A command of the cell.
    Command { process: u64, rpc: u64, command: Box<HostCommand> },
    /// A fresh question.
    Probe { process: u64, probe: u64 },
    /// The cell's answer to a heartbeat.
    Answered { agent: u64, sequence: u64, answer: Box<HeartbeatAnswer> },
    /// No answer to a heartbeat came.
    BeatLost { agent: u64, sequence: u64 },
    /// The agent's incarnation.
    Registered { agent: u64, incarnation: u64 },
    /// No incarnation came.
    RegisterLost { agent: u64 },
    /// A driver has finished.
    DriverDone { agent: u64, call: CallId },
    /// Machine and guests are measured.
    Sample { agent: u64 },
    /// The agent starts.
    Boot,
    /// The drivers have looked around.
    Adopt { agent: u64 },
    /// Somebody calls into a guest.
    Active { id: SandboxId },
    /// A guest's process may end by itself.
    Exit { id: SandboxId, attempt: u32, code: i32 },
}

/// Events by time; those of one time in the order in which they were put in.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    events: BTreeMap<(Timestamp, u64), Event>,
    next: u64,
}

impl Queue {
    pub(super) fn put(&mut self, at: Timestamp, event: Event) {
        self.next += 1;
        self.events.insert((at, self.next), event);
    }

    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn take(&mut self) -> Option<(Timestamp, Event)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }
}

impl AtNode {
    /// The word for traces.
    pub(super) fn word(&self) -> String {
        match self {
            Self::Command { command, .. } => format!(
                "command {}/{} {} {}.{}",
                command.fence.epoch,
                command.fence.number,
                command.op.word(),
                command.op.guest(),
                command.op.attempt()
            ),
            Self::Probe { .. } => "asked".to_owned(),
            Self::Answered { sequence, answer, .. } => {
                format!("heartbeat {sequence} answered, accepted: {}", answer.accepted)
            }
            Self::BeatLost { sequence, .. } => format!("heartbeat {sequence} lost"),
            Self::Registered { incarnation, .. } => format!("incarnation {incarnation}"),
            Self::RegisterLost { .. } => "no incarnation".to_owned(),
            Self::DriverDone { call, .. } => format!("driver call {} done", call.0),
            Self::Sample { .. } => "sample".to_owned(),
            Self::Boot => "agent starts".to_owned(),
            Self::Adopt { .. } => "adopts".to_owned(),
            Self::Active { id } => format!("{id} is used"),
            Self::Exit { id, attempt, code } => format!("{id}.{attempt} exits with {code}"),
        }
    }
}

/// The name of a host by its place.
pub(super) fn host_name(node: usize) -> HostId {
    HostId::new(&format!("h{}", node + 1)).expect("a valid name")
}
