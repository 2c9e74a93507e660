use plimsoll_host::{DriverResult, HostInput};
use plimsoll_types::{
    HeartbeatAnswer, HostOutcome, HostReservation, Mib, RefusalCode, Regime, ReservationId,
};

use crate::rig::{Rig, config, measured, pause, resume, sample, spec, start};

const BUDGET: i64 = 31 * 1024;

fn see(rig: &mut Rig, used: u64, guests: &[(u128, u64)]) {
    let mut seen = sample(used);
    seen.guests = guests.iter().map(|(id, resident)| measured(*id, *resident)).collect();
    rig.input(HostInput::Sample(Box::new(seen)));
}

fn tell(rig: &mut Rig, reservations: Vec<HostReservation>) {
    let report = rig.host.heartbeat(rig.now);
    let answer = HeartbeatAnswer { accepted: true, reservations, ..HeartbeatAnswer::default() };
    rig.input(HostInput::HeartbeatAnswered { sequence: report.sequence, answer: Box::new(answer) });
}

#[test]
fn the_reserve_stands_until_the_guest_is_measured_and_then_decays() {
    let mut rig = Rig::new(config());
    assert_eq!(rig.admittable(), BUDGET);
    rig.run(spec(1));
    assert_eq!(rig.charged(), 1024);
    rig.pass(2_000);
    see(&mut rig, 300, &[(1, 300)]);
    assert_eq!(rig.charged(), 1024, "too young to count as measured");
    rig.pass(1_000);
    see(&mut rig, 300, &[(1, 300)]);
    rig.pass(60_000);
    see(&mut rig, 300, &[(1, 300)]);
    assert_eq!(rig.charged(), 512, "half of the reserve is left");
    rig.pass(60_000);
    see(&mut rig, 300, &[(1, 300)]);
    assert_eq!(rig.charged(), 300);
    assert_eq!(rig.admittable(), BUDGET - 300, "measured memory is counted once");
}

#[test]
fn what_a_young_guest_holds_already_is_charged() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    rig.pass(1_000);
    see(&mut rig, 2000, &[(1, 2000)]);
    assert_eq!(rig.charged(), 2000);
    assert_eq!(rig.admittable(), BUDGET - 2000);
}

#[test]
fn a_guest_above_its_configured_memory_is_counted_once() {
    let mut committed = config();
    committed.regime = Some(Regime::Committed);
    let mut rig = Rig::new(committed);
    rig.run(spec(1));
    rig.pass(5_000);
    see(&mut rig, 5000, &[(1, 5000)]);
    let account = rig.host.account(rig.now).unwrap();
    assert_eq!(account.charged, Mib(4096));
    assert_eq!(account.system_used, Mib(904));
}

#[test]
fn committed_takes_seven_guests_of_four_gib_and_no_eighth() {
    let mut committed = config();
    committed.regime = Some(Regime::Committed);
    committed.starts_limit = None;
    let mut rig = Rig::new(committed);
    let tokens: Vec<u64> = (1..=8).map(|id| rig.send(start(spec(id)))).collect();
    assert_eq!(rig.calls.len(), 7);
    assert!(matches!(
        rig.answers[&tokens[7]],
        HostOutcome::Refused { code: RefusalCode::NoCapacity, .. }
    ));
}

#[test]
fn regime_none_takes_anything_but_stateful_memory_beyond_the_budget() {
    let mut none = config();
    none.regime = Some(Regime::None);
    none.starts_limit = None;
    let mut rig = Rig::new(none);
    for id in 1..=60 {
        rig.send(start(spec(id)));
    }
    assert_eq!(rig.calls.len(), 60);
    let mut database = spec(100);
    database.stateful = true;
    let token = rig.send(start(database));
    assert!(matches!(
        rig.answers[&token],
        HostOutcome::Refused { code: RefusalCode::NoCapacity, .. }
    ));
}

#[test]
fn overhead_is_part_of_every_charge() {
    // Public failure M1.
    let mut rig = Rig::new(config());
    let mut heavy = spec(1);
    heavy.overhead_mib = Mib(64);
    rig.run(heavy);
    assert_eq!(rig.charged(), 1024 + 64);
    rig.pass(130_000);
    see(&mut rig, 400, &[(1, 300)]);
    assert_eq!(rig.charged(), 364);
    let report = rig.host.report(rig.now);
    assert_eq!(report.guests[0].resident_mib, Some(Mib(364)));
}

#[test]
fn counted_resources_are_fitted() {
    // Public failure M3.
    let mut owning = config();
    owning.counted.insert("gpu".to_owned(), 1);
    let mut rig = Rig::new(owning);
    let mut wants = spec(1);
    wants.counted.insert("gpu".to_owned(), 1);
    rig.run(wants.clone());
    assert_eq!(rig.host.report(rig.now).counted["gpu"], 0);
    wants.id = plimsoll_types::SandboxId(2);
    let token = rig.send(start(wants));
    assert!(matches!(rig.answers[&token], HostOutcome::Refused { .. }));
}

#[test]
fn unknown_is_not_zero() {
    // Public failure H4.
    let mut rig = Rig::new(config());
    let mut blind = sample(0);
    blind.memory_used = Err("/proc/meminfo: permission denied".to_owned());
    rig.input(HostInput::Sample(Box::new(blind)));
    let report = rig.host.report(rig.now);
    assert_eq!(report.memory_mib_admittable, None);
    assert_eq!(
        report.not_admitting.as_deref(),
        Some("used memory unknown: /proc/meminfo: permission denied")
    );
    let token = rig.send(start(spec(1)));
    assert!(matches!(
        rig.answers[&token],
        HostOutcome::Refused { code: RefusalCode::NoHealthyHosts, .. }
    ));
}

#[test]
fn an_old_sample_is_no_knowledge() {
    let mut rig = Rig::new(config());
    rig.pass(30_000);
    assert_eq!(rig.admittable(), BUDGET);
    rig.pass(1);
    assert!(rig.host.account(rig.now).is_err());
}

#[test]
fn a_guest_whose_memory_cannot_be_read_is_charged_in_full() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    rig.pass(10_000);
    let mut seen = sample(300);
    seen.guests = vec![measured(1, 0)];
    seen.guests[0].resident = Err("no such cgroup".to_owned());
    rig.input(HostInput::Sample(Box::new(seen)));
    assert_eq!(rig.charged(), 4096);
    let report = rig.host.report(rig.now);
    assert_eq!(report.guests[0].resident_mib, None);
    assert!(!report.guests[0].measured);
    // The same where the sample passes it over.
    see(&mut rig, 300, &[(1, 300)]);
    assert!(rig.charged() < 4096);
    rig.pass(1_000);
    see(&mut rig, 300, &[]);
    assert_eq!(rig.charged(), 4096);
}

#[test]
fn an_agent_offers_less_than_the_machine() {
    let mut small = config();
    small.memory_offered = Some(Mib(8 * 1024));
    let mut rig = Rig::new(small);
    see(&mut rig, 24 * 1024, &[]);
    assert_eq!(rig.admittable(), 7 * 1024, "the 24 GiB are not of its offer");
    see(&mut rig, 25 * 1024, &[]);
    assert_eq!(rig.admittable(), 6 * 1024);
    assert_eq!(rig.host.report(rig.now).memory_mib_total, Mib(8 * 1024));
}

#[test]
fn a_reservation_is_counted_once() {
    let mut rig = Rig::new(config());
    see(&mut rig, 6000, &[]);
    assert_eq!(rig.admittable(), BUDGET - 6000);
    let reservation = HostReservation {
        id: ReservationId(7),
        memory_mib: Mib(4096),
        stateful: false,
        cgroup: None,
    };
    tell(&mut rig, vec![reservation.clone()]);
    let account = rig.host.account(rig.now).unwrap();
    assert_eq!((account.charged, account.system_used), (Mib(4096), Mib(6000 - 4096)));
    assert_eq!(rig.host.report(rig.now).reservations, [ReservationId(7)]);

    // With a control group it is measured as a guest.
    let grouped = HostReservation { cgroup: Some("/pods/7".to_owned()), ..reservation };
    tell(&mut rig, vec![grouped]);
    rig.pass(130_000);
    let mut seen = sample(6000);
    seen.reservations = vec![plimsoll_host::ReservationSample {
        id: ReservationId(7),
        resident: Ok(Mib(500)),
        cpu_millis_total_used: Some(10),
    }];
    rig.input(HostInput::Sample(Box::new(seen)));
    let account = rig.host.account(rig.now).unwrap();
    assert_eq!((account.charged, account.system_used), (Mib(500), Mib(5500)));
    assert_eq!(rig.host.report(rig.now).guests.len(), 1);

    tell(&mut rig, vec![]);
    assert_eq!(rig.admittable(), BUDGET - 6000);
}

#[test]
fn a_thaw_is_refused_where_its_reserve_does_not_fit() {
    let mut rig = Rig::new(config());
    rig.run(spec(1));
    rig.pass(130_000);
    see(&mut rig, 100, &[(1, 100)]);
    rig.send(pause(1, plimsoll_types::PauseKind::Keep));
    rig.done(DriverResult::Done);
    assert_eq!(rig.charged(), 100, "frozen memory is still there");
    see(&mut rig, 31 * 1024, &[(1, 100)]);
    // Public failure P1: no room now is no failure.
    let refused = rig.send(resume(1));
    assert!(matches!(
        rig.answers[&refused],
        HostOutcome::Refused { code: RefusalCode::NoCapacity, .. }
    ));
    see(&mut rig, 20 * 1024, &[(1, 100)]);
    rig.send(resume(1));
    rig.done(DriverResult::Done);
    assert_eq!(rig.charged(), 1024, "the reserve is anew");
}
