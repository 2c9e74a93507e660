//! One guest on its host.

use plimsoll_policy::charge::{
    DecayRule, GuestLoad, Shape, admission_charge, guest_charge, is_measured, thawed_charge,
};
use plimsoll_types::{
    ClaimId, Fence, GuestReport, GuestSpec, GuestStatus, HostOutcome, Mib, Millis, PauseKind,
    Regime, Timestamp,
};

use crate::effect::CallId;
use crate::input::{FoundState, GuestSample, Token};
use crate::journal::Kept;
use crate::time::{HostTime, instant};

/// Where a guest stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its start is under way. `previous` is the attempt at rest whose disk it takes over.
    Starting { previous: Option<u32> },
    /// It runs.
    Running,
    /// Its pause is under way, from a frozen state where it was frozen before.
    Pausing { kind: PauseKind, frozen: bool },
    /// It is paused: [`PauseKind::Keep`] in memory, [`PauseKind::Checkpoint`] written out.
    Paused(PauseKind),
    /// Its resume is under way.
    Resuming { from: PauseKind },
    /// Its stop is under way.
    Stopping { from: FoundState },
    /// Its process has ended; disk and name are kept.
    Exited { code: Option<i32> },
    /// Its end is under way, or is to be tried again.
    Ending { memory: bool },
}

impl Phase {
    /// Whether a process holds memory on the machine.
    pub(crate) const fn holds_memory(self) -> bool {
        match self {
            Self::Starting { .. }
            | Self::Running
            | Self::Pausing { .. }
            | Self::Paused(PauseKind::Keep | PauseKind::Driver)
            | Self::Resuming { .. }
            | Self::Stopping { from: FoundState::Running | FoundState::Frozen } => true,
            Self::Paused(PauseKind::Checkpoint) | Self::Stopping { .. } | Self::Exited { .. } => {
                false
            }
            Self::Ending { memory } => memory,
        }
    }

    /// Whether it counts against the bound of concurrent starts: what builds up a process does, a
    /// thaw does not.
    pub(crate) const fn is_start(self) -> bool {
        matches!(self, Self::Starting { .. } | Self::Resuming { from: PauseKind::Checkpoint })
    }

    /// The state that a guest falls back to when what is under way does not work.
    pub(crate) const fn before(self) -> FoundState {
        match self {
            Self::Pausing { frozen: true, .. }
            | Self::Resuming { from: PauseKind::Keep | PauseKind::Driver }
            | Self::Paused(PauseKind::Keep | PauseKind::Driver) => FoundState::Frozen,
            Self::Resuming { from: PauseKind::Checkpoint }
            | Self::Paused(PauseKind::Checkpoint)
            | Self::Ending { memory: false } => FoundState::Checkpointed,
            Self::Exited { code } => FoundState::Exited { code },
            Self::Stopping { from } => from,
            Self::Starting { .. }
            | Self::Running
            | Self::Pausing { frozen: false, .. }
            | Self::Ending { memory: true } => FoundState::Running,
        }
    }

    const fn status(self) -> GuestStatus {
        match self {
            Self::Starting { .. } => GuestStatus::Starting,
            Self::Running => GuestStatus::Running,
            Self::Pausing { .. } => GuestStatus::Pausing,
            Self::Paused(_) => GuestStatus::Paused,
            Self::Resuming { .. } => GuestStatus::Resuming,
            Self::Exited { .. } => GuestStatus::Exited,
            Self::Stopping { .. } | Self::Ending { .. } => GuestStatus::Ending,
        }
    }
}

/// One guest of this cell.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) spec: Box<GuestSpec>,
    pub(crate) phase: Phase,
    /// The driver call in flight.
    pub(crate) call: Option<CallId>,
    /// Commands that wait for it.
    pub(crate) waiters: Vec<Token>,
    /// The last command about this guest.
    pub(crate) fence: Fence,
    /// How that came out, for a repeat of the very same.
    pub(crate) answered: Option<HostOutcome>,
    /// The uptime from which the reserve decays; `None` until the guest runs.
    pub(crate) since: Option<Millis>,
    /// Resident memory of the guest itself as last read.
    pub(crate) resident: Option<Mib>,
    /// Whether the last sample could not read it though there is a process.
    pub(crate) unread: bool,
    /// The uptime of the last reading.
    pub(crate) read_at: Option<Millis>,
    /// Highest total that its driver has told of this attempt, in core-milliseconds.
    pub(crate) cpu_millis: u64,
    /// The same in bytes sent out; `None` where the driver cannot tell.
    pub(crate) egress_bytes: Option<u64>,
    pub(crate) last_active_at: Option<Timestamp>,
    /// Why the host itself paused or stopped it.
    pub(crate) reason: Option<String>,
    /// Whether it was stopped by request.
    pub(crate) stopped: bool,
    /// Its process ended while its start was still under way.
    pub(crate) early_exit: Option<Option<i32>>,
    /// The host's revision at the last call that began or came out.
    pub(crate) touched: u64,
    /// Whether a call about it broke off and nobody could tell how it stands: it is looked at
    /// until somebody can, whatever it is taken for meanwhile.
    pub(crate) unsure: bool,
    /// Whether the last pause of it failed.
    pub(crate) pause_failed: bool,
    /// While it is being ended: every attempt up to this one.
    pub(crate) ending_through: u32,
    /// For a guest that could not be ended: when it is tried again, and the wait after that.
    pub(crate) retry_at: Option<Millis>,
    pub(crate) retry_wait: Millis,
}

impl Guest {
    pub(crate) fn new(spec: Box<GuestSpec>, fence: Fence, phase: Phase) -> Self {
        Self {
            spec,
            phase,
            call: None,
            waiters: Vec::new(),
            fence,
            answered: None,
            since: None,
            resident: None,
            unread: false,
            read_at: None,
            cpu_millis: 0,
            egress_bytes: None,
            last_active_at: None,
            reason: None,
            stopped: false,
            early_exit: None,
            touched: 0,
            unsure: false,
            pause_failed: false,
            ending_through: 0,
            retry_at: None,
            retry_wait: Millis::ZERO,
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        shape(&self.spec)
    }

    fn decay(&self) -> DecayRule {
        DecayRule {
            settle: Millis::from_seconds(self.spec.settle_seconds),
            decay: Millis::from_seconds(self.spec.decay_seconds),
        }
    }

    fn is_measured(&self) -> bool {
        match (self.since, self.read_at) {
            (Some(since), Some(read_at)) => {
                !self.unread && is_measured(instant(read_at), instant(since), &self.decay())
            }
            _ => false,
        }
    }

    /// What the guest costs the host's budget at this moment.
    pub(crate) fn charge(&self, regime: Regime, now: HostTime) -> Mib {
        if !self.phase.holds_memory() {
            return Mib::ZERO;
        }
        let shape = self.shape();
        let Some(since) = self.since else {
            return admission_charge(regime, &self.spec.reserve, &shape);
        };
        if self.unread && now.since(since).0 >= self.decay().settle.0 {
            // There is a process whose memory nobody can tell: all that it may have.
            return shape.full();
        }
        let load = GuestLoad {
            shape,
            resident: self.resident,
            measured: self.is_measured(),
            started_at: instant(since),
        };
        guest_charge(regime, &self.spec.reserve, &self.decay(), &load, instant(now.uptime))
    }

    /// What it will cost once it is thawed: its reserve anew, or the memory that it already has.
    pub(crate) fn charge_thawed(&self, regime: Regime) -> Mib {
        let shape = self.shape();
        let held = self.resident.unwrap_or(Mib::ZERO).saturating_add(shape.overhead);
        thawed_charge(regime, &self.spec.reserve, &shape, held)
    }

    /// The memory of this guest that is part of what the machine reports as used, as far as known.
    pub(crate) fn in_machine(&self) -> Mib {
        match self.resident {
            Some(resident) if self.phase.holds_memory() => {
                resident.saturating_add(self.spec.overhead_mib)
            }
            _ => Mib::ZERO,
        }
    }

    pub(crate) fn see(&mut self, sample: &GuestSample, now: HostTime) {
        match &sample.resident {
            Ok(resident) => {
                self.resident = Some(*resident);
                self.unread = false;
                self.read_at = Some(now.uptime);
            }
            Err(_) => self.unread = true,
        }
        self.see_totals(sample.cpu_millis_total_used, sample.egress_bytes_total);
        self.active_at(sample.last_active_at);
    }

    /// Totals never fall within an attempt: a lower one is an older one.
    pub(crate) fn see_totals(&mut self, cpu_millis: Option<u64>, egress_bytes: Option<u64>) {
        self.cpu_millis = self.cpu_millis.max(cpu_millis.unwrap_or(0));
        self.egress_bytes = self.egress_bytes.max(egress_bytes);
    }

    /// A sample has passed. A guest that has run for a while and was not in it is unread: no word
    /// about its memory is not the last word about it.
    pub(crate) fn note_unsampled(&mut self, now: HostTime) {
        let settled = self.since.is_some_and(|since| now.since(since) >= self.decay().settle);
        if settled && self.phase.holds_memory() && self.read_at != Some(now.uptime) {
            self.unread = true;
        }
    }

    pub(crate) fn active_at(&mut self, at: Option<Timestamp>) {
        self.last_active_at = self.last_active_at.max(at);
    }

    /// Takes over the totals of the same attempt as it was before it was stopped.
    pub(crate) fn go_on_counting(&mut self, old: &Self) {
        self.cpu_millis = old.cpu_millis;
        self.egress_bytes = old.egress_bytes;
        self.last_active_at = old.last_active_at;
    }

    /// The guest runs from now on, its reserve anew.
    pub(crate) fn run(&mut self, now: HostTime) {
        self.phase = Phase::Running;
        self.since = Some(now.uptime);
        self.read_at = None;
        self.unread = false;
        self.reason = None;
        self.stopped = false;
        self.active_at(Some(now.clock));
    }

    /// Its process is gone, and its memory with it.
    pub(crate) fn leave_memory(&mut self) {
        self.since = None;
        self.resident = None;
        self.read_at = None;
        self.unread = false;
    }

    /// The state as the journal keeps it; `None` while something is under way.
    pub(crate) fn settled(&self) -> Option<FoundState> {
        match self.phase {
            Phase::Running => Some(FoundState::Running),
            Phase::Paused(PauseKind::Checkpoint) => Some(FoundState::Checkpointed),
            Phase::Paused(_) => Some(FoundState::Frozen),
            Phase::Exited { code } => Some(FoundState::Exited { code }),
            _ => None,
        }
    }

    pub(crate) fn kept(&self) -> Kept {
        Kept {
            since: self.since,
            resident_mib: self.resident.filter(|_| self.phase == Phase::Paused(PauseKind::Keep)),
            cpu_millis_total: self.cpu_millis,
            egress_bytes_total: self.egress_bytes,
            last_active_at: self.last_active_at,
            reason: self.reason.clone(),
            stopped: self.stopped,
        }
    }

    /// Takes a state as the journal kept it.
    pub(crate) fn recall(&mut self, state: FoundState, kept: Kept) {
        self.phase = match state {
            FoundState::Running => Phase::Running,
            FoundState::Frozen => Phase::Paused(PauseKind::Keep),
            FoundState::Checkpointed => Phase::Paused(PauseKind::Checkpoint),
            FoundState::Exited { code } => Phase::Exited { code },
            FoundState::Gone => Phase::Exited { code: None },
        };
        self.since = kept.since;
        self.resident = kept.resident_mib;
        self.see_totals(Some(kept.cpu_millis_total), kept.egress_bytes_total);
        self.last_active_at = kept.last_active_at;
        self.reason = kept.reason;
        self.stopped = kept.stopped;
    }

    pub(crate) fn report(&self, regime: Regime, now: HostTime) -> GuestReport {
        let at_rest = !self.phase.holds_memory();
        GuestReport {
            id: ClaimId::Sandbox(self.spec.id),
            attempt: self.spec.attempt,
            status: self.phase.status(),
            memory_mib: self.spec.memory_mib,
            resident_mib: if at_rest {
                Some(Mib::ZERO)
            } else {
                self.resident
                    .filter(|_| !self.unread)
                    .map(|resident| resident.saturating_add(self.spec.overhead_mib))
            },
            charge_mib: self.charge(regime, now),
            measured: at_rest || self.is_measured(),
            cpu_millis_total_used: self.cpu_millis,
            egress_bytes_total: self.egress_bytes.unwrap_or(0),
            last_active_at: self.last_active_at,
            exit_code: match self.phase {
                Phase::Exited { code } => code,
                _ => None,
            },
            reason: self.reason.clone(),
        }
    }
}

/// The size of a guest as the policy's functions take it.
pub(crate) fn shape(spec: &GuestSpec) -> Shape {
    Shape {
        memory: spec.memory_mib,
        overhead: spec.overhead_mib,
        vcpus: spec.vcpus,
        stateful: spec.stateful,
    }
}
