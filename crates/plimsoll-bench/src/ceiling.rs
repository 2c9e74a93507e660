//! The ceiling: an axum handler that does nothing, on the same machine in the same run.

use std::net::SocketAddr;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A server whose only handler answers 201 with an empty body.
#[derive(Debug)]
pub struct Empty {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Empty {
    /// Listens on a free port of the loopback address.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/v1/reservations", post(async |_: axum::body::Bytes| StatusCode::CREATED));
        let task = tokio::spawn(async move {
            // Ends with the task; an error of one connection is that connection's own.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, task })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Empty {
    fn drop(&mut self) {
        self.task.abort();
    }
}
