//! Coming back: the journal says what was known and begun, the drivers say what is there.

use plimsoll_types::{Fence, HeartbeatAnswer, Millis, PauseKind, SandboxId};

use crate::beat::Answered;
use crate::config::HostConfig;
use crate::effect::{HostEffect, HostEvent};
use crate::fence::Tombstone;
use crate::guest::{Guest, Phase};
use crate::host::Host;
use crate::input::{Found, FoundState};
use crate::journal::{Act, JournalEntry};
use crate::ledger::Reserved;
use crate::time::{HostTime, later};

/// The cell must name a guest as unexpected twice, this far apart, before it is ended: one answer
/// of a cell that is not itself ends nothing.
const UNEXPECTED_GRACE: Millis = Millis::from_seconds(15);
/// Most names kept for that; more wait for the next answers.
const UNEXPECTED_MAX: usize = 10_000;

impl Host {
    /// A host as the journal knew it. What runs now, [`crate::HostInput::Adopted`] says next.
    #[must_use]
    pub fn restore(config: HostConfig, entries: impl IntoIterator<Item = JournalEntry>) -> Self {
        let mut host = Self::new(config);
        let mut boot = String::new();
        for entry in entries {
            match entry {
                JournalEntry::Machine { boot: at } => {
                    if at != boot {
                        host.forget_uptimes();
                    }
                    boot = at;
                }
                JournalEntry::Registered { incarnation } => {
                    host.last_incarnation = Some(incarnation)
                }
                JournalEntry::Seen { fence } => host.fences.restore(fence),
                JournalEntry::Start { fence, guest, previous } => {
                    host.fences.restore(fence);
                    let id = guest.id;
                    let mut new = Guest::new(guest, fence, Phase::Starting { previous });
                    if let Some(old) = host.guests.remove(&id)
                        && old.spec.attempt == new.spec.attempt
                    {
                        new.go_on_counting(&old);
                    }
                    host.guests.insert(id, new);
                }
                JournalEntry::Act { fence, id, attempt, act, reason } => {
                    if let Some(fence) = fence {
                        host.fences.restore(fence);
                    }
                    host.recall_act(fence, id, attempt, act, reason);
                }
                JournalEntry::Settled { id, attempt, state, kept } => {
                    if let Some(guest) = host.guests.get_mut(&id)
                        && guest.spec.attempt == attempt
                    {
                        guest.recall(state, kept);
                    }
                }
                JournalEntry::Ended { guest } => host.ended.put(guest),
                JournalEntry::Gone { id, attempt, fence, failed } => {
                    host.fences.restore(fence);
                    if host.guests.get(&id).is_some_and(|guest| guest.spec.attempt <= attempt) {
                        host.guests.remove(&id);
                    }
                    host.tombstones.put(id, Tombstone { attempt, fence, failed });
                }
            }
        }
        if boot != host.config.machine_boot {
            host.forget_uptimes();
        }
        host
    }

    fn forget_uptimes(&mut self) {
        for guest in self.guests.values_mut() {
            guest.since = None;
        }
    }

    fn recall_act(
        &mut self,
        fence: Option<Fence>,
        id: SandboxId,
        attempt: u32,
        act: Act,
        reason: Option<String>,
    ) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        if guest.spec.attempt != attempt {
            return;
        }
        if let Some(fence) = fence {
            guest.fence = fence;
        }
        guest.phase = match act {
            Act::Pause { kind } => {
                let frozen = matches!(guest.phase, Phase::Paused(_));
                Phase::Pausing { kind, frozen }
            }
            Act::Resume { from } => Phase::Resuming { from },
            Act::Stop => Phase::Stopping { from: guest.phase.before() },
            Act::End => {
                guest.ending_through = attempt;
                Phase::Ending { memory: guest.phase.holds_memory() }
            }
        };
        guest.reason = reason;
    }

    /// The shortest journal from which [`Host::restore`] makes this host again.
    #[must_use]
    pub fn snapshot(&self) -> Vec<JournalEntry> {
        let mut entries = vec![JournalEntry::Machine { boot: self.config.machine_boot.clone() }];
        if let Some(incarnation) = self.incarnation.or(self.last_incarnation) {
            entries.push(JournalEntry::Registered { incarnation });
        }
        entries.extend(self.ended.iter().map(|guest| JournalEntry::Ended { guest }));
        let mut out = Vec::new();
        for (id, stone) in self.tombstones.iter() {
            entries.push(JournalEntry::Gone {
                id,
                attempt: stone.attempt,
                fence: stone.fence,
                failed: stone.failed,
            });
        }
        for (id, guest) in &self.guests {
            let attempt = guest.spec.attempt;
            let previous = match guest.phase {
                Phase::Starting { previous } => previous,
                _ => None,
            };
            entries.push(JournalEntry::Start {
                fence: guest.fence,
                guest: guest.spec.clone(),
                previous,
            });
            self.note_settled(*id, &mut out);
            let act = match guest.phase {
                Phase::Pausing { kind, .. } => Some(Act::Pause { kind }),
                Phase::Resuming { from } => Some(Act::Resume { from }),
                Phase::Stopping { .. } => Some(Act::Stop),
                Phase::Ending { .. } => Some(Act::End),
                _ => None,
            };
            if let Some(act) = act {
                // What it was before, as near as the state under way tells.
                let state = guest.phase.before();
                entries.push(JournalEntry::Settled { id: *id, attempt, state, kept: guest.kept() });
                let reason = guest.reason.clone();
                entries.push(JournalEntry::Act { fence: None, id: *id, attempt, act, reason });
            }
            entries.extend(out.drain(..).filter_map(|effect| match effect {
                HostEffect::Journal(entry) => Some(entry),
                _ => None,
            }));
        }
        entries.push(JournalEntry::Seen { fence: self.fences.highest() });
        entries
    }

    /// Holds what the drivers found against what the journal knew.
    pub(crate) fn adopt(
        &mut self,
        now: HostTime,
        found: Vec<Found>,
        foreign: Vec<String>,
        out: &mut Vec<HostEffect>,
    ) {
        if self.adopted {
            return;
        }
        self.adopted = true;
        self.foreign = foreign;
        let mut missing: Vec<SandboxId> = self.guests.keys().copied().collect();
        for found in found {
            let known = self.guests.get(&found.id).map(|guest| guest.spec.attempt);
            match known {
                Some(attempt) if attempt == found.attempt => {
                    missing.retain(|id| *id != found.id);
                    self.resolve(now, found.id, Some(found.state), out);
                }
                Some(_) => {
                    // The attempt whose disk a start was to take over: that never came about, and
                    // the guest is still the older attempt.
                    let untouched = Phase::Starting { previous: Some(found.attempt) };
                    match self.guests.get_mut(&found.id) {
                        Some(guest) if guest.phase == untouched => {
                            guest.spec.attempt = found.attempt;
                            guest.phase = Phase::Exited { code: None };
                            guest.stopped = true;
                            missing.retain(|id| *id != found.id);
                            self.resolve(now, found.id, Some(found.state), out);
                        }
                        _ => self.end_stray(found.id, found.attempt, out),
                    }
                }
                None => self.adopt_unknown(now, found, out),
            }
        }
        for id in missing {
            self.resolve(now, id, None, out);
        }
        self.beat.want();
    }

    fn adopt_unknown(&mut self, now: HostTime, found: Found, out: &mut Vec<HostEffect>) {
        let Found { id, attempt, state, spec } = found;
        let ended = self.tombstones.get(id).is_some_and(|stone| attempt <= stone.attempt);
        if ended {
            return self.end_stray(id, attempt, out);
        }
        match spec.filter(|spec| spec.id == id && spec.attempt == attempt) {
            Some(spec) if state != FoundState::Gone => {
                out.push(HostEffect::Journal(JournalEntry::Start {
                    fence: Fence::default(),
                    guest: spec.clone(),
                    previous: None,
                }));
                let phase = Phase::Starting { previous: None };
                self.guests.insert(id, Guest::new(spec, Fence::default(), phase));
                self.resolve(now, id, Some(state), out);
            }
            _ => self.foreign.push(format!("{id}.{attempt}")),
        }
    }

    /// Brings one guest from what was known to what is there.
    pub(crate) fn resolve(
        &mut self,
        now: HostTime,
        id: SandboxId,
        state: Option<FoundState>,
        out: &mut Vec<HostEffect>,
    ) {
        let state = state.unwrap_or(FoundState::Gone);
        let Some(guest) = self.guests.get_mut(&id) else { return };
        match (guest.phase, state) {
            (Phase::Ending { .. }, _) => return self.begin_end(id, None, out),
            // The start never came to anything: end what little there may be. What it was to take
            // over is kept.
            (Phase::Starting { previous: None }, FoundState::Gone) => {
                return self.begin_end(id, None, out);
            }
            (Phase::Starting { previous: Some(_) }, FoundState::Gone) => {
                guest.phase = Phase::Exited { code: None };
                guest.stopped = true;
            }
            (Phase::Running, FoundState::Running) => {
                // Its start time is known, unless the machine was started anew.
                guest.since.get_or_insert(now.uptime);
            }
            (Phase::Pausing { .. } | Phase::Stopping { .. }, FoundState::Running)
                if guest.since.is_some() =>
            {
                guest.phase = Phase::Running;
                guest.reason = None;
            }
            (_, FoundState::Running) => guest.run(now),
            (_, FoundState::Frozen) => {
                guest.phase = Phase::Paused(PauseKind::Keep);
                guest.since.get_or_insert(now.uptime);
            }
            (_, FoundState::Checkpointed) => {
                guest.phase = Phase::Paused(PauseKind::Checkpoint);
                guest.leave_memory();
            }
            (phase, FoundState::Exited { code }) => {
                guest.stopped |= matches!(phase, Phase::Stopping { .. });
                if !matches!(phase, Phase::Exited { .. }) || code.is_some() {
                    guest.phase = Phase::Exited { code };
                }
                guest.leave_memory();
            }
            (Phase::Exited { .. }, FoundState::Gone) => {}
            (phase, FoundState::Gone) => {
                guest.stopped |= matches!(phase, Phase::Stopping { .. });
                guest.phase = Phase::Exited { code: None };
                guest.reason = Some("its host no longer has it".to_owned());
                guest.leave_memory();
                out.push(HostEffect::Event(HostEvent::NotFound { id }));
            }
        }
        self.note_settled(id, out);
    }

    /// Takes what the cell answered to a report.
    pub(crate) fn answered(
        &mut self,
        now: HostTime,
        report: Option<Answered>,
        answer: HeartbeatAnswer,
        out: &mut Vec<HostEffect>,
    ) {
        if !answer.accepted {
            return;
        }
        if let Some(report) = report
            && self.ended.taken(report.ended_through)
        {
            self.beat.want();
        }
        let seen_through = report.map(|report| report.seen_through);
        if answer.regime.is_some() && answer.regime != self.pool_regime {
            self.pool_regime = answer.regime;
            self.beat.want();
        }
        let mut known = core::mem::take(&mut self.reservations);
        for told in answer.reservations {
            let id = told.id;
            let reserved = match known.remove(&id) {
                Some(reserved) if reserved.told == told => reserved,
                _ => {
                    self.beat.want();
                    Reserved::new(told, now)
                }
            };
            self.reservations.insert(id, reserved);
        }
        for gone in known.into_values() {
            self.beat.want();
            self.keep_totals(gone.ended(), out);
        }
        self.end_unexpected(now, seen_through, answer.unexpected_guests, out);
    }

    fn end_unexpected(
        &mut self,
        now: HostTime,
        seen_through: Option<u64>,
        names: Vec<String>,
        out: &mut Vec<HostEffect>,
    ) {
        let before = core::mem::take(&mut self.unexpected);
        for name in names.into_iter().take(UNEXPECTED_MAX) {
            let Some(id) = self.named(&name, seen_through) else { continue };
            let first = before.get(&name).copied();
            if first.is_none_or(|first| now.uptime < later(first, UNEXPECTED_GRACE)) {
                self.unexpected.insert(name, first.unwrap_or(now.uptime));
                continue;
            }
            let stateful = self.guests.get(&id).is_some_and(|guest| guest.spec.stateful);
            if stateful {
                // Its state is not given up on an answer's word; a command can end it.
                out.push(HostEffect::Event(HostEvent::UnexpectedKept { id }));
                self.unexpected.insert(name, now.uptime);
            } else {
                out.push(HostEffect::Event(HostEvent::UnexpectedEnded { id }));
                self.begin_end(id, None, out);
                self.beat.want();
            }
        }
    }

    /// The guest meant by `id` or `id.attempt`, where the report that is answered knew of the last
    /// command about it.
    fn named(&self, name: &str, seen_through: Option<u64>) -> Option<SandboxId> {
        let (id, attempt) = match name.split_once('.') {
            Some((id, attempt)) => (id, Some(attempt.parse::<u32>().ok()?)),
            None => (name, None),
        };
        let id: SandboxId = id.parse().ok()?;
        let guest = self.guests.get(&id)?;
        let meant = attempt.is_none_or(|attempt| attempt == guest.spec.attempt);
        let known = seen_through.is_some_and(|through| guest.fence.number <= through);
        (meant && known && !matches!(guest.phase, Phase::Ending { .. })).then_some(id)
    }
}
