//! A cell on loopback that writes down what hosts say, and an agent to go with it.

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use plimsoll_agent::driver::{GuestDriver, Guests, ShimCommand, SimulatedConfig, SimulatedDriver};
use plimsoll_agent::probe::{MachineSample, Pressure, Unknown};
use plimsoll_agent::{AgentConfig, AgentHandle, MachineSource, Means, RunError};
use plimsoll_api::{Guest, Heartbeat, RegisterAnswer, RegisterHost, Secret};
use plimsoll_client::{AgentClient, AgentTarget};
use plimsoll_types::{
    BasisPoints, Counted, Driver, Fence, GuestSpec, HeartbeatAnswer, HostCommand, HostId, HostOp,
    HostOutcome, Mib, MilliCpu, PoolName, ReserveRule, SandboxId, TemplateName, TenantId, Vcpus,
};
use tokio::sync::{oneshot, watch};

/// Nothing that these tests wait for takes longer, on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Heard {
    registrations: Vec<RegisterHost>,
    keys: Vec<String>,
    heartbeats: Vec<Heartbeat>,
    /// What to answer to heartbeats.
    answer: HeartbeatAnswer,
    /// Answer this status instead.
    broken: Option<u16>,
    /// How many were answered so.
    turned_away: usize,
}

/// A cell.
pub struct Cell {
    heard: Arc<Mutex<Heard>>,
    changed: watch::Receiver<u64>,
    pub url: String,
    pub client: AgentClient,
    number: u64,
}

#[derive(Clone)]
struct Desk {
    heard: Arc<Mutex<Heard>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Desk {
    fn note(&self, write: impl FnOnce(&mut Heard) -> Response) -> Response {
        let response = {
            let mut heard = self.heard.lock().unwrap();
            match heard.broken {
                Some(status) => {
                    heard.turned_away += 1;
                    StatusCode::from_u16(status).unwrap().into_response()
                }
                None => write(&mut heard),
            }
        };
        self.changes.send_modify(|changes| *changes += 1);
        response
    }
}

async fn register(
    State(desk): State<Desk>,
    Path(host): Path<String>,
    headers: axum::http::HeaderMap,
    Json(body): Json<RegisterHost>,
) -> Response {
    assert_eq!(host, "host-1");
    desk.note(|heard| {
        let key = headers["authorization"].to_str().unwrap().to_owned();
        heard.keys.push(key);
        heard.registrations.push(body);
        let incarnation = heard.registrations.len() as u64;
        Json(RegisterAnswer { incarnation, epoch: Some(1), heartbeat_millis: None }).into_response()
    })
}

async fn heartbeat(
    State(desk): State<Desk>,
    Path(host): Path<String>,
    Json(body): Json<Heartbeat>,
) -> Response {
    assert_eq!(host, "host-1");
    desk.note(|heard| {
        heard.heartbeats.push(body);
        Json(heard.answer.clone()).into_response()
    })
}

impl Cell {
    pub async fn start() -> Self {
        let heard = Arc::new(Mutex::new(Heard::default()));
        heard.lock().unwrap().answer.accepted = true;
        let (changes, changed) = watch::channel(0);
        let desk = Desk { heard: Arc::clone(&heard), changes: Arc::new(changes) };
        let router = Router::new()
            .route("/v1/hosts/{host}/register", post(register))
            .route("/v1/hosts/{host}/heartbeat", post(heartbeat))
            .with_state(desk);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = AgentClient::new(None).unwrap();
        Self { heard, changed, url, client, number: 0 }
    }

    pub fn set_answer(&self, change: impl FnOnce(&mut HeartbeatAnswer)) {
        change(&mut self.heard.lock().unwrap().answer);
    }

    /// Answers everything with this status until it has turned somebody away, and then as before.
    pub async fn turn_away(&mut self, status: u16) {
        let before = {
            let mut heard = self.heard.lock().unwrap();
            heard.broken = Some(status);
            heard.turned_away
        };
        self.until("somebody to turn away", |heard| (heard.turned_away > before).then_some(()))
            .await;
        self.heard.lock().unwrap().broken = None;
    }

    /// As if the cell were away until [`Self::turn_away`] ends.
    pub fn set_broken(&self, status: u16) {
        self.heard.lock().unwrap().broken = Some(status);
    }

    pub fn registrations(&self) -> Vec<RegisterHost> {
        self.heard.lock().unwrap().registrations.clone()
    }

    pub fn keys(&self) -> Vec<String> {
        self.heard.lock().unwrap().keys.clone()
    }

    pub fn heartbeats(&self) -> Vec<Heartbeat> {
        self.heard.lock().unwrap().heartbeats.clone()
    }

    async fn until<T>(&mut self, what: &str, mut is_so: impl FnMut(&Heard) -> Option<T>) -> T {
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(found) = is_so(&self.heard.lock().unwrap()) {
                    return found;
                }
                self.changed.changed().await.unwrap();
            }
        });
        match waited.await {
            Ok(found) => found,
            Err(_) => panic!("waited for {what}; last: {:?}", self.heartbeats().last()),
        }
    }

    /// Waits for a heartbeat of the latest start of the agent that is as wanted.
    pub async fn heartbeat(
        &mut self,
        what: &str,
        wanted: impl Fn(&Heartbeat) -> bool,
    ) -> Heartbeat {
        self.until(what, |heard| {
            let boot = heard.registrations.last()?.boot_id.clone();
            let mut of_boot = heard.heartbeats.iter().rev().filter(|beat| beat.boot_id == boot);
            of_boot.next().filter(|heartbeat| wanted(heartbeat)).cloned()
        })
        .await
    }

    pub async fn registration(&mut self, count: usize) -> RegisterHost {
        self.until("a registration", |heard| heard.registrations.get(count - 1).cloned()).await
    }

    /// The agent as the cell knows it: by what it said when it registered last.
    pub fn target(&self) -> AgentTarget {
        let last = self.registrations().pop().expect("an agent has registered");
        AgentTarget { address: last.address.unwrap(), secret: last.secret }
    }

    pub async fn send_as(&self, fence: Fence, op: HostOp) -> HostOutcome {
        let command = HostCommand { fence, deadline_uptime_millis: None, op };
        self.client.command(&self.target(), &command, PATIENCE).await
    }

    /// Sends a command with the next number.
    pub async fn send(&mut self, op: HostOp) -> HostOutcome {
        self.number += 1;
        let fence = Fence { epoch: 1, number: self.number };
        self.send_as(fence, op).await
    }

    pub async fn capacity(&self) -> Heartbeat {
        self.client.capacity(&self.target(), PATIENCE).await.unwrap()
    }

    /// The guest in a report computed now.
    pub async fn guest(&self, id: u128) -> Option<Guest> {
        let name = SandboxId(id).to_string();
        self.capacity().await.guests.unwrap().into_iter().find(|guest| guest.id == name)
    }
}

/// A machine whose figures the test sets.
#[derive(Clone)]
pub struct Machine(Arc<Mutex<MachineSample>>);

impl Machine {
    /// 32 GiB and 16 cores, idle.
    pub fn idle() -> Self {
        Self(Arc::new(Mutex::new(MachineSample {
            memory_total: Ok(Mib(32 * 1024)),
            memory_available: Ok(Mib(32 * 1024)),
            cpu_total: Ok(MilliCpu(16_000)),
            cpu_used: Ok(MilliCpu(500)),
            pressure: Ok(Pressure { some_avg10: BasisPoints(0), full_avg10: BasisPoints(0) }),
            uptime_millis: Ok(1),
        })))
    }

    pub fn press(&self, some_bp: u64) {
        self.0.lock().unwrap().pressure =
            Ok(Pressure { some_avg10: BasisPoints(some_bp), full_avg10: BasisPoints(0) });
    }

    pub fn use_memory(&self, used: Result<u64, &str>) {
        self.0.lock().unwrap().memory_available = used
            .map(|used| Mib(32 * 1024 - used))
            .map_err(|why| Unknown { what: "memory", why: why.to_owned() });
    }
}

impl MachineSource for Machine {
    fn sample(&self) -> MachineSample {
        self.0.lock().unwrap().clone()
    }
}

pub fn shim() -> ShimCommand {
    ShimCommand { program: env!("CARGO_BIN_EXE_plimsoll-guest-shim").into(), words: vec![] }
}

pub fn config(cell: &Cell, data: &FilePath) -> AgentConfig {
    let mut config = AgentConfig::new(
        vec![cell.url.clone()],
        Secret::new("host-key"),
        HostId::new("host-1").unwrap(),
        PoolName::new("local").unwrap(),
        data.to_owned(),
    );
    config.listen.set_port(0);
    config.headroom_mib = Some(Mib(1024));
    config.heartbeat = Duration::from_millis(200);
    config.sample = Duration::from_millis(50);
    config.simulated.start_delay = Duration::from_millis(1);
    config.simulated.checkpoint_delay = Duration::from_millis(1);
    config.simulated.restore_delay = Duration::from_millis(1);
    config
}

/// A simulated driver as `config` says, its guests kept in the data folder.
pub fn simulated(config: &AgentConfig) -> Arc<dyn GuestDriver> {
    let settings = SimulatedConfig {
        journal: Some(config.data.join("simulated")),
        ..config.simulated.clone()
    };
    Arc::new(SimulatedDriver::new(settings).unwrap())
}

/// An agent that the test can stop.
pub struct Agent {
    handle: AgentHandle,
    stop: oneshot::Sender<()>,
}

impl Agent {
    pub async fn start(
        config: AgentConfig,
        drivers: Vec<Arc<dyn GuestDriver>>,
        machine: &Machine,
    ) -> Self {
        let guests = Guests::open(&config.data, shim(), false).unwrap();
        let machine = Box::new(machine.clone());
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let means = Means { drivers, guests, machine };
        let handle = plimsoll_agent::run(config, means, shutdown).await.unwrap();
        Self { handle, stop }
    }

    /// An agent with the simulated driver on an idle machine, once its first heartbeat is in.
    pub async fn simulated(cell: &mut Cell, data: &FilePath) -> Self {
        let config = config(cell, data);
        let drivers = vec![simulated(&config)];
        let starts = cell.registrations().len();
        let agent = Self::start(config, drivers, &Machine::idle()).await;
        cell.registration(starts + 1).await;
        cell.heartbeat("a first heartbeat", |heartbeat| heartbeat.memory_mib_admittable.is_some())
            .await;
        agent
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.handle.address)
    }

    pub async fn stop(self) -> Result<(), RunError> {
        let _ = self.stop.send(());
        self.handle.join().await
    }
}

pub fn spec(id: u128, driver: Driver) -> GuestSpec {
    GuestSpec {
        id: SandboxId(id),
        attempt: 1,
        tenant: TenantId::new("default").unwrap(),
        template: TemplateName::new("shell").unwrap(),
        driver,
        memory_mib: Mib(512),
        overhead_mib: Mib(0),
        vcpus: Vcpus(1),
        stateful: false,
        preemptible: true,
        priority: 0,
        command: vec![],
        env: BTreeMap::new(),
        rootfs: None,
        baked: false,
        fork_of: None,
        counted: Counted::new(),
        reserve: ReserveRule::default(),
        settle_seconds: 0,
        decay_seconds: 0,
    }
}

pub fn start(spec: GuestSpec) -> HostOp {
    HostOp::Start { guest: Box::new(spec) }
}

pub fn end(id: u128) -> HostOp {
    HostOp::End { id: SandboxId(id), attempt: 1 }
}

/// A program around the agent, to be killed.
pub const AGENT_PROGRAM: &str = env!("CARGO_BIN_EXE_plimsoll-agent-alone");
