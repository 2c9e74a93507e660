//! The listener's bounds, the start, and the shutdown.

use std::time::Duration;

use plimsoll_store::MemoryStore;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{PATIENCE, Tested, config, until};
use crate::{ServeError, StartError, StoreUrl, TlsFiles, start};

async fn connect(cell: &Tested) -> TcpStream {
    TcpStream::connect(cell.cell.address()).await.unwrap()
}

/// Reads until the other side closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut text)).await;
    let _ = read.expect("the connection stays open");
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_drip_are_cut_off() {
    let short = |config: &mut crate::CellConfig| {
        config.limits.head_timeout = Duration::from_millis(100);
        config.limits.body_timeout = Duration::from_millis(100);
    };
    let cell = Tested::over(MemoryStore::new(), short).await;
    let mut drips = connect(&cell).await;
    drips.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    rest(&mut drips).await;
    let mut idle = connect(&cell).await;
    rest(&mut idle).await;
    // A body that does not come is answered, and then cut off.
    let mut body = connect(&cell).await;
    let head = format!(
        "POST /v1/reservations HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-length: 100\r\n\r\n{{",
        cell.key("operator")
    );
    body.write_all(head.as_bytes()).await.unwrap();
    let answer = rest(&mut body).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains(r#""field":"body""#), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_too_many_is_closed() {
    let two = |config: &mut crate::CellConfig| config.limits.connections_max = 2;
    let cell = Tested::over(MemoryStore::new(), two).await;
    let (mut one, mut other) = (connect(&cell).await, connect(&cell).await);
    for stream in [&mut one, &mut other] {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
    assert_eq!(rest(&mut connect(&cell).await).await, "");
    drop(one);
    until("there is room again", || async {
        let mut stream = connect(&cell).await;
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_heads_are_refused() {
    let cell = Tested::memory().await;
    let mut large = connect(&cell).await;
    let head = format!("GET /healthz HTTP/1.1\r\nx-long: {}", "x".repeat(33 << 10));
    large.write_all(head.as_bytes()).await.unwrap();
    // What was not read resets the connection, which may take the answer with it.
    let answer = rest(&mut large).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn plain_http_stays_on_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.store = StoreUrl::Memory;
    config.listen = "0.0.0.0:0".parse().unwrap();
    let error = start(config.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::Serve(ServeError::Plain { .. })), "{error}");
    assert!(error.to_string().contains("--insecure"), "{error}");
    let file = folder.path().join("nothing.pem");
    config.tls = Some(TlsFiles { certificate: file.clone(), key: file });
    let error = start(config.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::Serve(ServeError::Tls { .. })), "{error}");
    config.tls = None;
    config.insecure = true;
    let cell = start(config).await.unwrap();
    cell.ready().await.unwrap();
    cell.shutdown().await;
}

#[tokio::test]
async fn a_store_that_cannot_be_used_is_known_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.store = "postgres://localhost/cell".parse().unwrap();
    let error = start(config.clone()).await.unwrap_err();
    assert!(error.to_string().contains("not built yet"), "{error}");
    config.store = StoreUrl::Sqlite(folder.path().join("cell.sqlite"));
    let cell = start(config.clone()).await.unwrap();
    let second = start(config.clone()).await.unwrap_err();
    assert!(matches!(second, StartError::Store(_)), "{second}");
    cell.shutdown().await;
    // The lock went with the cell.
    let again = start(config).await.unwrap();
    again.ready().await.unwrap();
    again.shutdown().await;
}

/// A shutdown waits a bounded time for calls under way, and those that it drops leave nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_drops_who_waits_and_keeps_nothing_of_theirs() {
    let store = MemoryStore::new();
    let short = |config: &mut crate::CellConfig| {
        config.limits.drain_timeout = Duration::from_millis(50);
    };
    let cell = Tested::over(store.clone(), short).await;
    cell.beat("h1", 1, 0).await;
    let waits = json!({ "template": "shell", "wait_seconds": 600 });
    let request = cell.request(Method::POST, "/v1/sandboxes").json(&waits);
    let waiting = tokio::spawn(request.bearer_auth(cell.key("tenant-default")).send());
    until("it waits", || async {
        cell.metric(r#"plimsoll_sandboxes{state="queued"}"#).await == Some(1.0)
    })
    .await;
    let folder = cell.stop().await;
    assert!(waiting.await.unwrap().is_err(), "the connection was dropped");
    let cell = Tested::over_in(folder, store, |_| {}).await;
    let list = cell.admin(Method::GET, "/v1/sandboxes", Value::Null).await.expect(200);
    assert_eq!(list.body["items"], json!([]));
}
