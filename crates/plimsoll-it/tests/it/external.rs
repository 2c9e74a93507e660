//! External pools: a second agent, or an adapter before it, as the provider.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use plimsoll_api::{Secret, outcome_status};
use plimsoll_client::{AgentClient, AgentTarget};
use plimsoll_types::{
    Driver, Fence, GuestSpec, HostCommand, HostOp, HostOutcome, Mib, RefusalCode, ReserveRule,
    SandboxId, Vcpus,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Folder, Server, metric, wait_for};

/// A provider: an agent that has no cell.
struct Provider {
    server: Server,
    data: PathBuf,
}

impl Provider {
    fn start(folder: &Folder, words: &[&str]) -> Self {
        let fixed = ["agent", "--provider", "--name=p1", "--listen=127.0.0.1:0", "--data=provider"];
        let words: Vec<&str> =
            fixed.iter().chain(&["--sample-millis=200"]).chain(words).copied().collect();
        let server = folder.serve(&words, "provider/address");
        Self { server, data: folder.path().join("provider") }
    }

    fn url(&self) -> String {
        let address = std::fs::read_to_string(self.data.join("address")).unwrap();
        format!("http://{}", address.trim())
    }

    fn target(&self) -> AgentTarget {
        let secret = std::fs::read_to_string(self.data.join("agent.secret")).unwrap();
        AgentTarget { address: self.url(), secret: Some(Secret::new(secret.trim())) }
    }
}

/// A cell whose own host has one slot, and whose creates overflow to a provider's pool.
fn cell(folder: &Folder, address: &str) -> Server {
    let words = ["--driver=process", "--heartbeat-millis=500", "--sample-millis=200"];
    let server = folder.up(&words);
    let bounds = ["stale_seconds=3", "dead_seconds=60", "inventory_grace_seconds=1"];
    folder.run(&[&["pools", "create", "outside", "external=true"], &bounds[..]].concat()).ok();
    folder.run(&["pools", "set", "local", "limit=1", "overflow=[\"outside\"]"]).ok();
    let address = format!("--address={address}");
    let secret = "--secret-file=provider/agent.secret";
    folder.run(&["hosts", "add", "p1", "--pool=outside", &address, secret]).ok();
    wait_for("the provider's first report", || host(folder)["status"] == "fresh");
    server
}

fn host(folder: &Folder) -> Value {
    folder.run(&["hosts", "show", "p1", "--json"]).ok().json()
}

const SHELL: [&str; 3] = ["--template=shell", "--memory-mib=64", "--deadline=0"];

fn create(folder: &Folder, words: &[&str]) -> String {
    let script = ["--", "sh", "-c", "echo $$ > pid; sleep 600"];
    folder.create(&[&SHELL[..], words, &script].concat())
}

fn record(folder: &Folder, id: &str) -> Value {
    folder.run(&["show", id, "--json"]).ok().json()
}

#[test]
fn a_create_overflows_to_a_provider_and_lives_there_as_anywhere() {
    let folder = Folder::new();
    let provider = Provider::start(&folder, &["--driver=process"]);
    let _cell = cell(&folder, &provider.url());
    let own = create(&folder, &[]);
    let there = create(&folder, &[]);
    assert_eq!(record(&folder, &own)["host"], "h1");
    let seen = record(&folder, &there);
    assert_eq!((&seen["pool"], &seen["host"]), (&"outside".into(), &"p1".into()));
    let pid = folder.run(&["exec", &there, "--", "cat", "pid"]).ok().stdout;
    folder.run(&["pause", &there]).ok();
    assert_eq!(folder.status(&there), "paused");
    folder.run(&["resume", &there]).ok();
    assert_eq!(folder.run(&["exec", &there, "--", "cat", "pid"]).ok().stdout, pid);
    folder.run(&["stop", &there]).ok();
    folder.run(&["start", &there]).ok();
    wait_for("the start", || folder.status(&there) == "running");
    // Whoever does not know the secret gets nothing from it.
    let bad = AgentTarget { secret: Some(Secret::new("wrong")), ..provider.target() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = AgentClient::new(None).unwrap();
    let refused = runtime.block_on(client.capacity(&bad, crate::rig::PATIENCE));
    assert!(refused.unwrap_err().to_string().contains("unauthenticated"));
    folder.run(&["rm", &there]).ok();
    wait_for("the provider to be empty", || host(&folder)["guests"] == 0);
}

#[test]
fn a_provider_that_loses_a_guest_and_one_that_keeps_one_too_many() {
    let folder = Folder::new();
    let provider = Provider::start(&folder, &["--driver=process"]);
    let _cell = cell(&folder, &provider.url());
    create(&folder, &[]);
    let lost = create(&folder, &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = AgentClient::new(None).unwrap();
    let send = |number, op| {
        let fence = Fence { epoch: 1, number };
        let command = HostCommand { fence, deadline_uptime_millis: None, op };
        runtime.block_on(client.command(&provider.target(), &command, crate::rig::PATIENCE))
    };
    let id = lost.parse().unwrap();
    assert_eq!(send(1_000, HostOp::End { id, attempt: 1 }), HostOutcome::Done);
    wait_for("the record to follow", || folder.status(&lost) == "failed");
    let reason = record(&folder, &lost)["reason"].clone();
    assert!(reason.as_str().unwrap().contains("guest_lost"), "{reason}");
    // The cell goes on above the number that was used past it.
    let next = create(&folder, &[]);
    assert_eq!(record(&folder, &next)["host"], "p1");

    // One that the cell does not know, with state that nobody ends by himself.
    let stranger = GuestSpec {
        id: SandboxId(77),
        attempt: 1,
        tenant: "default".parse().unwrap(),
        template: "shell".parse().unwrap(),
        driver: Driver::Process,
        memory_mib: Mib(64),
        overhead_mib: Mib(0),
        vcpus: Vcpus(1),
        stateful: true,
        preemptible: false,
        priority: 0,
        command: vec!["sleep".to_owned(), "600".to_owned()],
        env: BTreeMap::new(),
        rootfs: None,
        baked: false,
        fork_of: None,
        counted: BTreeMap::new(),
        reserve: ReserveRule::default(),
        settle_seconds: 3,
        decay_seconds: 120,
    };
    assert_eq!(send(5_000, HostOp::Start { guest: Box::new(stranger.clone()) }), HostOutcome::Done);
    let name = stranger.id.to_string();
    wait_for("it to be named", || host(&folder)["unexpected_guests"][0] == name.as_str());
    let page = runtime.block_on(folder.operator().metrics()).unwrap();
    let series = "plimsoll_host_unexpected_guests{host=\"p1\"}";
    assert_eq!(metric(&page, series), Some(1.0));
    folder.run(&["hosts"]).ok().says("UNEXPECTED");
    let events = folder.run(&["events", "--json"]).ok();
    assert!(events.stdout.contains("host.unexpected_guests"));
    folder.run(&["hosts", "end-guest", "p1", "nobody"]).exits(1).says("not_found");
    folder.run(&["hosts", "end-guest", "p1", &name]).ok();
    wait_for("its end", || host(&folder)["unexpected_guests"] == serde_json::json!([]));
    assert_eq!(folder.status(&next), "running");
}

#[test]
fn a_provider_that_is_slow_or_gone_is_no_candidate_and_is_taken_back() {
    let folder = Folder::new();
    let provider = Provider::start(&folder, &["--driver=process"]);
    let _cell = cell(&folder, &provider.url());
    create(&folder, &[]);
    // Slow: what was asked of it is neither lost nor done twice.
    provider.server.signal(Signal::STOP);
    let mut asked = folder
        .command(&[&["create"], &SHELL[..], &["--label=slow=yes", "--", "sleep", "600"]].concat());
    let mut asked = asked.stdout(std::process::Stdio::null()).spawn().unwrap();
    wait_for("it to be stale", || host(&folder)["status"] == "stale");
    let no = folder.run(&[&["create"], &SHELL[..], &["--json"]].concat()).exits(75).json();
    assert_eq!(no["code"], "no_capacity", "its own slots are full: {no}");
    assert_eq!(no["counts"]["stale"], 1, "{no}");
    provider.server.signal(Signal::CONT);
    assert!(asked.wait().unwrap().success());
    wait_for("it to be fresh", || host(&folder)["status"] == "fresh");
    assert_eq!(host(&folder)["guests"], 1);
    // Gone: its guests live on without it, and it is taken back with them.
    let list = folder.run(&["ls", "--json", "--label=slow=yes"]).ok().json();
    let id = list["items"][0]["id"].as_str().unwrap().to_owned();
    let url = provider.url();
    provider.server.kill();
    wait_for("it to be stale", || host(&folder)["status"] == "stale");
    folder.run(&[&["create"], &SHELL[..]].concat()).exits(75);
    assert_eq!(folder.status(&id), "running");
    let listen = format!("--listen={}", url.trim_start_matches("http://"));
    let words = ["agent", "--provider", "--name=p1", &listen, "--data=provider"];
    let _again = folder.serve(&[&words[..], &["--driver=process"]].concat(), "provider/address");
    wait_for("it to be fresh", || host(&folder)["status"] == "fresh");
    folder.run(&["exec", &id, "--", "true"]).ok();
    create(&folder, &[]);
}

/// An adapter: it passes calls on, and takes only so many guests.
#[derive(Clone)]
struct Adapter {
    to: String,
    left: Arc<AtomicUsize>,
    http: reqwest::Client,
}

async fn pass_on(State(adapter): State<Adapter>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let bytes: Bytes = to_bytes(body, 1 << 20).await.unwrap();
    let path = head.uri.path_and_query().unwrap().as_str();
    if head.method == "POST" && path == "/v1/guests" {
        let less = |left: usize| left.checked_sub(1);
        let took = adapter.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if took.is_err() {
            let detail = "this account runs as many as it may".to_owned();
            let no = HostOutcome::Refused { code: RefusalCode::NoCapacity, detail };
            let status = StatusCode::from_u16(outcome_status(&no)).unwrap();
            return (status, axum::Json(no)).into_response();
        }
    }
    let mut sent = adapter.http.request(head.method, format!("{}{path}", adapter.to)).body(bytes);
    for name in ["authorization", "content-type"] {
        if let Some(value) = head.headers.get(name) {
            sent = sent.header(name, value.as_bytes());
        }
    }
    let answer = sent.send().await.unwrap();
    let status = StatusCode::from_u16(answer.status().as_u16()).unwrap();
    (status, answer.bytes().await.unwrap()).into_response()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_provider_refuses_as_any_host_does_and_its_limit_is_learned() {
    let folder = Folder::new();
    let provider = Provider::start(&folder, &["--driver=process"]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let _ = rustls::crypto::ring::default_provider().install_default();
    let adapter = Adapter {
        to: provider.url(),
        left: Arc::new(AtomicUsize::new(2)),
        http: reqwest::Client::builder().tls_certs_only([]).build().unwrap(),
    };
    let app = Router::new().fallback(pass_on).with_state(adapter.clone());
    tokio::spawn(async { axum::serve(listener, app).await });

    let _cell = cell(&folder, &address);
    create(&folder, &[]);
    let first = create(&folder, &[]);
    create(&folder, &[]);
    let no = folder.run(&[&["create"], &SHELL[..], &["--json"]].concat()).exits(75).json();
    assert_eq!(no["code"], "no_capacity", "{no}");
    let page = folder.operator().metrics().await.unwrap();
    let series = "plimsoll_pool_slots{pool=\"outside\",state=\"learned\"}";
    assert_eq!(metric(&page, series), Some(2.0));
    assert_eq!(host(&folder)["failures_in_a_row"], 0, "to be full is no failure");
    // The next is not sent there at all, and waits; a place that comes free is its own.
    let waiting = create(&folder, &["--on-full=queue"]);
    assert_eq!(folder.status(&waiting), "queued");
    adapter.left.store(1, Ordering::SeqCst);
    folder.run(&["rm", &first]).ok();
    wait_for("the one that waited", || folder.status(&waiting) == "running");
    assert_eq!(record(&folder, &waiting)["host"], "p1");
}
