//! Clients: what they ask for, and how they try again.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_engine::{Command, CreateSandbox, ForkSandbox, Reserve, ReserveBatch};
use plimsoll_types::{
    DecisionId, EndpointId, Millis, RefusalCode, ReservationId, RetryHint, SandboxId,
    SandboxStatus, TenantId, Timestamp,
};

use crate::rng::Rng;

/// First bound of a client's wait between two tries; it doubles.
const BACKOFF_FIRST: u64 = 250;
/// Longest such bound.
const BACKOFF_MAX: u64 = 8_000;
/// How long a client tries.
const DEADLINE: Millis = Millis::from_seconds(90);
/// How long a client waits for an answer that says nothing of a wait.
pub(super) const PATIENCE: Millis = Millis::from_seconds(40);

/// A request as its caller makes it. The cell's shell gives each try its ids.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) tenant: TenantId,
    pub(super) what: What,
    /// The longest wait that the caller asks for.
    pub(super) wait: Millis,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Create(Box<CreateSandbox>),
    Fork(Box<ForkSandbox>),
    Reserve(Box<Reserve>),
    Batch(Box<ReserveBatch>),
    Explain(Box<CreateSandbox>),
    Pause(SandboxId),
    Resume(SandboxId),
    Stop(SandboxId),
    Start(SandboxId),
    Touch(SandboxId),
    Delete(SandboxId),
    Priority(SandboxId, i32),
    Commit(ReservationId, Option<Arc<str>>),
    Renew(ReservationId),
    Release(ReservationId),
}

impl Request {
    /// The command that the shell makes of it.
    pub(super) fn command(&self, mut id: impl FnMut() -> u128) -> Command {
        match self.what.clone() {
            What::Create(mut create) => {
                create.id = SandboxId(id());
                create.decision = DecisionId(id());
                Command::Create(create)
            }
            What::Fork(mut fork) => {
                fork.id = SandboxId(id());
                fork.decision = DecisionId(id());
                Command::Fork(fork)
            }
            What::Reserve(mut reserve) => {
                reserve.item.id = ReservationId(id());
                reserve.decision = DecisionId(id());
                Command::Reserve(reserve)
            }
            What::Batch(mut batch) => {
                for item in &mut batch.items {
                    item.id = ReservationId(id());
                }
                batch.decision = DecisionId(id());
                Command::ReserveBatch(batch)
            }
            What::Explain(mut create) => {
                create.id = SandboxId(id());
                Command::Explain(Box::new(plimsoll_engine::Explain::Create(*create)))
            }
            What::Pause(id) => Command::Pause { id },
            What::Resume(of) => Command::Resume { id: of, decision: DecisionId(id()) },
            What::Stop(id) => Command::Stop { id },
            What::Start(of) => Command::Start { id: of, decision: DecisionId(id()) },
            What::Touch(of) => Command::Touch { id: of, decision: DecisionId(id()) },
            What::Delete(id) => Command::Delete { id },
            What::Priority(id, priority) => {
                Command::Patch(Box::new(plimsoll_engine::PatchSandbox {
                    id,
                    labels: None,
                    priority: Some(priority),
                    preemptible: None,
                    lifecycle: None,
                }))
            }
            What::Commit(id, cgroup) => Command::Commit { id, cgroup },
            What::Renew(id) => Command::Renew { id, ttl_seconds: None },
            What::Release(id) => Command::Release { id },
        }
    }

    /// Whether its answer is a sandbox that has to run first.
    pub(super) fn waits_for_running(&self) -> bool {
        match &self.what {
            What::Create(create) => !create.answered,
            What::Fork(fork) => !fork.answered,
            _ => false,
        }
    }
}

/// What a caller is told.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Sandbox { id: SandboxId, status: SandboxStatus },
    Reservations(Vec<ReservationId>),
    Done,
    Refused { code: RefusalCode, retry: RetryHint },
    Broken,
}

/// One operation with all its tries.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) request: Request,
    /// The connection of the present try.
    pub(super) conn: Option<u64>,
    tries: u32,
    pub(super) until: Timestamp,
}

/// Somebody who uses the cell.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) tenant: TenantId,
    pub(super) ops: BTreeMap<u64, Op>,
    next_op: u64,
    /// What it knows it has.
    pub(super) sandboxes: Vec<SandboxId>,
    pub(super) reservations: Vec<ReservationId>,
    /// Time between two things that it does, at most.
    pub(super) pace: u64,
    pub(super) keys: u64,
}

impl Client {
    pub(super) fn new(tenant: TenantId, pace: u64) -> Self {
        Self {
            tenant,
            ops: BTreeMap::new(),
            next_op: 0,
            sandboxes: Vec::new(),
            reservations: Vec::new(),
            pace,
            keys: 0,
        }
    }

    pub(super) fn begin(&mut self, now: Timestamp, request: Request) -> u64 {
        self.next_op += 1;
        let until = now + DEADLINE;
        self.ops.insert(self.next_op, Op { request, conn: None, tries: 0, until });
        self.next_op
    }

    pub(super) fn op_of(&self, conn: u64) -> Option<u64> {
        self.ops.iter().find(|(_, op)| op.conn == Some(conn)).map(|(number, _)| *number)
    }
}

impl Op {
    /// How long to wait before the next try: full jitter, above what the refusal asked for.
    /// `None` when it has tried for long enough.
    pub(super) fn backoff(
        &mut self,
        now: Timestamp,
        retry: RetryHint,
        rng: &mut Rng,
    ) -> Option<Millis> {
        let floor = match retry {
            RetryHint::After(after) => after.0,
            RetryHint::Maybe => 0,
            RetryHint::Never => return None,
        };
        let bound = (BACKOFF_FIRST << self.tries.min(10)).min(BACKOFF_MAX);
        self.tries += 1;
        let wait = Millis(floor + rng.between(1, bound));
        (now + wait < self.until).then_some(wait)
    }
}

/// Who waits for a reply of the engine.
#[derive(Clone, Debug)]
pub(super) enum Asker {
    /// A client.
    Client { conn: u64, running: bool, wait: Millis },
    /// A host whose heartbeat this answers.
    Beat { node: usize, agent: u64, sequence: u64 },
    /// An agent that wants its incarnation.
    Register { node: usize, agent: u64 },
    /// A delivery, to which the ladder was told what became of a notice.
    Hook { endpoint: EndpointId },
    /// The world itself.
    World,
}
