//! Those who wait: one order per pool over resumes, creates and reservations, and the requests
//! that wait for hosts to be asked before they are refused.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use plimsoll_policy::fit::standing;
use plimsoll_policy::fresh::Freshness;
use plimsoll_types::{HostFilter, HostId, Millis, RefusalCode, RetryHint, Timestamp};

use super::Engine;
use super::place::Miss;
use super::state::{Hold, Ix, Parked, ParkedCall, Place, Timer, Waiter};
use crate::command::{Command, Token};
use crate::output::{Output, Refusal};

/// When a place in the queue was passed over, so many further ones are still tried: smaller work
/// may pass, at a bounded cost for each release.
const LOOK_BEHIND: usize = 32;

/// Most hosts that are asked for one refusal: more answers than this would not come in time.
const ASKED_MAX: usize = 64;

impl Engine {
    /// The place of a request of this age.
    pub(super) fn next_place(&mut self, priority: i32, since: Timestamp) -> Place {
        self.arrivals += 1;
        Place { priority: Reverse(priority), since, arrival: self.arrivals }
    }

    /// Whether the pool's queue, or the tenant's part of it, is at its bound.
    pub(super) fn queue_full(&self, pool: Ix, tenant: Ix) -> Option<Refusal> {
        let (all, own) = (self.pools[pool].queue.len(), self.tenants[tenant].waiting as usize);
        let (most, own_most) = (self.config.queue_max, self.config.queue_per_tenant_max);
        let detail = if all >= most {
            format!("the queue of pool {} holds its most, {most}", self.pools[pool].row.name)
        } else if own >= own_most {
            format!("{own} requests of this tenant wait already, the most there may be")
        } else {
            return None;
        };
        let mut refusal = Refusal::new(RefusalCode::Overloaded, detail);
        refusal.retry = RetryHint::After(Millis::from_seconds(10));
        Some(refusal)
    }

    pub(super) fn enqueue(&mut self, now: Timestamp, pool: Ix, place: Place, waiter: Waiter) {
        let tenant = match &waiter {
            Waiter::Create(ix) | Waiter::Resume(ix) => {
                self.sandboxes[*ix].edit_rare(|rare| rare.place = Some((pool, place)));
                self.sandboxes[*ix].tenant
            }
            Waiter::Reserve(waiting) => waiting.tenant,
        };
        self.tenants[tenant].waiting += 1;
        self.pools[pool].queue.insert(place, waiter);
        self.stir(pool);
        self.arm_waiter(now, pool, place);
    }

    /// Takes a waiter out of its queue, and lets go of what was held for it.
    pub(super) fn dequeue(&mut self, pool: Ix, place: Place) -> Option<Waiter> {
        let waiter = self.pools[pool].queue.remove(&place)?;
        let tenant = match &waiter {
            Waiter::Create(ix) | Waiter::Resume(ix) => {
                self.sandboxes[*ix].edit_rare(|rare| rare.place = None);
                self.sandboxes[*ix].tenant
            }
            Waiter::Reserve(waiting) => waiting.tenant,
        };
        let waiting = &mut self.tenants[tenant].waiting;
        *waiting = waiting.saturating_sub(1);
        self.unhold(pool, place);
        Some(waiter)
    }

    /// Takes a sandbox out of the queue it stands in, if any.
    pub(super) fn leave_queue(&mut self, ix: Ix) {
        if let Some((pool, place)) = self.sandboxes[ix].rare().place {
            self.dequeue(pool, place);
        }
    }

    /// Serves every queue for which something may have been freed.
    pub(super) fn serve_stirred(&mut self, now: Timestamp, out: &mut Output) {
        // Serving frees nothing, so a pool is served once for each input.
        while !self.stirred.is_empty()
            && let Some(pool) = self.stirred.pop_first()
        {
            self.serve(now, pool, out);
        }
    }

    fn serve(&mut self, now: Timestamp, pool: Ix, out: &mut Output) {
        let mut after: Option<Place> = None;
        let mut passed = 0;
        // The queue has a bound, and what is held back is passed over at the cost of a look.
        while passed < LOOK_BEHIND {
            let next = match after {
                None => self.pools[pool].queue.first_key_value().map(|(place, _)| *place),
                Some(after) => {
                    use std::ops::Bound::{Excluded, Unbounded};
                    let mut rest = self.pools[pool].queue.range((Excluded(after), Unbounded));
                    rest.next().map(|(place, _)| *place)
                }
            };
            let Some(place) = next else { break };
            after = Some(place);
            if !self.waits_for_its_tenant(now, pool, place)
                && !self.serve_one(now, pool, place, out)
            {
                passed += 1;
            }
        }
        self.set_hold(now, pool);
        self.make_room(now, pool, out);
    }

    /// Whether a waiter would be refused for its tenant's own limits. Nothing is held for it, no
    /// guest is paused for it, and it stands in nobody's way.
    pub(super) fn waits_for_its_tenant(&self, now: Timestamp, pool: Ix, place: Place) -> bool {
        let asked = match self.pools[pool].queue.get(&place) {
            Some(Waiter::Create(ix)) => self.sandbox_asked(*ix, true),
            Some(Waiter::Resume(ix)) => self.wake_asked(*ix, 0),
            Some(Waiter::Reserve(waiting)) => self.waiting_asked(pool, waiting),
            None => return false,
        };
        self.held_back(now, &asked, &self.eligible(pool, true))
    }

    /// Decides one waiter again. `true` when it waits no more.
    fn serve_one(&mut self, now: Timestamp, pool: Ix, place: Place, out: &mut Output) -> bool {
        match self.pools[pool].queue.get(&place) {
            Some(Waiter::Create(ix)) => {
                let ix = *ix;
                self.serve_create(now, pool, place, ix, out)
            }
            Some(Waiter::Resume(ix)) => {
                let ix = *ix;
                self.serve_resume(now, pool, place, ix, out)
            }
            Some(Waiter::Reserve(_)) => {
                // Taken out by hand: what is held for it stays held while it is decided.
                let Some(Waiter::Reserve(waiting)) = self.pools[pool].queue.remove(&place) else {
                    return true;
                };
                let served = self.serve_reserve(now, pool, place, &waiting, out);
                self.pools[pool].queue.insert(place, Waiter::Reserve(waiting));
                if served {
                    self.dequeue(pool, place);
                }
                served
            }
            None => true,
        }
    }

    /// The first that has waited longer than the bound has its need set aside: a slot, and the
    /// host that is nearest to taking it. What is freed there then accrues to it (B2, B3).
    fn set_hold(&mut self, now: Timestamp, pool: Ix) {
        let holds = &self.pools[pool].holds;
        let over: Vec<Place> =
            holds.values().filter(|hold| hold.until <= now).map(|hold| hold.place).collect();
        for place in over {
            self.unhold(pool, place);
        }
        if self.pools[pool].holds.values().any(|hold| hold.aged) {
            return;
        }
        let settings = &self.pools[pool].row.settings;
        let bound = Millis::from_seconds(settings.queue_hold_seconds);
        let until = now + Millis::from_seconds(settings.hold_ttl_seconds);
        let Some(place) = self.pools[pool]
            .queue
            .keys()
            .filter(|place| !self.waits_for_its_tenant(now, pool, **place))
            .take(LOOK_BEHIND)
            .find(|place| now.since(place.since) >= bound)
            .copied()
        else {
            return;
        };
        let (host, slot) = self.nearest(pool, place);
        self.hold_for(pool, Hold { place, host, slot, until, aged: true });
        self.timers.insert((until, Timer::Queue(pool)));
    }

    pub(super) fn hold_for(&mut self, pool: Ix, hold: Hold) {
        self.unhold(pool, hold.place);
        self.pools[pool].holds.insert(hold.place, hold);
        if let Some(host) = hold.host {
            self.hosts[host].holds += 1;
            self.relist(host);
        }
    }

    /// Lets go of what was held for a waiter.
    pub(super) fn unhold(&mut self, pool: Ix, place: Place) {
        let Some(hold) = self.pools[pool].holds.remove(&place) else { return };
        if let Some(host) = hold.host {
            let holds = &mut self.hosts[host].holds;
            *holds = holds.saturating_sub(1);
            self.relist(host);
        }
        self.stir(pool);
    }

    /// The host that is nearest to taking a waiter, and whether the waiter needs a slot: its own
    /// host for a resume, else the one with the most left among those that lack only memory.
    fn nearest(&self, pool: Ix, place: Place) -> (Option<Ix>, bool) {
        let limited = self.slot_limit(pool).is_some();
        match self.pools[pool].queue.get(&place) {
            Some(Waiter::Resume(ix)) => {
                let sandbox = &self.sandboxes[*ix];
                (sandbox.host, limited && sandbox.row.slot_released)
            }
            Some(Waiter::Create(ix)) => {
                let spec = std::sync::Arc::clone(&self.sandboxes[*ix].row.spec);
                let ask = self.sandbox_ask(*ix, &spec, Some(place));
                (self.roomiest(pool, &ask), limited)
            }
            Some(Waiter::Reserve(waiting)) => {
                let ask = super::reserve::item_ask(&waiting.item, Some(place));
                (self.roomiest(pool, &ask), limited)
            }
            None => (None, false),
        }
    }

    fn roomiest(&self, pool: Ix, ask: &super::state::Ask<'_>) -> Option<Ix> {
        let fits_else = |ix: &&Ix| {
            matches!(
                self.host_filter(pool, **ix, ask),
                None | Some(HostFilter::Full | HostFilter::StartsSaturated)
            ) && self.could_ever(**ix, ask)
        };
        self.pools[pool]
            .hosts
            .iter()
            .filter(fits_else)
            .max_by_key(|ix| (self.effective(**ix), Reverse(**ix)))
            .copied()
    }

    /// Whether an empty host of this size would take it at all.
    fn could_ever(&self, ix: Ix, ask: &super::state::Ask<'_>) -> bool {
        self.hosts[ix]
            .report
            .as_ref()
            .is_some_and(|seen| ask.shape.memory <= seen.report.memory_mib_total)
    }

    /// What time brings about in a queue: waits that end, holds that lapse, heads that have aged.
    pub(super) fn check_queue(&mut self, now: Timestamp, pool: Ix, out: &mut Output) {
        let over: Vec<Place> = self.pools[pool]
            .queue
            .iter()
            .filter(|(_, waiter)| matches!(waiter, Waiter::Reserve(w) if w.deadline <= now))
            .map(|(place, _)| *place)
            .collect();
        for place in over {
            if let Some(Waiter::Reserve(waiting)) = self.dequeue(pool, place) {
                self.expire_reserve(now, pool, &waiting, out);
            }
        }
        self.lapse_resumes(now, pool, out);
        self.relearn(now, pool);
        self.stir(pool);
    }

    /// Wakes the queue when this waiter's age or wait comes to its bound.
    fn arm_waiter(&mut self, now: Timestamp, pool: Ix, place: Place) {
        let settings = &self.pools[pool].row.settings;
        let bound = place.since + Millis::from_seconds(settings.queue_hold_seconds);
        let end = match self.pools[pool].queue.get(&place) {
            Some(Waiter::Reserve(waiting)) => Some(waiting.deadline),
            Some(Waiter::Resume(_)) => {
                Some(place.since + Millis::from_seconds(settings.resume_lapse_seconds))
            }
            _ => None,
        };
        for at in [Some(bound), end].into_iter().flatten().filter(|at| *at > now) {
            self.timers.insert((at, Timer::Queue(pool)));
        }
    }

    /// The caller behind this token is gone.
    pub(super) fn abandon(&mut self, token: Token) {
        self.parked.retain(|_, parked| parked.token != token);
        for pool in self.pools.numbers() {
            let place = self.pools[pool]
                .queue
                .iter()
                .find(|(_, waiter)| matches!(waiter, Waiter::Reserve(w) if w.token == token))
                .map(|(place, _)| *place);
            if let Some(place) = place {
                self.dequeue(pool, place);
                return;
            }
        }
    }

    /// Before a capacity refusal leaves, hosts whose state is stale, unknown or set aside are
    /// asked afresh, once for everybody who waits. `true` when the request waits for an answer.
    pub(super) fn park(
        &mut self,
        now: Timestamp,
        token: Token,
        pools: &[Ix],
        miss: &Miss,
        call: impl FnOnce() -> ParkedCall,
        out: &mut Output,
    ) -> bool {
        if miss.unsure() == 0 || self.parked.len() >= self.config.parked_max {
            return false;
        }
        let mut waits_for = BTreeSet::new();
        for ix in self.open_hosts(pools) {
            if waits_for.len() >= ASKED_MAX {
                break;
            }
            if self.ask_host(now, ix, out) {
                waits_for.insert(ix);
            }
        }
        if waits_for.is_empty() {
            return false;
        }
        self.arrivals += 1;
        let deadline = now + self.config.probe_timeout + Millis(100);
        self.parked.insert(self.arrivals, Parked { token, call: call(), waits_for, deadline });
        self.timers.insert((deadline, Timer::Parked));
        true
    }

    /// The hosts of those pools that have a slot left: where every slot is held, no host's word
    /// would change the answer.
    fn open_hosts(&self, pools: &[Ix]) -> Vec<Ix> {
        let open = pools.iter().filter(|pool| self.slots_free(**pool, None) != Some(0));
        open.flat_map(|pool| self.pools[*pool].hosts.iter().copied()).collect()
    }

    /// Whether a host might take something after all, were it asked.
    fn is_unsure(&self, ix: Ix) -> bool {
        let facts = self.facts(ix);
        !matches!(facts.freshness, Some(Freshness::Dead))
            && matches!(
                standing(&facts),
                Some(HostFilter::Stale | HostFilter::Unknown | HostFilter::SetAside)
            )
    }

    /// Whether a refusal rests on hosts that might have taken it and were not asked just now.
    pub(super) fn is_unprobed(&self, now: Timestamp, pools: &[Ix], miss: &Miss) -> bool {
        let bound = Millis(self.config.probe_timeout.0 + self.config.probe_interval.0);
        let asked = |ix: Ix| self.hosts[ix].asked_at.is_some_and(|at| now.since(at) <= bound);
        miss.unsure() > 0
            && self.open_hosts(pools).into_iter().any(|ix| self.is_unsure(ix) && !asked(ix))
    }

    /// Whether an answer of this host is on its way, asked for now or before.
    fn ask_host(&mut self, now: Timestamp, ix: Ix, out: &mut Output) -> bool {
        if !self.is_unsure(ix) {
            return false;
        }
        let interval = self.config.probe_interval;
        let host = &self.hosts[ix];
        if host.asking {
            return true;
        }
        if host.asked_at.is_some_and(|at| now.since(at) < interval) {
            return false;
        }
        self.ask(now, ix, out)
    }

    /// A fresh question brought no answer: the refusal's code stays as it was.
    pub(super) fn probe_failed(&mut self, now: Timestamp, name: &HostId, out: &mut Output) {
        if let Some(ix) = self.host_by_name(name) {
            self.host_answered(now, ix, out);
        }
    }

    /// A host has answered, or will not: whoever waited for it and for nobody else is decided
    /// again, before newcomers.
    pub(super) fn host_answered(&mut self, now: Timestamp, ix: Ix, out: &mut Output) {
        self.hosts[ix].asking = false;
        let mut ready = Vec::new();
        for (number, parked) in &mut self.parked {
            if parked.waits_for.remove(&ix) && parked.waits_for.is_empty() {
                ready.push(*number);
            }
        }
        self.unpark(now, &ready, out);
    }

    pub(super) fn check_parked(&mut self, now: Timestamp, out: &mut Output) {
        let ready: Vec<u64> = self
            .parked
            .iter()
            .filter(|(_, parked)| parked.deadline <= now)
            .map(|(number, _)| *number)
            .collect();
        self.unpark(now, &ready, out);
    }

    fn unpark(&mut self, now: Timestamp, ready: &[u64], out: &mut Output) {
        for number in ready {
            let Some(parked) = self.parked.remove(number) else { continue };
            let ParkedCall::Command(caller, command) = parked.call;
            let token = parked.token;
            match command {
                Command::Create(create) => self.create(now, token, &caller, *create, false, out),
                Command::Fork(fork) => self.fork(now, token, &caller, *fork, false, out),
                Command::Reserve(reserve) => {
                    self.reserve(now, token, &caller, *reserve, false, out);
                }
                Command::ReserveBatch(batch) => {
                    self.reserve_batch(now, token, &caller, *batch, false, out);
                }
                _ => {}
            }
        }
    }
}
