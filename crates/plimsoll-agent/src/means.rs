//! What an agent works with beside its settings: drivers that work here, and the machine.

use std::sync::Arc;

use plimsoll_types::Driver;

use crate::agent::StartError;
use crate::calls::detail_of;
use crate::config::AgentConfig;
use crate::driver::{
    GuestDriver, Guests, GvisorDriver, ProcessDriver, ShimCommand, SimulatedDriver,
};
use crate::sampler::{MachineSource, ThisMachine};

/// The drivers that an agent may try, in the order in which it does.
const TRIED: [Driver; 3] = [Driver::Process, Driver::Gvisor, Driver::Simulated];

/// Drivers, guests' folders and the machine's figures.
pub struct Means {
    /// Drivers, each of which has said that it works.
    pub drivers: Vec<Arc<dyn GuestDriver>>,
    /// Guests' folders.
    pub guests: Arc<Guests>,
    /// Where the machine's figures come from.
    pub machine: Box<dyn MachineSource>,
}

impl Means {
    /// What the settings ask for on this machine: the drivers named, or every one that works.
    ///
    /// # Errors
    /// When a driver that was named does not work, or none does.
    pub async fn find(config: &AgentConfig, shim: ShimCommand) -> Result<Self, StartError> {
        let guests = Guests::open(&config.data, shim, config.control_groups)
            .map_err(|fault| StartError::Guests(detail_of(&fault)))?;
        let wanted = if config.drivers.is_empty() { &TRIED[..] } else { &config.drivers };
        let mut drivers: Vec<Arc<dyn GuestDriver>> = Vec::new();
        let mut missing = Vec::new();
        for kind in wanted {
            match make(*kind, config, &guests).await {
                Ok(driver) => drivers.push(driver),
                Err(why) if config.drivers.is_empty() => missing.push(format!("{kind}: {why}")),
                Err(why) => return Err(StartError::Driver { driver: *kind, why }),
            }
        }
        if drivers.is_empty() {
            return Err(StartError::NoDriver(missing.join("; ")));
        }
        for why in missing {
            tracing::info!(why, "a driver is left out");
        }
        Ok(Self::of_this_machine(drivers, guests))
    }

    /// These drivers on this machine.
    #[must_use]
    pub fn of_this_machine(drivers: Vec<Arc<dyn GuestDriver>>, guests: Arc<Guests>) -> Self {
        Self { drivers, guests, machine: Box::<ThisMachine>::default() }
    }
}

async fn make(
    kind: Driver,
    config: &AgentConfig,
    guests: &Arc<Guests>,
) -> Result<Arc<dyn GuestDriver>, String> {
    let driver: Arc<dyn GuestDriver> = match kind {
        Driver::Process => Arc::new(ProcessDriver::new(Arc::clone(guests), config.process)),
        Driver::Gvisor => Arc::new(GvisorDriver::new(Arc::clone(guests), config.gvisor.clone())),
        Driver::Simulated => {
            let mut settings = config.simulated.clone();
            settings.journal.get_or_insert_with(|| guests.data().join("simulated"));
            Arc::new(SimulatedDriver::new(settings).map_err(|fault| detail_of(&fault))?)
        }
        Driver::External => return Err("no agent runs guests of a provider outside".to_owned()),
    };
    let abilities = driver.available().await.map_err(|unavailable| unavailable.to_string())?;
    tracing::info!(driver = %kind, version = abilities.version, "driver");
    for note in abilities.notes {
        tracing::info!(driver = %kind, note, "driver");
    }
    Ok(driver)
}
