use plimsoll_types::{
    Driver, Fence, GuestStatus, HostOp, HostOutcome, Mib, PauseKind, RefusalCode, SandboxId,
};

use crate::rig::{Agent, Cell, end, spec, start};

#[tokio::test]
async fn a_guest_goes_through_its_life() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Agent::simulated(&mut cell, data.path()).await;
    let free = cell.capacity().await.memory_mib_admittable.unwrap();
    assert_eq!(free, 31 * 1024);
    assert!(cell.capacity().await.counted["disk_mib"] > 0);

    let mut large = spec(1, Driver::Simulated);
    large.memory_mib = Mib(4096);
    large.settle_seconds = 1000;
    assert_eq!(cell.send(start(large.clone())).await, HostOutcome::Done);
    let report = cell.capacity().await;
    assert_eq!(report.memory_mib_admittable, Some(free - 1024), "its reserve");
    assert_eq!(report.seen_through, Some(1));
    let guest = cell.guest(1).await.unwrap();
    assert_eq!((guest.status, guest.charge_mib), (GuestStatus::Running, Some(1024)));
    cell.heartbeat("a heartbeat that lists it", |heartbeat| {
        heartbeat.guests.as_ref().is_some_and(|guests| guests.len() == 1)
    })
    .await;

    let (id, attempt) = (SandboxId(1), 1);
    let kind = PauseKind::Checkpoint;
    assert_eq!(cell.send(HostOp::Pause { id, attempt, kind }).await, HostOutcome::Done);
    let guest = cell.guest(1).await.unwrap();
    assert_eq!((guest.status, guest.charge_mib), (GuestStatus::Paused, Some(0)));
    assert_eq!(cell.send(HostOp::Resume { id, attempt }).await, HostOutcome::Done);
    assert_eq!(cell.guest(1).await.unwrap().status, GuestStatus::Running);
    assert_eq!(cell.send(HostOp::Stop { id, attempt }).await, HostOutcome::Done);
    assert_eq!(cell.guest(1).await.unwrap().status, GuestStatus::Exited);
    assert_eq!(cell.send(end(1)).await, HostOutcome::Done);
    assert_eq!(cell.guest(1).await, None);
    assert_eq!(cell.capacity().await.memory_mib_admittable, Some(free));

    let late = cell.send(start(large)).await;
    assert!(matches!(late, HostOutcome::Fenced { .. }), "an ended attempt stays ended: {late:?}");
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn the_gate_refuses_what_does_not_fit_and_the_same_start_joins() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Agent::simulated(&mut cell, data.path()).await;
    let mut database = spec(1, Driver::Simulated);
    database.stateful = true;
    database.memory_mib = Mib(20 * 1024);
    let fence = Fence { epoch: 1, number: 1 };
    let (first, second) = tokio::join!(cell.send_as(fence, start(database.clone())), async {
        cell.send_as(fence, start(database.clone())).await
    });
    assert_eq!((first, second), (HostOutcome::Done, HostOutcome::Done));
    let mut another = database.clone();
    another.id = SandboxId(2);
    let refused = cell.send_as(Fence { epoch: 1, number: 2 }, start(another.clone())).await;
    assert!(
        matches!(refused, HostOutcome::Refused { code: RefusalCode::NoCapacity, .. }),
        "{refused:?}"
    );
    let older = cell.send_as(Fence { epoch: 0, number: 9 }, start(another)).await;
    let highest = Fence { epoch: 1, number: 2 };
    assert_eq!(older, HostOutcome::Fenced { highest });
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_restarted_agent_takes_its_guests_over_with_their_charges() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let agent = Agent::simulated(&mut cell, data.path()).await;
    let mut aged = spec(1, Driver::Simulated);
    aged.memory_mib = Mib(4096);
    aged.decay_seconds = 1_000_000;
    for id in [1, 2] {
        aged.id = SandboxId(id);
        assert_eq!(cell.send(start(aged.clone())).await, HostOutcome::Done);
    }
    let (id, attempt, kind) = (SandboxId(2), 1, PauseKind::Checkpoint);
    assert_eq!(cell.send(HostOp::Pause { id, attempt, kind }).await, HostOutcome::Done);
    let before = cell.guest(1).await.unwrap();
    let boot = cell.capacity().await.boot_id;
    agent.stop().await.unwrap();

    let agent = Agent::simulated(&mut cell, data.path()).await;
    let report = cell.capacity().await;
    assert_ne!(report.boot_id, boot);
    assert_eq!(report.incarnation, Some(2));
    assert_eq!(report.seen_through, Some(3), "what was acted on is still known");
    assert!(report.complete);
    let after = cell.guest(1).await.unwrap();
    assert_eq!((after.status, after.measured), (GuestStatus::Running, true));
    // The reserve has decayed by a few thousandths at most; a new one would be 1024 again.
    assert!(before.charge_mib >= after.charge_mib, "{before:?} {after:?}");
    assert_eq!(cell.guest(2).await.unwrap().status, GuestStatus::Paused);
    let old = cell.send_as(Fence { epoch: 1, number: 2 }, end(1)).await;
    assert!(matches!(old, HostOutcome::Fenced { .. }), "{old:?}");
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn guests_end_with_the_agent_only_where_that_is_wanted() {
    let data = tempfile::tempdir().unwrap();
    let mut cell = Cell::start().await;
    let mut config = crate::rig::config(&cell, data.path());
    config.end_guests = true;
    let drivers = vec![crate::rig::simulated(&config)];
    let agent = Agent::start(config, drivers, &crate::rig::Machine::idle()).await;
    cell.heartbeat("a heartbeat", |heartbeat| heartbeat.memory_mib_admittable.is_some()).await;
    assert_eq!(cell.send(start(spec(1, Driver::Simulated))).await, HostOutcome::Done);
    agent.stop().await.unwrap();
    let agent = Agent::simulated(&mut cell, data.path()).await;
    let guest = cell.guest(1).await.unwrap();
    assert_eq!(guest.status, GuestStatus::Exited, "known, and gone");
    agent.stop().await.unwrap();
}
