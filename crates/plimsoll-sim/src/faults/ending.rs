//! The end of a run: with everything mended, records and fleet come to agree, queues drain, and
//! nothing is left of what is deleted.

use std::collections::BTreeMap;

use plimsoll_engine::rows::{ReservationState, Role, SandboxRow};
use plimsoll_engine::{Caller, Command, Input, Output, Read, Reply, Token};
use plimsoll_types::{Millis, SandboxId, SandboxStatus};

use super::event::Event;
use super::machine::Body;
use super::world::World;

/// How often everything that can be deleted is.
const SWEEP: Millis = Millis::from_seconds(2);

/// How long a step may be under way: the longest call of a driver, and some repeats.
const IN_TRANSIT: Millis = Millis::from_seconds(300);

/// Most of all CPU that deaths of agents may leave unbilled: a twentieth. Few runs lose any.
const LOST_SHARE: u64 = 20;

/// How long a waiter may wait while everything else is being deleted.
const DRAINED_WITHIN: Millis = Millis::from_seconds(15 * 60);

impl World {
    /// Records and fleet agree.
    pub(super) fn settled(&mut self) {
        let rows: Vec<SandboxRow> = self.table.sandboxes.values().cloned().collect();
        for row in &rows {
            if let Some(detail) = self.disagreement(row) {
                return self.oracle.break_("fleet", detail);
            }
        }
        // Nobody's use is limited any more.
        if let Some(row) =
            rows.iter().find(|row| row.paused_by.is_some() && !row.status.is_terminal())
        {
            let detail = format!("{} is {} and still paused for quota", row.id, row.status);
            return self.oracle.break_("ladder", detail);
        }
        if let Some(detail) = self.ownerless() {
            return self.oracle.break_("fleet", detail);
        }
        for pool in ["local", "vm", "outside"] {
            self.put_limit(pool, None);
        }
        self.queue.put(self.now, Event::Sweep);
        self.queue.put(self.now + DRAINED_WITHIN, Event::End);
    }

    /// What is wrong between one record and the fleet, once all is calm.
    fn disagreement(&self, row: &SandboxRow) -> Option<String> {
        let copies = self.copies(row.id);
        let live: Vec<_> = copies.iter().filter(|(_, _, body)| body.is_copy()).collect();
        let here = |wanted: &[Body]| {
            copies.iter().any(|(at, attempt, body)| {
                Some(&self.nodes[*at].id) == row.host.as_ref()
                    && *attempt == row.attempt
                    && wanted.contains(body)
            })
        };
        let agrees = match row.status {
            SandboxStatus::Queued => live.is_empty(),
            SandboxStatus::Running => here(&[Body::Running]) && live.len() == 1,
            SandboxStatus::Paused if row.slot_released => {
                here(&[Body::Checkpointed]) && live.len() == 1
            }
            SandboxStatus::Paused => here(&[Body::Frozen]) && live.len() == 1,
            SandboxStatus::Stopped => live.is_empty(),
            SandboxStatus::Terminated => copies.is_empty(),
            SandboxStatus::Failed => live.is_empty(),
            SandboxStatus::Provisioning
            | SandboxStatus::Resuming
            | SandboxStatus::Pausing
            | SandboxStatus::Terminating => self.now.since(row.status_since) < IN_TRANSIT,
        };
        if agrees {
            if self.oracle.is_deleted(row.id) && !row.status.is_terminal() {
                return Some(format!("{} was deleted and is {}", row.id, row.status));
            }
            return None;
        }
        let bodies: Vec<String> = copies
            .iter()
            .map(|(at, attempt, body)| format!("{}.{attempt} {body:?}", self.nodes[*at].id))
            .collect();
        Some(format!(
            "{} is {} (attempt {} on {:?}, released: {}, since {} s, {:?}) while there are {bodies:?}",
            row.id,
            row.status,
            row.attempt,
            row.host,
            row.slot_released,
            self.now.since(row.status_since).0 / 1000,
            row.reason
        ))
    }

    /// A guest in the world that no record owns.
    fn ownerless(&self) -> Option<String> {
        for node in &self.nodes {
            for ((id, attempt), actual) in &node.machine.guests {
                if !self.table.sandboxes.contains_key(id) {
                    return Some(format!(
                        "{id}.{attempt} is {:?} on {} and in no record",
                        actual.body, node.id
                    ));
                }
            }
        }
        None
    }

    /// Deletes everything that does not wait for a place.
    pub(super) fn sweep(&mut self) {
        let sandboxes: Vec<_> = self
            .table
            .sandboxes
            .values()
            .filter(|row| !row.status.is_terminal())
            .filter(|row| row.status != SandboxStatus::Terminating)
            .filter(|row| row.status != SandboxStatus::Queued && row.resume_requested_at.is_none())
            .map(|row| row.id)
            .collect();
        for id in sandboxes {
            self.operate(Command::Delete { id });
        }
        let reservations: Vec<_> = self
            .table
            .reservations
            .values()
            .filter(|row| row.state == ReservationState::Committed)
            .map(|row| row.id)
            .collect();
        for id in reservations {
            self.operate(Command::Release { id });
        }
        self.queue.put(self.now + SWEEP, Event::Sweep);
    }

    /// Nothing may be left.
    pub(super) fn finish(&mut self) {
        self.over = true;
        self.oracle.nothing_left();
        let now = self.now;
        self.oracle.all_delivered(&self.table, now, &self.hooks.rule);
        if self.oracle.broken.is_some() {
            return;
        }
        for node in &self.nodes {
            if let Some(((id, attempt), actual)) = node.machine.guests.first_key_value() {
                let detail =
                    format!("{id}.{attempt} is {:?} on {} at the end", actual.body, node.id);
                return self.oracle.break_("end", detail);
            }
        }
        for node in &self.nodes {
            let Some(host) = &node.host else {
                let detail = format!("the agent of {} is down at the end", node.id);
                return self.oracle.break_("end", detail);
            };
            match host.account(node.time(self.now)) {
                Ok(account) if account.charged.0 == 0 => {}
                Ok(account) => {
                    let detail = format!("{} charges for nothing: {account:?}", node.id);
                    return self.oracle.break_("I5", detail);
                }
                Err(why) => return self.oracle.break_("end", format!("{}: {why}", node.id)),
            }
        }
        if let Some(detail) = self.reserved() {
            self.oracle.break_("I5", detail);
        }
        if let Some(detail) = self.misbilled() {
            self.oracle.break_("meter", detail);
        }
        if let Some(detail) = self.miscounted() {
            self.oracle.break_("I13", detail);
        }
    }

    /// CPU is billed once, and nearly all of it: what an agent that died had not written down is
    /// nobody's.
    fn misbilled(&mut self) -> Option<String> {
        let mut used: BTreeMap<SandboxId, u64> = BTreeMap::new();
        for node in &mut self.nodes {
            node.machine.advance(self.now);
            for (id, millis) in node.machine.used() {
                *used.entry(id).or_default() += millis;
            }
        }
        let (mut all, mut billed) = (0, 0);
        for (id, used) in used {
            let own = self.table.billed(id);
            if own > used {
                return Some(format!("{id} is billed {own} ms of CPU and has used {used}"));
            }
            all += used;
            billed += own;
        }
        (billed < all - all / LOST_SHARE)
            .then(|| format!("of {all} ms of CPU that were used only {billed} are billed"))
    }

    /// Asks the engine something outside the run.
    fn ask(&mut self, question: Read) -> Option<Reply> {
        let engine = self.cell.engine.as_mut()?;
        let tenant = self.cell.config.default_tenant.clone();
        let caller = Caller { role: Role::Operator, tenant };
        let mut out = Output::default();
        let command = Command::Read(question);
        let now = engine.next_wakeup().map_or(self.now, |at| at.min(self.now));
        engine.handle(now, Input::Call { token: Token(0), caller, command }, &mut out);
        out.replies.pop().map(|(_, reply)| reply)
    }

    /// With nothing left that uses anything, what the engine says that a tenant has used in its
    /// period is what is written of it.
    fn miscounted(&mut self) -> Option<String> {
        for tenant in self.table.tenants.keys().cloned().collect::<Vec<_>>() {
            let Some(Reply::Quota(view)) = self.ask(Read::Quota(tenant.clone())) else { continue };
            let rows = self.table.usage.values();
            let rows = rows.filter(|row| row.tenant == tenant && row.hour >= view.starts_at);
            let millis: u64 = rows.map(|row| row.cpu_millis).sum();
            let [(_, cpu), ..] = view.consumption;
            if cpu.used != millis / 1_000 {
                return Some(format!("{tenant} has used {} s, written are {millis} ms", cpu.used));
            }
        }
        None
    }

    /// What the engine still holds for somebody, by its own gauges.
    fn reserved(&mut self) -> Option<String> {
        let Some(Reply::Gauges(gauges)) = self.ask(Read::Gauges) else { return None };
        for host in &gauges.hosts {
            if host.reserved_mib.0 > 0 || host.reserved > 0 || host.committed > 0 {
                return Some(format!("the cell still holds something on {}: {host:?}", host.host));
            }
        }
        for pool in &gauges.pools {
            let waiting = pool.waiting_create + pool.waiting_resume;
            if pool.held + pool.released + waiting > 0 {
                return Some(format!("pool {} still holds or waits: {pool:?}", pool.row.name));
            }
        }
        (gauges.counts.parked > 0).then(|| "requests are parked at the end".to_owned())
    }
}
