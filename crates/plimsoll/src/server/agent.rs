//! `plimsoll agent`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use plimsoll_agent::driver::{ProcessConfig, ShimCommand, UserRange};
use plimsoll_agent::{AgentConfig, AgentHandle, Means, StartError, TlsFiles};
use plimsoll_api::Secret;
use plimsoll_types::{BasisPoints, Driver, HostId, Mib, PoolName, Regime};

use super::{Tls, absolute, asked_to_stop, chain};
use crate::client::pair;
use crate::connect::{key_in, read};
use crate::failure::Failure;
use crate::settings::KEY_VARIABLE;
use crate::show;

/// The hidden subcommand that a guest's shim is.
pub(crate) const SHIM: &str = "guest-shim";

/// Most starts at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartsLimit(Option<u32>);

impl FromStr for StartsLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("unbounded", _) => Ok(Self(None)),
            (_, Ok(limit)) if limit > 0 => Ok(Self(Some(limit))),
            _ => Err("expected a number from 1, or unbounded".to_owned()),
        }
    }
}

/// Splits `name=number`.
fn counted(text: &str) -> Result<(String, u64), String> {
    let (name, value) = pair(text)?;
    let value = value.parse().map_err(|_| "expected NAME=NUMBER".to_owned())?;
    Ok((name, value))
}

/// Splits `first:count`.
fn users(text: &str) -> Result<UserRange, String> {
    let range = text.split_once(':').and_then(|(first, count)| {
        Some(UserRange { first: first.parse().ok()?, count: count.parse().ok()? })
    });
    let is_sound = |range: &UserRange| {
        range.first > 0 && range.count > 0 && range.first.checked_add(range.count).is_some()
    };
    range.filter(is_sound).ok_or_else(|| "expected FIRST:COUNT, both at least 1".to_owned())
}

/// Settings of an agent, as `agent` and `up` take them.
#[derive(Args, Clone, Debug)]
pub(crate) struct AgentFlags {
    /// The pool that the host belongs to
    #[arg(long, value_name = "POOL", default_value = "local", help_heading = "Host")]
    pub(crate) pool: PoolName,
    /// Drivers: process, gvisor, simulated [default: every one that works here]
    #[arg(long, value_name = "DRIVER,..", value_delimiter = ',', help_heading = "Host")]
    pub(crate) driver: Vec<Driver>,
    /// Memory to offer in MiB [default: the machine's]
    #[arg(long, value_name = "MIB", help_heading = "Host")]
    pub(crate) memory_mib: Option<u64>,
    /// Memory in MiB to leave free [default: the larger of 1024 and 6 % of what is offered, at
    /// most a quarter of it]
    #[arg(long, value_name = "MIB", help_heading = "Host")]
    pub(crate) headroom_mib: Option<u64>,
    /// Milliseconds between heartbeats, from 100 to 60000; a large change is told at once
    #[arg(long, value_name = "MILLIS", default_value_t = 10_000, help_heading = "Host")]
    pub(crate) heartbeat_millis: u64,
    /// Milliseconds between measurements of machine and guests, from 50 to 10000
    #[arg(long, value_name = "MILLIS", default_value_t = 1_000, help_heading = "Host")]
    pub(crate) sample_millis: u64,
    /// Most starts at once, or `unbounded`
    #[arg(long, value_name = "N", default_value = "8", help_heading = "Host")]
    pub(crate) starts_limit: StartsLimit,
    /// The gate's arithmetic: none, committed or working-set [default: the pool's]
    #[arg(long, value_name = "REGIME", help_heading = "Host")]
    pub(crate) regime: Option<Regime>,
    /// Where the host stands, for people [default: nothing]
    #[arg(long, value_name = "TEXT", default_value = "", help_heading = "Host")]
    pub(crate) region: String,
    /// Labels that templates may ask for; may be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair, help_heading = "Host")]
    pub(crate) label: Vec<(String, String)>,
    /// Counted resources that the host owns, all of them; may be given more than once
    #[arg(long, value_name = "NAME=NUMBER", value_parser = counted, help_heading = "Host")]
    pub(crate) counted: Vec<(String, u64)>,
    /// Guests boot without pulling their whole memory first: placement prefers such hosts
    #[arg(long, help_heading = "Host")]
    pub(crate) stream_restore: bool,
    /// End all guests with the agent; otherwise they live on and the next agent takes them over
    #[arg(long, help_heading = "Host")]
    pub(crate) end_guests: bool,
    /// Give guests no control groups: they are then measured by their processes, and not limited
    #[arg(long, help_heading = "Host")]
    pub(crate) no_control_groups: bool,
    /// Process driver: first user id and how many, each guest having its own; needs root [default:
    /// 65536 users that the data folder leads to]
    #[arg(long, value_name = "FIRST:COUNT", value_parser = users, help_heading = "Drivers")]
    pub(crate) process_users: Option<UserRange>,
    /// gVisor driver: the runsc binary
    #[arg(long, value_name = "FILE", default_value = "runsc", help_heading = "Drivers")]
    pub(crate) runsc: PathBuf,
    /// gVisor driver: a static busybox, for templates without a root file system
    #[arg(long, value_name = "FILE", default_value = "/bin/busybox", help_heading = "Drivers")]
    pub(crate) busybox: PathBuf,
    /// gVisor driver: its platform, such as systrap [default: one that works]
    #[arg(long, value_name = "NAME", help_heading = "Drivers")]
    pub(crate) gvisor_platform: Option<String>,
    /// Simulated driver: memory that a guest comes to use, in basis points of what it is
    /// configured with
    #[arg(long, value_name = "BP", default_value_t = 3_300, help_heading = "Drivers")]
    pub(crate) simulated_peak_bp: u64,
    /// Simulated driver: milliseconds that a start takes
    #[arg(long, value_name = "MILLIS", default_value_t = 180, help_heading = "Drivers")]
    pub(crate) simulated_start_millis: u64,
    /// Simulated driver: milliseconds that writing a guest out takes
    #[arg(long, value_name = "MILLIS", default_value_t = 100, help_heading = "Drivers")]
    pub(crate) simulated_checkpoint_millis: u64,
    /// Simulated driver: starts that fail, in basis points
    #[arg(long, value_name = "BP", default_value_t = 0, help_heading = "Drivers")]
    pub(crate) simulated_start_failures_bp: u64,
}

/// What tells one agent from another.
pub(crate) struct Place {
    pub(crate) cells: Vec<String>,
    pub(crate) key: Secret,
    pub(crate) name: HostId,
    pub(crate) listen: SocketAddr,
    pub(crate) data: PathBuf,
}

impl AgentFlags {
    /// The settings of the agent.
    pub(crate) fn config(self, place: Place) -> AgentConfig {
        let Place { cells, key, name, listen, data } = place;
        let mut config = AgentConfig::new(cells, key, name, self.pool, data);
        config.listen = listen;
        config.drivers = self.driver;
        config.memory_mib = self.memory_mib.map(Mib);
        config.headroom_mib = self.headroom_mib.map(Mib);
        config.heartbeat = Duration::from_millis(self.heartbeat_millis);
        config.sample = Duration::from_millis(self.sample_millis);
        config.starts_limit = self.starts_limit.0;
        config.regime = self.regime;
        config.region = self.region;
        config.labels = self.label.into_iter().collect();
        config.counted = self.counted.into_iter().collect();
        config.stream_restore = self.stream_restore;
        config.end_guests = self.end_guests;
        config.control_groups = !self.no_control_groups;
        if let ProcessConfig::OwnUser(range) = &mut config.process {
            *range = self.process_users;
        }
        config.gvisor.runsc = self.runsc;
        config.gvisor.busybox = self.busybox;
        config.gvisor.platform = self.gvisor_platform;
        config.simulated.peak_share = BasisPoints(self.simulated_peak_bp);
        config.simulated.start_delay = Duration::from_millis(self.simulated_start_millis);
        config.simulated.restore_delay = Duration::from_millis(self.simulated_start_millis);
        config.simulated.checkpoint_delay = Duration::from_millis(self.simulated_checkpoint_millis);
        config.simulated.start_failures = BasisPoints(self.simulated_start_failures_bp);
        config
    }
}

/// Starts an agent; gives it and the drivers that work.
///
/// # Errors
/// When it does not start.
pub(crate) async fn start(
    config: AgentConfig,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(AgentHandle, Vec<Driver>), Failure> {
    let shim = ShimCommand::of_this_binary(SHIM).map_err(|error| {
        Failure::refused(format!("this program's own file is unknown: {error}"))
    })?;
    config.validate().map_err(|error| Failure::usage(error.to_string()))?;
    let means = Means::find(&config, shim).await.map_err(not_started)?;
    let drivers = means.drivers.iter().map(|driver| driver.kind()).collect();
    let agent = plimsoll_agent::run(config, means, stop).await.map_err(not_started)?;
    Ok((agent, drivers))
}

fn not_started(error: StartError) -> Failure {
    let failure = Failure::refused(format!("the agent does not start: {}", chain(&error)));
    match error {
        StartError::Folder(_) => failure.hint("is another agent up in this folder?"),
        StartError::Serve(_) => failure.hint("port 0 picks a free port"),
        _ => failure,
    }
}

/// This machine's name, made fit for a host's.
pub(crate) fn machine_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let label = name.split('.').next().unwrap_or_default();
    let fit = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let label: String = label.chars().map(fit).take(63).collect();
    let label = label.trim_matches('-');
    if label.is_empty() { "host-1".to_owned() } else { label.to_owned() }
}

/// Runs a host's agent: its gate, drivers and heartbeats.
#[derive(Args, Clone, Debug)]
pub(crate) struct AgentCommand {
    /// Base URLs of the cell's replicas
    #[arg(
        long,
        value_name = "URL,..",
        required_unless_present = "provider",
        value_delimiter = ',',
        help_heading = "Cell"
    )]
    cell: Vec<String>,
    /// File with the host's key; the variable PLIMSOLL_KEY may hold the key itself
    #[arg(long, value_name = "FILE", help_heading = "Cell")]
    key_file: Option<PathBuf>,
    /// Be a provider of other cells' external pools: no cell of its own, and whoever shows
    /// DATA/agent.secret is obeyed; one cell at a time
    #[arg(long, help_heading = "Cell", conflicts_with_all = ["cell", "key_file"])]
    provider: bool,
    /// File with the only certificate authorities to trust for the cell, in PEM [default: the
    /// system's]
    #[arg(long, value_name = "FILE", help_heading = "Cell")]
    ca_file: Option<PathBuf>,
    /// The host's name [default: the machine's]
    #[arg(long, value_name = "HOST", help_heading = "Host")]
    name: Option<HostId>,
    /// Address to listen on for the cell; port 0 picks a free one, which is written to DATA/address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7171", help_heading = "Host")]
    listen: SocketAddr,
    /// URL that the cell is told to reach this agent at [default: the address listened on]
    #[arg(long, value_name = "URL", help_heading = "Host")]
    address: Option<String>,
    /// Folder for the journal and the guests; one agent at a time
    #[arg(long, value_name = "DIR", default_value = "plimsoll-agent", help_heading = "Host")]
    data: PathBuf,
    /// Listen off loopback without TLS all the same: the host's secret crosses in the clear
    #[arg(long, help_heading = "Host")]
    insecure: bool,
    #[command(flatten)]
    flags: AgentFlags,
    #[command(flatten)]
    tls: Tls,
}

impl AgentCommand {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let key = match (&self.key_file, std::env::var(KEY_VARIABLE)) {
            (Some(path), _) => key_in(path)?,
            _ if self.provider => Secret::new(""),
            (None, Ok(key)) if !key.trim().is_empty() => Secret::new(key.trim()),
            (None, _) => {
                return Err(Failure::usage("--key-file is missing")
                    .hint("a cell's folder has host.key; PLIMSOLL_KEY may hold the key itself"));
            }
        };
        let name = match self.name {
            Some(name) => name,
            None => machine_name().parse().map_err(|error| {
                Failure::usage(format!("the machine's name is no host's: {error}"))
                    .hint("give --name")
            })?,
        };
        let data = absolute(&self.data)?;
        let (cells, listen) = (self.cell.clone(), self.listen);
        let place = Place { cells, key, name: name.clone(), listen, data: data.clone() };
        let mut config = self.flags.config(place);
        config.address = self.address;
        config.insecure = self.insecure;
        config.provider = self.provider;
        if let Some(path) = &self.ca_file {
            config.ca_pem = Some(read(path, "certificates")?.into_bytes());
        }
        if let (Some(certificate), Some(key)) = (self.tls.tls_cert, self.tls.tls_key) {
            config.tls = Some(TlsFiles { certificate, key });
        }
        let (agent, drivers) = start(config, asked_to_stop()?).await?;
        let path = data.join("address");
        std::fs::write(&path, format!("{}\n", agent.address))
            .map_err(|error| Failure::refused(format!("{} : {error}", path.display())))?;
        let words: Vec<&str> = drivers.iter().map(|driver| driver.as_str()).collect();
        let served =
            if self.provider { "whoever has its secret".to_owned() } else { self.cell.join(", ") };
        show::out(&format!(
            "agent {name} at {} for {served} with {}\n",
            agent.address,
            words.join(", ")
        ))?;
        ended(agent).await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Waits for an agent's end.
///
/// # Errors
/// When it did not end because it was asked to.
pub(crate) async fn ended(agent: AgentHandle) -> Result<(), Failure> {
    agent.join().await.map_err(|error| {
        Failure::refused(format!("the agent ended: {}", chain(&error)))
            .hint("its guests live on; the next agent in its folder takes them over")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_starts_is_a_number_or_none() {
        assert_eq!("8".parse(), Ok(StartsLimit(Some(8))));
        assert_eq!("unbounded".parse(), Ok(StartsLimit(None)));
        for text in ["0", "-1", "", "many"] {
            assert!(text.parse::<StartsLimit>().is_err(), "{text}");
        }
    }

    #[test]
    fn users_are_a_first_and_a_number() {
        assert_eq!(users("70000:16"), Ok(UserRange { first: 70_000, count: 16 }));
        for text in ["70000", "0:5", "5:0", "a:b", "4294967295:2"] {
            assert!(users(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_machines_name_is_fit_for_a_host() {
        assert!(machine_name().parse::<HostId>().is_ok(), "{}", machine_name());
    }
}
