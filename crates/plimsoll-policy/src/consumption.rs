//! Use of a period: what it is summed in, what limits it, and who has used most of it.

use alloc::vec::Vec;

use plimsoll_types::{BasisPoints, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ladder::used_share;
use crate::usage::{MIB_MILLIS_PER_GIB_HOUR, gib_hours, split_hours};

/// Use of a period or an hour, in the units in which it is summed without rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPU in core-milliseconds.
    pub cpu_millis: u64,
    /// Charged memory in MiB-milliseconds.
    pub charged_mib_millis: u64,
    /// Resident memory in MiB-milliseconds.
    pub resident_mib_millis: u64,
    /// Bytes sent out.
    pub egress_bytes: u64,
}

impl Amounts {
    /// The sum, held at the largest numbers that fit.
    #[must_use]
    pub const fn plus(self, more: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_add(more.cpu_millis),
            charged_mib_millis: self.charged_mib_millis.saturating_add(more.charged_mib_millis),
            resident_mib_millis: self.resident_mib_millis.saturating_add(more.resident_mib_millis),
            egress_bytes: self.egress_bytes.saturating_add(more.egress_bytes),
        }
    }

    /// Whether nothing was used.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Whole CPU-seconds, rounded down.
    #[must_use]
    pub const fn cpu_seconds(&self) -> u64 {
        self.cpu_millis / 1000
    }

    /// The memory that is billed, in MiB-milliseconds: what the host's budget was charged.
    ///
    /// Charged and not resident memory, because it is what nobody else could have meanwhile; it
    /// is known from the first moment, before any sample; and a gap in the reports leaves no gap
    /// in it. For a stateless guest that has settled the two are the same.
    #[must_use]
    pub const fn billed_mib_millis(&self) -> u64 {
        self.charged_mib_millis
    }

    /// Whole GiB-hours of billed memory, rounded down.
    #[must_use]
    pub const fn gib_hours(&self) -> u64 {
        gib_hours(self.billed_mib_millis())
    }

    /// Thousandths of GiB-hours of billed memory, rounded down: one guest rarely fills whole ones.
    #[must_use]
    pub fn gib_hours_thousandths(&self) -> u64 {
        let thousandths = u128::from(self.billed_mib_millis()) * 1000;
        let whole = thousandths / u128::from(MIB_MILLIS_PER_GIB_HOUR);
        u64::try_from(whole).unwrap_or(u64::MAX)
    }

    /// The same amounts over the hours between two instants, each split as [`split_hours`] does.
    #[must_use]
    pub fn split(&self, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, Self)> {
        let mut parts: Vec<(Timestamp, Self)> = Vec::new();
        let mut put = |amount, one: fn(u64) -> Self| {
            for (hour, part) in split_hours(amount, from, to) {
                let place = parts.partition_point(|(at, _)| *at < hour);
                match parts.get_mut(place) {
                    Some((at, sum)) if *at == hour => *sum = sum.plus(one(part)),
                    _ => parts.insert(place, (hour, one(part))),
                }
            }
        };
        put(self.cpu_millis, |cpu_millis| Self { cpu_millis, ..Self::default() });
        put(self.charged_mib_millis, |charged_mib_millis| Self {
            charged_mib_millis,
            ..Self::default()
        });
        put(self.resident_mib_millis, |resident_mib_millis| Self {
            resident_mib_millis,
            ..Self::default()
        });
        put(self.egress_bytes, |egress_bytes| Self { egress_bytes, ..Self::default() });
        parts
    }
}

/// Those who have used most, so many for each counter: a bounded answer to "which of my sandboxes
/// is the problem".
///
/// Whoever is seen is seen with everything it has used in the period. Such a sum only grows, so one
/// that was pushed out comes back as soon as it is seen with enough, and the places are exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top<K> {
    most: [Vec<(K, Amounts)>; 3],
}

impl<K> Default for Top<K> {
    fn default() -> Self {
        Self { most: [Vec::new(), Vec::new(), Vec::new()] }
    }
}

/// Places for each counter: more than these nobody looks through at night.
pub const TOP_PLACES: usize = 8;

/// What each counter of [`ConsumptionLimits::consumed`] ranks by.
const RANKED_BY: [fn(&Amounts) -> u64; 3] =
    [|used| used.cpu_millis, Amounts::billed_mib_millis, |used| used.egress_bytes];

impl<K: Copy + Ord> Top<K> {
    /// Takes what one has used in the period so far.
    pub fn see(&mut self, who: K, used: Amounts) {
        for (places, rank) in self.most.iter_mut().zip(RANKED_BY) {
            if let Some((_, known)) = places.iter_mut().find(|(known, _)| *known == who) {
                *known = used;
            } else if rank(&used) == 0 {
                continue;
            } else if places.len() < TOP_PLACES {
                places.push((who, used));
            } else if let Some(least) = places.iter_mut().min_by_key(|(_, known)| rank(known))
                && rank(&least.1) < rank(&used)
            {
                *least = (who, used);
            }
        }
    }

    /// Those who have used most of the counter of this name, most first; of equals the lower key.
    /// An unknown name ranks by CPU.
    #[must_use]
    pub fn by(&self, counter: &str) -> Vec<(K, Amounts)> {
        let names = ConsumptionLimits::default().consumed(&Amounts::default()).map(|one| one.name);
        let place = names.iter().position(|name| *name == counter).unwrap_or(0);
        let rank = RANKED_BY[place];
        let mut places: Vec<(K, Amounts)> = self.most.iter().flatten().copied().collect();
        places.sort_by(|a, b| rank(&b.1).cmp(&rank(&a.1)).then(a.0.cmp(&b.0)));
        places.dedup_by_key(|(who, _)| *who);
        places.truncate(TOP_PLACES);
        places
    }
}

/// Limits on what is used up in a period; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsumptionLimits {
    /// CPU-seconds.
    pub cpu_seconds: Option<u64>,
    /// GiB-hours of memory.
    pub gib_hours: Option<u64>,
    /// Bytes sent out.
    pub egress_bytes: Option<u64>,
}

/// One consumption counter beside its limit, in the units that people are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// The word used in bodies.
    pub name: &'static str,
    /// Used, rounded down.
    pub used: u64,
    /// Allowed; `None` is unlimited.
    pub limit: Option<u64>,
    /// The exact share that is used.
    pub share: BasisPoints,
}

impl ConsumptionLimits {
    /// Whether nothing is limited.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.cpu_seconds.is_none() && self.gib_hours.is_none() && self.egress_bytes.is_none()
    }

    /// Whether any counter allows more than `before` did.
    #[must_use]
    pub fn allows_more_than(&self, before: &Self) -> bool {
        let more = |now: Option<u64>, before: Option<u64>| match (now, before) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(now), Some(before)) => now > before,
        };
        more(self.cpu_seconds, before.cpu_seconds)
            || more(self.gib_hours, before.gib_hours)
            || more(self.egress_bytes, before.egress_bytes)
    }

    /// Every counter beside its limit.
    #[must_use]
    pub fn consumed(&self, used: &Amounts) -> [Consumed; 3] {
        // Shares are taken of the exact sums, so that 80 % of one CPU-second is no rounding error.
        let share = |used: u64, limit: Option<u64>, unit: u64| {
            used_share(used, limit.map(|limit| limit.saturating_mul(unit)))
        };
        let (cpu, memory, egress) = (self.cpu_seconds, self.gib_hours, self.egress_bytes);
        [
            Consumed {
                name: "cpu_seconds",
                used: used.cpu_seconds(),
                limit: cpu,
                share: share(used.cpu_millis, cpu, 1000),
            },
            Consumed {
                name: "gib_hours",
                used: used.gib_hours(),
                limit: memory,
                share: share(used.billed_mib_millis(), memory, MIB_MILLIS_PER_GIB_HOUR),
            },
            Consumed {
                name: "egress_bytes",
                used: used.egress_bytes,
                limit: egress,
                share: share(used.egress_bytes, egress, 1),
            },
        ]
    }

    /// Whether any counter's limit is reached: exactly where [`ConsumptionLimits::tightest`] says
    /// 1.0 or more, without a division. A limit of nothing is reached from the start.
    #[must_use]
    pub const fn is_exhausted(&self, used: &Amounts) -> bool {
        const fn reached(used: u64, limit: Option<u64>, unit: u64) -> bool {
            match limit {
                Some(limit) => used >= limit.saturating_mul(unit),
                None => false,
            }
        }
        reached(used.cpu_millis, self.cpu_seconds, 1000)
            || reached(used.billed_mib_millis(), self.gib_hours, MIB_MILLIS_PER_GIB_HOUR)
            || reached(used.egress_bytes, self.egress_bytes, 1)
    }

    /// The counter of which the largest share is used; of equals the first.
    #[must_use]
    pub fn tightest(&self, used: &Amounts) -> Consumed {
        let [first, rest @ ..] = self.consumed(used);
        rest.into_iter().fold(first, |most, next| if next.share > most.share { next } else { most })
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_tightest_counter_is_the_one_nearest_its_limit() {
        let limits =
            ConsumptionLimits { cpu_seconds: Some(100), gib_hours: Some(10), egress_bytes: None };
        let used = Amounts {
            cpu_millis: 79_999,
            charged_mib_millis: 8 * MIB_MILLIS_PER_GIB_HOUR,
            egress_bytes: u64::MAX,
            ..Amounts::default()
        };
        let tightest = limits.tightest(&used);
        assert_eq!((tightest.name, tightest.used, tightest.limit), ("gib_hours", 8, Some(10)));
        assert_eq!(tightest.share, BasisPoints(8000));
        assert_eq!(limits.consumed(&used)[0].share, BasisPoints(7999));
        let exact = Amounts { cpu_millis: 100_000, ..Amounts::default() };
        assert_eq!(limits.tightest(&exact).share, BasisPoints::ONE);
        let nothing = ConsumptionLimits::default();
        assert!(nothing.is_unlimited());
        assert_eq!(nothing.tightest(&used).share, BasisPoints::ZERO);
    }

    #[test]
    fn a_limit_that_grew_or_went_is_an_upgrade() {
        let limits = |cpu_seconds, gib_hours| ConsumptionLimits {
            cpu_seconds,
            gib_hours,
            egress_bytes: None,
        };
        let plan = limits(Some(10), Some(10));
        assert!(limits(Some(11), Some(10)).allows_more_than(&plan));
        assert!(limits(Some(1), None).allows_more_than(&plan));
        assert!(!plan.allows_more_than(&plan));
        assert!(!limits(Some(9), Some(10)).allows_more_than(&plan));
        assert!(!limits(Some(10), Some(10)).allows_more_than(&limits(None, Some(10))));
    }

    #[test]
    fn amounts_are_split_counter_by_counter() {
        let used = Amounts { cpu_millis: 90, egress_bytes: 1, ..Amounts::default() };
        let parts = used.split(Timestamp(1_800_000), Timestamp(2 * 3_600_000));
        let cpu = |cpu_millis| Amounts { cpu_millis, ..Amounts::default() };
        assert_eq!(
            parts,
            [
                (Timestamp(0), cpu(30)),
                (Timestamp(3_600_000), Amounts { egress_bytes: 1, ..cpu(60) })
            ]
        );
    }

    proptest! {
        #[test]
        fn the_top_is_exactly_those_who_have_used_most(
            seen in vec((0_u32..20, 0_u64..100, 0_u64..100), 0..200),
        ) {
            let mut top = Top::default();
            let mut all: BTreeMap<u32, Amounts> = BTreeMap::new();
            for (who, cpu_millis, charged_mib_millis) in seen {
                let more = Amounts { cpu_millis, charged_mib_millis, ..Amounts::default() };
                let sum = all.entry(who).or_default();
                *sum = sum.plus(more);
                top.see(who, *sum);
            }
            for (name, rank) in [("cpu_seconds", RANKED_BY[0]), ("gib_hours", RANKED_BY[1])] {
                let mut most: Vec<u64> = all.values().map(rank).filter(|used| *used > 0).collect();
                most.sort_unstable_by(|a, b| b.cmp(a));
                most.truncate(TOP_PLACES);
                let kept = top.by(name);
                let ranks: Vec<u64> =
                    kept.iter().map(|(_, used)| rank(used)).take(most.len()).collect();
                prop_assert_eq!(ranks, most);
                for (who, used) in kept {
                    prop_assert!(rank(&all[&who]) >= rank(&used));
                }
            }
        }

        #[test]
        fn exhausted_is_a_share_of_one(
            limits in (proptest::option::of(0_u64..50), proptest::option::of(0_u64..5),
                       proptest::option::of(0_u64..50)),
            used in (0_u64..60_000, 0_u64..6, 0_u64..60), part in -1_i64..=1,
        ) {
            let (cpu_seconds, gib_hours, egress_bytes) = limits;
            let limits = ConsumptionLimits { cpu_seconds, gib_hours, egress_bytes };
            let held = (used.1 * MIB_MILLIS_PER_GIB_HOUR).saturating_add_signed(part);
            let used = Amounts {
                cpu_millis: used.0,
                charged_mib_millis: held,
                egress_bytes: used.2,
                ..Amounts::default()
            };
            let share = limits.tightest(&used).share;
            prop_assert_eq!(limits.is_exhausted(&used), share >= BasisPoints::ONE);
        }
    }
}
