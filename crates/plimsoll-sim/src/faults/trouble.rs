//! What goes wrong, and when it is mended.

use plimsoll_engine::{Admin, Command};
use plimsoll_types::{Millis, PauseKind, PoolName, PreemptionMode, Timestamp};

use super::event::Event;
use super::hooks::Manner;
use super::machine::{Body, Mood};
use super::money::{self, Money};
use super::node::Lie;
use super::setup::{LOCAL, VM};
use super::world::{NetMood, World};
use crate::rng::Rng;

/// One thing that goes wrong or is mended. Hosts are named by their place.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    Net(NetMood),
    Cut(usize),
    Mend(usize),
    KillAgent(usize, Millis),
    /// Some agent is killed in the middle of a checkpoint.
    KillMidPause(Millis),
    PowerOff(usize),
    PowerOn(usize),
    Mood(usize, Mood),
    Calm(usize),
    Hang(usize),
    Unhang(usize),
    Clock(usize, i64),
    Lie(usize, Lie),
    Store {
        fails: u64,
        crashes: u64,
        slow: u64,
    },
    StoreCalm,
    Crash(Millis),
    Freeze {
        takeover: Millis,
        thaw: Millis,
    },
    Wake(usize),
    Exits(usize),
    PoolLimit,
    /// Another rule of preemption, and another kind of pause, for the pool that checkpoints.
    PoolRules,
    PlanLimit,
    Drain(usize),
    Undrain(usize),
    /// A receiver of webhooks behaves otherwise.
    Manner(usize, Manner),
    /// An endpoint is switched off or on, moved or removed.
    Endpoint(usize),
    NewEndpoint,
    /// Something about tenants' money.
    Money(Money),
}

/// The episodes of one run.
pub(super) fn plan(
    rng: &mut Rng,
    nodes: usize,
    from: Timestamp,
    until: Timestamp,
    per_minute: u64,
) -> Vec<(Timestamp, Trouble)> {
    let minutes = until.since(from).0 / 60_000;
    let mut all = Vec::new();
    for _ in 0..minutes.saturating_mul(per_minute) {
        let at = from + Millis(rng.below(until.since(from).0));
        let node = usize::try_from(rng.below(u64::try_from(nodes).unwrap_or(1))).unwrap_or(0);
        episode(rng, at, node, &mut all);
    }
    // Receivers have troubles of their own, whatever else goes wrong.
    for _ in 0..minutes {
        let at = from + Millis(rng.below(until.since(from).0));
        hook_episode(rng, at, &mut all);
        let at = from + Millis(rng.below(until.since(from).0));
        money::episode(rng, at, &mut all);
    }
    all.retain(|(at, _)| *at < until);
    all.sort_by_key(|(at, _)| *at);
    all
}

fn hook_episode(rng: &mut Rng, at: Timestamp, all: &mut Vec<(Timestamp, Trouble)>) {
    let which = usize::try_from(rng.below(6)).unwrap_or(0);
    match rng.below(10) {
        0..7 => {
            let manner = rng.pick(&Manner::BAD).copied().unwrap_or_default();
            all.push((at, Trouble::Manner(which, manner)));
            let length = Millis(rng.between(2_000, 240_000));
            all.push((at + length, Trouble::Manner(which, Manner::Well)));
        }
        7 | 8 => all.push((at, Trouble::Endpoint(which))),
        _ => all.push((at, Trouble::NewEndpoint)),
    }
}

fn episode(rng: &mut Rng, at: Timestamp, node: usize, all: &mut Vec<(Timestamp, Trouble)>) {
    let mut lasting = |rng: &mut Rng, begin: Trouble, end: Trouble, low: u64, high: u64| {
        all.push((at, begin));
        all.push((at + Millis(rng.between(low, high)), end));
    };
    match rng.below(29) {
        0 | 1 => {
            let mood = NetMood {
                lost: rng.between(0, 300),
                twice: rng.between(0, 300),
                late: rng.between(0, 400),
                late_by: Millis(rng.between(100, 150_000)),
            };
            lasting(rng, Trouble::Net(mood), Trouble::Net(NetMood::default()), 5_000, 60_000);
        }
        2 => lasting(rng, Trouble::Cut(node), Trouble::Mend(node), 2_000, 100_000),
        // Long enough to be declared dead, and back with its guests running.
        3 => lasting(rng, Trouble::Cut(node), Trouble::Mend(node), 125_000, 250_000),
        4 | 5 => {
            let down = Millis(rng.between(500, 40_000));
            all.push((at, Trouble::KillAgent(node, down)));
        }
        6 => lasting(rng, Trouble::PowerOff(node), Trouble::PowerOn(node), 5_000, 200_000),
        7 => {
            let mood = Mood { black_hole: true, ..Mood::default() };
            lasting(rng, Trouble::Mood(node, mood), Trouble::Calm(node), 10_000, 120_000);
        }
        8 | 9 => {
            let mood = Mood {
                slow: rng.between(2, 60),
                unknown: rng.between(0, 300),
                fails: rng.between(0, 200),
                ..Mood::default()
            };
            lasting(rng, Trouble::Mood(node, mood), Trouble::Calm(node), 10_000, 120_000);
        }
        10 => {
            let mood = Mood { pause_fails: rng.between(300, 1_000), ..Mood::default() };
            lasting(rng, Trouble::Mood(node, mood), Trouble::Calm(node), 10_000, 120_000);
        }
        11 => {
            // Something outside takes memory: the host refuses what the cell thinks fits.
            let mood = Mood { outside: rng.between(500, 8_000), ..Mood::default() };
            lasting(rng, Trouble::Mood(node, mood), Trouble::Calm(node), 5_000, 60_000);
        }
        12 => {
            let mood = Mood { pressure_bp: rng.between(800, 6_000), ..Mood::default() };
            lasting(rng, Trouble::Mood(node, mood), Trouble::Calm(node), 5_000, 60_000);
        }
        13 => lasting(rng, Trouble::Hang(node), Trouble::Unhang(node), 1_000, 150_000),
        14 => {
            let jump = i64::try_from(rng.between(0, 7_200_000)).unwrap_or(0) - 3_600_000;
            all.push((at, Trouble::Clock(node, jump)));
        }
        15 => {
            let lies = [Lie::Boast, Lie::Unfinished, Lie::Forgetful, Lie::Stranger];
            let lie = rng.pick(&lies).copied().unwrap_or_default();
            lasting(rng, Trouble::Lie(node, lie), Trouble::Lie(node, Lie::None), 1_000, 60_000);
        }
        16 | 17 => {
            let fails = rng.between(0, 400);
            let crashes = rng.between(0, 100);
            let slow = rng.between(1, 100);
            let begin = Trouble::Store { fails, crashes, slow };
            lasting(rng, begin, Trouble::StoreCalm, 500, 10_000);
        }
        18 | 19 => all.push((at, Trouble::Crash(Millis(rng.between(50, 20_000))))),
        20 => {
            let takeover = Millis(rng.between(500, 10_000));
            let thaw = Millis(rng.between(1, 60_000));
            all.push((at, Trouble::Freeze { takeover, thaw }));
        }
        21 => all.push((at, Trouble::Wake(node))),
        22 => all.push((at, Trouble::Exits(node))),
        23 => all.push((at, Trouble::PoolLimit)),
        24 => all.push((at, Trouble::PlanLimit)),
        25 => all.push((at, Trouble::PoolRules)),
        26 | 27 => {
            let down = Millis(rng.between(500, 40_000));
            all.push((at, Trouble::KillMidPause(down)));
        }
        _ => lasting(rng, Trouble::Drain(node), Trouble::Undrain(node), 5_000, 60_000),
    }
}

impl World {
    pub(super) fn trouble(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Net(mood) => self.net = mood,
            Trouble::Cut(at) => self.nodes[at].cut = true,
            Trouble::Mend(at) => self.nodes[at].cut = false,
            Trouble::KillAgent(at, down) => self.kill_agent(at, down),
            Trouble::KillMidPause(down) => {
                let at = self.nodes.iter().position(|node| node.machine.is_checkpointing());
                if let Some(at) = at {
                    self.kill_agent(at, down);
                }
            }
            Trouble::PowerOff(at) => self.cut_power(at),
            Trouble::PowerOn(at) => self.power_up(at),
            Trouble::Mood(at, mood) => self.nodes[at].machine.mood = mood,
            Trouble::Calm(at) => self.nodes[at].machine.mood = Mood::default(),
            Trouble::Hang(at) => {
                let node = &mut self.nodes[at];
                if node.up() && node.hung.is_none() {
                    node.hung = Some(Vec::new());
                }
            }
            Trouble::Unhang(at) => self.unhang(at),
            Trouble::Clock(at, jump) => self.nodes[at].clock_ahead += jump,
            Trouble::Lie(at, lie) => self.nodes[at].lie = lie,
            Trouble::Store { fails, crashes, slow } => {
                let store = &mut self.cell.store;
                (store.fails, store.crashes, store.slow) = (fails, crashes, slow);
            }
            Trouble::StoreCalm => {
                self.cell.store = super::cell::StoreMood::default();
                self.cell.slow_at = self.now;
            }
            Trouble::Crash(down) => self.crash(down),
            Trouble::Freeze { takeover, thaw } => self.freeze(takeover, thaw),
            Trouble::Wake(at) => self.wake_one(at),
            Trouble::Exits(at) => self.end_one(at),
            Trouble::PoolLimit => {
                let name = if self.rng.trouble.chance(500) { LOCAL } else { VM };
                let limit = self.rng.trouble.chance(800).then(|| self.rng.trouble.between(1, 12));
                self.put_limit(name, limit);
            }
            Trouble::PoolRules => self.put_rules(),
            Trouble::PlanLimit => {
                let limit = self.rng.trouble.between(1, 10);
                self.put_plan(Some(limit));
            }
            Trouble::Drain(at) => {
                let host = self.nodes[at].id.clone();
                self.operate(Command::Admin(Box::new(Admin::Drain(host))));
            }
            Trouble::Manner(at, manner) => self.set_manner(at, manner),
            Trouble::Endpoint(at) => self.change_endpoint(at),
            Trouble::NewEndpoint => self.new_endpoint(),
            Trouble::Money(money) => self.money(money),
            Trouble::Undrain(at) => {
                let host = self.nodes[at].id.clone();
                self.operate(Command::Admin(Box::new(Admin::Undrain(host))));
            }
        }
    }

    /// A backend wakes one of its written guests without being asked.
    fn wake_one(&mut self, at: usize) {
        let asleep: Vec<_> = self.nodes[at]
            .machine
            .guests
            .iter()
            .filter(|(_, actual)| matches!(actual.body, Body::Checkpointed | Body::Frozen))
            .map(|(key, _)| *key)
            .collect();
        let Some((id, attempt)) = self.rng.trouble.pick(&asleep).copied() else { return };
        let node = &mut self.nodes[at];
        if node.machine.is_busy(id) || !node.up() || node.hung.is_some() {
            return;
        }
        node.machine.advance(self.now);
        if let Some(actual) = node.machine.guests.get_mut(&(id, attempt)) {
            actual.body = Body::Running;
        }
        let state = node.machine.observed(id, attempt);
        let as_of = node.host.as_ref().map_or(0, plimsoll_host::Host::revision);
        self.node_input(at, plimsoll_host::HostInput::Observed { id, attempt, state, as_of });
    }

    /// The process of one guest ends by itself.
    fn end_one(&mut self, at: usize) {
        let running: Vec<_> = self.nodes[at]
            .machine
            .guests
            .iter()
            .filter(|(_, actual)| matches!(actual.body, Body::Running))
            .map(|(key, _)| *key)
            .collect();
        let Some((id, attempt)) = self.rng.trouble.pick(&running).copied() else { return };
        let code = i32::try_from(self.rng.trouble.below(3)).unwrap_or(0);
        self.at_node(at, super::event::AtNode::Exit { id, attempt, code });
    }

    pub(super) fn put_limit(&mut self, pool: &str, limit: Option<u64>) {
        let name = PoolName::new(pool).expect("a valid name");
        let Some(mut row) = self.oracle.rows.pools.get(&name).cloned() else { return };
        row.settings.limit = limit;
        self.operate(Command::Admin(Box::new(Admin::PutPool(row))));
    }

    fn put_rules(&mut self) {
        let name = PoolName::new(VM).expect("a valid name");
        let Some(mut row) = self.oracle.rows.pools.get(&name).cloned() else { return };
        let rng = &mut self.rng.trouble;
        let modes = [PreemptionMode::Off, PreemptionMode::Idle, PreemptionMode::Lru];
        row.settings.preemption.mode = rng.pick(&modes).copied().unwrap_or(PreemptionMode::Off);
        row.settings.pause =
            if rng.chance(500) { PauseKind::Checkpoint } else { PauseKind::Driver };
        row.settings.queue_hold_seconds = rng.between(5, 60);
        self.operate(Command::Admin(Box::new(Admin::PutPool(row))));
    }

    /// Sets the most sandboxes of every plan but the default one.
    pub(super) fn put_plan(&mut self, limit: Option<u64>) {
        let plans: Vec<_> = self.oracle.rows.plans.values().cloned().collect();
        for mut row in plans {
            if row.id.as_str() == "default" {
                continue;
            }
            row.limits.concurrency.sandboxes = money::burst(&mut self.rng.money, limit);
            if limit.is_none() {
                row.limits = plimsoll_engine::rows::PlanLimits::default();
            }
            self.operate(Command::Admin(Box::new(Admin::PutPlan(row))));
        }
    }

    /// Everything is mended; clients begin nothing new.
    pub(super) fn calm_down(&mut self) {
        self.quiet = true;
        self.net = NetMood::default();
        self.trouble(Trouble::StoreCalm);
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            node.cut = false;
            node.machine.mood = Mood::default();
            node.lie = Lie::None;
            self.unhang(at);
            self.power_up(at);
            self.boot_agent(at);
        }
        self.lead();
        for at in 0..self.nodes.len() {
            self.trouble(Trouble::Undrain(at));
        }
        self.find_plans();
        self.forget_budgets();
        self.put_plan(None);
        self.mend_hooks();
        self.queue.put(self.now + super::SETTLE, Event::Settled);
    }
}
