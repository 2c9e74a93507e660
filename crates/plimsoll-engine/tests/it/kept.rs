//! What a store would have kept of a stream of changes: the rows that a restart gets.

use std::collections::BTreeMap;

use plimsoll_engine::rows::{Change, Rows, UsageRow};
use plimsoll_types::{ClaimId, TenantId, Timestamp};

/// The rows that stand after all of these changes.
pub(crate) fn rows(changes: &[Change]) -> Rows {
    let mut plans = BTreeMap::new();
    let mut tenants = BTreeMap::new();
    let mut states = BTreeMap::new();
    let mut pools = BTreeMap::new();
    let mut templates = BTreeMap::new();
    let mut keys = BTreeMap::new();
    let mut hosts = BTreeMap::new();
    let mut sandboxes = BTreeMap::new();
    let mut reservations = BTreeMap::new();
    let mut endpoints = BTreeMap::new();
    let mut last_event = None;
    for change in changes.iter().cloned() {
        match change {
            Change::Plan(row) => drop(plans.insert(row.id.clone(), row)),
            Change::PlanGone(id) => drop(plans.remove(&id)),
            Change::Tenant(row) => drop(tenants.insert(row.id.clone(), row)),
            Change::TenantGone(id) => {
                tenants.remove(&id);
                states.remove(&id);
            }
            Change::TenantState(row) => drop(states.insert(row.tenant.clone(), row)),
            Change::Pool(row) => drop(pools.insert(row.name.clone(), row)),
            Change::PoolGone(name) => drop(pools.remove(&name)),
            Change::Template(row) => drop(templates.insert(row.name.clone(), row)),
            Change::TemplateGone(name) => drop(templates.remove(&name)),
            Change::Key(row) => drop(keys.insert(row.id, row)),
            Change::KeyGone(id) => drop(keys.remove(&id)),
            Change::Host(row) => drop(hosts.insert(row.id.clone(), row)),
            Change::HostGone(id) => drop(hosts.remove(&id)),
            Change::Sandbox(row) => drop(sandboxes.insert(row.id, *row)),
            Change::SandboxGone(id) => drop(sandboxes.remove(&id)),
            Change::Reservation(row) => drop(reservations.insert(row.id, (*row).clone())),
            Change::Endpoint(row) => drop(endpoints.insert(row.id, row)),
            Change::EndpointGone(id) => drop(endpoints.remove(&id)),
            Change::Event(row) => last_event = last_event.max(Some(row.id)),
            Change::Decision(_) | Change::Usage(_) | Change::Policy { .. } => {}
        }
    }
    Rows {
        plans: plans.into_values().collect(),
        tenants: tenants.into_values().collect(),
        tenant_states: states.into_values().collect(),
        pools: pools.into_values().collect(),
        templates: templates.into_values().collect(),
        keys: keys.into_values().collect(),
        hosts: hosts.into_values().collect(),
        sandboxes: sandboxes.into_values().collect(),
        reservations: reservations.into_values().collect(),
        endpoints: endpoints.into_values().collect(),
        usage: usage(changes),
        policies: Vec::new(),
        last_event,
    }
}

/// The usage rows that stand after all of these changes.
pub(crate) fn usage(changes: &[Change]) -> Vec<UsageRow> {
    let mut usage: BTreeMap<(Timestamp, TenantId, ClaimId), UsageRow> = BTreeMap::new();
    for change in changes {
        if let Change::Usage(row) = change {
            usage.insert((row.hour, row.tenant.clone(), row.claim), row.clone());
        }
    }
    usage.into_values().collect()
}
