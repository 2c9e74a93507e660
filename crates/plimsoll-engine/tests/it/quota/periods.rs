//! Periods: a function of time alone. Nothing is reset, so nothing can race a reset (Q1).

use plimsoll_engine::rows::UsageRow;
use plimsoll_types::{HostOutcome, Millis, RefusalCode, SandboxId, Timestamp};

use super::super::kept;
use super::meter::{FEBRUARY, LAST_HOUR_OF_JANUARY, bed_at, busy, end, rows_of, sum};
use super::{HOUR, MINUTE, caller, code, used};

#[test]
fn silence_over_the_end_of_a_period_credits_both_with_their_own() {
    let mut bed = bed_at(Timestamp(FEBRUARY.0 - 2 * 60_000));
    let id = bed.run_of("acme", |_| {});
    let start = bed.now;
    bed.beat(90_000, |now| vec![busy(id, start, now)]);
    // The last report came 30 s before midnight, the next one comes 60 s after it.
    bed.pass(30_000);
    assert_eq!(bed.quota("acme").period, "2027-02");
    assert_eq!(bed.consumed("acme")[0], 0, "nothing is known of February yet, and nothing reset");
    bed.pass(60_000);
    bed.report(vec![busy(id, start, bed.now)]);
    assert_eq!(bed.consumed("acme")[0], 60);
    end(&mut bed, id);
    let (january, february): (Vec<_>, Vec<_>) =
        rows_of(&bed, id).into_iter().partition(|row| row.hour < FEBRUARY);
    assert_eq!(sum(&january, |row| row.cpu_millis), 120_000);
    assert_eq!(sum(&february, |row| row.cpu_millis), 60_000);
    assert_eq!(sum(&january, |row| row.charged_mib_millis), 512 * 120_000);
    assert_eq!(sum(&february, |row| row.charged_mib_millis), 512 * 60_000);
}

#[test]
fn a_period_turns_under_load_with_both_exact_and_no_refusal_in_between() {
    let mut bed = bed_at(Timestamp(FEBRUARY.0 - 10 * 60_000));
    bed.change_plan("acme", |limits| limits.consumption.cpu_seconds = Some(10_000));
    let mut ids: Vec<(SandboxId, Timestamp)> = Vec::new();
    // Twenty minutes over midnight, a new sandbox each minute, each keeps a core busy.
    for _ in 0..20 {
        let id = bed.run_of("acme", |create| create.memory_mib = Some(plimsoll_types::Mib(64)));
        ids.push((id, bed.now));
        let guests = ids.clone();
        bed.beat(MINUTE, |now| guests.iter().map(|(id, at)| busy(*id, *at, now)).collect());
    }
    // Sandbox n has lived for 20 - n minutes in all, and for 10 - n of them in January.
    let january: u64 = (0..10).map(|n| (10 - n) * 60).sum();
    let february: u64 = (0..20).map(|n| (20 - n) * 60).sum::<u64>() - january;
    assert_eq!(bed.consumed("acme")[0], february);
    for (id, _) in &ids {
        end(&mut bed, *id);
    }
    let rows = kept::usage(&bed.changes);
    let of = |from, to| {
        let inside: Vec<UsageRow> =
            rows.iter().filter(|row| from <= row.hour && row.hour < to).cloned().collect();
        sum(&inside, |row| row.cpu_millis)
    };
    assert_eq!(of(LAST_HOUR_OF_JANUARY, FEBRUARY), january * 1000);
    assert_eq!(of(FEBRUARY, FEBRUARY + Millis(HOUR)), february * 1000);
    // Together they are above the limit, and 80 % of it is passed in February alone.
    assert_eq!((january, february), (3_300, 9_300));
    let warned = bed.events("quota.warning");
    assert_eq!(warned.len(), 1);
    assert_eq!(warned[0].data["period"], "2027-02");
    assert!(bed.events("quota.exhausted").is_empty());
}

/// The budget is used up in January and again in February: at every moment a create is refused if,
/// and only if, what its own period has used says so.
#[test]
fn refusals_around_the_end_of_a_period_follow_the_numbers_alone() {
    const LIMIT: u64 = 900;
    let mut bed = bed_at(Timestamp(FEBRUARY.0 - 10 * 60_000));
    bed.change_plan("acme", |limits| limits.consumption.cpu_seconds = Some(LIMIT));
    let id = bed.run_of("acme", |_| {});
    let (mut total, mut january, mut february) = (0, 0, 0);
    let mut refused = Vec::new();
    while bed.now < FEBRUARY + Millis(10 * MINUTE) {
        // Four cores, reported every ten seconds, one report of which ends at midnight.
        bed.pass(10_000);
        total += 40_000;
        bed.report(vec![used(id, 512, total)]);
        let in_february = bed.now > FEBRUARY;
        *(if in_february { &mut february } else { &mut january }) += 40;
        // What the report at midnight brings was used before it.
        let own = if bed.now >= FEBRUARY { february } else { january };
        assert_eq!(bed.consumed("acme")[0], own, "{:?}", bed.now);
        let reply = bed.create_of("acme", |create| {
            create.memory_mib = Some(plimsoll_types::Mib(16));
        });
        let wanted = (own >= LIMIT).then_some(RefusalCode::BudgetExhausted);
        assert_eq!(code(&reply), wanted, "{own} used at {:?}", bed.now);
        if wanted.is_some() {
            refused.push(bed.now);
        } else {
            let made = super::sandbox(&reply).row.id;
            bed.answer(HostOutcome::Done);
            bed.call(&caller("acme"), plimsoll_engine::Command::Delete { id: made });
            bed.answer(HostOutcome::Done);
        }
    }
    assert!(refused.iter().any(|at| *at < FEBRUARY) && refused.iter().any(|at| *at > FEBRUARY));
    assert!(!refused.contains(&FEBRUARY), "February begins with nothing used");
    for kind in ["quota.warning", "quota.exhausted"] {
        let periods: Vec<String> = bed
            .events(kind)
            .iter()
            .map(|event| event.data["period"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(periods, ["2027-01", "2027-02"], "{kind}");
    }
    end(&mut bed, id);
    let rows = rows_of(&bed, id);
    let of = |before: bool| {
        let own = rows.iter().filter(|row| (row.hour < FEBRUARY) == before);
        own.map(|row| row.cpu_millis).sum::<u64>()
    };
    assert_eq!((of(true), of(false)), (january * 1000, february * 1000));
}
