//! A host with an agent that does what the test says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use plimsoll_api::{EndGuest, ExecResponse, GuestExec, outcome_status};
use plimsoll_types::{Fence, HostCommand, HostOp, HostOutcome, RefusalCode, SandboxId};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::Tested;

/// How an agent answers a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Done,
    Refused(RefusalCode),
    Failed,
    /// Not before the test says otherwise.
    Hold,
}

#[derive(Debug)]
struct Shared {
    start: watch::Sender<Start>,
    guests: Mutex<BTreeMap<SandboxId, (u32, &'static str)>>,
    commands: Mutex<Vec<(String, SandboxId)>>,
    seen_through: Mutex<u64>,
}

/// An agent at work.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    shared: Arc<Shared>,
    address: String,
}

impl Agent {
    pub(super) async fn start() -> Self {
        let shared = Arc::new(Shared {
            start: watch::Sender::new(Start::Done),
            guests: Mutex::default(),
            commands: Mutex::default(),
            seen_through: Mutex::default(),
        });
        let router = Router::new()
            .route("/v1/guests", post(begin))
            .route("/v1/guests/{id}", delete(end))
            .route("/v1/guests/{id}/exec", post(exec))
            .route("/v1/guests/{id}/logs", get(logs))
            .route("/v1/guests/{id}/{op}", post(change))
            .route("/v1/capacity", get(async || StatusCode::SERVICE_UNAVAILABLE))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { shared, address }
    }

    pub(super) fn starts(&self, how: Start) {
        self.shared.start.send_replace(how);
    }

    /// What it was told, in order.
    pub(super) fn commands(&self) -> Vec<(String, SandboxId)> {
        self.shared.commands.lock().unwrap().clone()
    }

    pub(super) fn was_told(&self, op: &str) -> bool {
        self.commands().iter().any(|(told, _)| told == op)
    }

    /// Reports to the cell.
    pub(super) async fn beat(&self, cell: &Tested, sequence: u64, admittable_mib: i64) {
        let guests: Vec<Value> = self
            .shared
            .guests
            .lock()
            .unwrap()
            .iter()
            .map(|(id, (attempt, status))| {
                json!({ "id": id, "attempt": attempt, "status": status, "memory_mib": 512,
                        "charge_mib": 512 })
            })
            .collect();
        let seen_through = *self.shared.seen_through.lock().unwrap();
        let body = json!({
            "boot_id": "b1", "sequence": sequence, "seen_through": seen_through,
            "address": self.address, "cpu_millis_total": 16000, "memory_mib_total": 65536,
            "memory_mib_admittable": admittable_mib, "guests": guests, "complete": true,
        });
        let path = "/v1/hosts/h1/heartbeat";
        cell.call("host", reqwest::Method::POST, path, Some(body)).await.expect(200);
    }
}

impl Shared {
    fn note(&self, op: &str, id: SandboxId, fence: Fence) {
        self.commands.lock().unwrap().push((op.to_owned(), id));
        let mut seen = self.seen_through.lock().unwrap();
        *seen = fence.number.max(*seen);
    }
}

fn outcome(outcome: &HostOutcome) -> Response {
    let status = StatusCode::from_u16(outcome_status(outcome)).unwrap();
    (status, Json(outcome)).into_response()
}

async fn begin(State(shared): State<Arc<Shared>>, Json(command): Json<HostCommand>) -> Response {
    let HostOp::Start { guest } = command.op else { panic!("no start") };
    shared.note("start", guest.id, command.fence);
    let mut how = shared.start.subscribe();
    let how = how.wait_for(|how| *how != Start::Hold).await.unwrap().clone();
    outcome(&match how {
        Start::Done => {
            shared.guests.lock().unwrap().insert(guest.id, (guest.attempt, "running"));
            HostOutcome::Done
        }
        Start::Refused(code) => HostOutcome::Refused { code, detail: "the gate is shut".into() },
        Start::Failed | Start::Hold => HostOutcome::Failed { detail: "no such program".into() },
    })
}

async fn change(
    State(shared): State<Arc<Shared>>,
    Path((id, op)): Path<(SandboxId, String)>,
    Json(command): Json<HostCommand>,
) -> Response {
    assert_eq!(command.op.word(), op);
    shared.note(&op, id, command.fence);
    let mut guests = shared.guests.lock().unwrap();
    let Some(guest) = guests.get_mut(&id) else {
        return outcome(&HostOutcome::Failed { detail: "no such guest".into() });
    };
    guest.1 = match op.as_str() {
        "pause" => "paused",
        "resume" => "running",
        _ => "exited",
    };
    outcome(&HostOutcome::Done)
}

async fn end(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<SandboxId>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let end = EndGuest::from_pairs(&pairs).unwrap();
    shared.note("end", id, end.fence);
    shared.guests.lock().unwrap().remove(&id);
    outcome(&HostOutcome::Done)
}

async fn exec(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<SandboxId>,
    Json(body): Json<GuestExec>,
) -> Response {
    assert_eq!(body.id, id);
    shared.note("exec", id, Fence::default());
    let stdout = body.command.join(" ");
    Json(ExecResponse { exit_code: Some(0), stdout, ..ExecResponse::default() }).into_response()
}

/// Says more than it was asked for, as no agent should.
async fn logs(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<SandboxId>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    if !shared.guests.lock().unwrap().contains_key(&id) {
        let problem = plimsoll_api::Problem::new(RefusalCode::NotFound, "no such guest");
        return (StatusCode::NOT_FOUND, Json(problem)).into_response();
    }
    let asked = plimsoll_api::LogsQuery::from_pairs(&pairs).unwrap().bytes;
    format!("{}the end\n", "x".repeat(asked)).into_response()
}
