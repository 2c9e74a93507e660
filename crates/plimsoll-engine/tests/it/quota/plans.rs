//! Plans that cannot be read: the limits last known, an explicit default, and an event (Q1).

use plimsoll_engine::Admin;
use plimsoll_engine::rows::{PlanLimits, PlanRow};
use plimsoll_types::{PlanId, RefusalCode};

use super::super::kept;
use super::{Bed, code};

/// The cell starts again over rows in which the plan of `acme` does not read.
fn without_plan(bed: &Bed, change: impl FnOnce(&mut plimsoll_engine::rows::Rows)) -> Bed {
    let mut rows = kept::rows(&bed.changes);
    rows.plans.retain(|plan| plan.id.as_str() != "plan-acme");
    change(&mut rows);
    let mut next = Bed::over(rows, 2, bed.now);
    next.changes.splice(0..0, bed.changes.iter().cloned());
    next.report(Vec::new());
    next
}

fn bed() -> Bed {
    let mut bed = Bed::new();
    bed.report(Vec::new());
    bed.tenant("acme", |limits| {
        limits.concurrency.sandboxes = super::caps::flat(7);
        limits.consumption.cpu_seconds = Some(1_000);
    });
    bed.change_tenant("acme", |row| {
        row.overrides.concurrency.vcpus = super::caps::flat(100);
    });
    bed.pass(5_000);
    bed
}

#[test]
fn a_plan_that_cannot_be_read_leaves_the_limits_last_known() {
    let mut bed = without_plan(&bed(), |_| {});
    let said = bed.events("quota.plan_unknown");
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].tenant, None);
    assert_eq!(said[0].data["limits"], "last_known");
    let quota = bed.quota("acme");
    assert_eq!(quota.plan, "plan-acme");
    assert_eq!(quota.concurrency[0].1.limit, Some(7));
    assert_eq!(quota.concurrency[1].1.limit, Some(100), "its own limits still stand on top");
    assert_eq!(quota.consumption[0].1.limit, Some(1_000));
    assert_eq!(code(&bed.batch_of("acme", 7, 64)), None);
    // It is still known at the next start, and the one after.
    bed.pass(5_000);
    let mut bed = without_plan(&bed, |_| {});
    assert_eq!(bed.quota("acme").concurrency[0].1.limit, Some(7));
    // The plan is there again: its limits hold at once.
    let id = PlanId::new("plan-acme").unwrap();
    let mut limits = PlanLimits::default();
    limits.concurrency.sandboxes = super::caps::flat(8);
    bed.admin(Admin::PutPlan(PlanRow { id, limits }));
    assert_eq!(bed.quota("acme").concurrency[0].1.limit, Some(8));
    assert_eq!(bed.quota("acme").consumption[0].1.limit, None);
}

#[test]
fn a_plan_that_was_never_known_is_the_default_one_and_that_is_said() {
    let mut bed = without_plan(&bed(), |rows| rows.tenant_states.clear());
    assert_eq!(bed.events("quota.plan_unknown")[0].data["limits"], "default_plan");
    let quota = bed.quota("acme");
    assert_eq!(quota.concurrency[0].1.limit, Some(100_000));
    assert_eq!(quota.concurrency[1].1.limit, Some(100));
    assert_eq!(code(&bed.batch_of("acme", 20, 64)), None);
}

#[test]
fn a_state_that_does_not_read_is_said_and_costs_the_tenant_nothing() {
    let mut before = bed();
    before.change_plan("acme", |limits| limits.rate.creates_per_hour = Some(5));
    for _ in 0..5 {
        assert_eq!(code(&before.create_of("acme", |_| {})), None);
    }
    assert_eq!(code(&before.create_of("acme", |_| {})), Some(RefusalCode::RateLimited));
    before.pass(5_000);
    let mut rows = kept::rows(&before.changes);
    for row in &mut rows.tenant_states {
        row.state = serde_json::json!({ "buckets": "five" });
    }
    let mut bed = Bed::over(rows, 2, before.now);
    bed.report(Vec::new());
    assert_eq!(bed.events("quota.state_unreadable")[0].data["tenant"], "acme");
    assert_eq!(code(&bed.create_of("acme", |_| {})), None);
}

#[test]
fn a_state_with_fields_of_a_later_version_is_read() {
    let before = bed();
    let mut rows = kept::rows(&before.changes);
    for row in &mut rows.tenant_states {
        row.state["of_a_later_version"] = serde_json::json!([1, 2]);
    }
    let bed = Bed::over(rows, 2, before.now);
    assert!(bed.events("quota.state_unreadable").is_empty());
}

#[test]
fn a_plan_of_many_tenants_is_written_in_pieces() {
    let mut bed = Bed::new();
    let plan = PlanId::new("many").unwrap();
    let put = |bed: &mut Bed, limit| {
        let mut limits = PlanLimits::default();
        limits.concurrency.sandboxes = super::caps::flat(limit);
        bed.admin(Admin::PutPlan(PlanRow { id: plan.clone(), limits }));
    };
    put(&mut bed, 1);
    for number in 0..2_500 {
        let mut row = bed.tenant_row("default");
        row.id = super::tenant(&format!("t{number}"));
        row.plan = plan.clone();
        bed.admin(Admin::PutTenant(row));
    }
    bed.pass(60_000);
    let states = |bed: &Bed, from: usize| {
        let is = |change: &&plimsoll_engine::Change| {
            matches!(change, plimsoll_engine::Change::TenantState(_))
        };
        bed.changes[from..].iter().filter(is).count()
    };
    let from = bed.changes.len();
    put(&mut bed, 2);
    assert_eq!(states(&bed, from), 0);
    for written in [1_000, 2_000, 2_500] {
        bed.pass(5_000);
        assert_eq!(states(&bed, from), written);
    }
    bed.pass(60_000);
    assert_eq!(states(&bed, from), 2_500);
}

#[test]
fn a_default_plan_that_cannot_be_read_is_not_written_over() {
    let mut before = bed();
    let id = PlanId::new("default").unwrap();
    let mut limits = PlanLimits::default();
    limits.concurrency.sandboxes = super::caps::flat(12);
    before.admin(Admin::PutPlan(PlanRow { id: id.clone(), limits }));
    before.pass(5_000);
    let mut rows = kept::rows(&before.changes);
    rows.plans.retain(|plan| plan.id != id);
    let mut bed = Bed::over(rows, 2, before.now);
    assert_eq!(bed.quota("default").concurrency[0].1.limit, Some(12));
    assert_eq!(bed.events("quota.plan_unknown")[0].data["tenant"], "default");
    let is = |change: &plimsoll_engine::Change| matches!(change, plimsoll_engine::Change::Plan(_));
    assert!(!bed.changes.iter().any(is));
}
