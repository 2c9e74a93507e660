//! Webhooks: real receivers, the clock of retries moved by hand.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_store::MemoryStore;
use plimsoll_types::{Millis, Timestamp};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{PATIENCE, Tested, config, until};
use crate::webhooks::Time;
use crate::{CellConfig, start};

const START: Timestamp = Timestamp(1_800_000_000_000);
const HOUR: Millis = Millis(3_600_000);

/// One request that a receiver got.
#[derive(Clone, Debug)]
struct Got {
    id: String,
    timestamp: i64,
    signatures: String,
    body: Bytes,
    answered: u16,
}

/// What a receiver got, and what it answers.
#[derive(Debug)]
struct Shared {
    got: Mutex<Vec<Got>>,
    status: watch::Sender<u16>,
}

/// A receiver of webhooks that answers as it is told.
#[derive(Clone, Debug)]
struct Receiver {
    shared: Arc<Shared>,
    url: String,
}

/// A status at which the receiver does not answer at all until it is told another one.
const SILENT: u16 = 0;

impl Receiver {
    async fn start(status: u16) -> Self {
        let shared = Arc::new(Shared { got: Mutex::default(), status: watch::Sender::new(status) });
        let router = Router::new().fallback(receive).with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { shared, url }
    }

    fn answers(&self, status: u16) {
        self.shared.status.send_replace(status);
    }

    fn got(&self) -> Vec<Got> {
        self.shared.got.lock().unwrap().clone()
    }

    /// Ids in the order of their first acceptance.
    fn taken(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let taken = self.got().into_iter().filter(|got| got.answered < 300);
        taken.map(|got| got.id).filter(|id| seen.insert(id.clone())).collect()
    }
}

async fn receive(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let answered = *shared.status.borrow();
    shared.got.lock().unwrap().push(Got {
        id: header("webhook-id"),
        timestamp: header("webhook-timestamp").parse().unwrap(),
        signatures: header("webhook-signature"),
        body,
        answered,
    });
    if answered == SILENT {
        let _ = shared.status.subscribe().wait_for(|status| *status != SILENT).await;
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let status = StatusCode::from_u16(answered).unwrap();
    (status, [("location", "/elsewhere")], "x".repeat(20_000)).into_response()
}

/// HMAC-SHA256 by the definition in RFC 2104, so that the cell's is held against another.
fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    assert!(key.len() <= 64);
    let pad = |with: u8| -> Vec<u8> {
        (0..64).map(|at| key.get(at).copied().unwrap_or(0) ^ with).collect()
    };
    let inner = Sha256::digest([pad(0x36), message.to_vec()].concat());
    Sha256::digest([pad(0x5c), inner.to_vec()].concat()).to_vec()
}

fn is_signed_with(got: &Got, secret: &str) -> bool {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let message = [format!("{}.{}.", got.id, got.timestamp).as_bytes(), &got.body].concat();
    let wanted = format!("v1,{}", STANDARD.encode(hmac(&key, &message)));
    got.signatures.split(' ').any(|signature| signature == wanted)
}

fn allow(clock: &watch::Sender<Timestamp>) -> impl FnOnce(&mut CellConfig) {
    let clock = clock.clone();
    move |config| {
        config.webhooks_private = true;
        config.webhook_time = Time::Manual(clock);
    }
}

fn clock() -> watch::Sender<Timestamp> {
    watch::Sender::new(START)
}

async fn over_sqlite(folder: TempDir, clock: &watch::Sender<Timestamp>) -> Tested {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut config = config(folder.path());
        allow(clock)(&mut config);
        match start(config).await {
            Ok(cell) => {
                cell.ready().await.unwrap();
                let client = reqwest::Client::builder().no_proxy().build().unwrap();
                return Tested { cell, folder, client };
            }
            // The cell before it was dropped and is still letting go of the file.
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// An operator's endpoint, which hears of everything.
async fn endpoint(cell: &Tested, url: &str, events: Value) -> Value {
    let body = json!({ "url": url, "events": events });
    cell.admin(Method::POST, "/v1/webhooks/endpoints", body).await.expect(201).body
}

async fn shown(cell: &Tested, made: &Value) -> Value {
    let path = format!("/v1/webhooks/endpoints/{}", made["id"].as_str().unwrap());
    cell.admin(Method::GET, &path, Value::Null).await.expect(200).body
}

/// Every event of a kind, as pulled.
async fn events(cell: &Tested, kind: &str) -> Vec<String> {
    let path = format!("/v1/events?limit=1000&type={kind}");
    let page = cell.admin(Method::GET, &path, Value::Null).await.expect(200).body;
    let items = page["items"].as_array().unwrap();
    items.iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect()
}

/// Moves the clock until a receiver got something more, or has what it is to have.
async fn next_attempt(clock: &watch::Sender<Timestamp>, receiver: &Receiver, step: Millis) {
    let before = receiver.got().len();
    until("the next attempt", || async {
        clock.send_modify(|now| *now = *now + step);
        receiver.got().len() > before
    })
    .await;
}

/// I11 and public failure Q4: the receiver is down for an hour, the cell dies in between; every
/// event arrives, in order, under the same id on every attempt, and signed.
#[tokio::test(flavor = "multi_thread")]
async fn an_hour_of_outage_and_a_dead_cell_lose_nothing() {
    let clock = clock();
    let receiver = Receiver::start(503).await;
    let folder = tempfile::tempdir().unwrap();
    let cell = over_sqlite(folder, &clock).await;
    let made = endpoint(&cell, &receiver.url, json!(["host.enrolled"])).await;
    let secret = made["secret"].as_str().unwrap().to_owned();
    for host in 1..=20 {
        cell.beat(&format!("h{host}"), 1, 8192).await;
    }
    until("a first attempt", || async { !receiver.got().is_empty() }).await;
    for _ in 0..3 {
        next_attempt(&clock, &receiver, Millis(1_000)).await;
    }
    until("the log has the attempts", || async { log(&cell, &made).await.len() >= 4 }).await;
    assert!(shown(&cell, &made).await["failing_since"].is_string());

    // No shutdown: what was not durable is gone.
    let Tested { cell: dying, folder, .. } = cell;
    drop(dying);
    clock.send_modify(|now| *now = *now + Millis(60_000));
    let cell = over_sqlite(folder, &clock).await;
    for host in 21..=30 {
        cell.beat(&format!("h{host}"), 1, 8192).await;
    }
    while clock.borrow().since(START) < HOUR {
        next_attempt(&clock, &receiver, Millis(10_000)).await;
    }
    let attempts = receiver.got();
    assert!(attempts.len() <= 12, "the wait was not kept over the restart: {}", attempts.len());
    receiver.answers(200);
    clock.send_modify(|now| *now = *now + HOUR + HOUR);

    let wanted = events(&cell, "host.enrolled").await;
    assert_eq!(wanted.len(), 30);
    until("everything arrives", || {
        // An attempt whose answer was on its way while the clock jumped is due later still.
        clock.send_modify(|now| *now = *now + Millis(60_000));
        async { receiver.taken().len() == 30 }
    })
    .await;
    assert_eq!(receiver.taken(), wanted);
    assert!(attempts.iter().all(|got| got.id == wanted[0]), "overtaken while the first waits");
    for got in receiver.got() {
        assert!(is_signed_with(&got, &secret), "{got:?}");
        assert!(!is_signed_with(&got, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"));
        let body: Value = serde_json::from_slice(&got.body).unwrap();
        assert_eq!((&body["id"], &body["type"]), (&json!(got.id), &json!("host.enrolled")));
    }
    until("the outage is over", || async { shown(&cell, &made).await["failing_since"].is_null() })
        .await;
    let sample = r#"plimsoll_webhook_deliveries_total{outcome="delivered"}"#;
    assert_eq!(cell.metric(sample).await, Some(30.0));
}

async fn log(cell: &Tested, made: &Value) -> Vec<Value> {
    let path =
        format!("/v1/webhooks/endpoints/{}/deliveries?limit=1000", made["id"].as_str().unwrap());
    let page = cell.admin(Method::GET, &path, Value::Null).await.expect(200).body;
    page["items"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_receivers_delay_no_other() {
    let clock = clock();
    let cell = Tested::over(MemoryStore::new(), allow(&clock)).await;
    let (silent, down) = (Receiver::start(SILENT).await, Receiver::start(500).await);
    let works = Receiver::start(204).await;
    for receiver in [&silent, &down] {
        for _ in 0..20 {
            endpoint(&cell, &receiver.url, json!([])).await;
        }
    }
    endpoint(&cell, &works.url, json!(["host.enrolled"])).await;
    for host in 1..=50 {
        cell.beat(&format!("h{host}"), 1, 8192).await;
    }
    let wanted = events(&cell, "host.enrolled").await;
    until("the one that works has all", || async { works.taken().len() == 50 }).await;
    assert_eq!(works.taken(), wanted);
    let tried: BTreeSet<_> = silent.got().into_iter().map(|got| got.id).collect();
    assert!(tried.len() <= 1, "an event overtook the one before it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_gone_is_switched_off_at_once_and_can_be_switched_on() {
    let clock = clock();
    let cell = Tested::over(MemoryStore::new(), allow(&clock)).await;
    let (gone, watching) = (Receiver::start(410).await, Receiver::start(200).await);
    let made = endpoint(&cell, &gone.url, json!(["host.enrolled"])).await;
    endpoint(&cell, &watching.url, json!(["webhook.disabled"])).await;
    cell.beat("h1", 1, 8192).await;
    until("it is off", || async { shown(&cell, &made).await["enabled"] == false }).await;
    let row = shown(&cell, &made).await;
    assert_eq!(row["disabled_reason"], "the receiver answered 410 Gone");
    until("others hear of it", || async { !watching.taken().is_empty() }).await;
    let told: Value = serde_json::from_slice(&watching.got()[0].body).unwrap();
    assert_eq!(told["data"]["endpoint"], made["id"]);
    assert_eq!(gone.got().len(), 1);

    cell.beat("h2", 1, 8192).await;
    gone.answers(200);
    let path = format!("/v1/webhooks/endpoints/{}", made["id"].as_str().unwrap());
    let on = cell.admin(Method::PATCH, &path, json!({ "enabled": true })).await.expect(200);
    assert!(on.body.get("secret").is_none());
    until("what waited arrives", || async { gone.taken().len() == 2 }).await;
    assert_eq!(gone.taken(), events(&cell, "host.enrolled").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_given_up_on_after_a_day_and_an_endpoint_after_three() {
    let clock = clock();
    let cell = Tested::over(MemoryStore::new(), allow(&clock)).await;
    let receiver = Receiver::start(302).await;
    let made = endpoint(&cell, &receiver.url, json!(["host.enrolled"])).await;
    for host in 1..=5 {
        cell.beat(&format!("h{host}"), 1, 8192).await;
    }
    until("it is off", || async {
        clock.send_modify(|now| *now = *now + Millis(600_000));
        shown(&cell, &made).await["enabled"] == false
    })
    .await;
    let log = log(&cell, &made).await;
    let given_up = log.iter().filter(|row| row["state"] == "failed").count();
    assert!((3..=5).contains(&given_up), "{given_up}");
    assert!(log[1]["last_error"].as_str().unwrap().contains("redirects are not followed"));
    let tried: BTreeSet<_> = receiver.got().into_iter().map(|got| got.id).collect();
    assert!(tried.len() >= 3 && tried.len() <= 5, "{}", tried.len());
    assert!(receiver.got().iter().all(|got| !got.id.is_empty()));
    let sample = r#"plimsoll_webhook_deliveries_total{outcome="given_up"}"#;
    assert_eq!(cell.metric(sample).await, Some(given_up as f64));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_secret_stays_valid_for_a_day() {
    let clock = clock();
    let cell = Tested::over(MemoryStore::new(), allow(&clock)).await;
    let receiver = Receiver::start(200).await;
    let made = endpoint(&cell, &receiver.url, json!(["host.enrolled"])).await;
    let old = made["secret"].as_str().unwrap();
    let path = format!("/v1/webhooks/endpoints/{}", made["id"].as_str().unwrap());
    let turned = cell.admin(Method::PATCH, &path, json!({ "rotate_secret": true })).await;
    let turned = turned.expect(200).body;
    let new = turned["secret"].as_str().unwrap();
    assert_ne!(old, new);
    assert!(shown(&cell, &made).await.get("secret").is_none());
    let test = |wanted: (bool, bool)| {
        let (cell, path, receiver) = (&cell, &path, &receiver);
        async move {
            let tested = cell.admin(Method::POST, &format!("{path}/test"), Value::Null).await;
            let tested = tested.expect(200).body;
            assert_eq!(
                (&tested["state"], &tested["last_status"]),
                (&json!("delivered"), &json!(200))
            );
            let got = receiver.got().pop().unwrap();
            assert_eq!(got.id, tested["event_id"].as_str().unwrap());
            assert_eq!((is_signed_with(&got, old), is_signed_with(&got, new)), wanted);
        }
    };
    test((true, true)).await;
    clock.send_modify(|now| *now = *now + Millis(24 * HOUR.get()));
    test((false, true)).await;
    assert_eq!(log(&cell, &made).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_inside_unless_the_operator_allows_it() {
    let cell = Tested::over(MemoryStore::new(), |_| {}).await;
    for url in ["https://localhost/x", "https://127.1/x", "http://example.com/x"] {
        let body = json!({ "url": url });
        cell.post("/v1/webhooks/endpoints", body).await.expect_code(400, "invalid_request");
    }
    // An endpoint that was made while it was allowed.
    let (clock, receiver) = (clock(), Receiver::start(200).await);
    let store = MemoryStore::new();
    let open = Tested::over(store.clone(), allow(&clock)).await;
    let made = endpoint(&open, &receiver.url, json!([])).await;
    open.cell.shutdown().await;
    let shut = Tested::over_in(open.folder, store, |_| {}).await;
    let path = format!("/v1/webhooks/endpoints/{}/test", made["id"].as_str().unwrap());
    let tested = shut.admin(Method::POST, &path, Value::Null).await.expect(200).body;
    assert_eq!(tested["state"], "failed");
    assert!(tested["last_error"].as_str().unwrap().contains("public"), "{tested}");
    assert!(receiver.got().is_empty());
}
