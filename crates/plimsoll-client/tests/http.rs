//! The client against a small server on loopback.
#![allow(clippy::unwrap_used, reason = "helpers of tests stop where a test cannot go on")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use plimsoll_api::{
    CreateSandbox, ExecRequest, Problem, ReserveMode, ReserveRequest, Sandbox, Secret, WaitQuery,
};
use plimsoll_client::{
    AgentClient, AgentError, AgentTarget, Client, ClientConfig, CreateOptions, Error, RetryPolicy,
    Waited,
};
use plimsoll_types::{
    Fence, HostCommand, HostOp, HostOutcome, Millis, PauseKind, RefusalCode, RetryHint, SandboxId,
    SandboxStatus, TemplateName,
};
use serde_json::json;
use tokio::net::TcpListener;

/// One request as the server saw it.
#[derive(Clone, Debug)]
struct Seen {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    at: Instant,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A server that answers from a script and remembers what it was asked.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Answers the nth request with `answer(n)`.
    async fn start(answer: impl Fn(usize) -> Response + Clone + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let app = Router::new().fallback(move |request: Request| {
            let (answer, log) = (answer.clone(), Arc::clone(&log));
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
                let (method, uri, headers) = (parts.method, parts.uri, parts.headers);
                let at = Instant::now();
                let number = {
                    let mut log = log.lock().unwrap();
                    log.push(Seen { method, uri, headers, body, at });
                    log.len() - 1
                };
                answer(number)
            }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, seen }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

/// A port on which nothing listens.
async fn dead_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn config(urls: &[String]) -> ClientConfig {
    let mut config = ClientConfig::new(urls).with_key(Secret::new("s3cret"));
    config.retry = RetryPolicy {
        base: Duration::from_millis(2),
        cap: Duration::from_millis(20),
        deadline: Duration::from_secs(20),
    };
    config
}

fn client(urls: &[String]) -> Client {
    Client::new(config(urls)).unwrap()
}

fn sandbox_json(status: &str) -> serde_json::Value {
    json!({
        "id": SandboxId(7).to_string(), "tenant": "default", "template": "shell",
        "status": status, "reason": null, "pool": "local", "host": null,
        "memory_mib": 512, "vcpus": 1, "stateful": false, "charge_mib": 512,
        "resident_mib": null, "measured": false, "slot_released": false, "priority": 0,
        "preemptible": true, "idled": false, "resume_requested_at": null,
        "created_at": "2026-09-08T11:04:22Z", "started_at": null, "last_active_at": null,
        "decision_id": null, "a_field_of_tomorrow": [1]
    })
}

fn sandbox(status: &str) -> Response {
    (StatusCode::CREATED, axum::Json(sandbox_json(status))).into_response()
}

fn problem(code: RefusalCode, retry_after: Option<&str>, millis: Option<u64>) -> Response {
    let mut problem = Problem::new(code, "said the script");
    if let Some(millis) = millis {
        problem = problem.with_retry(RetryHint::After(Millis(millis)));
    }
    let status = StatusCode::from_u16(problem.status).unwrap();
    let mut response = (status, axum::Json(problem)).into_response();
    if let Some(value) = retry_after {
        response.headers_mut().insert("retry-after", value.parse().unwrap());
    }
    response
}

fn shell() -> CreateSandbox {
    CreateSandbox::new(TemplateName::new("shell").unwrap())
}

#[tokio::test]
async fn a_retried_create_is_one_request_with_one_key() {
    let server = Server::start(|number| match number {
        0 => problem(RefusalCode::NoCapacity, None, None),
        1 => StatusCode::BAD_GATEWAY.into_response(),
        2 => StatusCode::GATEWAY_TIMEOUT.into_response(),
        3 => problem(RefusalCode::RateLimited, None, None),
        _ => sandbox("running"),
    })
    .await;
    let client = client(&[server.url()]);
    let made = client.create_sandbox(&shell(), &CreateOptions::default()).await.unwrap();
    assert_eq!((made.id, made.status), (SandboxId(7), SandboxStatus::Running));
    let seen = server.seen();
    assert_eq!(seen.len(), 5);
    let keys: BTreeSet<_> = seen.iter().map(|seen| seen.header("idempotency-key")).collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert!(keys.iter().next().unwrap().unwrap().len() >= 32);
    let seen_first = &seen[0];
    for seen in &seen {
        assert_eq!(seen.method, Method::POST);
        assert_eq!(seen.uri.path(), "/v1/sandboxes");
        assert_eq!(seen.header("authorization"), Some("Bearer s3cret"));
        assert_eq!(seen.body, seen_first.body);
    }
    client.create_sandbox(&shell(), &CreateOptions::default()).await.unwrap();
    let last = server.seen().pop().unwrap();
    assert!(!keys.contains(&last.header("idempotency-key")), "a new create has a new key");
}

#[tokio::test]
async fn the_callers_own_key_and_async_reach_the_server() {
    let server = Server::start(|_| sandbox("provisioning")).await;
    let options = CreateOptions { idempotency_key: Some("mine".into()), run_async: true };
    client(&[server.url()]).create_sandbox(&shell(), &options).await.unwrap();
    let seen = server.seen().remove(0);
    assert_eq!(seen.header("idempotency-key"), Some("mine"));
    assert_eq!(seen.uri.query(), Some("async=true"));
    let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(body["template"], "shell");
    let options = CreateOptions { idempotency_key: Some("not mine".into()), run_async: false };
    let error = client(&[server.url()]).create_sandbox(&shell(), &options).await.unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error}");
}

#[tokio::test]
async fn retry_after_is_a_floor_in_every_form() {
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let forms: [(Option<&str>, Option<u64>); 4] =
        [(Some("1"), None), (None, Some(1000)), (Some("1"), Some(300)), (Some(date), None)];
    for (header, millis) in forms {
        let (header, dated) = (header.map(String::from), header == Some(date));
        let server = Server::start(move |number| {
            if number > 0 {
                return sandbox("running");
            }
            let mut response = problem(RefusalCode::NoCapacity, header.as_deref(), millis);
            if dated {
                // One second before, by the server's own clock.
                let date = "Sun, 06 Nov 1994 08:49:36 GMT".parse().unwrap();
                response.headers_mut().insert("date", date);
            }
            response
        })
        .await;
        client(&[server.url()]).create_sandbox(&shell(), &CreateOptions::default()).await.unwrap();
        let seen = server.seen();
        let gap = seen[1].at - seen[0].at;
        assert!(gap >= Duration::from_secs(1), "{gap:?} with {millis:?}");
        assert!(gap < Duration::from_secs(5), "{gap:?} with {millis:?}");
    }
}

#[tokio::test]
async fn what_is_final_comes_back_at_once_with_its_problem() {
    let server = Server::start(|_| problem(RefusalCode::QuotaExceeded, None, None)).await;
    let error = client(&[server.url()])
        .create_sandbox(&shell(), &CreateOptions::default())
        .await
        .unwrap_err();
    assert_eq!(server.seen().len(), 1);
    assert_eq!((error.status(), error.code()), (Some(403), Some(RefusalCode::QuotaExceeded)));
    assert!(!error.is_transient());
    assert_eq!(error.to_string(), "quota_exceeded: said the script");
}

#[tokio::test]
async fn the_next_replica_is_asked_and_remembered() {
    let follower = Server::start(|_| problem(RefusalCode::NotLeader, Some("1"), None)).await;
    let leader = Server::start(|_| sandbox("running")).await;
    let urls = [dead_url().await, follower.url(), leader.url()];
    let client = client(&urls);
    let start = Instant::now();
    for _ in 0..3 {
        client.sandbox(SandboxId(7)).await.unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(1), "another replica is no reason to wait");
    assert_eq!(follower.seen().len(), 1, "the replica that answered is asked first");
    assert_eq!(leader.seen().len(), 3);
}

#[tokio::test]
async fn a_cell_that_cannot_be_reached_is_waited_for() {
    let mut config = config(&[dead_url().await]);
    config.retry.deadline = Duration::from_millis(200);
    let waits = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&waits);
    config.on_wait = Some(Arc::new(move |waiting| {
        log.lock().unwrap().push(waiting.cause.to_string());
    }));
    let start = Instant::now();
    let error = Client::new(config).unwrap().sandbox(SandboxId(7)).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(2));
    let Error::CapacityUnavailable { attempts, last, .. } = &error else { panic!("{error}") };
    assert!(matches!(**last, Error::Connect { .. }), "{last}");
    assert!(*attempts > 1);
    let waits = waits.lock().unwrap();
    assert_eq!(waits.len(), *attempts as usize - 1);
    assert!(waits[0].starts_with("cannot connect to http://127.0.0.1:"), "{waits:?}");
}

#[tokio::test]
async fn a_command_that_may_have_run_is_not_run_again() {
    let server = Server::start(|_| StatusCode::BAD_GATEWAY.into_response()).await;
    let body = ExecRequest { command: vec!["true".into()], timeout_seconds: 60 };
    let error = client(&[server.url()]).exec(SandboxId(7), &body).await.unwrap_err();
    assert_eq!(error.status(), Some(502));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn heartbeats_are_sent_once() {
    let server = Server::start(|_| problem(RefusalCode::NotLeader, None, None)).await;
    let body =
        serde_json::from_value(json!({"boot_id": "b", "sequence": 1, "memory_mib_total": 1024}));
    let host = plimsoll_types::HostId::new("host-1").unwrap();
    let error = client(&[server.url()]).heartbeat(&host, &body.unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error}");
    assert_eq!(server.seen().len(), 1);
    assert_eq!(server.seen()[0].uri.path(), "/v1/hosts/host-1/heartbeat");
}

#[tokio::test]
async fn a_long_poll_that_ends_is_no_error() {
    let server = Server::start(|_| {
        let record: Sandbox = serde_json::from_value(sandbox_json("queued")).unwrap();
        let problem = Problem::wait_timeout(record, "not running yet");
        (StatusCode::REQUEST_TIMEOUT, axum::Json(problem)).into_response()
    })
    .await;
    let query = WaitQuery { timeout_seconds: 1, ..WaitQuery::default() };
    let waited = client(&[server.url()]).wait_sandbox(SandboxId(7), &query).await.unwrap();
    let Waited::NotYet(record) = waited else { panic!("{waited:?}") };
    assert_eq!(record.status, SandboxStatus::Queued);
    assert_eq!(server.seen()[0].uri.query(), Some("status=running&timeout_seconds=1"));
}

#[tokio::test]
async fn answers_are_bounded() {
    let server = Server::start(|_| vec![b'x'; 5000].into_response()).await;
    let mut config = config(&[server.url()]);
    config.response_bytes_max = 4999;
    let error = Client::new(config).unwrap().sandbox(SandboxId(7)).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { bytes_max: 4999, .. }), "{error}");
    let error = client(&[server.url()]).sandbox(SandboxId(7)).await.unwrap_err();
    assert!(matches!(error, Error::Malformed { status: 200, .. }), "{error}");
    assert_eq!(server.seen().len(), 2, "what is not understood is not asked for again");
}

#[tokio::test]
async fn redirects_are_not_followed_with_the_key() {
    let elsewhere = Server::start(|_| sandbox("running")).await;
    let to = elsewhere.url();
    let server = Server::start(move |_| {
        (StatusCode::TEMPORARY_REDIRECT, [("location", to.clone())]).into_response()
    })
    .await;
    let error = client(&[server.url()]).sandbox(SandboxId(7)).await.unwrap_err();
    assert_eq!(error.status(), Some(307));
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test]
async fn prefixes_queries_and_the_tenant_are_kept() {
    let server =
        Server::start(|_| axum::Json(json!({"items": [], "next_cursor": null})).into_response())
            .await;
    let mut config = config(&[format!("{}/cell/", server.url())]);
    config.tenant = Some(plimsoll_types::TenantId::new("acme").unwrap());
    let mut query = plimsoll_api::ListSandboxes::default();
    query.labels.push(("team".into(), "a&b=c".into()));
    query.statuses.push(SandboxStatus::Paused);
    let page = Client::new(config).unwrap().sandboxes(&query).await.unwrap();
    assert!(page.items.is_empty());
    let seen = server.seen().remove(0);
    assert_eq!(seen.uri.path(), "/cell/v1/sandboxes");
    assert_eq!(seen.uri.query(), Some("status=paused&label=team%3Aa%26b%3Dc"));
    assert_eq!(seen.header("plimsoll-tenant"), Some("acme"));
}

#[tokio::test]
async fn reservations_state_their_mode() {
    let server = Server::start(|_| problem(RefusalCode::NeverFits, None, None)).await;
    let client = client(&[server.url()]);
    let mut body = ReserveRequest::new("k", 512, 1);
    assert_eq!(client.reserve_dry_run(&body).await.unwrap_err().status(), Some(422));
    let sent: serde_json::Value = serde_json::from_slice(&server.seen()[0].body).unwrap();
    assert_eq!(sent["mode"], "dry_run");
    body.mode = ReserveMode::DryRun;
    assert!(matches!(client.reserve(&body).await, Err(Error::Config { .. })));
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn malformed_settings_are_told() {
    for url in ["", "127.0.0.1:7070", "ftp://a", "unix:/a"] {
        let error = Client::new(ClientConfig::new([url])).unwrap_err();
        assert!(matches!(error, Error::Config { what: "url", .. }), "{url}: {error}");
    }
    let none: [&str; 0] = [];
    assert!(Client::new(ClientConfig::new(none)).is_err());
    let mut config = ClientConfig::new(["https://a"]);
    config.ca_pem = Some(b"nonsense".to_vec());
    assert!(matches!(Client::new(config), Err(Error::Config { what: "ca_pem", .. })));
    let config = ClientConfig::new(["http://a"]).with_key(Secret::new("a\nb"));
    let error = Client::new(config).unwrap_err();
    assert!(!error.to_string().contains("a\nb"));
}

fn target(url: String) -> AgentTarget {
    AgentTarget { address: url, secret: Some(Secret::new("hush")) }
}

fn command(op: HostOp) -> HostCommand {
    HostCommand { fence: Fence { epoch: 3, number: 41 }, deadline_uptime_millis: Some(9), op }
}

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn commands_reach_their_routes_and_outcomes_come_back() {
    let outcomes = [
        HostOutcome::Done,
        HostOutcome::Refused { code: RefusalCode::HostPressure, detail: "d".into() },
        HostOutcome::Fenced { highest: Fence { epoch: 4, number: 1 } },
    ];
    let script = outcomes.clone();
    let server = Server::start(move |number| {
        let outcome = &script[number];
        let status = plimsoll_api::outcome_status(outcome);
        (StatusCode::from_u16(status).unwrap(), axum::Json(outcome)).into_response()
    })
    .await;
    let agents = AgentClient::new(None).unwrap();
    let id = SandboxId(7);
    let ops = [
        HostOp::Pause { id, attempt: 2, kind: PauseKind::Keep },
        HostOp::Resume { id, attempt: 2 },
        HostOp::End { id, attempt: 2 },
    ];
    for (op, outcome) in ops.into_iter().zip(outcomes) {
        let got = agents.command(&target(server.url()), &command(op), SOON).await;
        assert_eq!(got, outcome);
    }
    let seen = server.seen();
    assert_eq!(seen[0].uri.path(), format!("/v1/guests/{id}/pause"));
    assert_eq!(seen[0].header("authorization"), Some("Bearer hush"));
    let sent: HostCommand = serde_json::from_slice(&seen[0].body).unwrap();
    assert_eq!(sent, command(HostOp::Pause { id, attempt: 2, kind: PauseKind::Keep }));
    assert_eq!(seen[1].uri.path(), format!("/v1/guests/{id}/resume"));
    assert_eq!(seen[2].method, Method::DELETE);
    let query = "epoch=3&number=41&attempt=2&deadline_uptime_millis=9";
    assert_eq!(seen[2].uri.query(), Some(query));
    assert!(seen[2].body.is_empty());
}

#[tokio::test]
async fn an_outcome_that_is_not_known_is_unknown() {
    let agents = AgentClient::new(None).unwrap();
    let op = || command(HostOp::Resume { id: SandboxId(7), attempt: 1 });
    let dead = target(dead_url().await);
    let error = agents.try_command(&dead, &op(), SOON).await.unwrap_err();
    assert!(matches!(error, AgentError::NotSent(_)), "{error}");
    let outcome = agents.command(&dead, &op(), SOON).await;
    assert!(matches!(outcome, HostOutcome::Unknown { .. }), "{outcome:?}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = target(format!("http://{}", listener.local_addr().unwrap()));
    let timeout = Duration::from_millis(100);
    let error = agents.try_command(&silent, &op(), timeout).await.unwrap_err();
    assert!(matches!(error, AgentError::Lost(_)), "{error}");

    let server = Server::start(|_| problem(RefusalCode::Unauthenticated, None, None)).await;
    let error = agents.try_command(&target(server.url()), &op(), SOON).await.unwrap_err();
    assert!(matches!(error, AgentError::Refused(_)), "{error}");
    let error = agents.capacity(&target(server.url()), SOON).await.unwrap_err();
    assert!(matches!(error, AgentError::Refused(_)), "{error}");
    assert!(!format!("{error:?} {:?}", target(server.url())).contains("hush"));
}
