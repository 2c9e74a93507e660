//! Guests that end between two heartbeats, or while their host is away: their last totals come
//! afterwards, and are credited once, to the time before the end.

use plimsoll_engine::Command;
use plimsoll_types::{
    ClaimId, EndedGuest, GuestReport, HostOutcome, RefusalCode, SandboxId, SandboxStatus, Timestamp,
};

use super::meter::{FEBRUARY, bed, bed_at, busy, end, rows_of, sum};
use super::{Bed, caller, code, used};

fn last_totals(id: SandboxId, attempt: u32, cpu_millis: u64) -> EndedGuest {
    EndedGuest {
        id: ClaimId::Sandbox(id),
        attempt,
        cpu_millis_total_used: cpu_millis,
        egress_bytes_total: Some(10),
    }
}

/// A heartbeat without guests that tells last totals.
fn tell_last(bed: &mut Bed, host: &str, ended: &[EndedGuest]) {
    bed.heartbeat(host, |report| {
        report.memory_mib_admittable = Some(30 * 1024);
        report.ended = ended.to_vec();
    });
}

/// Ends a guest all the way, its host's answer included.
fn end_for_good(bed: &mut Bed, id: SandboxId) {
    end(bed, id);
    bed.answer(HostOutcome::Done);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Terminated);
}

#[test]
fn a_guest_that_no_heartbeat_ever_listed_is_billed_for_what_it_used_and_once() {
    let mut bed = bed();
    let id = bed.run_of("acme", |_| {});
    bed.pass(4_000);
    end_for_good(&mut bed, id);
    assert_eq!(bed.consumed("acme")[0], 0);
    bed.pass(5_000);
    let last = last_totals(id, 1, 3_700);
    tell_last(&mut bed, "h1", &[last, last]);
    assert_eq!(bed.consumed("acme"), [3, 0, 10]);
    // Told again, after a kill of the cell too, and by a host that never had it.
    tell_last(&mut bed, "h1", &[last]);
    bed.restart();
    tell_last(&mut bed, "h1", &[last]);
    tell_last(&mut bed, "h2", &[last_totals(id, 1, 9_000)]);
    tell_last(&mut bed, "h1", &[last_totals(id, 2, 9_000)]);
    assert_eq!(bed.consumed("acme"), [3, 0, 10]);
    let rows = rows_of(&bed, id);
    assert_eq!(sum(&rows, |row| row.cpu_millis), 3_700);
    assert_eq!(sum(&rows, |row| row.egress_bytes), 10);
    assert_eq!(bed.quota("acme").top_consumers[0].0, id.to_string());
}

#[test]
fn last_totals_that_come_in_the_next_period_belong_to_the_one_of_the_end() {
    let mut bed = bed_at(Timestamp(FEBRUARY.0 - 60_000));
    let id = bed.run_of("acme", |_| {});
    let start = bed.now;
    bed.beat(20_000, |now| vec![busy(id, start, now)]);
    bed.pass(30_000);
    end_for_good(&mut bed, id);
    // Its host was away meanwhile, and comes back in February.
    bed.pass(40_000);
    tell_last(&mut bed, "h1", &[last_totals(id, 1, 50_000)]);
    assert_eq!(bed.quota("acme").period, "2027-02");
    assert_eq!(bed.consumed("acme")[0], 0);
    let rows = rows_of(&bed, id);
    assert!(rows.iter().all(|row| row.hour < FEBRUARY), "{rows:?}");
    assert_eq!(sum(&rows, |row| row.cpu_millis), 50_000);
}

#[test]
fn last_totals_of_an_attempt_that_was_followed_by_another_are_added_to_it() {
    let mut bed = bed();
    let id = bed.run_of("acme", |_| {});
    let start = bed.now;
    bed.beat(10_000, |now| vec![busy(id, start, now)]);
    bed.pass(5_000);
    bed.call(&caller("acme"), Command::Stop { id });
    bed.answer(HostOutcome::Done);
    let decision = bed.decision();
    bed.call(&caller("acme"), Command::Start { id, decision });
    bed.answer(HostOutcome::Done);
    bed.pass(5_000);
    let second = GuestReport { attempt: 2, ..used(id, 512, 5_000) };
    bed.heartbeat("h1", |report| {
        report.memory_mib_admittable = Some(30 * 1024);
        report.guests = vec![second];
        report.ended = vec![last_totals(id, 1, 15_000)];
    });
    assert_eq!(bed.consumed("acme")[0], 20);
}

#[test]
fn last_totals_can_exhaust_a_budget() {
    let mut bed = bed();
    bed.change_plan("acme", |limits| limits.consumption.cpu_seconds = Some(3));
    let id = bed.run_of("acme", |_| {});
    bed.pass(4_000);
    end_for_good(&mut bed, id);
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
    tell_last(&mut bed, "h1", &[last_totals(id, 1, 3_700)]);
    assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::BudgetExhausted));
    assert_eq!(bed.events("quota.exhausted").len(), 1);
}
