//! From rows to an engine: what a restart does.

use std::num::NonZeroU128;
use std::sync::Arc;

use plimsoll_types::{Mib, PlanId, SandboxStatus, Timestamp};

use super::Engine;
use super::admin::overlay;
use super::hash::IdMap;
use super::keys::{Route, fingerprint};
use super::names::TenantNames;
use super::slab::Slab;
use super::state::{Claim, Ix, Map, Pending, Reservation, Sandbox, Waiter};
use crate::config::EngineConfig;
use crate::output::Output;
use crate::rows::{
    ConcurrencyLimits, Limit, PlanLimits, PlanRow, PoolRow, PoolSettings, Rows, TenantRow,
};

/// Sandboxes that the plan `default` has room for: enough for any single-tenant use, and still a
/// bound on a loop.
const DEFAULT_PLAN_SANDBOXES: u64 = 100_000;

/// Why rows do not make an engine.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A row names something that is not there.
    #[error("{table} row {row} names {missing}, which does not exist")]
    Dangling {
        /// The table.
        table: &'static str,
        /// The row's key.
        row: String,
        /// What it names.
        missing: String,
    },
}

impl Engine {
    /// An engine over the rows of a store, led under `epoch`. What must exist and does not (the
    /// default pool, plan, tenant) is made, and written with the first output. Commands that were
    /// under way are sent again.
    ///
    /// # Errors
    /// When the rows contradict each other.
    pub fn restore(
        config: EngineConfig,
        epoch: u64,
        rows: Rows,
        now: Timestamp,
        out: &mut Output,
    ) -> Result<Self, RestoreError> {
        // An endpoint may have come further than the events that are kept.
        let cursors = rows.endpoints.iter().map(|row| row.cursor);
        let last_event = cursors.chain(rows.last_event).max().map_or(0, |id| id.0 >> 80);
        let mut engine = Self {
            config,
            epoch,
            minted: 0,
            event_millis: u64::try_from(last_event).unwrap_or_default(),
            arrivals: 0,
            plans: rows.plans.into_iter().map(|row| (row.id, Arc::new(row.limits))).collect(),
            tenants: Slab::default(),
            tenant_ix: TenantNames::default(),
            pools: Slab::default(),
            pool_ix: std::collections::BTreeMap::new(),
            templates: rows.templates.into_iter().map(|row| (row.name.clone(), row)).collect(),
            keys: rows.keys.into_iter().map(|row| (row.id, row)).collect(),
            endpoints: rows.endpoints.into_iter().map(|row| (row.id, row)).collect(),
            hosts: Slab::default(),
            host_ix: Map::default(),
            partitions: Slab::default(),
            partition_ix: std::collections::BTreeMap::new(),
            label_keys: std::collections::BTreeSet::new(),
            sandboxes: Slab::default(),
            specs: super::specs::Specs::default(),
            sandbox_ix: std::collections::BTreeMap::new(),
            reservations: Slab::default(),
            reservation_ix: IdMap::default(),
            bound: IdMap::default(),
            tickets: std::collections::BTreeMap::new(),
            ticket_order: std::collections::VecDeque::new(),
            ended: std::collections::VecDeque::new(),
            wheel: std::collections::BTreeMap::new(),
            timers: super::timers::Timers::default(),
            totals: super::totals::Totals::default(),
            parked: std::collections::BTreeMap::new(),
            stirred: std::collections::BTreeSet::new(),
            metered: std::collections::BTreeSet::new(),
            unwritten: std::collections::VecDeque::new(),
            turned: std::collections::BTreeSet::new(),
            notices: std::collections::BTreeMap::new(),
        };
        for row in rows.pools {
            engine.insert_pool(row);
        }
        engine.seed(now, rows.tenants, out);
        engine.link_overflow();
        engine.relabel();
        for row in rows.hosts {
            let pool = engine.pool_ix.get(&row.pool).copied().ok_or_else(|| {
                dangling("host", row.id.to_string(), format!("pool {}", row.pool))
            })?;
            engine.insert_host(now, row, pool);
        }
        let mut sandboxes = rows.sandboxes;
        sandboxes.sort_by_key(|row| row.id);
        let mut ended: Vec<(Timestamp, Claim)> = Vec::new();
        let mut live: Vec<Ix> = Vec::new();
        for row in sandboxes {
            let over = row.ended_at;
            let ix = engine.restore_sandbox(row)?;
            match over {
                Some(at) if engine.sandboxes[ix].row.status.is_terminal() => {
                    ended.push((at, Claim::Sandbox(ix)));
                }
                _ => live.push(ix),
            }
        }
        for row in rows.reservations {
            let over = row.ended_at;
            let ix = engine.restore_reservation(now, row)?;
            if let Some(at) = over
                && !engine.reservations[ix].row.state.holds()
            {
                ended.push((at, Claim::Reservation(ix)));
            }
        }
        ended.sort_unstable();
        engine.ended = ended.into();
        // With everything in place that draws on a burst: the time since its state was written is
        // spent with all of it, and not with a part.
        engine.restore_states(now, rows.tenant_states, out);
        engine.restore_usage(now, rows.usage);
        for ix in live {
            engine.take_up_sandbox(now, ix, out);
        }
        engine.run_timers(now, out);
        engine.serve_stirred(now, out);
        engine.trim_ended(now);
        Ok(engine)
    }

    /// Tenants, and what must exist.
    fn seed(&mut self, now: Timestamp, tenants: Vec<TenantRow>, out: &mut Output) {
        if !self.pool_ix.contains_key(&self.config.default_pool) {
            let row = PoolRow {
                name: self.config.default_pool.clone(),
                settings: PoolSettings::default(),
            };
            out.changes.push(crate::rows::Change::Pool(row.clone()));
            self.insert_pool(row);
        }
        let id = PlanId::new("default").expect("a valid name");
        let default_plan = self.plans.get(&id).cloned().unwrap_or_else(|| {
            Arc::new(PlanLimits {
                concurrency: ConcurrencyLimits {
                    sandboxes: Limit::flat(DEFAULT_PLAN_SANDBOXES),
                    ..ConcurrencyLimits::default()
                },
                ..PlanLimits::default()
            })
        });
        let first = tenants.is_empty();
        for row in tenants {
            // A plan that cannot be read is no reason to refuse anybody: the limits last known
            // stand in for it, and the default plan's where none are known.
            let plan = self.plans.get(&row.plan).cloned();
            let lost = plan.is_none().then(|| Arc::clone(&default_plan));
            let limits = overlay(plan.as_ref().unwrap_or(&default_plan), &row.overrides);
            let ix = self.insert_tenant(now, row, limits);
            let tenant = &mut self.tenants[ix];
            tenant.rest.lost_plan = lost;
            if !tenant.limits.consumption.is_unlimited() {
                self.metered.insert(ix);
            }
        }
        if !self.plans.contains_key(&id) {
            // Where tenants exist, it did too: what cannot be read is not written over.
            if first {
                let row = PlanRow { id: id.clone(), limits: *default_plan };
                out.changes.push(crate::rows::Change::Plan(row));
            }
            self.plans.insert(id.clone(), default_plan);
        }
        if self.tenant_named(&self.config.default_tenant).is_none() {
            let row = TenantRow::new(self.config.default_tenant.clone(), id, now);
            // The plan was made above.
            let _ = self.put_tenant(now, row, out);
        }
    }

    fn restore_sandbox(&mut self, row: crate::rows::SandboxRow) -> Result<Ix, RestoreError> {
        let tenant = self.tenant_named(&row.tenant).ok_or_else(|| {
            dangling("sandbox", row.id.to_string(), format!("tenant {}", row.tenant))
        })?;
        let pool = row.pool.as_ref().and_then(|pool| self.pool_ix.get(pool)).copied();
        let host = row.host.as_ref().and_then(|host| self.host_ix.get(host)).copied();
        let template = self.templates.get(&row.template);
        let home = row
            .spec
            .requested_pool
            .as_ref()
            .or(template.and_then(|template| template.pool.as_ref()))
            .unwrap_or(&self.config.default_pool);
        let home = self.pool_ix.get(home).copied().or(pool);
        let route = if row.spec.fork_of.is_some() { Route::Fork } else { Route::Create };
        let key = row.key.as_deref().map(|key| fingerprint(row.tenant.as_str(), route, key));
        Ok(self.insert_sandbox(Sandbox {
            tenant,
            pool,
            host,
            key: key.and_then(NonZeroU128::new),
            home,
            answered: true,
            ..Sandbox::new(row)
        }))
    }

    /// Counts a live sandbox in, and goes on with what was under way.
    fn take_up_sandbox(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        let status = self.sandboxes[ix].row.status;
        if status != SandboxStatus::Queued
            && let Some(host) = self.sandboxes[ix].host
        {
            self.join_host(ix, host);
        }
        self.count_in(ix);
        self.meter_restored(now, ix);
        if super::ledger::occupies(&self.sandboxes[ix]) {
            let number = self.sandboxes[ix].row.fence.number;
            let mut charge = self.sandboxes[ix].row.charge_mib;
            // The row says what a report charged for it last, which may have been while it was
            // frozen. Until one accounts for its last command, it costs what it was let in for.
            if let (Some(pool), Some(host)) = (self.sandboxes[ix].pool, self.sandboxes[ix].host) {
                charge = charge.max(self.thaw_charge(pool, host, ix));
            }
            let starting = matches!(status, SandboxStatus::Provisioning | SandboxStatus::Resuming);
            let (charge, number) = (charge.0, Some(number));
            self.set_pending(ix, Pending { charge, number, starting, thaws: false });
        }
        match status {
            SandboxStatus::Queued => {
                let Some(pool) = self.sandboxes[ix].home else { return };
                let row = &self.sandboxes[ix].row;
                let (priority, since) = (row.priority, row.queued_at);
                let place = self.next_place(priority, since);
                self.enqueue(now, pool, place, Waiter::Create(ix));
            }
            SandboxStatus::Pausing => {
                self.expect_pause(now, ix);
                self.resend(now, ix, out);
            }
            SandboxStatus::Provisioning | SandboxStatus::Resuming | SandboxStatus::Terminating => {
                self.sandboxes[ix].taken_over = status == SandboxStatus::Provisioning;
                self.resend(now, ix, out);
            }
            SandboxStatus::Paused | SandboxStatus::Stopped => {
                // A confirmed stop leaves neither charge nor measurement in the row.
                let row = &self.sandboxes[ix].row;
                if status == SandboxStatus::Stopped && (row.charge_mib > Mib::ZERO || row.measured)
                {
                    self.resend(now, ix, out);
                }
                let (Some(pool), Some(since)) =
                    (self.sandboxes[ix].pool, self.sandboxes[ix].row.resume_requested_at)
                else {
                    self.arm_sandbox(now, ix);
                    return;
                };
                let place = self.next_place(self.sandboxes[ix].row.priority, since);
                self.enqueue(now, pool, place, Waiter::Resume(ix));
            }
            _ => {}
        }
        self.arm_sandbox(now, ix);
    }

    fn restore_reservation(
        &mut self,
        now: Timestamp,
        row: crate::rows::ReservationRow,
    ) -> Result<Ix, RestoreError> {
        let missing = |what: String| dangling("reservation", row.id.to_string(), what);
        let tenant = self.tenant_named(&row.tenant);
        let tenant = tenant.ok_or_else(|| missing(format!("tenant {}", row.tenant)))?;
        let pool = self.pool_ix.get(&row.pool).copied();
        let pool = pool.ok_or_else(|| missing(format!("pool {}", row.pool)))?;
        let host = self.host_ix.get(&row.host).copied();
        let host = host.ok_or_else(|| missing(format!("host {}", row.host)))?;
        let key = fingerprint(row.tenant.as_str(), Route::Reserve, &row.key);
        let ttl_seconds = row.expires_at.since(row.created_at).0 / 1000;
        Ok(self.insert_reservation(
            now,
            Reservation {
                row: std::sync::Arc::new(row),
                tenant,
                pool,
                host,
                on_host: 0,
                netted: false,
                seen: 0,
                wheel: None,
                missing_since: None,
                on_tenant: 0,
                meter: None,
                key,
                ttl_seconds,
                counted: None,
            },
        ))
    }
}

fn dangling(table: &'static str, row: String, missing: String) -> RestoreError {
    RestoreError::Dangling { table, row, missing }
}
