//! Memory pressure on this host: the gate, and who gives way (DESIGN 4.5). The rules are
//! `plimsoll-policy`'s.

use plimsoll_policy::pressure::{
    GateChange, Guest as Candidate, PressureRule, Remedy, Signals, next_victim,
};
use plimsoll_types::PauseKind;

use crate::effect::{DriverOp, HostEffect, HostEvent};
use crate::guest::{Guest, Phase};
use crate::host::Host;
use crate::input::Sample;
use crate::journal::{Act, JournalEntry};
use crate::time::{HostTime, instant};

impl Host {
    pub(crate) fn watch_pressure(
        &mut self,
        now: HostTime,
        sample: &Sample,
        out: &mut Vec<HostEffect>,
    ) {
        let rule = self.config.pressure.or_else(|| {
            let physical = self.physical()?;
            Some(PressureRule::for_headroom(self.headroom(physical)))
        });
        let Some(rule) = rule else { return };
        self.signals = Signals {
            some_avg10: sample.pressure_some.as_ref().ok().copied(),
            full_avg10: sample.pressure_full.as_ref().ok().copied(),
            available: sample.memory_available.as_ref().ok().copied(),
        };
        let uptime = instant(now.uptime);
        match self.gate.observe(&self.signals, &rule, uptime) {
            Some(GateChange::Shut) => {
                let reason = self.pressure_figures();
                out.push(HostEffect::Event(HostEvent::GateShut { reason }));
                self.beat.want();
            }
            Some(GateChange::Opened) => {
                out.push(HostEffect::Event(HostEvent::GateOpened));
                self.beat.want();
            }
            None => {}
        }
        if self.adopted && self.gate.should_act(&rule, uptime) {
            self.relieve(now, out);
        }
    }

    /// The signals as last read, for people.
    pub(crate) fn pressure_figures(&self) -> String {
        let mut figures = Vec::new();
        for (name, share) in [("some", self.signals.some_avg10), ("full", self.signals.full_avg10)]
        {
            if let Some(share) = share {
                figures.push(format!("PSI {name} {}.{:02} %", share.0 / 100, share.0 % 100));
            }
        }
        if let Some(available) = self.signals.available {
            figures.push(format!("{available} available"));
        }
        format!("memory pressure: {}", figures.join(", "))
    }

    /// Somebody has to give way before the kernel chooses.
    fn relieve(&mut self, now: HostTime, out: &mut Vec<HostEffect>) {
        let regime = self.regime();
        let candidates = self
            .guests
            .values()
            .filter(|guest| guest.call.is_none())
            .filter(|guest| matches!(guest.phase, Phase::Running | Phase::Paused(PauseKind::Keep)))
            .map(|guest| Candidate {
                id: guest.spec.id,
                stateful: guest.spec.stateful,
                preemptible: guest.spec.preemptible,
                idle: self.is_idle(guest, now),
                frozen: guest.phase != Phase::Running,
                pause_frees: guest.spec.driver.pause() == PauseKind::Checkpoint,
                pause_failed: guest.pause_failed,
                priority: guest.spec.priority,
                charge: guest.charge(regime, now),
            });
        let victim = next_victim(candidates);
        let figures = self.pressure_figures();
        let Some((id, remedy)) = victim else {
            self.gate.acted(instant(now.uptime));
            out.push(HostEffect::Event(HostEvent::PressureNoVictim { reason: figures }));
            return;
        };
        let Some(guest) = self.guests.get_mut(&id) else { return };
        let charge = guest.charge(regime, now);
        let (act, op, reason, event) = match remedy {
            Remedy::Pause => {
                let kind = guest.spec.driver.pause();
                guest.phase = Phase::Pausing { kind, frozen: guest.phase != Phase::Running };
                let reason = format!("paused by its host under {figures}");
                let event = HostEvent::PressurePause { id, charge, reason: reason.clone() };
                (Act::Pause { kind }, DriverOp::Pause { kind }, reason, event)
            }
            Remedy::Kill => {
                guest.phase = Phase::Stopping { from: guest.phase.before() };
                let reason = format!("ended by its host under {figures}");
                let event = HostEvent::PressureKill { id, charge, reason: reason.clone() };
                (Act::Stop, DriverOp::Stop, reason, event)
            }
        };
        guest.reason = Some(reason.clone());
        let attempt = guest.spec.attempt;
        // A freeze frees nothing: the next act need not wait for it to show.
        if op != (DriverOp::Pause { kind: PauseKind::Keep }) {
            self.gate.acted(instant(now.uptime));
        }
        out.push(HostEffect::Event(event));
        out.push(HostEffect::Journal(JournalEntry::Act {
            fence: None,
            id,
            attempt,
            act,
            reason: Some(reason),
        }));
        self.call(id, op, out);
        self.beat.want();
    }

    fn is_idle(&self, guest: &Guest, now: HostTime) -> bool {
        guest.last_active_at.is_some_and(|at| now.clock.since(at) >= self.config.idle)
    }
}
