//! One tenant's limits are nobody else's: neither its refusals nor its waiters touch others.

use plimsoll_engine::{Command, Input, Reply, ReserveMode};
use plimsoll_types::{
    HostOutcome, OnFull, Preemption, PreemptionMode, RefusalCode, RetryHint, SandboxId,
    SandboxStatus,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Bed, DAY, MINUTE, caller, code, sandbox, used};

/// Tenant `full` waits with so many creates, older than everybody's, when its budget runs out.
fn blocked_waiters(waiters: usize) -> Bed {
    let mut bed = Bed::new();
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    bed.tenant("full", |limits| limits.consumption.cpu_seconds = Some(10));
    bed.tenant("other", |_| {});
    let worker = bed.run_of("full", |_| {});
    for _ in 0..waiters {
        let reply = bed.create_of("full", |create| {
            create.on_full = OnFull::Queue;
            create.priority = 10;
        });
        assert_eq!(sandbox(&reply).row.status, SandboxStatus::Queued);
    }
    bed.pass(10_000);
    bed.heartbeat("h1", |report| {
        report.memory_mib_admittable = Some(0);
        report.guests = vec![used(worker, 512, 10_000)];
    });
    assert_eq!(bed.quota("full").state, "exhausted");
    bed
}

#[test]
fn a_queue_full_of_waiters_without_budget_lets_others_through() {
    let mut bed = blocked_waiters(500);
    let reply = bed.create_of("other", |create| create.on_full = OnFull::Queue);
    let id = sandbox(&reply).row.id;
    assert_eq!(bed.show(id).row.status, SandboxStatus::Queued);
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    assert_eq!(bed.show(id).row.status, SandboxStatus::Provisioning);
}

#[test]
fn nothing_is_set_aside_for_a_waiter_without_budget() {
    let mut bed = blocked_waiters(3);
    bed.pool("local", |settings| settings.limit = Some(3));
    // The waiters are older than the bound after which the first has its need set aside.
    for _ in 0..6 {
        bed.pass(10_000);
        bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(0));
    }
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    assert_eq!(code(&bed.create_of("other", |_| {})), None);
}

#[test]
fn nobody_is_paused_for_a_waiter_without_budget() {
    let mut bed = blocked_waiters(3);
    let mode = PreemptionMode::Lru;
    bed.template("vm", |template| template.driver = plimsoll_types::Driver::Gvisor);
    bed.pool("local", |settings| {
        settings.preemption = Preemption { mode, min_run_seconds: 1, ..Preemption::default() };
        settings.preemption_protect_seconds = 0;
    });
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(1024));
    let vm = plimsoll_types::TemplateName::new("vm").unwrap();
    let id = bed.run_of("other", |create| create.template = vm);
    for _ in 0..30 {
        bed.pass(10_000);
        bed.heartbeat("h1", |report| {
            report.memory_mib_admittable = Some(0);
            report.guests = vec![used(id, 512, 0)];
        });
    }
    assert_eq!(bed.show(id).row.status, SandboxStatus::Running);
}

#[test]
fn the_same_waiters_are_served_first_once_there_is_budget() {
    let mut bed = blocked_waiters(1);
    let reply = bed.create_of("other", |create| create.on_full = OnFull::Queue);
    let id = sandbox(&reply).row.id;
    bed.change_tenant("full", |row| row.payment_method = true);
    bed.heartbeat("h1", |report| report.memory_mib_admittable = Some(512));
    assert_eq!(bed.show(id).row.status, SandboxStatus::Queued);
    assert_eq!(bed.in_use("full")[0], 2, "the one that runs, and the first that waited");
}

#[derive(Clone, Copy, Debug)]
enum Do {
    Create,
    Queue,
    Fork(usize),
    Reserve,
    Batch(usize),
    Delete(usize),
    Answer,
    Pass(u64),
}

fn what() -> impl Strategy<Value = Do> {
    prop_oneof![
        4 => Just(Do::Create),
        2 => Just(Do::Queue),
        1 => (0_usize..30).prop_map(Do::Fork),
        3 => Just(Do::Reserve),
        1 => (1_usize..5).prop_map(Do::Batch),
        2 => (0_usize..30).prop_map(Do::Delete),
        3 => Just(Do::Answer),
        1 => (1_u64..20_000).prop_map(Do::Pass),
    ]
}

/// What `other` gets in a world in which `full`, which has used up its budget, asks for as much as
/// it likes, or asks for nothing. Both are of one plan, and share its every limit as numbers.
fn world(steps: &[(bool, Do)], with_full: bool) -> Vec<(Option<RefusalCode>, RetryHint)> {
    let mut bed = Bed::new();
    bed.forkable();
    bed.pool("local", |settings| settings.limit = Some(8));
    bed.later(0);
    bed.tenant("full", |limits| {
        limits.consumption.cpu_seconds = Some(10);
        limits.rate.creates_per_minute = Some(6);
        limits.rate.creates_per_hour = Some(40);
        limits.rate.forks_per_minute = Some(3);
        limits.concurrency.sandboxes = super::caps::flat(5);
        limits.concurrency.memory_mib = super::caps::flat(2_048);
    });
    bed.tenant("other", |_| {});
    let plan = bed.tenant_row("full").plan;
    bed.change_tenant("other", |row| row.plan = plan);
    let worker = bed.run_of("full", |_| {});
    bed.beat(10_000, |_| vec![used(worker, 64, 10_000)]);
    assert_eq!(bed.quota("full").state, "exhausted");
    assert_eq!(bed.quota("other").plan, bed.quota("full").plan);
    let mut got = Vec::new();
    let mut ids: Vec<SandboxId> = Vec::new();
    for (full, step) in steps {
        let name = if *full { "full" } else { "other" };
        if *full && !with_full {
            // The same time passes in both worlds.
            if let Do::Pass(millis) = step {
                bed.later(*millis);
            }
            continue;
        }
        let reply = match step {
            Do::Create => bed.create_of(name, |_| {}),
            Do::Queue => bed.create_of(name, |create| create.on_full = OnFull::Queue),
            Do::Reserve => {
                let item = bed.item(64);
                let command = bed.reserve(item, ReserveMode::Reject);
                bed.call(&caller(name), command)
            }
            Do::Fork(_) if *full => bed.fork_of(name, worker),
            Do::Fork(which) if !ids.is_empty() => bed.fork_of(name, ids[which % ids.len()]),
            Do::Fork(_) => continue,
            Do::Batch(items) => bed.batch_of(name, *items, 64),
            Do::Delete(which) if !full && !ids.is_empty() => {
                let id = ids[which % ids.len()];
                bed.call(&caller(name), Command::Delete { id })
            }
            Do::Delete(_) => continue,
            Do::Answer => {
                if !full && !bed.sent.is_empty() {
                    bed.answer(HostOutcome::Done);
                }
                continue;
            }
            Do::Pass(millis) => {
                bed.later(*millis);
                continue;
            }
        };
        if *full {
            let said = code(&reply);
            assert!(
                matches!(said, Some(RefusalCode::BudgetExhausted | RefusalCode::RateLimited)),
                "{said:?}"
            );
            continue;
        }
        if let Reply::Sandbox { view, .. } = &reply {
            ids.push(view.row.id);
        }
        let retry = match &reply {
            Reply::Refused(refusal) => refusal.retry,
            _ => RetryHint::Never,
        };
        got.push((code(&reply), retry));
    }
    got
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Each verdict for one tenant is the same whether or not another one, whose budget is used
    /// up, asks for as much as it can.
    #[test]
    fn no_verdict_is_touched_by_anothers_exhaustion(
        steps in vec((prop::bool::ANY, what()), 1..120),
    ) {
        prop_assert_eq!(world(&steps, true), world(&steps, false));
    }
}

#[test]
fn a_thousand_exhausted_tenants_cost_no_timer_each_tick() {
    let mut bed = Bed::new();
    bed.report(Vec::new());
    for number in 0..1_000 {
        bed.tenant(&format!("t{number}"), |limits| limits.consumption.cpu_seconds = Some(0));
    }
    // All are exhausted, and none has anything: after the pause of idle things, which finds
    // none, each looks again once a minute and no more.
    let mut wakeups = 0;
    let end = bed.now + plimsoll_types::Millis(20 * MINUTE);
    while let Some(at) = bed.engine.next_wakeup().filter(|at| *at <= end) {
        bed.now = bed.now.max(at);
        let mut out = plimsoll_engine::Output::default();
        bed.engine.handle(bed.now, Input::Tick, &mut out);
        wakeups += 1;
    }
    assert!(wakeups < 200, "{wakeups}");
    // A tenant without limits has no timer at all.
    let mut bed = Bed::new();
    for number in 0..1_000 {
        bed.tenant(&format!("t{number}"), |_| {});
    }
    bed.pass(MINUTE);
    assert_eq!(bed.engine.next_wakeup(), None);
    bed.pass(DAY);
}
