//! The sums beside the records. Every change of a record that a sum depends on goes through here,
//! so that no counter can drift from what it counts.

use std::sync::Arc;

use plimsoll_policy::slots::holds_slot;
use plimsoll_types::{HostId, SandboxStatus, Timestamp};

use super::Engine;
use super::state::{Claim, Ix, Pending, Sandbox, Use};
use crate::output::{Effect, Output};
use crate::rows::{Change, SandboxRow};

/// What one sandbox adds to the sums of its tenant and its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    quota: Option<Use>,
    held: bool,
    released: bool,
    occupies: bool,
    queued: bool,
}

fn share(sandbox: &Sandbox) -> Share {
    let row = &sandbox.row;
    let quota = row.status.counts_for_quota().then(|| Use::one(row.memory_mib, row.vcpus));
    let held = holds_slot(row.status, row.slot_released);
    let released = row.status == SandboxStatus::Paused && row.slot_released;
    let queued = row.status == SandboxStatus::Queued;
    Share { quota, held, released, occupies: occupies(sandbox), queued }
}

/// Whether a sandbox takes memory and CPU of its host: from its admission until it has left it.
pub(super) fn occupies(sandbox: &Sandbox) -> bool {
    let row = &sandbox.row;
    match row.status {
        SandboxStatus::Provisioning
        | SandboxStatus::Running
        | SandboxStatus::Pausing
        | SandboxStatus::Resuming => true,
        SandboxStatus::Paused | SandboxStatus::Terminating => !row.slot_released,
        SandboxStatus::Stopped => sandbox.stopping,
        SandboxStatus::Queued | SandboxStatus::Terminated | SandboxStatus::Failed => false,
    }
}

impl Engine {
    /// Changes a sandbox's record and every sum that follows from it, writes it, and tells
    /// whoever waits for it.
    pub(super) fn change(
        &mut self,
        now: Timestamp,
        ix: Ix,
        out: &mut Output,
        change: impl FnOnce(&mut SandboxRow),
    ) {
        self.change_whole(now, ix, out, |sandbox| change(&mut sandbox.row));
    }

    /// The same where more than the row decides what is held.
    pub(super) fn change_whole(
        &mut self,
        now: Timestamp,
        ix: Ix,
        out: &mut Output,
        change: impl FnOnce(&mut Sandbox),
    ) {
        let sandbox = &mut self.sandboxes[ix];
        let before = share(sandbox);
        let status = sandbox.row.status;
        change(sandbox);
        let moved = sandbox.row.status != status;
        if moved {
            sandbox.row.status_since = now;
            // What is being undone is a start; once it is over, or wanted no more, nothing is.
            // Likewise nothing is being stopped that is in any other state by now.
            sandbox.undoing = false;
            sandbox.stopping &= sandbox.row.status == SandboxStatus::Stopped;
            if sandbox.row.status.is_terminal() {
                sandbox.row.ended_at = Some(now);
            }
        }
        if sandbox.row.status == SandboxStatus::Running {
            sandbox.row.paused_by = None;
        }
        let after = share(sandbox);
        self.settle(now, ix, before, after, out);
        self.recount(ix);
        self.remeter(now, ix);
        self.write(ix, out);
        if moved {
            let row = &self.sandboxes[ix].row;
            out.effects.push(Effect::SandboxChanged {
                id: row.id,
                status: Some(row.status),
                refusal: None,
            });
            let over = row.status.is_terminal();
            self.arm_sandbox(now, ix);
            if over {
                self.leave_host(ix);
                self.ended.push_back((now, Claim::Sandbox(ix)));
            }
        }
    }

    /// Counts a record that has just been put in; one that waits was counted as such by that.
    pub(super) fn count_in(&mut self, ix: Ix) {
        let sandbox = &self.sandboxes[ix];
        let created_at = sandbox.row.created_at;
        let after = share(sandbox);
        let none = Share {
            quota: None,
            held: false,
            released: false,
            occupies: false,
            queued: after.queued,
        };
        let mut unused = Output::default();
        self.settle(created_at, ix, none, after, &mut unused);
        self.recount(ix);
    }

    fn settle(&mut self, now: Timestamp, ix: Ix, before: Share, after: Share, out: &mut Output) {
        if before == after {
            return;
        }
        let (tenant, pool, host) = {
            let sandbox = &self.sandboxes[ix];
            (sandbox.tenant, sandbox.pool, sandbox.host)
        };
        let mut whole = true;
        whole &= step(&mut self.totals.live, before.quota.is_some(), after.quota.is_some());
        whole &= step(&mut self.totals.queued, before.queued, after.queued);
        if before.quota != after.quota {
            if before.quota.is_none() {
                self.join_tenant(tenant, Claim::Sandbox(ix));
            } else if after.quota.is_none() {
                self.leave_tenant(tenant, Claim::Sandbox(ix));
            }
            let state = &mut self.tenants[tenant];
            if let Some(gone) = before.quota {
                whole &= state.give_up(now, gone);
            }
            if let Some(come) = after.quota {
                state.take_on(now, come);
            }
            self.moved(now, tenant);
        }
        if let Some(pool) = pool {
            let freed = before.held && !after.held;
            let pool_state = &mut self.pools[pool];
            whole &= step(&mut pool_state.held, before.held, after.held);
            whole &= step(&mut pool_state.released, before.released, after.released);
            if freed {
                pool_state.releases.count(now);
            }
            if freed || (before.quota.is_some() && after.quota.is_none()) {
                self.stir(pool);
            }
        }
        if let Some(host) = host
            && before.occupies != after.occupies
        {
            self.occupy(ix, host, after.occupies);
        }
        if !whole {
            self.violated("I13", out);
        }
    }

    /// Puts a claim among those of its tenant.
    pub(super) fn join_tenant(&mut self, tenant: Ix, claim: Claim) {
        let claims = &mut self.tenants[tenant].claims;
        let place = u32::try_from(claims.len()).expect("fewer than 2^32 claims of one tenant");
        claims.push(claim);
        *self.place_on_tenant(claim) = place;
    }

    /// Takes a claim from those of its tenant.
    pub(super) fn leave_tenant(&mut self, tenant: Ix, claim: Claim) {
        let place = *self.place_on_tenant(claim);
        let claims = &mut self.tenants[tenant].claims;
        claims.swap_remove(place as usize);
        if let Some(moved) = claims.get(place as usize).copied() {
            *self.place_on_tenant(moved) = place;
        }
    }

    fn place_on_tenant(&mut self, claim: Claim) -> &mut u32 {
        match claim {
            Claim::Sandbox(ix) => &mut self.sandboxes[ix].on_tenant,
            Claim::Reservation(ix) => &mut self.reservations[ix].on_tenant,
        }
    }

    /// Takes up, or leaves, a host's stateful memory and CPU.
    fn occupy(&mut self, ix: Ix, host: Ix, on: bool) {
        let row = &self.sandboxes[ix].row;
        let full = row.memory_mib.saturating_add(row.overhead_mib).0;
        let (stateful, vcpus) = (if row.stateful { full } else { 0 }, row.vcpus.0);
        let state = &mut self.hosts[host];
        if on {
            state.stateful += stateful;
            state.vcpus += vcpus;
        } else {
            state.stateful = state.stateful.saturating_sub(stateful);
            state.vcpus = state.vcpus.saturating_sub(vcpus);
            self.drop_pending(ix);
        }
        self.relist(host);
    }

    /// Writes a sandbox's row, and with it what it has used and was not written yet.
    pub(super) fn write(&mut self, ix: Ix, out: &mut Output) {
        self.write_hours(Claim::Sandbox(ix), out);
        out.changes.push(Change::Sandbox(Box::new(self.sandboxes[ix].row.clone())));
    }

    /// Puts a sandbox among its host's claims.
    pub(super) fn join_host(&mut self, ix: Ix, host: Ix) {
        if self.sandboxes[ix].on_host.is_some() {
            self.leave_host(ix);
        }
        let claims = &mut self.hosts[host].claims;
        let place = u32::try_from(claims.len()).expect("fewer than 2^32 claims on one host");
        claims.push(Claim::Sandbox(ix));
        let name: HostId = self.hosts[host].row.id.clone();
        let sandbox: &mut Sandbox = &mut self.sandboxes[ix];
        sandbox.on_host = Some(place);
        sandbox.host = Some(host);
        sandbox.row.host = Some(name);
        sandbox.edit_rare(|rare| rare.missing_since = None);
        self.recount(ix);
    }

    /// Takes a sandbox from its host's claims; where it ran last stays written in its row.
    pub(super) fn leave_host(&mut self, ix: Ix) {
        let (place, host) = (self.sandboxes[ix].on_host.take(), self.sandboxes[ix].host);
        self.recount(ix);
        self.drop_pending(ix);
        if let (Some(place), Some(host)) = (place, host) {
            self.swap_out(host, place);
        }
    }

    /// Takes the claim at `place` out of a host's list and mends the place of the one that moved.
    pub(super) fn swap_out(&mut self, host: Ix, place: u32) {
        let claims = &mut self.hosts[host].claims;
        claims.swap_remove(place as usize);
        match claims.get(place as usize).copied() {
            Some(Claim::Sandbox(moved)) => self.sandboxes[moved].on_host = Some(place),
            Some(Claim::Reservation(moved)) => self.reservations[moved].on_host = place,
            None => {}
        }
    }

    /// Charges a host for a sandbox that its reports cannot know of yet.
    pub(super) fn set_pending(&mut self, ix: Ix, pending: Pending) {
        self.drop_pending(ix);
        let Some(host) = self.sandboxes[ix].host else { return };
        self.sandboxes[ix].pending = Some(pending);
        self.sandboxes[ix].asked = Some((pending.charge, pending.starting, pending.thaws));
        let spec = Arc::clone(&self.sandboxes[ix].row.spec);
        let vcpus = self.sandboxes[ix].row.vcpus.0;
        let state = &mut self.hosts[host];
        state.pending += pending.charge;
        state.pending_starts += u32::from(pending.starting);
        if !pending.thaws {
            state.pending_vcpus += vcpus;
            for (name, amount) in &spec.counted {
                *state.pending_counted.entry(name.clone()).or_default() += amount;
            }
            if !spec.counted.is_empty() {
                self.recount_resources(host);
            }
        }
        self.relist(host);
    }

    /// Its start or its resume has come out: what it is charged waits for a report alone.
    pub(super) fn no_longer_starting(&mut self, ix: Ix) {
        let sandbox = &mut self.sandboxes[ix];
        if let Some(pending) = &mut sandbox.pending
            && std::mem::take(&mut pending.starting)
            && let Some(host) = sandbox.host
        {
            let starts = &mut self.hosts[host].pending_starts;
            *starts = starts.saturating_sub(1);
            self.relist(host);
        }
    }

    /// Takes back such a charge: a report holds it now, or it is no more.
    pub(super) fn drop_pending(&mut self, ix: Ix) {
        let Some(pending) = self.sandboxes[ix].pending.take() else { return };
        let Some(host) = self.sandboxes[ix].host else { return };
        let spec = Arc::clone(&self.sandboxes[ix].row.spec);
        let vcpus = self.sandboxes[ix].row.vcpus.0;
        let state = &mut self.hosts[host];
        state.pending = state.pending.saturating_sub(pending.charge);
        state.pending_starts = state.pending_starts.saturating_sub(u32::from(pending.starting));
        if pending.thaws {
            return self.relist(host);
        }
        state.pending_vcpus = state.pending_vcpus.saturating_sub(vcpus);
        for (name, amount) in &spec.counted {
            if let Some(sum) = state.pending_counted.get_mut(name) {
                *sum = sum.saturating_sub(*amount);
                if *sum == 0 {
                    state.pending_counted.remove(name);
                }
            }
        }
        if !spec.counted.is_empty() {
            self.recount_resources(host);
        }
        self.relist(host);
    }

    /// Something may have been freed in this pool: its queue is served before the input is done.
    pub(super) fn stir(&mut self, pool: Ix) {
        if !self.pools[pool].queue.is_empty() {
            self.stirred.insert(pool);
        }
        for number in 0..self.pools[pool].overflown_by.len() {
            let from = self.pools[pool].overflown_by[number];
            if !self.pools[from].queue.is_empty() {
                self.stirred.insert(from);
            }
        }
    }
}

/// Moves a counter by one where `before` and `after` differ; `false` if it would go below zero.
fn step(counter: &mut u64, before: bool, after: bool) -> bool {
    match (before, after) {
        (false, true) => *counter += 1,
        (true, false) => match counter.checked_sub(1) {
            Some(less) => *counter = less,
            None => return false,
        },
        _ => {}
    }
    true
}
