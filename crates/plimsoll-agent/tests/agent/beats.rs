use plimsoll_types::{Driver, GuestStatus, HostOutcome, Regime, SandboxId};

use crate::rig::{Agent, Cell, Machine, config, simulated, spec, start};

#[tokio::test]
async fn an_agent_registers_with_its_key_and_says_where_it_is() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Agent::simulated(&mut cell, data.path()).await;
    let registration = cell.registration(1).await;
    assert_eq!(cell.keys(), ["Bearer host-key"]);
    assert_eq!(registration.address, Some(agent.url()));
    assert_eq!(registration.secret.unwrap().expose().len(), 64);
    let heartbeat = cell.heartbeats().pop().unwrap();
    assert_eq!(heartbeat.boot_id, registration.boot_id);
    assert_eq!(heartbeat.incarnation, Some(1));
    assert_eq!(heartbeat.drivers, Some(vec!["simulated".to_owned()]));
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn the_secret_outlives_the_agent() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    Agent::simulated(&mut cell, data.path()).await.stop().await.unwrap();
    let agent = Agent::simulated(&mut cell, data.path()).await;
    let registrations = cell.registrations();
    assert_eq!(registrations[0].secret, registrations[1].secret);
    assert_ne!(registrations[0].boot_id, registrations[1].boot_id);
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_cell_that_is_away_is_waited_for_and_the_next_replica_is_asked() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    cell.set_broken(503);
    let mut config = config(&cell, data.path());
    // Nobody listens there.
    config.cells.insert(0, "http://127.0.0.1:1".to_owned());
    let drivers = vec![simulated(&config)];
    let agent = Agent::start(config, drivers, &Machine::idle()).await;
    cell.turn_away(503).await;
    cell.heartbeat("a heartbeat after all", |heartbeat| heartbeat.complete).await;

    cell.turn_away(500).await;
    let sequence = cell.heartbeats().pop().unwrap().sequence;
    cell.heartbeat("one after the fault", |heartbeat| heartbeat.sequence > sequence).await;
    assert_eq!(cell.registrations().len(), 1, "a failed heartbeat is no new start");
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn an_agent_whose_reports_are_outdated_registers_anew() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Agent::simulated(&mut cell, data.path()).await;
    cell.set_answer(|answer| answer.accepted = false);
    cell.registration(2).await;
    cell.set_answer(|answer| answer.accepted = true);
    cell.heartbeat("a higher incarnation", |heartbeat| heartbeat.incarnation >= Some(2)).await;
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn the_pools_regime_comes_with_the_answer() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    cell.set_answer(|answer| answer.regime = Some(Regime::Committed));
    let agent = Agent::simulated(&mut cell, data.path()).await;
    cell.heartbeat("the pool's regime", |heartbeat| {
        heartbeat.memory_admission == Some(Regime::Committed)
    })
    .await;
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn an_exit_is_seen_and_told() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let config = config(&cell, data.path());
    let driver = simulated(&config);
    let agent = Agent::start(config, vec![driver.clone()], &Machine::idle()).await;
    cell.heartbeat("a heartbeat", |heartbeat| heartbeat.memory_mib_admittable.is_some()).await;
    assert_eq!(cell.send(start(spec(1, Driver::Simulated))).await, HostOutcome::Done);
    // Past the agent, as a crash would be.
    let name = plimsoll_agent::driver::GuestName { id: SandboxId(1), attempt: 1 };
    driver.stop(&name).await.unwrap();
    cell.heartbeat("the exit", |heartbeat| {
        let guests = heartbeat.guests.as_deref().unwrap_or_default();
        guests.iter().any(|guest| guest.status == GuestStatus::Exited)
    })
    .await;
    agent.stop().await.unwrap();
}
