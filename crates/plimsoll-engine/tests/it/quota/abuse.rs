//! Abuse by shape: said once, with its terms; acted upon only where the operator wants it, and only
//! where nobody pays.

use plimsoll_engine::rows::{PausedBy, Rows};
use plimsoll_engine::{AbuseAct, Command, EngineConfig, Input};
use plimsoll_types::{HostOutcome, RefusalCode, SandboxId, SandboxStatus, Timestamp};

use super::{Bed, HOUR, MINUTE, caller, code, sandbox, tenant, used};

fn bed(abuse: AbuseAct) -> Bed {
    let config = EngineConfig { abuse, ..EngineConfig::default() };
    let mut bed = Bed::with(config, Rows::default(), 1, Timestamp(1_800_000_000_000));
    bed.pool("local", |settings| {
        settings.stale_seconds = 600;
        settings.dead_seconds = 7_200;
    });
    bed.report(Vec::new());
    bed.tenant("acme", |_| {});
    bed
}

/// One guest keeps its core busy for so long; reports every minute.
fn mine(bed: &mut Bed, id: SandboxId, from: Timestamp, millis: u64) {
    let end = bed.now.0 + i64::try_from(millis).unwrap();
    while bed.now.0 < end {
        bed.pass(MINUTE);
        let total = bed.now.since(from).0;
        bed.report(vec![used(id, 512, total)]);
    }
}

#[test]
fn a_build_is_none_and_a_miner_is_said_once_with_its_terms() {
    let mut bed = bed(AbuseAct::Nothing);
    let id = bed.run_of("acme", |_| {});
    let from = bed.now;
    mine(&mut bed, id, from, 3 * HOUR);
    assert!(bed.events("abuse.suspected").is_empty());
    mine(&mut bed, id, from, 17 * HOUR);
    let said = bed.events("abuse.suspected");
    assert_eq!(said.len(), 1);
    let data = &said[0].data;
    assert_eq!(data["tenant"], "acme");
    assert_eq!(data["act"], "nothing");
    let terms = &data["terms"];
    let sum: u64 = terms.as_object().unwrap().values().map(|points| points.as_u64().unwrap()).sum();
    assert_eq!(data["score"].as_u64(), Some(sum));
    assert_eq!((sum, &terms["no_payment_method"]), (80, &serde_json::json!(20)));
    assert!(terms["full_core"].as_u64().unwrap() >= 40);
    // A restart says nothing again, and forgets nothing.
    bed.restart();
    bed.report(vec![used(id, 512, bed.now.since(from).0)]);
    mine(&mut bed, id, from, 2 * HOUR);
    assert_eq!(bed.events("abuse.suspected").len(), 1);
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
}

#[test]
fn the_length_of_busy_cores_survives_a_restart() {
    let mut bed = bed(AbuseAct::Nothing);
    let id = bed.run_of("acme", |_| {});
    let from = bed.now;
    for _ in 0..10 {
        mine(&mut bed, id, from, 2 * HOUR);
        bed.restart();
        bed.report(vec![used(id, 512, bed.now.since(from).0)]);
    }
    assert_eq!(bed.events("abuse.suspected").len(), 1);
}

#[test]
fn a_break_ends_the_episode_and_a_new_one_is_said_anew() {
    let mut bed = bed(AbuseAct::Nothing);
    let id = bed.run_of("acme", |_| {});
    let from = bed.now;
    mine(&mut bed, id, from, 18 * HOUR);
    assert_eq!(bed.events("abuse.suspected").len(), 1);
    let total = bed.now.since(from).0;
    for _ in 0..5 {
        bed.pass(MINUTE);
        bed.report(vec![used(id, 512, total)]);
    }
    let again = Timestamp(bed.now.0 - i64::try_from(total).unwrap());
    mine(&mut bed, id, again, 19 * HOUR);
    assert_eq!(bed.events("abuse.suspected").len(), 2);
}

#[test]
fn ten_creates_and_deletes_a_minute_are_a_loop() {
    let mut bed = bed(AbuseAct::StopAdmitting);
    let mut refused = None;
    for turn in 0..700 {
        bed.pass(6_000);
        bed.report(Vec::new());
        let reply = bed.create_of("acme", |_| {});
        if let Some(code) = code(&reply) {
            refused = Some((turn, code));
            break;
        }
        let id = sandbox(&reply).row.id;
        bed.call(&caller("acme"), Command::Delete { id });
        while !bed.sent.is_empty() {
            bed.answer(HostOutcome::Done);
        }
    }
    let (turn, code) = refused.expect("stopped");
    assert_eq!(code, RefusalCode::TenantSuspended);
    assert!(turn >= 590, "{turn}");
    assert_eq!(bed.events("abuse.suspected")[0].data["act"], "stop_admitting");
    assert!(bed.tenant_row("acme").suspended.unwrap().contains("abuse"));
}

#[test]
fn sandboxes_that_lived_and_reservations_that_were_used_are_no_loop() {
    let mut bed = bed(AbuseAct::Pause);
    for _ in 0..100 {
        let id = bed.run_of("acme", |_| {});
        bed.later(MINUTE);
        bed.call(&caller("acme"), Command::Delete { id });
        while !bed.sent.is_empty() {
            bed.answer(HostOutcome::Done);
        }
        let item = bed.item(64);
        let id = item.id;
        let command = bed.reserve(item, plimsoll_engine::ReserveMode::Reject);
        bed.call(&caller("acme"), command);
        bed.call(&caller("acme"), Command::Commit { id, cgroup: None });
        bed.call(&caller("acme"), Command::Release { id });
    }
    assert!(bed.events("abuse.suspected").is_empty());
}

#[test]
fn a_million_requests_on_the_first_day_say_something_and_later_nothing() {
    let mut bed = bed(AbuseAct::Nothing);
    let counts =
        |count| Input::Requests { counts: vec![(tenant("acme"), count), (tenant("nobody"), 1)] };
    bed.pass(HOUR);
    bed.input(counts(100_000));
    assert!(bed.events("abuse.suspected").is_empty());
    bed.pass(MINUTE);
    bed.input(counts(900_000));
    assert_eq!(bed.events("abuse.suspected")[0].data["requests"], 1_000_000);
    let mut bed = self::bed(AbuseAct::Nothing);
    bed.pass(25 * HOUR);
    bed.input(counts(1_000_000));
    assert!(bed.events("abuse.suspected").is_empty());
}

#[test]
fn a_suspect_is_paused_and_a_payment_method_or_an_operator_gives_all_back() {
    let lifts: [fn(&mut Bed); 2] = [
        |bed| bed.change_tenant("acme", |row| row.payment_method = true),
        |bed| bed.change_tenant("acme", |row| row.suspended = None),
    ];
    for lift in lifts {
        let mut bed = bed(AbuseAct::Pause);
        let id = bed.run_of("acme", |_| {});
        let quiet = bed.run_of("acme", |_| {});
        let from = bed.now;
        let mut suspected = false;
        for _ in 0..20 * 60 {
            bed.pass(MINUTE);
            let total = bed.now.since(from).0;
            bed.report(vec![used(id, 512, total), used(quiet, 512, 0)]);
            if !bed.events("abuse.suspected").is_empty() {
                suspected = true;
                break;
            }
        }
        assert!(suspected);
        assert_eq!(bed.show(id).row.status, SandboxStatus::Pausing);
        assert_eq!(bed.show(quiet).row.paused_by, Some(PausedBy::Abuse));
        while !bed.sent.is_empty() {
            bed.answer(HostOutcome::Done);
        }
        assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::TenantSuspended));
        assert_eq!(code(&bed.resume_of("acme", id)), Some(RefusalCode::TenantSuspended));
        assert_eq!(code(&bed.create_of("default", |_| {})), None);
        bed.sent.clear();
        bed.restart();
        lift(&mut bed);
        assert_eq!(bed.tenant_row("acme").suspended, None);
        while !bed.sent.is_empty() {
            bed.answer(HostOutcome::Done);
        }
        assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
        assert_eq!(bed.show(quiet).row.status, SandboxStatus::Running);
        // It goes on as before: that was looked at.
        for _ in 0..60 {
            bed.pass(MINUTE);
            let total = bed.now.since(from).0;
            bed.report(vec![used(id, 512, total), used(quiet, 512, 0)]);
        }
        assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
    }
}

#[test]
fn who_pays_is_said_and_never_stopped() {
    let mut bed = bed(AbuseAct::Pause);
    bed.pass(HOUR);
    bed.change_tenant("acme", |row| {
        row.payment_method = true;
    });
    assert!(bed.tenant_row("acme").payment_method_ever);
    bed.input(Input::Requests { counts: vec![(tenant("acme"), 1_000_000)] });
    bed.report(Vec::new());
    let id = bed.run_of("acme", |_| {});
    let from = bed.now;
    mine(&mut bed, id, from, 20 * HOUR);
    assert_eq!(bed.events("abuse.suspected")[0].data["act"], "nothing");
    assert_eq!(bed.tenant_row("acme").suspended, None);
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
}
