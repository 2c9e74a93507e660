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
