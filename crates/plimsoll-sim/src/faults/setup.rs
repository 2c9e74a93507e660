//! What a world is made of.

use std::collections::BTreeMap;

use plimsoll_engine::rows::{PoolRow, PoolSettings, TemplateRow};
use plimsoll_engine::{Admin, Command, EngineConfig};
use plimsoll_types::{
    Counted, Driver, Mib, MilliCpu, Millis, PauseKind, Placement, PoolName, Preemption,
    PreemptionMode, Regime, TemplateName, TenantId, Timestamp,
};

use super::cell::Cell;
use super::client::Client;
use super::event::{AtNode, Event, host_name};
use super::machine::Machine;
use super::node::{Make, Node, drivers};
use super::trouble;
use super::world::World;
use super::{BEGIN, Options};
use crate::rng::Rng;

/// The pool whose pauses keep guests in memory.
pub(super) const LOCAL: &str = "local";
/// The pool whose pauses write guests out.
pub(super) const VM: &str = "vm";
/// The pool that others overflow to.
pub(super) const OUTSIDE: &str = "outside";

/// Every template that clients name.
pub(super) const TEMPLATES: [&str; 7] =
    ["shell", "heavy", "state", "vm", "vm-state", "gpu", "zoned"];

fn pool_name(name: &str) -> PoolName {
    PoolName::new(name).expect("a valid name")
}

pub(super) fn world(seed: u64, options: Options) -> World {
    let mut rng = Rng::new(seed, 100);
    let config = EngineConfig {
        parked_max: if rng.chance(200) { 1 } else { 1_024 },
        queue_max: if rng.chance(200) { 8 } else { 10_000 },
        ended_max: if rng.chance(200) { 200 } else { 100_000 },
        pause_timeout: Millis(if rng.chance(300) { 30_000 } else { 600_000 }),
        ..EngineConfig::default()
    };
    let config = super::money::hurry(&mut rng, config);
    let books = super::oracle::Books::of(&config);
    let parks_few = config.parked_max < 100;
    let mut world = World::empty(seed, options, Cell::new(config), BEGIN);
    world.oracle.parks_few = parks_few;
    world.oracle.books = books;
    let number = world.rng.setup.between(options.hosts.0, options.hosts.1);
    for at in 0..usize::try_from(number).unwrap_or(2) {
        let node = host(&mut world.rng.setup, at);
        world.nodes.push(node);
        world.queue.put(BEGIN + Millis(10), Event::Node { node: at, what: AtNode::Boot });
    }
    if world.rng.setup.chance(600) {
        world.hooks.rule = super::hooks::Hooks::short();
    }
    let clients = world.tenants();
    world.lead();
    fill(&mut world, clients);
    world.look_at_hooks();
    let begin = BEGIN + Millis::from_seconds(5);
    let end = BEGIN + Millis::from_seconds(60 * options.minutes);
    let troubles = trouble::plan(
        &mut world.rng.trouble,
        world.nodes.len(),
        begin,
        end,
        options.troubles_per_minute,
    );
    for (at, trouble) in troubles {
        world.queue.put(at, Event::Trouble(trouble));
    }
    world.queue.put(end, Event::Quiet);
    world
}

/// One host: the first two of the two main pools, the third outside, the others anywhere.
fn host(rng: &mut Rng, at: usize) -> Node {
    let pool = match at {
        0 => LOCAL,
        1 => VM,
        2 => OUTSIDE,
        _ => rng.pick(&[LOCAL, LOCAL, VM, VM, OUTSIDE]).copied().unwrap_or(LOCAL),
    };
    let kinds: &[Driver] = match pool {
        LOCAL => &[Driver::Process],
        VM => &[Driver::Gvisor],
        _ => &[Driver::Process, Driver::Gvisor],
    };
    let total = if pool == OUTSIDE { 32_768 } else { rng.between(4_000, 12_000) };
    let mut labels = BTreeMap::new();
    // The first host runs whatever its pool is asked for.
    if at == 0 || rng.chance(500) {
        labels.insert("zone".to_owned(), "a".to_owned());
    }
    let counted = if at == 0 || rng.chance(500) {
        Counted::from([("gpu".to_owned(), rng.between(1, 3))])
    } else {
        Counted::new()
    };
    Node::new(Make {
        id: host_name(at),
        pool: pool_name(pool),
        drivers: drivers(kinds),
        starts_limit: Some(u32::try_from(rng.between(1, 6)).unwrap_or(4)),
        stream_restore: rng.chance(300),
        labels,
        counted,
        regime: None,
        machine: Machine::new(Mib(total), Mib(rng.between(100, 800)), MilliCpu(8_000)),
        booted_at: Timestamp(BEGIN.0 - i64::try_from(rng.between(1_000, 1_000_000)).unwrap_or(0)),
        clock_ahead: i64::try_from(rng.between(0, 10_000)).unwrap_or(0) - 5_000,
    })
}

/// Pools, templates, endpoints and clients.
fn fill(world: &mut World, clients: Vec<Client>) {
    let mut admin = Vec::new();
    let rng = &mut world.rng.setup;
    admin.push(pool(rng, OUTSIDE));
    admin.push(pool(rng, LOCAL));
    admin.push(pool(rng, VM));
    for name in TEMPLATES {
        admin.push(Admin::PutTemplate(template(name)));
    }
    for change in admin {
        world.operate(Command::Admin(Box::new(change)));
    }
    for tenant in world.table.tenants.keys().cloned().collect::<Vec<_>>() {
        // Without one nobody hears of the quota ladder.
        if world.rng.hooks.chance(850) {
            world.put_endpoint(Some(tenant), Vec::new());
        }
    }
    for _ in 0..world.rng.hooks.between(0, 3) {
        world.new_endpoint();
    }
    for (client, state) in clients.into_iter().enumerate() {
        world.clients.push(state);
        let at = BEGIN + Millis(3_000 + world.rng.clients.below(3_000));
        world.queue.put(at, Event::Act { client });
    }
}

impl World {
    /// An endpoint of operators, or of some tenant.
    pub(super) fn new_endpoint(&mut self) {
        let tenants: Vec<TenantId> = self.oracle.rows.tenants.keys().cloned().collect();
        let rng = &mut self.rng.hooks;
        let tenant = if rng.chance(250) { None } else { rng.pick(&tenants).cloned() };
        let some = ["quota.suspended", "quota.deletion_scheduled", "sandbox.created"];
        let all = rng.chance(600);
        let events = if all { Vec::new() } else { some.map(str::to_owned).to_vec() };
        self.put_endpoint(tenant, events);
    }
}

fn pool(rng: &mut Rng, name: &str) -> Admin {
    let regimes = [Regime::WorkingSet, Regime::WorkingSet, Regime::Committed, Regime::None];
    let mut settings = PoolSettings {
        regime: rng.pick(&regimes).copied().unwrap_or(Regime::WorkingSet),
        placement: if rng.chance(300) { Placement::Pack } else { Placement::Spread },
        queue_hold_seconds: rng.between(5, 60),
        hold_ttl_seconds: rng.between(10, 90),
        ..PoolSettings::default()
    };
    match name {
        OUTSIDE => settings.external = true,
        LOCAL => {
            settings.limit = rng.chance(400).then(|| rng.between(4, 16));
            settings.max_vcpu_ratio_bp =
                rng.chance(200).then(|| plimsoll_types::BasisPoints(rng.between(5_000, 30_000)));
        }
        _ => {
            settings.limit = Some(rng.between(2, 8));
            settings.pause =
                if rng.chance(500) { PauseKind::Checkpoint } else { PauseKind::Driver };
            let modes = [PreemptionMode::Off, PreemptionMode::Idle, PreemptionMode::Lru];
            settings.preemption = Preemption {
                mode: rng.pick(&modes).copied().unwrap_or(PreemptionMode::Off),
                idle_seconds: rng.between(5, 60),
                min_run_seconds: rng.between(5, 120),
            };
            settings.preemption_protect_seconds = rng.between(0, 60);
            settings.preemption_pair_seconds = rng.between(0, 120);
        }
    }
    if name != OUTSIDE && rng.chance(500) {
        settings.overflow = vec![pool_name(OUTSIDE)];
    }
    Admin::PutPool(PoolRow { name: pool_name(name), settings })
}

fn template(name: &str) -> TemplateRow {
    let vm = name.starts_with("vm");
    let driver = if vm { Driver::Gvisor } else { Driver::Process };
    let named = TemplateName::new(name).expect("a valid name");
    let mut row = TemplateRow {
        overhead_mib: Mib(if vm { 32 } else { 0 }),
        stateful: name.ends_with("state"),
        pool: Some(pool_name(if vm { VM } else { LOCAL })),
        ..TemplateRow::new(named, driver, Mib(512))
    };
    match name {
        "heavy" => (row.memory_mib, row.overhead_mib) = (Mib(1_536), Mib(64)),
        "gpu" => row.counted = Counted::from([("gpu".to_owned(), 1)]),
        "zoned" => row.host_labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
        _ => {}
    }
    row
}
