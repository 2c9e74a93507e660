use plimsoll_host::{DriverOp, DriverResult, HostEvent, HostInput};
use plimsoll_types::{
    BasisPoints, Driver, GuestStatus, HostOutcome, PauseKind, RefusalCode, SandboxId,
};

use crate::rig::{Rig, config, failed, measured, resume, sample, spec, start};

fn press(rig: &mut Rig, psi_bp: u64, guests: &[(u128, u64)]) {
    let mut seen = sample(1000);
    seen.pressure_some = Ok(BasisPoints(psi_bp));
    seen.guests = guests.iter().map(|(id, resident)| measured(*id, *resident)).collect();
    rig.input(HostInput::Sample(Box::new(seen)));
}

#[test]
fn the_gate_shuts_at_one_line_and_opens_at_another_after_a_while() {
    let mut rig = Rig::new(config());
    press(&mut rig, 999, &[]);
    assert!(!rig.host.gate_is_shut());
    press(&mut rig, 1_000, &[]);
    assert!(rig.host.gate_is_shut());
    let report = rig.host.report(rig.now);
    assert_eq!(report.memory_mib_admittable, None);
    assert_eq!(report.not_admitting.as_deref(), Some("pressure"));
    assert_eq!(report.pressure_bp, Some(1_000));
    let token = rig.send(start(spec(1)));
    assert!(matches!(
        rig.answers[&token],
        HostOutcome::Refused { code: RefusalCode::HostPressure, .. }
    ));

    press(&mut rig, 499, &[]);
    rig.pass(14_999);
    press(&mut rig, 499, &[]);
    assert!(rig.host.gate_is_shut(), "not calm for long enough");
    rig.pass(1);
    press(&mut rig, 499, &[]);
    assert!(!rig.host.gate_is_shut());
    assert!(rig.events.contains(&HostEvent::GateOpened));
    assert!(rig.host.report(rig.now).memory_mib_admittable.is_some());
}

#[test]
fn little_available_memory_shuts_the_gate_without_psi() {
    let mut rig = Rig::new(config());
    let mut seen = sample(0);
    seen.pressure_some = Err("no PSI in this kernel".to_owned());
    seen.pressure_full = Err("no PSI in this kernel".to_owned());
    // Half of the headroom of 1 GiB.
    seen.memory_available = Ok(plimsoll_types::Mib(511));
    rig.input(HostInput::Sample(Box::new(seen)));
    assert!(rig.host.gate_is_shut());
    assert_eq!(
        rig.events,
        [HostEvent::GateShut { reason: "memory pressure: 511 MiB available".to_owned() }]
    );
}

#[test]
fn the_idle_give_way_first_then_the_least_important_and_largest() {
    let mut rig = Rig::new(config());
    let mut important = spec(1);
    important.priority = 5;
    let mut database = spec(2);
    database.stateful = true;
    let (large, small) = (spec(3), spec(4));
    for guest in [important, database, large, small] {
        rig.run(guest);
    }
    let sizes = [(1, 9000), (2, 4000), (3, 3000), (4, 900)];
    rig.pass(130_000);
    let mut acts = Vec::new();
    for _ in 0..50 {
        for id in [1, 2, 3] {
            rig.input(HostInput::Active { id: SandboxId(id) });
        }
        press(&mut rig, 5_000, &sizes);
        while !rig.calls.is_empty() {
            acts.push((rig.calls[0].id.0, rig.calls[0].op.word(), rig.now.uptime.0));
            rig.done(DriverResult::Done);
        }
        rig.pass(3_000);
    }
    let start = acts[0].2;
    let order: Vec<_> = acts.iter().map(|(id, op, at)| (*id, *op, at - start)).collect();
    assert_eq!(
        order,
        // The idle one is frozen, which frees nothing, so the next act follows at once; then each
        // act is given its time to show. Never the stateful.
        [(4, "pause", 0), (3, "stop", 3_000), (4, "stop", 18_000), (1, "stop", 33_000)]
    );
    assert_eq!(rig.host.running(SandboxId(2)), Some(1));
    assert!(matches!(rig.events.last(), Some(HostEvent::PressureNoVictim { .. })));
    let report = rig.host.report(rig.now);
    assert_eq!(report.guests[2].status, GuestStatus::Exited);
    let reason = report.guests[2].reason.as_deref().unwrap();
    assert!(reason.starts_with("ended by its host under memory pressure: PSI some 50.00 %"));
}

#[test]
fn a_guest_whose_pause_failed_is_ended_the_next_time() {
    let mut rig = Rig::new(config());
    let mut guest = spec(1);
    guest.driver = Driver::Gvisor;
    rig.run(guest);
    press(&mut rig, 5_000, &[(1, 10)]);
    assert!(rig.calls.is_empty(), "one reading is no trend");
    rig.pass(3_000);
    press(&mut rig, 5_000, &[(1, 10)]);
    assert_eq!(rig.calls[0].op, DriverOp::Pause { kind: PauseKind::Checkpoint });
    let meanwhile = rig.send(resume(1));
    assert!(matches!(
        rig.answers[&meanwhile],
        HostOutcome::Refused { code: RefusalCode::HostPressure, .. }
    ));
    rig.done(failed("no room on the disk"));
    rig.pass(15_000);
    press(&mut rig, 5_000, &[(1, 10)]);
    assert_eq!(rig.calls[0].op, DriverOp::Stop);
}
