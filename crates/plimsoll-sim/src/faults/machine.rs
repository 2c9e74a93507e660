//! A machine and the guests that are really on it, and drivers that take their time and fail.

use std::collections::BTreeMap;

use plimsoll_host::{
    CallId, DriverCall, DriverOp, DriverResult, Found, FoundState, GuestSample, HostInput, Sample,
};
use plimsoll_types::{
    BasisPoints, Counted, GuestSpec, Mib, MilliCpu, Millis, PauseKind, SandboxId, Timestamp,
};

use crate::rng::Rng;

/// The longest that a driver takes, however slow: four minutes.
const LONGEST: u64 = 240_000;

/// What a guest really is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Starting,
    Running,
    Frozen,
    Checkpointed,
    Exited(Option<i32>),
}

impl Body {
    /// Whether it is a copy of the guest: it runs, or could run on from where it is.
    pub(super) const fn is_copy(self) -> bool {
        !matches!(self, Self::Exited(_))
    }

    const fn has_process(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Frozen)
    }

    fn found(self) -> FoundState {
        match self {
            Self::Starting | Self::Running => FoundState::Running,
            Self::Frozen => FoundState::Frozen,
            Self::Checkpointed => FoundState::Checkpointed,
            Self::Exited(code) => FoundState::Exited { code },
        }
    }
}

/// A guest that is really there.
#[derive(Clone, Debug)]
pub(super) struct Actual {
    pub(super) spec: Box<GuestSpec>,
    pub(super) body: Body,
    /// Since when its process has run.
    since: Timestamp,
    /// Share of its configured memory that it comes to, and how long it takes.
    peak_bp: u64,
    ramp: Millis,
    /// Thousandths of a core that it keeps busy while it runs.
    busy: u64,
}

impl Actual {
    fn resident(&self, now: Timestamp) -> Mib {
        if !self.body.has_process() {
            return Mib::ZERO;
        }
        let peak = self.spec.memory_mib.0 * self.peak_bp / 10_000;
        let age = now.since(self.since).0.min(self.ramp.0);
        // A twentieth at once, the rest by age.
        Mib(peak / 20 + (peak - peak / 20) * age / self.ramp.0.max(1))
    }
}

/// How drivers behave at the moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mood {
    /// Every start fails at once.
    pub(super) black_hole: bool,
    /// Calls take so many times as long; 0 is as usual.
    pub(super) slow: u64,
    /// Pauses fail, in a thousand.
    pub(super) pause_fails: u64,
    /// Calls break off without a word, in a thousand.
    pub(super) unknown: u64,
    /// Calls of any kind fail, in a thousand.
    pub(super) fails: u64,
    /// Memory that something outside takes.
    pub(super) outside: u64,
    /// Memory pressure.
    pub(super) pressure_bp: u64,
}

/// A driver call under way.
#[derive(Clone, Debug)]
struct Flight {
    id: SandboxId,
    attempt: u32,
    op: DriverOp,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    Failed,
    /// It breaks off; whether it was carried out, and whether a second look tells.
    Unknown {
        done: bool,
        seen: bool,
    },
}

/// A machine with its drivers.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) total: Mib,
    system: Mib,
    cpu: MilliCpu,
    pub(super) guests: BTreeMap<(SandboxId, u32), Actual>,
    flights: BTreeMap<CallId, Flight>,
    pub(super) mood: Mood,
    /// CPU that each attempt of a guest has used here, dead or alive, up to `at`, in thousandths of
    /// a core-millisecond.
    ran: BTreeMap<(SandboxId, u32), u64>,
    at: Timestamp,
}

/// Thousandths of a core that guests keep busy: shells that wait, and some that work.
const BUSY: [u64; 5] = [4, 10, 100, 100, 250];

impl Machine {
    pub(super) fn new(total: Mib, system: Mib, cpu: MilliCpu) -> Self {
        Self {
            total,
            system,
            cpu,
            guests: BTreeMap::new(),
            flights: BTreeMap::new(),
            mood: Mood::default(),
            ran: BTreeMap::new(),
            at: Timestamp(0),
        }
    }

    /// Counts what has run until now. Before every change of what runs.
    pub(super) fn advance(&mut self, now: Timestamp) {
        let passed = now.since(std::mem::replace(&mut self.at, now));
        for (key, actual) in &self.guests {
            if actual.body == Body::Running {
                *self.ran.entry(*key).or_default() += passed.0 * actual.busy;
            }
        }
    }

    /// CPU that an attempt has used over its whole life, in core-milliseconds.
    fn cpu_millis(&self, id: SandboxId, attempt: u32) -> u64 {
        self.ran.get(&(id, attempt)).map_or(0, |ran| ran / 1_000)
    }

    /// All CPU that was used here, by guest.
    pub(super) fn used(&self) -> impl Iterator<Item = (SandboxId, u64)> {
        self.ran.iter().map(|((id, _), ran)| (*id, ran / 1_000))
    }

    /// What a driver tells of a guest outside a sample.
    fn told(&self, id: SandboxId, attempt: u32) -> HostInput {
        HostInput::Used {
            id,
            attempt,
            cpu_millis_total_used: Some(self.cpu_millis(id, attempt)),
            egress_bytes_total: None,
        }
    }

    /// Last counters that come with the end of a call after which nobody measures the guest.
    pub(super) fn last_use(&mut self, now: Timestamp, call: CallId) -> Option<HostInput> {
        self.advance(now);
        let Flight { id, attempt, op, .. } = self.flights.get(&call)?;
        let checkpoint = DriverOp::Pause { kind: PauseKind::Checkpoint };
        let told = matches!(op, DriverOp::Stop | DriverOp::End) || *op == checkpoint;
        told.then(|| self.told(*id, *attempt))
    }

    /// The same for guests at rest that an agent finds at its start.
    pub(super) fn last_uses(&self) -> Vec<HostInput> {
        let at_rest = self.guests.iter().filter(|(_, actual)| !actual.body.has_process());
        at_rest.map(|((id, attempt), _)| self.told(*id, *attempt)).collect()
    }

    fn put(&mut self, now: Timestamp, spec: Box<GuestSpec>, body: Body, rng: &mut Rng) {
        let key = (spec.id, spec.attempt);
        let peak_bp = rng.between(500, 10_000);
        let ramp = Millis::from_seconds(rng.between(5, 120));
        let busy = rng.pick(&BUSY).copied().unwrap_or(100);
        self.guests.insert(key, Actual { spec, body, since: now, peak_bp, ramp, busy });
    }

    /// Begins a driver call; it is done after the time that comes back.
    pub(super) fn begin(&mut self, now: Timestamp, call: &DriverCall, rng: &mut Rng) -> Millis {
        self.advance(now);
        let DriverCall { id, attempt, op, .. } = call;
        let usual = match op {
            DriverOp::Start { .. } => rng.between(50, 3_000),
            DriverOp::Pause { kind: PauseKind::Checkpoint } => rng.between(1_000, 60_000),
            DriverOp::Pause { .. } => rng.between(5, 50),
            DriverOp::Resume { from: PauseKind::Checkpoint } => rng.between(200, 4_000),
            DriverOp::Resume { .. } => rng.between(5, 50),
            DriverOp::Stop => rng.between(10, 500),
            DriverOp::End => rng.between(10, 1_000),
        };
        let fate = self.fate(op, rng);
        let mut time = (usual * self.mood.slow.max(1)).min(LONGEST);
        if self.mood.black_hole && matches!(op, DriverOp::Start { .. }) {
            time = rng.between(1, 20);
        }
        if *op == DriverOp::End {
            // It overtakes whatever is under way with the guest.
            let overtaken: Vec<CallId> = self
                .flights
                .iter()
                .filter(|(_, flight)| (flight.id, flight.attempt) == (*id, *attempt))
                .map(|(call, _)| *call)
                .collect();
            for call in overtaken {
                self.flights.remove(&call);
            }
        }
        if let DriverOp::Start { guest, .. } = op {
            self.put(now, guest.clone(), Body::Starting, rng);
        }
        let flight = Flight { id: *id, attempt: *attempt, op: op.clone(), fate };
        self.flights.insert(call.call, flight);
        Millis(time)
    }

    fn fate(&self, op: &DriverOp, rng: &mut Rng) -> Fate {
        let mood = &self.mood;
        let starts = matches!(op, DriverOp::Start { .. });
        let pauses = matches!(op, DriverOp::Pause { .. });
        if (starts && mood.black_hole)
            || (pauses && rng.chance(mood.pause_fails))
            || rng.chance(mood.fails)
        {
            Fate::Failed
        } else if rng.chance(mood.unknown) {
            Fate::Unknown { done: rng.chance(500), seen: rng.chance(700) }
        } else {
            Fate::Done
        }
    }

    /// A driver call comes out; `None` for one that was overtaken.
    pub(super) fn finish(&mut self, now: Timestamp, call: CallId) -> Option<DriverResult> {
        let Flight { id, attempt, op, fate } = self.flights.remove(&call)?;
        let done = matches!(fate, Fate::Done | Fate::Unknown { done: true, .. });
        let carried_out = if done { self.carry_out(now, id, attempt, &op) } else { Ok(()) };
        if !done {
            self.undo(id, attempt, &op);
        }
        let detail = "the driver says so".to_owned();
        Some(match (fate, carried_out) {
            (Fate::Done, Ok(())) => DriverResult::Done,
            (_, Err(why)) => DriverResult::Failed { detail: why.to_owned() },
            (Fate::Failed, _) => DriverResult::Failed { detail },
            (Fate::Unknown { seen, .. }, _) => {
                let state = self.guests.get(&(id, attempt)).map(|actual| actual.body.found());
                let found = seen.then_some(state.unwrap_or(FoundState::Gone));
                DriverResult::Unknown { detail: "it took too long".to_owned(), found }
            }
        })
    }

    fn carry_out(
        &mut self,
        now: Timestamp,
        id: SandboxId,
        attempt: u32,
        op: &DriverOp,
    ) -> Result<(), &'static str> {
        if *op == DriverOp::End {
            // With all that it left behind, what an earlier attempt left included.
            self.guests.retain(|(of, earlier), _| *of != id || *earlier > attempt);
            return Ok(());
        }
        if let DriverOp::Start { guest, previous } = op {
            let source = guest.fork_of;
            if source.is_some_and(|source| !self.guests.keys().any(|(id, _)| *id == source)) {
                self.undo(id, attempt, op);
                return Err("the guest to fork from is gone");
            }
            if let Some(previous) = previous.filter(|previous| *previous != attempt) {
                self.guests.remove(&(id, previous));
            }
        }
        let Some(actual) = self.guests.get_mut(&(id, attempt)) else {
            return Err("there is no such guest");
        };
        match op {
            DriverOp::Start { .. } => {
                actual.body = Body::Running;
                actual.since = now;
            }
            DriverOp::Pause { kind: PauseKind::Checkpoint } => match actual.body {
                Body::Running | Body::Frozen => actual.body = Body::Checkpointed,
                _ => return Err("there is nothing to pause"),
            },
            DriverOp::Pause { .. } => match actual.body {
                Body::Running => actual.body = Body::Frozen,
                _ => return Err("there is nothing to pause"),
            },
            DriverOp::Resume { .. } => match actual.body {
                Body::Frozen => actual.body = Body::Running,
                Body::Checkpointed => {
                    actual.body = Body::Running;
                    actual.since = now;
                }
                Body::Running => {}
                _ => return Err("there is nothing to resume"),
            },
            DriverOp::Stop => actual.body = Body::Exited(Some(143)),
            DriverOp::End => {}
        }
        Ok(())
    }

    /// A call was not carried out: what it had begun is taken back.
    fn undo(&mut self, id: SandboxId, attempt: u32, op: &DriverOp) {
        let DriverOp::Start { previous, .. } = op else { return };
        if *previous == Some(attempt) {
            if let Some(actual) = self.guests.get_mut(&(id, attempt)) {
                actual.body = Body::Exited(None);
            }
        } else {
            self.guests.remove(&(id, attempt));
        }
    }

    /// The agent is gone: each call under way was carried out or was not.
    pub(super) fn orphan(&mut self, now: Timestamp, rng: &mut Rng) {
        self.advance(now);
        for (_, Flight { id, attempt, op, fate }) in std::mem::take(&mut self.flights) {
            if fate != Fate::Failed && rng.chance(500) {
                let _ = self.carry_out(now, id, attempt, &op);
            } else {
                self.undo(id, attempt, &op);
            }
        }
    }

    /// The machine is started anew: no process is left, disks are.
    pub(super) fn reboot(&mut self, rng: &mut Rng) {
        self.guests.retain(|_, actual| {
            if actual.body.has_process() {
                actual.body = Body::Exited(None);
                return rng.chance(700);
            }
            true
        });
    }

    pub(super) fn found(&self, rng: &mut Rng) -> Vec<Found> {
        let keeps = rng.chance(300);
        self.guests
            .iter()
            .map(|((id, attempt), actual)| Found {
                id: *id,
                attempt: *attempt,
                state: actual.body.found(),
                spec: keeps.then(|| actual.spec.clone()),
            })
            .collect()
    }

    /// The state in which a driver that is asked now finds a guest, while no call is under way.
    pub(super) fn observed(&self, id: SandboxId, attempt: u32) -> FoundState {
        self.guests.get(&(id, attempt)).map_or(FoundState::Gone, |actual| actual.body.found())
    }

    pub(super) fn is_checkpointing(&self) -> bool {
        let pause = DriverOp::Pause { kind: PauseKind::Checkpoint };
        self.flights.values().any(|flight| flight.op == pause)
    }

    pub(super) fn is_busy(&self, id: SandboxId) -> bool {
        self.flights.values().any(|flight| flight.id == id)
    }

    pub(super) fn sample(&mut self, now: Timestamp) -> Sample {
        self.advance(now);
        let mut used = self.system.0 + self.mood.outside;
        let mut guests = Vec::new();
        for ((id, attempt), actual) in &self.guests {
            if !actual.body.has_process() {
                continue;
            }
            let resident = actual.resident(now);
            used += resident.0 + actual.spec.overhead_mib.0;
            guests.push(GuestSample {
                id: *id,
                attempt: *attempt,
                resident: Ok(resident),
                in_machine: true,
                cpu_millis_total_used: Some(self.cpu_millis(*id, *attempt)),
                egress_bytes_total: None,
                last_active_at: None,
            });
        }
        let used = used.min(self.total.0);
        Sample {
            memory_total: Ok(self.total),
            memory_used: Ok(Mib(used)),
            memory_available: Ok(Mib(self.total.0 - used)),
            cpu_total: Ok(self.cpu),
            cpu_used: Ok(MilliCpu(self.cpu.0 / 10)),
            pressure_some: Ok(BasisPoints(self.mood.pressure_bp)),
            pressure_full: Ok(BasisPoints(self.mood.pressure_bp / 3)),
            counted: Counted::new(),
            guests,
            reservations: Vec::new(),
        }
    }
}
