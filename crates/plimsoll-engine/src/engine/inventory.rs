//! What a host says of its guests: the ledger follows it, biased to releasing, and never takes a
//! record of what was seen as evidence about what was not.

use plimsoll_policy::slots::{frees_slot, resolve_pause};
use plimsoll_types::{
    ClaimId, EndedGuest, GuestReport, GuestStatus, HostOp, Millis, SandboxStatus, Timestamp,
};
use serde_json::json;

use super::Engine;
use super::state::{Claim, Ix};
use crate::output::{Observation, Output};
use crate::rows::ReservationState;

/// Unexpected guests that one host's view names; a host with more than this has a problem that
/// the first ones tell of.
const UNEXPECTED_MAX: usize = 1_000;

impl Engine {
    /// Takes what a host says of guests that it has no more. Before the inventory: what they used
    /// belongs to the time from the last report on.
    pub(super) fn take_last_totals(
        &mut self,
        now: Timestamp,
        host: Ix,
        ended: &[EndedGuest],
        out: &mut Output,
    ) {
        for guest in ended {
            let claim = match guest.id {
                ClaimId::Sandbox(id) => self.sandbox_ix.get(&id).copied().and_then(|ix| {
                    let row = &self.sandboxes[ix].row;
                    // Its attempt here, or one before it, wherever that was.
                    let here = row.host.as_ref() == Some(&self.hosts[host].row.id);
                    let known =
                        guest.attempt < row.attempt || (here && guest.attempt == row.attempt);
                    known.then_some(Claim::Sandbox(ix))
                }),
                ClaimId::Reservation(id) => self.reservation_ix.get(&id).copied().and_then(|ix| {
                    (self.reservations[ix].host == host).then_some(Claim::Reservation(ix))
                }),
            };
            if let Some(claim) = claim {
                self.meter_ended(now, host, claim, guest, out);
            }
        }
    }

    pub(super) fn take_inventory(&mut self, now: Timestamp, host: Ix, out: &mut Output) {
        let Some(seen) = self.hosts[host].report.as_mut() else { return };
        let guests = std::mem::take(&mut seen.report.guests);
        let foreign = seen.report.foreign_guests.clone();
        let (complete, through) = (seen.report.complete, seen.report.seen_through);
        let counted = seen.report.reservations.clone();
        let mut unexpected = foreign;
        self.hosts[host].stamp += 1;
        let stamp = self.hosts[host].stamp;
        for guest in &guests {
            match guest.id {
                ClaimId::Sandbox(id) => match self.sandbox_ix.get(&id).copied() {
                    Some(ix) if self.sandboxes[ix].host == Some(host) => {
                        self.sandboxes[ix].seen = (host, stamp);
                        self.meter_guest(now, host, Claim::Sandbox(ix), guest, out);
                        self.follow(now, host, ix, guest, through, out);
                    }
                    // It was placed elsewhere since: this is what an earlier try has left.
                    Some(ix) if guest.attempt < self.sandboxes[ix].row.attempt => {
                        self.end_stray(now, host, ix, guest, out);
                    }
                    // The ledger has never known it here.
                    _ => unexpected.push(named(guest)),
                },
                ClaimId::Reservation(id) => match self.reservation_ix.get(&id).copied() {
                    Some(ix) if self.reservations[ix].host == host => {
                        self.reservations[ix].seen = stamp;
                        if self.reservations[ix].row.state == ReservationState::Expired
                            && guest.status != GuestStatus::Exited
                        {
                            self.revive_reservation(now, ix, out);
                        } else if self.reservations[ix].row.state == ReservationState::Released {
                            unexpected.push(named(guest));
                        }
                        self.meter_guest(now, host, Claim::Reservation(ix), guest, out);
                    }
                    _ => unexpected.push(named(guest)),
                },
            }
        }
        for id in counted {
            if let Some(ix) = self.reservation_ix.get(&id).copied()
                && self.reservations[ix].seen != stamp
            {
                self.reservations[ix].seen = stamp;
                self.meter_listed(now, ix, out);
            }
        }
        unexpected.truncate(UNEXPECTED_MAX);
        if self.hosts[host].unexpected != unexpected {
            self.hosts[host].unexpected.clone_from(&unexpected);
            if !unexpected.is_empty() {
                let name = self.hosts[host].row.id.clone();
                let data = json!({ "host": name, "guests": unexpected.len() });
                self.event(now, "host.unexpected_guests", None, data, out);
            }
        }
        if let Some(seen) = self.hosts[host].report.as_mut() {
            seen.report.guests = guests;
        }
        if complete {
            self.release_missing(now, host, stamp, through, out);
        }
    }

    /// Brings one record in line with what its host says of it.
    fn follow(
        &mut self,
        now: Timestamp,
        host: Ix,
        ix: Ix,
        guest: &GuestReport,
        through: Option<u64>,
        out: &mut Output,
    ) {
        let sandbox = &mut self.sandboxes[ix];
        sandbox.edit_rare(|rare| rare.missing_since = None);
        let row = &sandbox.row;
        if guest.attempt < row.attempt || row.status == SandboxStatus::Terminated {
            // An earlier try, or an end that did not arrive: it is ended for good.
            self.end_stray(now, host, ix, guest, out);
            return;
        }
        // A report from before the last command about this guest says nothing about its state.
        if let Some(through) = through
            && through < row.fence.number
        {
            if row.status != SandboxStatus::Failed {
                return;
            }
            // That command was given up together with the host, and may never arrive: from here on
            // the host's word counts again.
            sandbox.row.fence.number = through;
        }
        self.measure(now, ix, guest, out);
        self.follow_status(now, host, ix, guest, out);
    }

    fn follow_status(
        &mut self,
        now: Timestamp,
        host: Ix,
        ix: Ix,
        guest: &GuestReport,
        out: &mut Output,
    ) {
        let status = self.sandboxes[ix].row.status;
        match (status, guest.status) {
            (SandboxStatus::Provisioning | SandboxStatus::Resuming, GuestStatus::Running)
                if !self.sandboxes[ix].undoing =>
            {
                self.now_running(now, ix, out);
            }
            (
                SandboxStatus::Provisioning
                | SandboxStatus::Running
                | SandboxStatus::Pausing
                | SandboxStatus::Paused,
                GuestStatus::Exited,
            ) => self.exited(now, ix, guest.exit_code, guest.reason.as_deref(), out),
            (SandboxStatus::Terminating, GuestStatus::Exited) => self.gone(now, ix, None, out),
            (SandboxStatus::Pausing, GuestStatus::Paused) => {
                let released = self.left_host(ix, guest);
                self.now_paused(now, ix, released, out);
            }
            (SandboxStatus::Running, GuestStatus::Paused) => {
                // The host paused it by itself, under pressure: its next call wakes it.
                let released = self.left_host(ix, guest);
                let why = guest.reason.clone().unwrap_or_else(|| "paused by its host".to_owned());
                self.paused_by_host(now, ix, released, &why, out);
            }
            (SandboxStatus::Paused, GuestStatus::Running) => self.woken(now, ix, out),
            (SandboxStatus::Failed, GuestStatus::Running) => {
                self.revived(now, ix, SandboxStatus::Running, false, out);
            }
            (SandboxStatus::Failed, GuestStatus::Paused) => {
                let released = self.left_host(ix, guest);
                self.revived(now, ix, SandboxStatus::Paused, released, out);
            }
            // A start from its disk that has not come about yet looks the same.
            (SandboxStatus::Resuming, GuestStatus::Exited)
                if !self.sandboxes[ix].row.began_stopped() =>
            {
                self.exited(now, ix, guest.exit_code, guest.reason.as_deref(), out);
            }
            // Nothing of it runs; what is left of it goes.
            (SandboxStatus::Failed, GuestStatus::Exited) => {
                self.end_stray(now, host, ix, guest, out);
            }
            (SandboxStatus::Stopped, GuestStatus::Exited) => self.stopped(now, ix, out),
            // Its stop has not arrived, or this engine's predecessor never sent it.
            (SandboxStatus::Stopped, GuestStatus::Running | GuestStatus::Paused) => {
                self.again(now, ix, host, out);
            }
            _ => {}
        }
    }

    /// Whether a paused guest has left its host's memory.
    fn left_host(&self, ix: Ix, guest: &GuestReport) -> bool {
        let sandbox = &self.sandboxes[ix];
        let pool_kind = sandbox
            .pool
            .map_or(plimsoll_types::PauseKind::Driver, |pool| self.pools[pool].row.settings.pause);
        frees_slot(resolve_pause(pool_kind, sandbox.row.driver)) && guest.charge_mib.0 == 0
    }

    /// Takes over measured figures; they are written at most so often.
    fn measure(&mut self, now: Timestamp, ix: Ix, guest: &GuestReport, out: &mut Output) {
        let interval = self.config.measured_write_interval;
        let sandbox = &mut self.sandboxes[ix];
        let row = &mut sandbox.row;
        let before = (row.charge_mib, row.resident_mib, row.measured);
        // What has been sent and not begun costs its host nothing yet; to the cell it costs what
        // it was admitted for, and a restart has that from the row alone.
        let begins = matches!(row.status, SandboxStatus::Provisioning | SandboxStatus::Resuming);
        if !begins || guest.charge_mib > plimsoll_types::Mib::ZERO {
            row.charge_mib = guest.charge_mib;
        }
        row.resident_mib = guest.resident_mib;
        row.measured = guest.measured;
        let moved = before != (row.charge_mib, row.resident_mib, row.measured);
        self.recount(ix);
        self.remeter(now, ix);
        let sandbox = &mut self.sandboxes[ix];
        if moved && now.since(sandbox.measured_written_at) >= interval {
            sandbox.measured_written_at = now;
            self.write(ix, out);
        }
    }

    /// A guest that should be no more: its host is told so, under the fence, once for each
    /// report that shows it.
    fn end_stray(
        &mut self,
        now: Timestamp,
        host: Ix,
        ix: Ix,
        guest: &GuestReport,
        out: &mut Output,
    ) {
        let id = self.sandboxes[ix].row.id;
        let op = HostOp::End { id, attempt: guest.attempt };
        self.send(now, host, op, self.config.terminate_timeout, Millis::ZERO, out);
        let said = self.sandboxes[ix].rare().stray_said;
        self.sandboxes[ix].edit_rare(|rare| rare.stray_said = guest.attempt);
        if said == guest.attempt {
            out.observations.push(Observation::Correction("stray"));
        } else {
            let data = json!({
                "id": id, "attempt": guest.attempt, "host": self.hosts[host].row.id,
            });
            let tenant = self.sandboxes[ix].tenant;
            self.corrected(now, "stray", Some(tenant), data, out);
        }
    }

    /// Releases what a complete list does not show: at once where its end was asked for, else
    /// when a second list, after a grace, does not show it either (S7).
    fn release_missing(
        &mut self,
        now: Timestamp,
        host: Ix,
        stamp: u64,
        through: Option<u64>,
        out: &mut Output,
    ) {
        let pool = self.hosts[host].pool;
        let grace = Millis::from_seconds(self.pools[pool].row.settings.inventory_grace_seconds);
        for claim in self.hosts[host].claims.clone() {
            match claim {
                Claim::Sandbox(ix) => {
                    let sandbox = &self.sandboxes[ix];
                    if sandbox.seen == (host, stamp) {
                        continue;
                    }
                    let covered = through.is_none_or(|through| through >= sandbox.row.fence.number);
                    if !covered {
                        continue;
                    }
                    self.sandbox_missing(now, ix, grace, through.is_some(), out);
                }
                Claim::Reservation(ix) => {
                    if self.reservations[ix].seen == stamp {
                        self.reservations[ix].missing_since = None;
                        continue;
                    }
                    self.reservation_missing(now, ix, grace, out);
                }
            }
        }
    }

    fn sandbox_missing(
        &mut self,
        now: Timestamp,
        ix: Ix,
        grace: Millis,
        by_agent: bool,
        out: &mut Output,
    ) {
        let sandbox = &mut self.sandboxes[ix];
        match sandbox.row.status {
            SandboxStatus::Terminating if by_agent => return self.gone(now, ix, None, out),
            // Its start or its undoing is still being answered for.
            SandboxStatus::Provisioning => return,
            // Without our agent a host does not list what has no process.
            SandboxStatus::Stopped if !by_agent => return,
            _ => {}
        }
        match sandbox.rare().missing_since {
            None => sandbox.edit_rare(|rare| rare.missing_since = Some(now)),
            Some(since) if now.since(since) >= grace => {
                let (tenant, terminating) =
                    (sandbox.tenant, sandbox.row.status == SandboxStatus::Terminating);
                let data = json!({ "id": sandbox.row.id, "host": sandbox.row.host });
                self.corrected(now, "missing", Some(tenant), data, out);
                if terminating {
                    self.gone(now, ix, None, out);
                } else {
                    self.fail(now, ix, "guest_lost: its host lists it no more", out);
                }
            }
            Some(_) => {}
        }
    }

    fn reservation_missing(&mut self, now: Timestamp, ix: Ix, grace: Millis, out: &mut Output) {
        let reservation = &mut self.reservations[ix];
        // No inventory releases what is not committed: its TTL does.
        if reservation.row.state != ReservationState::Committed {
            return;
        }
        match reservation.missing_since {
            None => reservation.missing_since = Some(now),
            Some(since) if now.since(since) >= grace => {
                let tenant = reservation.tenant;
                let data = json!({ "id": reservation.row.id, "host": reservation.row.host });
                self.corrected(now, "missing", Some(tenant), data, out);
                self.end_reservation(now, ix, ReservationState::Released, out);
            }
            Some(_) => {}
        }
    }

    /// A host is lost with what ran on it.
    pub(super) fn lose(&mut self, now: Timestamp, claim: Claim, out: &mut Output) {
        match claim {
            Claim::Sandbox(ix) => {
                let row = &self.sandboxes[ix].row;
                if row.status == SandboxStatus::Terminating {
                    self.gone(now, ix, None, out);
                } else if !row.status.is_terminal() {
                    self.fail(now, ix, "host_lost", out);
                }
            }
            Claim::Reservation(ix) => {
                if self.reservations[ix].row.state.holds() {
                    self.end_reservation(now, ix, ReservationState::Expired, out);
                }
            }
        }
    }
}

fn named(guest: &GuestReport) -> String {
    if guest.attempt > 1 { format!("{}.{}", guest.id, guest.attempt) } else { guest.id.to_string() }
}
