//! The tables themselves.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_engine::Change;
use plimsoll_engine::rows::{
    DecisionRow, EndpointRow, EventRow, HostRow, KeyRow, PlanRow, PoolRow, ReservationRow, Rows,
    SandboxRow, TemplateRow, TenantRow, TenantStateRow, UsageRow,
};
use plimsoll_types::{
    ClaimId, DecisionId, EndpointId, EventId, HostId, KeyId, Millis, PlanId, PoolName,
    ReservationId, SandboxId, TemplateName, TenantId, Timestamp,
};

use crate::delivery::{DELIVERIES_PER_ENDPOINT_MAX, DeliveryRow, Progress};
use crate::error::StoreError;
use crate::store::{Lease, LoadLimits, Pruned, Retention};
use crate::usage::{
    DaySums, Sums, UsageKey, add_usage, day_of, open_hours, usage_floor, with_rest,
};

/// Who may write.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseRow {
    pub(crate) epoch: u64,
    pub(crate) holder: Option<String>,
    pub(crate) expires_at: Option<Timestamp>,
}

/// Every table. Ended rows carry the place in which they ended, so that the newest can be told.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) lease: LeaseRow,
    plans: BTreeMap<PlanId, PlanRow>,
    tenants: BTreeMap<TenantId, TenantRow>,
    tenant_states: BTreeMap<TenantId, TenantStateRow>,
    pools: BTreeMap<PoolName, PoolRow>,
    templates: BTreeMap<TemplateName, TemplateRow>,
    keys: BTreeMap<KeyId, KeyRow>,
    hosts: BTreeMap<HostId, HostRow>,
    pub(crate) sandboxes: Ledger<SandboxId, SandboxRow>,
    pub(crate) reservations: Ledger<ReservationId, ReservationRow>,
    pub(crate) decisions: BTreeMap<DecisionId, DecisionRow>,
    pub(crate) events: BTreeMap<EventId, EventRow>,
    pub(crate) endpoints: BTreeMap<EndpointId, EndpointRow>,
    pub(crate) deliveries: BTreeMap<u64, DeliveryRow>,
    deliveries_written: u64,
    pub(crate) usage: BTreeMap<UsageKey, UsageRow>,
    pub(crate) usage_days: BTreeMap<UsageKey, UsageRow>,
    policies: BTreeMap<PoolName, (u64, Timestamp, String)>,
}

/// Rows that live and end.
#[derive(Debug)]
pub(crate) struct Ledger<K, R> {
    pub(crate) live: BTreeMap<K, R>,
    pub(crate) ended: BTreeMap<K, (u64, R)>,
    order: BTreeMap<u64, K>,
    written: u64,
}

impl<K, R> Default for Ledger<K, R> {
    fn default() -> Self {
        Self { live: BTreeMap::new(), ended: BTreeMap::new(), order: BTreeMap::new(), written: 0 }
    }
}

impl<K: Ord + Copy, R: Clone> Ledger<K, R> {
    fn put(&mut self, key: K, row: &R, ended: bool) {
        self.remove(key);
        if ended {
            self.written += 1;
            self.ended.insert(key, (self.written, row.clone()));
            self.order.insert(self.written, key);
        } else {
            self.live.insert(key, row.clone());
        }
    }

    fn remove(&mut self, key: K) -> bool {
        if let Some((place, _)) = self.ended.remove(&key) {
            self.order.remove(&place);
            return true;
        }
        self.live.remove(&key).is_some()
    }

    /// One row, alive or ended.
    pub(crate) fn get(&self, key: K) -> Option<&R> {
        self.live.get(&key).or_else(|| self.ended.get(&key).map(|(_, row)| row))
    }

    /// The live rows and the newest ended ones since an instant, in the order of keys.
    fn load(&self, since: Timestamp, max: usize, ended_at: impl Fn(&R) -> Timestamp) -> Vec<R> {
        let bound: BTreeSet<K> = self
            .order
            .values()
            .rev()
            .take(max)
            .filter(|key| self.ended.get(key).is_some_and(|(_, row)| ended_at(row) >= since))
            .copied()
            .collect();
        let mut rows: BTreeMap<K, &R> = self.live.iter().map(|(key, row)| (*key, row)).collect();
        for key in bound {
            if let Some((_, row)) = self.ended.get(&key) {
                rows.insert(key, row);
            }
        }
        rows.into_values().cloned().collect()
    }

    fn prune(&mut self, before: Timestamp, max: usize, ended_at: impl Fn(&R) -> Timestamp) -> u64 {
        let old: Vec<K> = self
            .order
            .values()
            .take(max)
            .filter(|key| self.ended.get(key).is_some_and(|(_, row)| ended_at(row) < before))
            .copied()
            .collect();
        for key in &old {
            self.remove(*key);
        }
        old.len() as u64
    }
}

/// When an ended row ended; a row that says nothing ended when it was made.
fn sandbox_end(row: &SandboxRow) -> Timestamp {
    row.ended_at.unwrap_or(row.created_at)
}

fn reservation_end(row: &ReservationRow) -> Timestamp {
    row.ended_at.unwrap_or(row.created_at)
}

/// Removes up to `max` of the first entries of `map` that `old` says yes to.
fn prune_front<K: Ord + Copy, R>(
    map: &mut BTreeMap<K, R>,
    max: usize,
    old: impl Fn(&K, &R) -> bool,
) -> u64 {
    let gone: Vec<K> =
        map.iter().take(max).filter(|(key, row)| old(key, row)).map(|(key, _)| *key).collect();
    for key in &gone {
        map.remove(key);
    }
    gone.len() as u64
}

impl Tables {
    /// Holds a lease against the store's epoch.
    pub(crate) fn check(&self, lease: &Lease) -> Result<(), StoreError> {
        if lease.epoch == self.lease.epoch {
            Ok(())
        } else {
            Err(StoreError::Fenced { epoch: lease.epoch, current: self.lease.epoch })
        }
    }

    pub(crate) fn acquire(
        &mut self,
        holder: &str,
        now: Timestamp,
        ttl: Option<Millis>,
    ) -> Result<Lease, StoreError> {
        if let (Some(other), Some(until)) = (&self.lease.holder, self.lease.expires_at)
            && other != holder
            && until > now
        {
            return Err(StoreError::Held {
                what: "the store's lease".to_owned(),
                holder: other.clone(),
                until: Some(until),
            });
        }
        self.lease.epoch += 1;
        self.lease.holder = Some(holder.to_owned());
        self.lease.expires_at = ttl.map(|ttl| now + ttl);
        Ok(Lease {
            epoch: self.lease.epoch,
            holder: holder.to_owned(),
            expires_at: self.lease.expires_at,
        })
    }

    pub(crate) fn apply(&mut self, change: &Change) {
        match change {
            Change::Plan(row) => drop(self.plans.insert(row.id.clone(), row.clone())),
            Change::PlanGone(id) => drop(self.plans.remove(id)),
            Change::Tenant(row) => drop(self.tenants.insert(row.id.clone(), row.clone())),
            Change::TenantGone(id) => {
                self.tenants.remove(id);
                self.tenant_states.remove(id);
            }
            Change::TenantState(row) => {
                self.tenant_states.insert(row.tenant.clone(), row.clone());
            }
            Change::Pool(row) => drop(self.pools.insert(row.name.clone(), row.clone())),
            Change::PoolGone(name) => {
                self.pools.remove(name);
                self.policies.remove(name);
            }
            Change::Template(row) => drop(self.templates.insert(row.name.clone(), row.clone())),
            Change::TemplateGone(name) => drop(self.templates.remove(name)),
            Change::Key(row) => drop(self.keys.insert(row.id, row.clone())),
            Change::KeyGone(id) => drop(self.keys.remove(id)),
            Change::Host(row) => drop(self.hosts.insert(row.id.clone(), row.clone())),
            Change::HostGone(id) => drop(self.hosts.remove(id)),
            Change::Sandbox(row) => {
                self.sandboxes.put(row.id, row, row.status.is_terminal());
            }
            Change::SandboxGone(id) => drop(self.sandboxes.remove(*id)),
            Change::Reservation(row) => {
                self.reservations.put(row.id, row, !row.state.holds());
            }
            Change::Decision(row) => drop(self.decisions.insert(row.id, (**row).clone())),
            Change::Event(row) => drop(self.events.insert(row.id, row.clone())),
            Change::Endpoint(row) => self.put_endpoint(row),
            Change::EndpointGone(id) => {
                self.endpoints.remove(id);
                self.deliveries.retain(|_, row| row.endpoint != *id);
            }
            Change::Usage(row) => {
                self.usage.insert(UsageKey::of(row), row.clone());
            }
            Change::Policy { pool, version, received_at, envelope } => {
                self.policies.insert(pool.clone(), (*version, *received_at, envelope.clone()));
            }
        }
    }

    /// The settings are the engine's to say, how far an endpoint has come is not.
    fn put_endpoint(&mut self, row: &EndpointRow) {
        let mut row = row.clone();
        if let Some(held) = self.endpoints.get(&row.id) {
            row.cursor = row.cursor.max(held.cursor);
            row.failing_since = held.failing_since;
        }
        self.endpoints.insert(row.id, row);
    }

    pub(crate) fn record(&mut self, deliveries: &[DeliveryRow], progress: &[Progress]) {
        for row in deliveries {
            if self.endpoints.contains_key(&row.endpoint) {
                self.deliveries_written += 1;
                self.deliveries.insert(self.deliveries_written, row.clone());
            }
        }
        let endpoints: BTreeSet<EndpointId> = deliveries.iter().map(|row| row.endpoint).collect();
        for endpoint in endpoints {
            let own = self.deliveries.iter().filter(|(_, row)| row.endpoint == endpoint);
            let beyond = own.rev().map(|(place, _)| *place).nth(DELIVERIES_PER_ENDPOINT_MAX);
            if let Some(place) = beyond {
                self.deliveries.retain(|at, row| row.endpoint != endpoint || *at > place);
            }
        }
        for step in progress {
            if let Some(row) = self.endpoints.get_mut(&step.endpoint) {
                row.cursor = row.cursor.max(step.cursor);
                row.failing_since = step.failing_since;
            }
        }
    }

    pub(crate) fn load(&self, now: Timestamp, limits: &LoadLimits) -> Rows {
        let since = now - limits.key_ttl;
        let mut rows = Rows {
            plans: self.plans.values().cloned().collect(),
            tenants: self.tenants.values().cloned().collect(),
            tenant_states: self.tenant_states.values().cloned().collect(),
            pools: self.pools.values().cloned().collect(),
            templates: self.templates.values().cloned().collect(),
            keys: self.keys.values().cloned().collect(),
            hosts: self.hosts.values().cloned().collect(),
            sandboxes: self.sandboxes.load(since, limits.ended_max, sandbox_end),
            reservations: self.reservations.load(since, limits.ended_max, reservation_end),
            endpoints: self.endpoints.values().cloned().collect(),
            usage: Vec::new(),
            policies: self
                .policies
                .iter()
                .map(|(pool, (version, at, text))| (pool.clone(), *version, *at, text.clone()))
                .collect(),
            last_event: self.events.keys().next_back().copied(),
        };
        rows.usage = self.load_usage(now, limits, &rows);
        rows
    }

    fn load_usage(&self, now: Timestamp, limits: &LoadLimits, rows: &Rows) -> Vec<UsageRow> {
        let floor = UsageKey::first(usage_floor(now, limits.usage));
        let mut sums = DaySums::new();
        let every = self.usage_days.range(floor.clone()..).chain(self.usage.range(floor.clone()..));
        for (_, row) in every {
            let sum = sums.entry((day_of(row.hour), row.tenant.clone())).or_default();
            *sum = sum.plus(Sums::of(row));
        }
        let max = limits.usage_rows_max.max(1);
        let hours: Vec<_> = self.usage.range(floor.clone()..).rev().take(max).collect();
        let days = self.usage_days.range(floor.clone()..).rev().take(max - hours.len());
        let mut found: Vec<UsageRow> = days.map(|(_, row)| row.clone()).collect();
        found.reverse();
        if let Some((end, _)) = hours.last().filter(|_| hours.len() == max) {
            let mut open: Vec<UsageKey> =
                open_hours(rows).filter(|key| *key >= floor && key < end).collect();
            open.sort_unstable();
            found.extend(open.iter().filter_map(|key| self.usage.get(key)).cloned());
        }
        found.extend(hours.into_iter().rev().map(|(_, row)| row.clone()));
        with_rest(sums, found)
    }

    pub(crate) fn prune(&mut self, now: Timestamp, keep: &Retention) -> Pruned {
        let max = keep.rows_max;
        let passed = self
            .endpoints
            .values()
            .filter(|endpoint| endpoint.disabled.is_none())
            .map(|endpoint| endpoint.cursor)
            .min()
            .unwrap_or(EventId(u128::MAX));
        let counts = [
            self.sandboxes.prune(now - keep.ended, max, sandbox_end),
            self.reservations.prune(now - keep.ended, max, reservation_end),
            prune_front(&mut self.decisions, max, |_, row| row.at < now - keep.decisions),
            prune_front(&mut self.events, max, |id, row| {
                row.at < now - keep.events && *id <= passed
            }),
            prune_front(&mut self.deliveries, max, |_, row| row.at < now - keep.deliveries),
            self.roll_usage(now, keep),
            self.prune_usage(now, keep),
        ];
        Pruned { rows: counts.iter().sum(), more: counts.iter().any(|count| *count >= max as u64) }
    }

    /// Moves hours of old days into their days.
    fn roll_usage(&mut self, now: Timestamp, keep: &Retention) -> u64 {
        let from = day_of(now - keep.usage_hourly.min(keep.usage));
        let old: Vec<UsageKey> =
            self.usage.keys().take(keep.rows_max).filter(|key| key.hour < from).cloned().collect();
        for key in &old {
            if let Some(mut row) = self.usage.remove(key) {
                row.hour = day_of(row.hour);
                add_usage(self.usage_days.entry(UsageKey::of(&row)), &row);
            }
        }
        old.len() as u64
    }

    fn prune_usage(&mut self, now: Timestamp, keep: &Retention) -> u64 {
        let from = usage_floor(now, keep.usage);
        let old: Vec<UsageKey> = self
            .usage_days
            .keys()
            .take(keep.rows_max)
            .filter(|key| key.hour < from)
            .cloned()
            .collect();
        for key in &old {
            self.usage_days.remove(key);
        }
        old.len() as u64
    }

    /// The rows of one tenant in a range, days first.
    pub(crate) fn usage_rows(
        &self,
        tenant: &TenantId,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = &UsageRow> {
        let range = UsageKey::first(from)..UsageKey::first(to);
        self.usage_days
            .range(range.clone())
            .chain(self.usage.range(range))
            .map(|(_, row)| row)
            .filter(move |row| row.tenant == *tenant)
    }

    /// What a claim is called in the order of lists.
    pub(crate) fn claim_order(claim: ClaimId) -> String {
        claim.to_string()
    }
}
