//! A cell at work: start and shutdown.

use std::fmt;
use std::fs::TryLockError;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use plimsoll_client::AgentClient;
use plimsoll_engine::rows::Rows;
use plimsoll_store::{MemoryStore, SqliteSettings, SqliteStore, Store, StoreError};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

use crate::api;
use crate::app::App;
use crate::clock::wall;
use crate::config::{CellConfig, StoreUrl};
use crate::core::{Core, Opener, Standing, TermError, Terms};
use crate::first::{self, AddressFile, FirstStart, FolderLock};
use crate::hosts::Calls;
use crate::http::{ServeError, Server};
use crate::ids::Ids;
use crate::replays::Replays;
use crate::requests;
use crate::shell::Shell;
use crate::webhooks::{self, Hooks};

/// Why a cell does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder could not be used.
    #[error("the data folder {folder} cannot be used")]
    Folder {
        /// Which.
        folder: String,
        /// Why.
        source: io::Error,
    },
    /// Another cell keeps its keys and its address there.
    #[error("the data folder {folder} is held by another cell")]
    FolderHeld {
        /// Which.
        folder: String,
    },
    /// PostgreSQL is not there yet.
    #[error("the store postgres:// is not built yet: use sqlite:FILE or memory")]
    PostgresNotBuilt,
    /// The store did not open.
    #[error("the store cannot be opened")]
    Store(#[from] StoreError),
    /// The address or the TLS files do not serve.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The file of certificates that agents are held against could not be read.
    #[error("{path} cannot be read")]
    AgentCertificates {
        /// Which file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The client of agents could not be set up.
    #[error(transparent)]
    Agents(#[from] plimsoll_client::Error),
    /// The client of webhook receivers could not be set up.
    #[error("the client of webhook receivers cannot be set up")]
    Webhooks(#[source] reqwest::Error),
    /// A thread could not be started.
    #[error("the engine's thread could not be started")]
    Thread(#[source] io::Error),
    /// The system gave no randomness.
    #[error("the system gives no randomness")]
    Randomness(#[from] getrandom::Error),
}

/// A cell at work. Dropped without [`Cell::shutdown`], it stops without waiting for calls under
/// way.
pub struct Cell {
    server: Option<Server>,
    address: SocketAddr,
    core: Arc<Core>,
    standing: watch::Receiver<Standing>,
    stop: Arc<AtomicBool>,
    engine: Option<JoinHandle<()>>,
    webhooks: AbortHandle,
    counting: AbortHandle,
    mail: AbortHandle,
    _folder: FolderLock,
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Starts a cell: opens the store, listens, and begins to load. Until the state is loaded, calls
/// are answered 503; see [`Cell::ready`].
///
/// # Errors
/// When the folder, the store, the address or the TLS files cannot be used.
pub async fn start(config: CellConfig) -> Result<Cell, StartError> {
    let folder = config.data.clone();
    first::make_folder(&folder)
        .map_err(|source| StartError::Folder { folder: folder.display().to_string(), source })?;
    let store = config.store.clone();
    let open = tokio::task::spawn_blocking(move || opener(&store)).await;
    let opener = open.unwrap_or_else(|error| {
        Err(StartError::Store(StoreError::Io {
            doing: "opening the store".to_owned(),
            detail: error.to_string(),
        }))
    })?;
    start_over(config, opener).await
}

/// What opens the store of a term. The first opening is done here, so that a store that cannot be
/// used is known at the start.
fn opener(url: &StoreUrl) -> Result<Opener, StartError> {
    match url {
        StoreUrl::Memory => {
            let store = MemoryStore::new();
            Ok(Box::new(move |_| Ok(Box::new(store.clone()) as Box<dyn Store>)))
        }
        StoreUrl::Sqlite(path) => {
            let path = path.clone();
            let open = move || SqliteStore::open(&path, SqliteSettings::default());
            let mut first = Some(open()?);
            Ok(Box::new(move |before| {
                // The lock goes with the old connection, which may be broken.
                drop(before);
                let store = first.take().map_or_else(&open, Ok)?;
                Ok(Box::new(store) as Box<dyn Store>)
            }))
        }
        StoreUrl::Postgres(_) => Err(StartError::PostgresNotBuilt),
    }
}

/// Starts a cell over a store that this opens.
pub(crate) async fn start_over(config: CellConfig, opener: Opener) -> Result<Cell, StartError> {
    // Whichever came first serves; both are the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = FolderLock::take(&config.data).map_err(|error| {
        let folder = config.data.display().to_string();
        match error {
            TryLockError::WouldBlock => StartError::FolderHeld { folder },
            TryLockError::Error(source) => StartError::Folder { folder, source },
        }
    })?;
    let ids = Arc::new(Ids::new()?);
    let core = Arc::new(Core::new());
    let agent = agent_client(config.agent_ca.as_deref())?;
    let runtime = tokio::runtime::Handle::current();
    let pool = config.engine.default_pool.clone();
    let shell = Arc::new(Shell::new(Calls::new(Arc::clone(&core), agent, pool, runtime)));
    let stands = shell.standing.subscribe();
    let mail = Arc::clone(&shell);
    let mail = tokio::spawn(async move { mail.mail.deliver().await }).abort_handle();
    let stop = Arc::new(AtomicBool::new(false));
    let units = config.limits.bodies_bytes_max >> 14;
    let app = Arc::new(App {
        core: Arc::clone(&core),
        shell,
        ids,
        standing: stands.clone(),
        started_at: wall(),
        changes: tokio::sync::Mutex::new(()),
        replays: Replays::default(),
        bodies: Arc::new(Semaphore::new(units)),
        hooks: Hooks::new(config.webhooks_private, config.webhook_time.clone())
            .map_err(StartError::Webhooks)?,
        config: config.clone(),
    });
    let (tls, limits) = (config.tls.as_ref(), &config.limits);
    let router = api::router(Arc::clone(&app));
    let counted = Arc::clone(&app.shell);
    let refused = Arc::new(move |code| counted.metrics.refused_outside(code));
    let server =
        Server::start(config.listen, tls, config.insecure, limits, router, refused).await?;
    let address = server.address();
    let address_file =
        AddressFile { folder: config.data.clone(), address, is_tls: config.tls.is_some() };
    address_file.begin().map_err(|source| StartError::Folder {
        folder: config.data.display().to_string(),
        source,
    })?;
    let first_start = FirstStart {
        folder: config.data.clone(),
        default_tenant: config.engine.default_tenant.clone(),
        host_key: !config.require_enrolment,
        renew: config.renew_keys,
        ids: Arc::clone(&app.ids),
    };
    let prepare = move |rows: &Rows, now| {
        let changes = first_start.changes(rows, now)?;
        address_file.write()?;
        Ok(changes)
    };
    let terms = Terms {
        core: Arc::clone(&core),
        shell: Arc::clone(&app.shell),
        config: config.engine.clone(),
        holder: format!("{}-{}", config.name, std::process::id()),
        opener,
        first_start: Box::new(prepare),
        limits: config.load,
        retention: config.retention,
        stop: Arc::clone(&stop),
    };
    let engine = thread::Builder::new().name("plimsoll-engine".to_owned());
    let engine = engine.spawn(move || terms.run()).map_err(StartError::Thread)?;
    let engine = Some(engine);
    let counting = requests::run(Arc::clone(&core), Arc::clone(&app.shell), config.request_counts);
    let counting = tokio::spawn(counting).abort_handle();
    let webhooks = tokio::spawn(webhooks::run(app)).abort_handle();
    let server = Some(server);
    Ok(Cell {
        server,
        address,
        core,
        standing: stands,
        stop,
        engine,
        webhooks,
        counting,
        mail,
        _folder: folder,
    })
}

fn agent_client(ca: Option<&Path>) -> Result<AgentClient, StartError> {
    let Some(path) = ca else { return Ok(AgentClient::new(None)?) };
    let read = |source| StartError::AgentCertificates { path: path.display().to_string(), source };
    let pem = std::fs::read(path).map_err(read)?;
    Ok(AgentClient::new(Some(&pem))?)
}

impl Cell {
    /// The address bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the state is loaded and this cell leads.
    ///
    /// # Errors
    /// Says why it could not lead at the first attempt. It goes on trying.
    pub async fn ready(&self) -> Result<(), Arc<TermError>> {
        let mut standing = self.standing.clone();
        loop {
            match &*standing.borrow_and_update() {
                Standing::Leading(_) | Standing::Stopped => return Ok(()),
                Standing::Waiting(error) => return Err(Arc::clone(error)),
                Standing::Loading => {}
            }
            if standing.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Takes no more calls, waits a bounded time for those under way, commits what is left, and
    /// lets the store go.
    pub async fn shutdown(mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown().await;
        }
        self.stop_engine();
        if let Some(engine) = self.engine.take()
            && let Ok(Err(_)) = tokio::task::spawn_blocking(move || engine.join()).await
        {
            tracing::error!("the engine's thread panicked");
        }
    }

    /// The way into the engine.
    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    fn stop_engine(&self) {
        self.webhooks.abort();
        self.counting.abort();
        self.stop.store(true, Ordering::Release);
        self.core.wake();
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.stop_engine();
        self.mail.abort();
    }
}
