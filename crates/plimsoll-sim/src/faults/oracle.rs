//! What must hold, looked at from outside: from the rows, answers and commands that leave the
//! engine, and from what is really on the machines. Nothing here reads the engine's own sums.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_engine::rows::{
    Change, ConcurrencyLimits, DecisionRow, Limit, ReservationState, SandboxRow, Verb,
};
use plimsoll_engine::{Effect, Output, Reply};
use plimsoll_policy::charge::{Shape, thawed_charge};
use plimsoll_types::{
    ClaimId, Counted, DecisionId, Fence, GuestReport, GuestSpec, HostId, HostOutcome, HostReport,
    Mib, Millis, PoolName, RefusalCode, Regime, ReservationId, SandboxId, SandboxStatus, TenantId,
    Timestamp,
};

use super::client::Answer;
use super::hosts::takes_memory;
use super::node::Node;
use super::table::Table;
use super::{Failure, Stats};

/// What the cell knows of a host: its last report that was taken.
#[derive(Clone, Debug)]
struct Known {
    admittable: Option<i64>,
    regime: Regime,
    counted: Counted,
    listed: BTreeSet<ReservationId>,
    /// What each guest is charged and holds.
    guests: BTreeMap<SandboxId, (Mib, Mib)>,
}

/// Most commands about one guest in one minute. Clients and repeats come to some dozens; a cell
/// and a host that answer each other without end come to thousands.
const COMMANDS_A_MINUTE_MAX: u32 = 240;

/// A guest's last command that makes it take memory.
#[derive(Clone, Debug)]
struct Begun {
    host: HostId,
    number: u64,
    charge: Charge,
    /// A report has accounted for it: from then on it is in its host's own figure, also when an
    /// agent that is started anew no longer knows how far it had come.
    counted: bool,
}

/// What such a command adds to its host.
#[derive(Clone, Copy, Debug)]
enum Charge {
    /// So much.
    All(i64),
    /// What a frozen guest comes to once it runs again, less what its host charges for it frozen.
    Thaw,
}

/// What the last change of a sandbox's row has taken.
#[derive(Clone, Copy, Debug)]
struct Step {
    id: SandboxId,
    slot: bool,
    memory: bool,
}

impl Step {
    const fn nothing(id: SandboxId) -> Self {
        Self { id, slot: false, memory: false }
    }
}

/// Everything that is remembered for the sake of checking.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    /// The rows as the engine holds them: durable ones and those on their way.
    pub(super) rows: Table,
    pub(super) broken: Option<Failure>,
    known: BTreeMap<HostId, Known>,
    begun: BTreeMap<SandboxId, Begun>,
    step: Option<Step>,
    /// Whether the last change lets a frozen guest run again.
    thaws: bool,
    acknowledged: BTreeSet<ClaimId>,
    deleted: BTreeSet<SandboxId>,
    decisions: BTreeSet<DecisionId>,
    /// Commands about each guest in the minute that began then.
    commands: BTreeMap<SandboxId, (Timestamp, u32)>,
    /// When each host was last heard of, by the cell's clock, and when the cell took the lead.
    heard: BTreeMap<HostId, Timestamp>,
    led_at: Timestamp,
    /// Whether the cell lets so few requests wait for hosts to answer that others are refused
    /// without.
    pub(super) parks_few: bool,
    /// The place of each host's last report that was taken: incarnation and sequence.
    order: BTreeMap<HostId, (u64, u64)>,
    /// When each host was last asked afresh.
    asked: BTreeMap<HostId, Timestamp>,
}

impl Oracle {
    pub(super) fn break_(&mut self, id: &str, detail: String) {
        if self.broken.is_none() {
            self.broken = Some(Failure { invariant: id.to_owned(), detail, ..Failure::default() });
        }
    }

    /// The engine is made anew from the store: what was not durable is forgotten, what was
    /// acknowledged must be there.
    pub(super) fn restarted(&mut self, now: Timestamp, table: &Table) {
        self.heard.clear();
        self.order.clear();
        self.led_at = now;
        self.rows = table.clone();
        self.known.clear();
        self.asked.clear();
        let missing: Vec<String> = self
            .acknowledged
            .iter()
            .filter(|id| match id {
                ClaimId::Sandbox(id) => !table.sandboxes.contains_key(id),
                ClaimId::Reservation(id) => !table.reservations.contains_key(id),
            })
            .map(ToString::to_string)
            .collect();
        if let Some(first) = missing.first() {
            self.break_("I6", format!("{first} was acknowledged and is lost by a restart"));
        }
        // Commands that were never durable never left.
        let durable = |id: &SandboxId, begun: &mut Begun| {
            table.sandboxes.get(id).is_some_and(|row| {
                row.host.as_ref() == Some(&begun.host) && row.fence.number >= begun.number
            })
        };
        self.begun.retain(durable);
        // What has come back in place of them is under way still.
        for row in table.sandboxes.values() {
            if row.status == SandboxStatus::Provisioning
                && let Some(host) = &row.host
                && !self.begun.contains_key(&row.id)
            {
                let charge = Charge::All(row.charge_mib.signed());
                let (host, number) = (host.clone(), row.fence.number);
                self.begun.insert(row.id, Begun { host, number, charge, counted: false });
            }
        }
    }

    /// A caller is told something.
    pub(super) fn acknowledge(&mut self, answer: &Answer) {
        match answer {
            Answer::Sandbox { id, .. } => {
                self.acknowledged.insert(ClaimId::Sandbox(*id));
            }
            Answer::Reservations(ids) => {
                self.acknowledged.extend(ids.iter().map(|id| ClaimId::Reservation(*id)));
            }
            _ => {}
        }
    }

    /// A caller knows that it has deleted this.
    pub(super) fn deleted(&mut self, id: SandboxId) {
        self.deleted.insert(id);
    }

    pub(super) fn is_deleted(&self, id: SandboxId) -> bool {
        self.deleted.contains(&id)
    }

    /// The cell has taken this report.
    pub(super) fn reported(&mut self, now: Timestamp, report: &HostReport) {
        self.heard.insert(report.host.clone(), now);
        // Public failure H6.
        let order = (report.incarnation.unwrap_or(0), report.sequence);
        let last = self.order.insert(report.host.clone(), order).unwrap_or_default();
        if order <= last {
            let detail = format!("{}: the report {order:?} was taken after {last:?}", report.host);
            self.break_("order", detail);
        }
        let mut listed: BTreeSet<ReservationId> = report.reservations.iter().copied().collect();
        listed.extend(report.guests.iter().filter_map(|guest| match guest.id {
            ClaimId::Reservation(id) => Some(id),
            ClaimId::Sandbox(_) => None,
        }));
        let known = Known {
            admittable: report.memory_mib_admittable,
            regime: report.memory_admission.unwrap_or(Regime::WorkingSet),
            counted: report.counted.clone(),
            listed,
            guests: report.guests.iter().filter_map(charged).collect(),
        };
        for begun in self.begun.values_mut() {
            let through = report.seen_through.is_none_or(|through| begun.number <= through);
            begun.counted |= begun.host == report.host && through;
        }
        self.known.insert(report.host.clone(), known);
    }

    /// Looks at everything that one input has led to.
    pub(super) fn look(
        &mut self,
        now: Timestamp,
        out: &Output,
        outcome: Option<&(SandboxId, HostOutcome)>,
        stats: &mut Stats,
    ) {
        for effect in &out.effects {
            match effect {
                Effect::HostCommand { command, .. } => {
                    stats.commands += 1;
                    self.commanded(now, command.op.guest());
                }
                Effect::ProbeHost { host, .. } => {
                    self.asked.insert(host.clone(), now);
                }
                _ => {}
            }
        }
        for change in &out.changes {
            self.look_at_change(change, outcome, stats);
        }
        // A command that is sent again takes memory under its new number.
        for effect in &out.effects {
            if let Effect::HostCommand { host, command, .. } = effect
                && takes_memory(&command.op)
                && let Some(begun) = self.begun.get_mut(&command.op.guest())
                && begun.host == *host
            {
                begun.counted &= begun.number >= command.fence.number;
                begun.number = begun.number.max(command.fence.number);
            }
        }
        self.refusals_are_fresh(now, out);
        for (_, reply) in &out.replies {
            if let Reply::Refused(refusal) = reply
                && refusal.code.is_capacity()
                && refusal.code != RefusalCode::Degraded
                && !refusal.detail.contains("all slots are held")
                && let Some(counts) = &refusal.counts
            {
                let unsure =
                    counts.filtered.stale + counts.filtered.unknown + counts.filtered.set_aside;
                let recently = Millis(2_200);
                let asked = self.asked.values().any(|at| now.since(*at) <= recently);
                if unsure > 0 && !asked && !refusal.unprobed {
                    let detail = format!(
                        "refused ({}) with {unsure} unsure hosts, none asked: {}",
                        refusal.code, refusal.detail
                    );
                    self.break_("I8", detail);
                }
            }
        }
        for observation in &out.observations {
            if let plimsoll_engine::Observation::Violation(id) = observation {
                self.break_(id, "the engine has seen it itself".to_owned());
            }
        }
    }

    /// I8, host by host: each host of the request's own pool that has been silent for too long, or
    /// since the cell took the lead, was asked a moment ago before anybody was refused for want of
    /// room.
    fn refusals_are_fresh(&mut self, now: Timestamp, out: &Output) {
        let unprobed = out
            .replies
            .iter()
            .any(|(_, reply)| matches!(reply, Reply::Refused(refusal) if refusal.unprobed));
        let decided = out.changes.iter().find_map(|change| match change {
            Change::Decision(row) if row.object.is_none() && row.verb == Verb::Create => Some(row),
            _ => None,
        });
        // Only so many requests may wait for hosts to answer; beyond that a refusal says so.
        let Some(row) = decided.filter(|_| !(unprobed && self.parks_few)) else { return };
        let refused = row.code.is_some_and(|code| {
            code.is_capacity() && code != RefusalCode::Degraded && code != RefusalCode::Overloaded
        });
        let Some(pool) = row.pool.as_ref().filter(|_| refused) else { return };
        let Some(settings) = self.rows.pools.get(pool).map(|row| &row.settings) else { return };
        // Where every slot is held, or kept for a waiter, no host's word would change anything; nor
        // would that of a host that does not run such a thing at all, and which one that is the
        // rows do not tell.
        let unsuited = row.counts.filtered.labels + row.counts.filtered.driver;
        // A host's own refusal, passed on, counts no hosts.
        if settings.limit.is_some() || unsuited > 0 || row.counts.hosts == 0 {
            return;
        }
        let (stale, dead) = (
            Millis::from_seconds(settings.stale_seconds),
            Millis::from_seconds(settings.dead_seconds),
        );
        // One that was asked just before a request came is not asked for it again, and its answer
        // is older than the others' when they are in: the refusal says so too.
        let recently = if unprobed { Millis(10_000) } else { Millis(2_200) };
        // Likewise one that fell silent while the others were being asked.
        let stale = if unprobed { Millis(stale.0 + 3_000) } else { stale };
        let silent = self.rows.hosts.values().find(|host| {
            let age = now.since(self.heard.get(&host.id).copied().unwrap_or(self.led_at));
            let never = !self.heard.contains_key(&host.id);
            let asked = self.asked.get(&host.id);
            host.pool == *pool
                && !host.draining
                && host.address.is_some()
                && (never || age > stale)
                && age <= dead
                && asked.is_none_or(|at| now.since(*at) > recently)
        });
        if let Some(host) = silent {
            let detail = format!("{} refused while {} was silent and not asked", row.id, host.id);
            self.break_("I8", detail);
        }
    }

    fn commanded(&mut self, now: Timestamp, id: SandboxId) {
        let (since, number) = self.commands.entry(id).or_insert((now, 0));
        if now.since(*since) > Millis::from_seconds(60) {
            (*since, *number) = (now, 0);
        }
        *number += 1;
        if *number > COMMANDS_A_MINUTE_MAX {
            let detail = format!("{number} commands about {id} within a minute");
            self.break_("storm", detail);
        }
    }

    fn look_at_change(
        &mut self,
        change: &Change,
        outcome: Option<&(SandboxId, HostOutcome)>,
        stats: &mut Stats,
    ) {
        match change {
            Change::Sandbox(row) => self.look_at_sandbox(row, outcome),
            Change::SandboxGone(id) if self.acknowledged.contains(&ClaimId::Sandbox(*id)) => {
                self.break_("I6", format!("{id} was acknowledged and is forgotten"));
            }
            Change::Reservation(row)
                if row.state != ReservationState::Reserved
                    && !self.rows.reservations.contains_key(&row.id) =>
            {
                let detail = format!("{} is {} and never was told", row.id, row.state.as_str());
                self.break_("I5", detail);
            }
            Change::Reservation(row) if !self.rows.reservations.contains_key(&row.id) => {
                let twin = self.rows.reservations.values().find(|other| {
                    other.state.holds() && other.tenant == row.tenant && other.key == row.key
                });
                if let Some(twin) = twin {
                    let detail = format!("the key {} has made {} and {}", row.key, twin.id, row.id);
                    self.break_("I6", detail);
                }
            }
            Change::Event(row) if self.rows.last_event.is_some_and(|last| row.id <= last) => {
                self.break_("I11", format!("{} does not come after the last event", row.id));
            }
            _ => {}
        }
        // A decision is about the rows before it.
        if let Change::Decision(row) = change {
            if !self.decisions.insert(row.id) && row.code.is_none() {
                // A request that was queued and is then admitted keeps its id; two admissions
                // under one id never.
                stats.decisions_again += 1;
            }
            match row.code {
                None => {
                    stats.admitted += 1;
                    self.admitted(row);
                }
                Some(_) => stats.refusals += 1,
            }
        }
        self.rows.apply(change);
    }

    fn look_at_sandbox(&mut self, row: &SandboxRow, outcome: Option<&(SandboxId, HostOutcome)>) {
        let before = self.rows.sandboxes.get(&row.id);
        self.thaws = before
            .filter(|before| before.status == SandboxStatus::Paused && !before.slot_released)
            .is_some_and(|_| row.status == SandboxStatus::Resuming);
        let mut broken = None;
        if row.status == SandboxStatus::Failed
            && let Some((id, HostOutcome::Refused { code, .. })) = outcome
            && *id == row.id
            && before.is_some_and(|before| before.status != SandboxStatus::Failed)
        {
            let detail = format!("{id} has failed for a refusal of its host ({code})");
            broken = Some(("I7", detail));
        }
        if before.is_none()
            && let Some(key) = &row.key
        {
            let fork = row.spec.fork_of.is_some();
            let twin = self.rows.sandboxes.values().find(|other| {
                other.tenant == row.tenant
                    && other.key.as_ref() == Some(key)
                    && other.spec.fork_of.is_some() == fork
                    && !other.status.is_terminal()
            });
            if let Some(twin) = twin {
                let detail = format!("the key {key} has made {} and {}", twin.id, row.id);
                broken = Some(("I6", detail));
            }
        }
        let memory = |row: &SandboxRow| holds_memory(row.status, row.slot_released);
        let slot = |row: &SandboxRow| takes_slot(row.status, row.slot_released);
        self.step = Some(Step {
            id: row.id,
            slot: slot(row) && !before.is_some_and(slot),
            memory: memory(row) && !before.is_some_and(memory),
        });
        if !memory(row) {
            self.begun.remove(&row.id);
        }
        if let Some((id, detail)) = broken {
            self.break_(id, detail);
        }
    }

    /// An admission: its rows stand before it.
    fn admitted(&mut self, row: &DecisionRow) {
        // What the sandbox that this is about has just taken; a reservation takes everything.
        let step = match row.object {
            Some(ClaimId::Sandbox(id)) => {
                Some(self.step.filter(|step| step.id == id).unwrap_or(Step::nothing(id)))
            }
            _ => None,
        };
        // A resume adds nothing, and is let through above a limit that was lowered meanwhile.
        if row.verb != Verb::Resume {
            self.tenant_within_limits(&row.tenant);
        }
        let Some(object) = row.object else { return };
        let mut hosts: BTreeSet<HostId> = row.host.iter().cloned().collect();
        let mut pools: BTreeSet<PoolName> = row.pool.iter().cloned().collect();
        match object {
            ClaimId::Sandbox(id) => {
                // A guest that is frozen in memory takes what its reserve, begun anew, adds.
                let charge = match step {
                    Some(step) if step.memory => Charge::All(row.charge_mib.signed()),
                    _ if self.thaws => Charge::Thaw,
                    _ => Charge::All(0),
                };
                if let (Some(host), Some(sandbox)) = (&row.host, self.rows.sandboxes.get(&id)) {
                    let number = sandbox.fence.number;
                    let begun = Begun { host: host.clone(), number, charge, counted: false };
                    self.begun.insert(id, begun);
                }
            }
            ClaimId::Reservation(_) => {
                // Those of a batch may have gone to several.
                let made = self
                    .rows
                    .reservations
                    .values()
                    .filter(|held| held.decision_id == row.id && held.state.holds());
                (hosts, pools) = made.map(|held| (held.host.clone(), held.pool.clone())).unzip();
            }
        }
        if step.is_none_or(|step| step.slot) {
            for pool in pools {
                self.pool_within_limit(&pool);
            }
        }
        if step.is_none_or(|step| step.memory) || self.thaws {
            for host in hosts {
                self.host_within_budget(&host, row);
                if !self.thaws {
                    self.host_within_counted(&host, object);
                }
            }
        }
    }

    fn thaw_charge(&self, known: &Known, id: &SandboxId) -> i64 {
        let Some(row) = self.rows.sandboxes.get(id) else { return 0 };
        let pool = row.pool.as_ref().and_then(|pool| self.rows.pools.get(pool));
        let Some(pool) = pool else { return 0 };
        let shape = Shape {
            memory: row.memory_mib,
            overhead: row.overhead_mib,
            vcpus: row.vcpus,
            stateful: row.stateful,
        };
        let (charge, held) = known.guests.get(id).copied().unwrap_or_default();
        let thawed = thawed_charge(known.regime, &pool.settings.reserve, &shape, held);
        thawed.saturating_sub(charge).signed()
    }

    fn tenant_within_limits(&mut self, tenant: &TenantId) {
        let Some(limits) = self.limits(tenant) else { return };
        let mut used = [0_u64; 3];
        let mut add = |memory: u64, vcpus: u64| {
            used[0] += 1;
            used[1] += vcpus;
            used[2] += memory;
        };
        for row in self.rows.sandboxes.values() {
            if row.tenant == *tenant && row.status.counts_for_quota() {
                add(row.memory_mib.0, row.vcpus.0);
            }
        }
        for row in self.rows.reservations.values() {
            if row.tenant == *tenant && row.state.holds() {
                add(row.memory_mib.0, row.vcpus.0);
            }
        }
        let names = ["sandboxes", "vcpus", "memory_mib"];
        let limits = [limits.sandboxes, limits.vcpus, limits.memory_mib];
        for ((name, used), limit) in names.into_iter().zip(used).zip(limits) {
            let ceiling = limit.limit.map(|limit_| limit.burst_limit.unwrap_or(limit_).max(limit_));
            if let Some(ceiling) = ceiling
                && used > ceiling
            {
                self.break_("I1", format!("{tenant} holds {used} {name} of {ceiling}"));
            }
        }
    }

    fn limits(&self, tenant: &TenantId) -> Option<ConcurrencyLimits> {
        let row = self.rows.tenants.get(tenant)?;
        let plan = &self.rows.plans.get(&row.plan)?.limits.concurrency;
        let own = &row.overrides.concurrency;
        let pick = |plan: Limit, own: Limit| if own.limit.is_some() { own } else { plan };
        Some(ConcurrencyLimits {
            sandboxes: pick(plan.sandboxes, own.sandboxes),
            vcpus: pick(plan.vcpus, own.vcpus),
            memory_mib: pick(plan.memory_mib, own.memory_mib),
        })
    }

    fn pool_within_limit(&mut self, pool: &PoolName) {
        let limit = self.rows.pools.get(pool).and_then(|pool| pool.settings.limit);
        let held = self.slots_held(pool);
        if let Some(limit) = limit
            && held > limit
        {
            self.break_("I2", format!("pool {pool} holds {held} slots of {limit}"));
        }
    }

    fn slots_held(&self, pool: &PoolName) -> u64 {
        let sandboxes = self
            .rows
            .sandboxes
            .values()
            .filter(|row| row.pool.as_ref() == Some(pool))
            .filter(|row| takes_slot(row.status, row.slot_released));
        let reservations =
            self.rows.reservations.values().filter(|row| row.pool == *pool && row.state.holds());
        u64::try_from(sandboxes.count() + reservations.count()).unwrap_or(u64::MAX)
    }

    /// What the host said that is free of a counted resource covers what has been given out since
    /// (public failure M3).
    fn host_within_counted(&mut self, host: &HostId, object: ClaimId) {
        let ClaimId::Sandbox(asks) = object else { return };
        let Some(asks) = self.rows.sandboxes.get(&asks).map(|row| Arc::clone(&row.spec)) else {
            return;
        };
        let Some(known) = self.known.get(host) else { return };
        let mut given = Counted::new();
        for (id, begun) in &self.begun {
            let new = begun.host == *host && !begun.counted;
            let Some(row) = self.rows.sandboxes.get(id) else { continue };
            if new && matches!(begun.charge, Charge::All(charge) if charge > 0) {
                let names = row.spec.counted.iter();
                for (name, amount) in names.filter(|(name, _)| asks.counted.contains_key(*name)) {
                    *given.entry(name.clone()).or_default() += amount;
                }
            }
        }
        let short = given.iter().find(|(name, amount)| {
            known.counted.get(*name).copied().unwrap_or_default() < **amount
        });
        if let Some((name, amount)) = short {
            let free = known.counted.get(name).copied().unwrap_or_default();
            let detail = format!("{host} has {free} {name} free and {amount} are given out since");
            self.break_("I3", detail);
        }
    }

    /// I3: what the host said that it still admits covers everything that it cannot have counted.
    fn host_within_budget(&mut self, host: &HostId, row: &DecisionRow) {
        // A frozen guest goes on where it is; its host decides when the cell cannot.
        if self.thaws && self.known.get(host).and_then(|known| known.admittable).is_none() {
            return;
        }
        let Some(known) = self.known.get(host) else {
            let detail = format!("{} goes to {host}, which has not reported", row.id);
            return self.break_("I3", detail);
        };
        // There anything goes but new state.
        let all_goes = known.regime == Regime::None;
        if all_goes && (self.thaws || (!row.stateful && row.items <= 1)) {
            return;
        }
        let Some(admittable) = known.admittable else {
            let detail = format!("{} goes to {host}, which admits nothing", row.id);
            return self.break_("I3", detail);
        };
        let since: Vec<(SandboxId, &Begun)> = self
            .begun
            .iter()
            .filter(|(_, begun)| begun.host == *host && !begun.counted)
            .map(|(id, begun)| (*id, begun))
            .collect();
        let charge = |id: &SandboxId, begun: &Begun| match begun.charge {
            Charge::All(charge) => charge,
            Charge::Thaw => self.thaw_charge(known, id),
        };
        let guests: i64 = since.iter().map(|(id, begun)| charge(id, begun)).sum();
        let made = || self.rows.reservations.values().filter(|held| held.decision_id == row.id);
        let last = made()
            .filter(|held| held.host == *host && (held.stateful || !all_goes))
            .map(|held| held.id)
            .max();
        if all_goes && row.items > 1 && last.is_none() {
            return;
        }
        let held: i64 = self
            .rows
            .reservations
            .values()
            .filter(|held| held.host == *host && held.state.holds())
            .filter(|held| !known.listed.contains(&held.id))
            // Of a batch, what came after the last of it that has to fit was not in its way.
            .filter(|held| held.decision_id != row.id || Some(held.id) <= last)
            .map(|held| held.charge_mib.signed())
            .sum();
        let adds = match row.object {
            Some(ClaimId::Sandbox(id)) if self.thaws => self.thaw_charge(known, &id),
            _ => row.charge_mib.signed(),
        };
        if adds > 0 && guests + held > admittable {
            let each: Vec<String> = since
                .iter()
                .map(|(id, begun)| format!("{} for {id} by {}", charge(id, begun), begun.number))
                .collect();
            let detail = format!(
                "{host} admits {admittable} MiB; {guests} for guests and {held} for reservations \
                 are given out since, {} of it now: {}",
                row.charge_mib.0,
                each.join(", ")
            );
            self.break_("I3", detail);
        }
    }

    /// A host begins a start.
    pub(super) fn started(
        &mut self,
        node: &mut Node,
        now: Timestamp,
        fence: Fence,
        guest: &GuestSpec,
    ) {
        if fence.epoch < node.fence.epoch {
            let detail = format!("{} began {fence:?} after {:?}", node.id, node.fence);
            self.break_("fence", detail);
        }
        node.fence = node.fence.max(fence);
        let time = node.time(now);
        let Some(host) = &node.host else { return };
        if host.regime() == Regime::None && !guest.stateful {
            return;
        }
        match host.account(time) {
            Ok(account) => {
                // The guest is in the sum already.
                if account.admittable < 0 {
                    let detail =
                        format!("{} starts {} over its budget: {account:?}", node.id, guest.id);
                    self.break_("I3", detail);
                }
                if account.stateful.signed() > account.budget && guest.stateful {
                    let detail = format!("{} holds more state than memory: {account:?}", node.id);
                    self.break_("I4", detail);
                }
            }
            Err(why) => {
                let detail = format!("{} starts {} and does not know: {why}", node.id, guest.id);
                self.break_("I3", detail);
            }
        }
    }

    /// Nothing may hold any more.
    pub(super) fn nothing_left(&mut self) {
        let sandbox = self.rows.sandboxes.values().find(|row| !row.status.is_terminal());
        let reservation = self.rows.reservations.values().find(|row| {
            matches!(row.state, ReservationState::Reserved | ReservationState::Committed)
        });
        if let Some(row) = sandbox {
            let detail = format!(
                "{} is {} at the end ({})",
                row.id,
                row.status,
                row.reason.as_deref().unwrap_or("no reason")
            );
            self.break_("end", detail);
        } else if let Some(row) = reservation {
            let detail = format!("{} is {} at the end", row.id, row.state.as_str());
            self.break_("I5", detail);
        }
    }
}

fn charged(guest: &GuestReport) -> Option<(SandboxId, (Mib, Mib))> {
    match guest.id {
        ClaimId::Sandbox(id) => {
            Some((id, (guest.charge_mib, guest.resident_mib.unwrap_or_default())))
        }
        ClaimId::Reservation(_) => None,
    }
}

/// Whether a sandbox in this state takes a slot of its pool: written down here once more, so that
/// the policy's own table is held against another.
const fn takes_slot(status: SandboxStatus, released: bool) -> bool {
    match status {
        SandboxStatus::Provisioning
        | SandboxStatus::Running
        | SandboxStatus::Pausing
        | SandboxStatus::Resuming => true,
        SandboxStatus::Paused | SandboxStatus::Stopped | SandboxStatus::Terminating => !released,
        SandboxStatus::Queued | SandboxStatus::Terminated | SandboxStatus::Failed => false,
    }
}

/// Whether a guest in this state takes memory that a command has asked for.
const fn holds_memory(status: SandboxStatus, released: bool) -> bool {
    match status {
        SandboxStatus::Provisioning
        | SandboxStatus::Running
        | SandboxStatus::Pausing
        | SandboxStatus::Resuming => true,
        SandboxStatus::Paused | SandboxStatus::Terminating => !released,
        _ => false,
    }
}
