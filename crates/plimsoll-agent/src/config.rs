use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_api::Secret;
use plimsoll_types::{Counted, Driver, HostId, Mib, PoolName, Regime, bounds};

use crate::driver::{GvisorConfig, ProcessConfig, SimulatedConfig};

/// Settings of one agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Base URLs of the cell's replicas, at least one.
    pub cells: Vec<String>,
    /// The host's key for the cell.
    pub key: Secret,
    /// The host's name.
    pub name: HostId,
    /// Its pool.
    pub pool: PoolName,
    /// Where the agent listens. Off loopback it takes a certificate, or [`Self::insecure`].
    pub listen: SocketAddr,
    /// The address that the cell is told; the one listened on where absent.
    pub address: Option<String>,
    /// Folder for the journal, the secret and the guests. One agent at a time.
    pub data: PathBuf,
    /// Drivers by name; empty takes every one that works on the machine.
    pub drivers: Vec<Driver>,
    /// Memory offered to guests and system; the whole machine where absent.
    pub memory_mib: Option<Mib>,
    /// The headroom band; the larger of 1 GiB and 6 % where absent, at most a quarter.
    pub headroom_mib: Option<Mib>,
    /// How often the cell hears of the host at least. 10 s.
    pub heartbeat: Duration,
    /// Most starts at once; `None` is unbounded. 8.
    pub starts_limit: Option<u32>,
    /// The arithmetic of the gate; the pool's where absent.
    pub regime: Option<Regime>,
    /// Where the host stands, for people.
    pub region: String,
    /// Labels that templates may ask for.
    pub labels: BTreeMap<String, String>,
    /// Counted resources that the host owns, all of them.
    pub counted: Counted,
    /// Whether guests boot without pulling their whole memory first.
    pub stream_restore: bool,
    /// Certificate and key of the agent's own server.
    pub tls: Option<TlsFiles>,
    /// Whether to listen off loopback without a certificate: the host's secret and every guest's
    /// environment then cross the network in the clear.
    pub insecure: bool,
    /// Certificate authorities to trust for the cell, in PEM; the system's where absent.
    pub ca_pem: Option<Vec<u8>>,
    /// How often machine and guests are measured. 1 s: pressure rises within seconds.
    pub sample: Duration,
    /// Longest time of each kind of driver call.
    pub timeouts: CallTimeouts,
    /// Settings of the process driver.
    pub process: ProcessConfig,
    /// Settings of the gVisor driver.
    pub gvisor: GvisorConfig,
    /// Settings of the simulated driver; without a path of its own its guests are kept in the data
    /// folder.
    pub simulated: SimulatedConfig,
    /// Whether guests get control groups, which limit and measure them. Without, they are found by
    /// descent and measured by their processes.
    pub control_groups: bool,
    /// Whether this agent is a provider of other cells' external pools: it has no cell of its own
    /// and does what whoever shows its secret says.
    pub provider: bool,
    /// Whether guests are ended with the agent. Otherwise the next agent takes them over.
    pub end_guests: bool,
}

/// Certificate and key in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate with its chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Longest time of each kind of driver call, after which the driver is asked what is there. Each
/// is shorter than the cell's own patience, so that the agent's answer is what usually ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTimeouts {
    /// A start, and a restore. 50 s.
    pub start: Duration,
    /// A pause: writing out a large guest takes minutes. 9 min.
    pub pause: Duration,
    /// A stop, which lets the guest end by itself first. 50 s.
    pub stop: Duration,
    /// An end. 50 s.
    pub end: Duration,
}

impl Default for CallTimeouts {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(50),
            pause: Duration::from_secs(540),
            stop: Duration::from_secs(50),
            end: Duration::from_secs(50),
        }
    }
}

/// Why settings make no agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A setting is out of its bound.
    #[error("{setting}: {given} is not {bound}")]
    Bound {
        /// Which, as the flag is called.
        setting: &'static str,
        /// What was given.
        given: String,
        /// What would do.
        bound: String,
    },
    /// The agent would speak in the clear off loopback.
    #[error(
        "--listen {0} is off loopback and there is no certificate: the host's secret and every \
         guest's environment would cross the network in the clear (give --tls-cert and --tls-key, \
         or say --insecure)"
    )]
    InTheClear(SocketAddr),
}

impl AgentConfig {
    /// Settings with every default, for an agent that listens on loopback.
    #[must_use]
    pub fn new(
        cells: Vec<String>,
        key: Secret,
        name: HostId,
        pool: PoolName,
        data: PathBuf,
    ) -> Self {
        Self {
            cells,
            key,
            name,
            pool,
            listen: SocketAddr::from(([127, 0, 0, 1], 7171)),
            address: None,
            data,
            drivers: Vec::new(),
            memory_mib: None,
            headroom_mib: None,
            heartbeat: Duration::from_secs(10),
            starts_limit: Some(8),
            regime: None,
            region: String::new(),
            labels: BTreeMap::new(),
            counted: Counted::new(),
            stream_restore: false,
            tls: None,
            insecure: false,
            ca_pem: None,
            sample: Duration::from_secs(1),
            timeouts: CallTimeouts::default(),
            process: ProcessConfig::default(),
            gvisor: GvisorConfig::default(),
            simulated: SimulatedConfig::default(),
            control_groups: true,
            provider: false,
            end_guests: false,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Names the setting and its bound.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail = |setting, given: String, bound: &str| {
            Err(ConfigError::Bound { setting, given, bound: bound.to_owned() })
        };
        if self.provider && !self.cells.is_empty() {
            return fail("--cell", self.cells.join(","), "nothing for a provider");
        }
        if self.cells.is_empty() && !self.provider {
            return fail("--cell", "nothing".to_owned(), "at least one URL");
        }
        let heartbeat = self.heartbeat.as_millis();
        if !(100..=60_000).contains(&heartbeat) {
            return fail("--heartbeat-millis", heartbeat.to_string(), "from 100 to 60000");
        }
        let sample = self.sample.as_millis();
        if !(50..=10_000).contains(&sample) {
            return fail("--sample-millis", sample.to_string(), "from 50 to 10000");
        }
        for (setting, value) in
            [("--memory-mib", self.memory_mib), ("--headroom-mib", self.headroom_mib)]
        {
            let largest = bounds::MEMORY_MIB_MAX;
            if let Some(value) = value.filter(|value| value.get() > largest) {
                return fail(setting, value.get().to_string(), &format!("at most {largest}"));
            }
        }
        if self.memory_mib == Some(Mib::ZERO) {
            return fail("--memory-mib", "0".to_owned(), "at least 1");
        }
        if self.starts_limit == Some(0) {
            return fail("--starts-limit", "0".to_owned(), "at least 1");
        }
        if self.labels.len() > bounds::LABELS_MAX {
            let given = format!("{} labels", self.labels.len());
            return fail("--label", given, &format!("at most {} labels", bounds::LABELS_MAX));
        }
        let longest = bounds::LABEL_LENGTH_MAX;
        let texts = self.labels.iter().flat_map(|(key, value)| [key, value]);
        if let Some(long) = texts.chain([&self.region]).find(|text| text.len() > longest) {
            let given = format!("a text of {} bytes", long.len());
            return fail("--label or --region", given, &format!("at most {longest} bytes"));
        }
        if self.counted.len() > bounds::COUNTED_MAX {
            let given = format!("{} resources", self.counted.len());
            return fail("--counted", given, &format!("at most {}", bounds::COUNTED_MAX));
        }
        if !self.listen.ip().is_loopback() && self.tls.is_none() && !self.insecure {
            return Err(ConfigError::InTheClear(self.listen));
        }
        Ok(())
    }

    /// The address that the cell is told for a server that listens on `bound`; `None` where no
    /// other machine could use it.
    pub(crate) fn advertised(&self, bound: SocketAddr) -> Option<String> {
        if let Some(address) = &self.address {
            return Some(address.clone());
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        (!bound.ip().is_unspecified()).then(|| format!("{scheme}://{bound}"))
    }
}
