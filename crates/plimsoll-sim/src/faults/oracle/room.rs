//! I2, I3 and I4: slots of pools, and what hosts have room for.

use std::sync::Arc;

use plimsoll_engine::rows::DecisionRow;
use plimsoll_policy::charge::{Shape, thawed_charge};
use plimsoll_types::{
    ClaimId, Counted, Fence, GuestSpec, HostId, PoolName, Regime, SandboxId, SandboxStatus,
    Timestamp,
};

use super::super::node::Node;
use super::{Begun, Charge, Known, Oracle};

impl Oracle {
    pub(super) fn thaw_charge(&self, known: &Known, id: &SandboxId) -> i64 {
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

    pub(super) fn pool_within_limit(&mut self, pool: &PoolName) {
        let limit = self.rows.pools.get(pool).and_then(|pool| pool.settings.limit);
        let held = self.slots_held(pool);
        if let Some(limit) = limit
            && held > limit
        {
            self.break_("I2", format!("pool {pool} holds {held} slots of {limit}"));
        }
    }

    pub(super) fn slots_held(&self, pool: &PoolName) -> u64 {
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
    pub(super) fn host_within_counted(&mut self, host: &HostId, object: ClaimId) {
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
    pub(super) fn host_within_budget(&mut self, host: &HostId, row: &DecisionRow) {
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
    pub(in super::super) fn started(
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
}

/// Whether a sandbox in this state takes a slot of its pool: written down here once more, so that
/// the policy's own table is held against another.
pub(super) const fn takes_slot(status: SandboxStatus, released: bool) -> bool {
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
pub(super) const fn holds_memory(status: SandboxStatus, released: bool) -> bool {
    match status {
        SandboxStatus::Provisioning
        | SandboxStatus::Running
        | SandboxStatus::Pausing
        | SandboxStatus::Resuming => true,
        SandboxStatus::Paused | SandboxStatus::Terminating => !released,
        _ => false,
    }
}
