//! How a sandbox moves between its states.

use std::sync::Arc;

use plimsoll_policy::charge::thawed_charge;
use plimsoll_policy::rate::Operation;
use plimsoll_policy::slots::holds_slot;
use plimsoll_types::{
    DecisionId, Fence, GuestSpec, HostOp, Mib, Millis, PauseKind, Regime, SandboxId, SandboxStatus,
    Timestamp,
};
use serde_json::{Value, json};

use super::Engine;
use super::gate::Asked;
use super::sandbox::{row_shape, wrong_state};
use super::state::{Ix, Pending, Place, Waiter};
use crate::command::{Caller, Token};
use crate::output::{Disposition, Observation, Output};
use crate::rows::{SandboxRow, Verb};

impl Engine {
    /// A call that wants the sandbox to run: an explicit resume or start, or (`touch`) a call
    /// into the guest, which is activity and wakes it.
    #[expect(clippy::too_many_arguments, reason = "the fields of one call, taken apart once")]
    pub(super) fn wake(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        id: SandboxId,
        decision: DecisionId,
        touch: bool,
        out: &mut Output,
    ) {
        let ix = match self.own_sandbox(caller, id) {
            Ok(ix) => ix,
            Err(refusal) => return Self::refuse(token, *refusal, out),
        };
        let status = self.sandboxes[ix].row.status;
        match status {
            SandboxStatus::Running if touch => {
                self.change(now, ix, out, |row| row.last_active_at = now);
                self.arm_sandbox(now, ix);
            }
            SandboxStatus::Running
            | SandboxStatus::Provisioning
            | SandboxStatus::Resuming
            | SandboxStatus::Queued => {}
            SandboxStatus::Stopped if touch => {
                return Self::refuse(token, wrong_state(id, status, "called into"), out);
            }
            SandboxStatus::Pausing | SandboxStatus::Paused | SandboxStatus::Stopped => {
                let again = self.sandboxes[ix].row.resume_requested_at.is_some();
                let asked = self.wake_asked(ix, u64::from(!again));
                if let Some(refusal) = self.gate_limits(now, &asked) {
                    return self.refused(now, token, decision, Verb::Resume, &asked, refusal, out);
                }
                self.spend(now, &asked);
                if status != SandboxStatus::Pausing {
                    self.request_resume(now, ix, decision, out);
                } else if !again {
                    // The pause is waited for, then it is resumed: never two guests, none lost (R6).
                    self.change(now, ix, out, |row| {
                        row.resume_requested_at = Some(now);
                        row.reason = Some(Arc::from("resumes when its pause has finished"));
                    });
                }
            }
            SandboxStatus::Terminating | SandboxStatus::Terminated | SandboxStatus::Failed => {
                return Self::refuse(token, wrong_state(id, status, "run"), out);
            }
        }
        self.answer(token, ix, Some(decision), Disposition::Accepted, out);
    }

    /// What a resume or a start asks of its tenant's limits: it adds nothing to what is alive.
    pub(super) fn wake_asked(&self, ix: Ix, count: u64) -> Asked {
        Asked { rate: (Operation::Resume, count), ..self.sandbox_asked(ix, false) }
    }

    /// Resumes now if there is room, else queues. A resume that is queued already keeps its place.
    pub(super) fn request_resume(
        &mut self,
        now: Timestamp,
        ix: Ix,
        decision: DecisionId,
        out: &mut Output,
    ) {
        if self.sandboxes[ix].rare().place.is_some()
            || self.try_resume(now, ix, None, decision, out)
        {
            return;
        }
        let Some(pool) = self.sandboxes[ix].pool else { return };
        let pool_name = self.pools[pool].row.name.clone();
        let why = if self.sandboxes[ix].stopping {
            "starts when its process has ended".to_owned()
        } else if self.sandboxes[ix].row.slot_released && self.slots_free(pool, None) == Some(0) {
            format!("waiting for a free slot on pool {pool_name}")
        } else {
            format!("waiting for room on its host in pool {pool_name}")
        };
        let since = self.sandboxes[ix].row.resume_requested_at.unwrap_or(now);
        self.change(now, ix, out, |row| {
            row.resume_requested_at = Some(since);
            row.reason = Some(Arc::from(why));
        });
        let place = self.next_place(self.sandboxes[ix].row.priority, since);
        out.observations.push(Observation::ResumeQueued(pool_name));
        self.enqueue(now, pool, place, Waiter::Resume(ix));
    }

    /// Takes slot and memory again in one step and sends the resume, if there is room.
    fn try_resume(
        &mut self,
        now: Timestamp,
        ix: Ix,
        place: Option<Place>,
        decision: DecisionId,
        out: &mut Output,
    ) -> bool {
        let (Some(pool), Some(host)) = (self.sandboxes[ix].pool, self.sandboxes[ix].host) else {
            return false;
        };
        let row = &self.sandboxes[ix].row;
        let (status, released) = (row.status, row.slot_released);
        if self.sandboxes[ix].stopping {
            // Its process is still on its way out.
            return false;
        }
        // Its host has said no and nothing new since: it is not asked for every change elsewhere.
        let refused = (host, Some(self.hosts[host].stamp));
        if self.sandboxes[ix].rare().tried.contains(&refused) {
            return false;
        }
        let resident = status == SandboxStatus::Paused && !released;
        let thaws = if resident { self.thaw_charge(pool, host, ix) } else { Mib::ZERO };
        // Where its host does not say what it admits, the host decides. What no report holds of
        // the guest itself so far goes over into what it is charged from now on.
        let own =
            self.sandboxes[ix].pending.map_or(0, |pending| super::fleet::signed(pending.charge));
        let free = self.effective(host).filter(|_| self.regime(host) != Regime::None);
        let free = free.map(|free| free.saturating_add(own));
        if thaws > Mib::ZERO && free.is_some_and(|free| free < thaws.signed()) {
            return false;
        }
        let charge = if resident {
            None
        } else {
            let needs_slot = !holds_slot(status, released);
            if needs_slot && self.slots_free(pool, place) == Some(0) {
                return false;
            }
            let spec = Arc::clone(&row.spec);
            let mut ask = self.sandbox_ask(ix, &spec, place);
            // A start that its own host refused a moment ago may be asked of it again: it is the
            // only one that has the checkpoint.
            ask.tried.clear();
            if !self.fits(pool, host, &ask) {
                return false;
            }
            Some(self.found(pool, host, &ask).charge)
        };
        if self.sandboxes[ix].on_host.is_none() {
            self.join_host(ix, host);
        }
        // A stopped one goes on under its attempt too: its host starts it from its disk.
        let row = &self.sandboxes[ix].row;
        let op = HostOp::Resume { id: row.id, attempt: row.attempt };
        let fence = self.send(now, host, op, self.config.start_timeout, Millis::ZERO, out);
        let waited = self.sandboxes[ix].row.resume_requested_at;
        self.change(now, ix, out, |row| {
            row.status = SandboxStatus::Resuming;
            row.reason = None;
            row.slot_released = false;
            row.fence = fence;
            row.last_active_at = now;
            row.decision_id = decision;
            if let Some(charge) = charge {
                row.charge_mib = charge;
                row.measured = false;
                row.resident_mib = None;
            }
        });
        let number = Some(fence.number);
        self.sandboxes[ix].asked = None;
        match charge {
            Some(Mib(charge)) => {
                self.set_pending(ix, Pending { charge, number, starting: true, thaws: false });
            }
            None => {
                let charge = thaws.0;
                self.set_pending(ix, Pending { charge, number, starting: false, thaws: true });
            }
        }
        if let Some(since) = waited {
            let name = self.pools[pool].row.name.clone();
            out.observations.push(Observation::ResumeWait(name, now.since(since)));
        }
        let asked = self.sandbox_asked(ix, false);
        let mut record = self.decision(now, decision, Verb::Resume, &asked);
        let row = &self.sandboxes[ix].row;
        record.object = Some(plimsoll_types::ClaimId::Sandbox(row.id));
        record.host.clone_from(&row.host);
        record.charge_mib = row.charge_mib;
        out.changes.push(crate::rows::Change::Decision(Box::new(record)));
        true
    }

    /// What a guest that is frozen in memory will cost its host, once it runs again, on top of
    /// what the host's last report charges for it.
    pub(super) fn thaw_charge(&self, pool: Ix, host: Ix, ix: Ix) -> Mib {
        let row = &self.sandboxes[ix].row;
        let rule = &self.pools[pool].row.settings.reserve;
        let report = self.hosts[host].report.as_ref().map(|seen| &seen.report);
        let id = plimsoll_types::ClaimId::Sandbox(row.id);
        let listed = report.and_then(|report| report.guests.iter().find(|guest| guest.id == id));
        let held = listed.and_then(|guest| guest.resident_mib).or(row.resident_mib);
        let held = held.unwrap_or(Mib::ZERO);
        let thawed = thawed_charge(self.regime(host), rule, &row_shape(row), held);
        thawed.saturating_sub(listed.map_or(Mib::ZERO, |guest| guest.charge_mib))
    }

    /// Decides a waiting resume again. `true` when it waits no more.
    pub(super) fn serve_resume(
        &mut self,
        now: Timestamp,
        pool: Ix,
        place: Place,
        ix: Ix,
        out: &mut Output,
    ) -> bool {
        let decision = self.mint_decision(now);
        if !self.try_resume(now, ix, Some(place), decision, out) {
            return false;
        }
        self.dequeue(pool, place);
        true
    }

    /// Resumes that nobody has asked for again within the bound are wanted no more.
    pub(super) fn lapse_resumes(&mut self, now: Timestamp, pool: Ix, out: &mut Output) {
        let lapse = Millis::from_seconds(self.pools[pool].row.settings.resume_lapse_seconds);
        let over: Vec<Ix> = self.pools[pool]
            .queue
            .iter()
            .filter_map(|(place, waiter)| match waiter {
                Waiter::Resume(ix) if now.since(place.since) >= lapse => Some(*ix),
                _ => None,
            })
            .collect();
        for ix in over {
            self.leave_queue(ix);
            self.change(now, ix, out, |row| {
                row.resume_requested_at = None;
                row.reason = Some(Arc::from("paused; its resume waited too long and lapsed"));
            });
        }
    }

    /// Sends the start of the present attempt.
    pub(super) fn send_start(
        &mut self,
        now: Timestamp,
        ix: Ix,
        host: Ix,
        delay: Millis,
        out: &mut Output,
    ) -> Fence {
        let guest = Box::new(self.guest_spec(ix));
        self.hosts[host].aside.begin_trial(now);
        let timeout = self.config.start_timeout;
        let fence = self.send(now, host, HostOp::Start { guest }, timeout, delay, out);
        if self.hosts[host].aside.failures_in_a_row() > 0 {
            self.check_host(now, host, out);
        }
        fence
    }

    fn guest_spec(&self, ix: Ix) -> GuestSpec {
        let sandbox = &self.sandboxes[ix];
        let row = &sandbox.row;
        let pool = sandbox.pool.or(sandbox.home).unwrap_or_default();
        let settings = &self.pools[pool].row.settings;
        GuestSpec {
            id: row.id,
            attempt: row.attempt,
            tenant: row.tenant.clone(),
            template: row.template.clone(),
            driver: row.driver,
            memory_mib: row.memory_mib,
            overhead_mib: row.overhead_mib,
            vcpus: row.vcpus,
            stateful: row.stateful,
            preemptible: row.preemptible,
            priority: row.priority,
            command: row.spec.command.clone(),
            env: row.spec.env.clone(),
            rootfs: row.spec.rootfs.clone(),
            baked: row.spec.baked,
            fork_of: row.spec.fork_of,
            counted: row.spec.counted.clone(),
            reserve: settings.reserve,
            settle_seconds: settings.settle_seconds,
            decay_seconds: settings.decay_seconds,
        }
    }

    /// The host runs it.
    pub(super) fn now_running(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let sandbox = &mut self.sandboxes[ix];
        sandbox.taken_over = false;
        sandbox.edit_rare(|rare| {
            rare.failures = 0;
            rare.repeats = 0;
            rare.tried.clear();
        });
        self.no_longer_starting(ix);
        let resumed = self.sandboxes[ix].row.status == SandboxStatus::Resuming;
        self.start_over(now, ix);
        let brought_in = !self.sandboxes[ix].rare().displaced.is_empty();
        self.change(now, ix, out, |row| {
            row.brought_in_at = brought_in.then_some(now);
            row.status = SandboxStatus::Running;
            row.reason = None;
            row.idled = false;
            row.resume_requested_at = None;
            row.started_at = Some(now);
            row.last_active_at = row.last_active_at.max(now);
        });
        let kind = if resumed { "sandbox.resumed" } else { "sandbox.started" };
        self.sandbox_event(now, ix, kind, Value::Null, out);
    }

    /// Its pause has finished.
    pub(super) fn now_paused(&mut self, now: Timestamp, ix: Ix, released: bool, out: &mut Output) {
        self.pause_over(now, ix);
        self.sandboxes[ix].woken = false;
        self.sandboxes[ix].edit_rare(|rare| rare.displaced.clear());
        if released {
            self.keep_for_waiter(now, ix);
        }
        self.change(now, ix, out, |row| {
            row.brought_in_at = None;
            row.status = SandboxStatus::Paused;
            row.slot_released = released;
            row.preempted_for = None;
            if released {
                row.charge_mib = plimsoll_types::Mib::ZERO;
                row.resident_mib = None;
                row.measured = false;
            }
        });
        let detail = json!({ "slot_released": released });
        self.sandbox_event(now, ix, "sandbox.paused", detail, out);
        if self.sandboxes[ix].row.resume_requested_at.is_some() {
            let decision = self.mint_decision(now);
            self.request_resume(now, ix, decision, out);
        }
    }

    /// Learns from how long a start or a resume took.
    fn start_over(&mut self, now: Timestamp, ix: Ix) {
        let row = &self.sandboxes[ix].row;
        let (Some(pool), SandboxStatus::Provisioning | SandboxStatus::Resuming) =
            (self.sandboxes[ix].pool, row.status)
        else {
            return;
        };
        let took = now.since(row.status_since).0;
        let state = &mut self.pools[pool];
        state.start_millis = (state.start_millis.saturating_mul(7) + took) / 8;
    }

    /// Forgets the expected end of a pause, and learns from how long it took.
    pub(super) fn pause_over(&mut self, now: Timestamp, ix: Ix) {
        let sandbox = &mut self.sandboxes[ix];
        let expected = sandbox.rare().pause_expected;
        sandbox.edit_rare(|rare| rare.pause_expected = None);
        let (Some(expected), Some(pool)) = (expected, sandbox.pool) else { return };
        let took = now.since(sandbox.row.status_since).0;
        let state = &mut self.pools[pool];
        state.pausing.remove(&(expected, ix));
        state.pause_millis = (state.pause_millis.saturating_mul(7) + took) / 8;
    }

    /// The pause did not happen: it runs on, and is no victim for a while.
    pub(super) fn pause_failed(&mut self, now: Timestamp, ix: Ix, why: &str, out: &mut Output) {
        self.pause_over(now, ix);
        self.sandboxes[ix].edit_rare(|rare| rare.pause_failed_at = Some(now));
        let reason = format!("its pause failed: {why}");
        self.change(now, ix, out, |row| {
            row.status = SandboxStatus::Running;
            row.reason = Some(Arc::from(reason));
            row.idled = false;
            row.preempted_for = None;
            row.resume_requested_at = None;
        });
        if let Some(pool) = self.sandboxes[ix].pool {
            self.stir(pool);
        }
    }

    /// Its host paused it by itself.
    pub(super) fn paused_by_host(
        &mut self,
        now: Timestamp,
        ix: Ix,
        released: bool,
        why: &str,
        out: &mut Output,
    ) {
        self.change(now, ix, out, |row| {
            row.reason = Some(Arc::from(why));
            row.idled = true;
        });
        self.now_paused(now, ix, released, out);
    }

    /// Its host runs it although the cell holds it paused: the fleet is followed. It takes a
    /// slot, and where there is none the pool shows as overcommitted.
    pub(super) fn woken(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        self.leave_queue(ix);
        let took = self.sandboxes[ix].row.slot_released;
        self.sandboxes[ix].woken = took
            && self.sandboxes[ix].pool.is_some_and(|pool| self.slots_free(pool, None) == Some(0));
        self.change(now, ix, out, |row| {
            row.status = SandboxStatus::Running;
            row.slot_released = false;
            row.idled = false;
            row.resume_requested_at = None;
            row.reason = Some(Arc::from("woken by its host"));
            row.started_at = Some(now);
            row.last_active_at = now;
        });
        self.sandbox_corrected(now, ix, "woken", out);
        self.sandbox_event(now, ix, "sandbox.resumed", json!({ "by": "host" }), out);
    }

    fn sandbox_corrected(&mut self, now: Timestamp, ix: Ix, what: &'static str, out: &mut Output) {
        let sandbox = &self.sandboxes[ix];
        let data = json!({ "id": sandbox.row.id, "host": sandbox.row.host });
        let tenant = sandbox.tenant;
        self.corrected(now, what, Some(tenant), data, out);
    }

    /// A guest that was given up for lost is there after all, running or paused.
    pub(super) fn revived(
        &mut self,
        now: Timestamp,
        ix: Ix,
        status: SandboxStatus,
        released: bool,
        out: &mut Output,
    ) {
        let Some(host) = self.sandboxes[ix].host else { return };
        self.join_host(ix, host);
        self.change_whole(now, ix, out, |sandbox| {
            // A stop that it was lost in is void: it has not ended.
            sandbox.stopping = false;
            let row = &mut sandbox.row;
            row.status = status;
            row.slot_released = released;
            row.ended_at = None;
            row.reason = Some(Arc::from(format!("its host came back with it {status}")));
        });
        self.sandbox_corrected(now, ix, "revived", out);
        self.sandbox_event(now, ix, "sandbox.resumed", json!({ "by": "returned host" }), out);
    }

    /// Its process has ended by itself.
    pub(super) fn exited(
        &mut self,
        now: Timestamp,
        ix: Ix,
        code: Option<i32>,
        why: Option<&str>,
        out: &mut Output,
    ) {
        let reason = match (why, code) {
            (Some(why), _) => why.to_owned(),
            (None, Some(code)) => format!("exited with code {code}"),
            (None, None) => "exited".to_owned(),
        };
        self.sandboxes[ix].row.exit_code = code;
        self.terminate(now, ix, &reason, out);
    }

    /// Ends a sandbox, whatever its state. Idempotent.
    pub(super) fn terminate(&mut self, now: Timestamp, ix: Ix, why: &str, out: &mut Output) {
        let status = self.sandboxes[ix].row.status;
        if status == SandboxStatus::Failed {
            // It is wanted no more: should its host come back with it, it is ended there.
            return self.gone(now, ix, None, out);
        }
        if status.is_terminal() || status == SandboxStatus::Terminating {
            return;
        }
        self.leave_queue(ix);
        self.pause_over(now, ix);
        let on_host = self.sandboxes[ix].on_host.and(self.sandboxes[ix].host);
        let Some(host) = on_host else {
            self.change(now, ix, out, |row| row.reason = Some(Arc::from(why)));
            self.gone(now, ix, None, out);
            return;
        };
        let row = &self.sandboxes[ix].row;
        let op = HostOp::End { id: row.id, attempt: row.attempt };
        let timeout = self.config.terminate_timeout;
        let fence = self.send(now, host, op, timeout, Millis::ZERO, out);
        self.change(now, ix, out, |row| {
            row.status = SandboxStatus::Terminating;
            row.reason = Some(Arc::from(why));
            row.resume_requested_at = None;
            row.fence = fence;
        });
    }

    /// Its end is confirmed.
    pub(super) fn gone(&mut self, now: Timestamp, ix: Ix, why: Option<&str>, out: &mut Output) {
        self.leave_queue(ix);
        self.pause_over(now, ix);
        self.change(now, ix, out, |row| {
            row.status = SandboxStatus::Terminated;
            row.resume_requested_at = None;
            row.charge_mib = plimsoll_types::Mib::ZERO;
            if let Some(why) = why {
                row.reason = Some(Arc::from(why));
            }
        });
        self.sandbox_event(now, ix, "sandbox.terminated", Value::Null, out);
    }

    /// It has come to an end by a fault.
    pub(super) fn fail(&mut self, now: Timestamp, ix: Ix, why: &str, out: &mut Output) {
        self.leave_queue(ix);
        self.pause_over(now, ix);
        self.change(now, ix, out, |row| {
            row.status = SandboxStatus::Failed;
            row.reason = Some(Arc::from(why));
            row.resume_requested_at = None;
            row.charge_mib = plimsoll_types::Mib::ZERO;
        });
        self.sandbox_event(now, ix, "sandbox.failed", Value::Null, out);
    }

    /// An event about one sandbox, with what every such event says.
    pub(super) fn sandbox_event(
        &mut self,
        now: Timestamp,
        ix: Ix,
        kind: &str,
        more: Value,
        out: &mut Output,
    ) {
        let row: &SandboxRow = &self.sandboxes[ix].row;
        let mut data = json!({
            "id": row.id, "pool": row.pool, "status": row.status, "reason": row.reason,
        });
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        let tenant = row.tenant.clone();
        self.event(now, kind, Some(tenant), data, out);
    }

    /// Whether a finished pause of this kind frees a slot in the sandbox's pool.
    pub(super) fn pause_kind(&self, ix: Ix) -> PauseKind {
        let sandbox = &self.sandboxes[ix];
        let kind =
            sandbox.pool.map_or(PauseKind::Driver, |pool| self.pools[pool].row.settings.pause);
        plimsoll_policy::slots::resolve_pause(kind, sandbox.row.driver)
    }
}
