//! I10 and the rest of the quota ladder: what is said to tenants, what is paused and deleted for
//! their use, and what is given back, held against books of our own.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_engine::EngineConfig;
use plimsoll_engine::rows::{
    ConsumptionLimits, DecisionRow, EventRow, PausedBy, SandboxRow, UsageRow, Verb,
};
use plimsoll_policy::period::{AnchorDay, period_at};
use plimsoll_types::{
    ClaimId, EventId, Millis, RefusalCode, SandboxId, SandboxStatus, TenantId, Timestamp,
};

use super::Oracle;
use crate::faults::Stats;

/// A MiB held for an hour 1 024 times over, in MiB-milliseconds.
const GIB_HOUR: u64 = 1_024 * 3_600_000;

/// Two clocks of one cell, and the world's, may differ by so much.
const CLOCKS: u64 = 4_000;

/// How long a step of the ladder may be overdue, beside the interval of its own looks.
const OVERDUE: u64 = 60_000;

/// What was announced.
#[derive(Clone, Debug)]
struct Announced {
    event: EventId,
    at: Timestamp,
    names: BTreeSet<String>,
}

/// What stands written about one tenant since the last time that everything was given back.
#[derive(Clone, Debug, Default)]
struct Book {
    exhausted: Option<Timestamp>,
    suspended: Option<(EventId, Timestamp)>,
    announced: Option<Announced>,
    /// When something was deleted last.
    deleted: Option<Timestamp>,
    unnotified: bool,
    /// Whether its budget was used up at the last look.
    over: bool,
}

impl Book {
    fn stands(&self) -> bool {
        self.exhausted.is_some() || self.suspended.is_some() || self.announced.is_some()
    }
}

/// Everything that is remembered about tenants' budgets.
#[derive(Debug, Default)]
pub(in crate::faults) struct Books {
    config: EngineConfig,
    books: BTreeMap<TenantId, Book>,
    /// Counts changes of what each tenant may use or pays, and when the last one was.
    versions: BTreeMap<TenantId, (u64, Timestamp)>,
    /// Counts clocks that went back over the end of a period.
    seams: u64,
    /// Events that may be said once, by what they are about.
    once: BTreeMap<EventId, String>,
    /// Within one input: how tenants stood before, what of them was paused for quota and at rest,
    /// and what has been ended for it.
    before: BTreeMap<TenantId, (ConsumptionLimits, bool, bool)>,
    at_rest: Vec<SandboxId>,
    ended: Vec<SandboxRow>,
    told: Vec<EventRow>,
}

fn word(id: SandboxId) -> String {
    serde_json::to_value(id)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn names(event: &EventRow) -> BTreeSet<String> {
    let names = event.data["sandboxes"].as_array().into_iter().flatten();
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Whether a sandbox is paused for its tenant's budget, and nothing wakes it.
fn rests(row: &SandboxRow) -> bool {
    row.status == SandboxStatus::Paused
        && row.paused_by == Some(PausedBy::Quota)
        && row.resume_requested_at.is_none()
}

impl Books {
    pub(in crate::faults) fn of(config: &EngineConfig) -> Self {
        Self { config: config.clone(), ..Self::default() }
    }

    fn write(&mut self, event: &EventRow) {
        let tenant = event.tenant.clone().or_else(|| {
            let name = event.data["tenant"].as_str()?;
            TenantId::new(name).ok()
        });
        let Some(tenant) = tenant else { return };
        let book = self.books.entry(tenant).or_default();
        match event.kind.as_str() {
            "quota.exhausted" => book.exhausted = Some(event.at),
            "quota.suspended" => book.suspended = Some((event.id, event.at)),
            "quota.deletion_scheduled" => {
                let names = names(event);
                book.announced = Some(Announced { event: event.id, at: event.at, names });
            }
            "quota.deleted" => book.deleted = Some(event.at),
            "quota.unnotified" => book.unnotified = true,
            "quota.resumed" => *book = Book::default(),
            _ => {}
        }
    }
}

impl Oracle {
    /// What a tenant may use up in a period.
    fn consumption(&self, tenant: &TenantId) -> Option<ConsumptionLimits> {
        let row = self.rows.tenants.get(tenant)?;
        let plan = self.rows.plans.get(&row.plan)?.limits.consumption;
        let own = row.overrides.consumption;
        Some(ConsumptionLimits {
            cpu_seconds: own.cpu_seconds.or(plan.cpu_seconds),
            gib_hours: own.gib_hours.or(plan.gib_hours),
            egress_bytes: own.egress_bytes.or(plan.egress_bytes),
        })
    }

    fn pays(&self, tenant: &TenantId) -> bool {
        self.rows.tenants.get(tenant).is_some_and(|row| row.payment_method)
    }

    fn period(&self, tenant: &TenantId, now: Timestamp) -> Timestamp {
        let day = self.rows.tenants.get(tenant).and_then(|row| row.anchor_day);
        let anchor = day.and_then(AnchorDay::new).unwrap_or(AnchorDay::CALENDAR);
        period_at(anchor, now).start
    }

    /// Whether what is written of a tenant's use in the present period reaches one of its limits.
    fn used_up(&self, tenant: &TenantId, now: Timestamp) -> bool {
        let Some(limits) = self.consumption(tenant) else { return false };
        if limits.is_unlimited() {
            return false;
        }
        let start = self.period(tenant, now);
        let (mut cpu, mut memory) = (0, 0);
        for row in self.rows.usage.values() {
            if row.tenant == *tenant && row.hour >= start && row.hour <= now {
                cpu += row.cpu_millis;
                memory += row.charged_mib_millis;
            }
        }
        limits.cpu_seconds.is_some_and(|limit| cpu >= limit * 1_000)
            || limits.gib_hours.is_some_and(|limit| memory >= limit * GIB_HOUR)
    }

    /// The cell starts over from what is durable.
    pub(super) fn reopen_books(&mut self, now: Timestamp) {
        self.books.books.clear();
        let events: Vec<_> = self.rows.events.values().cloned().collect();
        for event in events.iter().filter(|event| event.kind.starts_with("quota.")) {
            self.books.write(event);
        }
        // A clock that goes back over the end of a period brings back the one before.
        for tenant in self.rows.tenants.keys().cloned().collect::<Vec<_>>() {
            let near = |millis: i64| self.period(&tenant, Timestamp(now.0 + millis));
            let slack = i64::try_from(CLOCKS).unwrap_or(0);
            if near(-slack) != near(slack) {
                self.books.seams += 1;
            }
        }
        let durable = &self.rows.events;
        self.books.once.retain(|id, _| durable.contains_key(id));
    }

    /// Before the changes of one input.
    pub(super) fn open_books(&mut self, _now: Timestamp) {
        self.books.ended.clear();
        self.books.told.clear();
        self.books.at_rest =
            self.rows.sandboxes.values().filter(|row| rests(row)).map(|row| row.id).collect();
        let stands = |tenant: &TenantId| self.books.books.get(tenant).is_some_and(Book::stands);
        let tenants = self.rows.tenants.keys();
        let before = tenants.filter_map(|tenant| {
            let limits = self.consumption(tenant)?;
            Some((tenant.clone(), (limits, self.pays(tenant), stands(tenant))))
        });
        self.books.before = before.collect();
    }

    /// A sandbox's row, before it stands.
    pub(super) fn book_sandbox(&mut self, now: Timestamp, row: &SandboxRow) {
        let Some(before) = self.rows.sandboxes.get(&row.id).cloned() else { return };
        let quota = Some(PausedBy::Quota);
        if row.paused_by == quota && before.paused_by != quota {
            let active = before.last_active_at.max(before.started_at.unwrap_or(before.created_at));
            let idle = now.since(active);
            if idle < self.books.config.hibernate_idle {
                let detail = format!("{} is paused for quota {} ms after its use", row.id, idle.0);
                self.break_("ladder", detail);
            }
            if self.pays(&row.tenant) {
                let detail =
                    format!("{} of {}, which pays, is paused for quota", row.id, row.tenant);
                self.break_("ladder", detail);
            }
        }
        let for_budget = |row: &SandboxRow| {
            row.reason.as_ref().is_some_and(|reason| reason.contains("budget was used up and the"))
        };
        if row.status == SandboxStatus::Terminating
            && before.status != SandboxStatus::Terminating
            && for_budget(row)
        {
            self.books.ended.push(before);
        }
    }

    /// An event, before it stands.
    pub(super) fn book_event(&mut self, event: &EventRow, stats: &mut Stats) {
        if !event.kind.starts_with("quota.") {
            return;
        }
        if event.tenant.is_some() {
            *stats.ladder.entry(event.kind.clone()).or_default() += 1;
        }
        self.books.told.push(event.clone());
    }

    /// Each step is said once in a period, unless what the tenant may use has changed.
    fn said_once(&mut self, event: &EventRow) {
        let Some(tenant) = &event.tenant else { return };
        let version = self.books.versions.get(tenant).map_or(0, |version| version.0);
        let period = self.period(tenant, event.at).0;
        let about = match event.kind.as_str() {
            "quota.warning" | "quota.exhausted" => format!("limits {version}"),
            "quota.overage" => format!("step {}", event.data["passed_bp"]),
            _ => return,
        };
        let seams = self.books.seams;
        let about = format!("{} to {tenant} in {period}.{seams}, {about}", event.kind);
        if self.books.once.values().any(|said| *said == about) {
            self.break_("ladder", format!("{about}: said twice"));
        }
        self.books.once.insert(event.id, about);
    }

    /// Hours are no earlier than what they are billed for, and none lies ahead.
    pub(super) fn book_usage(&mut self, now: Timestamp, row: &UsageRow) {
        let hour = |at: Timestamp| Timestamp(at.0 - at.0.rem_euclid(3_600_000));
        let made = match row.claim {
            ClaimId::Sandbox(id) => self.rows.sandboxes.get(&id).map(|row| row.created_at),
            ClaimId::Reservation(id) => self.rows.reservations.get(&id).map(|row| row.created_at),
        };
        let before = made.is_some_and(|made| row.hour < hour(Timestamp(made.0 - 4_000)));
        if before || row.hour > hour(now) || row.hour != hour(row.hour) {
            let detail = format!("{} is billed in the hour {} of {}", row.claim, row.hour.0, now.0);
            self.break_("meter", detail);
        }
    }

    /// New work of a tenant that has used up its budget, and does not pay, is refused.
    pub(super) fn admitted_within_budget(&mut self, now: Timestamp, row: &DecisionRow) {
        let tenant = &row.tenant;
        if row.verb != Verb::Resume && !self.pays(tenant) && self.used_up(tenant, now) {
            let detail = format!("{} of {tenant} is let in, whose budget is used up", row.id);
            self.break_("ladder", detail);
        }
    }

    /// Whoever pays is never refused for consumption.
    pub(super) fn refused_for_budget(&mut self, row: &DecisionRow) {
        if row.code == Some(RefusalCode::BudgetExhausted) && self.pays(&row.tenant) {
            self.break_("ladder", format!("{} pays and is refused for its budget", row.tenant));
        }
    }

    /// After the changes of one input.
    pub(super) fn close_books(&mut self, now: Timestamp, stats: &mut Stats) {
        let told = std::mem::take(&mut self.books.told);
        let ended = std::mem::take(&mut self.books.ended);
        let named: BTreeSet<String> =
            told.iter().filter(|event| event.kind == "quota.deleted").flat_map(names).collect();
        for row in &ended {
            stats.deleted_for_budget += 1;
            if !named.contains(&word(row.id)) {
                self.break_("I10", format!("{} was deleted and nobody is told", row.id));
            }
            if let Err(missing) = self.may_delete(now, row) {
                let detail = format!("{} of {} is deleted: {missing}", row.id, row.tenant);
                self.break_("I10", detail);
            }
        }
        if named.len() != ended.len() {
            self.break_(
                "I10",
                format!("{} are said to be deleted, {} are", named.len(), ended.len()),
            );
        }
        for event in &told {
            self.books.write(event);
            if event.kind == "quota.resumed" {
                self.all_resume(event);
            }
        }
        let before = std::mem::take(&mut self.books.before);
        for tenant in self.rows.tenants.keys().filter(|tenant| !before.contains_key(*tenant)) {
            // It is new, or its plan could not be read.
            let version = self.books.versions.entry(tenant.clone()).or_default();
            *version = (version.0 + 1, now);
        }
        for (tenant, (limits, paid, stood)) in before {
            let Some(limits_now) = self.consumption(&tenant) else { continue };
            let pays = self.pays(&tenant);
            if limits == limits_now && paid == pays {
                continue;
            }
            let version = self.books.versions.entry(tenant.clone()).or_default();
            *version = (version.0 + 1, now);
            let better = limits_now.allows_more_than(&limits) || (pays && !paid);
            let stands = self
                .books
                .books
                .get(&tenant)
                .is_some_and(|book| book.suspended.is_some() || book.announced.is_some());
            if better && stood && stands {
                let detail = format!("{tenant} has more or pays, and it is not taken back");
                self.break_("ladder", detail);
            }
        }
        for event in &told {
            self.said_once(event);
        }
    }

    /// Everything that must hold at the moment of a deletion, one by one.
    fn may_delete(&self, now: Timestamp, row: &SandboxRow) -> Result<(), &'static str> {
        let tenant = &row.tenant;
        let book = self.books.books.get(tenant).cloned().unwrap_or_default();
        if self.pays(tenant) {
            return Err("it pays");
        }
        if !self.rows.tenants.get(tenant).is_some_and(|row| self.rows.plans.contains_key(&row.plan))
        {
            return Err("its plan is not known");
        }
        if !self.used_up(tenant, now) {
            return Err("its budget is not used up");
        }
        if !rests(row) {
            return Err("it is not at rest");
        }
        let silent = self.rows.sandboxes.values().any(|row| {
            row.tenant == *tenant && row.status.counts_for_quota() && !self.is_heard(now, row)
        });
        if silent {
            return Err("a host of its tenant is late with its reports");
        }
        let Some(announced) = book.announced else { return Err("nothing was announced") };
        if !announced.names.contains(&word(row.id)) {
            return Err("it was not named");
        }
        if row.last_active_at > announced.at {
            return Err("it was used since");
        }
        let suspended =
            book.suspended.and_then(|(event, _)| self.deliveries.came_to(tenant, event));
        if suspended.is_none() {
            return Err("nobody heard that it was suspended");
        }
        let Some(heard) = self.deliveries.came_to(tenant, announced.event) else {
            return Err("nobody heard of the deletion");
        };
        let since = heard.max(Timestamp(announced.at.0 - i64::try_from(CLOCKS).unwrap_or(0)));
        if now.since(since).0 + CLOCKS < self.books.config.ladder.grace.0 {
            return Err("its grace is not over");
        }
        Ok(())
    }

    /// Whether a sandbox's host has been heard of of late.
    fn is_heard(&self, now: Timestamp, row: &SandboxRow) -> bool {
        let Some(host) = &row.host else { return false };
        let pool = self.rows.hosts.get(host).and_then(|host| self.rows.pools.get(&host.pool));
        let stale = pool.map_or(30, |pool| pool.settings.stale_seconds);
        self.heard.get(host).is_some_and(|at| now.since(*at) <= Millis::from_seconds(stale + 1))
    }

    /// Everything is given back: what was paused for it runs again, or is about to.
    fn all_resume(&mut self, event: &EventRow) {
        let left = self
            .books
            .at_rest
            .iter()
            .filter_map(|id| self.rows.sandboxes.get(id))
            .find(|row| Some(&row.tenant) == event.tenant.as_ref() && rests(row));
        if let Some(row) = left {
            let detail = format!("{} stays paused for quota after all was given back", row.id);
            self.break_("ladder", detail);
        }
    }

    /// With the cell well for a while: no step of the ladder is overdue.
    pub(in crate::faults) fn ladders_climb(&mut self, now: Timestamp) {
        let (rule, interval) = (self.books.config.ladder, self.books.config.hibernate_interval.0);
        let past = |at: Timestamp, wait: u64| now.since(at).0 > wait + interval + OVERDUE;
        let tenants: Vec<TenantId> = self.rows.tenants.keys().cloned().collect();
        for tenant in tenants {
            let over = !self.pays(&tenant) && self.used_up(&tenant, now);
            let changed =
                self.books.versions.get(&tenant).map_or(Timestamp(0), |version| version.1);
            let period = self.period(&tenant, now);
            let steady = past(changed, 0) && past(period, 0);
            let book = self.books.books.entry(tenant.clone()).or_default();
            let (was_over, book) = (std::mem::replace(&mut book.over, over), book.clone());
            let wrong = if over && was_over && steady && book.exhausted.is_none() {
                Some("has used up its budget and is not told")
            } else if !over || !steady {
                None
            } else if book.suspended.is_none() {
                let late = book.exhausted.is_some_and(|at| past(at, rule.hibernate_after.0));
                late.then_some("is not suspended")
            } else {
                self.overdue(now, &tenant, &book)
            };
            if let Some(wrong) = wrong {
                self.break_("ladder", format!("{tenant} {wrong}"));
            }
        }
        let kept = self.rows.sandboxes.values().find(|row| {
            let book = self.books.books.get(&row.tenant);
            rests(row)
                && past(row.status_since, 0)
                && self.consumption(&row.tenant).is_some()
                && book.is_none_or(|book| book.suspended.is_none())
        });
        if let Some(row) = kept {
            let detail = format!("{} is paused for quota, and its tenant is not suspended", row.id);
            self.break_("ladder", detail);
        }
    }

    fn overdue(&self, now: Timestamp, tenant: &TenantId, book: &Book) -> Option<&'static str> {
        let (rule, interval) = (self.books.config.ladder, self.books.config.hibernate_interval.0);
        let past = |at: Timestamp, wait: u64| now.since(at).0 > wait + interval + OVERDUE;
        let (event, suspended_at) = book.suspended?;
        let known = |event, wait| self.deliveries.confirmed(event).is_some_and(|at| past(at, wait));
        let own = || self.rows.sandboxes.values().filter(|row| row.tenant == *tenant && rests(row));
        let since = suspended_at.max(book.deleted.unwrap_or(suspended_at));
        let Some(announced) = &book.announced else {
            let anything = own().any(|row| past(row.status_since, 0));
            let late = anything && known(event, 0) && past(since, rule.announce_after.0);
            let heard = self.rows.endpoints.values().any(|row| {
                row.tenant.as_ref() == Some(tenant)
                    && row.disabled.is_none()
                    && (row.events.is_empty()
                        || row.events.iter().any(|kind| kind == "quota.suspended"))
            });
            let came = self.deliveries.confirmed(event).is_some();
            if !heard && past(suspended_at, 0) && !came && !book.unnotified {
                return Some("can be told nothing, and no operator knows");
            }
            return late.then_some("was told, and its deletion is not announced");
        };
        let all_heard = self
            .rows
            .sandboxes
            .values()
            .filter(|row| row.tenant == *tenant && row.status.counts_for_quota())
            .all(|row| self.is_heard(now, row));
        let due = own().any(|row| {
            announced.names.contains(&word(row.id))
                && row.last_active_at <= announced.at
                && row.status_since <= announced.at
        });
        let plan = self.consumption(tenant).is_some();
        let late = known(announced.event, rule.grace.0) && past(announced.at, rule.grace.0);
        (late && due && all_heard && plan).then_some("is not deleted from, and could be")
    }
}
