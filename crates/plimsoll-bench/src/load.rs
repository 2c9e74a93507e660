//! Connections that reserve as fast as they are answered, or at a fixed rate.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::figures::{Figures, Outcome};

/// Where to send, and as whom.
#[derive(Clone, Debug)]
pub struct Target {
    /// Address of the cell. Loopback only.
    pub address: SocketAddr,
    /// Key of a tenant.
    pub key: String,
    /// Pool to reserve in.
    pub pool: String,
    /// Told apart from earlier runs by this: part of every key.
    pub run: u64,
}

/// What one request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One reservation.
    Single,
    /// So many in one batch.
    Batch(u32),
}

/// When the next request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// When the last one is answered.
    Closed,
    /// At so many requests a second over all connections; latency counts from the time at which a
    /// request was due, so that a slow answer cannot hide those behind it.
    Open(u64),
}

/// Why a load could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Load goes to loopback only.
    #[error("{0} is no loopback address: load goes to this machine only")]
    NotLoopback(SocketAddr),
    /// No connection.
    #[error("connecting to {address}: {source}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// No request can be built.
    #[error("building a request: {0}")]
    Request(#[from] hyper::http::Error),
    /// The connection broke.
    #[error("{0}")]
    Broken(#[from] hyper::Error),
}

/// Sends reservations for `length` over so many connections.
///
/// # Errors
/// When the address is not loopback or no connection can be had. What breaks later is counted.
pub async fn load(
    name: &str,
    target: &Target,
    shape: Shape,
    pace: Loop,
    connections: u32,
    length: Duration,
) -> Result<Figures, LoadError> {
    if !target.address.ip().is_loopback() {
        return Err(LoadError::NotLoopback(target.address));
    }
    let mut senders = Vec::new();
    for _ in 0..connections {
        senders.push(connect(target.address).await?);
    }
    let next = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let mut tasks = Vec::new();
    for sender in senders {
        let (target, next) = (target.clone(), Arc::clone(&next));
        tasks.push(tokio::spawn(connection(sender, target, shape, pace, next, begin, length)));
    }
    let mut all = Outcome::default();
    for task in tasks {
        match task.await {
            Ok(outcome) => all.absorb(outcome),
            Err(error) => {
                all.absorb(Outcome { broken: Some(error.to_string()), ..Outcome::default() });
            }
        }
    }
    let items = match shape {
        Shape::Single => 1,
        Shape::Batch(items) => u64::from(items),
    };
    Ok(Figures::of(name, all, items, begin.elapsed()))
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, LoadError> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|source| LoadError::Connect { address, source })?;
    // A request is one small packet: waiting for more would only delay it.
    let _ = stream.set_nodelay(true);
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        // What breaks it shows at the sender.
        let _ = connection.await;
    });
    Ok(sender)
}

async fn connection(
    mut sender: SendRequest<Full<Bytes>>,
    target: Target,
    shape: Shape,
    pace: Loop,
    next: Arc<AtomicU64>,
    begin: Instant,
    length: Duration,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut body = String::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let due = match pace {
            Loop::Closed => Instant::now(),
            Loop::Open(rate) => {
                let due = begin
                    + Duration::from_nanos(number.saturating_mul(1_000_000_000 / rate.max(1)));
                tokio::time::sleep_until(due.into()).await;
                due
            }
        };
        if due.duration_since(begin) >= length {
            return outcome;
        }
        body.clear();
        let path = write_body(&mut body, &target, shape, number);
        match send(&mut sender, &target, path, &body).await {
            Ok(status) => outcome.answered(status, due.elapsed()),
            Err(error) => {
                outcome.broken = Some(error.to_string());
                return outcome;
            }
        }
    }
}

fn write_body(body: &mut String, target: &Target, shape: Shape, number: u64) -> &'static str {
    let item = |body: &mut String, place: u64| {
        // Writing to a string cannot fail.
        let _ = write!(
            body,
            r#"{{"key":"{:x}-{number}-{place}","memory_mib":512,"vcpus":1,"pool":"{}","ttl_seconds":30}}"#,
            target.run, target.pool
        );
    };
    match shape {
        Shape::Single => {
            item(body, 0);
            "/v1/reservations"
        }
        Shape::Batch(items) => {
            body.push_str(r#"{"items":["#);
            for place in 0..items {
                if place > 0 {
                    body.push(',');
                }
                item(body, u64::from(place));
            }
            body.push_str("]}");
            "/v1/reservations/batch"
        }
    }
}

async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    target: &Target,
    path: &str,
    body: &str,
) -> Result<u16, LoadError> {
    let request = Request::post(path)
        .header("host", "localhost")
        .header("authorization", format!("Bearer {}", target.key))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?;
    sender.ready().await?;
    let answer = sender.send_request(request).await?;
    let status = answer.status().as_u16();
    // The whole answer counts: a caller needs its body.
    answer.into_body().collect().await?;
    Ok(status)
}
