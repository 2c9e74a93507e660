use plimsoll_types::{Driver, GuestStatus, HostOutcome, RefusalCode, SandboxId};

use crate::rig::{Agent, Cell, Machine, config, simulated, spec, start};

#[tokio::test]
async fn pressure_shuts_the_gate_and_spares_the_stateful() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let config = config(&cell, data.path());
    let drivers = vec![simulated(&config)];
    let machine = Machine::idle();
    let agent = Agent::start(config, drivers, &machine).await;
    cell.heartbeat("a heartbeat", |heartbeat| heartbeat.memory_mib_admittable.is_some()).await;
    let mut database = spec(1, Driver::Simulated);
    database.stateful = true;
    assert_eq!(cell.send(start(database)).await, HostOutcome::Done);
    assert_eq!(cell.send(start(spec(2, Driver::Simulated))).await, HostOutcome::Done);

    machine.press(9_000);
    let shut = cell.heartbeat("a shut gate", |heartbeat| heartbeat.not_admitting.is_some()).await;
    assert_eq!(shut.not_admitting.as_deref(), Some("pressure"));
    assert_eq!((shut.memory_mib_admittable, shut.pressure_bp), (None, Some(9_000)));
    let refused = cell.send(start(spec(3, Driver::Simulated))).await;
    assert!(
        matches!(refused, HostOutcome::Refused { code: RefusalCode::HostPressure, .. }),
        "{refused:?}"
    );
    let acted = cell
        .heartbeat("a guest that gave way", |heartbeat| {
            let guests = heartbeat.guests.as_deref().unwrap_or_default();
            guests.iter().any(|guest| guest.status == GuestStatus::Paused)
        })
        .await;
    let guests = acted.guests.unwrap();
    assert_eq!(guests[0].status, GuestStatus::Running, "the stateful one");
    assert_eq!(guests[1].id, SandboxId(2).to_string());
    assert!(guests[1].reason.as_deref().unwrap().starts_with("paused by its host"));
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_machine_that_cannot_be_read_admits_nothing_and_says_why() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let config = config(&cell, data.path());
    let drivers = vec![simulated(&config)];
    let machine = Machine::idle();
    machine.use_memory(Err("permission denied"));
    let agent = Agent::start(config, drivers, &machine).await;
    let blind = cell.heartbeat("a heartbeat", |heartbeat| heartbeat.complete).await;
    assert_eq!(blind.memory_mib_admittable, None);
    assert!(blind.not_admitting.unwrap().contains("permission denied"));
    machine.use_memory(Ok(2048));
    let seeing =
        cell.heartbeat("a figure", |heartbeat| heartbeat.memory_mib_admittable.is_some()).await;
    assert_eq!(seeing.memory_mib_admittable, Some(29 * 1024));
    agent.stop().await.unwrap();
}
