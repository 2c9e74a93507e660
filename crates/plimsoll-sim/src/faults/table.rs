//! The store: rows by key, one batch at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_engine::rows::{
    Change, EndpointRow, EventRow, HostRow, KeyRow, PlanRow, PoolRow, ReservationRow, Rows,
    SandboxRow, TemplateRow, TenantRow, TenantStateRow, UsageRow,
};
use plimsoll_types::{
    ClaimId, EndpointId, EventId, HostId, KeyId, PlanId, PoolName, ReservationId, SandboxId,
    TemplateName, TenantId, Timestamp,
};

/// What is kept of an endpoint's deliveries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) cursor: EventId,
    pub(super) failing_since: Option<Timestamp>,
    /// The last attempt in its log, where it has failed: at which event, which one it was, and
    /// when the next is due.
    pub(super) failed: Option<(EventId, u32, Timestamp)>,
}

/// Rows as a store keeps them: a change replaces the whole row under its key.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) plans: BTreeMap<PlanId, PlanRow>,
    pub(super) tenants: BTreeMap<TenantId, TenantRow>,
    states: BTreeMap<TenantId, TenantStateRow>,
    pub(super) pools: BTreeMap<PoolName, PoolRow>,
    templates: BTreeMap<TemplateName, TemplateRow>,
    keys: BTreeMap<KeyId, KeyRow>,
    pub(super) hosts: BTreeMap<HostId, HostRow>,
    pub(super) sandboxes: BTreeMap<SandboxId, SandboxRow>,
    pub(super) reservations: BTreeMap<ReservationId, Arc<ReservationRow>>,
    pub(super) endpoints: BTreeMap<EndpointId, EndpointRow>,
    /// Every event, as long as the run lasts.
    pub(super) events: BTreeMap<EventId, Arc<EventRow>>,
    /// How far each endpoint has come, and the last failed attempt at the event before it.
    pub(super) progress: BTreeMap<EndpointId, Progress>,
    pub(super) usage: BTreeMap<(ClaimId, Timestamp), UsageRow>,
    policies: BTreeMap<PoolName, (u64, Timestamp, String)>,
    pub(super) last_event: Option<EventId>,
}

impl Table {
    pub(super) fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::Plan(row) => drop(self.plans.insert(row.id.clone(), row)),
            Change::PlanGone(id) => drop(self.plans.remove(&id)),
            Change::Tenant(row) => drop(self.tenants.insert(row.id.clone(), row)),
            Change::TenantGone(id) => {
                self.tenants.remove(&id);
                self.states.remove(&id);
            }
            Change::TenantState(row) => drop(self.states.insert(row.tenant.clone(), row)),
            Change::Pool(row) => drop(self.pools.insert(row.name.clone(), row)),
            Change::PoolGone(name) => {
                self.pools.remove(&name);
                self.policies.remove(&name);
            }
            Change::Template(row) => drop(self.templates.insert(row.name.clone(), row)),
            Change::TemplateGone(name) => drop(self.templates.remove(&name)),
            Change::Key(row) => drop(self.keys.insert(row.id, row)),
            Change::KeyGone(id) => drop(self.keys.remove(&id)),
            Change::Host(row) => drop(self.hosts.insert(row.id.clone(), row)),
            Change::HostGone(id) => drop(self.hosts.remove(&id)),
            Change::Sandbox(row) => drop(self.sandboxes.insert(row.id, *row)),
            Change::SandboxGone(id) => drop(self.sandboxes.remove(&id)),
            Change::Reservation(row) => drop(self.reservations.insert(row.id, row)),
            Change::Endpoint(row) => drop(self.endpoints.insert(row.id, row)),
            Change::EndpointGone(id) => {
                self.endpoints.remove(&id);
                self.progress.remove(&id);
            }
            Change::Usage(row) => drop(self.usage.insert((row.claim, row.hour), row)),
            Change::Policy { pool, version, received_at, envelope } => {
                self.policies.insert(pool, (version, received_at, envelope));
            }
            // Nothing is restored from it; the oracle looks at it on its way.
            Change::Decision(_) => {}
            Change::Event(row) => {
                self.last_event = self.last_event.max(Some(row.id));
                self.events.insert(row.id, Arc::new(row));
            }
        }
    }

    /// How far an endpoint has come: its row says where it began.
    pub(super) fn progress_of(&self, row: &EndpointRow) -> Progress {
        let began = Progress { cursor: row.cursor, failing_since: None, failed: None };
        let kept = self.progress.get(&row.id).copied().unwrap_or(began);
        Progress { cursor: kept.cursor.max(row.cursor), ..kept }
    }

    /// Keeps how far an endpoint has come; a cursor only grows.
    pub(super) fn keep_progress(&mut self, id: EndpointId, step: Progress) {
        let cursor =
            self.progress.get(&id).map_or(step.cursor, |kept| kept.cursor.max(step.cursor));
        self.progress.insert(id, Progress { cursor, ..step });
    }

    /// CPU billed to a sandbox over all hours, in core-milliseconds.
    pub(super) fn billed(&self, id: SandboxId) -> u64 {
        let claim = ClaimId::Sandbox(id);
        let hours = self.usage.range((claim, Timestamp(i64::MIN))..=(claim, Timestamp(i64::MAX)));
        hours.map(|(_, row)| row.cpu_millis).sum()
    }

    /// What a restart loads.
    pub(super) fn rows(&self) -> Rows {
        fn all<K, V: Clone>(table: &BTreeMap<K, V>) -> Vec<V> {
            table.values().cloned().collect()
        }
        Rows {
            plans: all(&self.plans),
            tenants: all(&self.tenants),
            tenant_states: all(&self.states),
            pools: all(&self.pools),
            templates: all(&self.templates),
            keys: all(&self.keys),
            hosts: all(&self.hosts),
            sandboxes: all(&self.sandboxes),
            reservations: self.reservations.values().map(|row| (**row).clone()).collect(),
            endpoints: all(&self.endpoints),
            usage: all(&self.usage),
            policies: self
                .policies
                .iter()
                .map(|(pool, (version, at, text))| (pool.clone(), *version, *at, text.clone()))
                .collect(),
            last_event: self.last_event,
        }
    }
}
