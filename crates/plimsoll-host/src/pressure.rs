//! Memory pressure: when the gate shuts and opens again, and whom it costs their place before the
//! kernel would choose (DESIGN 4.5).

use core::cmp::Reverse;

use plimsoll_types::{BasisPoints, Driver, Mib, Millis, PauseKind, SandboxId};

use crate::input::Sample;

/// Thresholds of the pressure guard. Each signal has three: calm, shut, act.
///
/// The gate shuts when either signal passes its shut bound and opens when both have been calm for
/// a while, so that it does not chatter at one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureRule {
    /// PSI (some, 10 s average) below which memory is calm.
    pub calm_bp: u32,
    /// PSI from which the gate shuts: a fifth of the time somebody waits for memory.
    pub shut_bp: u32,
    /// PSI from which the host acts.
    pub act_bp: u32,
    /// Share of the machine's memory that is available when memory is calm.
    pub calm_available: BasisPoints,
    /// Available share below which the gate shuts: half of the default headroom band, which guests
    /// within their charges never eat into.
    pub shut_available: BasisPoints,
    /// Available share below which the host acts.
    pub act_available: BasisPoints,
    /// How long both signals must be calm before the gate opens.
    pub calm_for: Millis,
    /// Shortest time between two acts: long enough for the 10 s average to show the first.
    pub act_gap: Millis,
    /// A guest without activity for this long is idle.
    pub idle: Millis,
}

impl Default for PressureRule {
    fn default() -> Self {
        Self {
            calm_bp: 500,
            shut_bp: 2000,
            act_bp: 4000,
            calm_available: BasisPoints(450),
            shut_available: BasisPoints(300),
            act_available: BasisPoints(150),
            calm_for: Millis::from_seconds(30),
            act_gap: Millis::from_seconds(10),
            idle: Millis::from_seconds(60),
        }
    }
}

/// How hard memory is pressed at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PressureLevel {
    /// Below every line.
    Calm,
    /// Between the lines: nothing changes.
    Raised,
    /// The gate has to be shut.
    Shut,
    /// Somebody has to give way.
    Act,
}

impl PressureRule {
    /// The level of the harder pressed of two signals; `None` when neither is known.
    #[must_use]
    pub fn level(
        &self,
        psi_bp: Option<u32>,
        available: Option<(Mib, Mib)>,
    ) -> Option<PressureLevel> {
        let psi = psi_bp.map(|psi| {
            if psi >= self.act_bp {
                PressureLevel::Act
            } else if psi >= self.shut_bp {
                PressureLevel::Shut
            } else if psi >= self.calm_bp {
                PressureLevel::Raised
            } else {
                PressureLevel::Calm
            }
        });
        let memory = available.map(|(available, total)| {
            let below = |share: BasisPoints| {
                u128::from(available.0) * u128::from(BasisPoints::ONE.0)
                    < u128::from(total.0) * u128::from(share.0)
            };
            if below(self.act_available) {
                PressureLevel::Act
            } else if below(self.shut_available) {
                PressureLevel::Shut
            } else if below(self.calm_available) {
                PressureLevel::Raised
            } else {
                PressureLevel::Calm
            }
        });
        psi.max(memory)
    }
}

/// Whether the gate is shut, and since when memory has been calm.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    shut: bool,
    calm_since: Option<Millis>,
    last_act: Option<Millis>,
    figures: String,
}

/// What a sample has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuardChange {
    pub(crate) shut: bool,
    pub(crate) opened: bool,
    /// Whether somebody has to give way now.
    pub(crate) act: bool,
}

impl Guard {
    pub(crate) const fn is_shut(&self) -> bool {
        self.shut
    }

    /// The figures of the last sample, for people.
    pub(crate) fn figures(&self) -> &str {
        &self.figures
    }

    /// The host has acted; `None` when it did what frees nothing, so that the next sample may
    /// bring the next act.
    pub(crate) fn acted(&mut self, uptime: Option<Millis>) {
        self.last_act = uptime;
    }

    pub(crate) fn see(
        &mut self,
        rule: &PressureRule,
        sample: &Sample,
        uptime: Millis,
    ) -> GuardChange {
        let psi = sample.pressure_bp.as_ref().ok().copied();
        let available = match (&sample.memory_available, &sample.memory_total) {
            (Ok(available), Ok(total)) => Some((*available, *total)),
            _ => None,
        };
        let mut change = GuardChange::default();
        // Two signals that cannot be read say nothing about either direction.
        let Some(level) = rule.level(psi, available) else { return change };
        self.figures = figures(psi, available);
        if level == PressureLevel::Calm {
            let since = *self.calm_since.get_or_insert(uptime);
            if self.shut && uptime.0.saturating_sub(since.0) >= rule.calm_for.0 {
                self.shut = false;
                change.opened = true;
            }
        } else {
            self.calm_since = None;
        }
        if level >= PressureLevel::Shut && !self.shut {
            self.shut = true;
            change.shut = true;
        }
        change.act = level == PressureLevel::Act
            && self.last_act.is_none_or(|last| uptime.0.saturating_sub(last.0) >= rule.act_gap.0);
        change
    }
}

fn figures(psi_bp: Option<u32>, available: Option<(Mib, Mib)>) -> String {
    let mut text = String::from("memory pressure:");
    if let Some(psi) = psi_bp {
        text.push_str(&format!(" PSI {}.{:02} %", psi / 100, psi % 100));
    }
    if let Some((available, total)) = available {
        let comma = if psi_bp.is_some() { "," } else { "" };
        text.push_str(&format!("{comma} {available} of {total} available"));
    }
    text
}

/// A guest as the choice of a victim sees it. Stateful guests are never passed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The guest.
    pub id: SandboxId,
    /// What runs it, hence what a pause does.
    pub driver: Driver,
    /// Whether it may be paused before others.
    pub preemptible: bool,
    /// Higher is more important.
    pub priority: i32,
    /// What it is charged.
    pub charge: Mib,
    /// How long it has been without activity.
    pub idle_for: Millis,
    /// Whether it is frozen already: then only a write-out or a kill frees its memory.
    pub frozen: bool,
    /// Whether a pause of it has failed of late.
    pub pause_failed: bool,
}

/// What is done to a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sacrifice {
    /// It is paused, and can go on later.
    Pause(PauseKind),
    /// Its process is ended.
    Kill,
}

/// Who gives way first, and how.
///
/// First an idle, preemptible guest is paused. When there is none, any guest is paused where that
/// frees its memory, and killed otherwise. Both times the lowest priority goes first, then those
/// that agreed to it, then the largest charge, then the longest idle.
///
/// ```
/// use plimsoll_host::{Candidate, PressureRule, Sacrifice, choose_victim};
/// use plimsoll_types::{Driver, Mib, Millis, PauseKind, SandboxId};
///
/// let busy = Candidate {
///     id: SandboxId(1),
///     driver: Driver::Process,
///     preemptible: true,
///     priority: 0,
///     charge: Mib(900),
///     idle_for: Millis(0),
///     frozen: false,
///     pause_failed: false,
/// };
/// let idle = Candidate { id: SandboxId(2), charge: Mib(40), idle_for: Millis(90_000), ..busy };
/// let rule = PressureRule::default();
/// assert_eq!(
///     choose_victim(&rule, [busy, idle]),
///     Some((SandboxId(2), Sacrifice::Pause(PauseKind::Keep)))
/// );
/// assert_eq!(choose_victim(&rule, [busy]), Some((SandboxId(1), Sacrifice::Kill)));
/// ```
#[must_use]
pub fn choose_victim(
    rule: &PressureRule,
    candidates: impl IntoIterator<Item = Candidate>,
) -> Option<(SandboxId, Sacrifice)> {
    let mut idle: Option<Candidate> = None;
    let mut any: Option<Candidate> = None;
    for candidate in candidates {
        let may_idle = candidate.preemptible
            && !candidate.frozen
            && !candidate.pause_failed
            && candidate.idle_for >= rule.idle;
        if may_idle && idle.is_none_or(|best| rank(&candidate) < rank(&best)) {
            idle = Some(candidate);
        }
        if any.is_none_or(|best| rank(&candidate) < rank(&best)) {
            any = Some(candidate);
        }
    }
    if let Some(victim) = idle {
        return Some((victim.id, Sacrifice::Pause(victim.driver.pause())));
    }
    any.map(|victim| match victim.driver.pause() {
        PauseKind::Checkpoint if !victim.pause_failed => {
            (victim.id, Sacrifice::Pause(PauseKind::Checkpoint))
        }
        _ => (victim.id, Sacrifice::Kill),
    })
}

fn rank(candidate: &Candidate) -> (i32, Reverse<bool>, Reverse<Mib>, Reverse<Millis>, SandboxId) {
    (
        candidate.priority,
        Reverse(candidate.preemptible),
        Reverse(candidate.charge),
        Reverse(candidate.idle_for),
        candidate.id,
    )
}
