use plimsoll_host::{DriverOp, DriverResult, HostEvent, HostInput, PressureLevel, PressureRule};
use plimsoll_types::{Driver, GuestStatus, HostOutcome, Mib, PauseKind, RefusalCode, SandboxId};

use crate::rig::{Rig, config, measured, resume, sample, spec, start};

fn press(rig: &mut Rig, psi_bp: u32, guests: &[(u128, u64)]) {
    let mut seen = sample(1000);
    seen.pressure_bp = Ok(psi_bp);
    seen.guests = guests.iter().map(|(id, resident)| measured(*id, *resident)).collect();
    rig.input(HostInput::Sample(Box::new(seen)));
}

#[test]
fn the_gate_shuts_at_one_line_and_opens_at_another_after_a_while() {
    let mut rig = Rig::new(config());
    press(&mut rig, 1_999, &[]);
    assert!(!rig.host.gate_is_shut());
    press(&mut rig, 2_000, &[]);
    assert!(rig.host.gate_is_shut());
    let report = rig.host.report(rig.now);
    assert_eq!(report.memory_mib_admittable, None);
    assert_eq!(report.not_admitting.as_deref(), Some("pressure"));
    let token = rig.send(start(spec(1)));
    assert!(matches!(
        rig.answers[&token],
        HostOutcome::Refused { code: RefusalCode::HostPressure, .. }
    ));

    press(&mut rig, 499, &[]);
    rig.pass(29_999);
    press(&mut rig, 499, &[]);
    assert!(rig.host.gate_is_shut(), "not calm for long enough");
    press(&mut rig, 500, &[]);
    rig.pass(1_000);
    press(&mut rig, 499, &[]);
    rig.pass(29_999);
    press(&mut rig, 499, &[]);
    assert!(rig.host.gate_is_shut(), "calm begins anew after each rise");
    rig.pass(1);
    press(&mut rig, 499, &[]);
    assert!(!rig.host.gate_is_shut());
    assert!(rig.events.contains(&HostEvent::GateOpened));
    assert!(rig.host.report(rig.now).memory_mib_admittable.is_some());
}

#[test]
fn either_signal_is_enough_and_neither_is_needed() {
    let rule = PressureRule::default();
    let total = Mib(10_000);
    assert_eq!(rule.level(None, None), None);
    assert_eq!(rule.level(Some(0), Some((Mib(5_000), total))), Some(PressureLevel::Calm));
    assert_eq!(rule.level(Some(600), None), Some(PressureLevel::Raised));
    assert_eq!(rule.level(Some(0), Some((Mib(299), total))), Some(PressureLevel::Shut));
    assert_eq!(rule.level(None, Some((Mib(149), total))), Some(PressureLevel::Act));
    assert_eq!(rule.level(Some(4_000), Some((Mib(5_000), total))), Some(PressureLevel::Act));
}

#[test]
fn the_idle_give_way_first_then_the_least_important_and_largest() {
    let mut rig = Rig::new(config());
    let mut important = spec(1);
    important.priority = 5;
    let mut database = spec(2);
    database.stateful = true;
    database.preemptible = false;
    let mut unwilling = spec(3);
    unwilling.preemptible = false;
    let (small, large) = (spec(4), spec(5));
    for guest in [important, database, unwilling, small, large] {
        rig.run(guest);
    }
    let sizes = [(1, 9000), (2, 4000), (3, 3500), (4, 900), (5, 3000)];
    rig.pass(130_000);
    for id in [1, 2, 3, 5] {
        rig.input(HostInput::Active { id: SandboxId(id) });
    }
    press(&mut rig, 5_000, &sizes);
    assert_eq!(rig.calls[0].id, SandboxId(4), "idle, though the smallest");
    assert_eq!(rig.calls[0].op, DriverOp::Pause { kind: PauseKind::Keep });
    rig.done(DriverResult::Done);
    let report = rig.host.report(rig.now);
    let paused = report.guests.iter().find(|guest| guest.status == GuestStatus::Paused).unwrap();
    assert!(paused.reason.as_deref().unwrap().contains("PSI 50.00 %"));

    // A freeze frees nothing, so the next sample may act again.
    let mut order = Vec::new();
    for _ in 0..5 {
        rig.pass(10_000);
        for id in [1, 2, 3, 5] {
            rig.input(HostInput::Active { id: SandboxId(id) });
        }
        press(&mut rig, 5_000, &sizes);
        while !rig.calls.is_empty() {
            assert_eq!(rig.calls[0].op, DriverOp::Stop);
            order.push(rig.calls[0].id.0);
            rig.done(DriverResult::Done);
        }
    }
    assert_eq!(
        order,
        [5, 4, 3, 1],
        "lowest priority, the willing, the largest; never the stateful"
    );
    assert_eq!(rig.host.running(SandboxId(2)), Some(1));
    assert!(matches!(rig.events.last(), Some(HostEvent::PressureNoVictim { .. })));
}

#[test]
fn one_act_is_given_time_to_show() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    rig.run(spec(2));
    press(&mut rig, 5_000, &[(1, 10), (2, 20)]);
    press(&mut rig, 5_000, &[(1, 10), (2, 20)]);
    assert_eq!(rig.calls.len(), 1);
    rig.pass(10_000);
    press(&mut rig, 5_000, &[(1, 10), (2, 20)]);
    assert_eq!(rig.calls.len(), 2);
}

#[test]
fn a_guest_whose_pause_failed_is_ended_the_next_time() {
    let mut rig = Rig::new(config());
    let mut guest = spec(1);
    guest.driver = Driver::Gvisor;
    rig.run(guest);
    press(&mut rig, 5_000, &[(1, 10)]);
    assert_eq!(rig.calls[0].op, DriverOp::Pause { kind: PauseKind::Checkpoint });
    let meanwhile = rig.send(resume(1));
    assert!(matches!(
        rig.answers[&meanwhile],
        HostOutcome::Refused { code: RefusalCode::HostPressure, .. }
    ));
    rig.done(crate::rig::failed("no room on the disk"));
    rig.pass(10_000);
    press(&mut rig, 5_000, &[(1, 10)]);
    assert_eq!(rig.calls[0].op, DriverOp::Stop);
}
