//! A reservation's life once it is made: commit, renewal, release, and the wheel of those that lapse.

use std::sync::Arc;

use plimsoll_types::{ClaimId, Millis, RefusalCode, ReservationId, Timestamp};
use serde_json::json;

use super::Engine;
use super::gate::Asked;
use super::state::{Claim, Ix, Reservation, Use};
use crate::command::{Caller, Token};
use crate::output::{Disposition, Observation, Output, Refusal, Reply};
use crate::rows::{Change, ReservationRow, ReservationState, Role, Verb};

impl Engine {
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
    pub(super) fn unmake(&mut self, ix: Ix) {
        let mut unused = Output::default();
        let at = self.reservations[ix].row.created_at;
        self.let_go(at, ix, &mut unused);
        if let Some(gone) = self.reservations.remove(ix) {
            self.reservation_ix.remove(&gone.row.id);
            self.unbind(Some(gone.key), Claim::Reservation(ix));
        }
    }

    pub(super) fn admitted(&mut self, now: Timestamp, ix: Ix, asked: &Asked, out: &mut Output) {
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

    pub(super) fn answer_reservation(
        &self,
        token: Token,
        ix: Ix,
        disposition: Disposition,
        out: &mut Output,
    ) {
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
}

/// MiB and vCPUs that the host's last report does not hold.
pub(super) fn pending(reservation: &Reservation) -> (u64, u64) {
    if reservation.netted {
        (0, 0)
    } else {
        (reservation.row.charge_mib.0, reservation.row.vcpus.0)
    }
}

fn expired(row: &ReservationRow) -> Refusal {
    Refusal::new(
        RefusalCode::ReservationExpired,
        format!("{} lapsed before it was committed; make a new reservation", row.id),
    )
}
