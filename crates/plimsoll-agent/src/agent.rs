//! Starting, running and ending an agent.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_client::{Client, ClientConfig};
use plimsoll_host::{Found, FoundState, Host, HostConfig, HostInput};
use plimsoll_types::{Driver, GuestStatus, Millis};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::beat::Beat;
use crate::calls::{Calls, Drivers, detail_of, settled, used_input};
use crate::config::{AgentConfig, ConfigError};
use crate::core::{Core, Parts};
use crate::driver::{FinalUse, GuestName};
use crate::identity::{Folder, FolderError};
use crate::journal::{self, Journal, JournalError};
use crate::means::Means;
use crate::metrics::Metrics;
use crate::probe;
use crate::sampler::Sampler;
use crate::server::{ServeError, Server, Shared, bind};

/// How often the state machine is told that time passes, for what is due by time alone.
const TICK: Duration = Duration::from_millis(250);
/// Wait before drivers that could not look for their guests look again.
const ADOPT_WAIT: Duration = Duration::from_secs(2);
/// How long requests under way may take to finish when the agent ends. Driver calls that take
/// longer are resolved by the next agent.
const GRACE: Duration = Duration::from_secs(10);
/// Longest wait for the answer to a heartbeat: shorter than its period, so that a cell that hangs
/// costs one heartbeat and not the host its freshness.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why an agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings make no agent.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The agent cannot be reached.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The machine does not tell what an agent must know.
    #[error(transparent)]
    Probe(#[from] probe::Unknown),
    /// A cell's address or the key make no client.
    #[error("the cell's client")]
    Client(#[source] plimsoll_client::Error),
    /// A driver that was asked for does not work here.
    #[error("the {driver} driver does not work on this machine: {why}")]
    Driver {
        /// Which.
        driver: Driver,
        /// Why.
        why: String,
    },
    /// No driver works here.
    #[error("no driver works on this machine: {0}")]
    NoDriver(String),
    /// The folders of guests cannot be used.
    #[error("guests' folders: {0}")]
    Guests(String),
    /// Guests of a driver that is not offered any more run here: nobody could measure or end them.
    #[error(
        "{guests} guests of the {driver} driver are here and it is not offered: name it in \
         --driver until they are gone"
    )]
    Abandoned {
        /// Which driver.
        driver: Driver,
        /// How many.
        guests: usize,
    },
    /// The thread of the state machine could not be started.
    #[error("the state machine's thread")]
    Thread(#[source] std::io::Error),
}

/// Why an agent ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// What it is about to do can no longer be written down, so it does nothing more. Its guests
    /// stay.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The thread of the state machine has died.
    #[error("the state machine has died; the log says why")]
    Died,
}

/// A running agent.
#[derive(Debug)]
pub struct AgentHandle {
    /// Where it listens.
    pub address: SocketAddr,
    task: JoinHandle<Result<(), RunError>>,
}

impl AgentHandle {
    /// Waits for the agent's end.
    ///
    /// # Errors
    /// When it did not end because it was asked to.
    pub async fn join(self) -> Result<(), RunError> {
        self.task.await.unwrap_or(Err(RunError::Died))
    }
}

/// Starts an agent: takes its guests over, listens, and keeps in touch with the cell until
/// `shutdown` comes. Registration goes on in the background; an agent without a cell runs, and
/// admits nothing that it is not told to.
///
/// # Errors
/// When it cannot start. Nothing of it is left running then, and no guest was touched.
pub async fn run(
    config: AgentConfig,
    means: Means,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<AgentHandle, StartError> {
    config.validate()?;
    let folder = Folder::open(&config.data)?;
    let secret = folder.secret()?;
    // The cell takes no report without it, and the operator had better hear of that here.
    means.machine.sample().memory_total?;
    let listener = bind(config.listen)?;
    let client = if config.provider { None } else { Some(client(&config)?) };
    let drivers: Drivers =
        means.drivers.iter().map(|driver| (driver.kind(), Arc::clone(driver))).collect();
    let address = listener
        .local_addr()
        .map_err(|source| ServeError::Listen { address: config.listen, source })?;
    let host_config = host_config(&config, &drivers, address)?;
    let boot_id = host_config.boot_id.clone();

    let entries = journal::read(folder.path(), &host_config.machine_boot)?;
    let host = Host::restore(host_config, entries);
    none_abandoned(&host, &drivers)?;
    let journal = Journal::begin(folder.path(), &host.snapshot())?;

    let drivers = Arc::new(drivers);
    let metrics = Arc::new(Metrics::new());
    let due = Arc::new(Notify::new());
    let (ended, end) = oneshot::channel();
    let runtime = Handle::current();
    let core = Core::start(
        |core| Parts {
            host,
            journal,
            calls: Calls::new(
                core,
                Arc::clone(&drivers),
                config.timeouts,
                Arc::clone(&metrics),
                runtime,
            ),
            heartbeat: Arc::clone(&due),
            metrics: Arc::clone(&metrics),
        },
        ended,
    )
    .map_err(StartError::Thread)?;
    match adopted(&drivers).await {
        Ok(found) => take_over(&core, found).await,
        // Until every driver has looked, nothing is known to be gone.
        Err(Unsearched) => drop(tokio::spawn(adopt_later(core.clone(), Arc::clone(&drivers)))),
    }

    let sampler = Arc::new(Sampler::new(
        core.clone(),
        Arc::clone(&drivers),
        means.machine,
        folder.path().to_owned(),
    ));
    let shared = Arc::new(Shared::new(
        core.clone(),
        Arc::clone(&drivers),
        means.guests,
        Arc::clone(&sampler),
        Arc::clone(&metrics),
        &secret,
    ));
    let server = match Server::start(&shared, listener, config.tls.as_ref()).await {
        Ok(server) => server,
        Err(error) => {
            core.stop().await;
            return Err(error.into());
        }
    };
    let address = server.address;
    let beat = client.map(|client| Beat {
        core: core.clone(),
        client,
        sampler: Arc::clone(&sampler),
        due,
        metrics,
        host: config.name.clone(),
        boot_id,
        pool: config.pool.clone(),
        address: config.advertised(address),
        secret,
    });
    if beat.as_ref().is_some_and(|beat| beat.address.is_none()) {
        tracing::warn!(%address, "the cell cannot be told where to reach this agent: set --address");
    }
    let running = Running { config, folder, core, drivers, sampler, shared, server };
    let task = tokio::spawn(running.until(end, beat, shutdown));
    Ok(AgentHandle { address, task })
}

fn client(config: &AgentConfig) -> Result<Client, StartError> {
    let mut client = ClientConfig::new(config.cells.iter().cloned()).with_key(config.key.clone());
    client.request_timeout = HEARTBEAT_TIMEOUT;
    client.connect_timeout = HEARTBEAT_TIMEOUT;
    client.ca_pem.clone_from(&config.ca_pem);
    Client::new(client).map_err(StartError::Client)
}

fn host_config(
    config: &AgentConfig,
    drivers: &Drivers,
    listen: SocketAddr,
) -> Result<HostConfig, StartError> {
    let boot_id = uuid::Uuid::now_v7().to_string();
    let machine_boot = probe::boot_id()?;
    let mut host = HostConfig::new(config.name.clone(), config.pool.clone(), boot_id, machine_boot);
    host.region.clone_from(&config.region);
    host.address = config.advertised(listen);
    host.labels.clone_from(&config.labels);
    host.drivers = drivers.keys().copied().collect();
    host.counted.clone_from(&config.counted);
    host.stream_restore = config.stream_restore;
    host.memory_offered = config.memory_mib;
    host.headroom = config.headroom_mib;
    host.regime = config.regime;
    host.starts_limit = config.starts_limit;
    host.heartbeat = Millis(u64::try_from(config.heartbeat.as_millis()).unwrap_or(u64::MAX));
    host.heartbeat_gap = host.heartbeat_gap.min(host.heartbeat);
    Ok(host)
}

fn none_abandoned(host: &Host, drivers: &Drivers) -> Result<(), StartError> {
    for driver in Driver::ALL.iter().filter(|driver| !drivers.contains_key(driver)) {
        let guests = host.guests().filter(|spec| spec.driver == *driver).count();
        if guests > 0 {
            return Err(StartError::Abandoned { driver: *driver, guests });
        }
    }
    Ok(())
}

/// A driver could not look for its guests.
struct Unsearched;

/// What all drivers find, and then what those at rest have used: nobody measures them any more.
async fn adopted(drivers: &Drivers) -> Result<Vec<HostInput>, Unsearched> {
    let mut all = Vec::new();
    let mut foreign = Vec::new();
    let mut used = Vec::new();
    for driver in drivers.values() {
        let found = driver.adopt().await.map_err(|error| {
            let (driver, error) = (driver.kind(), detail_of(&error));
            tracing::error!(%driver, error, "cannot look for guests; trying again");
            Unsearched
        })?;
        for (folder, why) in found.broken {
            tracing::warn!(folder, why, "not a guest, and left alone");
            foreign.push(folder);
        }
        for guest in &found.guests {
            let at_rest = matches!(guest.state.status, GuestStatus::Exited | GuestStatus::Paused);
            if at_rest
                && let Ok(usage) = driver.usage(&guest.name).await
                && let Ok(cpu_millis_total) = usage.cpu_millis_total
            {
                let egress_bytes_total = usage.egress_bytes_total;
                let last = FinalUse { cpu_millis_total, egress_bytes_total };
                used.push(used_input(&guest.name, last));
            }
        }
        all.extend(found.guests.into_iter().map(|guest| Found {
            id: guest.name.id,
            attempt: guest.name.attempt,
            state: settled(&guest.state).unwrap_or(match guest.state.status {
                // What is under way ends by itself, and is seen then.
                GuestStatus::Resuming => FoundState::Checkpointed,
                _ => FoundState::Running,
            }),
            spec: Some(guest.spec),
        }));
    }
    tracing::info!(guests = all.len(), "guests taken over");
    let adopted = HostInput::Adopted { found: all, foreign };
    Ok(std::iter::once(adopted).chain(used).collect())
}

async fn take_over(core: &Core, found: Vec<HostInput>) {
    for input in found {
        core.input(input).await;
    }
}

/// Goes on looking until every driver has.
async fn adopt_later(core: Core, drivers: Arc<Drivers>) {
    loop {
        tokio::time::sleep(ADOPT_WAIT).await;
        if core.ask(|_, _| ()).await.is_err() {
            return;
        }
        if let Ok(found) = adopted(&drivers).await {
            return take_over(&core, found).await;
        }
    }
}

struct Running {
    config: AgentConfig,
    folder: Folder,
    core: Core,
    drivers: Arc<Drivers>,
    sampler: Arc<Sampler>,
    shared: Arc<Shared>,
    server: Server,
}

impl Running {
    async fn until(
        self,
        mut end: oneshot::Receiver<Result<(), JournalError>>,
        beat: Option<Beat>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), RunError> {
        let sampling =
            tokio::spawn(sample_regularly(Arc::clone(&self.sampler), self.config.sample));
        let ticking = tokio::spawn(tick(self.core.clone()));
        let beating = tokio::spawn(async move {
            // A provider is asked.
            if let Some(beat) = beat {
                beat.run().await;
            }
        });
        let ended = tokio::select! {
            biased;
            ended = &mut end => Some(ended),
            () = shutdown => None,
        };
        self.shared.close();
        sampling.abort();
        ticking.abort();
        beating.abort();
        if let Some(ended) = ended {
            self.server.stop(Duration::ZERO).await;
            return match ended {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(error.into()),
                Err(_) => Err(RunError::Died),
            };
        }
        tracing::info!("shutting down");
        self.server.stop(GRACE).await;
        if self.config.end_guests {
            end_guests(&self.core, &self.drivers).await;
        }
        self.core.stop().await;
        let result = end.await;
        drop(self.folder);
        match result {
            Ok(outcome) => Ok(outcome?),
            Err(_) => Err(RunError::Died),
        }
    }
}

async fn sample_regularly(sampler: Arc<Sampler>, period: Duration) {
    let mut timer = interval(period);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        if sampler.measure().await.is_err() {
            return;
        }
    }
}

async fn tick(core: Core) {
    let mut timer = interval(TICK);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        core.input(HostInput::Tick).await;
    }
}

/// Ends every guest, past the state machine: nobody is left to act on what it would say.
async fn end_guests(core: &Core, drivers: &Drivers) {
    let Ok(guests) = core
        .ask(|host, _| {
            host.measurable().map(|spec| (GuestName::of(spec), spec.driver)).collect::<Vec<_>>()
        })
        .await
    else {
        return;
    };
    for (name, kind) in guests {
        let Some(driver) = drivers.get(&kind) else { continue };
        match driver.end(&name).await {
            // For the next start of the agent, which tells the cell.
            Ok(Some(used)) => core.input(used_input(&name, used)).await,
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(guest = %name, error = detail_of(&error), "could not be ended");
            }
        }
    }
}
