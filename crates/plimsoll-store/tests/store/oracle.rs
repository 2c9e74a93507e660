//! What a restart must find, worked out the slow way: of all that was written under a key, the
//! last.

use std::collections::BTreeMap;

use plimsoll_engine::Change;
use plimsoll_engine::rows::Rows;

/// The last write under every key, by table and key.
#[derive(Default)]
pub(crate) struct Oracle(BTreeMap<(&'static str, String), Change>);

impl Oracle {
    pub(crate) fn apply(&mut self, change: &Change) {
        let (table, key, gone) = place(change);
        self.0.remove(&(table, key.clone()));
        if !gone {
            // An endpoint's progress is the delivering task's to say once the endpoint exists.
            self.0.insert((table, key), change.clone());
            return;
        }
        match table {
            "tenant" => drop(self.0.remove(&("tenant_state", key))),
            "pool" => drop(self.0.remove(&("policy", key))),
            _ => {}
        }
    }

    pub(crate) fn rows(&self) -> Rows {
        let mut rows = Rows::default();
        for change in self.0.values().cloned() {
            match change {
                Change::Plan(row) => rows.plans.push(row),
                Change::Tenant(row) => rows.tenants.push(row),
                Change::TenantState(row) => rows.tenant_states.push(row),
                Change::Pool(row) => rows.pools.push(row),
                Change::Template(row) => rows.templates.push(row),
                Change::Key(row) => rows.keys.push(row),
                Change::Host(row) => rows.hosts.push(row),
                Change::Sandbox(row) => rows.sandboxes.push(*row),
                Change::Reservation(row) => {
                    rows.reservations.push(std::sync::Arc::unwrap_or_clone(row))
                }
                Change::Endpoint(row) => rows.endpoints.push(row),
                Change::Usage(row) => rows.usage.push(row),
                Change::Policy { pool, version, received_at, envelope } => {
                    rows.policies.push((pool, version, received_at, envelope));
                }
                Change::Event(row) => rows.last_event = rows.last_event.max(Some(row.id)),
                Change::Decision(_) => {}
                gone => panic!("{gone:?} is no row"),
            }
        }
        rows
    }
}

/// Table, key, and whether the row is removed.
fn place(change: &Change) -> (&'static str, String, bool) {
    let put = |table, key: &dyn ToString| (table, key.to_string(), false);
    let gone = |table, key: &dyn ToString| (table, key.to_string(), true);
    match change {
        Change::Plan(row) => put("plan", &row.id),
        Change::PlanGone(id) => gone("plan", id),
        Change::Tenant(row) => put("tenant", &row.id),
        Change::TenantGone(id) => gone("tenant", id),
        Change::TenantState(row) => put("tenant_state", &row.tenant),
        Change::Pool(row) => put("pool", &row.name),
        Change::PoolGone(name) => gone("pool", name),
        Change::Template(row) => put("template", &row.name),
        Change::TemplateGone(name) => gone("template", name),
        Change::Key(row) => put("key", &row.id),
        Change::KeyGone(id) => gone("key", id),
        Change::Host(row) => put("host", &row.id),
        Change::HostGone(id) => gone("host", id),
        Change::Sandbox(row) => put("sandbox", &row.id),
        Change::SandboxGone(id) => gone("sandbox", id),
        Change::Reservation(row) => put("reservation", &row.id),
        Change::Decision(row) => put("decision", &row.id),
        Change::Event(row) => put("event", &row.id),
        Change::Endpoint(row) => put("endpoint", &row.id),
        Change::EndpointGone(id) => gone("endpoint", id),
        Change::Usage(row) => {
            put("usage", &format!("{:020}/{}/{}", row.hour.0, row.tenant, row.claim))
        }
        Change::Policy { pool, .. } => put("policy", pool),
    }
}
