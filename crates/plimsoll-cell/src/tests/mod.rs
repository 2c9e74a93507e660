//! A real cell on a port of its own, asked over HTTP.

mod admin;
mod agent;
mod bad_input;
mod counting;
mod edges;
mod failure;
mod first_answers;
mod roles;
mod routes;
mod sandboxes;
mod webhooks;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use plimsoll_store::{MemoryStore, Store};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cell::{Cell, start_over};
use crate::{CellConfig, StoreUrl, start};

/// No condition of these tests takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cell under test.
struct Tested {
    cell: Cell,
    folder: TempDir,
    client: Client,
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: reqwest::header::HeaderMap,
    body: Value,
    text: String,
}

impl Answer {
    fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    #[track_caller]
    fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self
    }

    #[track_caller]
    fn expect_code(self, status: u16, code: &str) -> Self {
        let answer = self.expect(status);
        assert_eq!(answer.code(), code, "{}", answer.text);
        let kind = answer.headers.get("content-type").unwrap().to_str().unwrap();
        assert_eq!(kind, "application/problem+json");
        answer
    }
}

fn config(folder: &Path) -> CellConfig {
    let mut config = CellConfig::new(folder);
    config.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config
}

impl Tested {
    /// A cell in memory.
    async fn memory() -> Self {
        Self::over(MemoryStore::new(), |_| {}).await
    }

    /// A cell over this store, with these settings.
    async fn over(store: MemoryStore, set: impl FnOnce(&mut CellConfig)) -> Self {
        Self::over_in(tempfile::tempdir().unwrap(), store, set).await
    }

    /// The same with its data in this folder.
    async fn over_in(
        folder: TempDir,
        store: MemoryStore,
        set: impl FnOnce(&mut CellConfig),
    ) -> Self {
        let mut config = config(folder.path());
        config.store = StoreUrl::Memory;
        set(&mut config);
        let opener = move |_| Ok(Box::new(store.clone()) as Box<dyn Store>);
        let cell = start_over(config, Box::new(opener)).await.unwrap();
        cell.ready().await.unwrap();
        Self { cell, folder, client: Client::builder().no_proxy().build().unwrap() }
    }

    /// A cell over SQLite.
    async fn sqlite() -> Self {
        Self::again(tempfile::tempdir().unwrap()).await
    }

    /// A cell over the SQLite file of this folder.
    async fn again(folder: TempDir) -> Self {
        let cell = start(config(folder.path())).await.unwrap();
        cell.ready().await.unwrap();
        Self { cell, folder, client: Client::builder().no_proxy().build().unwrap() }
    }

    async fn stop(self) -> TempDir {
        self.cell.shutdown().await;
        self.folder
    }

    fn key(&self, name: &str) -> String {
        let path = self.folder.path().join(format!("{name}.key"));
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.cell.address()))
    }

    async fn send(request: RequestBuilder) -> Answer {
        let response = tokio::time::timeout(PATIENCE, request.send()).await.unwrap().unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { status, headers, body, text }
    }

    /// Calls under one of the keys of the first start.
    async fn call(&self, key: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
        let mut request = self.request(method, path).bearer_auth(self.key(key));
        if let Some(body) = body {
            request = request.json(&body);
        }
        Self::send(request).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("tenant-default", Method::POST, path, Some(body)).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.call("tenant-default", Method::GET, path, None).await
    }

    async fn admin(&self, method: Method, path: &str, body: Value) -> Answer {
        let body = (!body.is_null()).then_some(body);
        self.call("operator", method, path, body).await
    }

    /// A heartbeat of a host without an agent.
    async fn beat(&self, host: &str, sequence: u64, admittable_mib: i64) -> Answer {
        let body = json!({
            "boot_id": "b1", "sequence": sequence, "heartbeat_at": "2026-01-01T00:00:00Z",
            "pool": "local", "cpu_millis_total": 16000, "cpu_millis_used": 0,
            "memory_mib_total": 65536, "memory_mib_used": 1024,
            "memory_mib_admittable": admittable_mib, "guests": [], "complete": true,
        });
        let path = format!("/v1/hosts/{host}/heartbeat");
        self.call("host", Method::POST, &path, Some(body)).await.expect(200)
    }

    async fn reserve(&self, key: &str, memory_mib: u64) -> Answer {
        let body = json!({ "key": key, "memory_mib": memory_mib, "vcpus": 1 });
        self.post("/v1/reservations", body).await
    }

    /// The value of a sample of `/metrics`.
    async fn metric(&self, sample: &str) -> Option<f64> {
        let text = Self::send(self.request(Method::GET, "/metrics")).await.expect(200).text;
        let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.map(|value| value.parse().unwrap())
    }
}

/// Waits for a condition, asked again and again.
async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
