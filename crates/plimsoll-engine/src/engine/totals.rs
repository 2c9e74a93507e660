//! What the claims of each host add up to, and how many there are in all: kept beside the records,
//! so that a scrape of metrics costs the engine what its hosts and pools cost, however many guests
//! there are. Each record holds what it was counted with, and is counted anew when that moves.

use plimsoll_types::Mib;

use super::Engine;
use super::ledger::occupies;
use super::state::{Ix, Reservation, Sandbox};
use crate::rows::ReservationState;

/// Claims of one host, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) guests: u64,
    pub(crate) charged: u64,
    pub(crate) configured: u64,
    pub(crate) resident: u64,
    /// Configured memory of what is measured.
    pub(crate) measured_configured: u64,
    /// Charges that no measurement has seen.
    pub(crate) reserved: u64,
    pub(crate) committed: u64,
    pub(crate) uncommitted: u64,
}

impl Sums {
    fn each(&mut self, other: &Self, of: impl Fn(u64, u64) -> u64) {
        for (own, other) in [
            (&mut self.guests, other.guests),
            (&mut self.charged, other.charged),
            (&mut self.configured, other.configured),
            (&mut self.resident, other.resident),
            (&mut self.measured_configured, other.measured_configured),
            (&mut self.reserved, other.reserved),
            (&mut self.committed, other.committed),
            (&mut self.uncommitted, other.uncommitted),
        ] {
            *own = of(*own, other);
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.each(other, u64::saturating_add);
    }

    fn take(&mut self, other: &Self) {
        self.each(other, u64::saturating_sub);
    }
}

/// What a sandbox was counted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SandboxShare {
    charge: u64,
    resident: u64,
    measured: bool,
}

impl SandboxShare {
    pub(crate) fn of(sandbox: &Sandbox) -> Option<Self> {
        let row = &sandbox.row;
        (sandbox.on_host.is_some() && occupies(sandbox)).then(|| Self {
            charge: row.charge_mib.0,
            resident: row.resident_mib.unwrap_or(Mib::ZERO).0,
            measured: row.measured,
        })
    }

    pub(crate) fn sums(self, configured: Mib) -> Sums {
        Sums {
            guests: 1,
            charged: self.charge,
            configured: configured.0,
            resident: self.resident,
            measured_configured: if self.measured { configured.0 } else { 0 },
            reserved: if self.measured { 0 } else { self.charge },
            ..Sums::default()
        }
    }
}

/// What a reservation was counted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReservationShare {
    charge: u64,
    committed: bool,
    netted: bool,
}

impl ReservationShare {
    pub(crate) fn of(reservation: &Reservation) -> Self {
        let row = &reservation.row;
        Self {
            charge: row.charge_mib.0,
            committed: row.state == ReservationState::Committed,
            netted: reservation.netted,
        }
    }

    pub(crate) fn sums(self, configured: Mib) -> Sums {
        Sums {
            guests: 1,
            charged: self.charge,
            configured: configured.0,
            reserved: if self.netted { 0 } else { self.charge },
            committed: u64::from(self.committed),
            uncommitted: u64::from(!self.committed),
            ..Sums::default()
        }
    }
}

/// How many records there are of what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Sandboxes that count for quota.
    pub(crate) live: u64,
    pub(crate) queued: u64,
    /// Reservations that hold.
    pub(crate) held: u64,
}

impl Engine {
    /// Counts a sandbox on its host as it is now.
    pub(super) fn recount(&mut self, ix: Ix) {
        let sandbox = &mut self.sandboxes[ix];
        let share = SandboxShare::of(sandbox);
        if share == sandbox.counted {
            return;
        }
        let before = std::mem::replace(&mut sandbox.counted, share);
        let (Some(host), configured) = (sandbox.host, sandbox.row.memory_mib) else { return };
        let sums = &mut self.hosts[host].sums;
        if let Some(before) = before {
            sums.take(&before.sums(configured));
        }
        if let Some(share) = share {
            sums.add(&share.sums(configured));
        }
    }

    /// Counts a reservation on its host as it is now, or no more.
    pub(super) fn recount_reservation(&mut self, ix: Ix, holds: bool) {
        let reservation = &mut self.reservations[ix];
        let share = holds.then(|| ReservationShare::of(reservation));
        if share == reservation.counted {
            return;
        }
        let before = std::mem::replace(&mut reservation.counted, share);
        let (host, configured) = (reservation.host, reservation.row.memory_mib);
        let sums = &mut self.hosts[host].sums;
        match before {
            Some(before) => sums.take(&before.sums(configured)),
            None => self.totals.held += 1,
        }
        match share {
            Some(share) => sums.add(&share.sums(configured)),
            None => self.totals.held = self.totals.held.saturating_sub(1),
        }
    }
}
