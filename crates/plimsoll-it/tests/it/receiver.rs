//! A receiver of webhooks, outside every process that is under test.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// One request that it got.
#[derive(Clone, Debug)]
pub struct Got {
    /// `webhook-id`.
    pub id: String,
    /// The path that it was sent to.
    pub path: String,
    timestamp: String,
    signatures: String,
    body: Bytes,
}

impl Got {
    pub fn event(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn kind(&self) -> String {
        self.event()["type"].as_str().unwrap().to_owned()
    }

    /// Whether it is signed with this secret as the Standard Webhooks convention has it.
    pub fn is_signed_with(&self, secret: &str) -> bool {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        self.signatures.split(' ').any(|signature| {
            let Some(signature) = signature.strip_prefix("v1,") else { return false };
            let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
            mac.update(format!("{}.{}.", self.id, self.timestamp).as_bytes());
            mac.update(&self.body);
            mac.verify_slice(&STANDARD.decode(signature).unwrap()).is_ok()
        })
    }
}

type Shared = Arc<Mutex<Vec<Got>>>;

/// A receiver that answers 200.
pub struct Receiver {
    pub address: SocketAddr,
    got: Shared,
    task: JoinHandle<()>,
}

impl Receiver {
    pub async fn start() -> Self {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// An address at which nobody listens yet.
    pub async fn nobody() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    pub async fn at(address: SocketAddr) -> Self {
        let got = Shared::default();
        let router = Router::new().fallback(receive).with_state(Arc::clone(&got));
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, got, task }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    /// Events of this kind that came to this path.
    pub fn of(&self, path: &str, kind: &str) -> Vec<Value> {
        let got = self.got().into_iter().filter(|got| got.path == path && got.kind() == kind);
        got.map(|got| got.event()).collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn receive(
    State(shared): State<Shared>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    shared.lock().unwrap().push(Got {
        id: header("webhook-id"),
        path: uri.path().to_owned(),
        timestamp: header("webhook-timestamp"),
        signatures: header("webhook-signature"),
        body,
    });
    StatusCode::OK
}
