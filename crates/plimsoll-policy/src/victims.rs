//! Whom a pool pauses so that a waiter gets in (DESIGN 4.8).

use alloc::vec::Vec;

use plimsoll_types::{Counted, Mib, Millis, Preemption, PreemptionMode, Timestamp};

/// What a pool's preemption setting leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VictimRule {
    /// The pool's setting.
    pub preemption: Preemption,
    /// A guest that was brought in by preemption is no victim for this long: evicting it at once
    /// would undo what was just paid for.
    pub protect: Millis,
    /// A waiter does not evict the guest that it made way for before this long: two guests with
    /// one slot between them take turns by the hour, not by the minute.
    pub pair_protect: Millis,
    /// A victim whose pause failed is not picked again for this long.
    pub failed_cooldown: Millis,
}

impl VictimRule {
    /// The rule of a pool with this setting: 10 min of protection, an hour within a pair, 5 min
    /// after a failed pause.
    #[must_use]
    pub const fn new(preemption: Preemption) -> Self {
        Self {
            preemption,
            protect: Millis::from_seconds(600),
            pair_protect: Millis::from_seconds(3600),
            failed_cooldown: Millis::from_seconds(300),
        }
    }
}

/// A running guest of the pool. Others are no candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a, I, H> {
    /// Which.
    pub id: I,
    /// Where it runs.
    pub host: H,
    /// Whether its owner lets it be paused.
    pub preemptible: bool,
    /// Whether a finished pause gives back its slot and memory.
    pub pause_frees: bool,
    /// Higher is more important.
    pub priority: i32,
    /// Its last activity.
    pub last_active_at: Timestamp,
    /// Since when it has run without a break.
    pub running_since: Timestamp,
    /// When it was brought in by preemption, if it was and has not been paused since.
    pub brought_in_at: Option<Timestamp>,
    /// Whether it was this very waiter that made way for it.
    pub displaced_waiter: bool,
    /// When a pause of it last failed.
    pub pause_failed_at: Option<Timestamp>,
    /// Whether its backend woke it without asking, beyond the pool's limit: first in line.
    pub overcommitted: bool,
    /// The memory that its host is charged for it.
    pub charge: Mib,
    /// The counted resources that it holds.
    pub counted: &'a Counted,
}

/// Whether a guest may be paused for the waiter.
#[must_use]
pub fn is_eligible<I, H>(
    candidate: &Candidate<'_, I, H>,
    rule: &VictimRule,
    now: Timestamp,
) -> bool {
    let passed = |since: Timestamp, length: Millis| now >= since + length;
    let preemption = &rule.preemption;
    let by_mode = match preemption.mode {
        PreemptionMode::Off => false,
        PreemptionMode::Idle => {
            // A guest that has just begun to run is not idle, however old its last call is.
            let active = candidate.last_active_at.max(candidate.running_since);
            passed(active, Millis::from_seconds(preemption.idle_seconds))
        }
        PreemptionMode::Lru => {
            passed(candidate.running_since, Millis::from_seconds(preemption.min_run_seconds))
        }
    };
    let protect = if candidate.displaced_waiter { rule.pair_protect } else { rule.protect };
    by_mode
        && candidate.preemptible
        && candidate.pause_frees
        && candidate.brought_in_at.is_none_or(|at| passed(at, protect))
        && candidate.pause_failed_at.is_none_or(|at| passed(at, rule.failed_cooldown))
}

/// The guests that may be paused, best victim first: woken beyond the limit, then least recently
/// active, then lowest priority, then longest running, then by id.
#[must_use]
pub fn in_order<'c, 'a, I: Copy + Ord, H>(
    candidates: &'c [Candidate<'a, I, H>],
    rule: &VictimRule,
    now: Timestamp,
) -> Vec<&'c Candidate<'a, I, H>> {
    let mut eligible: Vec<_> =
        candidates.iter().filter(|candidate| is_eligible(candidate, rule, now)).collect();
    eligible.sort_unstable_by_key(|candidate| {
        (
            !candidate.overcommitted,
            candidate.last_active_at,
            candidate.priority,
            candidate.running_since,
            candidate.id,
        )
    });
    eligible
}

/// What the waiter lacks on one host that could take it. A pinned resume has one such host, a
/// create as many as would fit it when emptier; each is given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall<'a, H> {
    /// Which host.
    pub host: H,
    /// Memory short.
    pub memory: Mib,
    /// Counted resources short, by name.
    pub counted: &'a Counted,
}

impl<H> Shortfall<'_, H> {
    fn is_nothing(&self) -> bool {
        self.memory == Mib::ZERO && self.counted.values().all(|short| *short == 0)
    }
}

/// The victims that together let the waiter in, in the order in which to pause them; `None` when
/// no set would.
///
/// Nothing is paused for a waiter that would not get in: a pause that frees too little costs its
/// guest and helps nobody. Where only a slot is short, any one guest of the pool will do. Where a
/// host is short of memory, guests of that host are taken in order until it suffices. Of several
/// hosts the one that needs the fewest victims is chosen, then the one whose first victim is best.
/// No victim is one without which the others would do.
///
/// The caller pauses them one after the other (I12), and holds for the waiter what each frees.
#[must_use]
pub fn sufficient_set<I: Copy + Ord, H: Copy + Ord>(
    ordered: &[&Candidate<'_, I, H>],
    slot_short: bool,
    shortfalls: &[Shortfall<'_, H>],
) -> Option<Vec<I>> {
    if shortfalls.iter().any(Shortfall::is_nothing) {
        return if slot_short {
            ordered.first().map(|victim| Vec::from([victim.id]))
        } else {
            Some(Vec::new())
        };
    }
    shortfalls
        .iter()
        .filter_map(|shortfall| on_host(ordered, shortfall))
        .min_by_key(|(first, victims)| (victims.len(), *first))
        .map(|(_, victims)| victims)
}

/// The victims that fill one host's shortfall, with the place of the first in the order.
fn on_host<I: Copy, H: Eq>(
    ordered: &[&Candidate<'_, I, H>],
    shortfall: &Shortfall<'_, H>,
) -> Option<(usize, Vec<I>)> {
    let there: Vec<usize> =
        (0..ordered.len()).filter(|place| ordered[*place].host == shortfall.host).collect();
    if !fills(ordered, &there, shortfall) {
        return None;
    }
    // More victims never fill less, so the shortest sufficient prefix is found by halving.
    let (mut short, mut enough) = (0, there.len());
    while short < enough {
        let middle = short.midpoint(enough);
        if fills(ordered, &there[..middle], shortfall) {
            enough = middle;
        } else {
            short = middle + 1;
        }
    }
    let mut taken = there;
    taken.truncate(enough);
    prune(ordered, &mut taken, shortfall);
    let victims = taken.iter().map(|place| ordered[*place].id).collect();
    taken.first().map(|first| (*first, victims))
}

/// Drops what is not needed, the worst victims first. The last one taken is: without it the
/// others did not suffice.
fn prune<I, H>(
    ordered: &[&Candidate<'_, I, H>],
    taken: &mut Vec<usize>,
    shortfall: &Shortfall<'_, H>,
) {
    for at in (0..taken.len().saturating_sub(1)).rev() {
        let place = taken.remove(at);
        if !fills(ordered, taken, shortfall) {
            taken.insert(at, place);
        }
    }
}

fn fills<I, H>(
    ordered: &[&Candidate<'_, I, H>],
    taken: &[usize],
    shortfall: &Shortfall<'_, H>,
) -> bool {
    let sum = |of: &dyn Fn(&Candidate<'_, I, H>) -> u64| {
        taken.iter().fold(0_u64, |sum, place| sum.saturating_add(of(ordered[*place])))
    };
    sum(&|victim| victim.charge.0) >= shortfall.memory.0
        && shortfall.counted.iter().all(|(name, short)| {
            sum(&|victim| victim.counted.get(name).copied().unwrap_or(0)) >= *short
        })
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::Candidate as Guest;
    use super::*;

    static NOTHING: Counted = Counted::new();
    const NOW: Timestamp = Timestamp(10_000_000);

    fn rule(mode: PreemptionMode) -> VictimRule {
        VictimRule::new(Preemption { mode, ..Preemption::default() })
    }

    fn before(seconds: i64) -> Timestamp {
        Timestamp(NOW.0 - seconds * 1000)
    }

    fn guest(id: u32) -> Candidate<'static, u32, u32> {
        Candidate {
            id,
            host: 1,
            preemptible: true,
            pause_frees: true,
            priority: 0,
            last_active_at: before(100),
            running_since: before(1000),
            brought_in_at: None,
            displaced_waiter: false,
            pause_failed_at: None,
            overcommitted: false,
            charge: Mib(1000),
            counted: &NOTHING,
        }
    }

    fn ids(candidates: &[Candidate<'_, u32, u32>], mode: PreemptionMode) -> Vec<u32> {
        in_order(candidates, &rule(mode), NOW).iter().map(|candidate| candidate.id).collect()
    }

    /// Public failure P2.
    #[test]
    fn the_order_is_least_recently_active_then_least_important_then_longest_running() {
        let guests = [
            Guest { last_active_at: before(70), running_since: before(5000), ..guest(1) },
            Guest { last_active_at: before(300), priority: 9, ..guest(2) },
            Guest { last_active_at: before(200), priority: 1, ..guest(3) },
            Guest { last_active_at: before(200), ..guest(4) },
            Guest { last_active_at: before(200), running_since: before(2000), ..guest(5) },
            Guest { overcommitted: true, last_active_at: before(61), ..guest(6) },
        ];
        assert_eq!(ids(&guests, PreemptionMode::Idle), [6, 2, 5, 4, 3, 1]);
    }

    #[test]
    fn mode_idle_takes_nobody_who_is_at_work() {
        let busy = Guest { last_active_at: before(59), ..guest(1) };
        let idle = Guest { last_active_at: before(60), ..guest(2) };
        // Its last call is old, but it has only just been resumed.
        let resumed = Guest { running_since: before(10), ..guest(3) };
        assert_eq!(ids(&[busy, idle, resumed], PreemptionMode::Idle), [2]);
        assert_eq!(ids(&[busy, idle, resumed], PreemptionMode::Off), []);
    }

    #[test]
    fn mode_lru_takes_the_busy_too_once_they_have_run_long_enough() {
        let busy = Guest { last_active_at: NOW, running_since: before(600), ..guest(1) };
        let young = Guest { running_since: before(599), ..guest(2) };
        assert_eq!(ids(&[busy, young], PreemptionMode::Lru), [1]);
    }

    #[test]
    fn nobody_is_paused_who_must_not_be_or_for_nothing() {
        let kept = Guest { preemptible: false, ..guest(1) };
        let frozen = Guest { pause_frees: false, ..guest(2) };
        let failed = Guest { pause_failed_at: Some(before(299)), ..guest(3) };
        let retried = Guest { pause_failed_at: Some(before(300)), ..guest(4) };
        for mode in [PreemptionMode::Idle, PreemptionMode::Lru] {
            assert_eq!(ids(&[kept, frozen, failed, retried], mode), [4]);
        }
    }

    #[test]
    fn two_guests_with_one_slot_take_turns_by_the_hour() {
        let brought_in = |seconds| Guest { brought_in_at: Some(before(seconds)), ..guest(1) };
        let old = |guest| Guest { running_since: before(9000), ..guest };
        assert_eq!(ids(&[old(brought_in(599))], PreemptionMode::Lru), []);
        assert_eq!(ids(&[old(brought_in(600))], PreemptionMode::Lru), [1]);
        let pair = |seconds| Guest { displaced_waiter: true, ..old(brought_in(seconds)) };
        assert_eq!(ids(&[pair(3599)], PreemptionMode::Idle), []);
        assert_eq!(ids(&[pair(3600)], PreemptionMode::Idle), [1]);
    }

    fn short(host: u32, memory: u64) -> Shortfall<'static, u32> {
        Shortfall { host, memory: Mib(memory), counted: &NOTHING }
    }

    fn set(
        candidates: &[Candidate<'_, u32, u32>],
        slot_short: bool,
        shortfalls: &[Shortfall<'_, u32>],
    ) -> Option<Vec<u32>> {
        let ordered = in_order(candidates, &rule(PreemptionMode::Idle), NOW);
        sufficient_set(&ordered, slot_short, shortfalls)
    }

    #[test]
    fn a_slot_alone_takes_the_best_victim_of_the_pool() {
        let guests = [Guest { last_active_at: before(200), host: 2, ..guest(1) }, guest(2)];
        assert_eq!(set(&guests, true, &[short(1, 0)]), Some(Vec::from([1])));
        assert_eq!(set(&[], true, &[short(1, 0)]), None);
        assert_eq!(set(&guests, false, &[short(1, 0)]), Some(Vec::new()));
    }

    #[test]
    fn nothing_is_paused_that_would_not_suffice() {
        let guests = [guest(1), guest(2)];
        assert_eq!(set(&guests, true, &[short(1, 2001)]), None);
        assert_eq!(set(&guests, true, &[short(1, 2000)]), Some(Vec::from([1, 2])));
        assert_eq!(set(&guests, true, &[short(7, 1)]), None, "no guest on that host");
        assert_eq!(set(&guests, true, &[]), None, "no host would take it");
    }

    #[test]
    fn the_host_with_the_fewest_victims_is_chosen() {
        let guests = [
            Guest { last_active_at: before(900), ..guest(1) },
            Guest { last_active_at: before(800), ..guest(2) },
            Guest { host: 2, charge: Mib(4000), ..guest(3) },
        ];
        let both = [short(1, 1500), short(2, 1500)];
        assert_eq!(set(&guests, true, &both), Some(Vec::from([3])));
        // With as many on each, the better first victim decides.
        let both = [short(2, 900), short(1, 900)];
        assert_eq!(set(&guests, true, &both), Some(Vec::from([1])));
    }

    #[test]
    fn a_small_victim_is_spared_when_the_next_one_frees_enough_alone() {
        let guests = [
            Guest { last_active_at: before(900), charge: Mib(100), ..guest(1) },
            Guest { charge: Mib(4000), ..guest(2) },
        ];
        assert_eq!(set(&guests, true, &[short(1, 3000)]), Some(Vec::from([2])));
    }

    #[test]
    fn counted_resources_are_freed_like_memory() {
        let gpus = |count| Counted::from([("gpus".to_string(), count)]);
        let (one, two) = (gpus(1), gpus(2));
        let guests = [
            Guest { last_active_at: before(900), ..guest(1) },
            Guest { counted: &one, ..guest(2) },
            Guest { counted: &one, ..guest(3) },
        ];
        let short = Shortfall { host: 1, memory: Mib::ZERO, counted: &two };
        assert_eq!(set(&guests, true, &[short]), Some(Vec::from([2, 3])));
        assert_eq!(set(&guests[..2], true, &[short]), None);
    }

    proptest! {
        #[test]
        fn a_set_suffices_and_none_of_it_is_spare(
            guests in vec((0_u32..3, 0_u64..5, 60_i64..300, 0_u64..2), 0..10),
            shorts in btree_map(0_u32..4, (0_u64..12, 0_u64..3), 0..4),
            slot_short: bool,
        ) {
            let counted: Vec<_> = guests
                .iter()
                .map(|guest| Counted::from([("gpus".to_string(), guest.3)]))
                .collect();
            let candidates: Vec<_> = guests
                .iter()
                .enumerate()
                .map(|(id, (host, charge, idle, _))| Candidate {
                    host: *host,
                    charge: Mib(*charge),
                    last_active_at: before(*idle),
                    counted: &counted[id],
                    ..guest(id as u32)
                })
                .collect();
            let shorts: Vec<_> =
                shorts.into_iter().map(|(host, short)| (host, short.0, short.1)).collect();
            let lacking: Vec<_> =
                shorts.iter().map(|short| Counted::from([("gpus".to_string(), short.2)])).collect();
            let shortfalls: Vec<_> = shorts
                .iter()
                .zip(&lacking)
                .map(|((host, memory, _), counted)| Shortfall {
                    host: *host,
                    memory: Mib(*memory),
                    counted,
                })
                .collect();
            // In words of its own: does this choice of guests let the waiter in?
            let lets_in = |chosen: &dyn Fn(usize) -> bool| {
                let any = (0..guests.len()).any(chosen);
                (any || !slot_short)
                    && shorts.iter().any(|(host, memory, gpus)| {
                        let on_host = |id: &usize| chosen(*id) && guests[*id].0 == *host;
                        let freed: u64 =
                            (0..guests.len()).filter(on_host).map(|id| guests[id].1).sum();
                        let freed_gpus: u64 =
                            (0..guests.len()).filter(on_host).map(|id| guests[id].3).sum();
                        freed >= *memory && freed_gpus >= *gpus
                    })
            };
            match set(&candidates, slot_short, &shortfalls) {
                Some(set) => {
                    prop_assert!(lets_in(&|id| set.contains(&(id as u32))));
                    for spared in &set {
                        let without = |id: usize| set.contains(&(id as u32)) && id as u32 != *spared;
                        prop_assert!(!lets_in(&without), "{spared} of {set:?} is spare");
                    }
                }
                None => prop_assert!(!lets_in(&|_| true)),
            }
        }
    }
}
