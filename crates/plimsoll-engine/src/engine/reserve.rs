//! Reservations: claims on quota, slot and host memory for an orchestrator outside.

use std::sync::Arc;

use plimsoll_policy::charge::Shape;
use plimsoll_policy::rate::Operation;
use plimsoll_policy::score::request_ring;
use plimsoll_types::{
    ClaimId, Counted, DecisionId, DriverSet, Mib, Millis, RefusalCode, ReservationId, Timestamp,
    Vcpus,
};
use serde_json::json;
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
use crate::rows::{Change, Meter, ReservationRow, ReservationState, Role, Verb};

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

    /// Puts a reservation in with all that it holds.
    pub(super) fn insert_reservation(&mut self, now: Timestamp, reservation: Reservation) -> Ix {
        let (id, key, holds) = (reservation.row.id, reservation.key, reservation.row.state.holds());
        let ix = self.reservations.insert(reservation);
        self.reservation_ix.insert(id, ix);
        self.bound.insert(key, Claim::Reservation(ix));
        if holds {
            self.take_up(now, ix);
        }
        ix
    }

    /// Charges tenant, pool and host for a reservation.
    pub(super) fn take_up(&mut self, now: Timestamp, ix: Ix) {
        let reservation = &self.reservations[ix];
        let row = &reservation.row;
        let (tenant, pool, host) = (reservation.tenant, reservation.pool, reservation.host);
        let (charge, pending_vcpus) = pending(reservation);
        let vcpus = row.vcpus.0;
        let stateful = if row.stateful { row.memory_mib.0 } else { 0 };
        let uncommitted = row.state == ReservationState::Reserved;
        let (used, expires) = (Use::one(row.memory_mib, row.vcpus), row.expires_at);
        self.tenants[tenant].take_on(now, used);
        self.join_tenant(tenant, Claim::Reservation(ix));
        self.moved(now, tenant);
        self.pools[pool].held += 1;
        let state = &mut self.hosts[host];
        state.pending += charge;
        state.pending_vcpus += pending_vcpus;
        state.stateful += stateful;
        state.vcpus += vcpus;
        let place = u32::try_from(state.claims.len()).expect("fewer than 2^32 claims on one host");
        state.claims.push(Claim::Reservation(ix));
        self.reservations[ix].on_host = place;
        self.recount_reservation(ix, true);
        if uncommitted {
            self.wheel_in(ix, expires);
        }
        self.requote(host);
    }

    /// Gives back everything that a reservation holds.
    pub(super) fn let_go(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let reservation = &self.reservations[ix];
        let row = &reservation.row;
        let (tenant, pool, host) = (reservation.tenant, reservation.pool, reservation.host);
        let (charge, pending_vcpus) = pending(reservation);
        let vcpus = row.vcpus.0;
        let stateful = if row.stateful { row.memory_mib.0 } else { 0 };
        let (used, place) = (Use::one(row.memory_mib, row.vcpus), reservation.on_host);
        self.wheel_out(ix);
        let mut whole = self.tenants[tenant].give_up(now, used);
        self.leave_tenant(tenant, Claim::Reservation(ix));
        self.moved(now, tenant);
        let state = &mut self.pools[pool];
        whole &= state.held > 0;
        state.held = state.held.saturating_sub(1);
        state.releases.count(now);
        let state = &mut self.hosts[host];
        state.pending = state.pending.saturating_sub(charge);
        state.pending_vcpus = state.pending_vcpus.saturating_sub(pending_vcpus);
        state.stateful = state.stateful.saturating_sub(stateful);
        state.vcpus = state.vcpus.saturating_sub(vcpus);
        self.recount_reservation(ix, false);
        self.swap_out(host, place);
        self.requote(host);
        self.stir(pool);
        if !whole {
            self.violated("I13", out);
        }
    }

    /// Undoes a hold that was never answered nor written: the rest of its batch did not fit.
    fn unmake(&mut self, ix: Ix) {
        let mut unused = Output::default();
        let at = self.reservations[ix].row.created_at;
        self.let_go(at, ix, &mut unused);
        if let Some(gone) = self.reservations.remove(ix) {
            self.reservation_ix.remove(&gone.row.id);
            self.unbind(Some(gone.key), Claim::Reservation(ix));
        }
    }

    fn admitted(&mut self, now: Timestamp, ix: Ix, asked: &Asked, out: &mut Output) {
        let row = Arc::clone(&self.reservations[ix].row);
        let mut decision = self.decision(now, row.decision_id, Verb::Reserve, asked);
        decision.object = Some(ClaimId::Reservation(row.id));
        decision.pool = Some(row.pool.clone());
        decision.host = Some(row.host.clone());
        decision.charge_mib = row.charge_mib;
        let (pool, print) = (self.reservations[ix].pool, self.reservations[ix].key);
        let mode = self.pools[pool].policy.1;
        out.observations.push(Observation::Admission(row.pool.clone(), mode));
        out.changes.push(Change::Reservation(row));
        out.changes.push(Change::Decision(Box::new(decision)));
        self.ticket_admitted(now, print, out);
    }

    fn answer_reservation(&self, token: Token, ix: Ix, disposition: Disposition, out: &mut Output) {
        let row = Arc::clone(&self.reservations[ix].row);
        let decision = row.decision_id;
        out.replies.push((token, Reply::Reservation { row, decision, disposition }));
    }

    /// A caller's own reservation.
    fn own(&self, caller: &Caller, id: ReservationId) -> Result<Ix, Refusal> {
        self.reservation_ix
            .get(&id)
            .copied()
            .filter(|ix| {
                caller.role == Role::Operator || self.reservations[*ix].row.tenant == caller.tenant
            })
            .ok_or_else(|| Refusal::new(RefusalCode::NotFound, format!("no reservation {id}")))
    }

    pub(super) fn commit(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        id: ReservationId,
        cgroup: Option<Arc<str>>,
        out: &mut Output,
    ) {
        let ix = match self.own(caller, id) {
            Ok(ix) => ix,
            Err(refusal) => return Self::refuse(token, refusal, out),
        };
        let row = &self.reservations[ix].row;
        match row.state {
            ReservationState::Committed => {}
            // Expiry is an instant: a commit after it is late, swept or not.
            ReservationState::Reserved if now < row.expires_at => {
                self.wheel_out(ix);
                self.edit(ix, out, |row| {
                    row.state = ReservationState::Committed;
                    row.generation += 1;
                    row.cgroup = cgroup;
                    row.meter.begin(now);
                });
                self.meter_commit(ix);
            }
            ReservationState::Reserved | ReservationState::Expired => {
                return Self::refuse(token, expired(row), out);
            }
            ReservationState::Released => {
                let detail = format!("{id} was released; make a new reservation");
                return Self::refuse(token, Refusal::new(RefusalCode::Conflict, detail), out);
            }
        }
        self.answer_reservation(token, ix, Disposition::Accepted, out);
    }

    pub(super) fn renew(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        id: ReservationId,
        ttl_seconds: Option<u64>,
        out: &mut Output,
    ) {
        let ix = match self.own(caller, id) {
            Ok(ix) => ix,
            Err(refusal) => return Self::refuse(token, refusal, out),
        };
        let state = self.reservations[ix].row.state;
        let row = &self.reservations[ix].row;
        match state {
            ReservationState::Reserved if now >= row.expires_at => {
                return Self::refuse(token, expired(row), out);
            }
            ReservationState::Reserved | ReservationState::Committed => {}
            ReservationState::Expired => return Self::refuse(token, expired(row), out),
            ReservationState::Released => {
                let detail = format!("{id} was released; make a new reservation");
                return Self::refuse(token, Refusal::new(RefusalCode::Conflict, detail), out);
            }
        }
        let ttl = ttl_seconds.unwrap_or(self.reservations[ix].ttl_seconds);
        let expires = now + Millis::from_seconds(ttl);
        self.wheel_out(ix);
        self.edit(ix, out, |row| {
            row.expires_at = expires;
            row.generation += 1;
        });
        if state == ReservationState::Reserved {
            self.wheel_in(ix, expires);
        }
        self.answer_reservation(token, ix, Disposition::Accepted, out);
    }

    pub(super) fn release(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        id: ReservationId,
        out: &mut Output,
    ) {
        let ix = match self.own(caller, id) {
            Ok(ix) => ix,
            Err(refusal) => return Self::refuse(token, refusal, out),
        };
        let row = &self.reservations[ix].row;
        if row.state.holds() {
            let (uncommitted, created_at) =
                (row.state == ReservationState::Reserved, row.created_at);
            self.end_reservation(now, ix, ReservationState::Released, out);
            if uncommitted {
                self.given_back(now, self.reservations[ix].tenant, created_at, out);
            }
        }
        self.answer_reservation(token, ix, Disposition::Accepted, out);
    }

    /// Ends a reservation that holds.
    pub(super) fn end_reservation(
        &mut self,
        now: Timestamp,
        ix: Ix,
        state: ReservationState,
        out: &mut Output,
    ) {
        // One that its host lists no more, or that is lost with its host, ended unseen.
        let lost =
            state == ReservationState::Expired || self.reservations[ix].missing_since.is_some();
        self.meter_end(now, ix, lost);
        self.let_go(now, ix, out);
        self.edit(ix, out, |row| {
            row.state = state;
            row.ended_at = Some(now);
        });
        self.ended.push_back((now, Claim::Reservation(ix)));
    }

    /// A guest runs for a reservation that has lapsed: the fleet wins, whatever the ledger says.
    pub(super) fn revive_reservation(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        self.edit(ix, out, |row| {
            row.state = ReservationState::Committed;
            row.ended_at = None;
            row.generation += 1;
            row.meter.begin(now);
        });
        self.meter_commit(ix);
        let reservation = &mut self.reservations[ix];
        reservation.netted = true;
        reservation.missing_since = None;
        let row = Arc::clone(&reservation.row);
        self.take_up(now, ix);
        let data = json!({ "reservation": row.id, "host": row.host });
        let tenant = self.reservations[ix].tenant;
        self.corrected(now, "late_commit", Some(tenant), data.clone(), out);
        self.event(now, "reservation.revived", Some(row.tenant.clone()), data, out);
    }

    /// Changes a reservation's row and writes it, and with it what was used and not written yet.
    /// The row that earlier changes and replies share stays as it was.
    pub(super) fn edit(
        &mut self,
        ix: Ix,
        out: &mut Output,
        change: impl FnOnce(&mut ReservationRow),
    ) {
        self.write_hours(Claim::Reservation(ix), out);
        let row = &mut self.reservations[ix].row;
        change(Arc::make_mut(row));
        out.changes.push(Change::Reservation(Arc::clone(row)));
        if self.reservations[ix].counted.is_some() {
            self.recount_reservation(ix, true);
        }
    }

    fn wheel_in(&mut self, ix: Ix, at: Timestamp) {
        // Rounded up: no sweep ends it before its instant.
        let second = at.0.div_euclid(1000) + i64::from(at.0.rem_euclid(1000) != 0);
        let bucket = self.wheel.entry(second).or_default();
        let place = u32::try_from(bucket.len()).expect("fewer than 2^32 reservations in a second");
        bucket.push(ix);
        self.reservations[ix].wheel = Some((second, place));
    }

    pub(super) fn wheel_out(&mut self, ix: Ix) {
        let Some((second, place)) = self.reservations[ix].wheel.take() else { return };
        let Some(bucket) = self.wheel.get_mut(&second) else { return };
        bucket.swap_remove(place as usize);
        if let Some(moved) = bucket.get(place as usize).copied() {
            self.reservations[moved].wheel = Some((second, place));
        } else if bucket.is_empty() {
            self.wheel.remove(&second);
        }
    }

    /// Ends every reservation that has lapsed.
    pub(super) fn sweep_wheel(&mut self, now: Timestamp, out: &mut Output) {
        while let Some((second, bucket)) = self.wheel.first_key_value() {
            if second.saturating_mul(1000) > now.0 {
                return;
            }
            let Some(ix) = bucket.last().copied() else { return };
            self.end_reservation(now, ix, ReservationState::Expired, out);
        }
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

/// MiB and vCPUs that the host's last report does not hold.
pub(super) fn pending(reservation: &Reservation) -> (u64, u64) {
    if reservation.netted {
        (0, 0)
    } else {
        (reservation.row.charge_mib.0, reservation.row.vcpus.0)
    }
}

fn conflict(key: &str) -> Refusal {
    Refusal::new(
        RefusalCode::Conflict,
        format!("the key {key:?} is bound to a request with another body"),
    )
}

fn expired(row: &ReservationRow) -> Refusal {
    Refusal::new(
        RefusalCode::ReservationExpired,
        format!("{} lapsed before it was committed; make a new reservation", row.id),
    )
}

pub(super) fn after(refusal: &Refusal) -> Option<Millis> {
    match refusal.retry {
        plimsoll_types::RetryHint::After(wait) => Some(wait),
        _ => None,
    }
}
