//! I1 with burst: what may be drawn on above a limit, and for how long; and how often something may
//! be made. The rules once more, the slow and obvious way.

use std::collections::{BTreeMap, VecDeque};

use plimsoll_engine::rows::{DecisionRow, Limit, SandboxRow, Verb};
use plimsoll_types::{RefusalCode, SandboxId, SandboxStatus, TenantId, Timestamp};

use super::Oracle;
use super::limits::{COUNTERS, per_counter};

/// What a crash may give back to a tenant: states are written every 5 s, a slow store takes some
/// seconds for it, and two clocks of one cell differ by up to 4 s.
const FORGOTTEN: u64 = 15_000;

/// Two clocks of one cell may differ by so much.
const CLOCKS: i128 = 4_000;

/// Spent credit in unit-milliseconds times 24, as little and as much as it may be: a crash leaves a
/// doubt.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    least: i128,
    most: i128,
}

#[derive(Clone, Debug, Default)]
struct Counter {
    spent: Spent,
    /// In use since the last look.
    used: u64,
    /// How both stood in the last seconds.
    recent: VecDeque<(Timestamp, Spent, u64)>,
}

/// Every tenant's credit, and what it has made lately.
#[derive(Debug, Default)]
pub(super) struct Credit {
    at: Timestamp,
    /// What was so by then is written, whatever happens.
    safe: Timestamp,
    counters: BTreeMap<(TenantId, usize), Counter>,
    /// When each tenant had sandboxes made, by the cell's clock.
    made: BTreeMap<TenantId, VecDeque<(Timestamp, SandboxId)>>,
}

/// An hour of the whole burst, paid back over a day.
fn full(limit: Limit) -> i128 {
    i128::from(span(limit)) * 3_600_000 * 24
}

fn span(limit: Limit) -> u64 {
    let sustained = limit.limit.unwrap_or(0);
    limit.burst_limit.unwrap_or(sustained).saturating_sub(sustained)
}

/// What has been spent after so long with so much in use.
fn after(spent: i128, used: u64, limit: Limit, millis: u64) -> i128 {
    let Some(sustained) = limit.limit else { return spent };
    let change = if used > sustained {
        i128::from(used - sustained) * 24 * i128::from(millis)
    } else {
        -i128::from(span(limit)) * i128::from(millis)
    };
    (spent + change).clamp(0, full(limit))
}

impl Oracle {
    /// How a tenant's credit stands at the begin.
    pub(in crate::faults) fn spent(
        &mut self,
        at: Timestamp,
        tenant: &TenantId,
        counter: usize,
        spent: u64,
    ) {
        self.credit.at = at;
        let spent = Spent { least: spent.into(), most: spent.into() };
        let kept = Counter { spent, ..Counter::default() };
        self.credit.counters.insert((tenant.clone(), counter), kept);
    }

    /// Time has passed since the last look, with what was in use then.
    pub(super) fn advance_credit(&mut self, now: Timestamp) {
        let millis = now.since(self.credit.at).0;
        self.credit.at = self.credit.at.max(now);
        if now.since(self.led_at).0 > FORGOTTEN {
            self.credit.safe = Timestamp(now.0 - i64::try_from(FORGOTTEN).unwrap_or(0));
        }
        let safe = self.credit.safe;
        let tenants: Vec<TenantId> = self.rows.tenants.keys().cloned().collect();
        for tenant in tenants {
            let Some(limits) = self.limits(&tenant).map(per_counter) else {
                // Its plan cannot be read: what it spends meanwhile is not known either.
                for place in 0..3 {
                    let kept = self.credit.counters.entry((tenant.clone(), place)).or_default();
                    kept.spent = Spent { least: 0, most: i128::from(i64::MAX) };
                    kept.recent.clear();
                }
                continue;
            };
            for (place, limit) in limits.into_iter().enumerate() {
                let kept = self.credit.counters.entry((tenant.clone(), place)).or_default();
                if span(limit) == 0 && kept.spent.most == 0 {
                    continue;
                }
                let Spent { least, most } = kept.spent;
                kept.spent = Spent {
                    least: after(least, kept.used, limit, millis),
                    most: after(most, kept.used, limit, millis),
                };
                if millis > 0 {
                    kept.recent.push_back((now, kept.spent, kept.used));
                    while kept.recent.len() > 1 && kept.recent[1].0 < safe {
                        kept.recent.pop_front();
                    }
                }
            }
        }
    }

    /// What is in use from now on.
    pub(super) fn note_use(&mut self) {
        for tenant in self.rows.tenants.keys().cloned().collect::<Vec<_>>() {
            for (place, used) in self.used(&tenant).into_iter().enumerate() {
                self.credit.counters.entry((tenant.clone(), place)).or_default().used = used;
            }
        }
    }

    /// The cell starts over: it may have forgotten the last seconds, of credit and of tokens.
    pub(super) fn doubt_credit(&mut self, now: Timestamp) {
        if self.credit.safe == Timestamp(0) {
            // The first to lead has nothing to forget.
            self.credit.safe = now;
            self.credit.at = self.credit.at.max(now);
            return;
        }
        let safe = self.credit.safe;
        let doubt = self.credit.at.since(safe).0 + FORGOTTEN;
        for made in self.credit.made.values_mut() {
            made.retain(|(at, _)| *at < safe);
        }
        let tenants: Vec<TenantId> = self.rows.tenants.keys().cloned().collect();
        for tenant in tenants {
            let used = self.used(&tenant);
            let Some(limits) = self.limits(&tenant).map(per_counter) else { continue };
            for (place, limit) in limits.into_iter().enumerate() {
                let Some(kept) = self.credit.counters.get_mut(&(tenant.clone(), place)) else {
                    continue;
                };
                let before = kept.recent.iter();
                let earlier = before.clone().map(|(_, spent, _)| spent.least).min();
                let later = before.clone().map(|(_, spent, _)| spent.most).max();
                let fewest = before.clone().map(|(_, _, used)| *used).min().unwrap_or(0);
                let most_used = before.map(|(_, _, used)| *used).max().unwrap_or(0);
                let least = earlier.unwrap_or(kept.spent.least).min(kept.spent.least);
                let most = later.unwrap_or(kept.spent.most).max(kept.spent.most);
                let down = now.since(self.credit.at).0;
                let refills = fewest.min(used[place]) <= limit.limit.unwrap_or(0);
                let least = if refills { after(least, 0, limit, doubt) } else { least };
                kept.spent.least = after(least, used[place], limit, down);
                let drains = most_used.max(used[place]);
                if drains > limit.limit.unwrap_or(0) {
                    kept.spent.most = after(most, drains, limit, doubt + down);
                }
                kept.used = used[place];
            }
        }
        self.credit.at = self.credit.at.max(now);
    }

    /// An admission that takes a tenant above a limit needs credit.
    pub(super) fn within_credit(&mut self, row: &DecisionRow) {
        let tenant = &row.tenant;
        let Some(limits) = self.limits(tenant).map(per_counter) else { return };
        let used = self.used(tenant);
        for (place, limit) in limits.into_iter().enumerate() {
            let (Some(sustained), used) = (limit.limit, used[place]) else { continue };
            let counter = self.credit.counters.get(&(tenant.clone(), place));
            let spent = counter.map_or(0, |counter| counter.spent.least);
            if used > sustained && spent >= full(limit) {
                let name = COUNTERS[place];
                let detail = format!(
                    "{tenant} holds {used} {name} above {sustained} with no credit left ({spent} of {})",
                    full(limit)
                );
                self.break_("I1", detail);
            }
        }
    }

    /// A refusal for quota rests on a limit that the request would pass, or on credit that is spent.
    pub(super) fn refused_for_quota(&mut self, row: &DecisionRow) {
        let one = matches!(row.verb, Verb::Create | Verb::Fork | Verb::Reserve);
        if row.code != Some(RefusalCode::QuotaExceeded) || !one {
            return;
        }
        let tenant = &row.tenant;
        let Some(limits) = self.limits(tenant).map(per_counter) else { return };
        let used = self.used(tenant);
        let asked = [1, row.vcpus.0, row.memory_mib.0];
        let justified = (0..3).any(|place| {
            let limit = limits[place];
            let Some(sustained) = limit.limit else { return false };
            let ceiling = limit.burst_limit.unwrap_or(sustained).max(sustained);
            let sum = used[place] + asked[place];
            let counter = self.credit.counters.get(&(tenant.clone(), place));
            let spent = counter.map_or(0, |counter| counter.spent.most);
            // A clock that has gone back pays nothing back until it has caught up.
            let doubt = i128::from(span(limit)) * CLOCKS;
            sum > ceiling || (sum > sustained && spent + doubt >= full(limit))
        });
        if !justified {
            let left = [0, 1, 2].map(|place| {
                let counter = self.credit.counters.get(&(tenant.clone(), place));
                full(limits[place]) - counter.map_or(0, |counter| counter.spent.most)
            });
            let detail = format!(
                "{tenant} was refused for quota with {used:?} of {limits:?} in use, {left:?} left"
            );
            self.break_("I1", detail);
        }
    }

    /// A sandbox is there for the first time: it has cost a token.
    pub(super) fn made(&mut self, now: Timestamp, row: &SandboxRow) {
        let Some(limits) = self.rate_limits(&row.tenant) else { return };
        let made = self.credit.made.entry(row.tenant.clone()).or_default();
        made.push_back((now, row.id));
        while made.front().is_some_and(|(at, _)| now.since(*at).0 > 3_600_000) {
            made.pop_front();
        }
        let rates = [(limits.creates_per_minute, 60_000), (limits.creates_per_hour, 3_600_000)];
        for (limit, per) in rates {
            let Some(limit) = limit else { continue };
            // Owed token-milliseconds, paid back by `limit` in each one.
            let (mut owed, mut last) = (0_u128, now);
            for (at, _) in made.iter() {
                let paid = u128::from(at.since(last).0) * u128::from(limit);
                owed = owed.saturating_sub(paid) + per;
                last = *at;
            }
            if owed > u128::from(limit) * per {
                let detail = format!(
                    "{} has had {} sandboxes made, more than {limit} in {per} ms allow",
                    row.tenant,
                    made.len()
                );
                return self.break_("rate", detail);
            }
        }
    }

    /// A queued create that is over before it was admitted gets its token back.
    pub(super) fn unmade(&mut self, before: Option<&SandboxRow>, id: SandboxId) {
        let Some(before) = before.filter(|row| row.status == SandboxStatus::Queued) else { return };
        if let Some(made) = self.credit.made.get_mut(&before.tenant) {
            made.retain(|(_, of)| *of != id);
        }
    }

    fn rate_limits(&self, tenant: &TenantId) -> Option<plimsoll_engine::rows::RateLimits> {
        let row = self.rows.tenants.get(tenant)?;
        Some(self.rows.plans.get(&row.plan)?.limits.rate)
    }
}
