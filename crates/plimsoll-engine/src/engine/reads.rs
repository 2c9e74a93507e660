//! Questions about what the engine holds.

use std::sync::Arc;

use plimsoll_policy::ladder::{Ladder, Notice, Rung};
use plimsoll_policy::quota::Counter;
use plimsoll_policy::rate::RateKind;
use plimsoll_types::{
    BasisPoints, Driver, HostFilter, Mib, MilliCpu, Millis, RefusalCode, Timestamp,
};

use super::Engine;
use super::state::{Ix, Waiter};
use crate::command::{Caller, Read, SandboxFilter, Token};
use crate::output::{
    ConcurrencyView, ConsumptionView, Counts, Disposition, Gauges, HostGauge, HostView, Output,
    PoolView, QuotaView, RateView, Refusal, Reply,
};
use crate::rows::{PlanRow, Role};

/// A host's own clock is shown up to this far from the cell's: further away it lines up with no log
/// of the cell, and says nothing but that it is wrong.
const CLOCK_SKEW_SHOWN_MAX: Millis = Millis::from_seconds(300);

impl Engine {
    pub(super) fn read(
        &mut self,
        now: Timestamp,
        token: Token,
        caller: &Caller,
        read: Read,
        out: &mut Output,
    ) {
        let reply = match read {
            Read::Sandbox(id) => match self.own_sandbox(caller, id) {
                Ok(ix) => return self.answer(token, ix, None, Disposition::Accepted, out),
                Err(refusal) => Reply::Refused(refusal),
            },
            Read::Sandboxes(filter) => self.list(&filter),
            Read::Reservation(id) => {
                let found = self.reservation_ix.get(&id).copied().filter(|ix| {
                    caller.role == Role::Operator
                        || self.reservations[*ix].row.tenant == caller.tenant
                });
                match found {
                    Some(ix) => {
                        let row = Arc::clone(&self.reservations[ix].row);
                        Reply::Reservation {
                            decision: row.decision_id,
                            row,
                            disposition: Disposition::Accepted,
                        }
                    }
                    None => refused(RefusalCode::NotFound, format!("no reservation {id}")),
                }
            }
            Read::Quota(id) => match self.tenant_named(&id) {
                Some(ix) => Reply::Quota(Box::new(self.quota(now, ix))),
                None => refused(RefusalCode::NotFound, format!("no tenant {id}")),
            },
            Read::Hosts(None) => {
                let mut views: Vec<HostView> =
                    self.hosts.numbers().into_iter().map(|ix| self.host_view(now, ix)).collect();
                views.sort_by(|a, b| a.row.id.cmp(&b.row.id));
                Reply::Hosts(views)
            }
            Read::Hosts(Some(id)) => match self.host_by_name(&id) {
                Some(ix) => Reply::Hosts(vec![self.host_view(now, ix)]),
                None => refused(RefusalCode::NotFound, format!("no host {id}")),
            },
            Read::Pools => Reply::Pools(self.pool_views()),
            Read::Plans => Reply::Plans(
                self.plans
                    .iter()
                    .map(|(id, limits)| PlanRow { id: id.clone(), limits: **limits })
                    .collect(),
            ),
            Read::Tenants { after, limit } => {
                let page = self.tenant_ix.after(after.as_ref()).take(limit);
                Reply::Tenants(page.map(|ix| self.tenants[ix].row().clone()).collect())
            }
            Read::Tenant(id) => match self.tenant_named(&id) {
                Some(ix) => Reply::Tenants(vec![self.tenants[ix].row().clone()]),
                None => refused(RefusalCode::NotFound, format!("no tenant {id}")),
            },
            Read::Templates => Reply::Templates(self.templates.values().cloned().collect()),
            Read::Keys => Reply::Keys(self.keys.values().cloned().collect()),
            Read::Endpoints(tenant) => {
                let rows =
                    self.endpoints.values().filter(|row| tenant.is_none() || row.tenant == tenant);
                Reply::Endpoints(rows.cloned().collect())
            }
            Read::Counts => Reply::Counts(self.counts()),
            Read::Gauges => Reply::Gauges(Box::new(Gauges {
                hosts: self
                    .hosts
                    .numbers()
                    .into_iter()
                    .map(|ix| self.host_gauge(now, ix))
                    .collect(),
                pools: self.pool_views(),
                counts: self.counts(),
            })),
        };
        out.replies.push((token, reply));
    }

    fn list(&self, filter: &SandboxFilter) -> Reply {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = filter.after.map_or(Unbounded, Excluded);
        let wanted = |ix: &Ix| {
            let row = &self.sandboxes[*ix].row;
            filter.tenant.as_ref().is_none_or(|tenant| row.tenant == *tenant)
                && filter.status.is_none_or(|status| row.status == status)
                && filter.pool.as_ref().is_none_or(|pool| row.pool.as_ref() == Some(pool))
                && filter.label.as_ref().is_none_or(|(key, value)| {
                    row.labels.get(key).is_some_and(|have| have == value)
                })
        };
        let mut items: Vec<_> = self
            .sandbox_ix
            .range((from, Unbounded))
            .map(|(_, ix)| *ix)
            .filter(wanted)
            .take(filter.limit.saturating_add(1))
            .map(|ix| self.view(ix))
            .collect();
        let more = items.len() > filter.limit;
        items.truncate(filter.limit);
        let next = if more { items.last().map(|view| view.row.id) } else { None };
        Reply::Sandboxes { items, next }
    }

    fn quota(&self, now: Timestamp, ix: Ix) -> QuotaView {
        let tenant = &self.tenants[ix];
        let limits = &tenant.limits;
        let used: plimsoll_policy::quota::Usage = tenant.used.into();
        let mut bursts = tenant.bursts;
        bursts.advance(&used, &limits.concurrency, now);
        let concurrency = Counter::ALL.map(|counter| {
            let limit = limits.concurrency.of(counter);
            let in_use = *used.of(counter);
            let left = (limit.span() > 0).then(|| bursts.of(counter).seconds_left(in_use, limit));
            let view = ConcurrencyView {
                used: in_use,
                limit: limit.limit,
                burst_limit: limit.ceiling(),
                burst_seconds_left: left,
            };
            (counter.as_str(), view)
        });
        let period = tenant.period_at(now);
        let consumption = limits.consumption.consumed(&tenant.used_at(now));
        let ladder = tenant.account.as_ref().map_or_else(Ladder::default, |account| account.ladder);
        // A warning is about its own period.
        let over = ladder.rung == Rung::Warned && ladder.period != period.start;
        let rung = if over { Rung::Ok } else { ladder.rung };
        let notice = tenant.account.as_ref().map_or(Notice::Pending, |a| a.deletion.notice);
        let rule = &self.config.ladder;
        let deletes_at = ladder
            .deletion_due(rule, notice)
            .or_else(|| ladder.announced_at.map(|announced| announced + rule.grace));
        let rates = &limits.rate;
        let rate = RateKind::ALL
            .iter()
            .map(|kind| {
                let view = RateView {
                    left: tenant.buckets.left(*kind, rates, now),
                    limit: rates.rate(*kind).map(|rate| rate.limit),
                };
                (kind.as_str(), view)
            })
            .collect();
        QuotaView {
            tenant: tenant.row().id.clone(),
            plan: tenant.row().plan.to_string(),
            period: tenant.rest.anchors.label(&period),
            starts_at: period.start,
            resets_at: period.end,
            state: rung.as_str(),
            deletes_at,
            concurrency,
            consumption: consumption
                .map(|one| (one.name, ConsumptionView { used: one.used, limit: one.limit })),
            rate,
            top_consumers: self
                .top_consumers(now, ix)
                .into_iter()
                .map(|(id, used)| {
                    (id.to_string(), used.cpu_seconds(), used.gib_hours_thousandths())
                })
                .collect(),
        }
    }

    fn host_view(&self, now: Timestamp, ix: Ix) -> HostView {
        let host = &self.hosts[ix];
        let sums = host.sums;
        let mut row = host.row.clone();
        row.secret = None;
        let report = host.report.as_ref().map(|seen| &seen.report);
        let clock = host.report.as_ref().map(|seen| {
            let said = seen.report.heartbeat_at;
            let skew = said.millis().saturating_sub(seen.at.millis());
            let near = skew.unsigned_abs() <= CLOCK_SKEW_SHOWN_MAX.get();
            (if near { said } else { seen.at }, skew)
        });
        let drivers = report.map_or_else(Vec::new, |report| {
            Driver::ALL
                .iter()
                .filter(|driver| report.drivers.has(**driver))
                .map(|driver| driver.as_str())
                .collect()
        });
        HostView {
            standing: self.standing(ix),
            age: host.report.as_ref().map(|seen| now.since(seen.at)),
            regime: self.regime(ix),
            admittable_mib: report.and_then(|report| report.memory_mib_admittable),
            not_admitting: report.and_then(|report| report.not_admitting.clone()),
            pending_mib: Mib(host.pending),
            effective_mib: self.effective(ix),
            memory_mib_total: report.map_or(Mib::ZERO, |report| report.memory_mib_total),
            memory_mib_used: report.map_or(Mib::ZERO, |report| report.memory_mib_used),
            cpu_millis_total: report.map_or(MilliCpu::ZERO, |report| report.cpu_millis_total),
            cpu_millis_used: report.map_or(MilliCpu::ZERO, |report| report.cpu_millis_used),
            guests: sums.guests,
            charged_mib: Mib(sums.charged),
            configured_mib: Mib(sums.configured),
            resident_mib: Mib(sums.resident),
            starts_in_flight: report
                .map_or(0, |report| report.starts_in_flight)
                .saturating_add(host.pending_starts),
            starts_limit: report.and_then(|report| report.starts_limit),
            failures: host.aside.failures_in_a_row(),
            set_aside_until: host.aside.until(now),
            labels: report.map_or_else(Default::default, |report| report.labels.clone()),
            region: report.map_or_else(String::new, |report| report.region.clone()),
            drivers,
            boot_id: report.map_or_else(String::new, |report| report.boot_id.clone()),
            reported_incarnation: report.and_then(|report| report.incarnation),
            sequence: report.map_or(0, |report| report.sequence),
            heartbeat_at: clock.map(|(shown, _)| shown),
            clock_skew_millis: clock.map(|(_, skew)| skew),
            counted: report.map_or_else(Default::default, |report| report.counted.clone()),
            pressure_bp: report.and_then(|report| report.pressure_bp),
            unexpected: host.unexpected.clone(),
            row,
        }
    }

    fn host_gauge(&self, now: Timestamp, ix: Ix) -> HostGauge {
        let host = &self.hosts[ix];
        let sums = host.sums;
        let report = host.report.as_ref().map(|seen| &seen.report);
        HostGauge {
            host: host.row.id.clone(),
            reserved_mib: Mib(sums.reserved),
            reserved: sums.uncommitted,
            committed: sums.committed,
            age: host.report.as_ref().map(|seen| now.since(seen.at)),
            admittable_mib: report.and_then(|report| report.memory_mib_admittable),
            pressure_bp: report.and_then(|report| report.pressure_bp),
            unexpected: u64::try_from(host.unexpected.len()).unwrap_or(u64::MAX),
        }
    }

    fn pool_views(&self) -> Vec<PoolView> {
        self.pool_ix.values().map(|ix| self.pool_view(*ix)).collect()
    }

    fn pool_view(&self, ix: Ix) -> PoolView {
        let pool = &self.pools[ix];
        let resumes =
            pool.queue.values().filter(|waiter| matches!(waiter, Waiter::Resume(_))).count();
        let resumes = u64::try_from(resumes).unwrap_or(u64::MAX);
        let waiting = u64::try_from(pool.queue.len()).unwrap_or(u64::MAX);
        let ready: usize =
            pool.partitions.iter().map(|partition| self.partitions[*partition].ready.len()).sum();
        let (mut resident, mut configured) = (0_u64, 0_u64);
        for host in &pool.hosts {
            let sums = self.hosts[*host].sums;
            resident += sums.resident;
            configured += sums.measured_configured;
        }
        let ratio = resident.saturating_mul(BasisPoints::ONE.0).checked_div(configured);
        PoolView {
            row: pool.row.clone(),
            held: pool.held,
            released: pool.released,
            waiting_resume: resumes,
            waiting_create: waiting - resumes,
            overcommitted: pool
                .row
                .settings
                .limit
                .map_or(0, |limit| pool.held.saturating_sub(limit)),
            hosts: u64::try_from(pool.hosts.len()).unwrap_or(u64::MAX),
            ready: u64::try_from(ready).unwrap_or(u64::MAX),
            policy: (pool.policy.0, pool.policy.1, None),
            learned: pool.learned.map(|learned| learned.limit),
            resident_committed: ratio.map(BasisPoints),
        }
    }

    fn counts(&self) -> Counts {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Counts {
            epoch: self.epoch,
            tenants: number(self.tenants.len()),
            pools: number(self.pools.len()),
            hosts: number(self.hosts.len()),
            hosts_ready: number(
                self.hosts
                    .iter()
                    .filter(|(_, host)| host.listed.is_some_and(|l| l.standing.is_none()))
                    .count(),
            ),
            sandboxes_live: self.totals.live,
            sandboxes_queued: self.totals.queued,
            reservations_held: self.totals.held,
            parked: number(self.parked.len()),
        }
    }

    /// How a placement prefers this host now.
    pub(super) fn score_of(&self, ix: Ix) -> i64 {
        if matches!(self.standing(ix), Some(HostFilter::Unknown)) { 0 } else { self.slot(ix).score }
    }
}

fn refused(code: RefusalCode, detail: String) -> Reply {
    Reply::Refused(Box::new(Refusal::new(code, detail)))
}
