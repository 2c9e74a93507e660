//! Metering: from what hosts report, and from what the cell itself knows of a guest's memory, to
//! amounts in the hours in which they were used.
//!
//! CPU and egress come as totals that only grow, so a report that is late, lost or repeated costs
//! nothing. Those of a host without our agent may begin anew, which shows: they fall to what can
//! have been used since. They belong to the time between the two reports by the cell's own clock:
//! more the cell cannot know. Memory is what the ledger charges, for as long as it does; where a
//! guest turns out to be lost, only up to the last report that showed it. In every doubt nothing
//! is credited.
//!
//! What was credited is written as rows of hours together with how far each counter has come, in
//! one batch: after a crash both stand where they stood, and the next report brings the rest.

use std::sync::Arc;

use plimsoll_policy::abuse::FullCore;
use plimsoll_policy::consumption::Amounts;
use plimsoll_policy::usage::{Meter, Totals, hour_of, meters_memory, mib_millis};
use plimsoll_types::{
    ClaimId, EndedGuest, GuestReport, GuestStatus, Mib, Millis, SandboxStatus, Timestamp, Vcpus,
};
use serde_json::json;
use smallvec::SmallVec;

use super::Engine;
use super::state::{Claim, Ix, Reservation, Sandbox};
use crate::output::{Observation, Output};
use crate::rows::{Change, OTHER_CLAIMS, ReservationRow, ReservationState, SandboxRow, UsageRow};

/// Use is credited no further back than this. Stores may sum hours up into days after two days,
/// and a row of an hour is not written again after that.
const BACK_MAX: Millis = Millis::from_seconds(47 * 3600);

/// A guest that keeps less of one core busy than this counts as idle: a shell that waits.
const BUSY_SHARE_OF_A_CORE: u64 = 20;

/// Slack beyond which a CPU total is not believed: no guest has used more than its host's cores
/// for its whole life and this much longer.
const DOUBT_SLACK: Millis = Millis::from_seconds(60);

/// Memory that is being used: charged, and resident where it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) charged: Mib,
    pub(crate) resident: Mib,
}

impl Held {
    const NOTHING: Self = Self { charged: Mib(0), resident: Mib(0) };

    fn of_sandbox(row: &SandboxRow) -> Self {
        if meters_memory(row.status, row.slot_released) {
            Self { charged: row.charge_mib, resident: row.resident_mib.unwrap_or(Mib::ZERO) }
        } else {
            Self::NOTHING
        }
    }

    /// A reservation uses memory from its commit on. Before a measurement its host charges what
    /// it was admitted with where it measures the guest, and all of it where it cannot.
    fn of_reservation(row: &ReservationRow) -> Self {
        let charged = match row.state {
            ReservationState::Committed if row.cgroup.is_some() => row.charge_mib,
            ReservationState::Committed => row.memory_mib,
            _ => Mib::ZERO,
        };
        Self { charged, resident: Mib::ZERO }
    }

    fn over(self, length: Millis) -> Amounts {
        Amounts {
            charged_mib_millis: mib_millis(self.charged, length),
            resident_mib_millis: mib_millis(self.resident, length),
            ..Amounts::default()
        }
    }
}

/// One hour of one claim, as it is or will be written.
#[derive(Clone, Copy, Debug)]
struct Hour {
    start: Timestamp,
    used: Amounts,
    written: bool,
}

/// How one claim is being metered, beside what its row says: how far everything is credited.
///
/// The row is never written without the hours that stand behind it, nor they without the row.
#[derive(Debug)]
pub(crate) struct ClaimMeter {
    held: Held,
    /// Hours that may still be credited, the oldest first.
    hours: SmallVec<[Hour; 1]>,
    written_at: Timestamp,
    /// What it has used in its tenant's period of this start.
    period: Timestamp,
    used: Amounts,
    full: FullCore,
    /// When it was last seen to do something.
    busy_at: Timestamp,
    /// Whether a total of it was not believed, and that was said.
    doubted: bool,
}

impl ClaimMeter {
    fn new(meter: &Meter, held: Held) -> Box<Self> {
        Box::new(Self {
            held,
            hours: SmallVec::new(),
            written_at: meter.at,
            period: Timestamp(0),
            used: Amounts::default(),
            full: FullCore::default(),
            busy_at: meter.heard_at,
            doubted: false,
        })
    }

    fn add(&mut self, start: Timestamp, part: Amounts) {
        let place = self.hours.partition_point(|hour| hour.start < start);
        match self.hours.get_mut(place) {
            Some(hour) if hour.start == start => {
                hour.used = hour.used.plus(part);
                hour.written = false;
            }
            _ => self.hours.insert(place, Hour { start, used: part, written: false }),
        }
    }

    /// What it has used in the period of its tenant that starts then.
    pub(super) fn in_period(&self) -> (Timestamp, Amounts) {
        (self.period, self.used)
    }

    fn has_unwritten(&self) -> bool {
        self.hours.iter().any(|hour| !hour.written)
    }
}

/// Takes reported totals and gives what they add. `fallible`: core-milliseconds a second of a host
/// whose counters may begin anew; `length`: since the last report, to which a second of slack is
/// added, since a host reads its counters somewhat before it is heard.
fn take(
    position: &mut Meter,
    attempt: u32,
    totals: Totals,
    fallible: Option<u64>,
    length: Millis,
) -> Totals {
    if let Some(cores) = fallible {
        let most = cores.saturating_mul(length.0.saturating_add(1_000)) / 1_000;
        position.begins_anew(attempt, totals, most);
    }
    position.credit(attempt, totals)
}

/// Up to when both clocks have come: no hour before it is credited any more.
fn settled(meter: &Meter) -> Timestamp {
    meter.at.min(meter.heard_at)
}

impl Engine {
    fn meter_of(&self, claim: Claim) -> (&Meter, Option<&ClaimMeter>) {
        match claim {
            Claim::Sandbox(ix) => {
                let sandbox = &self.sandboxes[ix];
                (&sandbox.row.meter, sandbox.meter.as_deref())
            }
            Claim::Reservation(ix) => {
                let reservation = &self.reservations[ix];
                (&reservation.row.meter, reservation.meter.as_deref())
            }
        }
    }

    /// How far a claim is credited, and how it is metered, begun now where it was not yet.
    fn meter_mut(&mut self, now: Timestamp, claim: Claim) -> (&mut Meter, &mut ClaimMeter) {
        match claim {
            Claim::Sandbox(ix) => {
                let Sandbox { row, meter, .. } = &mut self.sandboxes[ix];
                if row.meter.is_unused() {
                    row.meter.begin(now);
                }
                let held = Held::of_sandbox(row);
                let meter = meter.get_or_insert_with(|| ClaimMeter::new(&row.meter, held));
                (&mut row.meter, meter)
            }
            Claim::Reservation(ix) => {
                let Reservation { row, meter, .. } = &mut self.reservations[ix];
                let row = Arc::make_mut(row);
                if row.meter.is_unused() {
                    row.meter.begin(now);
                }
                let held = Held::of_reservation(row);
                let meter = meter.get_or_insert_with(|| ClaimMeter::new(&row.meter, held));
                (&mut row.meter, meter)
            }
        }
    }

    /// For how long a claim has kept all of its vCPUs busy without a break.
    pub(super) fn busy_for(&self, now: Timestamp, claim: Claim) -> Millis {
        self.meter_of(claim).0.full_since.map_or(Millis::ZERO, |since| now.since(since))
    }

    /// For how long, up to the last report, a sandbox has been seen to do next to nothing.
    pub(super) fn quiet_for(&self, ix: Ix) -> Millis {
        let (position, meter) = self.meter_of(Claim::Sandbox(ix));
        meter.map_or(Millis::ZERO, |meter| position.heard_at.since(meter.busy_at))
    }

    /// When something last happened in a sandbox: a call into it, or its host has seen it use a
    /// share of a core that a waiting shell does not.
    pub(super) fn active_at(&self, ix: Ix) -> Timestamp {
        let (_, meter) = self.meter_of(Claim::Sandbox(ix));
        let busy = meter.map_or(Timestamp(0), |meter| meter.busy_at);
        self.sandboxes[ix].row.last_active_at.max(busy)
    }

    fn claim_facts(&self, claim: Claim) -> (ClaimId, Ix, Timestamp, Vcpus) {
        match claim {
            Claim::Sandbox(ix) => {
                let sandbox = &self.sandboxes[ix];
                let row = &sandbox.row;
                (ClaimId::Sandbox(row.id), sandbox.tenant, row.created_at, row.vcpus)
            }
            Claim::Reservation(ix) => {
                let reservation = &self.reservations[ix];
                let row = &reservation.row;
                (ClaimId::Reservation(row.id), reservation.tenant, row.created_at, row.vcpus)
            }
        }
    }

    /// Takes what a host says of a guest: what it has used since the last report, and its memory
    /// up to now.
    pub(super) fn meter_guest(
        &mut self,
        now: Timestamp,
        host: Ix,
        claim: Claim,
        guest: &GuestReport,
        out: &mut Output,
    ) {
        let (_, _, created_at, vcpus) = self.claim_facts(claim);
        let over = match claim {
            Claim::Sandbox(ix) => self.sandboxes[ix].row.status.is_terminal(),
            Claim::Reservation(ix) => !self.reservations[ix].row.state.holds(),
        };
        let totals = Totals {
            cpu_millis: guest.cpu_millis_total_used,
            egress_bytes: guest.egress_bytes_total,
        };
        let believed = self.believes(now, host, created_at, totals);
        let fallible = self.cores_of_fallible(host, vcpus);
        let (position, meter) = self.meter_mut(now, claim);
        let from = std::mem::replace(&mut position.heard_at, now);
        let mut more = Totals::default();
        if believed {
            more = take(position, guest.attempt, totals, fallible, now.since(from));
        }
        if more.cpu_millis.saturating_mul(BUSY_SHARE_OF_A_CORE) > now.since(from).0 {
            meter.busy_at = now;
        }
        let window = if guest.status == GuestStatus::Running {
            meter.full.observe(vcpus, more.cpu_millis, from, now)
        } else {
            meter.full = FullCore::default();
            position.full_since = None;
            None
        };
        if let Some(window) = window {
            position.full_since = window.busy_since(position.full_since);
        }
        if !believed && !std::mem::replace(&mut meter.doubted, true) {
            self.doubt(now, host, claim, totals, out);
        }
        let used = Amounts {
            cpu_millis: more.cpu_millis,
            egress_bytes: more.egress_bytes,
            ..Amounts::default()
        };
        self.credit(now, claim, used, from, now);
        if let Claim::Reservation(_) = claim
            && !over
        {
            let resident = guest.resident_mib.unwrap_or(Mib::ZERO);
            self.hold_memory(now, claim, Held { charged: guest.charge_mib, resident }, true);
        } else {
            self.credit_memory(now, claim);
        }
        // Of one that is over, this may be the last word.
        self.write_usage(now, claim, over, out);
        if window.is_some() {
            self.shape_moved(now, claim, out);
        }
    }

    /// Takes the last totals of a guest that is no more: what it used after the last report that
    /// listed it, up to its end.
    pub(super) fn meter_ended(
        &mut self,
        now: Timestamp,
        host: Ix,
        claim: Claim,
        guest: &EndedGuest,
        out: &mut Output,
    ) {
        let (_, _, created_at, vcpus) = self.claim_facts(claim);
        let ended_at = match claim {
            Claim::Sandbox(ix) => self.sandboxes[ix].row.ended_at,
            Claim::Reservation(ix) => self.reservations[ix].row.ended_at,
        };
        let totals = Totals {
            cpu_millis: guest.cpu_millis_total_used,
            egress_bytes: guest.egress_bytes_total.unwrap_or(0),
        };
        let believed = self.believes(now, host, created_at, totals);
        let fallible = self.cores_of_fallible(host, vcpus);
        let (position, meter) = self.meter_mut(now, claim);
        let from = position.heard_at;
        if !believed {
            if !std::mem::replace(&mut meter.doubted, true) {
                self.doubt(now, host, claim, totals, out);
            }
            return;
        }
        let more = take(position, guest.attempt, totals, fallible, now.since(from));
        if more == Totals::default() {
            return;
        }
        let used = Amounts {
            cpu_millis: more.cpu_millis,
            egress_bytes: more.egress_bytes,
            ..Amounts::default()
        };
        let until = ended_at.unwrap_or(now).clamp(from, from.max(now));
        self.credit(now, claim, used, from, until);
        self.write_usage(now, claim, true, out);
    }

    /// A reservation's charge is held by its host, which does not list its guest: its memory is
    /// used up to now.
    pub(super) fn meter_listed(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        if self.reservations[ix].row.state != ReservationState::Committed {
            return;
        }
        let claim = Claim::Reservation(ix);
        self.credit_memory(now, claim);
        self.meter_mut(now, claim).0.heard_at = now;
        self.write_usage(now, claim, false, out);
    }

    /// Whether a guest can have used so much since its record was made.
    fn believes(&self, now: Timestamp, host: Ix, since: Timestamp, totals: Totals) -> bool {
        let cores = self.hosts[host].report.as_ref().map(|seen| seen.report.cpu_millis_total.0);
        let Some(cores) = cores.filter(|cores| *cores > 0) else { return true };
        let life = now.since(since).0.saturating_add(DOUBT_SLACK.0);
        u128::from(totals.cpu_millis) * 1000 <= u128::from(cores) * u128::from(life)
    }

    /// Core-milliseconds a second of a host whose counters may begin anew: one without our agent, whose
    /// totals never fall within an attempt. The guest's own vCPUs where it does not say its cores.
    fn cores_of_fallible(&self, host: Ix, vcpus: Vcpus) -> Option<u64> {
        let report = &self.hosts[host].report.as_ref()?.report;
        let said = (report.cpu_millis_total.0 > 0).then_some(report.cpu_millis_total.0);
        report.incarnation.is_none().then(|| said.unwrap_or(vcpus.0.saturating_mul(1_000)))
    }

    fn doubt(&mut self, now: Timestamp, host: Ix, claim: Claim, totals: Totals, out: &mut Output) {
        let (id, tenant, ..) = self.claim_facts(claim);
        let data = json!({
            "id": id, "host": self.hosts[host].row.id, "cpu_millis_total_used": totals.cpu_millis,
        });
        self.corrected(now, "usage_not_believed", Some(tenant), data, out);
    }

    /// The ledger's view of a sandbox's memory may have changed: what was held until now is
    /// credited, unless the sandbox turns out to have been lost. The caller writes the row.
    pub(super) fn remeter(&mut self, now: Timestamp, ix: Ix) {
        let sandbox = &self.sandboxes[ix];
        let held = Held::of_sandbox(&sandbox.row);
        let before = sandbox.meter.as_ref().map_or(Held::NOTHING, |meter| meter.held);
        if held != before {
            let known = sandbox.row.status != SandboxStatus::Failed;
            self.hold_memory(now, Claim::Sandbox(ix), held, known);
        }
    }

    /// A sandbox that uses memory is metered on from where its row says.
    pub(super) fn meter_restored(&mut self, now: Timestamp, ix: Ix) {
        if Held::of_sandbox(&self.sandboxes[ix].row) != Held::NOTHING {
            self.meter_mut(now, Claim::Sandbox(ix));
        }
    }

    /// A reservation is committed: its memory is used from where its row says on.
    pub(super) fn meter_commit(&mut self, ix: Ix) {
        let Reservation { row, meter, .. } = &mut self.reservations[ix];
        if let Some(meter) = meter {
            meter.held = Held::of_reservation(row);
        }
    }

    /// A reservation is about to end. The caller writes its row.
    pub(super) fn meter_end(&mut self, now: Timestamp, ix: Ix, lost: bool) {
        let reservation = &self.reservations[ix];
        let row = &reservation.row;
        let unseen = reservation.meter.is_none();
        if unseen && (row.state != ReservationState::Committed || row.meter.at == now) {
            return;
        }
        self.hold_memory(now, Claim::Reservation(ix), Held::NOTHING, !lost);
    }

    /// From now on a claim holds other memory; what it held until now is credited if it is known
    /// to have been there.
    fn hold_memory(&mut self, now: Timestamp, claim: Claim, held: Held, known: bool) {
        if known {
            self.credit_memory(now, claim);
        }
        let (position, meter) = self.meter_mut(now, claim);
        position.at = now;
        meter.held = held;
    }

    fn credit_memory(&mut self, now: Timestamp, claim: Claim) {
        let (position, meter) = self.meter_mut(now, claim);
        let from = std::mem::replace(&mut position.at, now);
        let used = meter.held.over(now.since(from));
        self.credit(now, claim, used, from, now);
    }

    /// Credits what was used between two instants, each hour with its own.
    fn credit(
        &mut self,
        now: Timestamp,
        claim: Claim,
        used: Amounts,
        from: Timestamp,
        until: Timestamp,
    ) {
        if used.is_nothing() {
            return;
        }
        let earliest = hour_of(now - BACK_MAX);
        let (from, until) = (from.max(earliest), until.max(earliest));
        if hour_of(from) == hour_of(until) {
            self.credit_hour(now, claim, hour_of(until), used);
        } else {
            for (hour, part) in used.split(from, until) {
                self.credit_hour(now, claim, hour, part);
            }
        }
    }

    fn credit_hour(&mut self, now: Timestamp, claim: Claim, hour: Timestamp, part: Amounts) {
        self.meter_mut(now, claim).1.add(hour, part);
        let (id, tenant, ..) = self.claim_facts(claim);
        let state = &mut self.tenants[tenant];
        let account = state.account_at(hour);
        // What belongs to a period before the present one is in that one's rows, and in no sum.
        if !account.period.contains(hour) {
            return;
        }
        account.used = account.used.plus(part);
        let period = account.period.start;
        if !state.limits.consumption.is_unlimited() {
            self.metered.insert(tenant);
        }
        let (_, meter) = self.meter_mut(now, claim);
        if meter.period != period {
            meter.period = period;
            meter.used = Amounts::default();
        }
        meter.used = meter.used.plus(part);
        let used = meter.used;
        self.tenants[tenant].account_at(hour).top.see(id, used);
    }

    /// Writes what was credited and not written, if it is time: at the end of an hour, every so
    /// often, and at once where `always` says so.
    fn write_usage(&mut self, now: Timestamp, claim: Claim, always: bool, out: &mut Output) {
        let (_, Some(meter)) = self.meter_of(claim) else { return };
        let due = always
            || now.since(meter.written_at) >= self.config.usage_write_interval
            || meter.hours.iter().any(|hour| !hour.written && hour.start < hour_of(now));
        if due && meter.has_unwritten() {
            match claim {
                Claim::Sandbox(ix) => self.write(ix, out),
                Claim::Reservation(ix) => self.edit(ix, out, |_| {}),
            }
        }
    }

    /// What goes with a claim's row whenever that is written: the hours behind its figures.
    pub(super) fn write_hours(&mut self, claim: Claim, out: &mut Output) {
        let (position, Some(meter)) = self.meter_of(claim) else { return };
        if !meter.has_unwritten() {
            return;
        }
        let (written_at, settled) =
            (position.at.max(position.heard_at), hour_of(settled(position)));
        let (id, tenant, ..) = self.claim_facts(claim);
        let tenant = &self.tenants[tenant].row().id;
        for hour in meter.hours.iter().filter(|hour| !hour.written) {
            out.changes.push(Change::Usage(UsageRow {
                tenant: tenant.clone(),
                claim: id,
                hour: hour.start,
                cpu_millis: hour.used.cpu_millis,
                charged_mib_millis: hour.used.charged_mib_millis,
                resident_mib_millis: hour.used.resident_mib_millis,
                egress_bytes: hour.used.egress_bytes,
            }));
        }
        let (_, meter) = self.meter_mut(written_at, claim);
        meter.written_at = written_at;
        meter.hours.retain(|hour| hour.start >= settled);
        for hour in &mut meter.hours {
            hour.written = true;
        }
    }

    /// Writes everything that a tenant's live claims have used: what follows from the sum must not
    /// be forgotten by a crash that forgets a part of it.
    pub(super) fn write_all_usage(&mut self, now: Timestamp, tenant: Ix, out: &mut Output) {
        for claim in self.tenants[tenant].claims.clone() {
            self.write_usage(now, claim, true, out);
        }
    }

    /// Sums up what was written before a restart, and lets every claim go on from there.
    pub(super) fn restore_usage(&mut self, now: Timestamp, rows: Vec<UsageRow>) {
        let mut by_claim: std::collections::BTreeMap<(Ix, ClaimId), Amounts> =
            std::collections::BTreeMap::new();
        let kept_from = hour_of(now - BACK_MAX);
        for row in rows {
            let Some(tenant) = self.tenant_named(&row.tenant) else { continue };
            let used = Amounts {
                cpu_millis: row.cpu_millis,
                charged_mib_millis: row.charged_mib_millis,
                resident_mib_millis: row.resident_mib_millis,
                egress_bytes: row.egress_bytes,
            };
            let claim = match row.claim {
                ClaimId::Sandbox(id) => self.sandbox_ix.get(&id).map(|ix| Claim::Sandbox(*ix)),
                ClaimId::Reservation(id) => {
                    self.reservation_ix.get(&id).map(|ix| Claim::Reservation(*ix))
                }
            };
            if let Some(claim) = claim
                && row.hour >= kept_from
            {
                let (position, meter) = self.meter_mut(now, claim);
                if row.hour >= hour_of(settled(position)) {
                    meter.add(row.hour, used);
                    meter.hours.iter_mut().for_each(|hour| hour.written = true);
                }
            }
            let account = self.tenants[tenant].account_at(now);
            if account.period.contains(row.hour) {
                account.used = account.used.plus(used);
                let sum = by_claim.entry((tenant, row.claim)).or_default();
                *sum = sum.plus(used);
            }
        }
        for ((tenant, id), used) in by_claim {
            let account = self.tenants[tenant].account_at(now);
            if id != OTHER_CLAIMS {
                account.top.see(id, used);
            }
            let period = account.period.start;
            let claim = match id {
                ClaimId::Sandbox(id) => self.sandbox_ix.get(&id).map(|ix| Claim::Sandbox(*ix)),
                ClaimId::Reservation(id) => {
                    self.reservation_ix.get(&id).map(|ix| Claim::Reservation(*ix))
                }
            };
            if let Some(claim) = claim {
                let (_, meter) = self.meter_mut(now, claim);
                (meter.period, meter.used) = (period, used);
            }
            if !self.tenants[tenant].limits.consumption.is_unlimited() {
                self.metered.insert(tenant);
            }
        }
    }

    /// A record or a figure was brought in line with the fleet: counted, and said to operators.
    pub(super) fn corrected(
        &mut self,
        now: Timestamp,
        what: &'static str,
        tenant: Option<Ix>,
        mut data: serde_json::Value,
        out: &mut Output,
    ) {
        out.observations.push(Observation::Correction(what));
        data["correction"] = json!(what);
        if let Some(tenant) = tenant {
            data["tenant"] = json!(self.tenants[tenant].row().id);
        }
        self.event(now, "quota.corrected", None, data, out);
    }
}
