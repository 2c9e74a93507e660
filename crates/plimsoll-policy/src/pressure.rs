//! Memory pressure on one host: when its gate shuts and opens, and who goes first when that is
//! not enough (DESIGN 4.5).
//!
//! Overcommit is a bet. This is what happens when it is lost, chosen here rather than by the
//! kernel's OOM killer, on a signal that leads the collapse.

use core::cmp::Reverse;

use plimsoll_types::{BasisPoints, Mib, Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// One reading of a host's memory pressure. What could not be read is `None`: unknown is neither
/// calm nor pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// PSI memory, some, average over 10 s: the share of time in which at least one task waited.
    pub some_avg10: Option<BasisPoints>,
    /// PSI memory, full, average over 10 s: the share of time in which all tasks waited.
    pub full_avg10: Option<BasisPoints>,
    /// Memory that could be used without swapping.
    pub available: Option<Mib>,
}

/// One set of thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// At or above it is over.
    pub some_avg10: BasisPoints,
    /// At or above it is over.
    pub full_avg10: BasisPoints,
    /// Below it is over.
    pub available: Mib,
}

/// When a host's gate shuts, opens, and when the host acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureRule {
    /// Any one signal over these shuts the gate.
    pub shut: Thresholds,
    /// All signals must stay under these for `hold` before it opens.
    pub open: Thresholds,
    /// How long.
    pub hold: Millis,
    /// Any one signal over these, for `act_hold`, makes the host act on a guest.
    pub act: Thresholds,
    /// How long.
    pub act_hold: Millis,
    /// Quiet after an act, so that its effect shows before the next.
    pub act_quiet: Millis,
}

impl PressureRule {
    /// The rule for a host with this headroom band.
    ///
    /// A host that is full by its own arithmetic has about its headroom available, so half of it
    /// gone means that the bet is being lost. The gate shuts at 10 % some or 5 % full, or below
    /// half the headroom; it opens once 5 %, 2 % and three quarters have held for 15 s. The host
    /// acts at 40 % some or 20 % full, or below a quarter of the headroom, held for 3 s, and then
    /// waits 15 s. (Desktop and server OOM daemons wait for 60 % over 30 s and are quiet for 15 s
    /// after a kill; their task is to save the machine, ours to keep every guest that can be
    /// kept.)
    #[must_use]
    pub const fn for_headroom(headroom: Mib) -> Self {
        Self {
            shut: Thresholds {
                some_avg10: BasisPoints(1000),
                full_avg10: BasisPoints(500),
                available: Mib(headroom.0 / 2),
            },
            open: Thresholds {
                some_avg10: BasisPoints(500),
                full_avg10: BasisPoints(200),
                available: Mib(headroom.0 - headroom.0 / 4),
            },
            hold: Millis::from_seconds(15),
            act: Thresholds {
                some_avg10: BasisPoints(4000),
                full_avg10: BasisPoints(2000),
                available: Mib(headroom.0 / 4),
            },
            act_hold: Millis::from_seconds(3),
            act_quiet: Millis::from_seconds(15),
        }
    }
}

/// Which signals are over their thresholds, or have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Over {
    some: bool,
    full: bool,
    available: bool,
}

impl Over {
    fn of(signals: &Signals, thresholds: &Thresholds) -> Self {
        Self {
            some: signals.some_avg10.is_some_and(|some| some >= thresholds.some_avg10),
            full: signals.full_avg10.is_some_and(|full| full >= thresholds.full_avg10),
            available: signals.available.is_some_and(|left| left < thresholds.available),
        }
    }

    const fn any(self) -> bool {
        self.some || self.full || self.available
    }

    const fn or(self, other: Self) -> Self {
        Self {
            some: self.some || other.some,
            full: self.full || other.full,
            available: self.available || other.available,
        }
    }
}

/// How the gate changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateChange {
    /// It shut.
    Shut,
    /// It opened.
    Opened,
}

/// The gate of one host, with hysteresis so that it does not chatter at the boundary.
///
/// ```
/// use plimsoll_policy::pressure::{Gate, GateChange, PressureRule, Signals};
/// use plimsoll_types::{BasisPoints, Mib, Timestamp};
///
/// let rule = PressureRule::for_headroom(Mib(2048));
/// let some = |bp| Signals { some_avg10: Some(BasisPoints(bp)), ..Signals::default() };
/// let mut gate = Gate::default();
/// assert_eq!(gate.observe(&some(999), &rule, Timestamp(0)), None);
/// assert_eq!(gate.observe(&some(1000), &rule, Timestamp(1000)), Some(GateChange::Shut));
/// assert_eq!(gate.observe(&some(499), &rule, Timestamp(2000)), None);
/// assert_eq!(gate.observe(&some(499), &rule, Timestamp(16_999)), None);
/// assert_eq!(gate.observe(&some(499), &rule, Timestamp(17_000)), Some(GateChange::Opened));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// Signals that were over since it shut; `None` while open. Each of them must be read again
    /// before it opens: a probe that has gone blind does not end the pressure that it saw.
    shut_by: Option<Over>,
    calm_since: Option<Timestamp>,
    act_since: Option<Timestamp>,
    acted_at: Option<Timestamp>,
}

impl Gate {
    /// Whether it is shut.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.shut_by.is_some()
    }

    /// Takes a reading.
    pub fn observe(
        &mut self,
        signals: &Signals,
        rule: &PressureRule,
        now: Timestamp,
    ) -> Option<GateChange> {
        let acting = Over::of(signals, &rule.act).any();
        self.act_since = if acting { Some(self.act_since.unwrap_or(now)) } else { None };

        let over = Over::of(signals, &rule.shut);
        let Some(shut_by) = self.shut_by else {
            if !over.any() {
                return None;
            }
            self.shut_by = Some(over);
            self.calm_since = None;
            return Some(GateChange::Shut);
        };
        let shut_by = shut_by.or(over);
        self.shut_by = Some(shut_by);
        let blind = (shut_by.some && signals.some_avg10.is_none())
            || (shut_by.full && signals.full_avg10.is_none())
            || (shut_by.available && signals.available.is_none());
        if blind || Over::of(signals, &rule.open).any() {
            self.calm_since = None;
            return None;
        }
        let calm_since = *self.calm_since.get_or_insert(now);
        if now < calm_since + rule.hold {
            return None;
        }
        self.shut_by = None;
        self.calm_since = None;
        Some(GateChange::Opened)
    }

    /// Whether the host should act on a guest now: the pressure has stayed at the point of acting
    /// for its time, and the last act has had its own.
    #[must_use]
    pub fn should_act(&self, rule: &PressureRule, now: Timestamp) -> bool {
        let held = self.act_since.is_some_and(|since| now >= since + rule.act_hold);
        let quiet = self.acted_at.is_none_or(|acted| now >= acted + rule.act_quiet);
        held && quiet
    }

    /// Notes that the host has acted.
    pub fn acted(&mut self, now: Timestamp) {
        self.acted_at = Some(now);
    }
}

/// A guest under pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest<I> {
    /// Which.
    pub id: I,
    /// Never touched.
    pub stateful: bool,
    /// May be paused before others.
    pub preemptible: bool,
    /// Has had no activity for a while.
    pub idle: bool,
    /// Is paused already and still holds memory.
    pub frozen: bool,
    /// Whether its pause writes it out and frees its memory.
    pub pause_frees: bool,
    /// Whether a pause of it has failed of late: it is not tried again for a while.
    pub pause_failed: bool,
    /// Higher is more important.
    pub priority: i32,
    /// What it is charged.
    pub charge: Mib,
}

/// What to do with a guest under pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Pause it.
    Pause,
    /// Kill it: its pause would free nothing.
    Kill,
}

impl<I> Guest<I> {
    fn can_pause(&self) -> bool {
        !self.frozen && !self.pause_failed
    }

    /// Whether it is one of those that are paused before anybody is harmed.
    fn yields_first(&self) -> bool {
        self.idle && self.preemptible && self.can_pause()
    }
}

/// The next guest to act on, and how; `None` when nothing may be touched.
///
/// First idle preemptible guests are paused (those whose pause frees memory before those that it
/// only freezes), then stateless guests are paused where that frees memory and killed where it
/// does not. Within both by lowest priority, then preemptible ones, then largest charge, then id.
/// Stateful guests never (I4). Guests that are being paused or ended already must not be among
/// `guests`.
#[must_use]
pub fn next_victim<I: Copy + Ord>(
    guests: impl IntoIterator<Item = Guest<I>>,
) -> Option<(I, Remedy)> {
    let victim = guests.into_iter().filter(|guest| !guest.stateful).min_by_key(|guest| {
        let tier = match (guest.yields_first(), guest.pause_frees) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => 2,
        };
        (tier, guest.priority, !guest.preemptible, Reverse(guest.charge), guest.id)
    })?;
    let pause = victim.yields_first() || (victim.pause_frees && victim.can_pause());
    Some((victim.id, if pause { Remedy::Pause } else { Remedy::Kill }))
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn rule() -> PressureRule {
        PressureRule::for_headroom(Mib(2048))
    }

    fn some(bp: u64) -> Signals {
        Signals { some_avg10: Some(BasisPoints(bp)), ..Signals::default() }
    }

    fn available(mib: u64) -> Signals {
        Signals { available: Some(Mib(mib)), ..Signals::default() }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1000)
    }

    #[test]
    fn any_one_signal_shuts_the_gate() {
        let full = Signals { full_avg10: Some(BasisPoints(500)), ..some(0) };
        for signals in [some(1000), full, available(1023)] {
            let mut gate = Gate::default();
            assert_eq!(gate.observe(&signals, &rule(), at(0)), Some(GateChange::Shut));
            assert!(gate.is_shut());
        }
        let mut gate = Gate::default();
        assert_eq!(gate.observe(&available(1024), &rule(), at(0)), None);
    }

    #[test]
    fn between_the_thresholds_the_gate_stays_as_it_is() {
        let mut gate = Gate::default();
        for second in 0..100 {
            assert_eq!(gate.observe(&some(700), &rule(), at(second)), None);
        }
        gate.observe(&some(1000), &rule(), at(100));
        for second in 101..200 {
            assert_eq!(gate.observe(&some(700), &rule(), at(second)), None);
        }
        assert!(gate.is_shut());
    }

    #[test]
    fn a_flutter_at_the_boundary_does_not_open_it() {
        let mut gate = Gate::default();
        let mut changes = 0;
        for second in 0..600 {
            let signals = some(if second % 14 == 0 { 1000 } else { 0 });
            changes += u32::from(gate.observe(&signals, &rule(), at(second)).is_some());
        }
        assert_eq!(changes, 1);
    }

    #[test]
    fn a_probe_gone_blind_does_not_end_the_pressure_that_it_saw() {
        let mut gate = Gate::default();
        gate.observe(&some(1000), &rule(), at(0));
        for second in 1..100 {
            assert_eq!(gate.observe(&Signals::default(), &rule(), at(second)), None);
            assert_eq!(gate.observe(&available(9000), &rule(), at(second)), None);
        }
        // A host whose kernel has no PSI opens on what it can read.
        let mut gate = Gate::default();
        gate.observe(&available(100), &rule(), at(0));
        gate.observe(&available(9000), &rule(), at(1));
        let change = gate.observe(&available(9000), &rule(), at(16));
        assert_eq!(change, Some(GateChange::Opened));
    }

    #[test]
    fn the_host_acts_when_it_lasts_and_then_waits_for_the_effect() {
        let mut gate = Gate::default();
        let mut acts = Vec::new();
        for second in 0..40 {
            gate.observe(&some(4000), &rule(), at(second));
            if gate.should_act(&rule(), at(second)) {
                gate.acted(at(second));
                acts.push(second);
            }
        }
        assert_eq!(acts, [3, 18, 33]);
        gate.observe(&some(3999), &rule(), at(60));
        assert!(!gate.should_act(&rule(), at(60)));
    }

    fn guest(id: u32) -> Guest<u32> {
        Guest {
            id,
            stateful: false,
            preemptible: true,
            idle: false,
            frozen: false,
            pause_frees: true,
            pause_failed: false,
            priority: 0,
            charge: Mib(1000),
        }
    }

    /// Applies remedies until none is left, and says what was done in order.
    fn drain(mut guests: Vec<Guest<u32>>) -> Vec<(u32, Remedy)> {
        let mut done = Vec::new();
        while let Some((id, remedy)) = next_victim(guests.iter().copied()) {
            done.push((id, remedy));
            let place = guests.iter().position(|guest| guest.id == id).unwrap();
            if remedy == Remedy::Pause && !guests[place].pause_frees {
                guests[place].frozen = true;
            } else {
                guests.remove(place);
            }
            assert!(done.len() < 100, "{done:?}");
        }
        done
    }

    #[test]
    fn idle_preemptible_guests_go_first_then_the_least_important_and_largest() {
        let guests = Vec::from([
            Guest { stateful: true, idle: true, charge: Mib(9000), ..guest(1) },
            Guest { priority: 5, idle: true, ..guest(2) },
            Guest { charge: Mib(4000), ..guest(3) },
            Guest { priority: -1, ..guest(4) },
            Guest { idle: true, preemptible: false, priority: 7, ..guest(5) },
            Guest { idle: true, pause_frees: false, ..guest(6) },
            guest(7),
        ]);
        use Remedy::{Kill, Pause};
        assert_eq!(
            drain(guests),
            [(2, Pause), (6, Pause), (4, Pause), (3, Pause), (6, Kill), (7, Pause), (5, Pause)]
        );
    }

    #[test]
    fn of_two_equally_important_guests_the_one_that_agreed_to_it_goes() {
        let kept = Guest { preemptible: false, charge: Mib(9000), ..guest(1) };
        assert_eq!(next_victim([kept, guest(2)]), Some((2, Remedy::Pause)));
        let unimportant = Guest { priority: -1, ..kept };
        assert_eq!(next_victim([unimportant, guest(2)]), Some((1, Remedy::Pause)));
    }

    #[test]
    fn a_guest_whose_pause_frees_nothing_is_killed() {
        let busy = Guest { pause_frees: false, ..guest(1) };
        assert_eq!(next_victim([busy]), Some((1, Remedy::Kill)));
        let frozen = Guest { frozen: true, idle: true, ..busy };
        assert_eq!(next_victim([frozen]), Some((1, Remedy::Kill)));
        let failed = Guest { idle: true, pause_failed: true, ..guest(1) };
        assert_eq!(next_victim([failed]), Some((1, Remedy::Kill)));
    }

    proptest! {
        #[test]
        fn the_gate_opens_only_after_calm_has_held(
            readings in vec((1_i64..8, proptest::option::of(0_u64..1500)), 1..100),
        ) {
            let mut gate = Gate::default();
            let mut now = 0;
            let mut last_not_calm = 0;
            for (wait, reading) in readings {
                now += wait;
                let calm = reading.is_some_and(|bp| bp < 500);
                if !calm {
                    last_not_calm = now;
                }
                let signals =
                    Signals { some_avg10: reading.map(BasisPoints), ..Signals::default() };
                if gate.observe(&signals, &rule(), at(now)) == Some(GateChange::Opened) {
                    prop_assert!(now - last_not_calm > 15);
                }
                prop_assert!(gate.is_shut() || reading.is_none_or(|bp| bp < 1000));
            }
        }

        /// I4.
        #[test]
        fn stateful_guests_are_never_touched(
            flags in vec((any::<[bool; 6]>(), -2_i32..3, 0_u64..5), 0..12),
        ) {
            let guests: Vec<_> = flags
                .iter()
                .enumerate()
                .map(|(id, ([stateful, preemptible, idle, frozen, pause_frees, failed], priority, charge))| {
                    Guest {
                        id: id as u32,
                        stateful: *stateful,
                        preemptible: *preemptible,
                        idle: *idle,
                        frozen: *frozen,
                        pause_frees: *pause_frees,
                        pause_failed: *failed,
                        priority: *priority,
                        charge: Mib(*charge),
                    }
                })
                .collect();
            let stateless = guests.iter().filter(|guest| !guest.stateful).count();
            let first = next_victim(guests.iter().copied());
            prop_assert_eq!(first.is_some(), stateless > 0);
            // Whoever is killed although it might have been paused: nobody.
            if let Some((id, Remedy::Kill)) = first {
                let guest = guests[id as usize];
                prop_assert!(guest.frozen || guest.pause_failed || !guest.pause_frees);
            }
            let done = drain(guests.clone());
            prop_assert!(done.iter().all(|(id, _)| !guests[*id as usize].stateful));
        }
    }
}
