//! Rates: creates, forks, resumes; exact times; what costs a token and what does not.

use plimsoll_engine::rows::RateLimits;
use plimsoll_engine::{Command, ReserveMode};
use plimsoll_types::{Driver, HostOutcome, Millis, OnFull, RefusalCode, RetryHint, TemplateName};

use super::{Bed, HOUR, MINUTE, caller, code, refusal, sandbox};

fn bed(rates: RateLimits) -> Bed {
    let mut bed = Bed::new();
    bed.forkable();
    bed.report(Vec::new());
    bed.tenant("acme", |limits| limits.rate = rates);
    bed
}

fn left(bed: &mut Bed, kind: &str) -> Option<u64> {
    let quota = bed.quota("acme");
    quota.rate.iter().find(|(name, _)| *name == kind).expect("every rate is listed").1.left
}

#[test]
fn a_refusal_for_rate_says_exactly_when_it_passes() {
    let mut bed = bed(RateLimits {
        creates_per_minute: Some(3),
        creates_per_hour: Some(4),
        ..Default::default()
    });
    for _ in 0..3 {
        assert_eq!(code(&bed.create_of("acme", |_| {})), None);
    }
    let reply = bed.create_of("acme", |_| {});
    assert_eq!(refusal(&reply).code, RefusalCode::RateLimited);
    assert_eq!(refusal(&reply).retry, RetryHint::After(Millis(20_000)));
    let limit = refusal(&reply).limit.clone().unwrap();
    assert_eq!((limit.name, limit.incoming, limit.limit), ("creates_per_minute", 1, 3));
    bed.later(19_999);
    assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::RateLimited));
    bed.later(1);
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
    // Now the hour's bucket holds longest: four an hour is one each quarter, of which 20 s are over.
    let reply = bed.create_of("acme", |_| {});
    assert_eq!(refusal(&reply).retry, RetryHint::After(Millis(900_000 - 20_000)));
    bed.later(900_000 - 20_000);
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
}

#[test]
fn every_rate_is_listed_and_an_absent_one_is_unlimited() {
    let mut bed = bed(RateLimits { forks_per_hour: Some(7), ..RateLimits::default() });
    let quota = bed.quota("acme");
    let names: Vec<&str> = quota.rate.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "creates_per_minute",
            "creates_per_hour",
            "forks_per_minute",
            "forks_per_hour",
            "resumes_per_minute",
            "resumes_per_hour"
        ]
    );
    for (name, view) in &quota.rate {
        let limit = (*name == "forks_per_hour").then_some(7);
        assert_eq!((view.limit, view.left), (limit, limit), "{name}");
    }
}

#[test]
fn a_fork_counts_against_its_own_rate_and_as_a_create() {
    let mut bed = bed(RateLimits {
        forks_per_minute: Some(1),
        creates_per_minute: Some(3),
        ..RateLimits::default()
    });
    let id = bed.run_of("acme", |_| {});
    assert_eq!(code(&bed.fork_of("acme", id)), None);
    let reply = bed.fork_of("acme", id);
    assert_eq!(refusal(&reply).limit.as_ref().unwrap().name, "forks_per_minute");
    assert_eq!(refusal(&reply).retry, RetryHint::After(Millis(MINUTE)));
    assert_eq!(left(&mut bed, "creates_per_minute"), Some(1));
}

#[test]
fn resumes_and_starts_count_whatever_call_brings_them_about() {
    let mut bed = bed(RateLimits {
        resumes_per_minute: Some(2),
        resumes_per_hour: Some(3),
        ..RateLimits::default()
    });
    let id = bed.run_of("acme", |_| {});
    let pause = |bed: &mut Bed| {
        assert_eq!(code(&bed.call(&caller("acme"), Command::Pause { id })), None);
        bed.answer(HostOutcome::Done);
    };
    pause(&mut bed);
    assert_eq!(code(&bed.resume_of("acme", id)), None);
    bed.answer(HostOutcome::Done);
    // Of one that runs already, nothing is resumed.
    assert_eq!(code(&bed.resume_of("acme", id)), None);
    assert_eq!(left(&mut bed, "resumes_per_minute"), Some(1));
    // A call into a paused guest wakes it.
    pause(&mut bed);
    let decision = bed.decision();
    assert_eq!(code(&bed.call(&caller("acme"), Command::Touch { id, decision })), None);
    bed.answer(HostOutcome::Done);
    let stop = bed.call(&caller("acme"), Command::Stop { id });
    assert_eq!(code(&stop), None);
    bed.answer(HostOutcome::Done);
    let decision = bed.decision();
    let reply = bed.call(&caller("acme"), Command::Start { id, decision });
    assert_eq!(refusal(&reply).limit.as_ref().unwrap().name, "resumes_per_minute");
    assert_eq!(refusal(&reply).retry, RetryHint::After(Millis(30_000)));
    bed.later(30_000);
    let decision = bed.decision();
    assert_eq!(code(&bed.call(&caller("acme"), Command::Start { id, decision })), None);
    bed.answer(HostOutcome::Done);
    pause(&mut bed);
    bed.later(MINUTE);
    let reply = bed.resume_of("acme", id);
    assert_eq!(refusal(&reply).limit.as_ref().unwrap().name, "resumes_per_hour");
    // Creates are none of this.
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
}

#[test]
fn a_resume_during_its_pause_counts_once_and_a_queued_one_no_more() {
    let mut bed = bed(RateLimits { resumes_per_minute: Some(1), ..RateLimits::default() });
    bed.pool("local", |settings| settings.limit = Some(1));
    bed.template("vm", |template| template.driver = Driver::Gvisor);
    let vm = TemplateName::new("vm").unwrap();
    let id = bed.run_of("acme", |create| create.template = vm.clone());
    bed.call(&caller("acme"), Command::Pause { id });
    assert_eq!(code(&bed.resume_of("acme", id)), None);
    assert_eq!(code(&bed.resume_of("acme", id)), None);
    assert_eq!(left(&mut bed, "resumes_per_minute"), Some(0));
    // Somebody else takes the slot the moment it is free: the resume queues.
    bed.call(&caller("acme"), Command::Pause { id });
    bed.answer(HostOutcome::Done);
    bed.run_of("default", |create| create.template = vm);
    bed.later(MINUTE);
    let reply = bed.resume_of("acme", id);
    assert!(sandbox(&reply).row.resume_requested_at.is_some());
    // Asking again is no second resume.
    for _ in 0..3 {
        assert_eq!(code(&bed.resume_of("acme", id)), None);
    }
}

#[test]
fn a_batch_counts_every_item_and_a_larger_one_than_the_bucket_never_passes() {
    let mut bed = bed(RateLimits { creates_per_minute: Some(10), ..RateLimits::default() });
    assert_eq!(code(&bed.batch_of("acme", 7, 64)), None);
    let reply = bed.batch_of("acme", 4, 64);
    assert_eq!(refusal(&reply).retry, RetryHint::After(Millis(6_000)));
    assert_eq!(left(&mut bed, "creates_per_minute"), Some(3), "all or nothing");
    assert_eq!(code(&bed.batch_of("acme", 3, 64)), None);
    bed.later(HOUR);
    let reply = bed.batch_of("acme", 11, 64);
    assert_eq!(refusal(&reply).code, RefusalCode::RateLimited);
    assert_eq!(refusal(&reply).retry, RetryHint::Never);
}

#[test]
fn rate_comes_before_quota_for_a_batch_as_for_one() {
    let mut bed = bed(RateLimits { creates_per_minute: Some(2), ..RateLimits::default() });
    bed.change_plan("acme", |limits| limits.concurrency.sandboxes = super::caps::flat(1));
    assert_eq!(code(&bed.batch_of("acme", 3, 64)), Some(RefusalCode::RateLimited));
    assert_eq!(code(&bed.batch_of("acme", 2, 64)), Some(RefusalCode::QuotaExceeded));
}

#[test]
fn want_of_room_costs_no_token() {
    let mut bed = bed(RateLimits { creates_per_hour: Some(5), ..RateLimits::default() });
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
    for _ in 0..20 {
        assert_eq!(code(&bed.create_of("acme", |_| {})), Some(RefusalCode::NoCapacity));
        assert_eq!(code(&bed.batch_of("acme", 3, 512)), Some(RefusalCode::NoCapacity));
    }
    assert_eq!(left(&mut bed, "creates_per_hour"), Some(4));
    // One that waits has taken its token, and gets it back when the wait was for nothing.
    let reply = bed.create_of("acme", |create| create.on_full = OnFull::Queue);
    let id = sandbox(&reply).row.id;
    assert_eq!(left(&mut bed, "creates_per_hour"), Some(3));
    let reply = bed.call(&caller("acme"), Command::Withdraw { id, gone: false });
    assert_eq!(code(&reply), Some(RefusalCode::NoCapacity));
    assert_eq!(left(&mut bed, "creates_per_hour"), Some(4));
    let item = bed.item(512);
    let command = bed.reserve(item, ReserveMode::Wait { seconds: 5 });
    bed.send(&caller("acme"), command);
    assert_eq!(left(&mut bed, "creates_per_hour"), Some(3));
    bed.later(5_000);
    assert_eq!(left(&mut bed, "creates_per_hour"), Some(4));
    // A caller that leaves has had what it asked for: a place in the queue.
    let reply = bed.create_of("acme", |create| create.on_full = OnFull::Queue);
    let id = sandbox(&reply).row.id;
    bed.call(&caller("acme"), Command::Withdraw { id, gone: true });
    assert_eq!(left(&mut bed, "creates_per_hour"), Some(3));
}

#[test]
fn a_host_that_refuses_after_all_costs_no_token() {
    let mut bed = bed(RateLimits { creates_per_hour: Some(5), ..RateLimits::default() });
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
    let detail = "full".to_owned();
    bed.answer(HostOutcome::Refused { code: RefusalCode::NoCapacity, detail });
    assert_eq!(left(&mut bed, "creates_per_hour"), Some(5));
    assert_eq!(bed.in_use("acme"), [0, 0, 0]);
}

#[test]
fn what_is_only_decided_costs_no_token() {
    let mut bed = bed(RateLimits { creates_per_hour: Some(5), ..RateLimits::default() });
    bed.change_plan("acme", |limits| limits.concurrency.sandboxes = super::caps::flat(0));
    for _ in 0..3 {
        let item = bed.item(64);
        let command = bed.reserve(item, ReserveMode::DryRun);
        let reply = bed.call(&caller("acme"), command);
        assert_eq!(code(&reply), Some(RefusalCode::QuotaExceeded));
    }
    assert_eq!(left(&mut bed, "creates_per_hour"), Some(5));
}

#[test]
fn a_loop_against_the_own_quota_is_slowed_down() {
    let mut bed = bed(RateLimits { creates_per_minute: Some(5), ..RateLimits::default() });
    bed.change_plan("acme", |limits| limits.concurrency.sandboxes = super::caps::flat(0));
    let codes: Vec<_> = (0..8).map(|_| code(&bed.create_of("acme", |_| {})).unwrap()).collect();
    assert_eq!(codes[..5], [RefusalCode::QuotaExceeded; 5]);
    assert_eq!(codes[5..], [RefusalCode::RateLimited; 3]);
}

#[test]
fn spent_tokens_and_credit_survive_a_restart() {
    let mut bed = bed(RateLimits { creates_per_hour: Some(10), ..RateLimits::default() });
    for _ in 0..6 {
        assert_eq!(code(&bed.create_of("acme", |_| {})), None);
    }
    // Written within seconds, with others.
    bed.later(5_000);
    bed.restart();
    bed.report(Vec::new());
    assert_eq!(left(&mut bed, "creates_per_hour"), Some(4));
}
