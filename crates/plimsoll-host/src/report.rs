//! What a heartbeat says.

use plimsoll_types::{BasisPoints, GuestReport, HostReport, Mib, MilliCpu, bounds};

use crate::host::Host;
use crate::time::HostTime;

impl Host {
    /// The host as it stands now, for somebody who asks; see [`Host::heartbeat`].
    ///
    /// The report accounts for every command that has reached the host: it states the highest
    /// number, and from here on no lower one is acted on.
    pub fn report(&mut self, now: HostTime) -> HostReport {
        self.sequence += 1;
        let seen_through = self.fences.publish();
        let account = self.account(now);
        let (memory_mib_admittable, not_admitting) = match &account {
            _ if self.gate.is_shut() => (None, Some("pressure".to_owned())),
            Ok(account) => (Some(account.admittable), None),
            Err(reason) => (None, Some(bounded(reason))),
        };

        let regime = self.regime();
        let mut guests: Vec<GuestReport> =
            self.guests.values().map(|guest| guest.report(regime, now)).collect();
        guests.extend(self.reservations.values().filter_map(|held| held.report(regime, now)));
        // What could not be read stays at zero here; `not_admitting` says so, and no figure of a
        // host that does not admit is used.
        let (memory_mib_total, memory_mib_used) = match &account {
            Ok(account) => (account.physical, account.system_used.saturating_add(self.held())),
            Err(_) => (self.physical().unwrap_or(Mib::ZERO), self.held()),
        };
        let machine = self.machine.as_ref();
        let cpu = |read: fn(&crate::ledger::Machine) -> Option<MilliCpu>| {
            machine.and_then(read).unwrap_or(MilliCpu::ZERO)
        };
        let config = &self.config;
        HostReport {
            host: config.host.clone(),
            boot_id: config.boot_id.clone(),
            incarnation: self.incarnation,
            sequence: self.sequence,
            seen_through: Some(seen_through),
            heartbeat_at: now.clock,
            uptime_millis: Some(now.uptime.0),
            pool: config.pool.clone(),
            region: config.region.clone(),
            address: config.address.clone(),
            labels: config.labels.clone(),
            drivers: config.drivers,
            cpu_millis_total: cpu(|machine| machine.cpu_total.as_ref().ok().copied()),
            cpu_millis_used: cpu(|machine| machine.cpu_used.as_ref().ok().copied()),
            memory_mib_total,
            memory_mib_used,
            memory_admission: Some(regime),
            memory_mib_admittable,
            not_admitting,
            starts_in_flight: self.starts_in_flight(),
            starts_limit: config.starts_limit,
            counted: self.counted_free(),
            stream_restore: config.stream_restore,
            pressure_bp: machine
                .and_then(|machine| machine.pressure_some.as_ref().ok())
                .map(|some| u32::try_from(some.get().min(BasisPoints::ONE.get())).unwrap_or(0)),
            reservations: self.reservations.keys().copied().collect(),
            guests,
            foreign_guests: self.foreign.clone(),
            ended: self.ended.report(),
            complete: self.adopted,
        }
    }
}

/// A reason of at most [`bounds::LABEL_LENGTH_MAX`] bytes: no heartbeat is lost to a long error.
fn bounded(reason: &str) -> String {
    let mut end = reason.len().min(bounds::LABEL_LENGTH_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}
