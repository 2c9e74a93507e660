//! A full pool whose users come back again and again, under preemption: everybody gets in within a
//! bound, and no two guests, nor any ring of them, evict each other in turn.
//!
//! The engine is the real one; the one host does what it is told, each thing in its time.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_engine::rows::{Change, PoolRow, PoolSettings, Role, Rows, TemplateRow};
use plimsoll_engine::{
    Admin, Caller, Command, CreateSandbox, Effect, Engine, EngineConfig, Input, Output, Token,
};
use plimsoll_types::{
    ClaimId, DecisionId, Driver, GuestReport, GuestStatus, HostCommand, HostId, HostOp,
    HostOutcome, HostReport, Mib, MilliCpu, Millis, OnFull, PoolName, Preemption, PreemptionMode,
    SandboxId, SandboxStatus, TemplateName, TenantId, Timestamp,
};

const BEGIN: Timestamp = Timestamp(1_800_000_000_000);
const SLOTS: u64 = 4;
const USERS: usize = 12;
const HOURS: u64 = 2;

/// The longest wait that is still called bounded. Twelve users share four slots and a session takes
/// two minutes at most: the last of eight waiters is in after two of them on its slot, each with
/// what idleness and a pause add.
const WAIT_MAX: Millis = Millis::from_seconds(300);

/// What the run of one pool has shown.
#[derive(Debug, Default)]
struct Seen {
    preemptions: u32,
    /// Guests that were brought in by preemption and evicted again within the default protection.
    undone: u32,
    /// Guests that were evicted, within the default protection of pairs, for the very guest that
    /// they had been brought in for.
    turned: u32,
    served: u32,
    longest: Millis,
    /// How long those wait who wait at the end.
    waiting: Millis,
}

enum Event {
    Beat,
    User(usize),
    Done(HostCommand),
}

#[derive(Default)]
struct User {
    guest: Option<SandboxId>,
    /// Uses its guest until then, from the moment at which it runs.
    session: Option<Timestamp>,
}

struct World {
    engine: Engine,
    now: Timestamp,
    queue: BTreeMap<(Timestamp, u64), Event>,
    next: u64,
    random: u64,
    guests: BTreeMap<SandboxId, SandboxStatus>,
    users: Vec<User>,
    running: BTreeSet<SandboxId>,
    wanted: BTreeMap<SandboxId, Timestamp>,
    brought_in: BTreeMap<SandboxId, Timestamp>,
    /// Who made way for each guest since it was paused last.
    displaced: BTreeMap<SandboxId, BTreeSet<SandboxId>>,
    pausing: BTreeSet<SandboxId>,
    seen: Seen,
}

impl World {
    fn new(seed: u64, mode: PreemptionMode, protections: bool) -> Self {
        let mut out = Output::default();
        let config = EngineConfig::default();
        let engine = Engine::restore(config, 1, Rows::default(), BEGIN, &mut out).unwrap();
        let mut world = Self {
            engine,
            now: BEGIN,
            queue: BTreeMap::new(),
            next: 1,
            random: seed,
            guests: BTreeMap::new(),
            users: (0..USERS).map(|_| User::default()).collect(),
            running: BTreeSet::new(),
            wanted: BTreeMap::new(),
            brought_in: BTreeMap::new(),
            displaced: BTreeMap::new(),
            pausing: BTreeSet::new(),
            seen: Seen::default(),
        };
        let mut settings = PoolSettings {
            limit: Some(SLOTS),
            preemption: Preemption { mode, idle_seconds: 5, min_run_seconds: 5 },
            ..PoolSettings::default()
        };
        if !protections {
            settings.preemption_protect_seconds = 0;
            settings.preemption_pair_seconds = 0;
        }
        let name = PoolName::new("local").unwrap();
        world.operate(Admin::PutPool(PoolRow { name, settings }));
        let vm = TemplateName::new("vm").unwrap();
        world.operate(Admin::PutTemplate(TemplateRow::new(vm, Driver::Gvisor, Mib(512))));
        world.put(Millis(1), Event::Beat);
        for user in 0..USERS {
            let wait = Millis(1_000 + world.below(60_000));
            world.put(wait, Event::User(user));
        }
        world
    }

    /// splitmix64.
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn put(&mut self, after: Millis, event: Event) {
        let at = (self.now + after, self.number());
        self.queue.insert(at, event);
    }

    fn operate(&mut self, admin: Admin) {
        let tenant = TenantId::new("default").unwrap();
        self.call(Caller { role: Role::Operator, tenant }, Command::Admin(Box::new(admin)));
    }

    fn ask(&mut self, command: Command) {
        let tenant = TenantId::new("default").unwrap();
        self.call(Caller { role: Role::Tenant, tenant }, command);
    }

    fn call(&mut self, caller: Caller, command: Command) {
        let token = Token(self.number());
        self.input(Input::Call { token, caller, command });
    }

    fn input(&mut self, input: Input) {
        let mut out = Output::default();
        self.engine.handle(self.now, input, &mut out);
        let broken = self.engine.check(self.now);
        assert!(broken.is_empty(), "{broken:?}");
        for change in &out.changes {
            if let Change::Sandbox(row) = change {
                self.changed(row);
            }
        }
        for effect in out.effects {
            if let Effect::HostCommand { command, delay, .. } = effect {
                let takes = match command.op {
                    HostOp::Pause { .. } => 1_000 + self.below(5_000),
                    _ => 100 + self.below(400),
                };
                self.put(Millis(delay.0 + takes), Event::Done(*command));
            }
        }
    }

    /// Follows one guest through its states.
    fn changed(&mut self, row: &plimsoll_engine::rows::SandboxRow) {
        let id = row.id;
        if row.status == SandboxStatus::Running && self.running.insert(id) {
            if let Some(since) = self.wanted.remove(&id) {
                self.seen.served += 1;
                self.seen.longest = self.seen.longest.max(self.now.since(since));
            }
            match row.brought_in_at {
                Some(at) => drop(self.brought_in.insert(id, at)),
                None => drop(self.brought_in.remove(&id)),
            }
        }
        if row.status != SandboxStatus::Running {
            self.running.remove(&id);
        }
        if row.status != SandboxStatus::Pausing {
            self.pausing.remove(&id);
        } else if let Some(waiter) = row.preempted_for
            && self.pausing.insert(id)
        {
            self.evicted(id, waiter);
        }
        if row.status == SandboxStatus::Paused && row.resume_requested_at.is_none() {
            self.displaced.remove(&id);
        }
        if row.status.is_terminal() {
            self.guests.remove(&id);
            self.wanted.remove(&id);
        }
    }

    fn evicted(&mut self, victim: SandboxId, waiter: SandboxId) {
        self.seen.preemptions += 1;
        self.displaced.entry(waiter).or_default().insert(victim);
        // It is evicted for one that had made way for it.
        let pair = self.displaced.remove(&victim).is_some_and(|by| by.contains(&waiter));
        let defaults = PoolSettings::default();
        let Some(since) = self.brought_in.remove(&victim) else { return };
        let ran = self.now.since(since);
        if ran < Millis::from_seconds(defaults.preemption_protect_seconds) {
            self.seen.undone += 1;
        }
        if pair && ran < Millis::from_seconds(defaults.preemption_pair_seconds) {
            self.seen.turned += 1;
        }
    }

    fn run(mut self) -> Seen {
        let end = BEGIN + Millis::from_seconds(HOURS * 3600);
        loop {
            let event_at = self.queue.first_key_value().map(|((at, _), _)| *at);
            let wake = self.engine.next_wakeup();
            let Some(at) = [event_at, wake].into_iter().flatten().min() else { break };
            if at > end {
                break;
            }
            self.now = self.now.max(at);
            if event_at.is_some_and(|event| event <= at) {
                let Some((_, event)) = self.queue.pop_first() else { break };
                self.happen(event);
            } else {
                self.input(Input::Tick);
            }
        }
        let waits = self.wanted.values().map(|since| self.now.since(*since));
        self.seen.waiting = waits.max().unwrap_or_default();
        self.seen
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Beat => self.beat(),
            Event::User(user) => self.act(user),
            Event::Done(command) => {
                let id = command.op.guest();
                match command.op {
                    HostOp::End { .. } => drop(self.guests.remove(&id)),
                    HostOp::Pause { .. } => {
                        self.guests.insert(id, SandboxStatus::Paused);
                    }
                    _ => drop(self.guests.insert(id, SandboxStatus::Running)),
                }
                let host = HostId::new("h1").unwrap();
                let outcome = HostOutcome::Done;
                self.input(Input::Outcome { host, command: Box::new(command), outcome });
            }
        }
    }

    /// A user wants its guest, uses it for a while once it runs, and goes away for a while.
    fn act(&mut self, user: usize) {
        let state = &self.users[user];
        let guest = state.guest;
        let running = guest.is_some_and(|id| self.running.contains(&id));
        let over = state.session.is_some_and(|until| until <= self.now);
        if over {
            self.users[user].session = None;
            if let Some(id) = guest
                && self.below(10) == 0
            {
                self.users[user].guest = None;
                self.ask(Command::Delete { id });
            }
            let wait = Millis(5_000 + self.below(60_000));
            return self.put(wait, Event::User(user));
        }
        if running && self.users[user].session.is_none() {
            let length = Millis(10_000 + self.below(110_000));
            self.users[user].session = Some(self.now + length);
        }
        match guest {
            None => self.create(user),
            Some(id) => {
                if !running {
                    self.wanted.entry(id).or_insert(self.now);
                }
                let decision = DecisionId(u128::from(self.number()));
                self.ask(Command::Touch { id, decision });
            }
        }
        let wait = Millis(500 + self.below(3_500));
        self.put(wait, Event::User(user));
    }

    fn create(&mut self, user: usize) {
        let id = SandboxId(u128::from(self.number()));
        self.users[user].guest = Some(id);
        self.wanted.insert(id, self.now);
        let decision = DecisionId(u128::from(self.number()));
        let template = TemplateName::new("vm").unwrap();
        self.ask(Command::Create(Box::new(CreateSandbox {
            on_full: OnFull::Queue,
            answered: true,
            ..CreateSandbox::new(id, decision, template)
        })));
    }

    fn beat(&mut self) {
        let guests = self.guests.iter().map(|(id, status)| {
            let runs = *status == SandboxStatus::Running;
            let status = if runs { GuestStatus::Running } else { GuestStatus::Paused };
            let charge = Mib(if runs { 100 } else { 0 });
            GuestReport::new(ClaimId::Sandbox(*id), status, Mib(512), charge)
        });
        let (host, pool) = (HostId::new("h1").unwrap(), PoolName::new("local").unwrap());
        let report = HostReport {
            // It says nothing of the order of commands: only outcomes move a guest here.
            seen_through: Some(0),
            address: Some("http://127.0.0.1:1".to_owned()),
            cpu_millis_total: MilliCpu(64_000),
            memory_mib_total: Mib(256 * 1024),
            memory_mib_used: Mib(1024),
            memory_mib_admittable: Some(200 * 1024),
            guests: guests.collect(),
            complete: true,
            ..HostReport::new(host, pool, "boot-1", self.next, self.now)
        };
        let token = Token(self.number());
        self.input(Input::Report { token, report: Box::new(report), probe: false });
        self.put(Millis::from_seconds(10), Event::Beat);
    }
}

fn hold(mode: PreemptionMode) {
    for seed in 1..=3 {
        let seen = World::new(seed, mode, true).run();
        assert!(seen.preemptions > 50 && seen.served > 200, "seed {seed}: {seen:?}");
        assert!(seen.longest <= WAIT_MAX && seen.waiting <= WAIT_MAX, "seed {seed}: {seen:?}");
        // A ring of any length has a guest that is evicted as soon as it was brought in.
        assert_eq!((seen.undone, seen.turned), (0, 0), "seed {seed}: {seen:?}");
    }
}

#[test]
fn a_full_pool_serves_every_waiter_and_no_guests_evict_each_other_by_idleness() {
    hold(PreemptionMode::Idle);
}

#[test]
fn a_full_pool_serves_every_waiter_and_no_guests_evict_each_other_by_age() {
    hold(PreemptionMode::Lru);
}

/// That the two above could fail: without the protections guests do evict each other in turn.
#[test]
fn without_its_protections_a_pool_has_guests_evict_each_other() {
    for mode in [PreemptionMode::Idle, PreemptionMode::Lru] {
        let seen = World::new(1, mode, false).run();
        assert!(seen.undone > 0 && seen.turned > 0, "{mode:?}: {seen:?}");
    }
}
