//! What tenants may hold, make and use up, and what changes about it: plans, overrides, payment
//! methods, and a plan that the store has lost for a while.

use plimsoll_engine::rows::{
    Change, ConsumptionLimits, Limit, PlanLimits, PlanRow, RateLimits, TenantRow, TenantStateRow,
};
use plimsoll_engine::{Admin, Command, EngineConfig};
use plimsoll_policy::ladder::LadderRule;
use plimsoll_policy::quota::{Burst, Bursts, Counter};
use plimsoll_types::{Millis, PlanId, TenantId, Timestamp};
use serde_json::json;

use super::BEGIN;
use super::client::Client;
use super::event::Event;
use super::trouble::Trouble;
use super::world::World;
use crate::rng::Rng;

/// Something that changes about a tenant, named by its place, or about its plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum Money {
    /// It gets a payment method, or loses it.
    Pays(usize),
    /// It gets a budget of its own, or loses that.
    Budget(usize),
    /// Its plan allows more use, or less.
    Plan(usize),
    /// The next leader does not find a plan in its store.
    PlanLost,
    /// Whatever was lost is written anew.
    PlansFound,
}

/// One change of a run, and sometimes its end.
pub(super) fn episode(rng: &mut Rng, at: Timestamp, all: &mut Vec<(Timestamp, Trouble)>) {
    let which = usize::try_from(rng.below(3)).unwrap_or(0);
    let later = at + Millis(rng.between(5_000, 120_000));
    match rng.below(8) {
        0 | 1 => {
            all.push((at, Trouble::Money(Money::Pays(which))));
            all.push((later, Trouble::Money(Money::Pays(which))));
        }
        2 => all.push((at, Trouble::Money(Money::Budget(which)))),
        3 => all.push((at, Trouble::Money(Money::Plan(which)))),
        4 => {
            all.push((at, Trouble::Money(Money::PlanLost)));
            all.push((at, Trouble::Crash(Millis(rng.between(50, 3_000)))));
            all.push((later, Trouble::Money(Money::PlansFound)));
        }
        // Most tenants are left alone with their budgets.
        _ => {}
    }
}

/// In most runs the ladder's steps follow each other within minutes.
pub(super) fn hurry(rng: &mut Rng, config: EngineConfig) -> EngineConfig {
    if rng.chance(150) {
        return config;
    }
    let mut seconds = |low, high| Millis::from_seconds(rng.between(low, high));
    EngineConfig {
        ladder: LadderRule {
            hibernate_after: seconds(2, 30),
            announce_after: seconds(2, 30),
            grace: seconds(10, 60),
            ..LadderRule::default()
        },
        hibernate_idle: seconds(2, 20),
        hibernate_interval: seconds(3, 20),
        usage_write_interval: seconds(3, 60),
        ..config
    }
}

/// A limit, now and then with a burst above it.
pub(super) fn burst(rng: &mut Rng, limit: Option<u64>) -> Limit {
    let above = if rng.chance(500) { rng.between(1, 3) } else { rng.between(4, 12) };
    let burst_limit = limit.filter(|_| rng.chance(600)).map(|limit| limit + above);
    Limit { limit, burst_limit }
}

fn plan_limits(rng: &mut Rng) -> PlanLimits {
    let mut limits = PlanLimits::default();
    if rng.chance(600) {
        let limit = rng.between(2, 12);
        limits.concurrency.sandboxes = burst(rng, Some(limit));
    }
    if rng.chance(300) {
        let limit = rng.between(3_000, 12_000);
        let burst_limit = rng.chance(500).then(|| limit + rng.between(500, 8_000));
        limits.concurrency.memory_mib = Limit { limit: Some(limit), burst_limit };
    }
    if rng.chance(200) {
        let creates_per_minute = Some(rng.between(5, 30));
        let creates_per_hour = rng.chance(400).then(|| rng.between(30, 90));
        limits.rate = RateLimits { creates_per_minute, creates_per_hour, ..RateLimits::default() };
    }
    if rng.chance(700) {
        limits.consumption = consumption(rng);
    }
    limits
}

/// So much that several of a run's tenants use it up, and some do not.
fn consumption(rng: &mut Rng) -> ConsumptionLimits {
    ConsumptionLimits {
        cpu_seconds: rng.chance(900).then(|| rng.between(2, 60)),
        gib_hours: rng.chance(100).then(|| rng.below(2)),
        egress_bytes: None,
    }
}

impl World {
    /// Plans and tenants as the store has them at the begin, some with a burst nearly spent; and
    /// their clients.
    pub(super) fn tenants(&mut self) -> Vec<Client> {
        let mut clients = Vec::new();
        for number in 0..self.rng.money.between(1, 3) {
            let rng = &mut self.rng.money;
            let plan = PlanId::new(&format!("plan-{number}")).expect("a valid name");
            let limits = plan_limits(rng);
            let id = TenantId::new(&format!("tenant-{number}")).expect("a valid name");
            let pays = rng.chance(150);
            let row = TenantRow {
                payment_method: pays,
                payment_method_ever: pays,
                anchor_day: rng.pick(&[None, Some(1), Some(15), Some(31)]).copied().flatten(),
                ..TenantRow::new(id.clone(), plan.clone(), BEGIN)
            };
            let mut bursts = Bursts::default();
            for (place, counter) in Counter::ALL.into_iter().enumerate() {
                let limit = limits.concurrency.of(counter);
                let span = limit.span();
                if span == 0 || rng.chance(300) {
                    continue;
                }
                // From nothing left to some minutes of the whole burst.
                let left = span * rng.below(300_000) * 24;
                let spent = (span * 3_600_000 * 24).saturating_sub(left);
                *bursts.of_mut(counter) = Burst::from_parts(spent, BEGIN);
                self.oracle.spent(BEGIN, &id, place, spent);
            }
            for _ in 0..self.rng.money.between(1, 2) {
                clients.push(Client::new(id.clone(), self.rng.money.between(800, 6_000)));
            }
            self.table.apply(&Change::Plan(PlanRow { id: plan, limits }));
            self.table.apply(&Change::Tenant(row));
            let state = json!({ "bursts": bursts });
            self.table.apply(&Change::TenantState(TenantStateRow { tenant: id, state }));
        }
        clients
    }

    pub(super) fn money(&mut self, money: Money) {
        match money {
            Money::Pays(at) => {
                self.change_tenant(at, |row, _| row.payment_method = !row.payment_method);
            }
            Money::Budget(at) => self.change_tenant(at, |row, rng| {
                let own =
                    if rng.chance(700) { consumption(rng) } else { ConsumptionLimits::default() };
                row.overrides.consumption = own;
            }),
            Money::Plan(at) => {
                let Some(row) = self.oracle.rows.tenants.values().nth(at) else { return };
                let Some(mut plan) = self.oracle.rows.plans.get(&row.plan).cloned() else { return };
                plan.limits.consumption = consumption(&mut self.rng.money);
                self.operate(Command::Admin(Box::new(Admin::PutPlan(plan))));
            }
            Money::PlanLost => self.loses_plan = true,
            Money::PlansFound => self.find_plans(),
        }
    }

    fn change_tenant(&mut self, at: usize, change: impl FnOnce(&mut TenantRow, &mut Rng)) {
        let Some(mut row) = self.oracle.rows.tenants.values().nth(at).cloned() else { return };
        change(&mut row, &mut self.rng.money);
        self.operate(Command::Admin(Box::new(Admin::PutTenant(row))));
    }

    /// No tenant has a budget of its own any more.
    pub(super) fn forget_budgets(&mut self) {
        for at in 0..self.oracle.rows.tenants.len() {
            self.change_tenant(at, |row, _| row.overrides = PlanLimits::default());
        }
    }

    /// A plan is missing from the store that a leader is about to read.
    pub(super) fn lose_plan(&mut self) {
        if !std::mem::take(&mut self.loses_plan) || self.quiet {
            return;
        }
        let plans: Vec<PlanId> =
            self.table.plans.keys().filter(|id| id.as_str() != "default").cloned().collect();
        let lost = self.rng.money.pick(&plans).and_then(|id| self.table.plans.remove(id));
        self.lost_plans.extend(lost);
    }

    /// Writes lost plans anew, as soon as somebody leads.
    pub(super) fn find_plans(&mut self) {
        if self.lost_plans.is_empty() {
            return;
        }
        if self.cell.engine.is_none() {
            let found = Event::Trouble(Trouble::Money(Money::PlansFound));
            return self.queue.put(self.now + Millis::from_seconds(1), found);
        }
        // What is not durable when the cell dies is written again.
        for plan in self.lost_plans.clone() {
            if self.table.plans.contains_key(&plan.id) {
                self.lost_plans.retain(|lost| lost.id != plan.id);
            } else {
                self.operate(Command::Admin(Box::new(Admin::PutPlan(plan))));
            }
        }
        let again = Event::Trouble(Trouble::Money(Money::PlansFound));
        self.queue.put(self.now + Millis::from_seconds(5), again);
    }
}
