//! Measures machine and guests, and sees what guests have done by themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use plimsoll_host::{FoundState, GuestSample, HostInput, ReservationSample, Sample};
use plimsoll_types::{BasisPoints, Counted, Driver, HostReservation, Mib, SandboxId};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::calls::{Drivers, detail_of, settled};
use crate::core::{Busy, Core};
use crate::driver::{GuestDriver, GuestName, LookError};
use crate::probe::{Hierarchies, MachineProbe, MachineSample};

/// Most guests that are measured side by side: each reads a few small files.
const GUESTS_AT_ONCE: usize = 16;
/// Longest time to measure one guest; a driver that hangs makes its guests unknown and holds up
/// nobody else's measurement for longer.
const GUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// A sample this young answers a question for a fresh one: questions that come together share it.
const FRESH: Duration = Duration::from_millis(200);

/// The counted resource that templates ask for when they need disk.
const DISK: &str = "disk_mib";

/// One measurer for the loop and for everybody who asks.
pub(crate) struct Sampler {
    core: Core,
    drivers: Arc<Drivers>,
    source: Box<dyn MachineSource>,
    data: PathBuf,
    /// When the last sample was complete.
    last: Mutex<Option<Instant>>,
}

/// Where the machine's own figures come from; tests bring their own.
pub trait MachineSource: Send + Sync {
    /// Measures the machine.
    fn sample(&self) -> MachineSample;
}

/// This machine.
#[derive(Debug, Default)]
pub(crate) struct ThisMachine(std::sync::Mutex<MachineProbe>);

impl MachineSource for ThisMachine {
    fn sample(&self) -> MachineSample {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).sample()
    }
}

/// What one round has to look at.
struct Round {
    as_of: u64,
    guests: Vec<(GuestName, Driver)>,
    reservations: Vec<HostReservation>,
}

impl Sampler {
    /// `data` is the folder whose file system guests fill.
    pub(crate) fn new(
        core: Core,
        drivers: Arc<Drivers>,
        source: Box<dyn MachineSource>,
        data: PathBuf,
    ) -> Self {
        Self { core, drivers, source, data, last: Mutex::default() }
    }

    /// Makes sure that the host has a sample that is at most [`FRESH`] old.
    pub(crate) async fn freshen(&self) -> Result<(), Busy> {
        let mut last = self.last.lock().await;
        if last.is_some_and(|last| last.elapsed() < FRESH) {
            return Ok(());
        }
        self.round().await?;
        *last = Some(Instant::now());
        Ok(())
    }

    /// Measures once, now.
    pub(crate) async fn measure(&self) -> Result<(), Busy> {
        let mut last = self.last.lock().await;
        self.round().await?;
        *last = Some(Instant::now());
        Ok(())
    }

    async fn round(&self) -> Result<(), Busy> {
        let round = self
            .core
            .ask(|host, _| Round {
                as_of: host.revision(),
                guests: host.measurable().map(|spec| (GuestName::of(spec), spec.driver)).collect(),
                reservations: host.reservations().cloned().collect(),
            })
            .await?;
        let measurements = round.guests.into_iter().filter_map(|(name, kind)| {
            let driver = Arc::clone(self.drivers.get(&kind)?);
            Some(async move { measure_guest(&*driver, name).await })
        });
        let measured: Vec<(GuestSample, Option<FoundState>)> =
            stream::iter(measurements).buffer_unordered(GUESTS_AT_ONCE).collect().await;
        let machine = self.source.sample();
        let (guests, states): (Vec<_>, Vec<_>) = measured
            .into_iter()
            .map(|(sample, state)| {
                let name = (sample.id, sample.attempt);
                (sample, (name, state))
            })
            .unzip();
        let mut sample = sample_of(&machine, guests, reservations(&round.reservations));
        if let Some(free) = disk_free(&self.data) {
            sample.counted.insert(DISK.to_owned(), free.get());
        }
        self.core.input(HostInput::Sample(Box::new(sample))).await;
        for ((id, attempt), state) in states {
            if let Some(state) = state {
                let as_of = round.as_of;
                self.core.input(HostInput::Observed { id, attempt, state, as_of }).await;
            }
        }
        Ok(())
    }
}

/// Measures one guest and asks how it stands.
async fn measure_guest(
    driver: &dyn GuestDriver,
    name: GuestName,
) -> (GuestSample, Option<FoundState>) {
    let mut sample = unread(name.id, name.attempt, driver.uses_machine());
    let state = match timeout(GUEST_TIMEOUT, driver.status(&name)).await {
        Ok(Ok(state)) => settled(&state),
        Ok(Err(LookError::NotFound(_))) => Some(FoundState::Gone),
        Ok(Err(LookError::Fault(error))) => {
            sample.resident = Err(detail_of(&error));
            return (sample, None);
        }
        Err(_) => return (sample, None),
    };
    match timeout(GUEST_TIMEOUT, driver.usage(&name)).await {
        Ok(Ok(usage)) => {
            sample.resident = usage
                .resident
                .map(|resident| Mib::from_bytes_ceil(resident.bytes))
                .map_err(|unknown| unknown.to_string());
            sample.cpu_millis_total_used = usage.cpu_millis_total.ok();
            sample.egress_bytes_total = usage.egress_bytes_total;
        }
        Ok(Err(error)) => sample.resident = Err(detail_of(&error)),
        Err(_) => {}
    }
    (sample, state)
}

/// What guests may still write, where the file system tells.
fn disk_free(folder: &Path) -> Option<Mib> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(Mib::from_bytes_floor(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

fn unread(id: SandboxId, attempt: u32, in_machine: bool) -> GuestSample {
    GuestSample {
        id,
        attempt,
        resident: Err("its driver took too long to say".to_owned()),
        in_machine,
        cpu_millis_total_used: None,
        egress_bytes_total: None,
        last_active_at: None,
    }
}

fn reservations(told: &[HostReservation]) -> Vec<ReservationSample> {
    let with_group = || told.iter().filter_map(|told| Some((told.id, told.cgroup.as_deref()?)));
    if with_group().next().is_none() {
        return Vec::new();
    }
    let hierarchies = Hierarchies::detect();
    with_group()
        .map(|(id, name)| {
            let group = hierarchies.clone().and_then(|hierarchies| hierarchies.find(name));
            let resident = group.clone().and_then(|group| group.resident());
            ReservationSample {
                id,
                resident: resident
                    .map(|resident| Mib::from_bytes_ceil(resident.bytes))
                    .map_err(|unknown| unknown.to_string()),
                cpu_millis_total_used: group.and_then(|group| group.cpu_millis()).ok(),
            }
        })
        .collect()
}

fn sample_of(
    machine: &MachineSample,
    guests: Vec<GuestSample>,
    reservations: Vec<ReservationSample>,
) -> Sample {
    let pressure = |read: fn(&crate::probe::Pressure) -> BasisPoints| match &machine.pressure {
        Ok(pressure) => Ok(read(pressure)),
        Err(unknown) => Err(unknown.to_string()),
    };
    Sample {
        memory_total: machine.memory_total.clone().map_err(|unknown| unknown.to_string()),
        memory_used: machine.memory_used().map_err(|unknown| unknown.to_string()),
        memory_available: machine.memory_available.clone().map_err(|unknown| unknown.to_string()),
        cpu_total: machine.cpu_total.clone().map_err(|unknown| unknown.to_string()),
        cpu_used: machine.cpu_used.clone().map_err(|unknown| unknown.to_string()),
        pressure_some: pressure(|pressure| pressure.some_avg10),
        pressure_full: pressure(|pressure| pressure.full_avg10),
        counted: Counted::new(),
        guests,
        reservations,
    }
}
