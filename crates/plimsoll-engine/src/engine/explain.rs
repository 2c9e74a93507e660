//! The verdict that a request would get now, filter by filter and host by host, changing nothing.

use std::sync::Arc;

use plimsoll_policy::rate::Operation;
use plimsoll_types::{Mib, RefusalCode, RetryHint, Timestamp};

use super::Engine;
use super::gate::Asked;
use super::reserve::item_ask;
use super::sandbox::{row_ask, row_shape};
use super::state::{Ask, Ix, Use};
use crate::command::{Caller, Explain, Token};
use crate::output::{CheckLine, Explanation, HostLine, Output, Reply};

/// Most host lines of one explanation: more than this nobody reads.
const HOST_LINES_MAX: usize = 1_000;

impl Engine {
    pub(super) fn explain(
        &self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        explain: Explain,
        out: &mut Output,
    ) {
        let explained = match explain {
            Explain::Create(create) => match self.draft_create(now, caller, create) {
                Ok(draft) => {
                    let spec = Arc::clone(&draft.row.spec);
                    let asked = Asked {
                        tenant: draft.tenant,
                        pool: draft.pool,
                        shape: row_shape(&draft.row),
                        incoming: Use::one(draft.row.memory_mib, draft.row.vcpus),
                        criticality: draft.row.criticality,
                        adds: true,
                        rate: (Operation::Create, 1),
                    };
                    let ask = row_ask(&draft.row, &spec, smallvec::SmallVec::new(), None);
                    self.explained(now, &asked, &ask)
                }
                Err(refusal) => return Self::refuse(token, *refusal, out),
            },
            Explain::Reserve(item) => {
                let tenant = match self.tenant_of(caller) {
                    Ok(tenant) => tenant,
                    Err(refusal) => return Self::refuse(token, refusal, out),
                };
                let pool = match self.item_pool(&item) {
                    Ok(pool) => pool,
                    Err(refusal) => return Self::refuse(token, refusal, out),
                };
                let asked = self.item_asked(tenant, pool, &item);
                self.explained(now, &asked, &item_ask(&item, None))
            }
        };
        out.replies.push((token, Reply::Explained(Box::new(explained))));
    }

    fn explained(&self, now: Timestamp, asked: &Asked, ask: &Ask<'_>) -> Explanation {
        let pools = self.eligible(asked.pool, true);
        let mut checks = Vec::new();
        let refused = self.checks(now, asked, &pools, |line| checks.push(line));
        for pool in &pools {
            checks.push(self.slot_line(*pool));
        }
        let found = self.find(&pools, ask);
        let miss = self.miss(&pools, ask);
        let refusal = match (&refused, &found) {
            (Some(refusal), _) => Some(refusal.clone()),
            (None, Ok(_)) => None,
            (None, Err(miss)) => Some(self.capacity_refusal(now, &pools, ask, miss)),
        };
        let (policy_version, policy_mode) = self.pools[asked.pool].policy;
        let found = found.ok().filter(|_| refused.is_none());
        let mut hosts: Vec<HostLine> =
            pools.iter().flat_map(|pool| self.host_lines(*pool, ask)).collect();
        // Those that would take it first, the preferred one on top.
        hosts.sort_by(|a, b| {
            (a.filter.is_some(), std::cmp::Reverse(a.score), &a.host).cmp(&(
                b.filter.is_some(),
                std::cmp::Reverse(b.score),
                &b.host,
            ))
        });
        hosts.truncate(HOST_LINES_MAX);
        Explanation {
            code: refusal.as_ref().map(|refusal| refusal.code),
            detail: match &refusal {
                Some(refusal) => refusal.detail.clone(),
                None => "would be admitted".to_owned(),
            },
            retry: refusal.as_ref().map_or(RetryHint::Never, |refusal| refusal.retry),
            host: found.map(|found| self.hosts[found.host].row.id.clone()),
            pool: Some(self.pools[found.map_or(asked.pool, |found| found.pool)].row.name.clone()),
            charge_mib: found.map_or_else(|| self.usual_charge(asked, ask), |found| found.charge),
            policy_version,
            policy_mode,
            checks,
            hosts,
            counts: miss.counts,
        }
    }

    fn usual_charge(&self, asked: &Asked, ask: &Ask<'_>) -> Mib {
        let settings = &self.pools[asked.pool].row.settings;
        plimsoll_policy::charge::admission_charge(settings.regime, &settings.reserve, &ask.shape)
    }

    fn slot_line(&self, pool: Ix) -> CheckLine {
        let state = &self.pools[pool];
        let name = &state.row.name;
        match self.slot_limit(pool) {
            None => CheckLine {
                check: "slots",
                refuses: None,
                detail: format!("pool {name}: {} slots held, no limit", state.held),
            },
            Some(limit) => CheckLine {
                check: "slots",
                refuses: (self.slots_free(pool, None) == Some(0))
                    .then_some(RefusalCode::NoCapacity),
                detail: format!(
                    "pool {name}: {} of {limit} slots held, {} kept for waiters",
                    state.held,
                    state.holds.values().filter(|hold| hold.slot).count()
                ),
            },
        }
    }

    fn host_lines(&self, pool: Ix, ask: &Ask<'_>) -> Vec<HostLine> {
        let state = &self.pools[pool];
        state
            .hosts
            .iter()
            .map(|ix| {
                let filter = self.host_filter(pool, *ix, ask);
                let charge_mib = self.found(pool, *ix, ask).charge;
                let host = &self.hosts[*ix];
                let admittable_mib = self.effective(*ix);
                let need = self.need_on(pool, self.regime(*ix), &ask.shape);
                let need = if need == i64::MIN { "anything".to_owned() } else { need.to_string() };
                let detail = match (&host.report, admittable_mib) {
                    (None, _) => "has not reported since this cell started".to_owned(),
                    (Some(seen), None) => format!(
                        "admits nothing: {}",
                        seen.report.not_admitting.as_deref().unwrap_or("no reason given")
                    ),
                    (Some(seen), Some(left)) => format!(
                        "needs {need} MiB; admittable {} MiB less {} pending leaves {left}",
                        seen.report.memory_mib_admittable.unwrap_or(0),
                        host.pending
                    ),
                };
                HostLine {
                    host: host.row.id.clone(),
                    pool: state.row.name.clone(),
                    filter,
                    detail,
                    charge_mib,
                    admittable_mib,
                    score: self.score_of(*ix),
                }
            })
            .collect()
    }
}
