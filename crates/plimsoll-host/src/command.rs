//! Commands from the cell: fenced, idempotent by guest and attempt, joined where the same is under
//! way.

use plimsoll_types::{
    Fence, GuestSpec, HostCommand, HostOp, HostOutcome, PauseKind, RefusalCode, SandboxId,
};

use crate::effect::{DriverOp, HostEffect};
use crate::fence::Tombstone;
use crate::guest::{Guest, Phase};
use crate::host::Host;
use crate::input::Token;
use crate::journal::{Act, JournalEntry};
use crate::time::HostTime;

/// What a command has led to.
enum Taken {
    /// An answer, and nothing done.
    Answer(HostOutcome),
    /// The same is under way: the command waits with those before it.
    Joined,
    /// Something was begun, and the journal says so.
    Begun,
}

fn failed(detail: &str) -> Taken {
    Taken::Answer(HostOutcome::Failed { detail: detail.to_owned() })
}

fn conflict(detail: String) -> Taken {
    Taken::Answer(HostOutcome::Refused { code: RefusalCode::Conflict, detail })
}

impl Host {
    pub(crate) fn command(
        &mut self,
        now: HostTime,
        token: Token,
        command: HostCommand,
        out: &mut Vec<HostEffect>,
    ) {
        let HostCommand { fence, deadline_uptime_millis, op } = command;
        if !self.adopted {
            return self.before_adoption(token, fence, &op, out);
        }
        if let Some(taken) = self.repeat(token, fence, &op) {
            if let Taken::Answer(outcome) = taken {
                out.push(HostEffect::Answer { token, outcome });
            }
            return;
        }
        let newest = self.last_fence(op.guest()).is_none_or(|last| last < fence);
        if !self.fences.is_fresh(fence) || !newest {
            out.push(HostEffect::Answer { token, outcome: self.fenced() });
            return;
        }
        self.fences.take(fence);
        let late = deadline_uptime_millis.is_some_and(|deadline| now.uptime.0 > deadline);
        let taken = if late {
            Taken::Answer(self.fenced())
        } else {
            match op {
                HostOp::Start { guest } => self.start(now, token, fence, guest, out),
                HostOp::Pause { id, attempt, kind } => {
                    self.on_guest(id, attempt, |host| host.pause(token, fence, id, kind, out))
                }
                HostOp::Resume { id, attempt } => {
                    self.on_guest(id, attempt, |host| host.resume(now, token, fence, id, out))
                }
                HostOp::Stop { id, attempt } => {
                    self.on_guest(id, attempt, |host| host.stop(token, fence, id, out))
                }
                HostOp::End { id, attempt } => self.end(token, fence, id, attempt, out),
            }
        };
        match taken {
            Taken::Begun => self.beat.want(),
            Taken::Joined => out.push(HostEffect::Journal(JournalEntry::Seen { fence })),
            Taken::Answer(outcome) => {
                out.push(HostEffect::Journal(JournalEntry::Seen { fence }));
                out.push(HostEffect::Answer { token, outcome });
            }
        }
    }

    /// Until the drivers have told what is there, nothing is begun. The start of a guest that the
    /// journal does not know is refused, for good: the cell places it elsewhere. Of anything else
    /// the cell hears that it is not known how it stands, and asks again: it may have been carried
    /// out before this start of the agent, so that a refusal would be a lie.
    fn before_adoption(
        &mut self,
        token: Token,
        fence: Fence,
        op: &HostOp,
        out: &mut Vec<HostEffect>,
    ) {
        let detail = "still finding its guests after a start of the agent".to_owned();
        let new = self.fences.is_fresh(fence) && self.last_fence(op.guest()).is_none();
        let outcome = if new && matches!(op, HostOp::Start { .. }) {
            self.fences.take(fence);
            out.push(HostEffect::Journal(JournalEntry::Seen { fence }));
            HostOutcome::Refused { code: RefusalCode::NoHealthyHosts, detail }
        } else {
            HostOutcome::Unknown { detail }
        };
        out.push(HostEffect::Answer { token, outcome });
    }

    fn fenced(&self) -> HostOutcome {
        HostOutcome::Fenced { highest: self.fences.highest() }
    }

    fn last_fence(&self, id: SandboxId) -> Option<Fence> {
        let guest = self.guests.get(&id).map(|guest| guest.fence);
        guest.or_else(|| self.tombstones.get(id).map(|stone| stone.fence))
    }

    /// The very same command once more: it joins what it has begun, or is answered as the first
    /// was.
    fn repeat(&mut self, token: Token, fence: Fence, op: &HostOp) -> Option<Taken> {
        if fence == Fence::default() || fence.epoch < self.fences.highest().epoch {
            return None;
        }
        let id = op.guest();
        if let Some(guest) = self.guests.get_mut(&id) {
            if guest.fence != fence {
                return None;
            }
            if guest.call.is_some() && guest.answered.is_none() {
                guest.waiters.push(token);
                return Some(Taken::Joined);
            }
            let known = guest.answered.clone();
            let is_so = match op {
                HostOp::Start { .. } | HostOp::Resume { .. } => guest.phase == Phase::Running,
                HostOp::Pause { .. } => matches!(guest.phase, Phase::Paused(_)),
                HostOp::Stop { .. } => matches!(guest.phase, Phase::Exited { .. }),
                HostOp::End { .. } => false,
            };
            return Some(Taken::Answer(known.unwrap_or_else(|| {
                if is_so {
                    HostOutcome::Done
                } else {
                    let detail = "begun before the agent was started anew".to_owned();
                    HostOutcome::Unknown { detail }
                }
            })));
        }
        let stone = self.tombstones.get(id).filter(|stone| stone.fence == fence)?;
        Some(match op {
            HostOp::End { .. } => Taken::Answer(HostOutcome::Done),
            HostOp::Start { .. } if stone.failed => failed("the start has failed"),
            _ => Taken::Answer(self.fenced()),
        })
    }

    fn start(
        &mut self,
        now: HostTime,
        token: Token,
        fence: Fence,
        mut spec: Box<GuestSpec>,
        out: &mut Vec<HostEffect>,
    ) -> Taken {
        let id = spec.id;
        if self.tombstones.get(id).is_some_and(|stone| spec.attempt <= stone.attempt) {
            return Taken::Answer(self.fenced());
        }
        let mut previous = None;
        if let Some(guest) = self.guests.get_mut(&id) {
            let known = guest.spec.attempt;
            if spec.attempt < known {
                return Taken::Answer(self.fenced());
            }
            match guest.phase {
                // Started once and ended by itself: starting it again would run it twice.
                Phase::Exited { .. } if spec.attempt == known && !guest.stopped => {
                    guest.fence = fence;
                    guest.answered = Some(HostOutcome::Done);
                    return Taken::Answer(HostOutcome::Done);
                }
                Phase::Exited { .. } => {
                    // A fork that was stopped starts again as itself. What it was made from has
                    // gone on since, or is no more.
                    if spec.attempt == known {
                        spec.fork_of = None;
                    }
                    previous = Some(known);
                }
                _ if spec.attempt > known => {
                    return conflict(format!("attempt {known} of this guest is still here"));
                }
                Phase::Starting { .. } => {
                    guest.fence = fence;
                    guest.waiters.push(token);
                    return Taken::Joined;
                }
                Phase::Ending { .. } => return Taken::Answer(self.fenced()),
                Phase::Stopping { .. } => return conflict("the guest is being stopped".to_owned()),
                // It was started, as this command asks; what came after is another command's.
                Phase::Running
                | Phase::Pausing { .. }
                | Phase::Paused(_)
                | Phase::Resuming { .. } => {
                    guest.fence = fence;
                    guest.answered = Some(HostOutcome::Done);
                    return Taken::Answer(HostOutcome::Done);
                }
            }
        } else if self.guests.len() >= self.config.guests_max {
            let detail = format!("{} guests, at most that many", self.guests.len());
            return Taken::Answer(HostOutcome::Refused { code: RefusalCode::NoCapacity, detail });
        }
        if let Some(source) = spec.fork_of
            && !self.guests.contains_key(&source)
        {
            return failed("the guest to fork from is not on this host");
        }
        if let Err(refusal) = self.gate_start(&spec, now) {
            return Taken::Answer(refusal);
        }
        out.push(HostEffect::Journal(JournalEntry::Start { fence, guest: spec.clone(), previous }));
        let phase = Phase::Starting { previous };
        let mut guest = Guest::new(spec.clone(), fence, phase);
        guest.waiters.push(token);
        if let Some(old) = self.guests.remove(&id) {
            if old.spec.attempt == spec.attempt {
                guest.go_on_counting(&old);
            } else {
                self.retire(&old, out);
            }
        }
        self.guests.insert(id, guest);
        self.call(id, DriverOp::Start { guest: spec, previous }, out);
        Taken::Begun
    }

    /// Runs `act` on a guest that is here in the attempt meant.
    fn on_guest(
        &mut self,
        id: SandboxId,
        attempt: u32,
        act: impl FnOnce(&mut Self) -> Taken,
    ) -> Taken {
        match self.guests.get(&id) {
            None => failed("no such guest on this host"),
            Some(guest) if attempt < guest.spec.attempt => Taken::Answer(self.fenced()),
            Some(guest) if attempt > guest.spec.attempt => {
                failed("this attempt of the guest is not on this host")
            }
            Some(guest) if matches!(guest.phase, Phase::Ending { .. }) => {
                Taken::Answer(self.fenced())
            }
            Some(_) => act(self),
        }
    }

    fn pause(
        &mut self,
        token: Token,
        fence: Fence,
        id: SandboxId,
        kind: PauseKind,
        out: &mut Vec<HostEffect>,
    ) -> Taken {
        let Some(guest) = self.guests.get_mut(&id) else { return failed("no such guest") };
        let kind = match kind {
            PauseKind::Driver => guest.spec.driver.pause(),
            resolved => resolved,
        };
        let frozen = match guest.phase {
            Phase::Paused(held) if held == PauseKind::Checkpoint || held == kind => {
                guest.fence = fence;
                guest.answered = Some(HostOutcome::Done);
                return Taken::Answer(HostOutcome::Done);
            }
            Phase::Paused(_) => true,
            Phase::Running => false,
            Phase::Pausing { kind: under_way, .. }
                if under_way == kind || under_way == PauseKind::Checkpoint =>
            {
                guest.fence = fence;
                guest.answered = None;
                guest.waiters.push(token);
                return Taken::Joined;
            }
            Phase::Exited { .. } => return failed("the guest's process has ended"),
            _ => return conflict("something else is under way with the guest".to_owned()),
        };
        guest.phase = Phase::Pausing { kind, frozen };
        self.begin(token, fence, id, Act::Pause { kind }, DriverOp::Pause { kind }, out)
    }

    fn resume(
        &mut self,
        now: HostTime,
        token: Token,
        fence: Fence,
        id: SandboxId,
        out: &mut Vec<HostEffect>,
    ) -> Taken {
        let Some(guest) = self.guests.get_mut(&id) else { return failed("no such guest") };
        let from = match guest.phase {
            Phase::Running => {
                guest.fence = fence;
                guest.answered = Some(HostOutcome::Done);
                return Taken::Answer(HostOutcome::Done);
            }
            Phase::Resuming { .. } => {
                guest.fence = fence;
                guest.answered = None;
                guest.waiters.push(token);
                return Taken::Joined;
            }
            Phase::Paused(from) => from,
            // A stopped guest runs again from its disk: a start under the name that it has.
            Phase::Exited { .. } if guest.stopped => {
                let spec = guest.spec.clone();
                return self.start(now, token, fence, spec, out);
            }
            Phase::Exited { .. } => return failed("the guest's process has ended"),
            Phase::Pausing { .. } if guest.reason.is_some() => {
                let code = RefusalCode::HostPressure;
                let detail = guest.reason.clone().unwrap_or_default();
                return Taken::Answer(HostOutcome::Refused { code, detail });
            }
            _ => return conflict("something else is under way with the guest".to_owned()),
        };
        let Some(guest) = self.guests.get(&id) else { return failed("no such guest") };
        let gate = match from {
            PauseKind::Checkpoint => self.gate_start(&guest.spec, now),
            PauseKind::Keep | PauseKind::Driver => self.gate_thaw(guest, now),
        };
        if let Err(refusal) = gate {
            return Taken::Answer(refusal);
        }
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.phase = Phase::Resuming { from };
        }
        self.begin(token, fence, id, Act::Resume { from }, DriverOp::Resume { from }, out)
    }

    fn stop(
        &mut self,
        token: Token,
        fence: Fence,
        id: SandboxId,
        out: &mut Vec<HostEffect>,
    ) -> Taken {
        let Some(guest) = self.guests.get_mut(&id) else { return failed("no such guest") };
        match guest.phase {
            Phase::Exited { .. } => {
                guest.fence = fence;
                guest.stopped = true;
                guest.answered = Some(HostOutcome::Done);
                self.note_settled(id, out);
                return Taken::Answer(HostOutcome::Done);
            }
            Phase::Stopping { .. } => {
                guest.fence = fence;
                guest.answered = None;
                guest.waiters.push(token);
                return Taken::Joined;
            }
            Phase::Running | Phase::Paused(_) => {}
            _ => return conflict("something else is under way with the guest".to_owned()),
        }
        guest.phase = Phase::Stopping { from: guest.phase.before() };
        self.begin(token, fence, id, Act::Stop, DriverOp::Stop, out)
    }

    fn begin(
        &mut self,
        token: Token,
        fence: Fence,
        id: SandboxId,
        act: Act,
        op: DriverOp,
        out: &mut Vec<HostEffect>,
    ) -> Taken {
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.fence = fence;
            guest.answered = None;
            guest.waiters.push(token);
            out.push(HostEffect::Journal(JournalEntry::Act {
                fence: Some(fence),
                id,
                attempt: guest.spec.attempt,
                act,
                reason: None,
            }));
        }
        self.call(id, op, out);
        Taken::Begun
    }

    fn end(
        &mut self,
        token: Token,
        fence: Fence,
        id: SandboxId,
        attempt: u32,
        out: &mut Vec<HostEffect>,
    ) -> Taken {
        let Some(guest) = self.guests.get_mut(&id) else {
            // Nothing is here; remember it, so that a start that comes later stays out.
            self.bury(id, Tombstone { attempt, fence, failed: false }, out);
            return Taken::Answer(HostOutcome::Done);
        };
        if attempt < guest.spec.attempt {
            // Older attempts ended when this one began.
            return Taken::Answer(HostOutcome::Done);
        }
        guest.ending_through = guest.ending_through.max(attempt);
        if matches!(guest.phase, Phase::Ending { .. }) && guest.call.is_some() {
            guest.fence = fence;
            guest.answered = None;
            guest.waiters.push(token);
            return Taken::Joined;
        }
        self.begin_end(id, Some((token, fence)), out);
        Taken::Begun
    }
}
