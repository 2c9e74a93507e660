//! What must hold, looked at from outside: from the rows, answers and commands that leave the
//! engine, and from what is really on the machines. Nothing here reads the engine's own sums.

mod credit;
mod delivery;
mod fresh;
mod ladder;
mod limits;
mod room;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_engine::rows::{Change, DecisionRow, ReservationState, SandboxRow, Verb};
use plimsoll_engine::{Effect, Output, Reply};
use plimsoll_types::{
    ClaimId, Counted, DecisionId, GuestReport, HostId, HostOutcome, HostReport, Mib, Millis,
    PoolName, RefusalCode, Regime, ReservationId, SandboxId, SandboxStatus, Timestamp,
};

use self::credit::Credit;
use self::delivery::Deliveries;
pub(super) use self::ladder::Books;
use self::room::{holds_memory, takes_slot};
use super::client::Answer;
use super::hosts::takes_memory;
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
    /// What receivers of webhooks got.
    pub(super) deliveries: Deliveries,
    credit: Credit,
    /// Where tenants stand with what they use up.
    pub(super) books: Books,
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
        self.doubt_credit(now);
        self.reopen_books(now);
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
        self.advance_credit(now);
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
        self.open_books(now);
        for change in &out.changes {
            self.look_at_change(now, change, outcome, stats);
        }
        self.close_books(now, stats);
        if !out.changes.is_empty() {
            self.note_use();
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
        now: Timestamp,
        change: &Change,
        outcome: Option<&(SandboxId, HostOutcome)>,
        stats: &mut Stats,
    ) {
        match change {
            Change::Sandbox(row) => {
                self.look_at_sandbox(row, outcome);
                self.book_sandbox(now, row);
                match self.rows.sandboxes.get(&row.id).cloned() {
                    None => self.made(now, row),
                    Some(before) if row.status.is_terminal() => self.unmade(Some(&before), row.id),
                    Some(_) => {}
                }
            }
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
            Change::Endpoint(row) => self.deliveries.endpoint(row),
            Change::Event(row) if self.rows.last_event.is_some_and(|last| row.id <= last) => {
                self.break_("I11", format!("{} does not come after the last event", row.id));
            }
            Change::Event(row) => self.book_event(row, stats),
            Change::Usage(row) => self.book_usage(now, row),
            _ => {}
        }
        if let Change::SandboxGone(id) = change {
            let before = self.rows.sandboxes.get(id).cloned();
            self.unmade(before.as_ref(), *id);
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
                    self.admitted_within_budget(now, row);
                }
                Some(_) => {
                    stats.refusals += 1;
                    self.refused_for_quota(row);
                    self.refused_for_budget(row);
                }
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
            self.within_credit(row);
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
