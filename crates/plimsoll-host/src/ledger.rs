//! What the host has promised and what it can still promise. Every figure comes from
//! `plimsoll-policy`; here is only what goes into it.

use std::collections::BTreeMap;

use plimsoll_policy::charge::{DecayRule, GuestLoad, Shape, guest_charge, is_measured};
use plimsoll_policy::fit::{HostFacts, Request, filter};
use plimsoll_policy::fresh::Freshness;
use plimsoll_policy::host::{admittable, budget, default_headroom, system_used};
use plimsoll_types::{
    BasisPoints, ClaimId, Counted, Driver, DriverSet, EndedGuest, GuestReport, GuestSpec,
    GuestStatus, HostFilter, HostOutcome, HostReservation, Mib, MilliCpu, Millis, RefusalCode,
    Regime, ReserveRule, Vcpus,
};

use crate::guest::{Guest, shape};
use crate::host::Host;
use crate::input::{Reading, ReservationSample, Sample};
use crate::time::{HostTime, instant};

/// The machine as the last sample showed it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// The uptime of the sample.
    pub(crate) at: Millis,
    pub(crate) total: Reading<Mib>,
    /// Used outside the guests that were measured with it.
    pub(crate) outside: Reading<Mib>,
    pub(crate) cpu_total: Reading<MilliCpu>,
    pub(crate) cpu_used: Reading<MilliCpu>,
    pub(crate) pressure_some: Reading<BasisPoints>,
    pub(crate) counted: Counted,
}

impl Machine {
    /// `guests` is what the guests measured with the sample hold of the machine's used memory.
    pub(crate) fn new(sample: &Sample, guests: Mib, now: HostTime) -> Self {
        Self {
            at: now.uptime,
            total: sample.memory_total.clone(),
            outside: sample.memory_used.clone().map(|used| used.saturating_sub(guests)),
            cpu_total: sample.cpu_total.clone(),
            cpu_used: sample.cpu_used.clone(),
            pressure_some: sample.pressure_some.clone(),
            counted: sample.counted.clone(),
        }
    }
}

/// A reservation that an orchestrator outside has committed here.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub(crate) told: HostReservation,
    /// When the host first heard of it.
    since: Millis,
    resident: Option<Mib>,
    read_at: Option<Millis>,
    cpu_millis: u64,
}

impl Reserved {
    pub(crate) const fn new(told: HostReservation, now: HostTime) -> Self {
        Self { told, since: now.uptime, resident: None, read_at: None, cpu_millis: 0 }
    }

    pub(crate) fn see(&mut self, sample: &ReservationSample, now: HostTime) {
        if let Ok(resident) = sample.resident {
            self.resident = Some(resident);
            self.read_at = Some(now.uptime);
        } else {
            self.read_at = None;
        }
        if let Some(cpu) = sample.cpu_millis_total_used {
            self.cpu_millis = self.cpu_millis.max(cpu);
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            memory: self.told.memory_mib,
            overhead: Mib::ZERO,
            vcpus: Vcpus::ZERO,
            stateful: self.told.stateful,
        }
    }

    fn is_measured(&self) -> bool {
        self.told.cgroup.is_some()
            && self.read_at.is_some_and(|read_at| {
                is_measured(instant(read_at), instant(self.since), &DecayRule::default())
            })
    }

    /// With a control group it is measured as a guest is; without, nobody can tell what it uses
    /// and it costs all that it may.
    fn charge(&self, regime: Regime, now: HostTime) -> Mib {
        if !self.is_measured() {
            return self.told.memory_mib;
        }
        let load = GuestLoad {
            shape: self.shape(),
            resident: self.resident,
            measured: true,
            started_at: instant(self.since),
        };
        let (reserve, decay) = (ReserveRule::default(), DecayRule::default());
        guest_charge(regime, &reserve, &decay, &load, instant(now.uptime))
    }

    /// What of the machine's used memory is this reservation's: as measured, else as charged.
    fn in_machine(&self) -> Mib {
        match self.resident {
            Some(resident) if self.read_at.is_some() => resident,
            _ => self.told.memory_mib,
        }
    }

    /// Its totals, when it is over.
    pub(crate) fn ended(&self) -> EndedGuest {
        EndedGuest {
            id: ClaimId::Reservation(self.told.id),
            attempt: 1,
            cpu_millis_total_used: self.cpu_millis,
            egress_bytes_total: None,
        }
    }

    /// As a guest, where it is measured as one.
    pub(crate) fn report(&self, regime: Regime, now: HostTime) -> Option<GuestReport> {
        self.told.cgroup.as_ref()?;
        Some(GuestReport {
            id: ClaimId::Reservation(self.told.id),
            attempt: 1,
            status: GuestStatus::Running,
            memory_mib: self.told.memory_mib,
            resident_mib: self.resident.filter(|_| self.read_at.is_some()),
            charge_mib: self.charge(regime, now),
            measured: self.is_measured(),
            cpu_millis_total_used: self.cpu_millis,
            egress_bytes_total: 0,
            last_active_at: None,
            exit_code: None,
            reason: None,
        })
    }
}

/// The host's memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Offered to guests and system.
    pub physical: Mib,
    /// Kept free.
    pub headroom: Mib,
    /// Used outside guests, beyond what the agent does not offer.
    pub system_used: Mib,
    /// What all charges may add up to.
    pub budget: i64,
    /// What they add up to.
    pub charged: Mib,
    /// The part of it that is stateful.
    pub stateful: Mib,
    /// What is left. Negative when over budget.
    pub admittable: i64,
}

impl Host {
    /// The arithmetic in force: the owner's own, else the pool's, else working-set.
    #[must_use]
    pub fn regime(&self) -> Regime {
        self.config.regime.or(self.pool_regime).unwrap_or(Regime::WorkingSet)
    }

    /// The host's memory now, or why it cannot be told.
    ///
    /// # Errors
    /// The reason for which a value is unknown: guests not found again yet after a restart, no
    /// recent sample, or a figure that could not be read.
    pub fn account(&self, now: HostTime) -> Result<Account, String> {
        if !self.adopted {
            return Err("still finding its guests after a start of the agent".to_owned());
        }
        let machine = self.machine.as_ref().ok_or("not measured yet")?;
        let age = now.since(machine.at);
        if age > self.config.sample_age_max {
            return Err(format!("the last measurement is {} s old", age.seconds_ceil()));
        }
        let unread = |what: &str, why: &String| format!("{what} unknown: {why}");
        let total = *machine.total.as_ref().map_err(|why| unread("total memory", why))?;
        let outside = *machine.outside.as_ref().map_err(|why| unread("used memory", why))?;

        let regime = self.regime();
        let mut charged = Mib::ZERO;
        let mut stateful = Mib::ZERO;
        for guest in self.guests.values() {
            charged = charged.saturating_add(guest.charge(regime, now));
            if guest.spec.stateful && guest.phase.holds_memory() {
                stateful = stateful.saturating_add(guest.shape().full());
            }
        }
        let mut reserved = Mib::ZERO;
        for reservation in self.reservations.values() {
            charged = charged.saturating_add(reservation.charge(regime, now));
            reserved = reserved.saturating_add(reservation.in_machine());
            if reservation.told.stateful {
                stateful = stateful.saturating_add(reservation.told.memory_mib);
            }
        }
        let physical = self.config.memory_offered.unwrap_or(total).min(total);
        let headroom = self.headroom(physical);
        // What a reservation is charged for is not counted as system use a second time.
        let system_used = system_used(outside.saturating_sub(reserved), total, physical);
        let budget = budget(physical, headroom, system_used);
        Ok(Account {
            physical,
            headroom,
            system_used,
            budget,
            charged,
            stateful,
            admittable: admittable(budget, charged),
        })
    }

    /// The memory offered to guests and system, where the machine's own has ever been known: it
    /// does not change while the machine runs.
    pub(crate) fn physical(&self) -> Option<Mib> {
        let total = self.memory_total?;
        Some(self.config.memory_offered.unwrap_or(total).min(total))
    }

    /// The headroom band of a host that offers so much.
    pub(crate) fn headroom(&self, physical: Mib) -> Mib {
        self.config.headroom.unwrap_or_else(|| default_headroom(physical))
    }

    /// What guests and reservations hold, as far as known.
    pub(crate) fn held(&self) -> Mib {
        let guests = self.guests.values().map(Guest::in_machine);
        let reserved = self.reservations.values().map(Reserved::in_machine);
        guests.chain(reserved).fold(Mib::ZERO, Mib::saturating_add)
    }

    /// Starts and restores under way.
    #[must_use]
    pub fn starts_in_flight(&self) -> u32 {
        let starts = self.guests.values().filter(|guest| guest.phase.is_start()).count();
        u32::try_from(starts).unwrap_or(u32::MAX)
    }

    /// Free counted resources: what was measured as free, and of what the host owns all that no
    /// guest with a process holds.
    #[must_use]
    pub fn counted_free(&self) -> Counted {
        let mut free = self.config.counted.clone();
        for guest in self.guests.values().filter(|guest| guest.phase.holds_memory()) {
            for (name, held) in &guest.spec.counted {
                if let Some(left) = free.get_mut(name) {
                    *left = left.saturating_sub(*held);
                }
            }
        }
        if let Some(machine) = &self.machine {
            for (name, measured) in &machine.counted {
                let left = free.entry(name.clone()).or_insert(*measured);
                *left = (*left).min(*measured);
            }
        }
        free
    }

    /// Whether the host's own gate lets a guest in, new or restored: the cell's own filter, asked
    /// once more where the memory is.
    pub(crate) fn gate_start(&self, spec: &GuestSpec, now: HostTime) -> Result<(), HostOutcome> {
        let account = self.account(now).ok();
        let labels = BTreeMap::new();
        let counted_free = self.counted_free();
        let facts = HostFacts {
            freshness: account.map(|_| Freshness::Fresh),
            drivers: self.config.drivers,
            labels: &labels,
            draining: false,
            pressure: self.gate.is_shut(),
            set_aside: false,
            tried: false,
            held: false,
            starts: self.starts_in_flight(),
            starts_limit: self.config.starts_limit,
            regime: self.regime(),
            admittable: account.map(|account| account.admittable),
            stateful: account.map_or(Mib::ZERO, |account| account.stateful),
            stateful_bound: account.map_or(0, |account| account.budget),
            cpu_total: MilliCpu::ZERO,
            vcpus_promised: Vcpus::ZERO,
            max_vcpu_ratio_bp: None,
            counted_free: &counted_free,
        };
        let request = Request {
            shape: shape(spec),
            drivers: DriverSet::EMPTY.with(spec.driver),
            labels: &labels,
            counted: &spec.counted,
            reserve: &spec.reserve,
        };
        match filter(&facts, &request) {
            None => Ok(()),
            Some(fallen) => Err(self.refusal(fallen, now)),
        }
    }

    /// Whether the gate lets a frozen guest run again: only what its reserve, begun anew, would
    /// add to its charge has to fit.
    pub(crate) fn gate_thaw(&self, guest: &Guest, now: HostTime) -> Result<(), HostOutcome> {
        if self.gate.is_shut() {
            return Err(self.refusal(HostFilter::Pressure, now));
        }
        let regime = self.regime();
        let more = guest.charge_thawed(regime).saturating_sub(guest.charge(regime, now));
        if regime == Regime::None || more == Mib::ZERO {
            return Ok(());
        }
        match self.account(now) {
            Ok(account) if account.admittable >= more.signed() => Ok(()),
            Ok(_) => Err(self.refusal(HostFilter::Full, now)),
            Err(_) => Err(self.refusal(HostFilter::Unknown, now)),
        }
    }

    fn refusal(&self, fallen: HostFilter, now: HostTime) -> HostOutcome {
        let code = match fallen {
            HostFilter::Pressure => RefusalCode::HostPressure,
            HostFilter::StartsSaturated => RefusalCode::HostStartsSaturated,
            HostFilter::Unknown => RefusalCode::NoHealthyHosts,
            _ => RefusalCode::NoCapacity,
        };
        let detail = match (fallen, self.account(now)) {
            (HostFilter::Pressure, _) => self.pressure_figures(),
            (HostFilter::StartsSaturated, _) => format!(
                "{} starts in flight, at most {}",
                self.starts_in_flight(),
                self.config.starts_limit.unwrap_or(u32::MAX)
            ),
            (HostFilter::Driver, _) => format!(
                "this host runs {}",
                Driver::ALL
                    .iter()
                    .filter(|driver| self.config.drivers.has(**driver))
                    .map(|driver| driver.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            (HostFilter::Counted, _) => "a counted resource is short".to_owned(),
            (HostFilter::StatefulFull, Ok(account)) => format!(
                "stateful guests hold {} of a budget of {} MiB",
                account.stateful, account.budget
            ),
            (_, Ok(account)) => format!("{} MiB admittable", account.admittable),
            (_, Err(reason)) => reason,
        };
        HostOutcome::Refused { code, detail }
    }
}
