//! What is kept of a tenant beside its row: what it has used in the period, where it stands on the
//! ladder, what was said to it; and how that is written and read.
//!
//! A tenant that uses nothing and has no limits costs nothing here.

use std::sync::Arc;

use plimsoll_policy::abuse::LastHour;
use plimsoll_policy::consumption::{Amounts, Top};
use plimsoll_policy::ladder::{Ladder, Notice};
use plimsoll_policy::period::{AnchorDay, Anchors, Period, rfc3339};
use plimsoll_policy::quota::Bursts;
use plimsoll_policy::rate::Buckets;
use plimsoll_types::{ClaimId, EndpointId, EventId, SandboxId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Engine;
use super::state::{Ix, Tenant, Timer};
use crate::output::Output;
use crate::rows::{Change, PlanLimits, TenantStateRow};

/// Most states that are written in one go: a plan of many tenants that is changed must not make
/// one large batch.
const WRITTEN_MAX: usize = 1_000;

/// What a tenant has used, and what follows from it.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) period: Period,
    /// In that period.
    pub(crate) used: Amounts,
    pub(crate) top: Top<ClaimId>,
    pub(crate) ladder: Ladder,
    pub(crate) suspended: Said,
    pub(crate) deletion: Said,
    /// Endpoints that gave one of the two up.
    pub(crate) gave_up: Vec<(EventId, EndpointId)>,
    /// What the announced deletion named.
    pub(crate) announced: Vec<SandboxId>,
    /// When idle sandboxes were last looked for.
    pub(crate) swept_at: Option<Timestamp>,
    /// When new work was last let in again.
    pub(crate) released_at: Timestamp,
    pub(crate) timer: Option<Timestamp>,
    pub(crate) shape: Shape,
}

impl Account {
    fn new(period: Period) -> Self {
        Self {
            period,
            used: Amounts::default(),
            top: Top::default(),
            ladder: Ladder::default(),
            suspended: Said::default(),
            deletion: Said::default(),
            gave_up: Vec::new(),
            announced: Vec::new(),
            swept_at: None,
            released_at: Timestamp(0),
            timer: None,
            shape: Shape::default(),
        }
    }

    /// The notice of deletion, or the one of hibernation.
    pub(crate) const fn said_mut(&mut self, deletion: bool) -> &mut Said {
        if deletion { &mut self.deletion } else { &mut self.suspended }
    }

    /// Goes on to a later period. Nothing is reset: the sums of another period are other sums.
    fn turn(&mut self, period: Period) {
        self.period = period;
        self.used = Amounts::default();
        self.top = Top::default();
    }
}

/// A notice and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Said {
    pub(crate) event: Option<EventId>,
    pub(crate) notice: Notice,
}

/// What tells abuse apart, as far as it is the tenant's and not one guest's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Shape {
    /// Sandboxes and reservations that were given back within a minute of their making.
    pub(crate) loops: LastHour,
    /// Requests while the account was in its first day.
    pub(crate) requests: u64,
    /// Since when it is suspected.
    pub(crate) suspected_at: Option<Timestamp>,
    /// When it was last looked at.
    #[serde(skip)]
    pub(crate) looked_at: Timestamp,
    /// Whether the cell has suspended it for that.
    pub(crate) acted: bool,
}

/// A tenant's state as it is written. Every field has a default, so that it can grow.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    #[serde(skip_serializing_if = "is_default")]
    bursts: Bursts,
    #[serde(skip_serializing_if = "is_default")]
    buckets: Buckets,
    /// The plan's limits as last read.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan_limits: Option<PlanLimits>,
    anchors: Option<Anchors>,
    #[serde(skip_serializing_if = "is_default")]
    ladder: Ladder,
    #[serde(skip_serializing_if = "is_default")]
    suspended: Said,
    #[serde(skip_serializing_if = "is_default")]
    deletion: Said,
    #[serde(skip_serializing_if = "is_default")]
    gave_up: Vec<(EventId, EndpointId)>,
    #[serde(skip_serializing_if = "is_default")]
    announced: Vec<SandboxId>,
    #[serde(skip_serializing_if = "is_default")]
    released_at: Timestamp,
    #[serde(skip_serializing_if = "is_default")]
    shape: Shape,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The anchor day of a row; one that is out of range is the calendar's.
pub(super) fn anchor_of(day: Option<u8>) -> AnchorDay {
    day.and_then(AnchorDay::new).unwrap_or(AnchorDay::CALENDAR)
}

impl Tenant {
    /// The period that an instant lies in.
    pub(crate) fn period_at(&self, at: Timestamp) -> Period {
        match &self.account {
            Some(account) if account.period.contains(at) => account.period,
            _ => self.rest.anchors.period_at(at),
        }
    }

    /// What it has used in the period of this moment.
    pub(crate) fn used_at(&self, now: Timestamp) -> Amounts {
        match &self.account {
            Some(account) if account.period.contains(now) => account.used,
            _ => Amounts::default(),
        }
    }

    /// Takes another anchor day: at once while nothing was ever used, and with the next period
    /// where something was.
    pub(crate) fn move_anchor(&mut self, now: Timestamp, day: AnchorDay) {
        match self.account {
            Some(_) => self.rest.anchors.change(day, now),
            None => self.rest.anchors = Anchors::new(day),
        }
    }

    /// Its account in the period of this moment, made where there is none.
    pub(crate) fn account_at(&mut self, now: Timestamp) -> &mut Account {
        let anchors = self.rest.anchors;
        let account =
            self.account.get_or_insert_with(|| Box::new(Account::new(anchors.period_at(now))));
        if now >= account.period.end {
            account.turn(anchors.period_at(now));
        }
        account
    }

    /// Whether there is something about it that a restart must not forget and that moves with
    /// decisions.
    fn has_moving_limits(&self) -> bool {
        !self.limits.rate.is_unlimited() || self.bursting
    }

    /// Takes other limits.
    pub(crate) fn set_limits(&mut self, limits: Arc<PlanLimits>) {
        let concurrency = &limits.concurrency;
        let bursts = [&concurrency.sandboxes, &concurrency.vcpus, &concurrency.memory_mib];
        self.bursting = bursts.iter().any(|limit| limit.span() > 0);
        self.limits = limits;
        self.moves = self.has_moving_limits();
    }
}

impl Engine {
    /// A tenant's bursts or buckets may have moved: its state is written within a few seconds. The
    /// first change after a while of none is written with what brought it about: after a restart the
    /// time since the last write counts by what is in use then.
    pub(super) fn moved(&mut self, now: Timestamp, ix: Ix) {
        let tenant = &self.tenants[ix];
        if tenant.moves {
            if tenant.bursting && now.since(tenant.written_at) > self.config.state_write_interval {
                self.turned.insert(ix);
            }
            self.write_soon(now, ix);
        }
    }

    /// Writes the states that [`Engine::moved`] wants written before the input is done.
    pub(super) fn write_turned(&mut self, now: Timestamp, out: &mut Output) {
        while let Some(ix) = self.turned.pop_first() {
            if self.tenants.get(ix).is_some_and(|tenant| tenant.unwritten) {
                self.write_state(now, ix, out);
            }
        }
    }

    /// Writes a tenant's state within a few seconds, with others.
    pub(super) fn write_soon(&mut self, now: Timestamp, ix: Ix) {
        let tenant = &mut self.tenants[ix];
        if std::mem::replace(&mut tenant.unwritten, true) {
            return;
        }
        if self.unwritten.is_empty() {
            self.timers.insert((now + self.config.state_write_interval, Timer::States));
        }
        self.unwritten.push_back(ix);
    }

    /// Writes what [`Engine::write_soon`] has put off.
    pub(super) fn write_states(&mut self, now: Timestamp, out: &mut Output) {
        for _ in 0..WRITTEN_MAX {
            let Some(ix) = self.unwritten.pop_front() else { return };
            if self.tenants.get(ix).is_some_and(|tenant| tenant.unwritten) {
                self.write_state(now, ix, out);
            }
        }
        if !self.unwritten.is_empty() {
            self.timers.insert((now + self.config.state_write_interval, Timer::States));
        }
    }

    /// Writes a tenant's state now.
    pub(super) fn write_state(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let tenant = &mut self.tenants[ix];
        tenant.unwritten = false;
        tenant.settle_bursts(now);
        tenant.written_at = now;
        let tenant = &self.tenants[ix];
        if self.tenant_named(&tenant.id) != Some(ix) {
            return;
        }
        let plan = tenant.rest.lost_plan.as_ref().or_else(|| self.plans.get(&tenant.row().plan));
        let mut kept = Kept {
            bursts: tenant.bursts,
            buckets: tenant.buckets,
            plan_limits: plan.map(|limits| **limits),
            anchors: Some(tenant.rest.anchors),
            ..Kept::default()
        };
        if let Some(account) = &tenant.account {
            kept.ladder = account.ladder;
            kept.suspended = account.suspended;
            kept.deletion = account.deletion;
            kept.gave_up.clone_from(&account.gave_up);
            kept.announced.clone_from(&account.announced);
            kept.released_at = account.released_at;
            kept.shape = account.shape;
        }
        let Ok(state) = serde_json::to_value(&kept) else {
            // Numbers, ids and words are JSON.
            return self.violated("I13", out);
        };
        let tenant = tenant.row().id.clone();
        out.changes.push(Change::TenantState(TenantStateRow { tenant, state }));
    }

    /// Takes up the states of tenants after a restart. What does not read is left behind, and
    /// said: spent credit and tokens are the tenant's again, and the ladder begins at its foot.
    pub(super) fn restore_states(
        &mut self,
        now: Timestamp,
        rows: Vec<TenantStateRow>,
        out: &mut Output,
    ) {
        let mut known = std::collections::BTreeSet::new();
        for row in rows {
            let Some(ix) = self.tenant_named(&row.tenant) else { continue };
            match serde_json::from_value::<Kept>(row.state) {
                Ok(kept) => {
                    if kept.plan_limits.is_some() {
                        known.insert(ix);
                    }
                    self.take_up_state(now, ix, kept);
                }
                Err(error) => {
                    let data = json!({ "tenant": row.tenant, "error": error.to_string() });
                    self.event(now, "quota.state_unreadable", None, data, out);
                }
            }
        }
        for ix in self.tenants.numbers() {
            let tenant = &self.tenants[ix];
            if tenant.rest.lost_plan.is_some() {
                let limits = if known.contains(&ix) { "last_known" } else { "default_plan" };
                let data = json!({
                    "tenant": tenant.row().id, "plan": tenant.row().plan, "limits": limits,
                });
                self.event(now, "quota.plan_unknown", None, data, out);
            }
        }
    }

    fn take_up_state(&mut self, now: Timestamp, ix: Ix, kept: Kept) {
        let tenant = &mut self.tenants[ix];
        tenant.bursts = kept.bursts;
        tenant.buckets = kept.buckets;
        if let Some(anchors) = kept.anchors
            && anchors.day() == tenant.rest.anchors.day()
        {
            tenant.rest.anchors = anchors;
        }
        if tenant.rest.lost_plan.is_some()
            && let Some(limits) = kept.plan_limits
        {
            let limits = Arc::new(limits);
            tenant.set_limits(super::admin::overlay(&limits, &tenant.row().overrides));
            tenant.rest.lost_plan = Some(limits);
        }
        if kept.ladder == Ladder::default() && kept.shape == Shape::default() {
            return;
        }
        let account = tenant.account_at(now);
        account.ladder = kept.ladder;
        account.suspended = kept.suspended;
        account.deletion = kept.deletion;
        account.gave_up = kept.gave_up;
        account.announced = kept.announced;
        account.released_at = kept.released_at;
        account.shape = kept.shape;
        for said in [kept.suspended, kept.deletion] {
            if let Some(event) = said.event {
                self.notices.insert(event, ix);
            }
        }
        self.metered.insert(ix);
    }

    /// The period and what was used in it, for events.
    pub(super) fn budget_data(&self, now: Timestamp, ix: Ix) -> Value {
        let tenant = &self.tenants[ix];
        let period = tenant.period_at(now);
        let used = tenant.used_at(now);
        let limits = &tenant.limits.consumption;
        let consumption: serde_json::Map<String, Value> = limits
            .consumed(&used)
            .into_iter()
            .map(|one| {
                let share = one.limit.map(|_| one.share.0);
                let data = json!({ "used": one.used, "limit": one.limit, "used_bp": share });
                (one.name.to_owned(), data)
            })
            .collect();
        let top: Vec<Value> = self
            .top_consumers(now, ix)
            .into_iter()
            .map(|(id, used)| {
                json!({
                    "id": id, "cpu_seconds": used.cpu_seconds(),
                    "gib_hours": used.gib_hours(),
                    "gib_hours_thousandths": used.gib_hours_thousandths(),
                    "egress_bytes": used.egress_bytes,
                })
            })
            .collect();
        json!({
            "tenant": tenant.row().id,
            "period": tenant.rest.anchors.label(&period),
            "resets_at": rfc3339(period.end),
            "consumption": consumption,
            "top_consumers": top,
        })
    }

    /// Who has used most of the counter that is nearest its limit.
    pub(super) fn top_consumers(&self, now: Timestamp, ix: Ix) -> Vec<(ClaimId, Amounts)> {
        let tenant = &self.tenants[ix];
        match &tenant.account {
            Some(account) if account.period.contains(now) => {
                account.top.by(tenant.limits.consumption.tightest(&account.used).name)
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::meter::ClaimMeter;
    use super::super::state::Rest;
    use super::*;
    use crate::rows::Meter;

    /// Of the 1 KiB that a tenant that does nothing may take, its name, its place in the map and
    /// the allocator have the rest.
    #[test]
    fn an_idle_tenant_is_small_and_an_active_one_has_a_bound() {
        assert!(size_of::<Option<Tenant>>() <= 256, "{}", size_of::<Option<Tenant>>());
        assert!(size_of::<Rest>() <= 448, "{}", size_of::<Rest>());
        assert!(size_of::<Account>() <= 512, "{}", size_of::<Account>());
        let places = 3 * plimsoll_policy::consumption::TOP_PLACES * size_of::<(ClaimId, Amounts)>();
        assert!(places <= 2_048, "{places}");
    }

    /// Of the 1 KiB of a live sandbox's record.
    #[test]
    fn metering_adds_a_quarter_kib_to_a_sandbox() {
        let sizes = (size_of::<Meter>(), size_of::<ClaimMeter>());
        assert!(sizes.0 + sizes.1 <= 256, "{sizes:?}");
    }
}
