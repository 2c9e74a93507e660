//! The checks before placement, in the order of precedence: suspended, never fits, rate, budget,
//! quota, degraded. The same function decides and explains.

use plimsoll_policy::charge::Shape;
use plimsoll_policy::quota::{Bursts, check_all};
use plimsoll_policy::rate::{Limited, Operation};
use plimsoll_policy::retry::{ESTIMATE_MAX, ESTIMATE_MIN, RetryFacts, estimate};
use plimsoll_policy::slots::frees_slot;
use plimsoll_types::{
    Criticality, Mib, Millis, PolicyMode, RefusalCode, RetryHint, SandboxStatus, TenantId,
    Timestamp,
};

use smallvec::SmallVec;

use super::Engine;
use super::place::Miss;
use super::state::{Ask, Ix, Timer, Use};
use crate::command::Caller;
use crate::output::{CheckLine, LimitHit, Refusal};
use crate::rows::{DecisionRow, Verb};

/// When to come back where no host reports: an agent that starts reports within about that time,
/// and asking is cheap.
const HOSTS_BACK: Millis = Millis::from_seconds(2);

/// What is asked for, as far as the checks before placement go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) tenant: Ix,
    pub(super) pool: Ix,
    pub(super) shape: Shape,
    /// In sum, for a batch.
    pub(super) incoming: Use,
    pub(super) criticality: Criticality,
    /// Whether quota is asked: a resume adds nothing.
    pub(super) adds: bool,
    /// What it counts as against the tenant's rates, and how often: 0 for what was let in before.
    pub(super) rate: (Operation, u64),
}

impl Engine {
    /// The tenant that a caller acts for.
    ///
    /// # Errors
    /// When there is no such tenant.
    pub(super) fn tenant_of(&self, caller: &Caller) -> Result<Ix, Refusal> {
        self.tenant_named(&caller.tenant).ok_or_else(|| {
            Refusal::new(RefusalCode::NotFound, format!("no tenant {}", caller.tenant))
        })
    }

    /// The tenant of this name.
    pub(super) fn tenant_named(&self, name: &TenantId) -> Option<Ix> {
        self.tenant_ix.get(&self.tenants, name)
    }

    /// Reads what decisions for these callers begin with. Among many tenants most of that comes from
    /// memory; read for several at once, the waits for it overlap instead of following one another.
    /// Decides nothing and changes nothing: for a shell that has a few calls at hand.
    pub fn foresee<'a>(&self, callers: impl IntoIterator<Item = &'a Caller>) {
        let mut guesses: SmallVec<[Ix; 64]> = SmallVec::new();
        guesses
            .extend(callers.into_iter().filter_map(|caller| self.tenant_ix.guess(&caller.tenant)));
        let read = guesses.into_iter().filter_map(|ix| self.tenants.get(ix));
        std::hint::black_box(read.fold(0, |sum: usize, tenant| {
            // One field of each line that a decision reads.
            let line = if tenant.moves { tenant.written_at.0 as usize } else { 0 };
            sum ^ tenant.waiting as usize ^ tenant.claims.len() ^ line
        }));
    }

    /// Every check before placement, in order. `stop` tells whether to go on after the first no.
    pub(super) fn checks(
        &self,
        now: Timestamp,
        asked: &Asked,
        pools: &[Ix],
        mut seen: impl FnMut(CheckLine),
    ) -> Option<Refusal> {
        let mut first = None;
        let mut keep = |line: &'static str, result: Result<String, Refusal>| {
            let (refuses, detail) = match &result {
                Ok(detail) => (None, detail.clone()),
                Err(refusal) => (Some(refusal.code), refusal.detail.clone()),
            };
            seen(CheckLine { check: line, refuses, detail });
            if let Err(refusal) = result
                && first.is_none()
            {
                first = Some(refusal);
            }
        };
        keep("suspended", self.check_suspended(asked));
        keep("never_fits", self.check_size(asked, pools));
        keep("rate", self.check_rate(now, asked));
        keep("budget", self.check_budget(now, asked));
        keep("quota", self.check_quota(now, asked));
        keep("degraded", self.check_degraded(asked));
        first
    }

    /// The same, stopping at the first no and building no text for a yes.
    pub(super) fn gate(&self, now: Timestamp, asked: &Asked, pools: &[Ix]) -> Option<Refusal> {
        self.gate_size(asked, pools)
            .or_else(|| self.gate_limits(now, asked))
            .or_else(|| self.gate_degraded(asked))
    }

    /// Whether the tenant may ask at all, and whether what it asks for could ever fit.
    pub(super) fn gate_size(&self, asked: &Asked, pools: &[Ix]) -> Option<Refusal> {
        if self.tenants[asked.tenant].suspended {
            return self.check_suspended(asked).err();
        }
        if self.size_fits(asked, pools) { None } else { self.check_size(asked, pools).err() }
    }

    /// The tenant's own limits: suspended, rate, budget, quota. All that stands against a resume
    /// or a start, which is no new size and adds nothing to what is alive.
    pub(super) fn gate_limits(&self, now: Timestamp, asked: &Asked) -> Option<Refusal> {
        if self.tenants[asked.tenant].suspended {
            return self.check_suspended(asked).err();
        }
        if self.limited(now, asked).is_some() {
            return self.check_rate(now, asked).err();
        }
        if self.spent(now, asked.tenant) {
            return self.check_budget(now, asked).err();
        }
        if asked.adds && self.quota_hit(now, asked).is_some() {
            return self.check_quota(now, asked).err();
        }
        None
    }

    /// Whether a static policy sheds it.
    pub(super) fn gate_degraded(&self, asked: &Asked) -> Option<Refusal> {
        if self.sheds(asked) { self.check_degraded(asked).err() } else { None }
    }

    /// Whether its tenant's own limits, or its own size, keep a waiter from being served: it then
    /// stands aside for those behind it, whose tenants have done nothing.
    pub(super) fn held_back(&self, now: Timestamp, asked: &Asked, pools: &[Ix]) -> bool {
        self.tenants[asked.tenant].suspended
            || self.spent(now, asked.tenant)
            || (asked.adds && !self.size_fits(asked, pools))
            || (asked.adds && self.quota_hit(now, asked).is_some())
            || self.sheds(asked)
    }

    fn sheds(&self, asked: &Asked) -> bool {
        asked.criticality == Criticality::Sheddable
            && self.pools[asked.pool].policy.1 == PolicyMode::Static
    }

    fn check_suspended(&self, asked: &Asked) -> Result<String, Refusal> {
        let row = &self.tenants[asked.tenant].row();
        match &row.suspended {
            None => Ok(format!("tenant {} is active", row.id)),
            Some(why) => Err(Refusal::new(
                RefusalCode::TenantSuspended,
                format!("tenant {} is suspended: {why}", row.id),
            )),
        }
    }

    fn size_fits(&self, asked: &Asked, pools: &[Ix]) -> bool {
        let memory = asked.shape.memory;
        let limits = &self.tenants[asked.tenant].limits.concurrency;
        self.largest_host(pools).is_none_or(|largest| memory <= largest)
            && !limits.memory_mib.never_fits(memory.0)
            && !limits.vcpus.never_fits(asked.shape.vcpus.0)
    }

    fn check_size(&self, asked: &Asked, pools: &[Ix]) -> Result<String, Refusal> {
        let memory = asked.shape.memory;
        let largest = self.largest_host(pools);
        if let Some(largest) = largest
            && memory > largest
        {
            let mut refusal = Refusal::new(
                RefusalCode::NeverFits,
                format!(
                    "{} MiB of configured memory is above the largest host known in the eligible \
                     pools, {} MiB",
                    memory.0, largest.0
                ),
            );
            refusal.largest_host_mib = Some(largest);
            refusal.field = Some(("memory_mib", format!("at most {}", largest.0)));
            return Err(refusal);
        }
        let limits = &self.tenants[asked.tenant].limits.concurrency;
        for (name, limit, value) in [
            ("memory_mib", limits.memory_mib, memory.0),
            ("vcpus", limits.vcpus, asked.shape.vcpus.0),
        ] {
            if let Some(limit) = limit.ceiling()
                && value > limit
            {
                let mut refusal = Refusal::new(
                    RefusalCode::NeverFits,
                    format!("{name} {value} is above the tenant's own limit of {limit}"),
                );
                refusal.limit = Some(LimitHit { name, used: 0, incoming: value, limit });
                refusal.field = Some((name, format!("at most {limit}")));
                refusal.largest_host_mib = largest;
                return Err(refusal);
            }
        }
        Ok(match largest {
            Some(largest) => {
                format!("{} MiB is within the largest host, {} MiB", memory.0, largest.0)
            }
            None => "no host has said its size yet".to_owned(),
        })
    }

    fn check_rate(&self, now: Timestamp, asked: &Asked) -> Result<String, Refusal> {
        let Some(limited) = self.limited(now, asked) else {
            return Ok("within the tenant's rates".to_owned());
        };
        let tenant = &self.tenants[asked.tenant];
        let name = limited.kind.as_str();
        let incoming = asked.rate.1;
        let mut refusal = Refusal::new(
            RefusalCode::RateLimited,
            format!("{name}: {incoming} asked for at a limit of {}", limited.limit),
        );
        refusal.retry = limited.retry_after.map_or(RetryHint::Never, RetryHint::After);
        let left = tenant.buckets.left(limited.kind, &tenant.limits.rate, now).unwrap_or(0);
        let limit = limited.limit;
        let used = limit.saturating_sub(left);
        refusal.limit = Some(LimitHit { name, used, incoming, limit });
        Err(refusal)
    }

    /// Takes the tokens of a request that was let in, or refused for its tenant's own limits.
    pub(super) fn spend(&mut self, now: Timestamp, asked: &Asked) {
        let (operation, count) = asked.rate;
        if count > 0 {
            let tenant = &mut self.tenants[asked.tenant];
            // Asked before in the same step.
            let _ = tenant.buckets.take(operation, count, &tenant.limits.rate, now);
            self.moved(now, asked.tenant);
        }
    }

    /// Gives a token back: what it was taken for was refused for want of room after all.
    pub(super) fn unspend(&mut self, tenant: Ix, operation: Operation) {
        let tenant = &mut self.tenants[tenant];
        tenant.buckets.give_back(operation, 1, &tenant.limits.rate);
    }

    /// The rate limit that stands against the request.
    fn limited(&self, now: Timestamp, asked: &Asked) -> Option<Limited> {
        let (operation, count) = asked.rate;
        if count == 0 {
            return None;
        }
        let tenant = &self.tenants[asked.tenant];
        tenant.buckets.would_take(operation, count, &tenant.limits.rate, now).err()
    }

    /// Whether a tenant's budget is used up and nobody pays for more. The check rests on the
    /// figure of the moment and not on the ladder's rung: between the two, an upgrade is never
    /// refused.
    fn spent(&self, now: Timestamp, tenant: Ix) -> bool {
        let tenant = &self.tenants[tenant];
        let limits = &tenant.limits.consumption;
        !limits.is_unlimited()
            && limits.is_exhausted(&tenant.used_at(now))
            && !tenant.row().payment_method
    }

    fn check_budget(&self, now: Timestamp, asked: &Asked) -> Result<String, Refusal> {
        let tenant = &self.tenants[asked.tenant];
        let limits = &tenant.limits.consumption;
        if limits.is_unlimited() {
            return Ok("no limit on consumption".to_owned());
        }
        let (period, used) = (tenant.period_at(now), tenant.used_at(now));
        let name = tenant.rest.anchors.label(&period);
        let lines: Vec<String> = limits
            .consumed(&used)
            .iter()
            .filter_map(|one| Some(format!("{} {} of {}", one.name, one.used, one.limit?)))
            .collect();
        let figures = format!("used in period {name}: {}", lines.join(", "));
        if !self.spent(now, asked.tenant) {
            return Ok(figures);
        }
        let most = limits.tightest(&used);
        let mut refusal = Refusal::new(
            RefusalCode::BudgetExhausted,
            format!(
                "{figures}; new work is refused until the period ends, or a larger plan or a \
                 payment method is there; what runs goes on"
            ),
        );
        let limit = most.limit.unwrap_or(0);
        refusal.limit = Some(LimitHit { name: most.name, used: most.used, incoming: 0, limit });
        refusal.resets_at = Some(period.end);
        Err(refusal)
    }

    /// The first concurrency limit that the request would exceed, the request counted in (R5).
    fn quota_hit(&self, now: Timestamp, asked: &Asked) -> Option<LimitHit> {
        let tenant = &self.tenants[asked.tenant];
        let limits = &tenant.limits.concurrency;
        let mut bursts = Bursts::default();
        if tenant.bursting {
            bursts = tenant.bursts;
            bursts.advance(&tenant.used.into(), limits, now);
        }
        let hit = check_all(&tenant.used.into(), &asked.incoming.into(), limits, &bursts);
        hit.err().map(|(counter, exceeded)| LimitHit {
            name: counter.as_str(),
            used: exceeded.used,
            incoming: exceeded.incoming,
            limit: if exceeded.out_of_credit { exceeded.limit } else { exceeded.ceiling },
        })
    }

    fn check_quota(&self, now: Timestamp, asked: &Asked) -> Result<String, Refusal> {
        if !asked.adds {
            return Ok("adds nothing: it counts already".to_owned());
        }
        match self.quota_hit(now, asked) {
            None => {
                let used = self.tenants[asked.tenant].used;
                Ok(format!(
                    "in use: {} sandboxes, {} vCPUs, {} MiB; incoming: {}, {}, {}",
                    used.sandboxes,
                    used.vcpus,
                    used.memory,
                    asked.incoming.sandboxes,
                    asked.incoming.vcpus,
                    asked.incoming.memory
                ))
            }
            Some(hit) => {
                let mut refusal = Refusal::new(
                    RefusalCode::QuotaExceeded,
                    format!(
                        "{}: {} in use and {} asked for exceed the limit of {}; shut something \
                         down or ask for a larger plan",
                        hit.name, hit.used, hit.incoming, hit.limit
                    ),
                );
                refusal.limit = Some(hit);
                Err(refusal)
            }
        }
    }

    fn check_degraded(&self, asked: &Asked) -> Result<String, Refusal> {
        let (version, mode) = self.pools[asked.pool].policy;
        if self.sheds(asked) {
            let mut refusal = Refusal::new(
                RefusalCode::Degraded,
                format!("policy {version} is static by its age; sheddable work waits"),
            );
            refusal.retry = RetryHint::After(Millis::from_seconds(30));
            return Err(refusal);
        }
        Ok(format!("policy {version} is {mode}"))
    }

    /// The refusal for want of room in these pools, the request's own first, with the counts that led to it and an estimate of when to
    /// come back.
    pub(super) fn capacity_refusal(
        &self,
        now: Timestamp,
        pools: &[Ix],
        ask: &Ask<'_>,
        miss: &Miss,
    ) -> Refusal {
        let counts = &miss.counts;
        let pool = pools.first().copied().unwrap_or_default();
        let saturated = miss.code == RefusalCode::HostStartsSaturated;
        let starts = if saturated { self.starts(pools, ask) } else { (0, 0) };
        let name = &self.pools[pool].row.name;
        let detail = match (miss.code, miss.full) {
            (_, Some((full, held, limit))) => format!(
                "pool {}: all slots are held ({held} of {limit})",
                self.pools[full].row.name
            ),
            (RefusalCode::NoHealthyHosts, _) if counts.hosts == 0 => {
                format!("pool {name} has no host: start an agent, or report one")
            }
            (RefusalCode::NoHealthyHosts, _) => format!(
                "pool {name}: none of {} hosts has a report to go by ({} dead, {} stale, {} unknown)",
                counts.hosts, counts.filtered.dead, counts.filtered.stale, counts.filtered.unknown
            ),
            (RefusalCode::HostStartsSaturated, _) => format!(
                "pool {name}: {} of {} hosts would take it but are at their bound of concurrent \
                 starts ({} under way, {} allowed)",
                counts.filtered.starts_saturated, counts.hosts, starts.0, starts.1
            ),
            (RefusalCode::HostPressure, _) => format!(
                "pool {name}: {} of {} hosts have shut their gates under memory pressure",
                counts.filtered.pressure, counts.hosts
            ),
            _ => format!(
                "pool {name}: none of {} hosts takes {} MiB configured now ({})",
                counts.hosts,
                ask.shape.memory.0,
                counts.by_filter()
            ),
        };
        let mut refusal = Refusal::new(miss.code, detail);
        refusal.counts = Some(miss.counts);
        refusal.starts = saturated.then_some(starts);
        refusal.retry = RetryHint::After(if miss.code == RefusalCode::NoHealthyHosts {
            HOSTS_BACK
        } else if saturated {
            // A place comes free when a start has ended, and they end about so fast.
            Millis(self.pools[pool].start_millis).clamp(ESTIMATE_MIN, ESTIMATE_MAX)
        } else {
            self.estimate(now, pool)
        });
        refusal.unprobed = self.is_unprobed(now, pools, miss);
        refusal
    }

    /// When to come back, from what is known of coming releases.
    pub(super) fn estimate(&self, now: Timestamp, pool: Ix) -> Millis {
        /// Looking further ahead than this tells no more.
        const AHEAD: usize = 64;
        /// Of all pools' reservations, so many are looked at: a refusal must stay cheap.
        const LOOKED_AT: usize = 256;
        let state = &self.pools[pool];
        let pauses: Vec<Timestamp> = state.pausing.iter().take(AHEAD).map(|(at, _)| *at).collect();
        let lapses: Vec<Timestamp> = self
            .wheel
            .iter()
            .flat_map(|(second, bucket)| bucket.iter().map(move |ix| (*second, *ix)))
            .take(LOOKED_AT)
            .filter(|(_, ix)| self.reservations[*ix].pool == pool)
            .map(|(second, _)| Timestamp(second.saturating_mul(1000)))
            .take(AHEAD)
            .collect();
        // Lifecycle limits that are due in this pool and free something.
        let limits: Vec<Timestamp> = self
            .timers
            .iter()
            .take(LOOKED_AT)
            .filter_map(|(at, timer)| match timer {
                Timer::Sandbox(ix, _) => Some((*at, *ix)),
                _ => None,
            })
            .filter(|(_, ix)| self.sandboxes.get(*ix).is_some_and(|one| one.pool == Some(pool)))
            .filter(|(_, ix)| self.sandboxes[*ix].row.status == SandboxStatus::Running)
            .filter(|(_, ix)| frees_slot(self.pause_kind(*ix)))
            .map(|(at, _)| at)
            .take(AHEAD)
            .collect();
        let (releases, window) = state.releases.seen(now);
        estimate(&RetryFacts {
            now,
            pauses: &pauses,
            lapses: &lapses,
            limits: &limits,
            releases,
            window: Millis(window),
            queue_ahead: u32::try_from(state.queue.len()).unwrap_or(u32::MAX),
        })
    }

    /// The record of a verdict.
    pub(super) fn decision(
        &self,
        now: Timestamp,
        id: plimsoll_types::DecisionId,
        verb: Verb,
        asked: &Asked,
    ) -> DecisionRow {
        let (policy_version, policy_mode) = self.pools[asked.pool].policy;
        let state = &self.pools[asked.pool];
        DecisionRow {
            id,
            at: now,
            tenant: self.tenants[asked.tenant].id.clone(),
            verb,
            code: None,
            object: None,
            pool: Some(state.row.name.clone()),
            host: None,
            memory_mib: Mib(asked.incoming.memory),
            vcpus: plimsoll_types::Vcpus(asked.incoming.vcpus),
            stateful: asked.shape.stateful,
            charge_mib: Mib::ZERO,
            items: 1,
            policy_version,
            policy_mode,
            counts: plimsoll_types::FilterCounts::default(),
            slots: Some((state.held, self.slot_limit(asked.pool))),
            detail: None,
        }
    }

    pub(super) fn tenant_id(&self, tenant: Ix) -> TenantId {
        self.tenants[tenant].id.clone()
    }
}
