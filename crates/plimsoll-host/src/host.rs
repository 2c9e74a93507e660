//! The host: its state, and what each input does to it.

use std::collections::BTreeMap;

use plimsoll_policy::pressure::{Gate, Signals};
use plimsoll_types::{
    Fence, GuestSpec, HostOutcome, HostReservation, Mib, Millis, PauseKind, RefusalCode, Regime,
    ReservationId, SandboxId,
};

use crate::beat::Beat;
use crate::config::HostConfig;
use crate::effect::{CallId, DriverCall, DriverOp, HostEffect, HostEvent};
use crate::ended::Ended;
use crate::fence::{Fences, Tombstone, Tombstones};
use crate::guest::{Guest, Phase};
use crate::input::{DriverResult, FoundState, HostInput, Sample, Token};
use crate::journal::{Act, JournalEntry};
use crate::ledger::{Machine, Reserved};
use crate::time::{HostTime, later};

/// First wait before an end that failed is tried again; doubles up to [`END_RETRY_MAX`].
const END_RETRY: Millis = Millis::from_seconds(5);
/// Longest such wait: a guest that cannot be ended holds memory, so it is tried every minute.
const END_RETRY_MAX: Millis = Millis::from_seconds(60);

/// The state machine of one host. See the crate's documentation.
#[derive(Clone, Debug)]
pub struct Host {
    pub(crate) config: HostConfig,
    pub(crate) incarnation: Option<u64>,
    pub(crate) last_incarnation: Option<u64>,
    revision: u64,
    pub(crate) sequence: u64,
    pub(crate) pool_regime: Option<Regime>,
    pub(crate) adopted: bool,
    pub(crate) foreign: Vec<String>,
    pub(crate) fences: Fences,
    pub(crate) tombstones: Tombstones,
    pub(crate) ended: Ended,
    pub(crate) guests: BTreeMap<SandboxId, Guest>,
    /// Leftovers of attempts that are no guest's any more, on their way out.
    pub(crate) strays: BTreeMap<(SandboxId, u32), Stray>,
    calls: BTreeMap<CallId, (SandboxId, u32)>,
    next_call: u64,
    pub(crate) reservations: BTreeMap<ReservationId, Reserved>,
    pub(crate) machine: Option<Machine>,
    /// All memory of the machine as last known.
    pub(crate) memory_total: Option<Mib>,
    pub(crate) signals: Signals,
    pub(crate) gate: Gate,
    pub(crate) beat: Beat,
    /// Guests that the cell has named as unexpected once.
    pub(crate) unexpected: BTreeMap<String, Millis>,
}

/// A leftover that is being ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stray {
    call: Option<CallId>,
    retry_at: Millis,
    wait: Millis,
}

impl Host {
    /// A host that has just started and knows nothing yet. Feed it [`HostInput::Adopted`] once
    /// the drivers have looked around, even when they found nothing.
    #[must_use]
    pub fn new(config: HostConfig) -> Self {
        let tombstones = Tombstones::new(config.tombstones_max);
        Self {
            config,
            incarnation: None,
            last_incarnation: None,
            revision: 0,
            sequence: 0,
            pool_regime: None,
            adopted: false,
            foreign: Vec::new(),
            fences: Fences::default(),
            tombstones,
            ended: Ended::default(),
            guests: BTreeMap::new(),
            strays: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 1,
            reservations: BTreeMap::new(),
            machine: None,
            memory_total: None,
            signals: Signals::default(),
            gate: Gate::default(),
            beat: Beat::default(),
            unexpected: BTreeMap::new(),
        }
    }

    /// Its settings.
    #[must_use]
    pub const fn config(&self) -> &HostConfig {
        &self.config
    }

    /// The place of this start of the agent among all, once the cell has given it.
    #[must_use]
    pub const fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    /// The place that an earlier start of the agent had, from the journal.
    #[must_use]
    pub const fn last_incarnation(&self) -> Option<u64> {
        self.last_incarnation
    }

    /// Counts inputs, for [`HostInput::Observed`].
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// The attempt of a guest that runs now, for calls that go past the state machine (exec,
    /// logs).
    #[must_use]
    pub fn running(&self, id: SandboxId) -> Option<u32> {
        self.guests
            .get(&id)
            .filter(|guest| guest.phase == Phase::Running)
            .map(|guest| guest.spec.attempt)
    }

    /// The description of a guest in whatever state.
    #[must_use]
    pub fn spec(&self, id: SandboxId) -> Option<&GuestSpec> {
        self.guests.get(&id).map(|guest| &*guest.spec)
    }

    /// Every guest, those at rest included.
    pub fn guests(&self) -> impl Iterator<Item = &GuestSpec> {
        self.guests.values().map(|guest| &*guest.spec)
    }

    /// Guests with a process, and so with something to measure, and those of which it is not known
    /// whether they have one.
    pub fn measurable(&self) -> impl Iterator<Item = &GuestSpec> {
        let looked_at = |guest: &&Guest| guest.phase.holds_memory() || guest.unsure;
        self.guests.values().filter(looked_at).map(|guest| &*guest.spec)
    }

    /// Committed reservations, for whoever measures their control groups.
    pub fn reservations(&self) -> impl Iterator<Item = &HostReservation> {
        self.reservations.values().map(|reserved| &reserved.told)
    }

    /// Whether the gate is shut under memory pressure.
    #[must_use]
    pub fn gate_is_shut(&self) -> bool {
        self.gate.is_shut()
    }

    /// Takes one input and appends what has to be done, in order.
    pub fn handle(&mut self, now: HostTime, input: HostInput, out: &mut Vec<HostEffect>) {
        self.revision += 1;
        match input {
            HostInput::Command { token, command } => self.command(now, token, *command, out),
            HostInput::DriverDone { call, result } => self.driver_done(now, call, result, out),
            HostInput::Used { id, attempt, cpu_millis_total_used, egress_bytes_total } => {
                if let Some(guest) = self.guests.get_mut(&id)
                    && guest.spec.attempt == attempt
                {
                    guest.see_totals(cpu_millis_total_used, egress_bytes_total);
                    self.note_settled(id, out);
                }
            }
            HostInput::GuestExited { id, attempt, code } => {
                self.guest_exited(now, id, attempt, code, out);
            }
            HostInput::Observed { id, attempt, state, as_of } => {
                self.observed(now, id, attempt, state, as_of, out);
            }
            HostInput::Active { id } => {
                if let Some(guest) = self.guests.get_mut(&id) {
                    guest.active_at(Some(now.clock));
                }
            }
            HostInput::Sample(sample) => self.sampled(now, &sample, out),
            HostInput::Adopted { found, foreign } => self.adopt(now, found, foreign, out),
            HostInput::Registered { incarnation } => {
                self.incarnation = Some(incarnation);
                out.push(HostEffect::Journal(JournalEntry::Registered { incarnation }));
                self.beat.want();
            }
            HostInput::HeartbeatAnswered { sequence, answer } => {
                let report = self.beat.answered(sequence);
                self.answered(now, report, *answer, out);
            }
            HostInput::HeartbeatFailed => self.beat.failed(now),
            HostInput::Tick => {}
        }
        self.retry_ends(now, out);
        self.consider_heartbeat(now, out);
    }

    /// The uptime at which [`HostInput::Tick`] has something to do.
    #[must_use]
    pub fn next_wake(&self) -> Option<Millis> {
        let ends = self.guests.values().filter_map(|guest| guest.retry_at);
        let strays =
            self.strays.values().filter(|stray| stray.call.is_none()).map(|stray| stray.retry_at);
        let beat = self.incarnation.and_then(|_| self.beat.next(&self.config));
        ends.chain(strays).chain(beat).min()
    }

    fn number_call(&mut self, id: SandboxId, attempt: u32) -> CallId {
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.calls.insert(call, (id, attempt));
        call
    }

    /// Sends a driver call for a guest that is in `guests`, and makes it the one whose answer
    /// counts.
    pub(crate) fn call(&mut self, id: SandboxId, op: DriverOp, out: &mut Vec<HostEffect>) {
        let Some(spec) = self.guests.get(&id).map(|guest| &guest.spec) else { return };
        let (attempt, driver) = (spec.attempt, Some(spec.driver));
        let call = self.number_call(id, attempt);
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.early_exit = None;
            guest.unsure = false;
            guest.touched = self.revision;
            if let Some(overtaken) = guest.call.replace(call) {
                self.calls.remove(&overtaken);
            }
        }
        out.push(HostEffect::Driver(DriverCall { call, id, attempt, driver, op }));
    }

    /// Ends what is left of an attempt that is no guest's any more.
    pub(crate) fn end_stray(&mut self, id: SandboxId, attempt: u32, out: &mut Vec<HostEffect>) {
        let call = self.number_call(id, attempt);
        let stray = self.strays.entry((id, attempt)).or_default();
        stray.call = Some(call);
        out.push(HostEffect::Journal(JournalEntry::Act {
            fence: None,
            id,
            attempt,
            act: Act::End,
            reason: None,
        }));
        let (driver, op) = (None, DriverOp::End);
        out.push(HostEffect::Driver(DriverCall { call, id, attempt, driver, op }));
    }

    fn driver_done(
        &mut self,
        now: HostTime,
        call: CallId,
        result: DriverResult,
        out: &mut Vec<HostEffect>,
    ) {
        // A call that was overtaken by an end is nobody's any more.
        let Some((id, attempt)) = self.calls.remove(&call) else { return };
        if let Some(stray) = self.strays.get_mut(&(id, attempt))
            && stray.call == Some(call)
        {
            if result == DriverResult::Done {
                self.strays.remove(&(id, attempt));
            } else {
                stray.call = None;
                stray.wait = next_wait(stray.wait);
                stray.retry_at = later(now.uptime, stray.wait);
            }
            return;
        }
        let Some(guest) = self.guests.get_mut(&id) else { return };
        if guest.call.take_if(|waiting| *waiting == call).is_none() {
            return;
        }
        guest.touched = self.revision;
        match guest.phase {
            Phase::Starting { previous } => self.started(now, id, previous, result, out),
            Phase::Ending { .. } => self.ended(now, id, result, out),
            _ => self.acted(now, id, result, out),
        }
    }

    fn started(
        &mut self,
        now: HostTime,
        id: SandboxId,
        previous: Option<u32>,
        result: DriverResult,
        out: &mut Vec<HostEffect>,
    ) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        match result {
            DriverResult::Done => {
                guest.run(now);
                let early = guest.early_exit.take();
                self.settle(id, HostOutcome::Done, out);
                if let Some(code) = early {
                    let attempt = self.guests.get(&id).map_or(0, |guest| guest.spec.attempt);
                    self.guest_exited(now, id, attempt, code, out);
                }
            }
            DriverResult::Failed { detail } | DriverResult::Rejected { detail }
                if previous.is_some() =>
            {
                // The disk of the stopped guest is still there, and so is the guest.
                guest.phase = Phase::Exited { code: None };
                guest.stopped = true;
                guest.early_exit = None;
                guest.leave_memory();
                self.settle(id, HostOutcome::Failed { detail }, out);
            }
            DriverResult::Failed { detail } => {
                self.forget(id, true, HostOutcome::Failed { detail }, out);
            }
            DriverResult::Rejected { detail } => {
                let code = RefusalCode::InvalidRequest;
                self.forget(id, true, HostOutcome::Refused { code, detail }, out);
            }
            DriverResult::Unknown { detail, .. } => {
                // Something may have been left behind: end it. The cell is told at once.
                self.answer(id, &HostOutcome::Unknown { detail }, out);
                self.begin_end(id, None, out);
            }
        }
        self.beat.want();
    }

    fn ended(
        &mut self,
        now: HostTime,
        id: SandboxId,
        result: DriverResult,
        out: &mut Vec<HostEffect>,
    ) {
        match result {
            DriverResult::Done | DriverResult::Unknown { found: Some(FoundState::Gone), .. } => {
                self.forget(id, false, HostOutcome::Done, out);
                self.beat.want();
            }
            DriverResult::Failed { detail }
            | DriverResult::Rejected { detail }
            | DriverResult::Unknown { detail, .. } => {
                if let Some(guest) = self.guests.get_mut(&id) {
                    guest.retry_wait = next_wait(guest.retry_wait);
                    guest.retry_at = Some(later(now.uptime, guest.retry_wait));
                }
                let event = HostEvent::EndFailed { id, detail: detail.clone() };
                out.push(HostEffect::Event(event));
                self.answer(id, &HostOutcome::Unknown { detail }, out);
            }
        }
    }

    /// A pause, resume or stop has come out.
    fn acted(
        &mut self,
        now: HostTime,
        id: SandboxId,
        result: DriverResult,
        out: &mut Vec<HostEffect>,
    ) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        let phase = guest.phase;
        guest.unsure = matches!(result, DriverResult::Unknown { found: None, .. });
        let (state, outcome) = match result {
            DriverResult::Done => (None, HostOutcome::Done),
            DriverResult::Failed { detail } | DriverResult::Rejected { detail } => {
                (Some(phase.before()), HostOutcome::Failed { detail })
            }
            DriverResult::Unknown { detail, found } => {
                (Some(found.unwrap_or(phase.before())), HostOutcome::Unknown { detail })
            }
        };
        if matches!(phase, Phase::Pausing { .. }) {
            guest.pause_failed = outcome != HostOutcome::Done;
        }
        match (state, phase) {
            (None, Phase::Pausing { kind: PauseKind::Checkpoint, .. })
            | (Some(FoundState::Checkpointed), _) => {
                guest.phase = Phase::Paused(PauseKind::Checkpoint);
                guest.leave_memory();
            }
            (None, Phase::Pausing { .. }) => guest.phase = Phase::Paused(PauseKind::Keep),
            (Some(FoundState::Frozen), _) => guest.phase = Phase::Paused(PauseKind::Keep),
            (None, Phase::Resuming { .. }) => guest.run(now),
            (Some(FoundState::Running), Phase::Resuming { .. }) => guest.run(now),
            (Some(FoundState::Running), _) => {
                guest.phase = Phase::Running;
                guest.reason = None;
            }
            (Some(FoundState::Exited { code }), _) => {
                guest.phase = Phase::Exited { code };
                guest.leave_memory();
            }
            (None | Some(FoundState::Gone), _) => {
                guest.stopped |= matches!(phase, Phase::Stopping { .. }) && state.is_none();
                guest.phase = Phase::Exited { code: None };
                guest.leave_memory();
            }
        }
        // The process may have ended meanwhile, and its word came first.
        if let Some(code) = guest.early_exit.take()
            && guest.phase != Phase::Paused(PauseKind::Checkpoint)
        {
            guest.phase = Phase::Exited { code };
            if !matches!(phase, Phase::Stopping { .. }) {
                guest.reason = None;
            }
            guest.leave_memory();
        }
        self.settle(id, outcome, out);
        self.beat.want();
    }

    fn guest_exited(
        &mut self,
        now: HostTime,
        id: SandboxId,
        attempt: u32,
        code: Option<i32>,
        out: &mut Vec<HostEffect>,
    ) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        if guest.spec.attempt != attempt {
            return;
        }
        match guest.phase {
            Phase::Starting { .. }
            | Phase::Pausing { .. }
            | Phase::Resuming { .. }
            | Phase::Stopping { .. } => guest.early_exit = Some(code),
            Phase::Running | Phase::Paused(PauseKind::Keep | PauseKind::Driver) => {
                guest.phase = Phase::Exited { code };
                guest.reason = None;
                guest.active_at(Some(now.clock));
                guest.leave_memory();
                self.note_settled(id, out);
                self.beat.want();
            }
            Phase::Paused(PauseKind::Checkpoint) | Phase::Exited { .. } | Phase::Ending { .. } => {}
        }
    }

    fn observed(
        &mut self,
        now: HostTime,
        id: SandboxId,
        attempt: u32,
        state: FoundState,
        as_of: u64,
        out: &mut Vec<HostEffect>,
    ) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        let outdated = guest.call.is_some() || guest.touched > as_of;
        if outdated || guest.spec.attempt != attempt {
            return;
        }
        guest.unsure = false;
        match guest.settled() {
            // How it ended is known from the first word about it.
            None | Some(FoundState::Exited { .. }) => {}
            Some(known) if known == state => {}
            Some(_) => {
                self.resolve(now, id, Some(state), out);
                self.beat.want();
            }
        }
    }

    /// Answers everybody who waits for a guest and keeps the answer for a repeat.
    pub(crate) fn answer(
        &mut self,
        id: SandboxId,
        outcome: &HostOutcome,
        out: &mut Vec<HostEffect>,
    ) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        guest.answered = Some(outcome.clone());
        for token in core::mem::take(&mut guest.waiters) {
            out.push(HostEffect::Answer { token, outcome: outcome.clone() });
        }
    }

    pub(crate) fn note_settled(&self, id: SandboxId, out: &mut Vec<HostEffect>) {
        let Some(guest) = self.guests.get(&id) else { return };
        if let Some(state) = guest.settled() {
            out.push(HostEffect::Journal(JournalEntry::Settled {
                id,
                attempt: guest.spec.attempt,
                state,
                kept: guest.kept(),
            }));
        }
    }

    fn settle(&mut self, id: SandboxId, outcome: HostOutcome, out: &mut Vec<HostEffect>) {
        self.note_settled(id, out);
        self.answer(id, &outcome, out);
    }

    /// Drops a guest of which nothing is left, and remembers that it was there.
    pub(crate) fn forget(
        &mut self,
        id: SandboxId,
        failed: bool,
        outcome: HostOutcome,
        out: &mut Vec<HostEffect>,
    ) {
        let Some(mut guest) = self.guests.remove(&id) else { return };
        let attempt = guest.ending_through.max(guest.spec.attempt);
        self.retire(&guest, out);
        self.bury(id, Tombstone { attempt, fence: guest.fence, failed }, out);
        for token in core::mem::take(&mut guest.waiters) {
            out.push(HostEffect::Answer { token, outcome: outcome.clone() });
        }
    }

    pub(crate) fn bury(&mut self, id: SandboxId, stone: Tombstone, out: &mut Vec<HostEffect>) {
        self.tombstones.put(id, stone);
        out.push(HostEffect::Journal(JournalEntry::Gone {
            id,
            attempt: stone.attempt,
            fence: stone.fence,
            failed: stone.failed,
        }));
    }

    /// Begins to end a guest, whatever is under way with it: the end overtakes.
    pub(crate) fn begin_end(
        &mut self,
        id: SandboxId,
        asked: Option<(Token, Fence)>,
        out: &mut Vec<HostEffect>,
    ) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        let memory = guest.phase.holds_memory();
        let overtaken = core::mem::take(&mut guest.waiters);
        guest.phase = Phase::Ending { memory };
        guest.retry_at = None;
        if let Some((token, fence)) = asked {
            guest.fence = fence;
            guest.answered = None;
            guest.waiters.push(token);
        }
        let attempt = guest.spec.attempt;
        out.push(HostEffect::Journal(JournalEntry::Act {
            fence: asked.map(|(_, fence)| fence),
            id,
            attempt,
            act: Act::End,
            reason: None,
        }));
        for token in overtaken {
            let detail = "the guest was ended while this was under way".to_owned();
            out.push(HostEffect::Answer { token, outcome: HostOutcome::Failed { detail } });
        }
        self.call(id, DriverOp::End, out);
    }

    fn retry_ends(&mut self, now: HostTime, out: &mut Vec<HostEffect>) {
        let due = |at: Millis| at <= now.uptime;
        let ends: Vec<SandboxId> = self
            .guests
            .iter()
            .filter(|(_, guest)| guest.call.is_none() && guest.retry_at.is_some_and(due))
            .map(|(id, _)| *id)
            .collect();
        for id in ends {
            if let Some(guest) = self.guests.get_mut(&id) {
                guest.retry_at = None;
            }
            self.call(id, DriverOp::End, out);
        }
        let strays: Vec<(SandboxId, u32)> = self
            .strays
            .iter()
            .filter(|(_, stray)| stray.call.is_none() && due(stray.retry_at))
            .map(|(key, _)| *key)
            .collect();
        for (id, attempt) in strays {
            self.end_stray(id, attempt, out);
        }
    }

    fn sampled(&mut self, now: HostTime, sample: &Sample, out: &mut Vec<HostEffect>) {
        let regime = self.regime();
        let mut in_machine = Mib::ZERO;
        for measured in &sample.guests {
            let Some(guest) = self.guests.get_mut(&measured.id) else { continue };
            if guest.spec.attempt != measured.attempt || !guest.phase.holds_memory() {
                continue;
            }
            guest.see(measured, now);
            if measured.in_machine {
                // What goes beyond the charge (a guest above its configured memory) stays with the
                // system's use, so that every byte is counted once.
                let charged = guest.charge(regime, now);
                in_machine = in_machine.saturating_add(guest.in_machine().min(charged));
            }
        }
        for guest in self.guests.values_mut() {
            guest.note_unsampled(now);
        }
        for measured in &sample.reservations {
            if let Some(reserved) = self.reservations.get_mut(&measured.id) {
                reserved.see(measured, now);
            }
        }
        self.machine = Some(Machine::new(sample, in_machine, now));
        if let Ok(total) = sample.memory_total {
            self.memory_total = Some(total);
        }
        self.watch_pressure(now, sample, out);
    }
}

fn next_wait(wait: Millis) -> Millis {
    Millis(wait.0.saturating_mul(2).clamp(END_RETRY.0, END_RETRY_MAX.0))
}
