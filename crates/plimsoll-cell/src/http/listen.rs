//! The listener: connections in, bounded in number and patience.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::{IntoResponse as _, Response};
use axum_server::accept::Accept as _;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use plimsoll_api::ProblemCode;
use plimsoll_types::RefusalCode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tower::Service as _;

use super::Reject;
use super::reply::RefusedOutside;
use crate::config::{HttpLimits, TlsFiles};

/// After a failed accept (no descriptors left, say) the listener waits this long: long enough not
/// to spin, short enough that nobody notices.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Is told of every refusal that was made outside the engine.
pub(crate) type Refused = Arc<dyn Fn(RefusalCode) + Send + Sync>;

/// Why the cell does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken, or not this machine's.
    #[error("{address} cannot be listened on")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Beyond loopback, keys and guests' data would travel in the clear.
    #[error(
        "{address} is reachable from other machines and no TLS certificate is set: set one, or \
         allow plain HTTP with --insecure"
    )]
    Plain {
        /// The address.
        address: SocketAddr,
    },
    /// The TLS files do not serve.
    #[error("the TLS certificate {certificate} or its key is not usable")]
    Tls {
        /// The certificate's file.
        certificate: String,
        /// Why.
        source: io::Error,
    },
}

/// A listener at work.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Binds and serves.
    ///
    /// # Errors
    /// When the address or the TLS files do not serve.
    pub(crate) async fn start(
        address: SocketAddr,
        tls: Option<&TlsFiles>,
        insecure: bool,
        limits: &HttpLimits,
        router: Router,
        refused: Refused,
    ) -> Result<Self, ServeError> {
        if tls.is_none() && !insecure && !address.ip().is_loopback() {
            return Err(ServeError::Plain { address });
        }
        let tls = match tls {
            Some(files) => Some(tls_acceptor(files, limits.head_timeout).await?),
            None => None,
        };
        let bind = |source| ServeError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve(listener, tls, limits.clone(), (router, refused), stopped));
        Ok(Self { address, stop, task })
    }

    /// The address bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, and waits a bounded time for calls under way.
    pub(crate) async fn shutdown(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the listener failed");
        }
    }
}

async fn tls_acceptor(files: &TlsFiles, limit: Duration) -> Result<RustlsAcceptor, ServeError> {
    let config = RustlsConfig::from_pem_file(&files.certificate, &files.key).await;
    let certificate = files.certificate.display().to_string();
    let config = config.map_err(|source| ServeError::Tls { certificate, source })?;
    Ok(RustlsAcceptor::new(config).handshake_timeout(limit))
}

async fn serve(
    listener: TcpListener,
    tls: Option<RustlsAcceptor>,
    limits: HttpLimits,
    (router, refused): (Router, Refused),
    mut stopped: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let graceful = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.head_bytes_max.max(8_192))
        .pipeline_flush(true);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            // Closed at once: to answer it would cost what the bound is there to save.
            continue;
        };
        // Small answers must not wait for an acknowledgement. A connection that is gone already
        // fails later by itself.
        let _ = stream.set_nodelay(true);
        let watcher = graceful.watcher();
        let (http, tls) = (http.clone(), tls.clone());
        let routes = (router.clone(), Arc::clone(&refused));
        connections.spawn(async move {
            match tls {
                None => connection(&http, stream, routes, watcher).await,
                Some(tls) => secured(&http, stream, &tls, routes, watcher).await,
            }
            drop(place);
        });
    }
    drop(listener);
    if timeout(limits.drain_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("calls were still under way at the end of the drain and are dropped");
        connections.shutdown().await;
    }
}

async fn secured(
    http: &http1::Builder,
    stream: TcpStream,
    tls: &RustlsAcceptor,
    routes: (Router, Refused),
    watcher: Watcher,
) {
    match tls.accept(stream, ()).await {
        Ok((stream, _)) => connection(http, stream, routes, watcher).await,
        Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
    }
}

async fn connection(
    http: &http1::Builder,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    (router, refused): (Router, Refused),
    watcher: Watcher,
) {
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        answer(router.clone(), &refused, request.map(Body::new))
    });
    let connection = watcher.watch(http.serve_connection(TokioIo::new(stream), service));
    if let Err(error) = connection.await {
        // Clients break off, time out and send what is no HTTP; none of it is news.
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Routes one request. A panic in a handler costs its caller an error and nobody else anything.
async fn answer(
    mut router: Router,
    refused: &Refused,
    request: Request<Body>,
) -> Result<Response, Infallible> {
    let answer = AssertUnwindSafe(router.call(request)).catch_unwind();
    let answer = answer.await.unwrap_or_else(|_| {
        tracing::error!("a handler panicked");
        let detail = "the cell failed to answer; the fault is logged";
        Ok(Reject::new(ProblemCode::Internal, detail).into_response())
    });
    if let Ok(response) = &answer
        && let Some(RefusedOutside(code)) = response.extensions().get()
    {
        refused(*code);
    }
    answer
}
