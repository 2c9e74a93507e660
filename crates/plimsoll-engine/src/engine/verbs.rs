//! Calls about a sandbox that is there: patch, delete, withdraw, pause, stop.

use std::num::NonZeroU128;
use std::sync::Arc;

use plimsoll_policy::slots::resolve_pause;
use plimsoll_types::{HostOp, Millis, RefusalCode, SandboxId, SandboxStatus, Timestamp};

use super::Engine;
use super::reserve::after;
use super::sandbox::wrong_state;
use super::state::{Claim, Ix};
use crate::command::{Caller, PatchSandbox, Token};
use crate::output::{Disposition, Effect, Output, Refusal};
use crate::rows::{Change, Labels};

impl Engine {
    pub(super) fn patch(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        patch: PatchSandbox,
        out: &mut Output,
    ) {
        let ix = match self.own_sandbox(caller, patch.id) {
            Ok(ix) => ix,
            Err(refusal) => return Self::refuse(token, *refusal, out),
        };
        let mut spec = (*self.sandboxes[ix].row.spec).clone();
        if let Some(new) = patch.lifecycle {
            let old = &mut spec.lifecycle;
            old.idle_timeout_seconds = new.idle_timeout_seconds.or(old.idle_timeout_seconds);
            old.max_run_seconds = new.max_run_seconds.or(old.max_run_seconds);
            old.max_paused_seconds = new.max_paused_seconds.or(old.max_paused_seconds);
            old.ttl_seconds = new.ttl_seconds.or(old.ttl_seconds);
        }
        let spec = self.specs.share(Arc::new(spec));
        self.change(now, ix, out, |row| {
            row.spec = spec;
            if let Some(labels) = &patch.labels {
                row.labels = Labels::from(labels);
            }
            row.preemptible = patch.preemptible.unwrap_or(row.preemptible);
            row.priority = patch.priority.unwrap_or(row.priority);
        });
        // A new priority is a new place, at the same age.
        if let (Some(_), Some((pool, place))) = (patch.priority, self.sandboxes[ix].rare().place)
            && let Some(waiter) = self.dequeue(pool, place)
        {
            let place = self.next_place(self.sandboxes[ix].row.priority, place.since);
            self.enqueue(now, pool, place, waiter);
        }
        self.arm_sandbox(now, ix);
        self.answer(token, ix, None, Disposition::Accepted, out);
    }

    pub(super) fn delete(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        id: SandboxId,
        out: &mut Output,
    ) {
        let ix = match self.own_sandbox(caller, id) {
            Ok(ix) => ix,
            Err(refusal) => return Self::refuse(token, *refusal, out),
        };
        let (tenant, created_at) = (self.sandboxes[ix].tenant, self.sandboxes[ix].row.created_at);
        let ends = self.sandboxes[ix].row.status.counts_for_quota();
        self.terminate(now, ix, "deleted", out);
        if ends {
            self.given_back(now, tenant, created_at, out);
        }
        self.answer(token, ix, None, Disposition::Accepted, out);
    }

    pub(super) fn withdraw(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        id: SandboxId,
        gone: bool,
        out: &mut Output,
    ) {
        let ix = match self.own_sandbox(caller, id) {
            Ok(ix) => ix,
            Err(refusal) => return Self::refuse(token, *refusal, out),
        };
        if self.sandboxes[ix].row.status != SandboxStatus::Queued {
            if gone {
                self.terminate(now, ix, "its caller left before it was answered", out);
            }
            self.answer(token, ix, None, Disposition::Accepted, out);
            return;
        }
        let refusal = self.waiting_refusal(now, ix);
        if !gone && refusal.code.is_capacity() {
            self.unspend(self.sandboxes[ix].tenant, self.operation(ix));
        }
        self.forget_create(now, ix, None, out);
        Self::refuse(token, refusal, out);
    }

    /// The refusal that a waiting create would get now.
    pub(super) fn waiting_refusal(&mut self, now: Timestamp, ix: Ix) -> Refusal {
        let asked = self.sandbox_asked(ix, true);
        let pools = self.eligible(asked.pool, true);
        let spec = Arc::clone(&self.sandboxes[ix].row.spec);
        let ask = self.sandbox_ask(ix, &spec, None);
        let mut refusal = self.gate(now, &asked, &pools).unwrap_or_else(|| {
            let mut miss = self.miss(&pools, &ask);
            // Hosts that refused it themselves are candidates to the cell's own arithmetic.
            if !miss.code.is_capacity() {
                miss.code = RefusalCode::NoCapacity;
            }
            self.capacity_refusal(now, &pools, &ask, &miss)
        });
        refusal.decision = Some(self.sandboxes[ix].row.decision_id);
        refusal
    }

    /// Removes a create that keeps nothing, its row included.
    pub(super) fn forget_create(
        &mut self,
        now: Timestamp,
        ix: Ix,
        refusal: Option<Box<Refusal>>,
        out: &mut Output,
    ) {
        self.leave_queue(ix);
        let id = self.sandboxes[ix].row.id;
        if self.sandboxes[ix].row.status != SandboxStatus::Queued {
            self.change(now, ix, out, |row| row.status = SandboxStatus::Queued);
        }
        self.leave_host(ix);
        if let Some(sandbox) = self.sandboxes.remove(ix) {
            self.totals.queued = self.totals.queued.saturating_sub(1);
            self.sandbox_ix.remove(&id);
            let print = sandbox.key.map(NonZeroU128::get);
            self.unbind(print, Claim::Sandbox(ix));
            if let Some(print) = print {
                self.ticket_refused(now, print, refusal.as_deref().and_then(after));
            }
        }
        out.changes.push(Change::SandboxGone(id));
        out.effects.push(Effect::SandboxChanged { id, status: None, refusal });
    }

    pub(super) fn pause(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        id: SandboxId,
        out: &mut Output,
    ) {
        let ix = match self.own_sandbox(caller, id) {
            Ok(ix) => ix,
            Err(refusal) => return Self::refuse(token, *refusal, out),
        };
        match self.sandboxes[ix].row.status {
            SandboxStatus::Running => self.begin_pause(now, ix, "paused on request", false, out),
            SandboxStatus::Paused | SandboxStatus::Pausing => {
                self.cancel_resume(now, ix, out);
                // Now it is paused by its owner's wish, whoever paused it first.
                if self.sandboxes[ix].row.paused_by.is_some() {
                    self.change(now, ix, out, |row| row.paused_by = None);
                }
            }
            status => return Self::refuse(token, wrong_state(id, status, "paused"), out),
        }
        self.answer(token, ix, None, Disposition::Accepted, out);
    }

    /// Sends the pause. `idled` marks that the cell wanted it: the next call wakes the guest.
    pub(super) fn begin_pause(
        &mut self,
        now: Timestamp,
        ix: Ix,
        why: &str,
        idled: bool,
        out: &mut Output,
    ) {
        let (Some(pool), Some(host)) = (self.sandboxes[ix].pool, self.sandboxes[ix].host) else {
            return;
        };
        let kind =
            resolve_pause(self.pools[pool].row.settings.pause, self.sandboxes[ix].row.driver);
        let row = &self.sandboxes[ix].row;
        let op = HostOp::Pause { id: row.id, attempt: row.attempt, kind };
        let fence = self.send(now, host, op, self.config.pause_timeout, Millis::ZERO, out);
        self.change(now, ix, out, |row| {
            row.status = SandboxStatus::Pausing;
            row.reason = Some(Arc::from(why));
            row.idled = idled;
            row.fence = fence;
        });
        self.expect_pause(now, ix);
    }

    /// Notes when a pause that will free something is expected to end.
    pub(super) fn expect_pause(&mut self, now: Timestamp, ix: Ix) {
        let Some(pool) = self.sandboxes[ix].pool else { return };
        if plimsoll_policy::slots::frees_slot(self.pause_kind(ix)) {
            let expected = now + Millis(self.pools[pool].pause_millis);
            self.pools[pool].pausing.insert((expected, ix));
            self.sandboxes[ix].edit_rare(|rare| rare.pause_expected = Some(expected));
        }
    }

    /// A resume that waits is wanted no more.
    pub(super) fn cancel_resume(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        if self.sandboxes[ix].row.resume_requested_at.is_none() {
            return;
        }
        self.leave_queue(ix);
        self.change(now, ix, out, |row| {
            row.resume_requested_at = None;
            row.reason = Some(Arc::from("paused on request"));
        });
    }

    pub(super) fn stop(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        id: SandboxId,
        out: &mut Output,
    ) {
        let ix = match self.own_sandbox(caller, id) {
            Ok(ix) => ix,
            Err(refusal) => return Self::refuse(token, *refusal, out),
        };
        match self.sandboxes[ix].row.status {
            SandboxStatus::Running => {
                let Some(host) = self.sandboxes[ix].host else { return };
                let row = &self.sandboxes[ix].row;
                let op = HostOp::Stop { id, attempt: row.attempt };
                let timeout = self.config.terminate_timeout;
                let fence = self.send(now, host, op, timeout, Millis::ZERO, out);
                self.change_whole(now, ix, out, |sandbox| {
                    sandbox.stopping = true;
                    sandbox.row.status = SandboxStatus::Stopped;
                    sandbox.row.reason = Some(Arc::from("stopped on request"));
                    sandbox.row.started_at = None;
                    sandbox.row.fence = fence;
                });
            }
            SandboxStatus::Stopped => self.cancel_resume(now, ix, out),
            status => return Self::refuse(token, wrong_state(id, status, "stopped"), out),
        }
        self.answer(token, ix, None, Disposition::Accepted, out);
    }
}
