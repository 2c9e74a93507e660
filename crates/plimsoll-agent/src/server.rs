//! The agent's own HTTP server: what the cell asks of it. Everything but `/healthz` takes the
//! host's secret, for guests can reach loopback too.

mod routes;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use hyper_util::rt::TokioTimer;
use plimsoll_api::{Body, FieldError, PROBLEM_CONTENT_TYPE, Problem, ProblemCode, Secret, parse};
use plimsoll_types::{Millis, RefusalCode, RetryHint, SandboxId};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tower_http::catch_panic::CatchPanicLayer;

use crate::calls::Drivers;
use crate::config::TlsFiles;
use crate::core::Core;
use crate::driver::Guests;
use crate::metrics::Metrics;
use crate::sampler::Sampler;

/// Largest body in bytes: a start with 64 KiB each of command and environment, every byte written
/// as six, and room for the rest.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Longest time for a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);
/// Most requests under way. Pauses may take minutes, so this is the number of guests that one host
/// could be pausing at once, several times over; each request holds one body at most.
const REQUESTS_MAX: usize = 1024;
/// Most open connections: each request has one, and a client may keep as many idle.
const CONNECTIONS_MAX: usize = 2048;
/// Longest time for a request's head to arrive, and for which a connection may idle: longer than
/// clients keep idle connections, so that it is they who close.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Why the agent cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Certificate or key make no TLS.
    #[error("certificate {} and key {}", files.certificate.display(), files.key.display())]
    Tls {
        /// The files.
        files: TlsFiles,
        /// What is wrong with them.
        source: io::Error,
    },
}

/// What every request may need.
pub(crate) struct Shared {
    pub(crate) core: Core,
    pub(crate) drivers: Arc<Drivers>,
    pub(crate) guests: Arc<Guests>,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) metrics: Arc<Metrics>,
    /// Commands that run in each guest.
    pub(crate) execs: Mutex<BTreeMap<SandboxId, usize>>,
    secret_digest: [u8; 32],
    requests: Arc<Semaphore>,
    closing: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        core: Core,
        drivers: Arc<Drivers>,
        guests: Arc<Guests>,
        sampler: Arc<Sampler>,
        metrics: Arc<Metrics>,
        secret: &Secret,
    ) -> Self {
        Self {
            core,
            drivers,
            guests,
            sampler,
            metrics,
            execs: Mutex::default(),
            secret_digest: Sha256::digest(secret.expose().as_bytes()).into(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            closing: AtomicBool::new(false),
        }
    }

    /// Takes no more requests from now on.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Whether a request shows the host's secret. Digests are compared, in constant time, so that
    /// neither content nor length can be felt out.
    fn knows_secret(&self, request: &Request) -> bool {
        let shown = request
            .headers()
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .unwrap_or_default();
        let digest: [u8; 32] = Sha256::digest(shown.as_bytes()).into();
        digest.ct_eq(&self.secret_digest).into()
    }
}

/// A no, as a response.
#[derive(Debug)]
pub(crate) struct No(Box<Problem>);

impl No {
    pub(crate) fn new(code: impl Into<ProblemCode>, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(code, detail)))
    }

    /// The same, with when to come back.
    pub(crate) fn after(self, wait: Millis) -> Self {
        Self(Box::new(self.0.with_retry(RetryHint::After(wait))))
    }

    pub(crate) fn busy() -> Self {
        Self::new(RefusalCode::Overloaded, "the agent has as much under way as it takes")
    }
}

impl From<FieldError> for No {
    fn from(error: FieldError) -> Self {
        Self(Box::new(error.into()))
    }
}

impl IntoResponse for No {
    fn into_response(self) -> Response {
        let problem = *self.0;
        let mut response = json(problem.status, &problem);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_CONTENT_TYPE));
        if let Some(seconds) = problem.retry_after_seconds() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A JSON response of this status.
pub(crate) fn json(status: u16, body: &impl serde::Serialize) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, axum::Json(body)).into_response()
}

/// Reads a whole body within its bounds and checks it.
pub(crate) async fn read<T: Body>(request: Request) -> Result<T, No> {
    let bytes: Bytes = match timeout(
        BODY_TIMEOUT,
        axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX),
    )
    .await
    {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let detail = format!("the body broke off or is above {BODY_BYTES_MAX} bytes");
            return Err(No::new(RefusalCode::PayloadTooLarge, detail));
        }
        Err(_) => {
            let detail = format!("no whole body within {} s", BODY_TIMEOUT.as_secs());
            return Err(No::new(RefusalCode::InvalidRequest, detail));
        }
    };
    Ok(parse(&bytes)?)
}

/// Lets in who knows the secret, as many at once as the agent takes.
async fn admit(
    State((shared, handle)): State<(Arc<Shared>, Handle<SocketAddr>)>,
    request: Request,
    next: Next,
) -> Response {
    if !shared.knows_secret(&request) {
        let detail = "the host's secret is needed as a bearer token";
        return No::new(RefusalCode::Unauthenticated, detail).into_response();
    }
    if shared.closing.load(Ordering::Acquire) {
        let detail = "the agent is shutting down; its guests stay";
        return No::new(RefusalCode::Overloaded, detail).into_response();
    }
    let permit: Option<OwnedSemaphorePermit> =
        Arc::clone(&shared.requests).try_acquire_owned().ok();
    if permit.is_none() || handle.connection_count() > CONNECTIONS_MAX {
        shared.metrics.busy();
        return No::busy().into_response();
    }
    let response = next.run(request).await;
    drop(permit);
    response
}

/// The agent's router.
fn router(shared: &Arc<Shared>, handle: &Handle<SocketAddr>) -> Router {
    let guarded = routes::guarded()
        .layer(from_fn_with_state((Arc::clone(shared), handle.clone()), admit))
        .with_state(Arc::clone(shared));
    Router::new().route("/healthz", axum::routing::get(async || "ok\n")).merge(guarded).layer(
        CatchPanicLayer::custom(|_| {
            No::new(ProblemCode::Internal, "a fault of the agent").into_response()
        }),
    )
}

/// A server that runs.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    handle: Handle<SocketAddr>,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

impl Server {
    /// Listens and serves. What listens already is taken over, so that nobody can take the port
    /// between its choice and its use.
    pub(crate) async fn start(
        shared: &Arc<Shared>,
        listener: std::net::TcpListener,
        tls: Option<&TlsFiles>,
    ) -> Result<Self, ServeError> {
        let address = listener
            .local_addr()
            .map_err(|source| ServeError::Listen { address: ([0, 0, 0, 0], 0).into(), source })?;
        let fail = |source| ServeError::Listen { address, source };
        let handle = Handle::new();
        let service = router(shared, &handle).into_make_service();
        let task = match tls {
            None => {
                let server = axum_server::from_tcp(listener).map_err(fail)?;
                let mut server = server.handle(handle.clone()).http1_only();
                bound_heads(server.http_builder());
                tokio::spawn(server.serve(service))
            }
            Some(files) => {
                // An error means that the process has chosen a provider already.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let config = RustlsConfig::from_pem_file(&files.certificate, &files.key)
                    .await
                    .map_err(|source| ServeError::Tls { files: files.clone(), source })?;
                let server = axum_server::from_tcp_rustls(listener, config).map_err(fail)?;
                let mut server = server.handle(handle.clone()).http1_only();
                bound_heads(server.http_builder());
                tokio::spawn(server.serve(service))
            }
        };
        Ok(Self { address, handle, task })
    }

    /// Lets what is under way finish for at most `grace`, then closes.
    pub(crate) async fn stop(self, grace: Duration) {
        self.handle.graceful_shutdown(Some(grace));
        // How the listener ended does not matter any more.
        let _ = self.task.await;
    }
}

fn bound_heads(
    builder: &mut hyper_util::server::conn::auto::Builder<hyper_util::rt::TokioExecutor>,
) {
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
}

/// Binds the address that the agent listens on.
pub(crate) fn bind(address: SocketAddr) -> Result<std::net::TcpListener, ServeError> {
    let fail = |source| ServeError::Listen { address, source };
    let listener = std::net::TcpListener::bind(address).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(listener)
}
