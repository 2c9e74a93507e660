//! `plimsoll up`: a cell and an agent on this machine.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use plimsoll_agent::AgentHandle;
use plimsoll_api::HostStatus;
use plimsoll_cell::Cell;
use plimsoll_client::{Client, ClientConfig};
use plimsoll_types::{Driver, HostId, RefusalCode};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::agent::{self, AgentFlags, Place, machine_name};
use super::cell::{self, CellFlags};
use super::{Tls, asked_to_stop, templates};
use crate::connect::{key_in, read, url_of};
use crate::failure::Failure;
use crate::show;

/// Longest wait for the agent's first heartbeat to arrive: one on loopback takes milliseconds.
const FIRST_HEARTBEAT: Duration = Duration::from_secs(15);
/// Between two looks for it.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a cell and an agent on this machine, with the dashboard and a SQLite store.
#[derive(Args, Clone, Debug)]
pub(crate) struct Up {
    #[command(flatten)]
    cell: CellFlags,
    /// The cell serves TLS, and the host trusts this certificate and no other.
    #[command(flatten)]
    tls: Tls,
    /// The host's name [default: the machine's]
    #[arg(long, value_name = "HOST", help_heading = "Host")]
    host_name: Option<HostId>,
    /// Address that the agent listens on for the cell; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7171", help_heading = "Host")]
    agent_listen: SocketAddr,
    #[command(flatten)]
    agent: AgentFlags,
}

impl Up {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let stop = asked_to_stop()?;
        let (data, certificate) = (self.cell.data.clone(), self.tls.tls_cert.clone());
        let pair = Pair::start(self).await?;
        show::out(&pair.banner(&data, certificate.as_deref()))?;
        pair.until(stop).await?;
        Ok(ExitCode::SUCCESS)
    }

    /// Both on free ports in this folder, with these words more; for commands that try things out.
    ///
    /// # Errors
    /// When the words are no flags of `up`.
    pub(crate) fn scratch(data: &Path, words: &[String]) -> Result<Self, Failure> {
        use clap::Parser as _;

        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            up: Up,
        }

        let fixed = ["up", "--listen=127.0.0.1:0", "--agent-listen=127.0.0.1:0", "--data"];
        let fixed = fixed.map(OsString::from).into_iter().chain([data.into()]);
        let line = Line::try_parse_from(fixed.chain(words.iter().map(OsString::from)));
        line.map(|line| line.up).map_err(|error| Failure::usage(error.to_string()))
    }
}

/// A cell and an agent at work.
pub(crate) struct Pair {
    cell: Cell,
    agent: AgentHandle,
    stop_agent: watch::Sender<bool>,
    drivers: Vec<Driver>,
    /// What template `shell` is, where this was the first start.
    shell: Option<&'static str>,
    /// Where the cell is.
    pub(crate) url: String,
    /// A client with the operator's key.
    pub(crate) operator: Client,
    /// The host's name.
    pub(crate) host: HostId,
}

impl Pair {
    /// Starts both, and waits until the cell has heard of the host.
    ///
    /// # Errors
    /// When either does not start. Neither is left running then.
    pub(crate) async fn start(up: Up) -> Result<Self, Failure> {
        if up.cell.require_enrolment {
            return Err(Failure::usage(
                "--require-enrolment is not for `up`, whose host has no key yet",
            )
            .hint("run `plimsoll cell`, make a key with `plimsoll keys create`, then an agent"));
        }
        let trusted = up.tls.tls_cert.as_deref().map(|path| read(path, "the certificate"));
        let trusted = trusted.transpose()?.map(String::into_bytes);
        let scheme = if trusted.is_some() { "https" } else { "http" };
        let config = up.cell.config(up.tls)?;
        let data = config.data.clone();
        let is_kept = cell::is_kept(&config);
        let is_first = !is_kept && !data.join("operator.key").exists();
        if is_kept && !config.renew_keys {
            lost(&data)?;
        }
        let cell = cell::start(config).await?;
        let url = url_of(&format!("{scheme}://{}", cell.address()));
        let (stop_agent, stopped) = watch::channel(false);
        let way = Way { url: url.clone(), ca_pem: trusted.clone() };
        let agent = host(&data, way, up.agent, up.host_name, up.agent_listen, stopped).await;
        let operator = key_in(&data.join("operator.key")).and_then(|key| {
            let mut config = ClientConfig::new([url.clone()]).with_key(key);
            config.ca_pem = trusted;
            Ok(Client::new(config)?)
        });
        let (agent, drivers, host, operator) = match (agent, operator) {
            (Ok((agent, drivers, host)), Ok(operator)) => (agent, drivers, host, operator),
            (agent, operator) => {
                let _ = stop_agent.send(true);
                let failure = match agent {
                    Ok((agent, ..)) => agent::ended(agent).await.err(),
                    Err(failure) => Some(failure),
                };
                cell.shutdown().await;
                let unknown = || Failure::refused("neither cell nor agent is up");
                return Err(failure.or(operator.err()).unwrap_or_else(unknown));
            }
        };
        let mut pair = Self { cell, agent, stop_agent, drivers, shell: None, url, operator, host };
        match pair.settle(is_first).await {
            Ok(()) => Ok(pair),
            Err(failure) => {
                let _ = pair.shutdown().await;
                Err(failure)
            }
        }
    }

    /// Makes the first templates, and waits for the first heartbeat.
    async fn settle(&mut self, is_first: bool) -> Result<(), Failure> {
        if is_first {
            self.shell = Some(templates::make(&self.operator, &self.drivers).await?);
        }
        let patience = Instant::now() + FIRST_HEARTBEAT;
        loop {
            let seen = self.operator.host(&self.host).await;
            match seen {
                Ok(host) if host.status == HostStatus::Fresh => return Ok(()),
                Err(error) if error.code() == Some(RefusalCode::Unauthenticated) => {
                    return Err(Failure::from(error).hint(
                        "operator.key is of another store; --renew-keys has this one take it over",
                    ));
                }
                Err(error) if error.code() != Some(RefusalCode::NotFound) => {
                    return Err(error.into());
                }
                _ if Instant::now() > patience => {
                    let what = format!("the cell has not heard of host {}", self.host);
                    return Err(Failure::not_now(what).hint("--log debug says more"));
                }
                _ => sleep(LOOK).await,
            }
        }
    }

    /// Runs until asked to stop, or until the agent ends by itself; then ends both in order.
    ///
    /// # Errors
    /// When the agent did not end because it was asked to.
    pub(crate) async fn until(self, stop: impl Future<Output = ()>) -> Result<(), Failure> {
        let mut ended = std::pin::pin!(agent::ended(self.agent));
        let outcome = tokio::select! {
            outcome = &mut ended => outcome,
            () = stop => {
                let _ = self.stop_agent.send(true);
                ended.await
            }
        };
        self.cell.shutdown().await;
        outcome
    }

    /// Ends both in order.
    ///
    /// # Errors
    /// As [`Self::until`].
    pub(crate) async fn shutdown(self) -> Result<(), Failure> {
        self.until(std::future::ready(())).await
    }

    /// What is up, and what to try.
    fn banner(&self, data: &Path, certificate: Option<&Path>) -> String {
        let words: Vec<&str> = self.drivers.iter().map(|driver| driver.as_str()).collect();
        let program = std::env::args().next().unwrap_or_else(|| "plimsoll".to_owned());
        let folder = data.display();
        let mut at = String::new();
        if data != Path::new("plimsoll-data") {
            at.push_str(&format!(" --data {folder}"));
        }
        if let Some(certificate) = certificate {
            at.push_str(&format!(" --ca-file {}", certificate.display()));
        }
        let shell = self.shell.map_or_else(String::new, |what| format!("shell  {what}\n"));
        format!(
            "cell   {url}   dashboard at {url}/, API at {url}/docs\n\
             host   {host} with {drivers}\n\
             {shell}\
             data   {folder}: keys, address, store, guests\n\n\
             Try, in another terminal in this folder:\n\
             \x20 {program} create{at} --template shell -- sh -c 'echo up; sleep 600'\n\
             \x20 {program} ls{at}\n\
             \x20 {program} hosts{at}\n\
             \x20 {program} explain{at} --template shell --memory-mib 4096\n\
             \x20 {program} create{at} --template shell --memory-mib 9000000\n\n\
             Ctrl-C ends cell and agent. Guests live on; `up` in the same folder finds them again.\n",
            url = self.url,
            host = self.host,
            drivers = words.join(", "),
        )
    }
}

/// Says which key file of a kept store is gone, and the ways back.
///
/// # Errors
/// When one is.
fn lost(data: &Path) -> Result<(), Failure> {
    for (file, then) in [
        ("operator.key", "makes a new one and revokes the lost one"),
        ("host.key", "makes a new one; hosts go on under the lost one, too"),
    ] {
        let path = data.join(file);
        if !path.exists() {
            let what = format!("{} is gone, and the store beside it is kept", path.display());
            return Err(Failure::refused(what)
                .hint(format!("put it back, or start once with --renew-keys, which {then}")));
        }
    }
    Ok(())
}

/// How the agent reaches its cell.
struct Way {
    url: String,
    /// The only certificate to trust, where the cell serves TLS.
    ca_pem: Option<Vec<u8>>,
}

/// Starts the agent of this machine.
async fn host(
    data: &Path,
    way: Way,
    flags: AgentFlags,
    name: Option<HostId>,
    listen: SocketAddr,
    mut stopped: watch::Receiver<bool>,
) -> Result<(AgentHandle, Vec<Driver>, HostId), Failure> {
    let name = match name {
        Some(name) => name,
        None => machine_name().parse().map_err(|error| {
            Failure::usage(format!("the machine's name is no host's: {error}"))
                .hint("give --host-name")
        })?,
    };
    let place = Place {
        cells: vec![way.url],
        key: key_in(&data.join("host.key"))?,
        name: name.clone(),
        listen,
        data: data.join("agent"),
    };
    let stop = async move {
        // Whoever lets go of the other end wants it to stop, too.
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let mut config = flags.config(place);
    config.ca_pem = way.ca_pem;
    let (agent, drivers) = agent::start(config, stop).await?;
    Ok((agent, drivers, name))
}
