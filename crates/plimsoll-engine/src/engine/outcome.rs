//! How commands to hosts came out.

use std::num::NonZeroU128;
use std::sync::Arc;

use plimsoll_policy::aside::AsideRule;
use plimsoll_policy::slots::frees_slot;
use plimsoll_types::{
    HostCommand, HostId, HostOp, HostOutcome, Millis, OnFull, RefusalCode, SandboxStatus, Timestamp,
};
use serde_json::json;

use super::Engine;
use super::state::{Claim, Ix, Pending};
use crate::output::{Observation, Output, Refusal};
use crate::rows::{Change, Verb};

/// First wait before a command of unknown outcome is repeated; each repeat doubles it.
const REPEAT_FIRST: Millis = Millis(500);
/// A start that was taken over from another engine is asked of its host again so often, which is
/// for about a minute, before it is undone there and made elsewhere.
const TAKEN_OVER_REPEATS_MAX: u32 = 7;
/// Shortest wait before a command is sent again.
const AGAIN_MIN: Millis = Millis(1);
/// Longest such wait: a host that answers again is told within half a minute.
const REPEAT_MAX: Millis = Millis(30_000);

/// The furthest that a host may be ahead of the numbers known here, as after a store that was put
/// back from a copy. What claims more is not believed: there would be no number above it.
const NUMBER_JUMP_MAX: u64 = 1 << 40;

impl Engine {
    pub(super) fn outcome(
        &mut self,
        now: Timestamp,
        host: &HostId,
        command: &HostCommand,
        outcome: &HostOutcome,
        out: &mut Output,
    ) {
        let Some(host) = self.host_by_name(host) else { return };
        if let HostOutcome::Fenced { highest } = outcome
            && highest.epoch <= self.epoch
        {
            let next = &mut self.hosts[host].next_number;
            if highest.number.saturating_sub(*next) <= NUMBER_JUMP_MAX {
                *next = (*next).max(highest.number);
            }
        }
        let Some(ix) = self.sandbox_ix.get(&command.op.guest()).copied() else {
            return self.end_stranger_again(now, host, command, outcome, out);
        };
        // A later command about this guest has taken this one's place, or the end of a stray
        // attempt was answered: neither says anything about the record.
        if self.sandboxes[ix].row.fence != command.fence {
            return;
        }
        match &command.op {
            HostOp::Start { .. } => self.start_outcome(now, ix, host, outcome, out),
            HostOp::Resume { .. } => self.resume_outcome(now, ix, host, outcome, out),
            HostOp::Pause { .. } => self.pause_outcome(now, ix, host, outcome, out),
            HostOp::Stop { .. } => self.stop_outcome(now, ix, outcome, out),
            HostOp::End { .. } => self.end_outcome(now, ix, host, outcome, out),
        }
    }

    fn start_outcome(
        &mut self,
        now: Timestamp,
        ix: Ix,
        host: Ix,
        outcome: &HostOutcome,
        out: &mut Output,
    ) {
        let status = self.sandboxes[ix].row.status;
        if !matches!(status, SandboxStatus::Provisioning | SandboxStatus::Resuming) {
            return;
        }
        match outcome {
            HostOutcome::Done => {
                self.trusted(now, host, out);
                self.now_running(now, ix, out);
                self.learn_took(now, self.hosts[host].pool);
            }
            HostOutcome::Refused { code: RefusalCode::InvalidRequest, detail } => {
                // What it asks for is nowhere: one tenant's bad command is no mark against a host
                // that all tenants share, and no other host would do better.
                self.rejected(now, ix, host, detail, out);
            }
            HostOutcome::Refused { code, detail } => {
                let pool = self.hosts[host].pool;
                if self.teaches(pool, *code) {
                    // A provider that is full is as good as before.
                    self.learn_refused(now, pool);
                } else {
                    self.distrust(now, host, out);
                }
                self.refused_by_host(now, ix, host, *code, detail, out);
            }
            HostOutcome::Failed { detail } => {
                self.distrust(now, host, out);
                self.start_failed(now, ix, host, detail, out);
            }
            HostOutcome::Fenced { highest } if highest.epoch > self.epoch => {}
            HostOutcome::Fenced { .. } if self.sandboxes[ix].rare().repeats == 0 => {
                self.again(now, ix, host, out);
            }
            HostOutcome::Fenced { .. } => {
                // Under a number above every other and still fenced: this attempt is over there,
                // ended by a command of this engine's predecessor.
                let detail = "its host has ended this attempt";
                self.undo_start(now, ix, host, detail, out);
            }
            HostOutcome::Unknown { .. } if self.took_over(ix, host) => {
                // It may run there: the same attempt is asked for again, which starts none twice,
                // until the host answers or is given up.
                self.again(now, ix, host, out);
            }
            HostOutcome::Unknown { detail } => {
                self.distrust(now, host, out);
                self.undo_start(now, ix, host, detail, out);
            }
        }
    }

    /// Whether this engine took the start over from its predecessor, and its host may not have been
    /// reached since: it has said nothing so far, or the start went where it was before it
    /// registered anew.
    fn took_over(&self, ix: Ix, host: Ix) -> bool {
        let sandbox = &self.sandboxes[ix];
        let silent = self.hosts[host].report.is_none();
        let few = sandbox.rare().repeats <= TAKEN_OVER_REPEATS_MAX;
        sandbox.taken_over && !sandbox.undoing && (silent || few)
    }

    /// A start succeeded: all is forgiven.
    fn trusted(&mut self, now: Timestamp, host: Ix, out: &mut Output) {
        if self.hosts[host].aside.failures_in_a_row() > 0 {
            self.hosts[host].aside.succeed();
            self.check_host(now, host, out);
            let pool = self.hosts[host].pool;
            self.stir(pool);
        }
    }

    fn distrust(&mut self, now: Timestamp, host: Ix, out: &mut Output) {
        let was = self.hosts[host].aside.is_set_aside(now);
        self.hosts[host].aside.fail(now, &AsideRule::default());
        let is = self.hosts[host].aside.is_set_aside(now);
        self.check_host(now, host, out);
        if is && !was {
            let state = &self.hosts[host];
            let data = json!({ "host": state.row.id, "failures": state.aside.failures_in_a_row() });
            self.event(now, "host.set_aside", None, data, out);
        }
    }

    /// The host's own gate said no. Nothing was started: another host is tried, then the queue.
    fn refused_by_host(
        &mut self,
        now: Timestamp,
        ix: Ix,
        host: Ix,
        code: RefusalCode,
        detail: &str,
        out: &mut Output,
    ) {
        if self.sandboxes[ix].row.status == SandboxStatus::Resuming {
            return self.resume_refused(now, ix, host, detail, out);
        }
        let stamp = self.hosts[host].stamp;
        self.leave_failed_host(now, ix, (host, Some(stamp)), out);
        if self.place_again(now, ix, out) {
            return;
        }
        let row = &self.sandboxes[ix].row;
        if row.on_full == OnFull::Queue || self.sandboxes[ix].answered {
            let why = format!("waiting: its host refused it ({code}): {detail}");
            return self.back_to_queue(now, ix, &why, out);
        }
        let mut refusal = self.waiting_refusal(now, ix);
        if code.is_capacity() {
            refusal.code = code;
        }
        if refusal.code.is_capacity() {
            self.unspend(self.sandboxes[ix].tenant, self.operation(ix));
        }
        self.refuse_placed(now, ix, refusal, detail, out);
    }

    /// Its description, or its own command, can be run by no host.
    fn rejected(&mut self, now: Timestamp, ix: Ix, host: Ix, detail: &str, out: &mut Output) {
        let row = &self.sandboxes[ix].row;
        if row.status == SandboxStatus::Resuming || self.sandboxes[ix].answered {
            return self.fail(now, ix, &format!("start_failed: {detail}"), out);
        }
        self.leave_failed_host(now, ix, (host, None), out);
        let refusal = Refusal::new(RefusalCode::InvalidRequest, detail.to_owned());
        self.refuse_placed(now, ix, refusal, detail, out);
    }

    /// Refuses a create that was admitted and that nobody was told of yet: it leaves nothing.
    fn refuse_placed(
        &mut self,
        now: Timestamp,
        ix: Ix,
        mut refusal: Refusal,
        detail: &str,
        out: &mut Output,
    ) {
        let asked = self.sandbox_asked(ix, true);
        let mut record =
            self.decision(now, self.sandboxes[ix].row.decision_id, Verb::Create, &asked);
        record.id = self.mint_decision(now);
        record.code = Some(refusal.code);
        record.detail = Some(Arc::from(format!("refused by its host: {detail}")));
        refusal.decision = Some(record.id);
        let pool = record.pool.clone();
        out.observations.push(Observation::Refusal(refusal.code, pool));
        out.changes.push(Change::Decision(Box::new(record)));
        self.forget_create(now, ix, Some(Box::new(refusal)), out);
    }

    fn start_failed(&mut self, now: Timestamp, ix: Ix, host: Ix, detail: &str, out: &mut Output) {
        if self.sandboxes[ix].row.status == SandboxStatus::Resuming {
            let why = format!("start_failed: {detail}");
            return self.fail(now, ix, &why, out);
        }
        self.sandboxes[ix].edit_rare(|rare| rare.failures += 1);
        self.leave_failed_host(now, ix, (host, None), out);
        let tries = self.sandboxes[ix].rare().failures;
        if tries < self.config.start_attempts_max && self.place_again(now, ix, out) {
            return;
        }
        let why = format!("start_failed: {detail} ({tries} tried)");
        if !self.sandboxes[ix].answered {
            // Its caller is told of a failure only: the same key may try again.
            self.release_key(ix);
        }
        self.fail(now, ix, &why, out);
    }

    /// The idempotency key is bound to this one no more.
    fn release_key(&mut self, ix: Ix) {
        let print = self.sandboxes[ix].key.take().map(NonZeroU128::get);
        self.unbind(print, Claim::Sandbox(ix));
        self.sandboxes[ix].row.key = None;
    }

    /// Gives back what an attempt held on its host, and remembers not to ask that host again
    /// within this attempt.
    fn leave_failed_host(
        &mut self,
        now: Timestamp,
        ix: Ix,
        tried: (Ix, Option<u64>),
        out: &mut Output,
    ) {
        self.change(now, ix, out, |row| row.status = SandboxStatus::Queued);
        self.leave_host(ix);
        self.sandboxes[ix].row.host = None;
        self.sandboxes[ix].host = None;
        self.sandboxes[ix].undoing = false;
        self.sandboxes[ix].edit_rare(|rare| rare.try_host(tried));
    }

    /// Places a create that holds nothing on another host, if one takes it.
    fn place_again(&mut self, now: Timestamp, ix: Ix, out: &mut Output) -> bool {
        if self.sandboxes[ix].row.spec.fork_of.is_some() {
            return false;
        }
        let asked = self.sandbox_asked(ix, true);
        let pool = self.sandboxes[ix].home.unwrap_or(asked.pool);
        let pools = self.eligible(pool, true);
        if self.gate(now, &asked, &pools).is_some() {
            return false;
        }
        let spec = Arc::clone(&self.sandboxes[ix].row.spec);
        let found = {
            let ask = self.sandbox_ask(ix, &spec, None);
            self.find(&pools, &ask)
        };
        let Ok(found) = found else { return false };
        let decision = self.mint_decision(now);
        self.admit(now, ix, found, decision, Verb::Create, out);
        true
    }

    fn back_to_queue(&mut self, now: Timestamp, ix: Ix, why: &str, out: &mut Output) {
        let pool = self.sandboxes[ix].home.or(self.sandboxes[ix].pool).unwrap_or_default();
        self.change(now, ix, out, |row| {
            row.reason = Some(Arc::from(why));
            row.pool = None;
            row.charge_mib = plimsoll_types::Mib::ZERO;
        });
        self.sandboxes[ix].pool = None;
        self.queue_create(now, pool, ix, out);
    }

    /// Nobody knows whether the guest runs. It is ended on its host before it is tried anywhere
    /// else: never two guests of one sandbox.
    fn undo_start(&mut self, now: Timestamp, ix: Ix, host: Ix, detail: &str, out: &mut Output) {
        let why = format!("its start was not answered ({detail}); it is undone before another try");
        self.sandboxes[ix].undoing = true;
        self.change(now, ix, out, |row| row.reason = Some(Arc::from(why)));
        self.repeat_end(now, ix, host, out);
    }

    /// Sends the end of the present attempt, later with each repeat.
    fn repeat_end(&mut self, now: Timestamp, ix: Ix, host: Ix, out: &mut Output) {
        let delay = self.next_delay(ix);
        let row = &self.sandboxes[ix].row;
        let op = HostOp::End { id: row.id, attempt: row.attempt };
        let fence = self.send(now, host, op, self.config.terminate_timeout, delay, out);
        self.change(now, ix, out, |row| row.fence = fence);
    }

    fn next_delay(&mut self, ix: Ix) -> Millis {
        let repeats = self.sandboxes[ix].rare().repeats;
        self.sandboxes[ix].edit_rare(|rare| rare.repeats = repeats.saturating_add(1));
        if repeats == 0 {
            return Millis::ZERO;
        }
        Millis((REPEAT_FIRST.0 << repeats.min(10)).min(REPEAT_MAX.0))
    }

    /// Sends the command of the present state again, under a new number.
    pub(super) fn again(&mut self, now: Timestamp, ix: Ix, host: Ix, out: &mut Output) {
        // Never at once: a command without delay is one that was not sent before, and where it
        // cannot be delivered, nothing of it has begun.
        let delay = self.next_delay(ix).max(AGAIN_MIN);
        let row = &self.sandboxes[ix].row;
        let (id, attempt) = (row.id, row.attempt);
        let (op, timeout) = match row.status {
            SandboxStatus::Provisioning if self.sandboxes[ix].undoing => {
                (HostOp::End { id, attempt }, self.config.terminate_timeout)
            }
            SandboxStatus::Provisioning => {
                let fence = self.send_start(now, ix, host, delay, out);
                return self.renumber(now, ix, fence, out);
            }
            SandboxStatus::Resuming => (HostOp::Resume { id, attempt }, self.config.start_timeout),
            SandboxStatus::Pausing => {
                let kind = self.pause_kind(ix);
                (HostOp::Pause { id, attempt, kind }, self.config.pause_timeout)
            }
            SandboxStatus::Stopped => (HostOp::Stop { id, attempt }, self.config.terminate_timeout),
            SandboxStatus::Terminating => {
                (HostOp::End { id, attempt }, self.config.terminate_timeout)
            }
            _ => return,
        };
        let fence = self.send(now, host, op, timeout, delay, out);
        self.renumber(now, ix, fence, out);
    }

    /// A repeated command has a number of its own; a charge that waits to be seen waits for it.
    fn renumber(&mut self, now: Timestamp, ix: Ix, fence: plimsoll_types::Fence, out: &mut Output) {
        let begins = matches!(
            self.sandboxes[ix].row.status,
            SandboxStatus::Provisioning | SandboxStatus::Resuming
        ) && !self.sandboxes[ix].undoing;
        if let Some(pending) = &mut self.sandboxes[ix].pending {
            pending.number = pending.number.map(|_| fence.number);
        } else if let Some((charge, starting, thaws)) = self.sandboxes[ix].asked.filter(|_| begins)
        {
            // A report has accounted for the first command, by which nothing came about.
            let number = Some(fence.number);
            self.set_pending(ix, Pending { charge, number, starting, thaws });
            if let Some(host) = self.sandboxes[ix].host.filter(|_| thaws) {
                self.net_thaw(host, ix);
                self.relist(host);
            }
        }
        self.change(now, ix, out, |row| row.fence = fence);
    }

    fn resume_outcome(
        &mut self,
        now: Timestamp,
        ix: Ix,
        host: Ix,
        outcome: &HostOutcome,
        out: &mut Output,
    ) {
        if self.sandboxes[ix].row.status != SandboxStatus::Resuming {
            return;
        }
        match outcome {
            HostOutcome::Done => {
                self.trusted(now, host, out);
                self.now_running(now, ix, out);
                self.learn_took(now, self.hosts[host].pool);
            }
            HostOutcome::Refused { code, detail } => {
                let pool = self.hosts[host].pool;
                if self.teaches(pool, *code) {
                    self.learn_refused(now, pool);
                }
                self.resume_refused(now, ix, host, detail, out);
            }
            HostOutcome::Failed { detail } => {
                self.distrust(now, host, out);
                let why = format!("its resume failed: {detail}");
                self.resume_undone(now, ix, &why, out);
                self.change(now, ix, out, |row| row.resume_requested_at = None);
            }
            HostOutcome::Fenced { highest } if highest.epoch > self.epoch => {}
            // A resume is idempotent: it is simply sent again.
            HostOutcome::Fenced { .. } | HostOutcome::Unknown { .. } => {
                self.again(now, ix, host, out);
            }
        }
    }

    /// The host found no room after all: the resume queues and never fails for good (P1).
    fn resume_refused(&mut self, now: Timestamp, ix: Ix, host: Ix, detail: &str, out: &mut Output) {
        let stamp = self.hosts[host].stamp;
        self.sandboxes[ix].edit_rare(|rare| rare.try_host((host, Some(stamp))));
        let since = self.sandboxes[ix].row.resume_requested_at.unwrap_or(now);
        let why = format!("waiting: its host refused the resume: {detail}");
        self.resume_undone(now, ix, &why, out);
        self.change(now, ix, out, |row| row.resume_requested_at = Some(since));
        let Some(pool) = self.sandboxes[ix].pool else { return };
        let place = self.next_place(self.sandboxes[ix].row.priority, since);
        let name = self.pools[pool].row.name.clone();
        out.observations.push(Observation::ResumeQueued(name));
        // Served when its host has reported anew.
        self.enqueue(now, pool, place, super::state::Waiter::Resume(ix));
    }

    /// Back to where the resume or the start began.
    fn resume_undone(&mut self, now: Timestamp, ix: Ix, why: &str, out: &mut Output) {
        let stopped = self.sandboxes[ix].row.began_stopped();
        let released = !stopped && frees_slot(self.pause_kind(ix));
        if released || stopped {
            self.drop_pending(ix);
        } else {
            // It is frozen still, and may not even have been in a report before it was: what it is
            // charged here stays until a report accounts for it.
            self.no_longer_starting(ix);
        }
        self.change(now, ix, out, |row| {
            row.status = if stopped { SandboxStatus::Stopped } else { SandboxStatus::Paused };
            row.slot_released = released;
            row.reason = Some(Arc::from(why));
            if released || stopped {
                row.charge_mib = plimsoll_types::Mib::ZERO;
            }
        });
    }

    fn pause_outcome(
        &mut self,
        now: Timestamp,
        ix: Ix,
        host: Ix,
        outcome: &HostOutcome,
        out: &mut Output,
    ) {
        if self.sandboxes[ix].row.status != SandboxStatus::Pausing {
            return;
        }
        match outcome {
            HostOutcome::Done => {
                let released = frees_slot(self.pause_kind(ix));
                self.now_paused(now, ix, released, out);
            }
            HostOutcome::Refused { detail, .. } | HostOutcome::Failed { detail } => {
                self.pause_failed(now, ix, detail, out);
            }
            HostOutcome::Fenced { highest } if highest.epoch > self.epoch => {}
            HostOutcome::Fenced { .. } | HostOutcome::Unknown { .. } => {
                self.again(now, ix, host, out);
            }
        }
    }

    fn stop_outcome(&mut self, now: Timestamp, ix: Ix, outcome: &HostOutcome, out: &mut Output) {
        if self.sandboxes[ix].row.status != SandboxStatus::Stopped {
            return;
        }
        match outcome {
            HostOutcome::Done => {
                self.stopped(now, ix, out);
            }
            HostOutcome::Refused { detail, .. } | HostOutcome::Failed { detail } => {
                let why = format!("its stop failed: {detail}");
                self.leave_queue(ix);
                self.change_whole(now, ix, out, |sandbox| {
                    sandbox.stopping = false;
                    sandbox.row.status = SandboxStatus::Running;
                    sandbox.row.started_at = Some(now);
                    sandbox.row.resume_requested_at = None;
                    sandbox.row.reason = Some(Arc::from(why));
                });
            }
            HostOutcome::Fenced { highest } if highest.epoch > self.epoch => {}
            HostOutcome::Fenced { .. } | HostOutcome::Unknown { .. } => {
                if let Some(host) = self.sandboxes[ix].host {
                    self.again(now, ix, host, out);
                }
            }
        }
    }

    /// Its process is gone; its disk, its name and its slot stay.
    pub(super) fn stopped(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        if !self.sandboxes[ix].stopping {
            return;
        }
        self.sandboxes[ix].edit_rare(|rare| rare.repeats = 0);
        self.change_whole(now, ix, out, |sandbox| {
            sandbox.stopping = false;
            sandbox.row.charge_mib = plimsoll_types::Mib::ZERO;
            sandbox.row.resident_mib = None;
            sandbox.row.measured = false;
        });
        self.sandbox_event(now, ix, "sandbox.stopped", serde_json::Value::Null, out);
        if let Some(pool) = self.sandboxes[ix].pool {
            self.stir(pool);
        }
    }

    fn end_outcome(
        &mut self,
        now: Timestamp,
        ix: Ix,
        host: Ix,
        outcome: &HostOutcome,
        out: &mut Output,
    ) {
        let (status, undoing) = (self.sandboxes[ix].row.status, self.sandboxes[ix].undoing);
        match outcome {
            HostOutcome::Done if status == SandboxStatus::Terminating => {
                self.gone(now, ix, None, out);
            }
            HostOutcome::Done if undoing => self.undone(now, ix, host, out),
            HostOutcome::Fenced { highest } if highest.epoch > self.epoch => {}
            HostOutcome::Done => {}
            _ if status == SandboxStatus::Terminating || undoing => {
                self.again(now, ix, host, out);
            }
            _ => {}
        }
    }

    /// The start of unknown outcome has been ended for certain: now another host may be tried.
    fn undone(&mut self, now: Timestamp, ix: Ix, host: Ix, out: &mut Output) {
        self.sandboxes[ix].edit_rare(|rare| rare.repeats = 0);
        if std::mem::take(&mut self.sandboxes[ix].taken_over) {
            // The start was lost together with the engine or the agent that had it: nothing is
            // wrong with its host, which may be the only one.
            self.leave_failed_host(now, ix, (host, None), out);
            self.sandboxes[ix].edit_rare(|rare| rare.tried.clear());
            if !self.place_again(now, ix, out) {
                self.release_key(ix);
                self.fail(now, ix, "start_failed: it was lost in a restart", out);
            }
            return;
        }
        self.start_failed(now, ix, host, "its host did not answer the start in time", out);
    }

    /// What was under way when this engine took over is asked for again: every command is
    /// idempotent by guest and attempt.
    pub(super) fn resend(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let Some(host) = self.sandboxes[ix].host else { return };
        self.again(now, ix, host, out);
    }
}
