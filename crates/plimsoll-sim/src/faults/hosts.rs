//! What happens at hosts.

use plimsoll_host::{Act, HostEffect, HostEvent, HostInput, JournalEntry};
use plimsoll_types::{HostOp, Millis, PauseKind, SandboxId};

use super::event::{AtNode, Event};
use super::machine::Body;
use super::node::{Caller, SAMPLE};
use super::world::World;

/// How long an agent waits for the answer to a heartbeat.
const BEAT_TIMEOUT: Millis = Millis::from_seconds(5);

impl World {
    pub(super) fn at_node(&mut self, at: usize, what: AtNode) {
        if let Some(waiting) = &mut self.nodes[at].hung {
            if !matches!(what, AtNode::Boot) {
                waiting.push(what);
            }
            return;
        }
        let node = &mut self.nodes[at];
        let alive = |agent: u64, node: &super::node::Node| node.up() && node.agent == agent;
        match what {
            AtNode::Command { process, rpc, command } => {
                if !node.up() {
                    return;
                }
                let token = node.token(Caller { process, rpc });
                self.node_input(at, HostInput::Command { token, command });
            }
            AtNode::Probe { process, probe } => {
                if !node.up() {
                    return;
                }
                let time = node.time(self.now);
                let Some(host) = &mut node.host else { return };
                let mut report = host.report(time);
                node.distort(&mut report);
                let agent = node.agent;
                self.send(Some(at), Millis::ZERO, |_| Event::Report {
                    node: at,
                    agent,
                    report: Box::new(report.clone()),
                    probe: Some((process, probe)),
                });
            }
            AtNode::Answered { agent, sequence, answer } => {
                if alive(agent, node) && node.beat == Some(sequence) {
                    node.beat = None;
                    self.node_input(at, HostInput::HeartbeatAnswered { sequence, answer });
                }
            }
            AtNode::BeatLost { agent, sequence } => {
                if alive(agent, node) && node.beat == Some(sequence) {
                    node.beat = None;
                    self.node_input(at, HostInput::HeartbeatFailed);
                }
            }
            AtNode::Registered { agent, incarnation } => {
                let new = |node: &super::node::Node| {
                    node.host.as_ref().is_some_and(|host| host.incarnation().is_none())
                };
                if alive(agent, node) && new(node) {
                    self.node_input(at, HostInput::Registered { incarnation });
                }
            }
            AtNode::RegisterLost { agent } => {
                let still = node.host.as_ref().is_some_and(|host| host.incarnation().is_none());
                if alive(agent, node) && still {
                    self.ask_for_incarnation(at);
                }
            }
            AtNode::DriverDone { agent, call } => {
                if !alive(agent, node) {
                    return;
                }
                let told = node.machine.last_use(self.now, call);
                if let Some(result) = node.machine.finish(self.now, call) {
                    if let Some(told) = told {
                        self.node_input(at, told);
                    }
                    self.node_input(at, HostInput::DriverDone { call, result });
                }
            }
            AtNode::Sample { agent } => {
                if alive(agent, node) {
                    self.sample(at);
                    let what = AtNode::Sample { agent };
                    self.queue.put(self.now + SAMPLE, Event::Node { node: at, what });
                }
            }
            AtNode::Boot => self.boot_agent(at),
            AtNode::Adopt { agent } => {
                if alive(agent, node) {
                    let found = node.machine.found(&mut self.rng.drivers);
                    let told = node.machine.last_uses();
                    self.node_input(at, HostInput::Adopted { found, foreign: Vec::new() });
                    for told in told {
                        self.node_input(at, told);
                    }
                    self.sample(at);
                }
            }
            AtNode::Active { id } => self.node_input(at, HostInput::Active { id }),
            AtNode::Exit { id, attempt, code } => {
                if !node.up() {
                    return;
                }
                node.machine.advance(self.now);
                let Some(actual) = node.machine.guests.get_mut(&(id, attempt)) else { return };
                if !matches!(actual.body, Body::Running | Body::Frozen) {
                    return;
                }
                actual.body = Body::Exited(Some(code));
                let code = Some(code);
                self.node_input(at, HostInput::GuestExited { id, attempt, code });
            }
        }
    }

    fn sample(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let mut sample = node.machine.sample(self.now);
        let Some(host) = &node.host else { return };
        for held in host.reservations() {
            // Its guest uses a third of what it may, in a group that can be measured or not.
            let resident = plimsoll_types::Mib(held.memory_mib.0 / 3);
            if let Ok(used) = &mut sample.memory_used {
                *used = used.saturating_add(resident).min(node.machine.total);
            }
            if held.cgroup.is_some() {
                sample.reservations.push(plimsoll_host::ReservationSample {
                    id: held.id,
                    resident: Ok(resident),
                    cpu_millis_total_used: None,
                });
            }
        }
        let revision = host.revision();
        let looked: Vec<_> = host
            .measurable()
            .filter(|spec| !node.machine.is_busy(spec.id))
            .map(|spec| (spec.id, spec.attempt))
            .collect();
        self.node_input(at, HostInput::Sample(Box::new(sample)));
        // The drivers are asked too, for what changed without a word.
        for (id, attempt) in looked {
            let state = self.nodes[at].machine.observed(id, attempt);
            self.node_input(at, HostInput::Observed { id, attempt, state, as_of: revision });
        }
    }

    /// Starts an agent that is down, on a machine that is up.
    pub(super) fn boot_agent(&mut self, at: usize) {
        let compact = self.rng.drivers.chance(300);
        let adopt = Millis(self.rng.drivers.between(10, 3_000));
        let node = &mut self.nodes[at];
        if node.up() || !node.powered {
            return;
        }
        node.start(compact);
        let agent = node.agent;
        let adopts = AtNode::Adopt { agent };
        self.queue.put(self.now + adopt, Event::Node { node: at, what: adopts });
        let samples = AtNode::Sample { agent };
        self.queue.put(self.now + SAMPLE, Event::Node { node: at, what: samples });
        self.ask_for_incarnation(at);
    }

    fn ask_for_incarnation(&mut self, at: usize) {
        let node = &self.nodes[at];
        let agent = node.agent;
        let boot_id = format!("{}-{agent}", node.id);
        self.send(Some(at), Millis::ZERO, |_| Event::Register {
            node: at,
            agent,
            boot_id: boot_id.clone(),
        });
        let again = self.now + Millis::from_seconds(2);
        self.queue.put(again, Event::Node { node: at, what: AtNode::RegisterLost { agent } });
    }

    pub(super) fn node_input(&mut self, at: usize, input: HostInput) {
        let node = &mut self.nodes[at];
        let time = node.time(self.now);
        let Some(host) = &mut node.host else { return };
        let mut effects = Vec::new();
        host.handle(time, input, &mut effects);
        for effect in effects {
            self.host_effect(at, effect);
        }
    }

    fn host_effect(&mut self, at: usize, effect: HostEffect) {
        let node = &mut self.nodes[at];
        match effect {
            HostEffect::Journal(entry) => {
                if let JournalEntry::Start { fence, guest, .. } = &entry
                    && *fence != plimsoll_types::Fence::default()
                {
                    self.oracle.started(node, self.now, *fence, guest);
                }
                if let JournalEntry::Act { fence: Some(fence), id, act, .. } = &entry
                    && *act == (Act::Resume { from: PauseKind::Checkpoint })
                    && let Some(guest) = node.host.as_ref().and_then(|host| host.spec(*id)).cloned()
                {
                    self.oracle.started(node, self.now, *fence, &guest);
                }
                node.write(entry);
            }
            HostEffect::Driver(call) => {
                if let plimsoll_host::DriverOp::Start { .. } = call.op {
                    self.only_copy(at, call.id, call.attempt);
                }
                let node = &mut self.nodes[at];
                let time = node.machine.begin(self.now, &call, &mut self.rng.drivers);
                let what = AtNode::DriverDone { agent: node.agent, call: call.call };
                self.queue.put(self.now + time, Event::Node { node: at, what });
            }
            HostEffect::Answer { token, outcome } => {
                let Some(caller) = node.callers.remove(&token.0) else { return };
                let Caller { process, rpc } = caller;
                self.note(|| format!("h{}: answers {rpc}: {outcome:?}", at + 1));
                self.send(Some(at), Millis::ZERO, |_| Event::Outcome {
                    process,
                    rpc,
                    outcome: outcome.clone(),
                });
            }
            HostEffect::HeartbeatNow => self.beat(at),
            HostEffect::Event(event) => {
                let stateful = |id: SandboxId| {
                    node.host
                        .as_ref()
                        .and_then(|host| host.spec(id))
                        .is_some_and(|spec| spec.stateful)
                };
                if let HostEvent::PressurePause { id, .. } | HostEvent::PressureKill { id, .. } =
                    event
                    && stateful(id)
                {
                    self.oracle.break_("I4", format!("pressure touched the stateful {id}"));
                }
                self.note(|| format!("h{}: {event:?}", at + 1));
            }
        }
    }

    fn beat(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let time = node.time(self.now);
        let Some(host) = &mut node.host else { return };
        let mut report = host.heartbeat(time);
        node.distort(&mut report);
        let (agent, sequence) = (node.agent, report.sequence);
        node.beat = Some(sequence);
        self.send(Some(at), Millis::ZERO, |_| Event::Report {
            node: at,
            agent,
            report: Box::new(report.clone()),
            probe: None,
        });
        let lost = AtNode::BeatLost { agent, sequence };
        self.queue.put(self.now + BEAT_TIMEOUT, Event::Node { node: at, what: lost });
    }

    /// A guest is about to be started here: there must be no other copy of it anywhere.
    fn only_copy(&mut self, at: usize, id: SandboxId, attempt: u32) {
        for node in &self.nodes {
            let copies = node.machine.guests.range((id, 0)..=(id, u32::MAX));
            for ((_, other), actual) in copies {
                if actual.body.is_copy() {
                    let detail = format!(
                        "{id}.{attempt} is started on {} while {id}.{other} is {:?} on {}",
                        self.nodes[at].id, actual.body, node.id
                    );
                    self.oracle.break_("I6", detail);
                    return;
                }
            }
        }
    }

    /// Kills an agent; it comes back after a while.
    pub(super) fn kill_agent(&mut self, at: usize, down: Millis) {
        let node = &mut self.nodes[at];
        if !node.up() {
            return;
        }
        let lost = self.rng.drivers.between(0, 4);
        node.kill(lost);
        node.machine.orphan(self.now, &mut self.rng.drivers);
        self.queue.put(self.now + down, Event::Node { node: at, what: AtNode::Boot });
    }

    /// Takes a machine's power; it comes back after a while with its disks.
    pub(super) fn cut_power(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !node.powered {
            return;
        }
        if node.up() {
            node.kill(2);
            node.machine.orphan(self.now, &mut self.rng.drivers);
        }
        node.powered = false;
        node.machine.advance(self.now);
        node.machine.reboot(&mut self.rng.drivers);
    }

    pub(super) fn power_up(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !node.powered {
            node.boot(self.now);
            self.boot_agent(at);
        }
    }

    /// A frozen agent goes on with everything that has come meanwhile.
    pub(super) fn unhang(&mut self, at: usize) {
        for what in self.nodes[at].hung.take().unwrap_or_default() {
            self.at_node(at, what);
        }
    }

    /// The fleet's truth about one guest: where it is and in which state.
    pub(super) fn copies(&self, id: SandboxId) -> Vec<(usize, u32, Body)> {
        let mut found = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            for ((_, attempt), actual) in node.machine.guests.range((id, 0)..=(id, u32::MAX)) {
                found.push((at, *attempt, actual.body));
            }
        }
        found
    }
}

/// Whether a command makes a guest take memory of its host anew.
pub(super) fn takes_memory(op: &HostOp) -> bool {
    matches!(op, HostOp::Start { .. } | HostOp::Resume { .. })
}
