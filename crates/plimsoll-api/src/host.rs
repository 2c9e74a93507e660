//! Heartbeats: the wire body, and its way to and from [`HostReport`].

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_types::{
    ClaimId, Counted, Driver, DriverSet, EndedGuest, GuestReport, GuestStatus,
    HOST_PROTOCOL_VERSION, HostId, HostReport, Mib, MilliCpu, PoolName, Regime, ReservationId,
    Timestamp, bounds,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::input::{Body, FieldError, check, check_counted, check_labels, check_opt, check_text};
use crate::schema;
use crate::time::Time;

/// Longest address of an agent in bytes: what proxies commonly take as one URL.
const ADDRESS_LENGTH_MAX: usize = 2048;

/// Body of `POST /v1/hosts/{host}/heartbeat`, and answer of the agent's `GET /v1/capacity`.
///
/// Unknown fields are ignored: cell and agent may differ by a version. What a host without our
/// agent cannot know may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Heartbeat {
    /// New at each start of the reporter.
    pub boot_id: String,
    /// Given by the cell at the agent's start; a little ahead of what this cell has given at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Grows with each report of one boot, no faster than a clock of microseconds.
    pub sequence: u64,
    /// Highest command number that this report accounts for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_through: Option<u64>,
    /// The host's own clock. Shown while it is near the cell's; no verdict rests on it.
    #[serde(default)]
    pub heartbeat_at: Option<Time>,
    /// The host's uptime, for deadlines of commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uptime_millis: Option<u64>,
    /// Version of the host protocol that the reporter speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
    /// Its pool; the cell's default one where absent.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub pool: Option<PoolName>,
    /// Where it stands, for people.
    #[serde(default)]
    pub region: Option<String>,
    /// Where its agent listens; a host without one cannot be asked or commanded.
    #[serde(default)]
    pub address: Option<String>,
    /// Labels that templates may ask for.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What it can run guests with; any where absent. Unknown words are passed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drivers: Option<Vec<String>>,
    /// All CPU, in thousandths of a core.
    #[serde(default)]
    pub cpu_millis_total: u64,
    /// CPU in use.
    #[serde(default)]
    pub cpu_millis_used: u64,
    /// Memory offered to guests and system.
    pub memory_mib_total: u64,
    /// Memory in use. May exceed the total, where an agent offers less than its machine has.
    #[serde(default)]
    pub memory_mib_used: u64,
    /// Which arithmetic its gate enforces; the pool's where absent.
    #[serde(default)]
    #[schema(value_type = Option<schema::Regime>)]
    pub memory_admission: Option<Regime>,
    /// What it will still accept, negative where it is over its budget; `null` is unknown or shut.
    #[serde(default)]
    pub memory_mib_admittable: Option<i64>,
    /// Why the above is `null`. A host that gives both a number and a reason is shut.
    #[serde(default)]
    pub not_admitting: Option<String>,
    /// Starts under way.
    #[serde(default)]
    pub starts_in_flight: u32,
    /// Most starts at once; unbounded where absent.
    #[serde(default)]
    pub starts_limit: Option<u32>,
    /// Free counted resources.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, u64>)]
    pub counted: Counted,
    /// Whether guests boot without pulling their whole memory first.
    #[serde(default)]
    pub stream_restore: bool,
    /// Memory pressure (PSI some, 10 s average) in basis points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure_bp: Option<u32>,
    /// Reservations whose charge `memory_mib_admittable` already holds.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub reservations: Vec<ReservationId>,
    /// Guests, those at rest included. Without a list there is no inventory, whatever `complete`
    /// says.
    #[serde(default)]
    pub guests: Option<Vec<Guest>>,
    /// Guests that are here no more, with the last totals of each. An entry is sent again until a
    /// heartbeat that held it was accepted; the cell credits it once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<Ended>,
    /// Whether `guests` is everything. False where absent: an unfinished list releases nothing.
    #[serde(default)]
    pub complete: bool,
}

/// One guest of a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Guest {
    /// A sandbox, a reservation, or something that this cell knows nothing of.
    pub id: String,
    /// Which try; 1 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Its state.
    #[schema(value_type = schema::GuestStatus)]
    pub status: GuestStatus,
    /// Configured memory.
    pub memory_mib: u64,
    /// Measured resident memory, overhead included.
    #[serde(default)]
    pub resident_mib: Option<u64>,
    /// What the host's budget is charged for it; configured memory where absent.
    #[serde(default)]
    pub charge_mib: Option<u64>,
    /// Whether a sample taken after the settle time stands behind the charge.
    #[serde(default)]
    pub measured: bool,
    /// CPU used since it started, in core-milliseconds.
    #[serde(default)]
    pub cpu_millis_total_used: u64,
    /// Bytes sent out since it started.
    #[serde(default)]
    pub egress_bytes_total: u64,
    /// Its last activity by the host's clock.
    #[serde(default)]
    pub last_active_at: Option<Time>,
    /// For an exited guest, how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why the host itself paused or stopped it, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A guest that is on its host no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    /// A sandbox or a reservation.
    pub id: String,
    /// Which try; 1 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// CPU used over its whole life, in core-milliseconds.
    #[serde(default)]
    pub cpu_millis_total_used: u64,
    /// Bytes sent out over its whole life; absent where its driver cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_bytes_total: Option<u64>,
}

/// What the cell fills in where a heartbeat is silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatDefaults {
    /// The pool of hosts that name none.
    pub pool: PoolName,
    /// When the report arrived, by the cell's clock.
    pub received_at: Timestamp,
}

impl Body for Heartbeat {
    fn validate(&self) -> Result<(), FieldError> {
        if self.boot_id.is_empty() {
            return Err(FieldError::new("boot_id", "an empty text", "a text new at each start"));
        }
        check_text("boot_id", &self.boot_id, bounds::LABEL_LENGTH_MAX)?;
        if let Some(region) = &self.region {
            check_text("region", region, bounds::LABEL_LENGTH_MAX)?;
        }
        if let Some(reason) = &self.not_admitting {
            check_text("not_admitting", reason, bounds::LABEL_LENGTH_MAX)?;
        }
        if let Some(address) = &self.address {
            check_address("address", address)?;
        }
        check_labels("labels", self.labels.iter())?;
        check_drivers(self.drivers.as_deref().unwrap_or_default())?;
        check("sequence", self.sequence)?;
        check_opt("incarnation", self.incarnation)?;
        check_opt("seen_through", self.seen_through)?;
        check_opt("uptime_millis", self.uptime_millis)?;
        check_counted("counted", &self.counted)?;
        check("cpu_millis_total", self.cpu_millis_total)?;
        check("cpu_millis_used", self.cpu_millis_used)?;
        check("memory_mib_total", self.memory_mib_total)?;
        check("memory_mib_used", self.memory_mib_used)?;
        check("starts_in_flight", self.starts_in_flight)?;
        check_opt("starts_limit", self.starts_limit)?;
        check_opt("pressure_bp", self.pressure_bp)?;
        check_opt("memory_mib_admittable", self.memory_mib_admittable)?;
        let total = Mib(self.memory_mib_total).signed();
        if let Some(admittable) = self.memory_mib_admittable.filter(|value| *value > total) {
            let bound = format!("at most memory_mib_total, {total}");
            return Err(FieldError::new("memory_mib_admittable", admittable, bound));
        }
        let listed = self.guests.as_ref().map_or(0, Vec::len);
        for (field, length) in [
            ("guests", listed),
            ("reservations", self.reservations.len()),
            ("ended", self.ended.len()),
        ] {
            if length > bounds::HEARTBEAT_GUESTS_MAX {
                let bound = format!("at most {} entries", bounds::HEARTBEAT_GUESTS_MAX);
                return Err(FieldError::new(field, format_args!("{length} entries"), bound));
            }
        }
        for (at, ended) in self.ended.iter().enumerate() {
            ended.validate().map_err(|error| error.within(&format!("ended[{at}]")))?;
        }
        let mut seen = BTreeSet::new();
        for (at, guest) in self.guests.iter().flatten().enumerate() {
            guest.validate().map_err(|error| error.within(&format!("guests[{at}]")))?;
            if !seen.insert(guest.id.as_str()) {
                let bound = "an id that no other guest of the list has";
                return Err(FieldError::new(format!("guests[{at}].id"), &guest.id, bound));
            }
        }
        Ok(())
    }
}

impl Guest {
    fn validate(&self) -> Result<(), FieldError> {
        if self.id.is_empty() {
            return Err(FieldError::new("id", "an empty text", "an id"));
        }
        check_text("id", &self.id, bounds::LABEL_LENGTH_MAX)?;
        if let Some(reason) = &self.reason {
            check_text("reason", reason, bounds::LABEL_LENGTH_MAX)?;
        }
        check("memory_mib", self.memory_mib)?;
        check_opt("resident_mib", self.resident_mib)?;
        check_opt("charge_mib", self.charge_mib)?;
        check_opt("attempt", self.attempt)?;
        check("cpu_millis_total_used", self.cpu_millis_total_used)?;
        check("egress_bytes_total", self.egress_bytes_total)
    }

    fn into_report(self, id: ClaimId) -> GuestReport {
        GuestReport {
            id,
            attempt: self.attempt.unwrap_or(1),
            status: self.status,
            memory_mib: Mib(self.memory_mib),
            resident_mib: self.resident_mib.map(Mib),
            charge_mib: Mib(self.charge_mib.unwrap_or(self.memory_mib)),
            // A measurement without a figure is none.
            measured: self.measured && self.resident_mib.is_some(),
            cpu_millis_total_used: self.cpu_millis_total_used,
            egress_bytes_total: self.egress_bytes_total,
            last_active_at: self.last_active_at.map(Into::into),
            exit_code: self.exit_code,
            reason: self.reason,
        }
    }
}

impl Ended {
    fn validate(&self) -> Result<(), FieldError> {
        if self.id.is_empty() {
            return Err(FieldError::new("id", "an empty text", "an id"));
        }
        check_text("id", &self.id, bounds::LABEL_LENGTH_MAX)?;
        check_opt("attempt", self.attempt)?;
        check("cpu_millis_total_used", self.cpu_millis_total_used)?;
        check_opt("egress_bytes_total", self.egress_bytes_total)
    }

    /// What no claim of a cell is called has nothing to be credited to.
    fn into_report(self) -> Option<EndedGuest> {
        Some(EndedGuest {
            id: self.id.parse().ok()?,
            attempt: self.attempt.unwrap_or(1),
            cpu_millis_total_used: self.cpu_millis_total_used,
            egress_bytes_total: self.egress_bytes_total,
        })
    }
}

impl From<EndedGuest> for Ended {
    fn from(report: EndedGuest) -> Self {
        Self {
            id: report.id.to_string(),
            attempt: Some(report.attempt),
            cpu_millis_total_used: report.cpu_millis_total_used,
            egress_bytes_total: report.egress_bytes_total,
        }
    }
}

/// Checks what a host says that it runs guests with: words of a later version among them.
fn check_drivers(words: &[String]) -> Result<(), FieldError> {
    if words.len() > bounds::LABELS_MAX {
        let bound = format!("at most {} entries", bounds::LABELS_MAX);
        return Err(FieldError::new("drivers", format_args!("{} entries", words.len()), bound));
    }
    for (at, word) in words.iter().enumerate() {
        check_text(&format!("drivers[{at}]"), word, bounds::NAME_LENGTH_MAX)?;
    }
    Ok(())
}

/// Checks that an address is a plain `http` or `https` URL without credentials.
pub(crate) fn check_address(field: &str, address: &str) -> Result<(), FieldError> {
    let rest = address.strip_prefix("http://").or_else(|| address.strip_prefix("https://"));
    let plain = rest.is_some_and(|rest| {
        !rest.is_empty()
            && !rest.starts_with('/')
            && rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@')
    });
    if plain && address.len() <= ADDRESS_LENGTH_MAX {
        return Ok(());
    }
    let bound = format!("http:// or https:// and a host, at most {ADDRESS_LENGTH_MAX} bytes");
    Err(FieldError::new(field, format_args!("{address:?}"), bound))
}

impl Heartbeat {
    /// Checks the body and turns it into the report that the engine takes.
    ///
    /// # Errors
    /// Names the first field that is out of its bound.
    pub fn into_report(
        self,
        host: HostId,
        defaults: &HeartbeatDefaults,
    ) -> Result<HostReport, FieldError> {
        self.validate()?;
        let complete = self.complete && self.guests.is_some();
        let mut guests = Vec::new();
        let mut foreign_guests = Vec::new();
        for guest in self.guests.unwrap_or_default() {
            match guest.id.parse() {
                Ok(id) => guests.push(guest.into_report(id)),
                Err(_) => foreign_guests.push(guest.id),
            }
        }
        let (memory_mib_admittable, not_admitting) =
            match (self.memory_mib_admittable, self.not_admitting) {
                (Some(admittable), None) => (Some(admittable), None),
                (_, Some(reason)) => (None, Some(reason)),
                (None, None) => (None, Some("unknown".to_owned())),
            };
        let drivers = self.drivers.map_or(DriverSet::ALL, |words| {
            words.iter().filter_map(|word| word.parse::<Driver>().ok()).collect()
        });
        Ok(HostReport {
            host,
            boot_id: self.boot_id,
            incarnation: self.incarnation,
            sequence: self.sequence,
            seen_through: self.seen_through,
            heartbeat_at: self.heartbeat_at.map_or(defaults.received_at, Into::into),
            uptime_millis: self.uptime_millis,
            pool: self.pool.unwrap_or_else(|| defaults.pool.clone()),
            region: self.region.unwrap_or_default(),
            address: self.address,
            labels: self.labels,
            drivers,
            cpu_millis_total: MilliCpu(self.cpu_millis_total),
            cpu_millis_used: MilliCpu(self.cpu_millis_used),
            memory_mib_total: Mib(self.memory_mib_total),
            memory_mib_used: Mib(self.memory_mib_used),
            memory_admission: self.memory_admission,
            memory_mib_admittable,
            not_admitting,
            starts_in_flight: self.starts_in_flight,
            starts_limit: self.starts_limit,
            counted: self.counted,
            stream_restore: self.stream_restore,
            pressure_bp: self.pressure_bp,
            reservations: self.reservations,
            guests,
            foreign_guests,
            ended: self.ended.into_iter().filter_map(Ended::into_report).collect(),
            complete,
        })
    }
}

impl From<HostReport> for Heartbeat {
    fn from(report: HostReport) -> Self {
        // Of guests that are not the cell's a report keeps the ids alone; on the wire they are
        // listed as running with the least that a guest can have, so that the cell can name them.
        let foreign = report.foreign_guests.into_iter().map(|id| Guest {
            id,
            attempt: None,
            status: GuestStatus::Running,
            memory_mib: 1,
            resident_mib: None,
            charge_mib: Some(0),
            measured: false,
            cpu_millis_total_used: 0,
            egress_bytes_total: 0,
            last_active_at: None,
            exit_code: None,
            reason: None,
        });
        let guests = report.guests.into_iter().map(Guest::from).chain(foreign).collect();
        Self {
            boot_id: report.boot_id,
            incarnation: report.incarnation,
            sequence: report.sequence,
            seen_through: report.seen_through,
            heartbeat_at: Some(report.heartbeat_at.into()),
            uptime_millis: report.uptime_millis,
            protocol: Some(HOST_PROTOCOL_VERSION),
            pool: Some(report.pool),
            region: Some(report.region),
            address: report.address,
            labels: report.labels,
            drivers: Some(
                Driver::ALL
                    .iter()
                    .filter(|driver| report.drivers.has(**driver))
                    .map(ToString::to_string)
                    .collect(),
            ),
            cpu_millis_total: report.cpu_millis_total.get(),
            cpu_millis_used: report.cpu_millis_used.get(),
            memory_mib_total: report.memory_mib_total.get(),
            memory_mib_used: report.memory_mib_used.get(),
            memory_admission: report.memory_admission,
            memory_mib_admittable: report.memory_mib_admittable,
            not_admitting: report.not_admitting,
            starts_in_flight: report.starts_in_flight,
            starts_limit: report.starts_limit,
            counted: report.counted,
            stream_restore: report.stream_restore,
            pressure_bp: report.pressure_bp,
            reservations: report.reservations,
            guests: Some(guests),
            ended: report.ended.into_iter().map(Ended::from).collect(),
            complete: report.complete,
        }
    }
}

impl From<GuestReport> for Guest {
    fn from(report: GuestReport) -> Self {
        Self {
            id: report.id.to_string(),
            attempt: Some(report.attempt),
            status: report.status,
            memory_mib: report.memory_mib.get(),
            resident_mib: report.resident_mib.map(Mib::get),
            charge_mib: Some(report.charge_mib.get()),
            measured: report.measured,
            cpu_millis_total_used: report.cpu_millis_total_used,
            egress_bytes_total: report.egress_bytes_total,
            last_active_at: report.last_active_at.map(Into::into),
            exit_code: report.exit_code,
            reason: report.reason,
        }
    }
}
