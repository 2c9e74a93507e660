//! `plimsoll cell`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use plimsoll_cell::{Cell, CellConfig, ServeError, StartError, StoreUrl, TlsFiles};

use super::quota::QuotaFlags;
use super::{Tls, absolute, asked_to_stop, chain};
use crate::failure::Failure;
use crate::show;

/// Settings of a cell, as `cell` and `up` take them.
#[derive(Args, Clone, Debug)]
pub(crate) struct CellFlags {
    /// Address to listen on; port 0 picks a free one, which is written to DATA/address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070", help_heading = "Cell")]
    pub(crate) listen: SocketAddr,
    /// Folder for keys, the bound address and, by default, the store
    #[arg(long, value_name = "DIR", default_value = "plimsoll-data", help_heading = "Cell")]
    pub(crate) data: PathBuf,
    /// Where rows are kept: sqlite:FILE or memory [default: sqlite:DATA/cell.sqlite]
    #[arg(long, value_name = "STORE", help_heading = "Cell")]
    pub(crate) store: Option<StoreUrl>,
    /// The cell's name
    #[arg(long, value_name = "CELL", default_value = "cell", help_heading = "Cell")]
    pub(crate) name: String,
    /// Listen off loopback without TLS all the same: keys and environments cross in the clear
    #[arg(long, help_heading = "Cell")]
    pub(crate) insecure: bool,
    /// File with the only certificate authorities to trust for agents, in PEM [default: the
    /// system's]
    #[arg(long, value_name = "FILE", help_heading = "Cell")]
    pub(crate) agent_ca: Option<PathBuf>,
    /// Show /metrics to operators only
    #[arg(long, help_heading = "Cell")]
    pub(crate) metrics_private: bool,
    /// Take heartbeats only under a key of the host's own
    #[arg(long, help_heading = "Cell")]
    pub(crate) require_enrolment: bool,
    /// Make operator.key and host.key anew where they are lost, or not known to the store; the
    /// former operator's key is revoked, the former host key is not
    #[arg(long, help_heading = "Cell")]
    pub(crate) renew_keys: bool,
    /// Take webhook endpoints on private, loopback and link-local addresses
    #[arg(long, help_heading = "Cell")]
    pub(crate) webhooks_private: bool,
    /// Most connections at once
    #[arg(long, value_name = "N", default_value_t = 10_000, help_heading = "Cell")]
    pub(crate) connections_max: usize,
    /// Seconds for calls under way to end when the cell shuts down
    #[arg(long, value_name = "SECONDS", default_value_t = 10, help_heading = "Cell")]
    pub(crate) drain_seconds: u64,
    #[command(flatten)]
    pub(crate) quota: QuotaFlags,
}

impl CellFlags {
    /// The settings of the cell.
    ///
    /// # Errors
    /// When a path is none.
    pub(crate) fn config(self, tls: Tls) -> Result<CellConfig, Failure> {
        let mut config = CellConfig::new(absolute(&self.data)?);
        config.listen = self.listen;
        config.name = self.name;
        config.insecure = self.insecure;
        config.agent_ca = self.agent_ca;
        config.metrics_open = !self.metrics_private;
        config.require_enrolment = self.require_enrolment;
        config.renew_keys = self.renew_keys;
        config.webhooks_private = self.webhooks_private;
        self.quota.apply(&mut config.engine)?;
        config.limits.connections_max = self.connections_max;
        config.limits.drain_timeout = Duration::from_secs(self.drain_seconds);
        if let Some(store) = self.store {
            config.store = store;
        }
        if let (Some(certificate), Some(key)) = (tls.tls_cert, tls.tls_key) {
            config.tls = Some(TlsFiles { certificate, key });
        }
        if let StoreUrl::Sqlite(path) = &config.store {
            config.store = StoreUrl::Sqlite(absolute(path)?);
        }
        Ok(config)
    }
}

/// Refuses a store that was there and is empty now: taken for a new one, every guest that its hosts
/// still run would be without a record.
fn emptied(config: &CellConfig) -> Result<(), Failure> {
    let StoreUrl::Sqlite(path) = &config.store else { return Ok(()) };
    let empty = std::fs::metadata(path).is_ok_and(|file| file.len() == 0);
    if !empty || !config.data.join("operator.key").exists() {
        return Ok(());
    }
    let path = path.display();
    Err(Failure::refused(format!("the store {path} is empty, and keys of a former one are there"))
        .hint("put a copy of the store back; to begin anew, remove the data folder"))
}

/// Whether a store of an earlier start is there.
pub(crate) fn is_kept(config: &CellConfig) -> bool {
    let StoreUrl::Sqlite(path) = &config.store else { return false };
    std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

/// Starts a cell and waits until it decides.
///
/// # Errors
/// When it does not start, or cannot lead.
pub(crate) async fn start(config: CellConfig) -> Result<Cell, Failure> {
    let listen = config.listen;
    emptied(&config)?;
    let cell = plimsoll_cell::start(config).await.map_err(|error| {
        let why = chain(&error);
        let failure = Failure::refused(format!("the cell does not start: {why}"));
        match error {
            StartError::Serve(ServeError::Bind { .. }) => failure.hint(format!(
                "is another cell up? it holds {listen}; --listen 127.0.0.1:0 picks a free port"
            )),
            StartError::FolderHeld { .. } => {
                failure.hint("is another cell up in this folder? --data names another folder")
            }
            StartError::Store(_) if why.contains(" is held by ") => {
                failure.hint("is another cell up in this folder? --data names another folder")
            }
            _ => failure,
        }
    })?;
    if let Err(error) = cell.ready().await {
        cell.shutdown().await;
        return Err(Failure::refused(format!("the cell cannot decide: {}", chain(&*error)))
            .hint("is another cell up in this folder?"));
    }
    Ok(cell)
}

/// Runs a cell: the API, the engine and the store.
#[derive(Args, Clone, Debug)]
pub(crate) struct CellCommand {
    #[command(flatten)]
    flags: CellFlags,
    #[command(flatten)]
    tls: Tls,
}

impl CellCommand {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let stop = asked_to_stop()?;
        let scheme = if self.tls.tls_cert.is_some() { "https" } else { "http" };
        let (name, data) = (self.flags.name.clone(), self.flags.data.display().to_string());
        let cell = start(self.flags.config(self.tls)?).await?;
        show::out(&format!(
            "cell {name} at {scheme}://{}, keys and address in {data}\n",
            cell.address()
        ))?;
        stop.await;
        cell.shutdown().await;
        Ok(ExitCode::SUCCESS)
    }
}
