//! The cell's shell: inputs into the engine, commits before anything leaves, and starting over.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_engine::rows::{Change, Role};
use plimsoll_engine::{Caller, Command, Effect, Engine, EngineConfig, Input, Output, Reply, Token};
use plimsoll_types::{
    HostCommand, HostId, HostOutcome, HostReport, Millis, RefusalCode, RetryHint, SandboxId,
    TenantId, Timestamp,
};

use super::client::{Answer, Asker};
use super::event::{AtNode, Event};
use super::world::World;

/// What one commit makes durable, and what may leave after it.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    changes: Vec<Change>,
    replies: Vec<(Token, Reply)>,
    effects: Vec<Effect>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.replies.is_empty() && self.effects.is_empty()
    }
}

/// How the store behaves at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreMood {
    /// Commits that fail, in a thousand.
    pub(super) fails: u64,
    /// Commits after which the cell dies, in a thousand.
    pub(super) crashes: u64,
    /// A commit takes so many times as long; 0 is as usual.
    pub(super) slow: u64,
}

/// An open connection of a caller.
#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) client: usize,
    /// The call whose reply is awaited; `None` once it has come.
    pub(super) token: Option<Token>,
    /// The sandbox that has to run before the answer leaves.
    pub(super) sandbox: Option<SandboxId>,
    /// It was this connection that made it.
    pub(super) made: bool,
    /// What the caller asked for when its wait is over.
    pub(super) rejects: bool,
    /// The key of its create: who asks with the same one joins it.
    pub(super) key: Option<(TenantId, Arc<str>)>,
}

/// One process of the cell.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) config: EngineConfig,
    pub(super) engine: Option<Engine>,
    /// Counts processes: what was meant for an earlier one reaches nobody.
    pub(super) process: u64,
    pub(super) epoch: u64,
    /// When it last took the lead, and when its store was last slow.
    pub(super) led_at: Timestamp,
    pub(super) slow_at: Timestamp,
    /// How far its clock is ahead of the world's.
    pub(super) ahead: i64,
    /// The last time that the engine was told.
    clock: Timestamp,
    staged: Batch,
    committing: Option<Batch>,
    pub(super) asked: BTreeMap<Token, Asker>,
    pub(super) conns: BTreeMap<u64, Conn>,
    rpcs: BTreeMap<u64, (HostId, Box<HostCommand>)>,
    probes: BTreeMap<u64, HostId>,
    /// The last report of each host: no ledger, and so kept when the engine is dropped.
    reports: BTreeMap<HostId, HostReport>,
    pub(super) store: StoreMood,
    /// What a frozen leader had durable and has not sent.
    frozen: Option<Batch>,
}

impl Cell {
    pub(super) fn new(config: EngineConfig) -> Self {
        Self {
            config,
            engine: None,
            process: 0,
            epoch: 0,
            led_at: Timestamp(0),
            slow_at: Timestamp(0),
            ahead: 0,
            clock: Timestamp(0),
            staged: Batch::default(),
            committing: None,
            asked: BTreeMap::new(),
            conns: BTreeMap::new(),
            rpcs: BTreeMap::new(),
            probes: BTreeMap::new(),
            reports: BTreeMap::new(),
            store: StoreMood::default(),
            frozen: None,
        }
    }

    /// When the engine has something to do by itself, in the world's time.
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        let at = self.engine.as_ref()?.next_wakeup()?;
        Some(Timestamp(at.0.saturating_sub(self.ahead)))
    }
}

impl World {
    /// The time by the cell's clock, which never goes back within one process.
    pub(super) fn cell_now(&mut self) -> Timestamp {
        let now = Timestamp(self.now.0 + self.cell.ahead);
        self.cell.clock = self.cell.clock.max(now);
        self.cell.clock
    }

    pub(super) fn cell_input(&mut self, input: Input) {
        self.input_with(input, None);
    }

    fn input_with(&mut self, input: Input, report: Option<HostReport>) {
        let now = self.cell_now();
        let Some(engine) = &mut self.cell.engine else { return };
        let mut out = Output::default();
        let outcome = match &input {
            Input::Outcome { command, outcome, .. } => Some((command.op.guest(), outcome.clone())),
            _ => None,
        };
        engine.handle(now, input, &mut out);
        self.stats.inputs += 1;
        if let Some(report) = report {
            let taken = out
                .replies
                .iter()
                .any(|(_, reply)| matches!(reply, Reply::Heartbeat(answer) if answer.accepted));
            if taken {
                self.oracle.reported(now, &report);
                self.cell.reports.insert(report.host.clone(), report);
            }
        }
        self.stage(now, out, outcome.as_ref());
    }

    fn stage(&mut self, now: Timestamp, out: Output, outcome: Option<&(SandboxId, HostOutcome)>) {
        self.note_output(&out);
        self.oracle.look(now, &out, outcome, &mut self.stats);
        if let Some(engine) = &self.cell.engine {
            for broken in engine.check(now) {
                self.oracle.break_(broken.id, broken.detail);
            }
        }
        let staged = &mut self.cell.staged;
        staged.changes.extend(out.changes);
        staged.replies.extend(out.replies);
        staged.effects.extend(out.effects);
        self.commit();
    }

    /// Writes into the trace what one input has led to.
    fn note_output(&mut self, out: &Output) {
        for change in &out.changes {
            match change {
                Change::Sandbox(row) => self.note(|| {
                    format!(
                        "    {} is {}, attempt {} on {:?}, fence {}, charge {}, {:?}",
                        row.id,
                        row.status,
                        row.attempt,
                        row.host,
                        row.fence.number,
                        row.charge_mib.0,
                        row.reason
                    )
                }),
                Change::Reservation(row) => self.note(|| {
                    let state = row.state.as_str();
                    format!(
                        "    {} is {state} on {}, charge {}",
                        row.id, row.host, row.charge_mib.0
                    )
                }),
                Change::Event(row) if row.kind.starts_with("quota.") => {
                    self.note(|| format!("    says {} to {:?}: {}", row.kind, row.tenant, row.data))
                }
                Change::Plan(row) => self.note(|| format!("    {row:?}")),
                Change::Tenant(row) => self.note(|| format!("    {row:?}")),
                Change::SandboxGone(id) => self.note(|| format!("    {id} is forgotten")),
                _ => {}
            }
        }
        for (_, reply) in &out.replies {
            if let Reply::Refused(refusal) = reply {
                self.note(|| format!("    refuses: {} ({})", refusal.detail, refusal.code));
            }
        }
    }

    /// Begins a commit, if there is something to make durable and none is under way.
    fn commit(&mut self) {
        if self.cell.committing.is_some() || self.cell.staged.is_empty() {
            return;
        }
        self.cell.committing = Some(std::mem::take(&mut self.cell.staged));
        let time = self.rng.store.between(1, 12) * self.cell.store.slow.max(1);
        let process = self.cell.process;
        self.queue.put(self.now + Millis(time), Event::Committed { process });
    }

    pub(super) fn committed(&mut self, process: u64) {
        if process != self.cell.process {
            return;
        }
        let Some(batch) = self.cell.committing.take() else { return };
        if self.rng.store.chance(self.cell.store.fails) {
            // Whoever commits is not told whether it took.
            if self.rng.store.chance(300) {
                self.apply(&batch);
            }
            self.stats.store_failures += 1;
            return self.rebuild();
        }
        self.apply(&batch);
        if self.rng.store.chance(self.cell.store.crashes) {
            // Durable; some of what follows from it has left, some never will.
            let effects = u64::try_from(batch.effects.len()).unwrap_or(0);
            let sent = usize::try_from(self.rng.store.between(0, effects)).unwrap_or(0);
            let mut part = batch;
            part.effects.truncate(sent);
            part.replies.clear();
            self.release(part);
            let down = Millis(self.rng.store.between(50, 15_000));
            return self.crash(down);
        }
        self.release(batch);
        self.commit();
    }

    fn apply(&mut self, batch: &Batch) {
        for change in &batch.changes {
            self.table.apply(change);
        }
    }

    /// Lets out what waited for a commit.
    fn release(&mut self, batch: Batch) {
        for (token, reply) in batch.replies {
            self.reply(token, reply);
        }
        for effect in batch.effects {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::HostCommand { host, command, timeout, delay, .. } => {
                let rpc = self.number();
                let process = self.cell.process;
                self.cell.rpcs.insert(rpc, (host.clone(), command.clone()));
                let over = self.now + Millis(delay.0 + timeout.0);
                self.queue.put(over, Event::RpcOver { process, rpc });
                if let Some(node) = self.node_of(&host) {
                    let what = AtNode::Command { process, rpc, command };
                    self.tell(node, delay, what);
                }
            }
            Effect::Unreachable { host, command } => {
                let outcome = HostOutcome::Failed { detail: "it has no address".to_owned() };
                self.cell_input(Input::Outcome { host, command, outcome });
            }
            Effect::ProbeHost { host, timeout, .. } => {
                let probe = self.number();
                let process = self.cell.process;
                self.cell.probes.insert(probe, host.clone());
                self.queue.put(self.now + timeout, Event::ProbeOver { process, probe });
                if let Some(node) = self.node_of(&host) {
                    self.tell(node, Millis::ZERO, AtNode::Probe { process, probe });
                }
            }
            Effect::SandboxChanged { id, status, refusal } => {
                let answer = match (status, refusal) {
                    (Some(status), _) => Answer::Sandbox { id, status },
                    (None, Some(refusal)) => {
                        Answer::Refused { code: refusal.code, retry: refusal.retry }
                    }
                    // Its own withdrawal answers it.
                    (None, None) => return,
                };
                self.answer_held(id, &answer);
            }
            Effect::Events => self.run_hooks(),
            Effect::KeysChanged => {}
        }
    }

    pub(super) fn call_as_operator(&mut self, token: Token, command: Command) {
        let tenant = self.cell.config.default_tenant.clone();
        let caller = Caller { role: Role::Operator, tenant };
        self.cell_input(Input::Call { token, caller, command });
    }

    /// An operator's call whose reply nobody reads.
    pub(super) fn operate(&mut self, command: Command) {
        let token = Token(self.number());
        self.cell.asked.insert(token, Asker::World);
        self.call_as_operator(token, command);
    }

    pub(super) fn rpc_answered(&mut self, process: u64, rpc: u64, outcome: HostOutcome) {
        if process != self.cell.process {
            return;
        }
        let Some((host, command)) = self.cell.rpcs.remove(&rpc) else { return };
        self.cell_input(Input::Outcome { host, command, outcome });
    }

    pub(super) fn probe_over(&mut self, process: u64, probe: u64) {
        if process != self.cell.process {
            return;
        }
        let Some(host) = self.cell.probes.remove(&probe) else { return };
        self.cell_input(Input::ProbeFailed { host });
    }

    pub(super) fn take_report(
        &mut self,
        node: usize,
        agent: u64,
        report: HostReport,
        probe: Option<(u64, u64)>,
    ) {
        if self.cell.engine.is_none() {
            return;
        }
        if let Some((process, number)) = probe
            && (process != self.cell.process || self.cell.probes.remove(&number).is_none())
        {
            return;
        }
        let token = Token(self.number());
        let asker = match probe {
            Some(_) => Asker::World,
            None => Asker::Beat { node, agent, sequence: report.sequence },
        };
        self.cell.asked.insert(token, asker);
        let copy = report.clone();
        let probe = probe.is_some();
        self.input_with(Input::Report { token, report: Box::new(report), probe }, Some(copy));
    }

    pub(super) fn register(&mut self, node: usize, agent: u64, boot_id: String) {
        // With its agent the connection has ended, and a cell skips what nobody waits for any more.
        if self.cell.engine.is_none() || self.nodes[node].agent != agent {
            return;
        }
        let token = Token(self.number());
        self.cell.asked.insert(token, Asker::Register { node, agent });
        let (host, pool) = (self.nodes[node].id.clone(), self.nodes[node].pool.clone());
        let address = Some(format!("http://{host}"));
        self.cell_input(Input::Register { token, host, pool, address, secret: None, boot_id });
    }

    /// Everything that was not durable is lost, and every connection with it.
    pub(super) fn crash(&mut self, down: Millis) {
        if self.cell.engine.is_none() {
            return;
        }
        self.stats.crashes += 1;
        self.lose_process();
        let conns = std::mem::take(&mut self.cell.conns);
        for (conn, state) in conns {
            let client = state.client;
            let event = Event::Answered { client, conn, answer: Box::new(Answer::Broken) };
            self.send(None, Millis::ZERO, |_| event.clone());
        }
        self.queue.put(self.now + down, Event::Lead);
    }

    fn lose_process(&mut self) {
        if let Some(batch) = self.cell.committing.take()
            && self.rng.store.chance(500)
        {
            self.apply(&batch);
        }
        self.cell.engine = None;
        self.cell.process += 1;
        self.cell.staged = Batch::default();
        self.cell.asked.clear();
        self.cell.rpcs.clear();
        self.cell.probes.clear();
        self.cell.reports.clear();
        self.drop_hooks();
    }

    /// The leader stops in its tracks; another takes over, and then it goes on.
    pub(super) fn freeze(&mut self, takeover: Millis, thaw: Millis) {
        if self.cell.engine.is_none() || self.cell.frozen.is_some() {
            return;
        }
        self.stats.takeovers += 1;
        let mut last = Batch::default();
        if let Some(batch) = self.cell.committing.take()
            && self.rng.store.chance(700)
        {
            self.apply(&batch);
            last = batch;
        }
        self.lose_process();
        // Its callers hear nothing more of it.
        self.cell.conns.clear();
        self.cell.frozen = Some(last);
        self.queue.put(self.now + takeover, Event::Lead);
        self.queue.put(self.now + Millis(takeover.0 + thaw.0), Event::Thawed);
    }

    /// A former leader sends what it had durable. It cannot commit anything more.
    pub(super) fn thawed(&mut self) {
        let Some(batch) = self.cell.frozen.take() else { return };
        for effect in batch.effects {
            if let Effect::HostCommand { host, command, delay, .. } = effect
                && let Some(node) = self.node_of(&host)
            {
                // Nobody waits for its answer any more.
                let what = AtNode::Command { process: 0, rpc: 0, command };
                self.tell(node, delay, what);
            }
        }
    }

    /// The engine is dropped and made anew from the store, within the same process.
    pub(super) fn rebuild(&mut self) {
        self.cell.engine = None;
        self.cell.staged = Batch::default();
        self.cell.committing = None;
        self.drop_hooks();
        let retry = RetryHint::After(Millis::from_seconds(1));
        for (_, asker) in std::mem::take(&mut self.cell.asked) {
            if let Asker::Client { conn, .. } = asker {
                let code = RefusalCode::StoreUnavailable;
                self.answer(conn, Answer::Refused { code, retry });
            }
        }
        let down = Millis(self.rng.store.between(1, 3_000));
        self.queue.put(self.now + down, Event::Lead);
    }

    /// Takes the lead under a new epoch.
    pub(super) fn lead(&mut self) {
        if self.cell.engine.is_some() {
            return;
        }
        self.cell.epoch += 1;
        self.cell.led_at = self.now;
        let ahead = i64::try_from(self.rng.store.between(0, 4_000)).unwrap_or(0) - 2_000;
        self.cell.ahead = ahead;
        self.cell.clock = Timestamp(0);
        let now = self.cell_now();
        let mut out = Output::default();
        self.lose_plan();
        let rows = self.table.rows();
        self.oracle.restarted(now, &self.table);
        let config = self.cell.config.clone();
        match Engine::restore(config, self.cell.epoch, rows, now, &mut out) {
            Ok(engine) => self.cell.engine = Some(engine),
            Err(error) => return self.oracle.break_("restore", error.to_string()),
        }
        self.stage(now, out, None);
        // What the engine has made durable before it was dropped answers those who still wait.
        let held: Vec<SandboxId> =
            self.cell.conns.values().filter_map(|conn| conn.sandbox).collect();
        for id in held {
            match self.table.sandboxes.get(&id) {
                Some(row) => {
                    let status = row.status;
                    self.answer_held(id, &Answer::Sandbox { id, status });
                }
                None => self.answer_held(id, &Answer::Broken),
            }
        }
        for (_, report) in std::mem::take(&mut self.cell.reports) {
            let token = Token(self.number());
            self.cell.asked.insert(token, Asker::World);
            let copy = report.clone();
            let input = Input::Report { token, report: Box::new(report), probe: false };
            self.input_with(input, Some(copy));
        }
        self.run_hooks();
    }
}
