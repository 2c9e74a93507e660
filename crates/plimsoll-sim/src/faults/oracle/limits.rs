//! I1: what tenants may hold at once.

use plimsoll_engine::rows::{ConcurrencyLimits, Limit};
use plimsoll_types::TenantId;

use super::Oracle;

/// The counters of concurrency.
pub(super) const COUNTERS: [&str; 3] = ["sandboxes", "vcpus", "memory_mib"];

/// A tenant's limits on them, in the same order.
pub(super) fn per_counter(limits: ConcurrencyLimits) -> [Limit; 3] {
    [limits.sandboxes, limits.vcpus, limits.memory_mib]
}

impl Oracle {
    /// Sandboxes, vCPUs and memory of a tenant that are in use, by its records.
    pub(super) fn used(&self, tenant: &TenantId) -> [u64; 3] {
        let mut used = [0_u64; 3];
        let mut add = |memory: u64, vcpus: u64| {
            used[0] += 1;
            used[1] += vcpus;
            used[2] += memory;
        };
        for row in self.rows.sandboxes.values() {
            if row.tenant == *tenant && row.status.counts_for_quota() {
                add(row.memory_mib.0, row.vcpus.0);
            }
        }
        for row in self.rows.reservations.values() {
            if row.tenant == *tenant && row.state.holds() {
                add(row.memory_mib.0, row.vcpus.0);
            }
        }
        used
    }

    /// Nobody is above a limit, burst included, that it was let in under.
    pub(super) fn tenant_within_limits(&mut self, tenant: &TenantId) {
        let Some(limits) = self.limits(tenant) else { return };
        let used = self.used(tenant);
        for ((name, used), limit) in COUNTERS.into_iter().zip(used).zip(per_counter(limits)) {
            let ceiling = limit.limit.map(|limit_| limit.burst_limit.unwrap_or(limit_).max(limit_));
            if let Some(ceiling) = ceiling
                && used > ceiling
            {
                self.break_("I1", format!("{tenant} holds {used} {name} of {ceiling}"));
            }
        }
    }

    pub(super) fn limits(&self, tenant: &TenantId) -> Option<ConcurrencyLimits> {
        let row = self.rows.tenants.get(tenant)?;
        let plan = &self.rows.plans.get(&row.plan)?.limits.concurrency;
        let own = &row.overrides.concurrency;
        let pick = |plan: Limit, own: Limit| if own.limit.is_some() { own } else { plan };
        Some(ConcurrencyLimits {
            sandboxes: pick(plan.sandboxes, own.sandboxes),
            vcpus: pick(plan.vcpus, own.vcpus),
            memory_mib: pick(plan.memory_mib, own.memory_mib),
        })
    }
}
