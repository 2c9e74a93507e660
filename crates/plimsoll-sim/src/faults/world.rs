//! The world: one cell, its store, hosts, clients, and the network between them.

use std::collections::VecDeque;

use plimsoll_engine::Input;
use plimsoll_engine::rows::PlanRow;
use plimsoll_types::{HostId, Millis, Timestamp};

use super::cell::Cell;
use super::client::Client;
use super::event::{AtNode, Event, Queue};
use super::hooks::Hooks;
use super::node::Node;
use super::oracle::Oracle;
use super::table::Table;
use super::{Options, Stats};
use crate::rng::Rng;

/// More inputs than this at one moment are a loop that time does not leave.
const AT_ONE_MOMENT_MAX: u32 = 2_000;

/// One stream of random numbers per purpose.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) setup: Rng,
    pub(super) net: Rng,
    pub(super) trouble: Rng,
    pub(super) drivers: Rng,
    pub(super) clients: Rng,
    pub(super) store: Rng,
    pub(super) hooks: Rng,
    pub(super) money: Rng,
}

impl Streams {
    fn new(seed: u64) -> Self {
        let stream = |purpose| Rng::new(seed, purpose);
        Self {
            setup: stream(1),
            net: stream(2),
            trouble: stream(3),
            drivers: stream(4),
            clients: stream(5),
            store: stream(6),
            hooks: stream(7),
            money: stream(8),
        }
    }
}

/// How the network behaves at the moment, in a thousand messages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NetMood {
    pub(super) lost: u64,
    pub(super) twice: u64,
    pub(super) late: u64,
    /// How late a late one is at most.
    pub(super) late_by: Millis,
}

/// Ids that no two calls share, as a shell makes them.
#[derive(Debug, Default)]
pub(super) struct Ids {
    next: u128,
}

impl Ids {
    pub(super) fn next(&mut self) -> u128 {
        self.next += 1;
        // Far above what the engine itself makes.
        (1 << 127) | self.next
    }
}

/// Everything there is.
pub(super) struct World {
    pub(super) options: Options,
    pub(super) now: Timestamp,
    pub(super) queue: Queue,
    pub(super) rng: Streams,
    pub(super) net: NetMood,
    pub(super) table: Table,
    pub(super) cell: Cell,
    pub(super) nodes: Vec<Node>,
    pub(super) clients: Vec<Client>,
    pub(super) hooks: Hooks,
    /// Plans that the store has lost.
    pub(super) lost_plans: Vec<PlanRow>,
    pub(super) loses_plan: bool,
    pub(super) oracle: Oracle,
    pub(super) stats: Stats,
    pub(super) ids: Ids,
    /// Clients begin nothing new.
    pub(super) quiet: bool,
    pub(super) over: bool,
    next: u64,
    moment: (Timestamp, u32),
    trace: Option<VecDeque<String>>,
}

impl World {
    pub(super) fn empty(seed: u64, options: Options, cell: Cell, now: Timestamp) -> Self {
        let trace = (options.trace > 0).then(VecDeque::new);
        Self {
            options,
            now,
            queue: Queue::default(),
            rng: Streams::new(seed),
            net: NetMood::default(),
            table: Table::default(),
            cell,
            nodes: Vec::new(),
            clients: Vec::new(),
            hooks: Hooks::default(),
            lost_plans: Vec::new(),
            loses_plan: false,
            oracle: Oracle::default(),
            stats: Stats::default(),
            ids: Ids::default(),
            quiet: false,
            over: false,
            next: 0,
            moment: (now, 0),
            trace,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn node_of(&self, host: &HostId) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == *host)
    }

    /// Keeps one line of the trace, if there is one.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        let Some(trace) = &mut self.trace else { return };
        if trace.len() >= self.options.trace {
            trace.pop_front();
        }
        let at = self.now.0 - super::BEGIN.0;
        trace.push_back(format!("{:>9}.{:03} {}", at / 1000, at % 1000, line()));
    }

    pub(super) fn trace(&mut self) -> Vec<String> {
        self.trace.take().map(Vec::from).unwrap_or_default()
    }

    /// Sends a message over the network, from or to a host where one is named: it may be lost,
    /// come twice, late, or after one that was sent later.
    pub(super) fn send(
        &mut self,
        node: Option<usize>,
        delay: Millis,
        event: impl Fn(usize) -> Event,
    ) {
        if node.is_some_and(|node| self.nodes[node].cut) {
            return;
        }
        let rng = &mut self.rng.net;
        if rng.chance(self.net.lost) {
            return;
        }
        // A connection of a client carries each thing once.
        let copies = if node.is_some() && rng.chance(self.net.twice) { 2 } else { 1 };
        for copy in 0..copies {
            let mut time = rng.between(1, 20);
            if rng.chance(self.net.late) {
                time += rng.below(self.net.late_by.0);
            }
            self.queue.put(self.now + Millis(delay.0 + time), event(copy));
        }
    }

    pub(super) fn tell(&mut self, node: usize, delay: Millis, what: AtNode) {
        self.send(Some(node), delay, |_| Event::Node { node, what: what.clone() });
    }

    /// Goes on until the end, or until something is broken.
    pub(super) fn run(&mut self) {
        while !self.over && self.oracle.broken.is_none() {
            self.step();
        }
    }

    fn step(&mut self) {
        let event_at = self.queue.next_at();
        let cell_at = self.cell.wake_at();
        let node_at = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(at, node)| node.wake_at().map(|wake| (wake, at)))
            .min();
        let soonest = [event_at, cell_at, node_at.map(|(at, _)| at)].into_iter().flatten().min();
        let Some(at) = soonest else {
            self.over = true;
            return;
        };
        self.now = self.now.max(at);
        self.stats.steps += 1;
        if self.moment.0 == self.now {
            self.moment.1 += 1;
            if self.moment.1 > AT_ONE_MOMENT_MAX {
                self.oracle.break_("time", "the same moment goes on for ever".to_owned());
            }
        } else {
            self.moment = (self.now, 0);
        }
        if event_at == Some(at) {
            if let Some((_, event)) = self.queue.take() {
                self.stats.mix(at, &event);
                self.happen(event);
            }
        } else if cell_at == Some(at) {
            self.note(|| "cell: tick".to_owned());
            self.cell_input(Input::Tick);
        } else if let Some((_, node)) = node_at {
            self.node_input(node, plimsoll_host::HostInput::Tick);
        }
    }

    fn happen(&mut self, event: Event) {
        self.note(|| said(&event));
        match event {
            Event::Committed { process } => self.committed(process),
            Event::Lead => self.lead(),
            Event::Thawed => self.thawed(),
            Event::Request { conn, client, request } => self.request(conn, client, &request),
            Event::HungUp { conn } => self.hung_up(conn),
            Event::WaitOver { process, conn } => self.wait_over(process, conn),
            Event::Outcome { process, rpc, outcome } => self.rpc_answered(process, rpc, outcome),
            Event::RpcOver { process, rpc } => {
                let detail = "no answer in time".to_owned();
                self.rpc_answered(process, rpc, plimsoll_types::HostOutcome::Unknown { detail });
            }
            Event::ProbeOver { process, probe } => self.probe_over(process, probe),
            Event::Report { node, agent, report, probe } => {
                self.take_report(node, agent, *report, probe);
            }
            Event::Register { node, agent, boot_id } => self.register(node, agent, boot_id),
            Event::Node { node, what } => self.at_node(node, what),
            Event::Answered { client, conn, answer } => self.answered(client, conn, *answer),
            Event::Act { client } => self.act(client),
            Event::Retry { client, op } => self.retry(client, op),
            Event::Hook(what) => self.hook(what),
            Event::Trouble(trouble) => self.trouble(trouble),
            Event::Quiet => self.calm_down(),
            Event::Settled => self.settled(),
            Event::Sweep => self.sweep(),
            Event::End => self.finish(),
        }
    }
}

/// An event as a trace shows it.
fn said(event: &Event) -> String {
    match event {
        Event::Node { node, what } => format!("h{}: {}", node + 1, what.word()),
        Event::Report { report, probe, .. } => format!(
            "cell: report {}/{} of {}, admits {:?}, seen through {:?}, {} guests{}{}",
            report.incarnation.unwrap_or(0),
            report.sequence,
            report.host,
            report.memory_mib_admittable,
            report.seen_through,
            report.guests.len(),
            if report.complete { "" } else { ", unfinished" },
            if probe.is_some() { ", asked for" } else { "" }
        ),
        Event::Request { request, conn, .. } => {
            let what = format!("{:?}", request.what);
            let short: String = what.chars().take(160).collect();
            format!("cell: request {conn} of {}: {short}", request.tenant)
        }
        other => {
            let text = format!("{other:?}");
            text.chars().take(300).collect()
        }
    }
}
