//! Making room: pausing one guest so that a waiter gets in. Nothing preempts without a policy.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_policy::slots::{frees_slot, holds_slot};
use plimsoll_policy::victims::{Candidate, Shortfall, VictimRule, in_order, sufficient_set};
use plimsoll_types::{
    Counted, HostFilter, Mib, Millis, PreemptionMode, SandboxId, SandboxStatus, Timestamp,
};
use serde_json::json;

use super::Engine;
use super::state::{Ask, Claim, Hold, Ix, Place, Timer, Waiter};
use crate::output::{Observation, Output};

/// Waiters for which room is sought in one go: more victims than this at once would be a storm.
const WAITERS_MAX: usize = 32;

/// Hosts that are looked at for a create that lacks memory.
const HOSTS_MAX: usize = 64;

/// In a pool with more guests than this, victims are sought at most once a second: the search
/// looks at every guest.
const LARGE_POOL: usize = 1_000;

/// What one waiter lacks.
struct Lack {
    waiter: SandboxId,
    slot: bool,
    hosts: Vec<(Ix, Mib, Counted)>,
}

impl Engine {
    fn victim_rule(&self, pool: Ix) -> VictimRule {
        let settings = &self.pools[pool].row.settings;
        VictimRule {
            protect: Millis::from_seconds(settings.preemption_protect_seconds),
            pair_protect: Millis::from_seconds(settings.preemption_pair_seconds),
            ..VictimRule::new(settings.preemption)
        }
    }

    /// Pauses one victim for each waiter of a pool that has none being paused already.
    pub(super) fn make_room(&mut self, now: Timestamp, pool: Ix, out: &mut Output) {
        let state = &self.pools[pool];
        if state.row.settings.preemption.mode == PreemptionMode::Off || state.queue.is_empty() {
            return;
        }
        let guests: usize = state.hosts.iter().map(|host| self.hosts[*host].claims.len()).sum();
        if guests > LARGE_POOL
            && state.preempted_at.is_some_and(|at| now.since(at) < Millis::from_seconds(1))
        {
            self.timers.insert((now + Millis::from_seconds(1), Timer::Queue(pool)));
            return;
        }
        self.pools[pool].preempted_at = Some(now);
        let places: Vec<Place> = self.pools[pool]
            .queue
            .keys()
            .filter(|place| !self.waits_for_its_tenant(now, pool, **place))
            .take(WAITERS_MAX)
            .copied()
            .collect();
        // Every guest that is being paused will serve one waiter: the one it is paused for while
        // that one waits, else one of those who stand first.
        let (served, mut spare) = self.being_served(pool);
        for place in places {
            let waiter = match self.pools[pool].queue.get(&place) {
                Some(Waiter::Create(ix) | Waiter::Resume(ix)) => Some(*ix),
                _ => None,
            };
            if waiter.is_some_and(|ix| served.contains(&ix)) {
                continue;
            }
            if spare > 0 {
                spare -= 1;
                continue;
            }
            if !self.preempt_for(now, pool, place, out) {
                break;
            }
        }
    }

    /// The waiters of a pool for which a guest is being paused, and how many guests are being
    /// paused for nobody who still waits.
    fn being_served(&self, pool: Ix) -> (BTreeSet<Ix>, usize) {
        let mut served = BTreeSet::new();
        let mut spare = 0;
        for (_, victim) in &self.pools[pool].pausing {
            let waiter = self.sandboxes[*victim].row.preempted_for;
            let waiter = waiter.and_then(|id| self.sandbox_ix.get(&id).copied());
            let waits = waiter.filter(|ix| {
                self.sandboxes[*ix].rare().place.is_some_and(|(queue, _)| queue == pool)
            });
            match waits {
                Some(ix) if served.insert(ix) => {}
                _ => spare += 1,
            }
        }
        (served, spare)
    }

    /// Pauses one guest for a waiter. `false` when there is none that would help, or the pool is
    /// at its bound for this minute.
    fn preempt_for(&mut self, now: Timestamp, pool: Ix, place: Place, out: &mut Output) -> bool {
        let Some(lack) = self.lack(pool, place) else { return true };
        let rule = self.victim_rule(pool);
        let settings = &self.pools[pool].row.settings;
        let bound = settings.preemptions_per_minute_max;
        let mode = settings.preemption.mode;
        if self.pools[pool].preemptions.this_minute(now) >= bound {
            self.timers.insert((now + Millis::from_seconds(1), Timer::Queue(pool)));
            return false;
        }
        let specs = self.pool_guests(pool);
        let candidates: Vec<Candidate<'_, Ix, Ix>> = specs
            .iter()
            .map(|(ix, spec)| self.candidate(*ix, &spec.counted, lack.waiter))
            .collect();
        let ordered = in_order(&candidates, &rule, now);
        let shortfalls: Vec<Shortfall<'_, Ix>> = lack
            .hosts
            .iter()
            .map(|(host, memory, counted)| Shortfall { host: *host, memory: *memory, counted })
            .collect();
        let victims = sufficient_set(&ordered, lack.slot, &shortfalls).unwrap_or_default();
        let Some(victim) = victims.first().copied() else {
            self.look_again(now, pool, &candidates, &rule);
            return false;
        };
        self.pools[pool].preemptions.count(now);
        let name = self.pools[pool].row.name.clone();
        let why = format!("paused to make room on pool {name}");
        self.begin_pause(now, victim, &why, true, out);
        let waiter = lack.waiter;
        self.change(now, victim, out, |row| row.preempted_for = Some(waiter));
        if let Some(ix) = self.sandbox_ix.get(&waiter).copied() {
            let victim_id = self.sandboxes[victim].row.id;
            self.sandboxes[ix].edit_rare(|rare| rare.displaced.push(victim_id));
        }
        self.sandbox_event(now, victim, "sandbox.preempted", json!({ "for": waiter }), out);
        out.observations.push(Observation::Preemption(name.clone(), mode.as_str()));
        out.observations.push(Observation::Lifecycle("preempted", name));
        true
    }

    fn pool_guests(&self, pool: Ix) -> Vec<(Ix, Arc<crate::rows::SandboxSpec>)> {
        let mut guests: Vec<Ix> = self.pools[pool]
            .hosts
            .iter()
            .flat_map(|host| self.hosts[*host].claims.iter())
            .filter_map(|claim| match claim {
                Claim::Sandbox(ix) => Some(*ix),
                Claim::Reservation(_) => None,
            })
            .filter(|ix| {
                let sandbox = &self.sandboxes[*ix];
                sandbox.row.status == SandboxStatus::Running && sandbox.pool == Some(pool)
            })
            .collect();
        guests.sort_unstable();
        guests.into_iter().map(|ix| (ix, Arc::clone(&self.sandboxes[ix].row.spec))).collect()
    }

    fn candidate<'a>(
        &self,
        ix: Ix,
        counted: &'a Counted,
        waiter: SandboxId,
    ) -> Candidate<'a, Ix, Ix> {
        let sandbox = &self.sandboxes[ix];
        let row = &sandbox.row;
        Candidate {
            id: ix,
            host: sandbox.host.unwrap_or_default(),
            preemptible: row.preemptible,
            pause_frees: frees_slot(self.pause_kind(ix)),
            priority: row.priority,
            last_active_at: self.active_at(ix),
            running_since: row.started_at.unwrap_or(row.status_since),
            brought_in_at: row.brought_in_at,
            displaced_waiter: sandbox.rare().displaced.contains(&waiter),
            pause_failed_at: sandbox.rare().pause_failed_at,
            overcommitted: sandbox.woken,
            charge: row.charge_mib,
            counted,
        }
    }

    /// What stands between a waiter and its room; `None` for one that preemption cannot help.
    fn lack(&self, pool: Ix, place: Place) -> Option<Lack> {
        match self.pools[pool].queue.get(&place)? {
            Waiter::Resume(ix) => {
                let sandbox = &self.sandboxes[*ix];
                let row = &sandbox.row;
                let needs_slot = !holds_slot(row.status, row.slot_released);
                let slot = needs_slot && self.slots_free(pool, Some(place)) == Some(0);
                let host = sandbox.host?;
                let ask = self.sandbox_ask(*ix, &row.spec, Some(place));
                let short = self.shortfall(pool, host, &ask)?;
                Some(Lack { waiter: row.id, slot, hosts: vec![short] })
            }
            Waiter::Create(ix) => {
                let row = &self.sandboxes[*ix].row;
                let ask = self.sandbox_ask(*ix, &row.spec, Some(place));
                // Only where no other pool takes it.
                let pools = self.eligible(pool, row.spec.fork_of.is_none());
                if self.find(&pools, &ask).is_ok() {
                    return None;
                }
                let slot = self.slots_free(pool, Some(place)) == Some(0);
                let hosts: Vec<_> = self.pools[pool]
                    .hosts
                    .iter()
                    .filter_map(|host| self.shortfall(pool, *host, &ask))
                    .take(HOSTS_MAX)
                    .collect();
                if hosts.is_empty() {
                    return None;
                }
                Some(Lack { waiter: row.id, slot, hosts })
            }
            // Only sandboxes are waited for with another's pause: a reservation says nothing
            // about how long it will be held.
            Waiter::Reserve(_) => None,
        }
    }

    /// What a host lacks to take a request; `None` when emptying it would not help.
    fn shortfall(&self, pool: Ix, host: Ix, ask: &Ask<'_>) -> Option<(Ix, Mib, Counted)> {
        match self.host_filter(pool, host, ask) {
            None | Some(HostFilter::StartsSaturated | HostFilter::Held) => {
                Some((host, Mib::ZERO, Counted::new()))
            }
            Some(HostFilter::Full | HostFilter::Counted) => {
                let need = self.need_on(pool, self.regime(host), &ask.shape);
                let free = self.effective(host)?;
                let short = need.saturating_sub(free).max(0).unsigned_abs();
                let left = self.counted_free(host);
                let have =
                    |name: &String| left.and_then(|left| left.get(name)).copied().unwrap_or(0);
                let counted = ask
                    .counted
                    .iter()
                    .map(|(name, amount)| (name.clone(), amount.saturating_sub(have(name))))
                    .filter(|(_, short)| *short > 0)
                    .collect();
                Some((host, Mib(short), counted))
            }
            Some(_) => None,
        }
    }

    /// Comes back when the next guest may become a victim.
    fn look_again(
        &mut self,
        now: Timestamp,
        pool: Ix,
        candidates: &[Candidate<'_, Ix, Ix>],
        rule: &VictimRule,
    ) {
        let wait = match rule.preemption.mode {
            PreemptionMode::Off => return,
            PreemptionMode::Idle => Millis::from_seconds(rule.preemption.idle_seconds),
            PreemptionMode::Lru => Millis::from_seconds(rule.preemption.min_run_seconds),
        };
        let next = candidates
            .iter()
            .filter(|candidate| candidate.preemptible && candidate.pause_frees)
            .flat_map(|candidate| {
                let from = match rule.preemption.mode {
                    PreemptionMode::Idle => candidate.last_active_at.max(candidate.running_since),
                    _ => candidate.running_since,
                };
                let protect =
                    if candidate.displaced_waiter { rule.pair_protect } else { rule.protect };
                [
                    Some(from + wait),
                    candidate.brought_in_at.map(|at| at + protect),
                    candidate.pause_failed_at.map(|at| at + rule.failed_cooldown),
                ]
            })
            .flatten()
            .filter(|at| *at > now)
            .min();
        if let Some(at) = next {
            self.timers.insert((at, Timer::Queue(pool)));
        }
    }

    /// A victim has left: what it freed is kept for the waiter it was paused for.
    pub(super) fn keep_for_waiter(&mut self, now: Timestamp, victim: Ix) {
        let Some(waiter) = self.sandboxes[victim].row.preempted_for else { return };
        let Some(ix) = self.sandbox_ix.get(&waiter).copied() else { return };
        let Some((pool, place)) = self.sandboxes[ix].rare().place else { return };
        let ttl = Millis::from_seconds(self.pools[pool].row.settings.hold_ttl_seconds);
        let host = self.sandboxes[ix].host.or(self.sandboxes[victim].host);
        let slot = self.slot_limit(pool).is_some();
        self.hold_for(pool, Hold { place, host, slot, until: now + ttl, aged: false });
        self.timers.insert((now + ttl, Timer::Queue(pool)));
    }
}
