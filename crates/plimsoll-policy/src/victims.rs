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
/// create as many as would fit it when emptier.
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
