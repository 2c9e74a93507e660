//! Idempotency: accepted keys, and what refused ones keep.
//!
//! Only an accepted outcome binds a key. A refusal binds nothing; it leaves a ticket that keeps
//! the request's age, so that its retry stands where it stood.

use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroU128;

use foldhash::fast::FixedState;
use plimsoll_types::{Millis, Timestamp};

use super::Engine;
use super::state::{Claim, Ix, Ticket};
use crate::output::{Observation, Output};

/// Routes that have keys of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Create,
    Fork,
    Reserve,
}

/// What a key is bound to.
pub(crate) enum Bound {
    Free,
    Same(Claim),
    Other,
}

/// 128 bits over tenant, route and key. A hit is held against the record's own key, so that two
/// keys that meet here cost one of them its idempotency and never its privacy.
pub(crate) fn fingerprint(tenant: &str, route: Route, key: &str) -> u128 {
    let half = |seed: u64| {
        let mut hasher = FixedState::with_seed(seed).build_hasher();
        hasher.write(tenant.as_bytes());
        hasher.write_u8(route as u8);
        hasher.write(key.as_bytes());
        hasher.write_usize(tenant.len());
        u128::from(hasher.finish())
    };
    (half(0x5b1d_3a77) << 64) | half(0x9e37_79b9)
}

impl Engine {
    /// What this key is bound to, if the record behind it really carries it.
    pub(super) fn bound(&self, print: u128, tenant: Ix, key: &str, body_hash: u64) -> Bound {
        let Some(claim) = self.bound.get(&print).copied() else { return Bound::Free };
        let (owner, known, hash) = match claim {
            Claim::Sandbox(ix) => {
                let sandbox = &self.sandboxes[ix];
                (sandbox.tenant, sandbox.row.key.as_deref(), sandbox.row.body_hash)
            }
            Claim::Reservation(ix) => {
                let reservation = &self.reservations[ix];
                (reservation.tenant, Some(&*reservation.row.key), reservation.row.body_hash)
            }
        };
        if owner != tenant || known != Some(key) {
            Bound::Free
        } else if hash == body_hash {
            Bound::Same(claim)
        } else {
            Bound::Other
        }
    }

    /// Remembers a refusal, and since when this request has been refused.
    pub(super) fn ticket_refused(&mut self, now: Timestamp, print: u128, said: Option<Millis>) {
        let said = said.map(|wait| now + wait);
        if let Some(ticket) = self.tickets.get_mut(&print) {
            ticket.touched = now;
            ticket.said = ticket.said.or(said);
            return;
        }
        if self.tickets.len() >= self.config.tickets_max {
            self.drop_oldest_ticket();
        }
        self.tickets.insert(print, Ticket { first_refused: now, said, touched: now });
        self.ticket_order.push_back((now, print));
    }

    /// The age that a key has kept, if any.
    pub(super) fn ticket_since(&self, now: Timestamp, print: u128) -> Option<Timestamp> {
        self.tickets
            .get(&print)
            .filter(|ticket| now.since(ticket.touched) < self.config.ticket_ttl)
            .map(|ticket| ticket.first_refused)
    }

    /// A key that was refused has been admitted.
    pub(super) fn ticket_admitted(&mut self, now: Timestamp, print: u128, out: &mut Output) {
        let Some(ticket) = self.tickets.remove(&print) else { return };
        out.observations.push(Observation::FirstRefusalToSuccess(now.since(ticket.first_refused)));
        if let Some(said) = ticket.said {
            out.observations.push(Observation::RetryAfterError(now.0.saturating_sub(said.0)));
        }
    }

    fn drop_oldest_ticket(&mut self) {
        while let Some((_, print)) = self.ticket_order.pop_front() {
            if self.tickets.remove(&print).is_some() {
                return;
            }
        }
    }

    /// Forgets tickets whose time is over.
    pub(super) fn sweep_tickets(&mut self, now: Timestamp) {
        while let Some((at, print)) = self.ticket_order.front().copied() {
            if now.since(at) < self.config.ticket_ttl {
                return;
            }
            self.ticket_order.pop_front();
            if let Some(ticket) = self.tickets.get(&print).copied() {
                if now.since(ticket.touched) < self.config.ticket_ttl {
                    self.ticket_order.push_back((ticket.touched, print));
                } else {
                    self.tickets.remove(&print);
                }
            }
        }
    }

    /// Drops ended records that are beyond the bounds of number and time. Called when nobody
    /// holds a record's number any more.
    pub(super) fn trim_ended(&mut self, now: Timestamp) {
        while let Some((at, claim)) = self.ended.front().copied() {
            let kept =
                self.ended.len() <= self.config.ended_max && now.since(at) < self.config.key_ttl;
            if kept {
                return;
            }
            self.ended.pop_front();
            self.forget(at, claim);
        }
    }

    /// Drops a record that ended at this time from memory; its row stays in the store.
    fn forget(&mut self, at: Timestamp, claim: Claim) {
        match claim {
            Claim::Sandbox(ix) => {
                // A record that came back to life (its host returned) is kept, and so is one that
                // has ended once more since, or has taken the number of one that was dropped.
                let over = self.sandboxes.get(ix).is_some_and(|sandbox| {
                    sandbox.row.status.is_terminal() && sandbox.row.ended_at == Some(at)
                });
                if over && let Some(sandbox) = self.sandboxes.remove(ix) {
                    self.sandbox_ix.remove(&sandbox.row.id);
                    self.unbind(sandbox.key.map(NonZeroU128::get), claim);
                }
            }
            Claim::Reservation(ix) => {
                let over = self.reservations.get(ix).is_some_and(|reservation| {
                    !reservation.row.state.holds() && reservation.row.ended_at == Some(at)
                });
                if over && let Some(reservation) = self.reservations.remove(ix) {
                    self.reservation_ix.remove(&reservation.row.id);
                    self.unbind(Some(reservation.key), claim);
                }
            }
        }
    }

    pub(super) fn unbind(&mut self, print: Option<u128>, claim: Claim) {
        if let Some(print) = print
            && self.bound.get(&print) == Some(&claim)
        {
            self.bound.remove(&print);
        }
    }
}
