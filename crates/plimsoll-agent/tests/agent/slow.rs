//! Drivers that hang, fail and are overtaken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use plimsoll_agent::driver::{
    Abilities, ChangeError, EndError, ExecError, ExecOutput, ExecRequest, Fault, FinalUse, Found,
    GuestDriver, GuestName, GuestState, LookError, StartError, Started, Unavailable, Usage,
};
use plimsoll_types::{Driver, GuestSpec, GuestStatus, HostOp, HostOutcome, PauseKind, SandboxId};

use crate::rig::{Agent, Cell, Machine, PATIENCE, config, end, spec, start};

/// Starts and ends at once; pauses never finish, and starts neither while `hang` is set.
#[derive(Default)]
struct Hanging {
    hang: AtomicBool,
    blind: AtomicBool,
    calls: Mutex<Vec<String>>,
    running: Mutex<Vec<GuestName>>,
}

impl Hanging {
    fn note(&self, call: &str, name: &GuestName) {
        self.calls.lock().unwrap().push(format!("{call} {}", name.id.0));
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

impl GuestDriver for Hanging {
    fn kind(&self) -> Driver {
        Driver::Simulated
    }

    fn available(&self) -> BoxFuture<'_, Result<Abilities, Unavailable>> {
        unreachable!("the test has chosen the driver")
    }

    fn pause_frees_memory(&self) -> bool {
        true
    }

    fn start<'a>(&'a self, spec: &'a GuestSpec) -> BoxFuture<'a, Result<Started, StartError>> {
        Box::pin(async {
            let name = GuestName::of(spec);
            self.note("start", &name);
            self.running.lock().unwrap().push(name);
            if self.hang.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            Ok(Started { started_at_unix_millis: 0, notes: vec![] })
        })
    }

    fn restart<'a>(&'a self, spec: &'a GuestSpec) -> BoxFuture<'a, Result<Started, StartError>> {
        self.start(spec)
    }

    fn pause<'a>(
        &'a self,
        name: &'a GuestName,
        _: PauseKind,
    ) -> BoxFuture<'a, Result<(), ChangeError>> {
        self.note("pause", name);
        Box::pin(std::future::pending())
    }

    fn resume<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<(), ChangeError>> {
        panic!("resume {name}: the driver's own fault")
    }

    fn stop<'a>(&'a self, _: &'a GuestName) -> BoxFuture<'a, Result<(), ChangeError>> {
        Box::pin(async { Ok(()) })
    }

    fn end<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<Option<FinalUse>, EndError>> {
        self.note("end", name);
        self.running.lock().unwrap().retain(|running| running != name);
        Box::pin(async { Ok(None) })
    }

    fn exec<'a>(
        &'a self,
        name: &'a GuestName,
        _: ExecRequest,
    ) -> BoxFuture<'a, Result<ExecOutput, ExecError>> {
        Box::pin(async { Err(ExecError::NotFound(*name)) })
    }

    fn usage<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<Usage, LookError>> {
        Box::pin(async { Err(LookError::NotFound(*name)) })
    }

    fn status<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<GuestState, LookError>> {
        Box::pin(async {
            if !self.running.lock().unwrap().contains(name) {
                return Err(LookError::NotFound(*name));
            }
            Ok(GuestState {
                status: GuestStatus::Running,
                paused: None,
                exit: None,
                started_at_unix_millis: None,
            })
        })
    }

    fn adopt(&self) -> BoxFuture<'_, Result<Found, Fault>> {
        Box::pin(async {
            if self.blind.load(Ordering::Relaxed) {
                return Err(Fault::Step { step: "look around", detail: "not yet".to_owned() });
            }
            Ok(Found::default())
        })
    }
}

async fn agent(cell: &mut Cell, data: &std::path::Path, driver: &Arc<Hanging>) -> Agent {
    let mut config = config(cell, data);
    config.timeouts.start = Duration::from_millis(200);
    let drivers: Vec<Arc<dyn GuestDriver>> = vec![Arc::clone(driver) as _];
    Agent::start(config, drivers, &Machine::idle()).await
}

#[tokio::test]
async fn a_start_that_takes_too_long_is_said_to_be_unknown_and_cleared_away() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let driver = Arc::new(Hanging::default());
    driver.hang.store(true, Ordering::Relaxed);
    let agent = agent(&mut cell, data.path(), &driver).await;
    cell.heartbeat("a heartbeat", |heartbeat| heartbeat.memory_mib_admittable.is_some()).await;
    let outcome = cell.send(start(spec(1, Driver::Simulated))).await;
    assert!(matches!(outcome, HostOutcome::Unknown { .. }), "{outcome:?}");
    cell.heartbeat("no guest", |heartbeat| {
        heartbeat.seen_through == Some(1)
            && heartbeat.guests.as_ref().is_some_and(|guests| guests.is_empty())
    })
    .await;
    assert_eq!(driver.calls(), ["start 1", "end 1"]);
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn an_end_overtakes_a_pause_that_hangs() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let driver = Arc::new(Hanging::default());
    let agent = agent(&mut cell, data.path(), &driver).await;
    cell.heartbeat("a heartbeat", |heartbeat| heartbeat.memory_mib_admittable.is_some()).await;
    assert_eq!(cell.send(start(spec(1, Driver::Simulated))).await, HostOutcome::Done);
    let pause = HostOp::Pause { id: SandboxId(1), attempt: 1, kind: PauseKind::Keep };
    let (paused, ended) =
        tokio::join!(cell.send_as(plimsoll_types::Fence { epoch: 1, number: 2 }, pause), async {
            let pausing =
                async { while cell.guest(1).await.unwrap().status != GuestStatus::Pausing {} };
            tokio::time::timeout(PATIENCE, pausing).await.expect("the pause begins");
            cell.send_as(plimsoll_types::Fence { epoch: 1, number: 3 }, end(1)).await
        });
    assert!(matches!(paused, HostOutcome::Failed { .. }), "{paused:?}");
    assert_eq!(ended, HostOutcome::Done);
    assert_eq!(driver.calls(), ["start 1", "pause 1", "end 1"]);
    assert_eq!(cell.guest(1).await, None);
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn nothing_is_called_gone_before_every_driver_has_looked() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let driver = Arc::new(Hanging::default());
    driver.blind.store(true, Ordering::Relaxed);
    let agent = agent(&mut cell, data.path(), &driver).await;
    let early = cell.heartbeat("a heartbeat", |_| true).await;
    assert!(!early.complete);
    assert_eq!(early.memory_mib_admittable, None);
    let refused = cell.send(start(spec(1, Driver::Simulated))).await;
    assert!(matches!(refused, HostOutcome::Refused { .. }), "{refused:?}");
    driver.blind.store(false, Ordering::Relaxed);
    cell.heartbeat("a complete list", |heartbeat| heartbeat.complete).await;
    agent.stop().await.unwrap();
}
