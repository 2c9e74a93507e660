//! Settings of one cell.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use plimsoll_engine::EngineConfig;
use plimsoll_store::{LoadLimits, Retention};

use crate::webhooks::Time;

/// Settings of one cell. [`CellConfig::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct CellConfig {
    /// Where to listen; port 0 picks a free one. `127.0.0.1:7070`.
    pub listen: SocketAddr,
    /// The folder for keys, the bound address and, by default, the store.
    pub data: PathBuf,
    /// Where rows are kept.
    pub store: StoreUrl,
    /// The cell's name; `cell`.
    pub name: String,
    /// Certificate and key to serve TLS with; none serves plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Certificates that agents' TLS is held against; the system's where absent.
    pub agent_ca: Option<PathBuf>,
    /// Listen beyond loopback without TLS all the same.
    pub insecure: bool,
    /// Whether `/metrics` needs no key; it does not.
    pub metrics_open: bool,
    /// Refuse heartbeats under a key that serves any host name: each host needs a key of its own.
    pub require_enrolment: bool,
    /// Make the operator's and the hosts' key of the data folder anew where a file is missing, or
    /// holds a key that the store does not know. The operator's former key is revoked.
    pub renew_keys: bool,
    /// Take webhook endpoints on private, loopback and link-local addresses, and without TLS.
    pub webhooks_private: bool,
    /// How often the numbers of tenants' requests are handed to the engine, which looks at them for
    /// signs of abuse once a minute: 60 s.
    pub request_counts: Duration,
    /// The time that webhooks' retries go by.
    pub(crate) webhook_time: Time,
    /// Bounds of the HTTP side.
    pub limits: HttpLimits,
    /// Settings of the engine.
    pub engine: EngineConfig,
    /// How long rows are kept.
    pub retention: Retention,
    /// How much is loaded at a start beyond what is alive.
    pub load: LoadLimits,
}

impl CellConfig {
    /// A cell with its data in this folder and everything else by default.
    #[must_use]
    pub fn new(data: impl Into<PathBuf>) -> Self {
        let data = data.into();
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            store: StoreUrl::Sqlite(data.join("cell.sqlite")),
            data,
            name: "cell".to_owned(),
            tls: None,
            agent_ca: None,
            insecure: false,
            metrics_open: true,
            require_enrolment: false,
            renew_keys: false,
            webhooks_private: false,
            request_counts: Duration::from_secs(60),
            webhook_time: Time::default(),
            limits: HttpLimits::default(),
            engine: EngineConfig::default(),
            retention: Retention::default(),
            load: LoadLimits::default(),
        }
    }
}

/// Files to serve TLS with, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Where rows are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In memory: gone with the process. For tests and trials.
    Memory,
    /// In one SQLite file, guarded by a lock.
    Sqlite(PathBuf),
    /// In PostgreSQL.
    Postgres(String),
}

/// Why a text names no store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no store: expected memory, sqlite:FILE or postgres://...")]
pub struct StoreUrlError {
    given: String,
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(text.to_owned()));
        }
        match text.strip_prefix("sqlite:") {
            Some(file) if !file.is_empty() => Ok(Self::Sqlite(PathBuf::from(file))),
            _ => Err(StoreUrlError { given: text.to_owned() }),
        }
    }
}

/// Bounds of the HTTP side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Most connections at once; one more is closed at once. 10 000: some 300 MiB with buffers.
    pub connections_max: usize,
    /// Largest body of an ordinary call: 1 MiB, which holds a batch of 1 000 reservations several
    /// times over.
    pub body_bytes_max: usize,
    /// Largest heartbeat: 32 MiB, which holds the 100 000 guests that one may list.
    pub heartbeat_bytes_max: usize,
    /// Most bytes of bodies that are held at once, small ones aside: 256 MiB, so that many large
    /// bodies at once wait for each other and not for the kernel's OOM killer.
    pub bodies_bytes_max: usize,
    /// Largest head of a request, path and headers together: 32 KiB.
    pub head_bytes_max: usize,
    /// Longest time for the head of a request to arrive, and for a connection to stay idle: 30 s,
    /// against connections that are held open by dripping bytes.
    pub head_timeout: Duration,
    /// Longest time for a body to arrive: 30 s; a heartbeat of 32 MiB needs 9 Mbit/s.
    pub body_timeout: Duration,
    /// Longest wait of a create for its sandbox to run, beyond the time that it asked to wait in
    /// the queue: three starts of a minute each. Then it is answered as `provisioning`.
    pub start_wait: Duration,
    /// Longest wait for calls under way when the cell shuts down.
    pub drain_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            body_bytes_max: 1 << 20,
            heartbeat_bytes_max: 32 << 20,
            bodies_bytes_max: 256 << 20,
            head_bytes_max: 32 << 10,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            start_wait: Duration::from_secs(180),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_urls_are_told_apart() {
        assert_eq!("memory".parse(), Ok(StoreUrl::Memory));
        assert_eq!("sqlite:/a/b.db".parse(), Ok(StoreUrl::Sqlite("/a/b.db".into())));
        let postgres = "postgres://user@host/db";
        assert_eq!(postgres.parse(), Ok(StoreUrl::Postgres(postgres.to_owned())));
        for text in ["", "sqlite:", "sqlite", "mysql://x", "Memory"] {
            let error = text.parse::<StoreUrl>().unwrap_err();
            assert!(error.to_string().contains("sqlite:FILE"), "{error}");
        }
    }
}
