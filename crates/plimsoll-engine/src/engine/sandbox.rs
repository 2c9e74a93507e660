//! Sandboxes up to their verdict: create, fork, and what serves those that wait.

use std::num::NonZeroU128;
use std::sync::Arc;

use plimsoll_policy::charge::Shape;
use plimsoll_policy::rate::Operation;
use plimsoll_policy::score::request_ring;
use plimsoll_types::{
    ClaimId, DecisionId, DriverSet, Fence, Mib, Millis, RefusalCode, RetryHint, SandboxId,
    SandboxStatus, TemplateName, Timestamp,
};
use serde_json::json;
use smallvec::SmallVec;

use super::Engine;
use super::gate::Asked;
use super::keys::{Bound, Route, fingerprint};
use super::reserve::after;
use super::state::{Ask, Claim, Found, Ix, ParkedCall, Pending, Place, Sandbox, Use, Waiter};
use crate::command::{Caller, Command, CreateSandbox, ForkSandbox, Token};
use crate::output::{Disposition, Observation, Output, Refusal, Reply, SandboxView};
use crate::rows::{Change, Labels, Meter, Role, SandboxRow, SandboxSpec, TemplateRow, Verb};

/// A create or a fork on its way to a verdict.
pub(super) struct Draft {
    pub(super) row: SandboxRow,
    pub(super) tenant: Ix,
    pub(super) pool: Ix,
    pub(super) print: Option<u128>,
    pub(super) body_hash: u64,
    pub(super) verb: Verb,
    pub(super) answered: bool,
    /// The only host that will do: it has the checkpoint to start from.
    pub(super) pinned: Option<Ix>,
}

impl Engine {
    pub(super) fn create(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        create: CreateSandbox,
        may_park: bool,
        out: &mut Output,
    ) {
        let retry = may_park.then(|| Command::Create(Box::new(create.clone())));
        match self.draft_create(now, caller, create) {
            Ok(draft) => self.decide(now, token, caller, draft, retry, out),
            Err(refusal) => Self::refuse(token, *refusal, out),
        }
    }

    pub(super) fn draft_create(
        &self,
        now: Timestamp,
        caller: &Caller,
        create: CreateSandbox,
    ) -> Result<Draft, Box<Refusal>> {
        let tenant = self.tenant_of(caller)?;
        let template = self
            .templates
            .get(&create.template)
            .ok_or_else(|| self.unknown_template(&create.template))?;
        let name =
            create.pool.as_ref().or(template.pool.as_ref()).unwrap_or(&self.config.default_pool);
        let pool = self.pool_ix.get(name).copied().ok_or_else(|| self.unknown_pool(name))?;
        let (key, body_hash) = match &create.key {
            Some((key, hash)) => (Some(Arc::clone(key)), *hash),
            None => (None, 0),
        };
        let print =
            key.as_deref().map(|key| fingerprint(caller.tenant.as_str(), Route::Create, key));
        let row = self.new_row(now, caller, &create, template, key);
        let (verb, answered) = (Verb::Create, create.answered);
        Ok(Draft { row, tenant, pool, print, body_hash, verb, answered, pinned: None })
    }

    fn new_row(
        &self,
        now: Timestamp,
        caller: &Caller,
        create: &CreateSandbox,
        template: &TemplateRow,
        key: Option<Arc<str>>,
    ) -> SandboxRow {
        let mut env = template.env.clone();
        env.extend(create.env.clone());
        let command = if create.command.is_empty() {
            template.command.clone()
        } else {
            create.command.clone()
        };
        let spec = SandboxSpec {
            command,
            env,
            counted: template.counted.clone(),
            host_labels: template.host_labels.clone(),
            rootfs: template.rootfs.clone(),
            baked: template.baked,
            requested_pool: create.pool.clone(),
            fork_of: None,
            lifecycle: create.lifecycle,
        };
        SandboxRow {
            id: create.id,
            tenant: caller.tenant.clone(),
            template: template.name.clone(),
            spec: Arc::new(spec),
            key,
            labels: Labels::from(&create.labels),
            status: SandboxStatus::Queued,
            reason: None,
            status_since: now,
            pool: None,
            host: None,
            driver: template.driver,
            attempt: 0,
            fence: Fence::default(),
            memory_mib: create.memory_mib.unwrap_or(template.memory_mib),
            overhead_mib: template.overhead_mib,
            vcpus: create.vcpus.unwrap_or(template.vcpus),
            stateful: create.stateful.unwrap_or(template.stateful),
            priority: create.priority,
            preemptible: create.preemptible,
            criticality: create.criticality,
            on_full: create.on_full,
            slot_released: false,
            idled: false,
            resume_requested_at: None,
            brought_in_at: None,
            preempted_for: None,
            queued_at: now,
            created_at: now,
            started_at: None,
            last_active_at: now,
            ended_at: None,
            exit_code: None,
            charge_mib: Mib::ZERO,
            resident_mib: None,
            measured: false,
            decision_id: create.decision,
            body_hash: create.key.as_ref().map_or(0, |(_, hash)| *hash),
            paused_by: None,
            meter: Meter::default(),
        }
    }

    pub(super) fn fork(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        fork: ForkSandbox,
        may_park: bool,
        out: &mut Output,
    ) {
        let retry = may_park.then(|| Command::Fork(Box::new(fork.clone())));
        match self.draft_fork(now, caller, fork) {
            Ok(draft) => self.decide(now, token, caller, draft, retry, out),
            Err(refusal) => Self::refuse(token, *refusal, out),
        }
    }

    fn draft_fork(
        &self,
        now: Timestamp,
        caller: &Caller,
        fork: ForkSandbox,
    ) -> Result<Draft, Box<Refusal>> {
        let source = self.own_sandbox(caller, fork.from)?;
        let sandbox = &self.sandboxes[source];
        if !matches!(sandbox.row.status, SandboxStatus::Running | SandboxStatus::Paused) {
            let detail = format!(
                "{} is {}: only a running or paused one can be forked",
                fork.from, sandbox.row.status
            );
            return Err(Box::new(Refusal::new(RefusalCode::Conflict, detail)));
        }
        if !sandbox.row.driver.checkpoints() {
            let detail = format!(
                "{} runs under the {} driver, which writes no checkpoint to fork from",
                fork.from, sandbox.row.driver
            );
            return Err(Box::new(Refusal::new(RefusalCode::Conflict, detail)));
        }
        let (Some(pool), Some(host)) = (sandbox.pool, sandbox.host) else {
            let detail = format!("{} is on no host", fork.from);
            return Err(Box::new(Refusal::new(RefusalCode::Conflict, detail)));
        };
        let (key, body_hash) = match &fork.key {
            Some((key, hash)) => (Some(Arc::clone(key)), *hash),
            None => (None, 0),
        };
        let print =
            key.as_deref().map(|key| fingerprint(sandbox.row.tenant.as_str(), Route::Fork, key));
        let mut spec = (*sandbox.row.spec).clone();
        spec.fork_of = Some(fork.from);
        let row = SandboxRow {
            id: fork.id,
            spec: Arc::new(spec),
            key,
            labels: fork.labels.as_ref().map_or_else(|| sandbox.row.labels.clone(), Labels::from),
            status: SandboxStatus::Queued,
            reason: None,
            status_since: now,
            pool: None,
            host: None,
            attempt: 0,
            fence: Fence::default(),
            priority: fork.priority.unwrap_or(sandbox.row.priority),
            on_full: fork.on_full,
            slot_released: false,
            idled: false,
            resume_requested_at: None,
            brought_in_at: None,
            preempted_for: None,
            queued_at: now,
            created_at: now,
            started_at: None,
            last_active_at: now,
            ended_at: None,
            exit_code: None,
            charge_mib: Mib::ZERO,
            resident_mib: None,
            measured: false,
            decision_id: fork.decision,
            body_hash,
            paused_by: None,
            meter: Meter::default(),
            ..sandbox.row.clone()
        };
        let (tenant, verb, answered) = (sandbox.tenant, Verb::Fork, fork.answered);
        Ok(Draft { row, tenant, pool, print, body_hash, verb, answered, pinned: Some(host) })
    }

    /// The verdict over a create or a fork: joined, refused, parked, queued or admitted.
    fn decide(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        mut draft: Draft,
        retry: Option<Command>,
        out: &mut Output,
    ) {
        if let (Some(print), Some(key)) = (draft.print, draft.row.key.clone()) {
            match self.bound(print, draft.tenant, &key, draft.body_hash) {
                Bound::Same(Claim::Sandbox(ix)) => {
                    self.answer(token, ix, None, Disposition::Replayed, out);
                    return;
                }
                Bound::Free => {}
                _ => {
                    let detail = format!("the key {key:?} is bound to a request with another body");
                    let refusal = Refusal::new(RefusalCode::Conflict, detail);
                    return Self::refuse(token, refusal, out);
                }
            }
        }
        let asked = draft_asked(&draft);
        let pools = self.eligible(draft.pool, draft.pinned.is_none());
        if let Some(refusal) = self.gate(now, &asked, &pools) {
            let decision = draft.row.decision_id;
            return self.refused(now, token, decision, draft.verb, &asked, refusal, out);
        }
        let spec = Arc::clone(&draft.row.spec);
        let ask = row_ask(&draft.row, &spec, SmallVec::new(), None);
        let found = match draft.pinned {
            None => self.find(&pools, &ask),
            Some(host) => self.find_pinned(draft.pool, host, &ask),
        };
        let miss = match found {
            Ok(found) => {
                let (decision, verb) = (draft.row.decision_id, draft.verb);
                self.spend(now, &asked);
                let ix = self.insert_draft(draft);
                self.created(now, ix, out);
                self.admit(now, ix, found, decision, verb, out);
                self.answer(token, ix, Some(decision), Disposition::Created, out);
                return;
            }
            Err(miss) => miss,
        };
        if let Some(command) = retry {
            let call = || ParkedCall::Command(caller.clone(), command);
            if self.park(now, token, &pools, &miss, call, out) {
                return;
            }
        }
        let refusal = self.capacity_refusal(now, &pools, &ask, &miss);
        let decision = draft.row.decision_id;
        if let Some(print) = draft.print {
            if let Some(since) = self.ticket_since(now, print) {
                draft.row.queued_at = since;
            }
            self.ticket_refused(now, print, after(&refusal));
        }
        if draft.row.on_full == plimsoll_types::OnFull::Reject {
            return self.refused(now, token, decision, draft.verb, &asked, refusal, out);
        }
        if let Some(full) = self.queue_full(draft.pool, draft.tenant) {
            return self.refused(now, token, decision, draft.verb, &asked, full, out);
        }
        self.spend(now, &asked);
        let mut record = self.decision(now, decision, draft.verb, &asked);
        record.code = Some(refusal.code);
        record.object = Some(ClaimId::Sandbox(draft.row.id));
        record.counts = miss.counts;
        record.detail = Some(Arc::from(format!("queued: {}", refusal.detail)));
        out.changes.push(Change::Decision(Box::new(record)));
        draft.row.reason = Some(Arc::from(format!("waiting: {}", refusal.detail)));
        let pool = draft.pool;
        let ix = self.insert_draft(draft);
        self.created(now, ix, out);
        self.queue_create(now, pool, ix, out);
        self.arm_sandbox(now, ix);
        self.write(ix, out);
        self.answer(token, ix, Some(decision), Disposition::Queued, out);
    }

    /// Puts a waiting create into its pool's queue.
    pub(super) fn queue_create(&mut self, now: Timestamp, pool: Ix, ix: Ix, out: &mut Output) {
        let row = &self.sandboxes[ix].row;
        let (priority, since) = (row.priority, row.queued_at);
        let (id, tenant) = (row.id, row.tenant.clone());
        let place = self.next_place(priority, since);
        self.enqueue(now, pool, place, Waiter::Create(ix));
        let data = json!({ "id": id, "pool": self.pools[pool].row.name });
        self.event(now, "sandbox.queued", Some(tenant), data, out);
    }

    fn insert_draft(&mut self, mut draft: Draft) -> Ix {
        let id = draft.row.id;
        draft.row.spec = self.specs.share(draft.row.spec);
        let ix = self.insert_sandbox(Sandbox {
            tenant: draft.tenant,
            key: draft.print.and_then(NonZeroU128::new),
            answered: draft.answered,
            home: Some(draft.pool),
            ..Sandbox::new(draft.row)
        });
        debug_assert_eq!(self.sandbox_ix.get(&id), Some(&ix));
        ix
    }

    /// Puts a record in, with its id and key; what it holds is counted by the caller.
    pub(super) fn insert_sandbox(&mut self, sandbox: Sandbox) -> Ix {
        let (id, key) = (sandbox.row.id, sandbox.key);
        self.totals.queued += u64::from(sandbox.row.status == SandboxStatus::Queued);
        let ix = self.sandboxes.insert(sandbox);
        self.sandbox_ix.insert(id, ix);
        if let Some(print) = key {
            self.bound.insert(print.get(), Claim::Sandbox(ix));
        }
        ix
    }

    fn created(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let row = &self.sandboxes[ix].row;
        let data = json!({ "id": row.id, "template": row.template });
        let tenant = row.tenant.clone();
        self.event(now, "sandbox.created", Some(tenant), data, out);
    }

    /// Takes quota, slot and host in one step, and sends the start.
    pub(super) fn admit(
        &mut self,
        now: Timestamp,
        ix: Ix,
        found: Found,
        decision: DecisionId,
        verb: Verb,
        out: &mut Output,
    ) {
        self.sandboxes[ix].pool = Some(found.pool);
        self.join_host(ix, found.host);
        let pool_name = self.pools[found.pool].row.name.clone();
        self.sandboxes[ix].row.attempt += 1;
        self.sandboxes[ix].row.pool = Some(pool_name.clone());
        let fence = self.send_start(now, ix, found.host, Millis::ZERO, out);
        self.change(now, ix, out, |row| {
            row.status = SandboxStatus::Provisioning;
            row.reason = None;
            row.slot_released = false;
            row.fence = fence;
            row.charge_mib = found.charge;
            row.resident_mib = None;
            row.measured = false;
            row.decision_id = decision;
        });
        let (charge, number) = (found.charge.0, Some(fence.number));
        self.set_pending(ix, Pending { charge, number, starting: true, thaws: false });
        let asked = self.sandbox_asked(ix, true);
        let mut record = self.decision(now, decision, verb, &asked);
        let row = &self.sandboxes[ix].row;
        record.object = Some(ClaimId::Sandbox(row.id));
        record.pool.clone_from(&row.pool);
        record.host.clone_from(&row.host);
        record.charge_mib = found.charge;
        let mode = self.pools[found.pool].policy.1;
        out.changes.push(Change::Decision(Box::new(record)));
        out.observations.push(Observation::Admission(pool_name, mode));
        if let Some(print) = self.sandboxes[ix].key {
            self.ticket_admitted(now, print.get(), out);
        }
    }

    /// What its making counted as.
    pub(super) fn operation(&self, ix: Ix) -> Operation {
        match self.sandboxes[ix].row.spec.fork_of {
            Some(_) => Operation::Fork,
            None => Operation::Create,
        }
    }

    pub(super) fn sandbox_asked(&self, ix: Ix, adds: bool) -> Asked {
        let sandbox = &self.sandboxes[ix];
        let row = &sandbox.row;
        Asked {
            tenant: sandbox.tenant,
            pool: sandbox.pool.or(sandbox.home).unwrap_or_default(),
            shape: row_shape(row),
            incoming: Use::one(row.memory_mib, row.vcpus),
            criticality: row.criticality,
            adds,
            rate: (self.operation(ix), 0),
        }
    }

    pub(super) fn sandbox_ask<'a>(
        &'a self,
        ix: Ix,
        spec: &'a SandboxSpec,
        place: Option<Place>,
    ) -> Ask<'a> {
        let sandbox = &self.sandboxes[ix];
        let still = |(host, stamp): &(Ix, Option<u64>)| {
            let known = self.hosts.get(*host).map(|state| state.stamp);
            (stamp.is_none() || *stamp == known).then_some(*host)
        };
        let tried = sandbox.rare().tried.iter().filter_map(still).collect();
        row_ask(&sandbox.row, spec, tried, place)
    }

    /// The one host that has the checkpoint, if it takes the request.
    pub(super) fn find_pinned(
        &self,
        pool: Ix,
        host: Ix,
        ask: &Ask<'_>,
    ) -> Result<Found, Box<super::place::Miss>> {
        if self.slots_free(pool, ask.place) != Some(0) && self.fits(pool, host, ask) {
            return Ok(self.found(pool, host, ask));
        }
        let mut miss = self.miss(&[pool], ask);
        if miss.full.is_none() {
            miss.counts = plimsoll_types::FilterCounts::default();
            match self.host_filter(pool, host, ask) {
                Some(filter) => miss.counts.count(filter),
                None => miss.counts.count_candidate(),
            }
            miss.code = plimsoll_policy::precedence::capacity_code(&miss.counts, false);
        }
        Err(Box::new(miss))
    }

    /// Decides a waiting create again. `true` when it waits no more.
    pub(super) fn serve_create(
        &mut self,
        now: Timestamp,
        pool: Ix,
        place: Place,
        ix: Ix,
        out: &mut Output,
    ) -> bool {
        let source = self.sandboxes[ix].row.spec.fork_of;
        let pinned = match source {
            None => None,
            Some(source) => {
                match self.sandbox_ix.get(&source).and_then(|s| self.sandboxes[*s].host) {
                    Some(host) => Some(host),
                    None => {
                        self.dequeue(pool, place);
                        self.fail(now, ix, "start_failed: the sandbox to fork from is gone", out);
                        return true;
                    }
                }
            }
        };
        let pools = self.eligible(pool, pinned.is_none());
        let spec = Arc::clone(&self.sandboxes[ix].row.spec);
        let found = {
            let ask = self.sandbox_ask(ix, &spec, Some(place));
            match pinned {
                None => self.find(&pools, &ask),
                Some(host) => self.find_pinned(pool, host, &ask),
            }
        };
        let Ok(found) = found else { return false };
        self.dequeue(pool, place);
        let decision = self.mint_decision(now);
        self.admit(now, ix, found, decision, Verb::Create, out);
        true
    }

    /// A caller's own sandbox.
    pub(super) fn own_sandbox(&self, caller: &Caller, id: SandboxId) -> Result<Ix, Box<Refusal>> {
        self.sandbox_ix
            .get(&id)
            .copied()
            .filter(|ix| {
                caller.role == Role::Operator || self.sandboxes[*ix].row.tenant == caller.tenant
            })
            .ok_or_else(|| {
                Box::new(Refusal::new(RefusalCode::NotFound, format!("no sandbox {id}")))
            })
    }

    pub(super) fn unknown_template(&self, name: &TemplateName) -> Refusal {
        let known: Vec<String> = self.templates.keys().map(ToString::to_string).collect();
        let mut refusal = Refusal::new(
            RefusalCode::UnknownTemplate,
            format!("no template {name}; there are: {}", known.join(", ")),
        );
        refusal.known = known;
        refusal
    }

    pub(super) fn view(&self, ix: Ix) -> SandboxView {
        let sandbox = &self.sandboxes[ix];
        let place = sandbox.rare().place.map(|(pool, place)| {
            let ahead = self.pools[pool].queue.range(..place).take(self.config.queue_max).count();
            u64::try_from(ahead).unwrap_or(u64::MAX) + 1
        });
        let agent = sandbox.on_host.and(sandbox.host).and_then(|host| {
            let row = &self.hosts[host].row;
            row.address.clone().map(|address| (address, row.secret.clone()))
        });
        SandboxView { row: sandbox.row.clone(), agent, place }
    }

    pub(super) fn answer(
        &self,
        token: Token,
        ix: Ix,
        decision: Option<DecisionId>,
        disposition: Disposition,
        out: &mut Output,
    ) {
        let view = Box::new(self.view(ix));
        out.replies.push((token, Reply::Sandbox { view, decision, disposition }));
    }
}

pub(super) fn wrong_state(id: SandboxId, status: SandboxStatus, what: &str) -> Refusal {
    let mut refusal =
        Refusal::new(RefusalCode::Conflict, format!("{id} is {status}: it cannot be {what} now"));
    if !status.is_terminal() {
        refusal.retry = RetryHint::Maybe;
    }
    refusal
}

pub(super) fn row_shape(row: &SandboxRow) -> Shape {
    Shape {
        memory: row.memory_mib,
        overhead: row.overhead_mib,
        vcpus: row.vcpus,
        stateful: row.stateful,
    }
}

pub(super) fn row_ask<'a>(
    row: &SandboxRow,
    spec: &'a SandboxSpec,
    tried: SmallVec<[Ix; 4]>,
    place: Option<Place>,
) -> Ask<'a> {
    Ask {
        shape: row_shape(row),
        drivers: DriverSet::EMPTY.with(row.driver),
        labels: &spec.host_labels,
        counted: &spec.counted,
        ring: request_ring(row.id.0),
        tried,
        place,
    }
}

fn draft_asked(draft: &Draft) -> Asked {
    Asked {
        tenant: draft.tenant,
        pool: draft.pool,
        shape: row_shape(&draft.row),
        incoming: Use::one(draft.row.memory_mib, draft.row.vcpus),
        criticality: draft.row.criticality,
        adds: true,
        rate: (if draft.pinned.is_some() { Operation::Fork } else { Operation::Create }, 1),
    }
}
