//! The engine itself: what it holds, and the way of an input through it.

mod abuse;
mod account;
mod admin;
mod explain;
mod external;
mod fleet;
mod gate;
mod hash;
mod invariants;
mod inventory;
mod keys;
mod ladder;
mod ledger;
mod limits;
mod meter;
mod names;
mod netting;
mod outcome;
mod place;
mod preempt;
mod queue;
mod reads;
mod reservation;
mod reserve;
mod restore;
mod run;
mod sandbox;
mod slab;
mod specs;
mod state;
mod timers;
mod totals;
mod verbs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use plimsoll_types::{
    DecisionId, EndpointId, EventId, KeyId, PlanId, PoolName, ReservationId, SandboxId,
    TemplateName, TenantId, Timestamp,
};

use crate::command::{Caller, Command, Input, Read, Token};
use crate::config::EngineConfig;
use crate::output::{Effect, Observation, Output, Refusal, Reply};
use crate::rows::{Change, EndpointRow, EventRow, KeyRow, PlanLimits, TemplateRow};
use hash::IdMap;
use names::TenantNames;
pub use restore::RestoreError;
use slab::Slab;
use state::{
    Claim, Host, HostNames, Ix, Parked, Partition, PartitionKey, Pool, Reservation, Sandbox,
    Tenant, Ticket,
};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its id, such as `I3`.
    pub id: &'static str,
    /// What was found.
    pub detail: String,
}

/// One cell's state.
///
/// Everything that an operator or a caller can see follows from rows; every sum beside them is
/// kept for speed alone and is checked against them by [`Engine::check`].
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    epoch: u64,
    /// Ids that the engine makes itself: the time, the epoch, and this.
    minted: u64,
    /// The latest time that an event's id carries.
    event_millis: u64,
    arrivals: u64,
    /// The limits of every plan, shared with the tenants that have none of their own on top.
    plans: BTreeMap<PlanId, Arc<PlanLimits>>,
    tenants: Slab<Tenant>,
    tenant_ix: TenantNames,
    pools: Slab<Pool>,
    pool_ix: BTreeMap<PoolName, Ix>,
    templates: BTreeMap<TemplateName, TemplateRow>,
    keys: BTreeMap<KeyId, KeyRow>,
    endpoints: BTreeMap<EndpointId, EndpointRow>,
    hosts: Slab<Host>,
    host_ix: HostNames,
    partitions: Slab<Partition>,
    partition_ix: BTreeMap<PartitionKey, Ix>,
    /// Label keys that some template asks for: only these tell hosts apart.
    label_keys: BTreeSet<String>,
    sandboxes: Slab<Sandbox>,
    specs: specs::Specs,
    sandbox_ix: BTreeMap<SandboxId, Ix>,
    reservations: Slab<Reservation>,
    reservation_ix: IdMap<ReservationId, Ix>,
    /// Accepted keys, by fingerprint of tenant, route and key.
    bound: IdMap<u128, Claim>,
    /// Refused keys, by the same fingerprint.
    tickets: BTreeMap<u128, Ticket>,
    ticket_order: VecDeque<(Timestamp, u128)>,
    ended: VecDeque<(Timestamp, Claim)>,
    /// Uncommitted reservations by the second in which they lapse.
    wheel: BTreeMap<i64, Vec<Ix>>,
    timers: timers::Timers,
    totals: totals::Totals,
    parked: BTreeMap<u64, Parked>,
    /// Pools whose queue is to be served before the input is done.
    stirred: BTreeSet<Ix>,
    /// Tenants whose place on the ladder is to be looked at before the input is done.
    metered: BTreeSet<Ix>,
    /// Tenants whose state waits to be written.
    unwritten: VecDeque<Ix>,
    /// Tenants whose state is to be written before the input is done.
    turned: BTreeSet<Ix>,
    /// Notices to tenants, while it matters what becomes of them.
    notices: BTreeMap<EventId, Ix>,
}

impl Engine {
    /// Applies one input: first what time has brought about, then the input, then whatever the
    /// two have freed goes to those who wait.
    ///
    /// `now` must not go back between calls; the shell sees to it.
    pub fn handle(&mut self, now: Timestamp, input: Input, out: &mut Output) {
        self.run_timers(now, out);
        match input {
            Input::Call { token, caller, command } => self.call(now, token, &caller, command, out),
            Input::Report { token, report, probe } => self.report(now, token, *report, probe, out),
            Input::Register { token, host, pool, address, secret, boot_id } => {
                self.register(now, token, &host, &pool, (address, secret), &boot_id, out);
            }
            Input::ProbeFailed { host } => self.probe_failed(now, &host, out),
            Input::Outcome { host, command, outcome } => {
                self.outcome(now, &host, &command, &outcome, out);
            }
            Input::Delivered { event, endpoint, delivered } => {
                self.delivered(now, event, endpoint, delivered, out);
            }
            Input::Requests { counts } => self.count_requests(now, &counts, out),
            Input::Tick => {}
        }
        self.step_ladders(now, out);
        self.serve_stirred(now, out);
        self.write_turned(now, out);
        self.trim_ended(now);
    }

    fn call(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        command: Command,
        out: &mut Output,
    ) {
        match command {
            Command::Create(create) => self.create(now, token, caller, *create, true, out),
            Command::Fork(fork) => self.fork(now, token, caller, *fork, true, out),
            Command::Patch(patch) => self.patch(now, token, caller, *patch, out),
            Command::Delete { id } => self.delete(now, token, caller, id, out),
            Command::Pause { id } => self.pause(now, token, caller, id, out),
            Command::Resume { id, decision } | Command::Start { id, decision } => {
                self.wake(now, token, caller, id, decision, false, out);
            }
            Command::Keepalive { id, decision } | Command::Touch { id, decision } => {
                self.wake(now, token, caller, id, decision, true, out);
            }
            Command::Stop { id } => self.stop(now, token, caller, id, out),
            Command::Withdraw { id, gone } => self.withdraw(now, token, caller, id, gone, out),
            Command::Reserve(reserve) => self.reserve(now, token, caller, *reserve, true, out),
            Command::ReserveBatch(batch) => {
                self.reserve_batch(now, token, caller, *batch, true, out);
            }
            Command::Commit { id, cgroup } => self.commit(now, token, caller, id, cgroup, out),
            Command::Renew { id, ttl_seconds } => {
                self.renew(now, token, caller, id, ttl_seconds, out);
            }
            Command::Release { id } => self.release(now, token, caller, id, out),
            Command::Abandon { token: whose } => {
                self.abandon(whose);
                out.replies.push((token, Reply::Done));
            }
            Command::Explain(explain) => self.explain(now, token, caller, *explain, out),
            Command::Admin(admin) => self.admin(now, token, *admin, out),
            Command::Read(read) => self.read(now, token, caller, read, out),
        }
    }

    /// Answers a question from what is held, while time stands still: nothing that is due is done.
    /// For an engine whose changes nobody can keep.
    pub fn look(&mut self, now: Timestamp, caller: &Caller, read: Read) -> Option<Reply> {
        let mut out = Output::default();
        self.read(now, Token(0), caller, read, &mut out);
        out.replies.pop().map(|(_, reply)| reply)
    }

    /// When [`Input::Tick`] is due next, if nothing else happens.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let timer = self.timers.first();
        let lapse = self.wheel.keys().next().map(|second| Timestamp(second.saturating_mul(1000)));
        match (timer, lapse) {
            (Some(timer), Some(lapse)) => Some(timer.min(lapse)),
            (only, None) | (None, only) => only,
        }
    }

    /// An id that sorts by time and that no other leader and no earlier call has made.
    fn mint(&mut self, now: Timestamp) -> u128 {
        self.minted += 1;
        let millis = u128::from(now.0.max(0).unsigned_abs()) & ((1 << 48) - 1);
        let epoch = u128::from(self.epoch) & ((1 << 32) - 1);
        let count = u128::from(self.minted) & ((1 << 48) - 1);
        (millis << 80) | (epoch << 48) | count
    }

    fn mint_decision(&mut self, now: Timestamp) -> DecisionId {
        DecisionId(self.mint(now))
    }

    fn event(
        &mut self,
        now: Timestamp,
        kind: &str,
        tenant: Option<TenantId>,
        data: serde_json::Value,
        out: &mut Output,
    ) -> EventId {
        // Whoever reads on from the last event that it saw must see this one, even when time has
        // gone back between two terms, or a report is heard again at the time at which it came.
        self.event_millis = self.event_millis.max(now.0.max(0).unsigned_abs());
        let later = Timestamp(i64::try_from(self.event_millis).unwrap_or(i64::MAX));
        let id = EventId(self.mint(later));
        out.changes.push(Change::Event(EventRow {
            id,
            at: now,
            kind: kind.to_owned(),
            tenant,
            data,
        }));
        if !matches!(out.effects.last(), Some(Effect::Events)) {
            out.effects.push(Effect::Events);
        }
        id
    }

    /// A sum did not come out. The caller refuses, or corrects; nothing panics.
    fn violated(&self, id: &'static str, out: &mut Output) {
        debug_assert!(false, "invariant {id} is broken");
        out.observations.push(Observation::Violation(id));
    }

    fn refuse(token: Token, refusal: Refusal, out: &mut Output) {
        out.replies.push((token, Reply::Refused(Box::new(refusal))));
    }
}
