//! The quota ladder wired: what each step does, the notices, the deletion, and the way back.
//!
//! Where a tenant stands is the policy's to say ([`plimsoll_policy::ladder`]). A tenant is looked
//! at when its use or its limits have moved, when a notice has come out, and when its own timer
//! says so; one that uses nothing, or is limited by nothing, is never looked at.

use std::sync::Arc;

use plimsoll_policy::consumption::Amounts;
use plimsoll_policy::deletion::{self, Missing};
use plimsoll_policy::fresh::Freshness;
use plimsoll_policy::ladder::{Act, Facts, Notice, Rung};
use plimsoll_policy::period::rfc3339;
use plimsoll_types::{EndpointId, EventId, Millis, SandboxId, SandboxStatus, Timestamp};
use serde_json::{Value, json};

use super::Engine;
use super::account::{Account, Said};
use super::state::{Claim, Ix, Tenant, Timer};
use crate::output::Output;
use crate::rows::{EndpointRow, PausedBy};

/// Most sandboxes that are paused in one look: the rest comes with the next one.
const PAUSED_MAX: usize = 1_000;

/// Most sandboxes that one announcement names; the others are announced after them. An event of
/// this many ids is some 30 kB.
const ANNOUNCED_MAX: usize = 1_000;

/// A sandbox whose pause has failed is left alone for so long.
const PAUSE_AGAIN: Millis = Millis::from_seconds(600);

/// The two notices that must have been delivered before anything is deleted.
const SUSPENDED: &str = "quota.suspended";
const DELETION: &str = "quota.deletion_scheduled";

impl Engine {
    /// Looks at every tenant that something has moved for.
    pub(super) fn step_ladders(&mut self, now: Timestamp, out: &mut Output) {
        // After every input, and mostly for nothing: a look at a length costs less than a search.
        while !self.metered.is_empty()
            && let Some(ix) = self.metered.pop_first()
        {
            // One that was removed may still be named by ended records that use came late for.
            let here = |tenant: &Tenant| self.tenant_named(&tenant.row().id) == Some(ix);
            if self.tenants.get(ix).is_some_and(here) {
                self.step_ladder(now, ix, out);
            }
        }
    }

    /// A tenant's own timer.
    pub(super) fn ladder_due(&mut self, now: Timestamp, at: Timestamp, ix: Ix) {
        let Some(tenant) = self.tenants.get_mut(ix) else { return };
        if let Some(account) = tenant.account.as_deref_mut()
            && account.timer == Some(at)
        {
            account.timer = None;
            self.metered.insert(ix);
        }
        debug_assert!(at <= now);
    }

    fn ladder_facts(&self, now: Timestamp, ix: Ix) -> Facts {
        let tenant = &self.tenants[ix];
        let (suspended_notice, deletion_notice) = match &tenant.account {
            Some(account) => (account.suspended.notice, account.deletion.notice),
            None => (Notice::Pending, Notice::Pending),
        };
        // Only a tenant that is hibernated is asked what it has at rest.
        let hibernated =
            tenant.account.as_ref().is_some_and(|account| account.ladder.rung == Rung::Hibernated);
        Facts {
            now,
            period: tenant.period_at(now).start,
            used: tenant.limits.consumption.tightest(&tenant.used_at(now)).share,
            paying: tenant.row().payment_method,
            suspended_notice,
            deletion_notice,
            deletable: hibernated && self.hibernated(ix).next().is_some(),
        }
    }

    /// The sandboxes that the ladder has paused and that are at rest.
    fn hibernated(&self, ix: Ix) -> impl Iterator<Item = Ix> + '_ {
        self.sandboxes_of(ix).filter(|ix| {
            let row = &self.sandboxes[*ix].row;
            row.paused_by == Some(PausedBy::Quota) && row.status == SandboxStatus::Paused
        })
    }

    /// A tenant's sandboxes that count for quota.
    pub(super) fn sandboxes_of(&self, ix: Ix) -> impl Iterator<Item = Ix> + '_ {
        self.tenants[ix].claims.iter().filter_map(|claim| match claim {
            Claim::Sandbox(ix) => Some(*ix),
            Claim::Reservation(_) => None,
        })
    }

    fn step_ladder(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let tenant = &self.tenants[ix];
        let limits = &tenant.limits.consumption;
        if tenant.account.is_none() && !limits.is_exhausted(&Amounts::default()) {
            return;
        }
        let facts = self.ladder_facts(now, ix);
        let rule = self.config.ladder;
        let account = self.tenants[ix].account_at(now);
        let before = account.ladder;
        let acts = account.ladder.step(&rule, &facts);
        self.climb(now, ix, before, &acts, out);
    }

    /// A tenant's limits on consumption have been raised: all is taken back, and if its budget is
    /// used up still, the ladder begins anew.
    pub(super) fn upgraded(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let Some(account) = self.tenants[ix].account.as_deref_mut() else { return };
        let before = account.ladder;
        let acts = account.ladder.start_over(now);
        self.climb(now, ix, before, &acts, out);
    }

    fn climb(
        &mut self,
        now: Timestamp,
        ix: Ix,
        before: plimsoll_policy::ladder::Ladder,
        acts: &[Act],
        out: &mut Output,
    ) {
        for act in acts {
            self.act(now, ix, *act, out);
        }
        let after = self.tenants[ix].account_at(now).ladder;
        if after.rung > before.rung {
            // What a rung rests on is written with it, so that no restart lets go of it.
            self.write_all_usage(now, ix, out);
        }
        if before.rung.refuses_new_work() != after.rung.refuses_new_work() {
            let account = self.tenants[ix].account_at(now);
            if before.rung.refuses_new_work() {
                account.released_at = now;
                self.stir_waiters_of(ix);
            }
            // Nothing of a tenant that can resume nothing expires for being paused.
            for sandbox in self.sandboxes_of(ix).collect::<Vec<_>>() {
                self.arm_sandbox(now, sandbox);
            }
        }
        if before != after {
            self.write_state(now, ix, out);
        }
        self.arm_ladder(now, ix);
    }

    fn act(&mut self, now: Timestamp, ix: Ix, act: Act, out: &mut Output) {
        match act {
            Act::Warn => {
                self.tell(now, ix, "quota.warning", json!({}), out);
            }
            Act::Exhausted => {
                self.tell(now, ix, "quota.exhausted", json!({}), out);
            }
            Act::Suspended => {
                let paused = self.hibernate(now, ix, out);
                self.notify(now, ix, SUSPENDED, json!({ "pausing": paused }), out);
            }
            Act::PauseIdle => {
                let interval = self.config.hibernate_interval;
                let swept = self.tenants[ix].account_at(now).swept_at;
                if swept.is_none_or(|at| now.since(at) >= interval) {
                    self.hibernate(now, ix, out);
                }
            }
            Act::AnnounceDeletion { not_before } => self.announce(now, ix, not_before, out),
            Act::RunDeletion => self.run_deletion(now, ix, out),
            Act::TellOperator => {
                let data = self.budget_data(now, ix);
                self.event(now, "quota.unnotified", None, data, out);
            }
            Act::CancelDeletion => {
                self.tenants[ix].account_at(now).announced = Vec::new();
            }
            Act::Resume => self.let_go_of(now, ix, out),
            Act::Overage { passed } => {
                self.tell(now, ix, "quota.overage", json!({ "passed_bp": passed.0 }), out);
            }
        }
    }

    /// An event to a tenant about its budget.
    fn tell(
        &mut self,
        now: Timestamp,
        ix: Ix,
        kind: &str,
        more: Value,
        out: &mut Output,
    ) -> EventId {
        let mut data = self.budget_data(now, ix);
        if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
            data.extend(more);
        }
        let tenant = self.tenants[ix].row().id.clone();
        self.event(now, kind, Some(tenant), data, out)
    }

    /// An event of which it matters whether it gets through.
    fn notify(&mut self, now: Timestamp, ix: Ix, kind: &str, more: Value, out: &mut Output) {
        let event = self.tell(now, ix, kind, more, out);
        let heard = self.endpoints.values().any(|row| self.hears(row, ix, kind));
        let said = Said {
            event: Some(event),
            notice: if heard { Notice::Pending } else { Notice::Undeliverable },
        };
        let account = self.tenants[ix].account_at(now);
        let before = std::mem::replace(account.said_mut(kind == DELETION), said);
        if let Some(before) = before.event {
            account.gave_up.retain(|(event, _)| *event != before);
            self.notices.remove(&before);
        }
        self.notices.insert(event, ix);
        if !heard {
            // Nobody will ever say so: the ladder is told at once.
            self.metered.insert(ix);
        }
    }

    /// Whether an endpoint of this tenant's own takes events of this kind.
    fn hears(&self, row: &EndpointRow, ix: Ix, kind: &str) -> bool {
        row.tenant.as_ref() == Some(&self.tenants[ix].row().id)
            && row.disabled.is_none()
            && (row.events.is_empty() || row.events.iter().any(|wanted| wanted == kind))
    }

    /// Whether an endpoint hears of a notice and has not given it up.
    fn may_take(&self, row: &EndpointRow, ix: Ix, kind: &str, event: EventId) -> bool {
        let gave_up = |account: &Account| account.gave_up.contains(&(event, row.id));
        self.hears(row, ix, kind) && !self.tenants[ix].account.as_deref().is_some_and(gave_up)
    }

    /// What became of a notice at one endpoint.
    pub(super) fn delivered(
        &mut self,
        now: Timestamp,
        event: EventId,
        endpoint: EndpointId,
        delivered: bool,
        out: &mut Output,
    ) {
        let Some(ix) = self.notices.get(&event).copied() else { return };
        let Some(account) = self.tenants.get_mut(ix).and_then(|t| t.account.as_deref_mut()) else {
            return;
        };
        if delivered {
            for said in [&mut account.suspended, &mut account.deletion] {
                if said.event == Some(event) && !matches!(said.notice, Notice::Delivered(_)) {
                    said.notice = Notice::Delivered(now);
                }
            }
        } else if !account.gave_up.contains(&(event, endpoint)) {
            account.gave_up.push((event, endpoint));
        }
        self.write_state(now, ix, out);
        self.metered.insert(ix);
        self.despair(now, ix, out);
    }

    /// A notice for which no endpoint waits any more has come to nobody. An endpoint that was made
    /// since it was said, behind which it lies, has it said again.
    fn despair(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        for kind in [SUSPENDED, DELETION] {
            let Some(account) = self.tenants[ix].account.as_deref_mut() else { return };
            let said = account.said_mut(kind == DELETION);
            let (Notice::Pending, Some(event)) = (said.notice, said.event) else { continue };
            let left = self.endpoints.values().filter(|row| self.may_take(row, ix, kind, event));
            let cursors: Vec<EventId> = left.map(|row| row.cursor).collect();
            if cursors.iter().any(|cursor| *cursor < event) {
                continue;
            }
            self.tenants[ix].account_at(now).said_mut(kind == DELETION).notice =
                Notice::Undeliverable;
            self.write_state(now, ix, out);
            self.metered.insert(ix);
            if !cursors.is_empty() && self.is_due(ix, kind) {
                self.say_again(now, ix, kind, out);
            }
        }
    }

    /// Whether the tenant stands where this notice is about.
    fn is_due(&self, ix: Ix, kind: &str) -> bool {
        let rung = self.tenants[ix].account.as_deref().map(|account| account.ladder.rung);
        rung == Some(if kind == DELETION { Rung::Deleting } else { Rung::Hibernated })
    }

    /// An endpoint was made, changed or removed. A tenant that could not be told before is told
    /// now; one that cannot be told any more is so known to the ladder.
    pub(super) fn endpoints_changed(
        &mut self,
        now: Timestamp,
        before: Option<&EndpointRow>,
        after: Option<&EndpointRow>,
        out: &mut Output,
    ) {
        let Some(row) = after.or(before) else { return };
        let Some(ix) = row.tenant.as_ref().and_then(|tenant| self.tenant_named(tenant)) else {
            return;
        };
        let Some(account) = self.tenants[ix].account.as_deref() else { return };
        for (kind, notice) in
            [(SUSPENDED, account.suspended.notice), (DELETION, account.deletion.notice)]
        {
            let heard =
                |row: Option<&EndpointRow>| row.is_some_and(|row| self.hears(row, ix, kind));
            // A change that says nothing new (a cursor that moved) says nothing again.
            let new = heard(after)
                && !(heard(before) && before.map(|row| &row.url) == after.map(|row| &row.url));
            if new && notice == Notice::Undeliverable && self.is_due(ix, kind) {
                self.say_again(now, ix, kind, out);
            }
        }
        self.despair(now, ix, out);
    }

    fn say_again(&mut self, now: Timestamp, ix: Ix, kind: &str, out: &mut Output) {
        if kind == DELETION {
            let not_before = now + self.config.ladder.grace;
            self.tenants[ix].account_at(now).ladder.announced_again(now);
            let data = self.announcement(now, ix, not_before);
            self.notify(now, ix, DELETION, data, out);
        } else {
            let paused = self.hibernated(ix).count();
            self.notify(now, ix, SUSPENDED, json!({ "paused": paused }), out);
        }
        self.write_state(now, ix, out);
        self.metered.insert(ix);
    }

    /// Pauses what is idle, and says how many.
    fn hibernate(&mut self, now: Timestamp, ix: Ix, out: &mut Output) -> usize {
        self.tenants[ix].account_at(now).swept_at = Some(now);
        let idle: Vec<Ix> =
            self.sandboxes_of(ix).filter(|ix| self.is_idle(now, *ix)).take(PAUSED_MAX).collect();
        for sandbox in &idle {
            self.pause_for(now, *sandbox, PausedBy::Quota, out);
        }
        idle.len()
    }

    /// Pauses a sandbox and remembers for what, so that it runs again by itself.
    pub(super) fn pause_for(&mut self, now: Timestamp, ix: Ix, by: PausedBy, out: &mut Output) {
        let why = match by {
            PausedBy::Quota => "paused: its tenant's budget is used up and it was idle",
            PausedBy::Abuse => "paused: its tenant is suspected of abuse",
        };
        self.begin_pause(now, ix, why, true, out);
        if self.sandboxes[ix].row.status == SandboxStatus::Pausing {
            self.change(now, ix, out, |row| row.paused_by = Some(by));
        }
    }

    /// Whether nothing happens in a sandbox: nobody has called into it, and its host, which is
    /// heard of, has seen it use next to no CPU.
    fn is_idle(&self, now: Timestamp, ix: Ix) -> bool {
        let sandbox = &self.sandboxes[ix];
        let row = &sandbox.row;
        let fresh =
            sandbox.host.is_some_and(|host| self.hosts[host].fresh == Some(Freshness::Fresh));
        if row.status != SandboxStatus::Running || !fresh {
            return false;
        }
        let idle = self.config.hibernate_idle;
        let active = row.last_active_at.max(row.started_at.unwrap_or(row.created_at));
        let failed = sandbox.rare().pause_failed_at.is_some_and(|at| now.since(at) < PAUSE_AGAIN);
        !failed && now.since(active) >= idle && self.quiet_for(ix) >= idle
    }

    /// Names what will be deleted, and when.
    fn announce(&mut self, now: Timestamp, ix: Ix, not_before: Timestamp, out: &mut Output) {
        let mut named: Vec<SandboxId> =
            self.hibernated(ix).map(|sandbox| self.sandboxes[sandbox].row.id).collect();
        named.sort_unstable();
        named.truncate(ANNOUNCED_MAX);
        self.tenants[ix].account_at(now).announced = named;
        let data = self.announcement(now, ix, not_before);
        self.notify(now, ix, DELETION, data, out);
    }

    fn announcement(&self, now: Timestamp, ix: Ix, not_before: Timestamp) -> Value {
        let account = self.tenants[ix].account.as_ref();
        let named = account.map_or(&[][..], |account| &account.announced);
        debug_assert!(now <= not_before);
        json!({
            "sandboxes": named, "not_before": rfc3339(not_before),
            "others_paused": self.hibernated(ix).count().saturating_sub(named.len()),
        })
    }

    /// The deletion itself: for each sandbox that was named, everything that must hold is looked
    /// at again now (I10). What no longer qualifies is spared; what only cannot be told now is
    /// looked at again later.
    fn run_deletion(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let named = std::mem::take(&mut self.tenants[ix].account_at(now).announced);
        let mut left = Vec::new();
        let mut deleted = Vec::new();
        for id in named {
            let Some(sandbox) = self.sandbox_ix.get(&id).copied() else { continue };
            if self.sandboxes[sandbox].row.status.is_terminal() {
                continue;
            }
            match self.deletable(now, ix, sandbox) {
                Ok(()) => {
                    let why = "deleted: its tenant's budget was used up and the announced time \
                               has passed";
                    self.terminate(now, sandbox, why, out);
                    deleted.push(id);
                }
                Err(missing) => {
                    let passing = [Missing::UsageIncomplete, Missing::PlanUnknown];
                    if missing.iter().all(|missing| passing.contains(missing)) {
                        left.push(id);
                    }
                }
            }
        }
        let over = left.is_empty();
        if !deleted.is_empty() {
            self.tell(now, ix, "quota.deleted", json!({ "sandboxes": deleted }), out);
        }
        let account = self.tenants[ix].account_at(now);
        account.announced = left;
        if over {
            account.ladder.deletion_over(now);
        }
        self.write_state(now, ix, out);
    }

    /// Whether one named sandbox may be deleted at this moment.
    fn deletable(&self, now: Timestamp, ix: Ix, sandbox: Ix) -> Result<(), Vec<Missing>> {
        let tenant = &self.tenants[ix];
        let Some(account) = &tenant.account else { return Err(vec![Missing::NotDeleting]) };
        let heard_of = |sandbox: Ix| {
            let host = self.sandboxes[sandbox].host.and_then(|host| self.hosts.get(host));
            host.is_some_and(|host| host.fresh == Some(Freshness::Fresh))
        };
        let row = &self.sandboxes[sandbox].row;
        let facts = deletion::Facts {
            tenant: self.ladder_facts(now, ix),
            usage_complete: self.sandboxes_of(ix).all(heard_of),
            plan_known: tenant.rest.lost_plan.is_none(),
            announced: true,
            at_rest: row.status == SandboxStatus::Paused
                && row.paused_by == Some(PausedBy::Quota)
                && row.resume_requested_at.is_none(),
            last_active_at: row.last_active_at,
        };
        deletion::preconditions(&account.ladder, &self.config.ladder, &facts)
    }

    /// Takes everything back: what the ladder has paused runs again, by itself.
    fn let_go_of(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let account = self.tenants[ix].account_at(now);
        account.announced = Vec::new();
        account.swept_at = None;
        let forgotten = [account.suspended.event.take(), account.deletion.event.take()];
        (account.suspended, account.deletion) = (Said::default(), Said::default());
        for event in forgotten.into_iter().flatten() {
            self.notices.remove(&event);
        }
        let resumed = self.resume_paused(now, ix, PausedBy::Quota, out);
        self.tell(now, ix, "quota.resumed", json!({ "resuming": resumed }), out);
    }

    /// Lets everything run again that the cell has paused for this, and says how many. It was
    /// paused by no wish of the tenant's, so it costs no token.
    pub(super) fn resume_paused(
        &mut self,
        now: Timestamp,
        ix: Ix,
        by: PausedBy,
        out: &mut Output,
    ) -> usize {
        let paused: Vec<Ix> = self
            .sandboxes_of(ix)
            .filter(|ix| self.sandboxes[*ix].row.paused_by == Some(by))
            .collect();
        for sandbox in &paused {
            match self.sandboxes[*sandbox].row.status {
                SandboxStatus::Pausing => self.change(now, *sandbox, out, |row| {
                    row.paused_by = None;
                    row.resume_requested_at = row.resume_requested_at.or(Some(now));
                    row.reason = Some(Arc::from("resumes when its pause has finished"));
                }),
                SandboxStatus::Paused => {
                    self.change(now, *sandbox, out, |row| row.paused_by = None);
                    let decision = self.mint_decision(now);
                    self.request_resume(now, *sandbox, decision, out);
                }
                _ => self.change(now, *sandbox, out, |row| row.paused_by = None),
            }
        }
        paused.len()
    }

    /// Whoever waits and was held back by this tenant's limits is looked at again.
    pub(super) fn stir_waiters_of(&mut self, ix: Ix) {
        if self.tenants[ix].waiting > 0 {
            for pool in self.pools.numbers() {
                self.stir(pool);
            }
        }
    }

    /// Sets the tenant's one timer to what is due next. A tenant below the first rung has none.
    pub(super) fn arm_ladder(&mut self, now: Timestamp, ix: Ix) {
        let (rule, interval) = (self.config.ladder, self.config.hibernate_interval);
        let account = self.tenants[ix].account_at(now);
        let rung = account.ladder.rung;
        let step = account.ladder.next_step(&rule, account.deletion.notice);
        let sweep = (rung >= Rung::Hibernated).then(|| account.swept_at.unwrap_or(now) + interval);
        let end = (rung > Rung::Ok).then_some(account.period.end);
        let next = [step, sweep, end].into_iter().flatten().filter(|at| *at > now).min();
        if account.timer == next {
            return;
        }
        if let Some(old) = std::mem::replace(&mut account.timer, next) {
            self.timers.remove(&(old, Timer::Tenant(ix)));
        }
        if let Some(at) = next {
            self.timers.insert((at, Timer::Tenant(ix)));
        }
    }
}
