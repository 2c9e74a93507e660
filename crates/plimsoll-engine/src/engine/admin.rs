//! Operators' changes. Each takes effect with the next decision.

use std::sync::Arc;

use plimsoll_policy::period::Anchors;
use plimsoll_types::{PlanId, PoolName, RefusalCode, TenantId, Timestamp};

use super::Engine;
use super::account::anchor_of;
use super::state::{Host, Ix, Pool, Rate, Tenant, Timer};
use crate::command::{Admin, Token};
use crate::output::{Effect, Output, Refusal, Reply};
use crate::rows::{
    Change, ConcurrencyLimits, EndpointRow, Limit, PlanLimits, PlanRow, PoolRow, Role, TenantRow,
};

/// How long a pause is taken to last before one has been seen.
const PAUSE_MILLIS_FIRST: u64 = 5_000;

/// How long a start is taken to last before one has been seen.
const START_MILLIS_FIRST: u64 = 1_000;

impl Engine {
    pub(super) fn admin(&mut self, now: Timestamp, token: Token, admin: Admin, out: &mut Output) {
        let done = match admin {
            Admin::PutPlan(row) => self.put_plan(now, row, out),
            Admin::DropPlan(id) => self.drop_plan(&id, out),
            Admin::PutTenant(row) => self.put_tenant(now, row, out),
            Admin::DropTenant(id) => self.drop_tenant(&id, out),
            Admin::PutPool(row) => self.put_pool(now, row, out),
            Admin::DropPool(name) => self.drop_pool(&name, out),
            Admin::PutTemplate(row) => {
                out.changes.push(Change::Template(row.clone()));
                let labels = row.host_labels.is_empty();
                self.templates.insert(row.name.clone(), row);
                if !labels {
                    self.relabel();
                }
                Ok(())
            }
            Admin::DropTemplate(name) => match self.templates.remove(&name) {
                Some(_) => {
                    out.changes.push(Change::TemplateGone(name));
                    Ok(())
                }
                None => Err(missing("template", &name)),
            },
            Admin::PutKey(row) => self.put_key(row, out),
            Admin::RenewKey(row) => {
                let data = serde_json::json!({ "key": row.id, "role": row.role.as_str(),
                    "revoked": self.keys.contains_key(&row.id) });
                let done = self.put_key(row, out);
                if done.is_ok() {
                    self.event(now, "key.renewed", None, data, out);
                }
                done
            }
            Admin::DropKey(id) => match self.keys.remove(&id) {
                Some(_) => {
                    out.changes.push(Change::KeyGone(id));
                    out.effects.push(Effect::KeysChanged);
                    Ok(())
                }
                None => Err(missing("key", &id)),
            },
            Admin::Drain(host) => self.drain(now, &host, true, out),
            Admin::Undrain(host) => self.drain(now, &host, false, out),
            Admin::DropHost(host) => self.drop_host(&host, out),
            Admin::PutProvider(provider) => self.put_provider(now, provider, out),
            Admin::EndUnexpected { host, guest } => self.end_unexpected(now, &host, &guest, out),
            Admin::PutEndpoint(row) => {
                out.changes.push(Change::Endpoint(row.clone()));
                out.effects.push(Effect::Events);
                let before = self.endpoints.insert(row.id, row.clone());
                self.endpoint_put(now, before.as_ref(), &row, out);
                self.endpoints_changed(now, before.as_ref(), Some(&row), out);
                Ok(())
            }
            Admin::DropEndpoint(id) => match self.endpoints.remove(&id) {
                Some(before) => {
                    out.changes.push(Change::EndpointGone(id));
                    out.effects.push(Effect::Events);
                    self.endpoints_changed(now, Some(&before), None, out);
                    Ok(())
                }
                None => Err(missing("webhook endpoint", &id)),
            },
        };
        match done {
            Ok(()) => out.replies.push((token, Reply::Done)),
            Err(refusal) => Self::refuse(token, refusal, out),
        }
    }

    pub(super) fn put_plan(
        &mut self,
        now: Timestamp,
        row: PlanRow,
        out: &mut Output,
    ) -> Result<(), Refusal> {
        out.changes.push(Change::Plan(row.clone()));
        let (id, limits) = (row.id, Arc::new(row.limits));
        self.plans.insert(id.clone(), Arc::clone(&limits));
        for ix in self.tenants.numbers() {
            if self.tenants[ix].row().plan == id {
                let limits = overlay(&limits, &self.tenants[ix].row().overrides);
                self.limits_changed(now, ix, limits, out);
            }
        }
        Ok(())
    }

    /// A tenant has other limits from now on.
    fn limits_changed(
        &mut self,
        now: Timestamp,
        ix: Ix,
        limits: Arc<PlanLimits>,
        out: &mut Output,
    ) {
        let tenant = &mut self.tenants[ix];
        // What was in use until now is settled under the old limits.
        tenant.bursts.advance(&tenant.used.into(), &tenant.limits.concurrency, now);
        tenant.rest.lost_plan = None;
        let (before, after) = (tenant.limits.consumption, limits.consumption);
        tenant.set_limits(limits);
        // More than the new ones let be spent was never spent: it would not be paid back before
        // the rest, until something else settles it.
        tenant.bursts.advance(&tenant.used.into(), &tenant.limits.concurrency, now);
        if after.allows_more_than(&before) {
            self.upgraded(now, ix, out);
        }
        self.metered.insert(ix);
        self.stir_waiters_of(ix);
        self.write_soon(now, ix);
    }

    fn drop_plan(&mut self, id: &PlanId, out: &mut Output) -> Result<(), Refusal> {
        if !self.plans.contains_key(id) {
            return Err(missing("plan", id));
        }
        let used = self.tenants.iter().filter(|(_, tenant)| tenant.row().plan == *id).count();
        if used > 0 {
            return Err(in_use(format!("plan {id} is the plan of {used} tenants")));
        }
        self.plans.remove(id);
        out.changes.push(Change::PlanGone(id.clone()));
        Ok(())
    }

    pub(super) fn put_tenant(
        &mut self,
        now: Timestamp,
        mut row: TenantRow,
        out: &mut Output,
    ) -> Result<(), Refusal> {
        let Some(plan) = self.plans.get(&row.plan) else {
            let mut refusal = missing("plan", &row.plan);
            refusal.code = RefusalCode::InvalidRequest;
            refusal.field = Some(("plan", "the id of a plan".to_owned()));
            refusal.known = self.plans.keys().map(ToString::to_string).collect();
            return Err(refusal);
        };
        let limits = overlay(plan, &row.overrides);
        row.payment_method_ever |= row.payment_method;
        let ix = match self.tenant_named(&row.id) {
            Some(ix) => {
                let tenant = &mut self.tenants[ix];
                row.payment_method_ever |= tenant.row().payment_method_ever;
                tenant.move_anchor(now, anchor_of(row.anchor_day));
                tenant.set_row(row);
                ix
            }
            None => self.insert_tenant(now, row, Arc::clone(&limits)),
        };
        self.abuse_reviewed(now, ix, out);
        self.limits_changed(now, ix, limits, out);
        out.changes.push(Change::Tenant(self.tenants[ix].row().clone()));
        Ok(())
    }

    pub(super) fn insert_tenant(
        &mut self,
        now: Timestamp,
        row: TenantRow,
        limits: Arc<PlanLimits>,
    ) -> Ix {
        let anchors = Anchors::new(anchor_of(row.anchor_day));
        let tenant = Tenant::new(now, row, anchors, limits);
        let ix = self.tenants.insert(tenant);
        self.tenant_ix.insert(&self.tenants, ix);
        ix
    }

    fn drop_tenant(&mut self, id: &TenantId, out: &mut Output) -> Result<(), Refusal> {
        let Some(ix) = self.tenant_named(id) else {
            return Err(missing("tenant", id));
        };
        if *id == self.config.default_tenant {
            return Err(in_use(format!("tenant {id} is the default tenant")));
        }
        let tenant = &self.tenants[ix];
        if tenant.used.sandboxes > 0 || tenant.waiting > 0 {
            return Err(in_use(format!(
                "tenant {id} has {} sandboxes and reservations alive and {} waiting",
                tenant.used.sandboxes, tenant.waiting
            )));
        }
        // Ended records still name it: it keeps its number until they are forgotten.
        let named = self.sandboxes.iter().any(|(_, sandbox)| sandbox.tenant == ix)
            || self.reservations.iter().any(|(_, reservation)| reservation.tenant == ix);
        self.tenant_ix.remove(id);
        self.notices.retain(|_, whose| *whose != ix);
        let timer = self.tenants[ix].account.take().and_then(|account| account.timer);
        if let Some(at) = timer {
            self.timers.remove(&(at, Timer::Tenant(ix)));
        }
        if !named {
            self.tenants.remove(ix);
        }
        let gone: Vec<_> = self
            .keys
            .values()
            .filter(|key| key.tenant.as_ref() == Some(id))
            .map(|key| key.id)
            .collect();
        for key in gone {
            self.keys.remove(&key);
            out.changes.push(Change::KeyGone(key));
        }
        out.effects.push(Effect::KeysChanged);
        out.changes.push(Change::TenantGone(id.clone()));
        Ok(())
    }

    fn put_pool(&mut self, now: Timestamp, row: PoolRow, out: &mut Output) -> Result<(), Refusal> {
        for name in &row.settings.overflow {
            if *name == row.name || !self.pool_ix.contains_key(name) {
                let mut refusal = self.unknown_pool(name);
                refusal.code = RefusalCode::InvalidRequest;
                refusal.field = Some(("overflow", "names of other pools".to_owned()));
                return Err(refusal);
            }
        }
        out.changes.push(Change::Pool(row.clone()));
        match self.pool_ix.get(&row.name).copied() {
            Some(ix) => {
                // Lowering a limit below what is held refuses newcomers and evicts nobody.
                self.pools[ix].row = row;
                let hosts: Vec<Ix> = self.pools[ix].hosts.iter().copied().collect();
                for host in hosts {
                    self.check_host(now, host, out);
                }
                self.rearm_pool(now, ix);
                self.relearn(now, ix);
                self.stir(ix);
            }
            None => {
                self.insert_pool(row);
            }
        }
        self.link_overflow();
        Ok(())
    }

    /// Notes for every pool which others overflow to it.
    pub(super) fn link_overflow(&mut self) {
        let numbers = self.pools.numbers();
        for to in &numbers {
            let name = self.pools[*to].row.name.clone();
            let overflows = |from: &Ix| self.pools[*from].row.settings.overflow.contains(&name);
            let from: Vec<Ix> = numbers.iter().copied().filter(overflows).collect();
            self.pools[*to].overflown_by = from;
        }
    }

    pub(super) fn insert_pool(&mut self, row: PoolRow) -> Ix {
        let name = row.name.clone();
        let ix = self.pools.insert(Pool {
            row,
            held: 0,
            released: 0,
            partitions: Vec::new(),
            hosts: std::collections::BTreeSet::new(),
            queue: std::collections::BTreeMap::new(),
            holds: std::collections::BTreeMap::new(),
            releases: Rate::default(),
            preemptions: Rate::default(),
            pausing: std::collections::BTreeSet::new(),
            pause_millis: PAUSE_MILLIS_FIRST,
            start_millis: START_MILLIS_FIRST,
            policy: (0, plimsoll_types::PolicyMode::Normal),
            preempted_at: None,
            overflown_by: Vec::new(),
            learned: None,
            sizes: std::collections::BTreeMap::new(),
        });
        self.pool_ix.insert(name, ix);
        ix
    }

    fn drop_pool(&mut self, name: &PoolName, out: &mut Output) -> Result<(), Refusal> {
        let Some(ix) = self.pool_ix.get(name).copied() else {
            return Err(self.unknown_pool(name));
        };
        if *name == self.config.default_pool {
            return Err(in_use(format!("pool {name} is the default pool")));
        }
        let pool = &self.pools[ix];
        let named =
            |sandbox: &super::state::Sandbox| sandbox.pool == Some(ix) || sandbox.home == Some(ix);
        let records = self.sandboxes.iter().filter(|(_, sandbox)| named(sandbox)).count()
            + self.reservations.iter().filter(|(_, r)| r.pool == ix).count();
        if !pool.hosts.is_empty() || !pool.queue.is_empty() || records > 0 {
            return Err(in_use(format!(
                "pool {name} has {} hosts and {records} records, ended ones of the last day included",
                pool.hosts.len()
            )));
        }
        let overflown = self.pools.iter().find(|(_, p)| p.row.settings.overflow.contains(name));
        if let Some((_, other)) = overflown {
            return Err(in_use(format!("pool {} overflows to {name}", other.row.name)));
        }
        for partition in pool.partitions.clone() {
            if let Some(gone) = self.partitions.remove(partition) {
                self.partition_ix.remove(&gone.key);
            }
        }
        self.pools.remove(ix);
        self.pool_ix.remove(name);
        self.link_overflow();
        out.changes.push(Change::PoolGone(name.clone()));
        Ok(())
    }

    fn put_key(&mut self, row: crate::rows::KeyRow, out: &mut Output) -> Result<(), Refusal> {
        if row.role == Role::Tenant {
            let known = row.tenant.as_ref().is_some_and(|id| self.tenant_named(id).is_some());
            if !known {
                let mut refusal = Refusal::new(
                    RefusalCode::InvalidRequest,
                    "tenant: a key of role tenant needs the id of a tenant that exists",
                );
                refusal.field = Some(("tenant", "the id of a tenant".to_owned()));
                return Err(refusal);
            }
        }
        out.changes.push(Change::Key(row.clone()));
        out.effects.push(Effect::KeysChanged);
        self.keys.insert(row.id, row);
        Ok(())
    }

    fn drain(
        &mut self,
        now: Timestamp,
        name: &plimsoll_types::HostId,
        on: bool,
        out: &mut Output,
    ) -> Result<(), Refusal> {
        let ix = self.host_by_name(name).ok_or_else(|| missing("host", name))?;
        let host: &mut Host = &mut self.hosts[ix];
        if host.row.draining != on {
            host.row.draining = on;
            out.changes.push(Change::Host(host.row.clone()));
            let kind = if on { "host.draining" } else { "host.undrained" };
            self.event(now, kind, None, serde_json::json!({ "host": name }), out);
        }
        self.relist(ix);
        let pool = self.hosts[ix].pool;
        self.stir(pool);
        Ok(())
    }

    fn drop_host(
        &mut self,
        name: &plimsoll_types::HostId,
        out: &mut Output,
    ) -> Result<(), Refusal> {
        let ix = self.host_by_name(name).ok_or_else(|| missing("host", name))?;
        let host = &self.hosts[ix];
        if !host.dead || !host.claims.is_empty() {
            return Err(in_use(format!(
                "host {name} is {} and has {} claims: only a dead and empty host is forgotten",
                if host.dead { "dead" } else { "not dead" },
                host.claims.len()
            )));
        }
        let ended = self.reservations.iter().filter(|(_, one)| one.host == ix).count();
        if ended > 0 {
            return Err(in_use(format!(
                "{ended} reservations on host {name} ended within the last day"
            )));
        }
        for ix_named in self.sandboxes.numbers() {
            let sandbox = &mut self.sandboxes[ix_named];
            if sandbox.host == Some(ix) {
                sandbox.host = None;
            }
        }
        self.unlist(ix);
        self.forget_size(ix);
        let pool = self.hosts[ix].pool;
        self.pools[pool].hosts.remove(&ix);
        let holds: Vec<_> = self.pools[pool]
            .holds
            .values()
            .filter(|hold| hold.host == Some(ix))
            .map(|hold| hold.place)
            .collect();
        for place in holds {
            self.unhold(pool, place);
        }
        self.hosts.remove(ix);
        self.host_ix.remove(name);
        out.changes.push(Change::HostGone(name.clone()));
        Ok(())
    }
}

impl Engine {
    /// Tells of an endpoint that is sent nothing any more: whoever relies on it will not hear of
    /// it in any other way.
    fn endpoint_put(
        &mut self,
        now: Timestamp,
        before: Option<&EndpointRow>,
        after: &EndpointRow,
        out: &mut Output,
    ) {
        let was_on = before.is_none_or(|row| row.disabled.is_none());
        if let Some(reason) = after.disabled.as_ref().filter(|_| was_on) {
            // Not the URL: its path may be what keeps strangers from posting to it.
            let data = serde_json::json!({
                "endpoint": after.id, "description": after.description, "reason": reason,
            });
            self.event(now, "webhook.disabled", after.tenant.clone(), data, out);
        }
    }
}

/// A plan's limits with a tenant's own on top, shared where it has none.
pub(super) fn overlay(plan: &Arc<PlanLimits>, own: &PlanLimits) -> Arc<PlanLimits> {
    if *own == PlanLimits::default() {
        return Arc::clone(plan);
    }
    let limit = |plan: Limit, own: Limit| Limit {
        limit: own.limit.or(plan.limit),
        burst_limit: if own.limit.is_some() {
            own.burst_limit
        } else {
            own.burst_limit.or(plan.burst_limit)
        },
    };
    let (p, o) = (&plan.concurrency, &own.concurrency);
    Arc::new(PlanLimits {
        concurrency: ConcurrencyLimits {
            sandboxes: limit(p.sandboxes, o.sandboxes),
            vcpus: limit(p.vcpus, o.vcpus),
            memory_mib: limit(p.memory_mib, o.memory_mib),
        },
        consumption: crate::rows::ConsumptionLimits {
            cpu_seconds: own.consumption.cpu_seconds.or(plan.consumption.cpu_seconds),
            gib_hours: own.consumption.gib_hours.or(plan.consumption.gib_hours),
            egress_bytes: own.consumption.egress_bytes.or(plan.consumption.egress_bytes),
        },
        rate: crate::rows::RateLimits {
            creates_per_minute: own.rate.creates_per_minute.or(plan.rate.creates_per_minute),
            creates_per_hour: own.rate.creates_per_hour.or(plan.rate.creates_per_hour),
            forks_per_minute: own.rate.forks_per_minute.or(plan.rate.forks_per_minute),
            forks_per_hour: own.rate.forks_per_hour.or(plan.rate.forks_per_hour),
            resumes_per_minute: own.rate.resumes_per_minute.or(plan.rate.resumes_per_minute),
            resumes_per_hour: own.rate.resumes_per_hour.or(plan.rate.resumes_per_hour),
        },
    })
}

fn missing(what: &str, name: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(RefusalCode::NotFound, format!("no {what} {name}"))
}

fn in_use(detail: String) -> Refusal {
    Refusal::new(RefusalCode::Conflict, detail)
}
