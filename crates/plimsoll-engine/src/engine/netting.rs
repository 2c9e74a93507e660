//! A host's report: whether it is newer than what is held, and which charges it holds.

use plimsoll_types::{HeartbeatAnswer, HostReport, HostReservation, RefusalCode, Timestamp};
use serde_json::json;

use super::Engine;
use super::fleet::{PRESSURE, new_host_row};
use super::state::{Claim, Ix, Seen};
use crate::command::Token;
use crate::output::{Output, Refusal, Reply};
use crate::rows::{Change, ReservationState};

/// Committed reservations that one answer tells a host of. What is beyond stays charged by the
/// cell until it is listed.
const ANSWER_RESERVATIONS_MAX: usize = 10_000;

/// Sequence numbers that may go by unheard: 2^32 reports, more than any host sends in a year.
const SEQUENCE_JUMP_MAX: u64 = 1 << 32;
/// And for each millisecond since the last report so many more: twice what a clock of
/// microseconds counts, since that is what some number their reports with.
const SEQUENCE_PER_MILLI: u64 = 2_000;
/// Starts of an agent that this cell may not know of, as after its store came from a backup. A
/// higher incarnation was given by nobody.
const INCARNATION_JUMP_MAX: u64 = 1 << 20;

impl Engine {
    /// Takes in a report, if it is newer than what is held, and answers it.
    pub(super) fn report(
        &mut self,
        now: Timestamp,
        token: Token,
        mut report: HostReport,
        probe: bool,
        out: &mut Output,
    ) {
        if probe {
            self.place_provider(&mut report);
        }
        let Some(pool) = self.pool_ix.get(&report.pool).copied() else {
            Self::refuse(token, self.unknown_pool(&report.pool), out);
            return;
        };
        if let Some(admittable) = report.memory_mib_admittable
            && admittable > report.memory_mib_total.signed()
        {
            let detail = format!(
                "memory_mib_admittable is {admittable}: at most memory_mib_total, {}",
                report.memory_mib_total.0
            );
            let mut refusal = Refusal::new(RefusalCode::InvalidRequest, detail);
            let bound = format!("at most {}", report.memory_mib_total.0);
            refusal.field = Some(("memory_mib_admittable", bound));
            return Self::refuse(token, refusal, out);
        }
        let ix = match self.host_by_name(&report.host) {
            Some(ix) => ix,
            None => {
                let mut row = new_host_row(report.host.clone(), report.pool.clone(), now);
                row.address.clone_from(&report.address);
                self.enrol(now, row, pool, out)
            }
        };
        if let Some(refusal) = self.leaps(now, ix, &report) {
            if probe {
                self.host_answered(now, ix, out);
            }
            return Self::refuse(token, refusal, out);
        }
        if !self.is_newer(ix, &report) {
            if probe {
                self.host_answered(now, ix, out);
            }
            out.replies.push((token, Reply::Heartbeat(self.heartbeat_answer(ix, false))));
            return;
        }
        self.move_host(ix, pool);
        self.identify(ix, &report, out);
        self.note_pressure(now, ix, &report, out);
        let before = self.hosts[ix].report.as_ref().map(|seen| seen.report.memory_mib_total);
        self.resize(ix, before, report.memory_mib_total);
        let ended = std::mem::take(&mut report.ended);
        let host = &mut self.hosts[ix];
        let was_dead = host.dead;
        host.dead = false;
        host.stale_said = false;
        host.report = Some(Seen { at: now, report });
        self.recount_resources(ix);
        if was_dead {
            let name = self.hosts[ix].row.id.clone();
            self.event(now, "host.returned", None, json!({ "host": name }), out);
        }
        self.check_host(now, ix, out);
        self.take_last_totals(now, ix, &ended, out);
        self.take_inventory(now, ix, out);
        self.net(ix);
        let pool = self.hosts[ix].pool;
        self.stir(pool);
        self.host_answered(now, ix, out);
        out.replies.push((token, Reply::Heartbeat(self.heartbeat_answer(ix, true))));
    }

    /// Whether the report's place in the order is so far ahead that taking it would shut out those
    /// that follow.
    fn leaps(&self, now: Timestamp, ix: Ix, report: &HostReport) -> Option<Refusal> {
        let host = &self.hosts[ix];
        let too_high = |field: &'static str, given: u64, most: u64, why: &str| {
            let bound = format!("at most {most}, {why}");
            let detail = format!("{field} is {given}: {bound}");
            let mut refusal = Refusal::new(RefusalCode::InvalidRequest, detail);
            refusal.field = Some((field, bound));
            Some(refusal)
        };
        let most = host.row.incarnation.saturating_add(INCARNATION_JUMP_MAX);
        if let Some(given) = report.incarnation.filter(|given| *given > most) {
            return too_high("incarnation", given, most, "near what this cell has given");
        }
        let seen = host.report.as_ref()?;
        let same =
            seen.report.boot_id == report.boot_id && seen.report.incarnation == report.incarnation;
        let time = now.since(seen.at).get().saturating_mul(SEQUENCE_PER_MILLI);
        let held = seen.report.sequence;
        let most = held.saturating_add(SEQUENCE_JUMP_MAX).saturating_add(time);
        if same && report.sequence > most {
            let why = format!("as it follows {held} of the same boot_id");
            return too_high("sequence", report.sequence, most, &why);
        }
        None
    }

    /// Order by incarnation, then by boot and sequence; clocks do not come into it.
    fn is_newer(&self, ix: Ix, report: &HostReport) -> bool {
        let host = &self.hosts[ix];
        // One incarnation belongs to one start of the agent. A start that has none yet, where
        // others had, cannot be told from what comes late of an earlier one.
        let other = host.row.boot_id.as_ref().is_some_and(|boot| *boot != report.boot_id);
        match report.incarnation {
            None if host.row.incarnation > 0 => return false,
            Some(given) if given < host.row.incarnation => return false,
            Some(given) if given == host.row.incarnation && given > 0 && other => return false,
            _ => {}
        }
        if host.row.old_boots.contains(&report.boot_id) {
            return false;
        }
        match &host.report {
            Some(seen) if seen.report.boot_id == report.boot_id => {
                let held = (seen.report.incarnation.unwrap_or(0), seen.report.sequence);
                (report.incarnation.unwrap_or(0), report.sequence) > held
            }
            _ => true,
        }
    }

    /// A report of a new boot replaces the numbers of the one before; records stay.
    fn identify(&mut self, ix: Ix, report: &HostReport, out: &mut Output) {
        let host = &mut self.hosts[ix];
        let mut moved = false;
        if let Some(incarnation) = report.incarnation
            && incarnation > host.row.incarnation
        {
            host.row.incarnation = incarnation;
            moved = true;
        }
        moved |= host.replace_boot(&report.boot_id);
        if host.row.address.is_none() && report.address.is_some() {
            host.row.address.clone_from(&report.address);
            moved = true;
        }
        // Without an agent's enrolment there is no secret that fixes an address.
        if host.row.secret.is_none() && host.row.address != report.address {
            host.row.address.clone_from(&report.address);
            moved = true;
        }
        if host.row.pool != report.pool {
            moved = true;
        }
        host.row.pool = report.pool.clone();
        if moved {
            out.changes.push(Change::Host(host.row.clone()));
        }
    }

    fn note_pressure(&mut self, now: Timestamp, ix: Ix, report: &HostReport, out: &mut Output) {
        let shut = report.not_admitting.as_deref() == Some(PRESSURE);
        let host = &mut self.hosts[ix];
        if shut == host.pressure_said {
            return;
        }
        host.pressure_said = shut;
        let name = host.row.id.clone();
        let data = json!({ "host": name, "gate": if shut { "shut" } else { "open" },
            "pressure_bp": report.pressure_bp });
        self.event(now, "host.pressure", None, data, out);
    }

    fn resize(&mut self, ix: Ix, before: Option<plimsoll_types::Mib>, now: plimsoll_types::Mib) {
        if before == Some(now) {
            return;
        }
        let pool = self.hosts[ix].pool;
        if before.is_some() {
            self.forget_size(ix);
        }
        *self.pools[pool].sizes.entry(now).or_default() += 1;
        self.hosts[ix].sized = Some((pool, now));
    }

    /// Takes a host's size from its pool's.
    pub(super) fn forget_size(&mut self, ix: Ix) {
        let Some((pool, size)) = self.hosts[ix].sized.take() else { return };
        let sizes = &mut self.pools[pool].sizes;
        if let Some(count) = sizes.get_mut(&size) {
            *count -= 1;
            if *count == 0 {
                sizes.remove(&size);
            }
        }
    }

    /// Works out anew which charges the host's report does not hold: exact, because the report
    /// says what it has counted.
    pub(super) fn net(&mut self, ix: Ix) {
        let Some(seen) = &self.hosts[ix].report else { return };
        let seen_through = seen.report.seen_through;
        let mut listed: Vec<plimsoll_types::ReservationId> = seen.report.reservations.clone();
        listed.extend(seen.report.guests.iter().filter_map(|guest| match guest.id {
            plimsoll_types::ClaimId::Reservation(id) => Some(id),
            plimsoll_types::ClaimId::Sandbox(_) => None,
        }));
        listed.sort_unstable();
        let guests: std::collections::BTreeSet<plimsoll_types::SandboxId> =
            if seen_through.is_none() {
                let sandbox = |guest: &plimsoll_types::GuestReport| match guest.id {
                    plimsoll_types::ClaimId::Sandbox(id) => Some(id),
                    plimsoll_types::ClaimId::Reservation(_) => None,
                };
                seen.report.guests.iter().filter_map(sandbox).collect()
            } else {
                std::collections::BTreeSet::new()
            };
        for claim in self.hosts[ix].claims.clone() {
            match claim {
                Claim::Reservation(r) => {
                    let id = self.reservations[r].row.id;
                    let netted = listed.binary_search(&id).is_ok();
                    self.set_netted(r, netted);
                }
                Claim::Sandbox(s) => {
                    let Some(pending) = self.sandboxes[s].pending else { continue };
                    let counted = match (seen_through, pending.number) {
                        (Some(through), Some(number)) => number <= through,
                        _ => guests.contains(&self.sandboxes[s].row.id),
                    };
                    if counted {
                        self.drop_pending(s);
                    } else if pending.thaws {
                        self.net_thaw(ix, s);
                    }
                }
            }
        }
        self.relist(ix);
    }

    /// A frozen guest that was told to run again, by a command that the host's report does not
    /// account for: the report holds what it costs frozen, and the cell the rest.
    pub(super) fn net_thaw(&mut self, host: Ix, ix: Ix) {
        let Some(pool) = self.sandboxes[ix].pool else { return };
        let rest = self.thaw_charge(pool, host, ix).0;
        let Some(pending) = &mut self.sandboxes[ix].pending else { return };
        let before = std::mem::replace(&mut pending.charge, rest);
        let state = &mut self.hosts[host];
        state.pending = state.pending.saturating_sub(before) + rest;
    }

    fn set_netted(&mut self, ix: Ix, netted: bool) {
        let reservation = &mut self.reservations[ix];
        if reservation.netted == netted {
            return;
        }
        let (charge, vcpus) = (reservation.row.charge_mib.0, reservation.row.vcpus.0);
        reservation.netted = netted;
        let host = &mut self.hosts[reservation.host];
        if netted {
            host.pending = host.pending.saturating_sub(charge);
            host.pending_vcpus = host.pending_vcpus.saturating_sub(vcpus);
        } else {
            host.pending += charge;
            host.pending_vcpus += vcpus;
        }
        if self.reservations[ix].counted.is_some() {
            self.recount_reservation(ix, true);
        }
    }

    /// What a heartbeat is answered with.
    fn heartbeat_answer(&self, ix: Ix, accepted: bool) -> HeartbeatAnswer {
        let host = &self.hosts[ix];
        let committed = host.claims.iter().filter_map(|claim| match claim {
            Claim::Reservation(r) => {
                let row = &self.reservations[*r].row;
                (row.state == ReservationState::Committed).then(|| HostReservation {
                    id: row.id,
                    memory_mib: row.memory_mib,
                    stateful: row.stateful,
                    cgroup: row.cgroup.as_deref().map(ToOwned::to_owned),
                })
            }
            Claim::Sandbox(_) => None,
        });
        HeartbeatAnswer {
            accepted,
            unexpected_guests: host.unexpected.clone(),
            reservations: committed.take(ANSWER_RESERVATIONS_MAX).collect(),
            regime: Some(self.pools[host.pool].row.settings.regime),
        }
    }
}
