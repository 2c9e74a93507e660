//! What a guest costs its host's budget, before and after it has been measured (DESIGN 4.1).

use plimsoll_types::{BasisPoints, Mib, Millis, Regime, ReserveRule, Timestamp, Vcpus};

/// The size of a guest, as far as a host's arithmetic cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Configured memory.
    pub memory: Mib,
    /// What the driver needs on top of it.
    pub overhead: Mib,
    /// Virtual CPUs.
    pub vcpus: Vcpus,
    /// Whether losing its memory is an incident: then it is no part of the bet.
    pub stateful: bool,
}

impl Shape {
    /// Configured memory and overhead: what the guest can cost at most.
    #[must_use]
    pub const fn full(&self) -> Mib {
        self.memory.saturating_add(self.overhead)
    }
}

/// `amount` x `ratio`, rounded up and held at the largest value that fits.
const fn share_ceil(amount: Mib, ratio: BasisPoints) -> Mib {
    let product = amount.0 as u128 * ratio.0 as u128;
    let share = product.div_ceil(BasisPoints::ONE.0 as u128);
    if share > u64::MAX as u128 { Mib(u64::MAX) } else { Mib(share as u64) }
}

/// The part of `configured` that is charged until a measurement sees the guest.
///
/// A stateful guest is charged in full. Any other is charged the rule's fraction (rounded up),
/// at least the rule's floor, and never more than it could ever use.
///
/// ```
/// use plimsoll_policy::charge::reserve;
/// use plimsoll_types::{Mib, ReserveRule};
///
/// let rule = ReserveRule::default();
/// assert_eq!(reserve(&rule, Mib(4096), false), Mib(1024));
/// assert_eq!(reserve(&rule, Mib(1024), false), Mib(512));
/// assert_eq!(reserve(&rule, Mib(128), false), Mib(128));
/// assert_eq!(reserve(&rule, Mib(4096), true), Mib(4096));
/// ```
#[must_use]
pub fn reserve(rule: &ReserveRule, configured: Mib, stateful: bool) -> Mib {
    if stateful {
        return configured;
    }
    share_ceil(configured, rule.fraction_bp).max(rule.floor_mib).min(configured)
}

/// What a guest of this shape is charged from its admission to its first measurement.
///
/// Overhead is added in every case: it is spent whatever the guest touches.
#[must_use]
pub fn admission_charge(regime: Regime, rule: &ReserveRule, shape: &Shape) -> Mib {
    if shape.stateful {
        return shape.full();
    }
    match regime {
        Regime::Committed => shape.full(),
        Regime::WorkingSet | Regime::None => {
            reserve(rule, shape.memory, false).saturating_add(shape.overhead)
        }
    }
}

/// What a guest that was frozen in memory is charged once it runs again: its reserve begins anew,
/// and the memory that it already has stays with it.
///
/// `held` is what it holds now, overhead included.
#[must_use]
pub fn thawed_charge(regime: Regime, rule: &ReserveRule, shape: &Shape, held: Mib) -> Mib {
    let reserve = admission_charge(regime, rule, shape);
    if shape.stateful || regime == Regime::Committed { reserve } else { reserve.max(held) }
}

/// What a host must still admit for a guest to be placed on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// Memory does not decide: regime `none` and nothing stateful.
    Anything,
    /// At least this much.
    AtLeast(Mib),
}

impl Need {
    /// Whether a host with this much left to admit takes it.
    #[must_use]
    pub const fn is_met_by(self, admittable: i64) -> bool {
        match self {
            Self::Anything => true,
            Self::AtLeast(need) => admittable >= need.signed(),
        }
    }
}

/// What a host must still admit for a guest of this shape.
///
/// The figure is [`admission_charge`]'s: what is checked is what is then reserved, so a burst
/// cannot pass a large check at the price of a small reservation.
#[must_use]
pub fn need(regime: Regime, rule: &ReserveRule, shape: &Shape) -> Need {
    if regime == Regime::None && !shape.stateful {
        Need::Anything
    } else {
        Need::AtLeast(admission_charge(regime, rule, shape))
    }
}

/// When a reserve gives way to the measurement.
///
/// Page faults come later than measurements: over 148 recorded agent runs the running maximum of
/// resident memory was 0.67 of its final peak after 10 s (median) and 0.99 after 120 s. Dropping
/// the reserve at the first sight of a guest would under-charge it by a third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecayRule {
    /// No sample counts as a measurement before the guest is this old.
    pub settle: Millis,
    /// From then on the reserve decays linearly to nothing over this long.
    pub decay: Millis,
}

impl Default for DecayRule {
    /// 3 s to settle, 120 s to decay.
    fn default() -> Self {
        Self { settle: Millis::from_seconds(3), decay: Millis::from_seconds(120) }
    }
}

/// One guest as its host sees it at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestLoad {
    /// Its size.
    pub shape: Shape,
    /// Resident memory of the guest itself as sampled, its overhead not included: overhead is
    /// added here, once, to whatever the charge rests on. `None` when no sample was taken.
    pub resident: Option<Mib>,
    /// Whether a sample taken after the settle time stands behind `resident` ([`is_measured`]).
    pub measured: bool,
    /// When it started. A resume, a restore and a fork start it anew.
    pub started_at: Timestamp,
}

/// What one guest costs its host's budget now.
///
/// Stateful guests and guests under the committed regime cost their configured memory. Any other
/// costs its reserve until it is measured, and then the larger of its resident memory and what is
/// left of the reserve. A sample from before the settle time can only raise the charge: what a
/// guest holds already is held, and its host takes the same figure out of the system's use.
/// Overhead is added in every case.
///
/// ```
/// use plimsoll_policy::charge::{DecayRule, GuestLoad, Shape, guest_charge};
/// use plimsoll_types::{Mib, Regime, ReserveRule, Timestamp, Vcpus};
///
/// let shape = Shape { memory: Mib(4096), overhead: Mib(16), vcpus: Vcpus(1), stateful: false };
/// let guest =
///     GuestLoad { shape, resident: Some(Mib(310)), measured: true, started_at: Timestamp(0) };
/// let charge_at = |seconds: i64| {
///     let now = Timestamp(seconds * 1000);
///     guest_charge(Regime::WorkingSet, &ReserveRule::default(), &DecayRule::default(), &guest, now)
/// };
/// assert_eq!(charge_at(3), Mib(1024 + 16));
/// assert_eq!(charge_at(63), Mib(512 + 16));
/// assert_eq!(charge_at(123), Mib(310 + 16));
/// ```
#[must_use]
pub fn guest_charge(
    regime: Regime,
    rule: &ReserveRule,
    decay: &DecayRule,
    guest: &GuestLoad,
    now: Timestamp,
) -> Mib {
    let shape = &guest.shape;
    if shape.stateful || regime == Regime::Committed {
        return shape.full();
    }
    let whole = reserve(rule, shape.memory, false);
    let left = match guest.resident {
        Some(_) if guest.measured => reserve_left(whole, decay, guest.started_at, now),
        _ => whole,
    };
    guest.resident.unwrap_or(Mib::ZERO).max(left).saturating_add(shape.overhead)
}

/// What is left of a reserve, rounded up: all of it until the guest has settled, nothing once the
/// decay time has passed after that.
#[must_use]
pub fn reserve_left(whole: Mib, decay: &DecayRule, started_at: Timestamp, now: Timestamp) -> Mib {
    let elapsed = now.since(started_at + decay.settle);
    let left = decay.decay.0.saturating_sub(elapsed.0);
    if left == 0 {
        return Mib::ZERO;
    }
    // `left` is at most `decay`, so the share is at most `whole` and fits.
    let share = (u128::from(whole.0) * u128::from(left)).div_ceil(u128::from(decay.decay.0));
    Mib(u64::try_from(share).unwrap_or(whole.0))
}

/// Whether a sample taken at `sample_at` counts as a measurement of a guest started at
/// `started_at`.
#[must_use]
pub fn is_measured(sample_at: Timestamp, started_at: Timestamp, decay: &DecayRule) -> bool {
    sample_at >= started_at + decay.settle
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::{admittable, budget, default_headroom};

    const REGIMES: [Regime; 3] = [Regime::None, Regime::Committed, Regime::WorkingSet];

    prop_compose! {
        fn rules()(floor in 0_u64..4096, fraction in 0_u64..12_000) -> ReserveRule {
            ReserveRule {
                floor_mib: Mib(floor),
                fraction_bp: BasisPoints(fraction),
                ..ReserveRule::default()
            }
        }
    }

    prop_compose! {
        fn shapes()(
            memory in 1_u64..65_536,
            overhead in 0_u64..256,
            stateful in any::<bool>(),
        ) -> Shape {
            Shape { memory: Mib(memory), overhead: Mib(overhead), vcpus: Vcpus(1), stateful }
        }
    }

    fn stateless(memory: u64) -> Shape {
        Shape { memory: Mib(memory), overhead: Mib::ZERO, vcpus: Vcpus(1), stateful: false }
    }

    /// Admits one shape again and again, with no measurement in between, as a burst does.
    fn burst(regime: Regime, shape: &Shape, mut free: i64) -> u32 {
        let rule = ReserveRule::default();
        let mut admitted = 0;
        while admitted < 1000 && need(regime, &rule, shape).is_met_by(free) {
            free -= admission_charge(regime, &rule, shape).signed();
            admitted += 1;
        }
        admitted
    }

    #[test]
    fn a_committed_host_admits_two_guests_of_4_gib_into_8_and_not_five() {
        assert_eq!(burst(Regime::Committed, &stateless(4096), 8192), 2);
    }

    #[test]
    fn twenty_creates_at_once_see_each_other_s_reserves() {
        assert_eq!(burst(Regime::WorkingSet, &stateless(4096), 8192), 8);
    }

    #[test]
    fn overhead_is_part_of_every_charge() {
        let shape = Shape { overhead: Mib(100), ..stateless(512) };
        // 512 alone would fit twenty times into 10 GiB; 612 fits sixteen times.
        assert_eq!(burst(Regime::WorkingSet, &shape, 10_240), 16);
        assert_eq!(burst(Regime::Committed, &shape, 10_240), 16);
    }

    #[test]
    fn regime_none_fits_only_what_is_stateful() {
        let rule = ReserveRule::default();
        assert_eq!(need(Regime::None, &rule, &stateless(4096)), Need::Anything);
        assert!(Need::Anything.is_met_by(i64::MIN));
        let database = Shape { stateful: true, ..stateless(4096) };
        assert_eq!(need(Regime::None, &rule, &database), Need::AtLeast(Mib(4096)));
    }

    #[test]
    fn a_32_gib_host_holds_seven_promised_guests_of_4_gib_and_thirty_measured_ones() {
        let physical = Mib(32 * 1024);
        let free = admittable(budget(physical, default_headroom(physical), Mib::ZERO), Mib::ZERO);
        assert_eq!(burst(Regime::Committed, &stateless(4096), free), 7);
        assert_eq!(burst(Regime::WorkingSet, &stateless(4096), free), 30);
        // Without a headroom band it is the eight that a brave operator gets.
        let brave = admittable(budget(physical, Mib::ZERO, Mib::ZERO), Mib::ZERO);
        assert_eq!(burst(Regime::Committed, &stateless(4096), brave), 8);
    }

    #[test]
    fn a_quarter_rounds_up() {
        let rule = ReserveRule { floor_mib: Mib::ZERO, ..ReserveRule::default() };
        assert_eq!(reserve(&rule, Mib(4097), false), Mib(1025));
        assert_eq!(reserve(&rule, Mib(1), false), Mib(1));
    }

    #[test]
    fn nothing_overflows_at_the_edge_of_64_bits() {
        let rule = ReserveRule { fraction_bp: BasisPoints(u64::MAX), ..ReserveRule::default() };
        assert_eq!(reserve(&rule, Mib(u64::MAX), false), Mib(u64::MAX));
        let shape = Shape { overhead: Mib(u64::MAX), ..stateless(u64::MAX) };
        assert_eq!(admission_charge(Regime::Committed, &rule, &shape), Mib(u64::MAX));
        let decay = DecayRule { settle: Millis(u64::MAX), decay: Millis(u64::MAX) };
        let left = reserve_left(Mib(u64::MAX), &decay, Timestamp(i64::MAX), Timestamp(i64::MAX));
        assert_eq!(left, Mib(u64::MAX));
    }

    #[test]
    fn no_decay_time_drops_the_reserve_at_the_first_measurement() {
        let decay = DecayRule { settle: Millis(3000), decay: Millis::ZERO };
        assert_eq!(reserve_left(Mib(1024), &decay, Timestamp(0), Timestamp(3000)), Mib::ZERO);
    }

    #[test]
    fn a_sample_counts_once_the_guest_has_settled() {
        let decay = DecayRule::default();
        assert!(!is_measured(Timestamp(12_999), Timestamp(10_000), &decay));
        assert!(is_measured(Timestamp(13_000), Timestamp(10_000), &decay));
        // A sample from before a resume says nothing about the guest that was resumed.
        assert!(!is_measured(Timestamp(9_000), Timestamp(10_000), &decay));
    }

    #[test]
    fn what_was_never_sampled_is_charged_its_reserve_whatever_the_flag_says() {
        let guest = GuestLoad {
            shape: stateless(4096),
            resident: None,
            measured: true,
            started_at: Timestamp(0),
        };
        let (rule, decay) = (ReserveRule::default(), DecayRule::default());
        let charge = |measured, resident| {
            let guest = GuestLoad { measured, resident, ..guest };
            guest_charge(Regime::WorkingSet, &rule, &decay, &guest, Timestamp(1_000_000))
        };
        assert_eq!(charge(true, None), Mib(1024));
        // Two hundred milliseconds old, it measures near zero: that is no measurement.
        assert_eq!(charge(false, Some(Mib(3))), Mib(1024));
        // What it holds already, it holds.
        assert_eq!(charge(false, Some(Mib(1500))), Mib(1500));
    }

    proptest! {
        #[test]
        fn a_reserve_is_capped_at_configured_and_kept_up_by_the_floor(
            rule in rules(), configured in 0_u64..1_000_000,
        ) {
            let configured = Mib(configured);
            let reserve = super::reserve(&rule, configured, false);
            prop_assert!(reserve <= configured);
            prop_assert!(reserve >= rule.floor_mib.min(configured));
            let fraction = configured.0 * rule.fraction_bp.0;
            prop_assert!(reserve == configured || reserve.0 * 10_000 >= fraction);
            if reserve > rule.floor_mib && reserve < configured {
                prop_assert!((reserve.0 - 1) * 10_000 < fraction, "rounded up by less than one");
            }
            prop_assert_eq!(super::reserve(&rule, configured, true), configured);
        }

        #[test]
        fn a_larger_guest_never_reserves_less(
            rule in rules(), a in 0_u64..1_000_000, b in 0_u64..1_000_000,
        ) {
            let (small, large) = (Mib(a.min(b)), Mib(a.max(b)));
            prop_assert!(reserve(&rule, small, false) <= reserve(&rule, large, false));
        }

        #[test]
        fn what_is_checked_is_what_is_reserved(rule in rules(), shape in shapes()) {
            for regime in REGIMES {
                match need(regime, &rule, &shape) {
                    Need::Anything => {
                        prop_assert!(regime == Regime::None && !shape.stateful);
                    }
                    Need::AtLeast(need) => {
                        prop_assert_eq!(need, admission_charge(regime, &rule, &shape));
                    }
                }
            }
        }

        #[test]
        fn a_burst_never_exceeds_the_budget(
            rule in rules(), shape in shapes(), free in 0_i64..200_000,
        ) {
            for regime in [Regime::Committed, Regime::WorkingSet] {
                let charge = admission_charge(regime, &rule, &shape).signed();
                let mut left = free;
                for _ in 0..100 {
                    if need(regime, &rule, &shape).is_met_by(left) {
                        left -= charge;
                    }
                }
                prop_assert!(left >= 0);
                prop_assert!(charge == 0 || left < charge || free - left == 100 * charge);
            }
        }

        #[test]
        fn a_charge_falls_with_time_to_the_measurement_and_never_below(
            rule in rules(),
            shape in shapes(),
            resident in 0_u64..70_000,
            early in 0_i64..200_000,
            later in 0_i64..200_000,
        ) {
            let decay = DecayRule::default();
            let guest = GuestLoad {
                shape,
                resident: Some(Mib(resident)),
                measured: true,
                started_at: Timestamp(0),
            };
            for regime in REGIMES {
                let at = |now| guest_charge(regime, &rule, &decay, &guest, Timestamp(now));
                let first = at(early);
                let second = at(early + later);
                prop_assert!(second <= first);
                if shape.stateful || regime == Regime::Committed {
                    prop_assert_eq!(first, shape.full());
                } else {
                    prop_assert!(second.0 >= resident + shape.overhead.0);
                    // The hand-over is seamless: at the settle time the charge is no less than
                    // what the admission reserved.
                    prop_assert!(at(3000) >= admission_charge(regime, &rule, &shape));
                    prop_assert_eq!(at(123_000).0, resident + shape.overhead.0);
                    let young = GuestLoad { measured: false, ..guest };
                    let young = guest_charge(regime, &rule, &decay, &young, Timestamp(early));
                    prop_assert!(young >= first);
                }
            }
        }

        #[test]
        fn a_reserve_decays_in_a_straight_line(
            whole in 0_u64..1_000_000, decay in 1_u64..1_000_000, elapsed in 0_u64..2_000_000,
        ) {
            let rule = DecayRule { settle: Millis(500), decay: Millis(decay) };
            let now = Timestamp(500) + Millis(elapsed);
            let left = reserve_left(Mib(whole), &rule, Timestamp(0), now).0;
            let exact = whole * decay.saturating_sub(elapsed);
            prop_assert!(left * decay >= exact);
            prop_assert!(left == 0 || (left - 1) * decay < exact);
        }
    }
}
