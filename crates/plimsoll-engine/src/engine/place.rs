//! Which host: the index answers, the policy's own filter decides what the index cannot.

use plimsoll_policy::charge::admission_charge;
use plimsoll_policy::fit::{Request, filter, residual};
use plimsoll_policy::precedence::capacity_code;
use plimsoll_types::{FilterCounts, HostFilter, Placement, RefusalCode};

use smallvec::{SmallVec, smallvec};

use super::Engine;
use super::state::{Ask, Found, Hold, Ix, Place};
use crate::index::{Slot, better};

/// Hosts of one partition that are held one by one against what the index does not serve, for the
/// counts of a refusal: it must stay cheap, and beyond this the exact number helps nobody. What is
/// not looked at counts as full.
const COUNTED_MAX: u32 = 1_000;

/// Why no pool took it.
#[derive(Clone, Debug)]
pub(super) struct Miss {
    pub(super) counts: FilterCounts,
    /// The first pool whose slots are all held, with what it holds and allows.
    pub(super) full: Option<(Ix, u64, u64)>,
    pub(super) code: RefusalCode,
}

impl Miss {
    /// Hosts that fell to what the cell does not know, rather than to what it knows.
    pub(super) fn unsure(&self) -> u32 {
        let fell = &self.counts.filtered;
        fell.stale + fell.unknown + fell.set_aside
    }
}

impl Engine {
    /// The pools that a request may use, in order: its own, then those it may overflow to.
    pub(super) fn eligible(&self, pool: Ix, overflow: bool) -> SmallVec<[Ix; 4]> {
        let mut pools: SmallVec<[Ix; 4]> = smallvec![pool];
        if overflow {
            for name in &self.pools[pool].row.settings.overflow {
                if let Some(ix) = self.pool_ix.get(name)
                    && !pools.contains(ix)
                {
                    pools.push(*ix);
                }
            }
        }
        pools
    }

    /// Slots that a request may still take; `None` is no limit. What is set aside for another
    /// waiter is not free.
    pub(super) fn slots_free(&self, pool: Ix, place: Option<Place>) -> Option<u64> {
        let state = &self.pools[pool];
        let limit = self.slot_limit(pool)?;
        // For a waiter only those count that stand before it.
        let before = |hold: &&Hold| hold.slot && place.is_none_or(|place| hold.place < place);
        let kept = state.holds.values().filter(before).count();
        let kept = u64::try_from(kept).unwrap_or(u64::MAX);
        Some(limit.saturating_sub(state.held).saturating_sub(kept))
    }

    /// Finds a host in the first pool that has one.
    pub(super) fn find(&self, pools: &[Ix], ask: &Ask<'_>) -> Result<Found, Box<Miss>> {
        for pool in pools {
            if self.slots_free(*pool, ask.place) == Some(0) {
                continue;
            }
            if let Some(found) = self.find_in(*pool, ask) {
                return Ok(found);
            }
        }
        Err(Box::new(self.miss(pools, ask)))
    }

    fn request<'a>(&'a self, pool: Ix, ask: &Ask<'a>) -> Request<'a> {
        Request {
            shape: ask.shape,
            drivers: ask.drivers,
            labels: ask.labels,
            counted: ask.counted,
            reserve: &self.pools[pool].row.settings.reserve,
        }
    }

    /// Whether the index alone decides: nothing but memory is asked for.
    fn plain(&self, pool: Ix, ask: &Ask<'_>) -> bool {
        !ask.shape.stateful
            && ask.tried.is_empty()
            && ask.counted.is_empty()
            && self.pools[pool].row.settings.max_vcpu_ratio_bp.is_none()
    }

    fn find_in(&self, pool: Ix, ask: &Ask<'_>) -> Option<Found> {
        if let Some(found) = self.find_held(pool, ask) {
            return Some(found);
        }
        let request = self.request(pool, ask);
        let plain = self.plain(pool, ask);
        let mut best: Option<Slot> = None;
        for partition in &self.pools[pool].partitions {
            let partition = &self.partitions[*partition];
            if partition.ready.is_empty() || !suits(partition, &request) {
                continue;
            }
            let need = self.need_on(pool, partition.key.regime, &ask.shape);
            let slot = partition.ready.pick(need, ask.ring, Placement::Spread, |host| {
                plain || self.stops(host, &request, ask).is_none()
            });
            if let Some(slot) = slot
                && best.as_ref().is_none_or(|best| better(&slot, best, ask.ring, Placement::Spread))
            {
                best = Some(slot);
            }
        }
        best.map(|slot| self.found(pool, slot.host, ask))
    }

    /// The host that is set aside for this very waiter, once it takes it.
    fn find_held(&self, pool: Ix, ask: &Ask<'_>) -> Option<Found> {
        let host = self.pools[pool].holds.get(&ask.place?)?.host?;
        self.fits(pool, host, ask).then(|| self.found(pool, host, ask))
    }

    /// Whether this one host takes it. A host held for the asker counts as free.
    pub(super) fn fits(&self, pool: Ix, host: Ix, ask: &Ask<'_>) -> bool {
        self.host_filter(pool, host, ask).is_none()
    }

    /// The one reason why this host does not take it.
    pub(super) fn host_filter(&self, pool: Ix, host: Ix, ask: &Ask<'_>) -> Option<HostFilter> {
        let mut facts = self.facts(host);
        facts.tried = ask.tried.contains(&host);
        facts.held = facts.held && !self.held_for(pool, host, ask.place);
        filter(&facts, &self.request(pool, ask))
    }

    /// Whether a waiter may have a held host: it is held for it, or for one that stands behind it.
    fn held_for(&self, pool: Ix, host: Ix, place: Option<Place>) -> bool {
        let Some(place) = place else { return false };
        let mut holds = self.pools[pool].holds.values();
        holds.all(|hold| hold.host != Some(host) || place <= hold.place)
    }

    fn stops(&self, host: Ix, request: &Request<'_>, ask: &Ask<'_>) -> Option<HostFilter> {
        let mut facts = self.facts(host);
        facts.tried = ask.tried.contains(&host);
        residual(&facts, request)
    }

    pub(super) fn found(&self, pool: Ix, host: Ix, ask: &Ask<'_>) -> Found {
        let rule = &self.pools[pool].row.settings.reserve;
        let charge = admission_charge(self.regime(host), rule, &ask.shape);
        Found { pool, host, charge }
    }

    /// Counts hosts per filter over all eligible pools, from what the partitions keep: the cost
    /// does not grow with the fleet.
    pub(super) fn miss(&self, pools: &[Ix], ask: &Ask<'_>) -> Miss {
        let mut counts = FilterCounts::default();
        let mut full = None;
        for pool in pools {
            if full.is_none()
                && let Some(limit) = self.slot_limit(*pool)
                && self.slots_free(*pool, ask.place) == Some(0)
            {
                full = Some((*pool, self.pools[*pool].held, limit));
            }
            self.count_pool(*pool, ask, &mut counts);
        }
        let code = capacity_code(&counts, full.is_some());
        Miss { counts, full, code }
    }

    fn count_pool(&self, pool: Ix, ask: &Ask<'_>, counts: &mut FilterCounts) {
        let request = self.request(pool, ask);
        let plain = self.plain(pool, ask);
        for partition in &self.pools[pool].partitions {
            let partition = &self.partitions[*partition];
            let ready = u32::try_from(partition.ready.len()).unwrap_or(u32::MAX);
            let out: u32 = partition.out.values().sum();
            if let Some(filter) = unsuited(partition, &request) {
                counts.count_many(filter, ready + out);
                continue;
            }
            let need = self.need_on(pool, partition.key.regime, &ask.shape);
            let mut rest = ready;
            if plain {
                let mut fitting = 0;
                partition.ready.pick(need, ask.ring, Placement::Spread, |_| {
                    fitting += 1;
                    fitting >= COUNTED_MAX
                });
                counts.count_candidates(fitting);
                rest -= fitting;
            } else {
                let mut looked_at = 0;
                partition.ready.pick(need, ask.ring, Placement::Spread, |host| {
                    rest -= 1;
                    looked_at += 1;
                    match self.stops(host, &request, ask) {
                        Some(filter) => counts.count(filter),
                        None => counts.count_candidate(),
                    }
                    looked_at >= COUNTED_MAX
                });
            }
            counts.count_many(HostFilter::Full, rest);
            for (filter, number) in &partition.out {
                if *filter == HostFilter::StartsSaturated {
                    let mut fitting = 0;
                    partition.saturated.pick(need, ask.ring, Placement::Spread, |_| {
                        fitting += 1;
                        fitting >= COUNTED_MAX
                    });
                    counts.count_many(HostFilter::StartsSaturated, fitting);
                    counts.count_many(HostFilter::Full, number - fitting);
                } else {
                    counts.count_many(*filter, *number);
                }
            }
        }
    }

    /// Starts under way on the hosts that would take it but for their bound of starts, and those
    /// bounds, each summed up.
    pub(super) fn starts(&self, pools: &[Ix], ask: &Ask<'_>) -> (u64, u64) {
        let (mut under_way, mut allowed) = (0, 0);
        for pool in pools {
            let request = self.request(*pool, ask);
            for partition in &self.pools[*pool].partitions {
                let partition = &self.partitions[*partition];
                if !suits(partition, &request) {
                    continue;
                }
                let need = self.need_on(*pool, partition.key.regime, &ask.shape);
                let mut looked_at = 0;
                partition.saturated.pick(need, ask.ring, Placement::Spread, |host| {
                    let facts = self.facts(host);
                    under_way += u64::from(facts.starts);
                    allowed += u64::from(facts.starts_limit.unwrap_or_default());
                    looked_at += 1;
                    looked_at >= COUNTED_MAX
                });
            }
        }
        (under_way, allowed)
    }

    /// The largest host known in these pools, and whether any is known.
    pub(super) fn largest_host(&self, pools: &[Ix]) -> Option<plimsoll_types::Mib> {
        pools.iter().filter_map(|pool| self.pools[*pool].largest()).max()
    }
}

fn suits(partition: &super::state::Partition, request: &Request<'_>) -> bool {
    unsuited(partition, request).is_none()
}

/// A class of hosts that cannot run it at all.
fn unsuited(partition: &super::state::Partition, request: &Request<'_>) -> Option<HostFilter> {
    let key = &partition.key;
    // Hosts that have never reported have said neither drivers nor labels: they are unknown, not
    // unsuited.
    if key.drivers.bits() == 0 {
        return None;
    }
    if key.drivers.bits() & request.drivers.bits() == 0 {
        return Some(HostFilter::Driver);
    }
    let carries = |(name, value): (&String, &String)| key.labels.get(name) == Some(value);
    if request.labels.iter().all(carries) { None } else { Some(HostFilter::Labels) }
}
