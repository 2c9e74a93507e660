//! Reservations up to their verdict: one, a batch, and those that wait.

use std::sync::Arc;

use plimsoll_policy::charge::Shape;
use plimsoll_policy::rate::Operation;
use plimsoll_policy::score::request_ring;
use plimsoll_types::{
    ClaimId, Counted, DecisionId, DriverSet, Mib, Millis, RefusalCode, Timestamp, Vcpus,
};
use smallvec::SmallVec;

use super::Engine;
use super::gate::Asked;
use super::keys::{Bound, Route, fingerprint};
use super::place::Miss;
use super::state::{
    Ask, Claim, Found, Ix, ParkedCall, Place, Reservation, Use, Waiter, WaitingReserve,
};
use crate::command::{Caller, Command, Reserve, ReserveBatch, ReserveItem, ReserveMode, Token};
use crate::output::{Disposition, Observation, Output, Refusal, Reply};
use crate::rows::{Change, Meter, ReservationRow, ReservationState, Verb};

/// Any driver will do: the orchestrator starts its guests by means of its own.
pub(super) const ANY_DRIVER: DriverSet = DriverSet::ALL;

pub(super) fn item_shape(item: &ReserveItem) -> Shape {
    Shape {
        memory: item.memory_mib,
        overhead: Mib::ZERO,
        vcpus: item.vcpus,
        stateful: item.stateful,
    }
}

static NO_COUNTED: Counted = Counted::new();
static NO_LABELS: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();

pub(super) fn item_ask(item: &ReserveItem, place: Option<Place>) -> Ask<'static> {
    Ask {
        shape: item_shape(item),
        drivers: ANY_DRIVER,
        labels: &NO_LABELS,
        counted: &NO_COUNTED,
        ring: request_ring(item.id.0),
        tried: SmallVec::new(),
        place,
    }
}

impl Engine {
    pub(super) fn item_pool(&self, item: &ReserveItem) -> Result<Ix, Refusal> {
        let name = item.pool.as_ref().unwrap_or(&self.config.default_pool);
        self.pool_ix.get(name).copied().ok_or_else(|| self.unknown_pool(name))
    }

    pub(super) fn item_asked(&self, tenant: Ix, pool: Ix, item: &ReserveItem) -> Asked {
        Asked {
            tenant,
            pool,
            shape: item_shape(item),
            incoming: Use::one(item.memory_mib, item.vcpus),
            criticality: item.criticality,
            adds: true,
            rate: (Operation::Create, 1),
        }
    }

    pub(super) fn reserve(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        reserve: Reserve,
        may_park: bool,
        out: &mut Output,
    ) {
        let item = &reserve.item;
        let tenant = match self.tenant_of(caller) {
            Ok(tenant) => tenant,
            Err(refusal) => return Self::refuse(token, refusal, out),
        };
        let pool = match self.item_pool(item) {
            Ok(pool) => pool,
            Err(refusal) => return Self::refuse(token, refusal, out),
        };
        let print = fingerprint(caller.tenant.as_str(), Route::Reserve, &item.key);
        match self.bound(print, tenant, &item.key, item.body_hash) {
            Bound::Same(Claim::Reservation(ix)) => {
                self.answer_reservation(token, ix, Disposition::Replayed, out);
                return;
            }
            Bound::Free => {}
            _ => return Self::refuse(token, conflict(&item.key), out),
        }
        let mut asked = self.item_asked(tenant, pool, item);
        let pools = self.eligible(pool, true);
        if let Some(refusal) = self.gate(now, &asked, &pools) {
            if reserve.mode == ReserveMode::DryRun {
                // What is only decided costs no token, whatever the verdict.
                asked.rate.1 = 0;
            }
            return self.refused(now, token, reserve.decision, Verb::Reserve, &asked, refusal, out);
        }
        let ask = item_ask(item, None);
        match self.find(&pools, &ask) {
            Ok(found) if reserve.mode == ReserveMode::DryRun => {
                let row = self.reservation_row(now, tenant, item, found, reserve.decision);
                out.replies.push((
                    token,
                    Reply::Reservation {
                        decision: row.decision_id,
                        row: Arc::new(row),
                        disposition: Disposition::DryRun,
                    },
                ));
            }
            Ok(found) => {
                self.spend(now, &asked);
                let ix = self.hold(now, tenant, &reserve.item, print, found, reserve.decision);
                self.admitted(now, ix, &asked, out);
                self.answer_reservation(token, ix, Disposition::Created, out);
            }
            Err(miss) => {
                let waits = matches!(reserve.mode, ReserveMode::Wait { .. });
                let call = || {
                    let command = Command::Reserve(Box::new(reserve.clone()));
                    ParkedCall::Command(caller.clone(), command)
                };
                if may_park
                    && reserve.mode != ReserveMode::DryRun
                    && self.park(now, token, &pools, &miss, call, out)
                {
                    return;
                }
                if waits {
                    self.wait_reserve(now, token, tenant, &pools, print, reserve, &miss, out);
                } else {
                    let refusal = self.capacity_refusal(now, &pools, &ask, &miss);
                    if reserve.mode != ReserveMode::DryRun {
                        self.ticket_refused(now, print, after(&refusal));
                    }
                    let decision = reserve.decision;
                    self.refused(now, token, decision, Verb::Reserve, &asked, refusal, out);
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what one refused reservation has found out")]
    fn wait_reserve(
        &mut self,
        now: Timestamp,
        token: Token,
        tenant: Ix,
        pools: &[Ix],
        print: u128,
        reserve: Reserve,
        miss: &Miss,
        out: &mut Output,
    ) {
        let ReserveMode::Wait { seconds } = reserve.mode else { return };
        let item = reserve.item;
        let pool = pools.first().copied().unwrap_or_default();
        let asked = self.item_asked(tenant, pool, &item);
        if let Some(refusal) = self.queue_full(pool, tenant) {
            return self.refused(now, token, reserve.decision, Verb::Reserve, &asked, refusal, out);
        }
        let wait = self.capacity_refusal(now, pools, &item_ask(&item, None), miss);
        let since = self.ticket_since(now, print).unwrap_or(now);
        self.ticket_refused(now, print, after(&wait));
        self.spend(now, &asked);
        let place = self.next_place(item.priority, since);
        let deadline = now + Millis::from_seconds(seconds);
        let waiting = WaitingReserve { token, tenant, item, decision: reserve.decision, deadline };
        self.enqueue(now, pool, place, Waiter::Reserve(Box::new(waiting)));
    }

    /// A waiting reservation's own question: its rate was asked when it came.
    pub(super) fn waiting_asked(&self, pool: Ix, waiting: &WaitingReserve) -> Asked {
        let asked = self.item_asked(waiting.tenant, pool, &waiting.item);
        Asked { rate: (Operation::Create, 0), ..asked }
    }

    /// Decides a waiting reservation again. `true` when it waits no more.
    pub(super) fn serve_reserve(
        &mut self,
        now: Timestamp,
        pool: Ix,
        place: Place,
        waiting: &WaitingReserve,
        out: &mut Output,
    ) -> bool {
        if self.answer_bound(waiting, out) {
            return true;
        }
        let asked = self.waiting_asked(pool, waiting);
        let pools = self.eligible(pool, true);
        let Ok(found) = self.find(&pools, &item_ask(&waiting.item, Some(place))) else {
            return false;
        };
        let print = self.waiting_print(waiting);
        let ix = self.hold(now, waiting.tenant, &waiting.item, print, found, waiting.decision);
        self.admitted(now, ix, &asked, out);
        self.answer_reservation(waiting.token, ix, Disposition::Created, out);
        true
    }

    fn waiting_print(&self, waiting: &WaitingReserve) -> u128 {
        let tenant = self.tenant_id(waiting.tenant);
        fingerprint(tenant.as_str(), Route::Reserve, &waiting.item.key)
    }

    /// Another try under the same key may have come through while this one waited: then it gets
    /// that one's reservation, and never a second. `true` when it is answered.
    fn answer_bound(&mut self, waiting: &WaitingReserve, out: &mut Output) -> bool {
        let (print, item) = (self.waiting_print(waiting), &waiting.item);
        match self.bound(print, waiting.tenant, &item.key, item.body_hash) {
            Bound::Free => return false,
            Bound::Same(Claim::Reservation(ix)) => {
                self.answer_reservation(waiting.token, ix, Disposition::Replayed, out);
            }
            _ => Self::refuse(waiting.token, conflict(&item.key), out),
        }
        self.unspend(waiting.tenant, Operation::Create);
        true
    }

    /// The wait of a reservation is over.
    pub(super) fn expire_reserve(
        &mut self,
        now: Timestamp,
        pool: Ix,
        waiting: &WaitingReserve,
        out: &mut Output,
    ) {
        if self.answer_bound(waiting, out) {
            return;
        }
        let asked = self.waiting_asked(pool, waiting);
        let pools = self.eligible(pool, true);
        let ask = item_ask(&waiting.item, None);
        let refusal = self.gate(now, &asked, &pools).unwrap_or_else(|| {
            self.unspend(waiting.tenant, Operation::Create);
            let miss = self.miss(&pools, &ask);
            self.capacity_refusal(now, &pools, &ask, &miss)
        });
        let (token, decision) = (waiting.token, waiting.decision);
        self.refused(now, token, decision, Verb::Reserve, &asked, refusal, out);
    }

    pub(super) fn reserve_batch(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        batch: ReserveBatch,
        may_park: bool,
        out: &mut Output,
    ) {
        let tenant = match self.tenant_of(caller) {
            Ok(tenant) => tenant,
            Err(refusal) => return Self::refuse(token, refusal, out),
        };
        let prints: Vec<u128> = batch
            .items
            .iter()
            .map(|item| fingerprint(caller.tenant.as_str(), Route::Reserve, &item.key))
            .collect();
        match self.batch_bound(tenant, &batch, &prints) {
            Ok(None) => {}
            Ok(Some(known)) => {
                let rows: Vec<Arc<ReservationRow>> =
                    known.iter().map(|ix| Arc::clone(&self.reservations[*ix].row)).collect();
                let decision = rows.first().map_or(batch.decision, |row| row.decision_id);
                let disposition = Disposition::Replayed;
                out.replies.push((token, Reply::Reservations { rows, decision, disposition }));
                return;
            }
            Err(refusal) => return Self::refuse(token, *refusal, out),
        }
        let mut pools = Vec::with_capacity(batch.items.len());
        for item in &batch.items {
            match self.item_pool(item) {
                Ok(pool) => pools.push(pool),
                Err(refusal) => return Self::refuse(token, refusal, out),
            }
        }
        let Some(first) = pools.first().copied() else {
            let refusal = Refusal::new(RefusalCode::InvalidRequest, "items: at least 1");
            return Self::refuse(token, refusal, out);
        };
        let mut sum = self.item_asked(tenant, first, &batch.items[0]);
        sum.incoming = Use::default();
        sum.rate.1 = u64::try_from(batch.items.len()).unwrap_or(u64::MAX);
        for (item, pool) in batch.items.iter().zip(&pools) {
            sum.incoming.add(self.item_asked(tenant, *pool, item).incoming);
        }
        if let Some((asked, refusal)) = self.gate_batch(now, &batch.items, &pools, &sum) {
            let verb = Verb::ReserveBatch;
            return self.refused(now, token, batch.decision, verb, &asked, refusal, out);
        }
        let mut made = Vec::with_capacity(batch.items.len());
        for ((item, pool), print) in batch.items.iter().zip(&pools).zip(&prints) {
            let eligible = self.eligible(*pool, true);
            let ask = item_ask(item, None);
            match self.find(&eligible, &ask) {
                Ok(found) => {
                    made.push(self.hold(now, tenant, item, *print, found, batch.decision));
                }
                Err(miss) => {
                    for ix in made.into_iter().rev() {
                        self.unmake(ix);
                    }
                    let call = || {
                        let command = Command::ReserveBatch(Box::new(batch.clone()));
                        ParkedCall::Command(caller.clone(), command)
                    };
                    if may_park && self.park(now, token, &eligible, &miss, call, out) {
                        return;
                    }
                    let refusal = self.capacity_refusal(now, &eligible, &ask, &miss);
                    for print in &prints {
                        self.ticket_refused(now, *print, after(&refusal));
                    }
                    let (decision, verb) = (batch.decision, Verb::ReserveBatch);
                    return self.refused(now, token, decision, verb, &sum, refusal, out);
                }
            }
        }
        self.spend(now, &sum);
        self.batch_admitted(now, token, &made, &sum, batch.decision, out);
    }

    fn batch_admitted(
        &mut self,
        now: Timestamp,
        token: Token,
        made: &[Ix],
        sum: &Asked,
        decision: DecisionId,
        out: &mut Output,
    ) {
        let mut record = self.decision(now, decision, Verb::ReserveBatch, sum);
        record.items = u32::try_from(made.len()).unwrap_or(u32::MAX);
        let mut rows = Vec::with_capacity(made.len());
        for ix in made {
            let reservation = &self.reservations[*ix];
            let row = Arc::clone(&reservation.row);
            record.charge_mib = record.charge_mib.saturating_add(row.charge_mib);
            if record.object.is_none() {
                record.object = Some(ClaimId::Reservation(row.id));
                record.pool = Some(row.pool.clone());
                record.host = Some(row.host.clone());
            }
            let (pool, print) = (reservation.pool, reservation.key);
            let mode = self.pools[pool].policy.1;
            out.observations.push(Observation::Admission(row.pool.clone(), mode));
            self.ticket_admitted(now, print, out);
            out.changes.push(Change::Reservation(Arc::clone(&row)));
            rows.push(row);
        }
        out.changes.push(Change::Decision(Box::new(record)));
        let disposition = Disposition::Created;
        out.replies.push((token, Reply::Reservations { rows, decision, disposition }));
    }

    /// The records that a batch's keys are bound to, when all are.
    fn batch_bound(
        &self,
        tenant: Ix,
        batch: &ReserveBatch,
        prints: &[u128],
    ) -> Result<Option<Vec<Ix>>, Box<Refusal>> {
        let mut known = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for (item, print) in batch.items.iter().zip(prints) {
            if !seen.insert(*print) {
                let mut refusal = Refusal::new(
                    RefusalCode::InvalidRequest,
                    format!("items: the key {:?} stands twice in one batch", item.key),
                );
                refusal.field = Some(("items.key", "each key once".to_owned()));
                return Err(Box::new(refusal));
            }
            match self.bound(*print, tenant, &item.key, item.body_hash) {
                Bound::Same(Claim::Reservation(ix)) => known.push(ix),
                Bound::Free => {}
                _ => return Err(Box::new(conflict(&item.key))),
            }
        }
        if known.is_empty() {
            Ok(None)
        } else if known.len() == batch.items.len() {
            Ok(Some(known))
        } else {
            Err(Box::new(Refusal::new(
                RefusalCode::Conflict,
                format!(
                    "{} of {} keys are bound already: a batch is made whole or not at all",
                    known.len(),
                    batch.items.len()
                ),
            )))
        }
    }

    fn reservation_row(
        &self,
        now: Timestamp,
        tenant: Ix,
        item: &ReserveItem,
        found: Found,
        decision_id: DecisionId,
    ) -> ReservationRow {
        let pool = &self.pools[found.pool].row;
        let ttl = item.ttl_seconds.unwrap_or(pool.settings.reserve.ttl_seconds);
        ReservationRow {
            id: item.id,
            tenant: self.tenant_id(tenant),
            key: Arc::clone(&item.key),
            body_hash: item.body_hash,
            state: ReservationState::Reserved,
            pool: pool.name.clone(),
            host: self.hosts[found.host].row.id.clone(),
            memory_mib: item.memory_mib,
            vcpus: item.vcpus,
            stateful: item.stateful,
            charge_mib: found.charge,
            generation: 1,
            cgroup: None,
            created_at: now,
            expires_at: now + Millis::from_seconds(ttl),
            ended_at: None,
            decision_id,
            meter: Meter::default(),
        }
    }

    /// Takes quota, slot and host memory in one step.
    fn hold(
        &mut self,
        now: Timestamp,
        tenant: Ix,
        item: &ReserveItem,
        print: u128,
        found: Found,
        decision: DecisionId,
    ) -> Ix {
        let row = self.reservation_row(now, tenant, item, found, decision);
        let ttl_seconds = row.expires_at.since(now).0 / 1000;
        self.insert_reservation(
            now,
            Reservation {
                row: Arc::new(row),
                tenant,
                pool: found.pool,
                host: found.host,
                on_host: 0,
                netted: false,
                seen: 0,
                wheel: None,
                missing_since: None,
                on_tenant: 0,
                meter: None,
                key: print,
                ttl_seconds,
                counted: None,
            },
        )
    }

    /// Records a refusal and says it.
    #[expect(clippy::too_many_arguments, reason = "what one refusal is about")]
    pub(super) fn refused(
        &mut self,
        now: Timestamp,
        token: Token,
        id: DecisionId,
        verb: Verb,
        asked: &Asked,
        mut refusal: Refusal,
        out: &mut Output,
    ) {
        // A capacity refusal costs no token: a fleet that is full is not the caller's fault.
        if matches!(refusal.code, RefusalCode::QuotaExceeded | RefusalCode::BudgetExhausted) {
            self.spend(now, asked);
        }
        let mut decision = self.decision(now, id, verb, asked);
        decision.code = Some(refusal.code);
        decision.counts = refusal.counts.unwrap_or_default();
        decision.detail = Some(Arc::from(refusal.detail.as_str()));
        out.observations.push(Observation::Refusal(refusal.code, decision.pool.clone()));
        out.changes.push(Change::Decision(Box::new(decision)));
        refusal.decision = Some(id);
        Self::refuse(token, refusal, out);
    }

    /// The checks before placement of a batch, in the order of a single one: each item's size,
    /// then rate, budget and quota of the sum, then whatever holds items back one by one.
    fn gate_batch(
        &self,
        now: Timestamp,
        items: &[ReserveItem],
        pools: &[Ix],
        sum: &Asked,
    ) -> Option<(Asked, Refusal)> {
        let each = |check: &dyn Fn(&Asked, &[Ix]) -> Option<Refusal>| {
            items.iter().zip(pools).find_map(|(item, pool)| {
                let asked = self.item_asked(sum.tenant, *pool, item);
                let asked = Asked { rate: (Operation::Create, 0), ..asked };
                check(&asked, &self.eligible(*pool, true)).map(|refusal| (asked, refusal))
            })
        };
        let mut unsized_sum = *sum;
        unsized_sum.shape.memory = Mib::ZERO;
        unsized_sum.shape.vcpus = Vcpus::ZERO;
        each(&|asked, eligible| self.gate_size(asked, eligible))
            .or_else(|| self.gate_limits(now, &unsized_sum).map(|refusal| (*sum, refusal)))
            .or_else(|| each(&|asked, _| self.gate_degraded(asked)))
    }
}

fn conflict(key: &str) -> Refusal {
    Refusal::new(
        RefusalCode::Conflict,
        format!("the key {key:?} is bound to a request with another body"),
    )
}

pub(super) fn after(refusal: &Refusal) -> Option<Millis> {
    match refusal.retry {
        plimsoll_types::RetryHint::After(wait) => Some(wait),
        _ => None,
    }
}
