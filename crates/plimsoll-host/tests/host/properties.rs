//! Whatever comes in, in whatever order: what must hold on a host holds after every step.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_host::{
    CallId, DriverCall, DriverOp, DriverResult, Found, FoundState, GuestSample, Host, HostEffect,
    HostInput, HostTime, JournalEntry, Token,
};
use plimsoll_policy::charge::{Need, Shape, admission_charge, need};
use plimsoll_types::{
    BasisPoints, Driver, Fence, GuestSpec, HeartbeatAnswer, HostCommand, HostOp, Mib, Millis,
    PauseKind, Regime, SandboxId, Timestamp, Vcpus,
};
use proptest::prelude::*;

use crate::rig::{config, sample, spec};

#[derive(Clone, Debug)]
enum Step {
    /// A command about one of few guests, with the next number, or a number `back` from it.
    Command {
        kind: u8,
        guest: u8,
        attempt: u8,
        back: u8,
        epoch_up: bool,
        stateful: bool,
    },
    /// One of the calls in flight comes out.
    Done {
        which: u8,
        how: u8,
    },
    Exit {
        guest: u8,
    },
    Sample {
        system: u16,
        resident: u16,
        psi: u16,
        blind: bool,
    },
    Pass {
        millis: u32,
    },
    Beat {
        heard: bool,
        unexpected: bool,
    },
    /// The agent is killed and started anew; calls in flight are lost half-way.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..7_u8, 0..6_u8, 1..3_u8, 0..12_u8, prop::bool::weighted(0.03), any::<bool>())
            .prop_map(|(kind, guest, attempt, back, epoch_up, stateful)| Step::Command {
                kind,
                guest,
                attempt,
                back,
                epoch_up,
                stateful
            }),
        6 => (any::<u8>(), 0..10_u8).prop_map(|(which, how)| Step::Done { which, how }),
        1 => (0..6_u8).prop_map(|guest| Step::Exit { guest }),
        3 => (0..20_000_u16, 0..6_000_u16, 0..6_000_u16, prop::bool::weighted(0.1)).prop_map(
            |(system, resident, psi, blind)| Step::Sample { system, resident, psi, blind }
        ),
        3 => (0..40_000_u32).prop_map(|millis| Step::Pass { millis }),
        2 => (any::<bool>(), any::<bool>())
            .prop_map(|(heard, unexpected)| Step::Beat { heard, unexpected }),
        1 => Just(Step::Restart),
    ]
}

/// What a machine would be: processes by guest and attempt, as the drivers have made them.
struct World {
    host: Host,
    regime: Regime,
    now: HostTime,
    journal: Vec<JournalEntry>,
    machine: BTreeMap<(SandboxId, u32), FoundState>,
    in_flight: BTreeMap<CallId, DriverCall>,
    asked: BTreeSet<u64>,
    answered: BTreeSet<u64>,
    ended: BTreeMap<SandboxId, u32>,
    number: u64,
    epoch: u64,
    token: u64,
    published: u64,
    highest_epoch: u64,
    boot: u32,
}

const MACHINE_MIB: u64 = 16 * 1024;

fn configured(regime: Regime, boot: u32) -> plimsoll_host::HostConfig {
    let mut config = config();
    config.regime = Some(regime);
    config.starts_limit = Some(3);
    config.boot_id = format!("boot-{boot}");
    config
}

fn guest(id: u8, attempt: u8, stateful: bool) -> GuestSpec {
    let mut spec = spec(u128::from(id));
    spec.attempt = u32::from(attempt);
    spec.stateful = stateful;
    spec.driver = if id.is_multiple_of(2) { Driver::Process } else { Driver::Gvisor };
    spec.memory_mib = Mib(2048 + 1024 * u64::from(id));
    spec.overhead_mib = Mib(u64::from(id) * 10);
    spec.priority = i32::from(id % 3);
    spec
}

fn shape(spec: &GuestSpec) -> Shape {
    Shape {
        memory: spec.memory_mib,
        overhead: spec.overhead_mib,
        vcpus: Vcpus(1),
        stateful: spec.stateful,
    }
}

impl World {
    fn new(regime: Regime) -> Self {
        let mut world = Self {
            host: Host::new(configured(regime, 0)),
            regime,
            now: HostTime { clock: Timestamp(1_800_000_000_000), uptime: Millis(1_000_000) },
            journal: vec![JournalEntry::Machine { boot: "machine-1".to_owned() }],
            machine: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            asked: BTreeSet::new(),
            answered: BTreeSet::new(),
            ended: BTreeMap::new(),
            number: 0,
            epoch: 1,
            token: 0,
            published: 0,
            highest_epoch: 0,
            boot: 0,
        };
        world.input(HostInput::Adopted { found: vec![], foreign: vec![] }, None);
        world.input(HostInput::Registered { incarnation: 1 }, None);
        world
    }

    /// Feeds an input and holds what comes out against what must hold. `fence` is the command's.
    fn input(&mut self, input: HostInput, fence: Option<Fence>) {
        let before = self.host.account(self.now).ok();
        let is_retry = matches!(input, HostInput::Tick);
        let mut out = Vec::new();
        self.host.handle(self.now, input, &mut out);
        let mut announced = BTreeSet::new();
        for effect in out {
            match effect {
                HostEffect::Journal(entry) => {
                    match &entry {
                        JournalEntry::Start { guest, .. } => {
                            announced.insert(guest.id);
                        }
                        JournalEntry::Act { id, .. } => {
                            announced.insert(*id);
                        }
                        JournalEntry::Gone { id, attempt, .. } => {
                            let ended = self.ended.entry(*id).or_default();
                            *ended = (*ended).max(*attempt);
                        }
                        _ => {}
                    }
                    self.journal.push(entry);
                }
                HostEffect::Answer { token, .. } => {
                    assert!(self.answered.insert(token.0), "one answer for one command");
                }
                HostEffect::Driver(call) => {
                    let retried = is_retry || call.op == DriverOp::End;
                    assert!(announced.contains(&call.id) || retried, "journaled before begun");
                    self.check_call(&call, before, fence);
                    if call.op == DriverOp::End {
                        self.break_off(&call);
                    }
                    self.in_flight.insert(call.call, call);
                }
                HostEffect::HeartbeatNow | HostEffect::Event(_) => {}
            }
        }
        assert!(self.host.starts_in_flight() <= 3);
    }

    fn check_call(
        &self,
        call: &DriverCall,
        before: Option<plimsoll_host::Account>,
        fence: Option<Fence>,
    ) {
        if let Some(fence) = fence {
            assert!(fence.epoch >= self.highest_epoch, "nothing of an older epoch is begun");
            assert!(fence.number > self.published, "nothing is begun that was accounted for");
        }
        match &call.op {
            DriverOp::Start { guest, .. } => {
                let ended = self.ended.get(&guest.id).copied().unwrap_or(0);
                assert!(guest.attempt > ended, "an ended attempt never comes back");
                let live = self.machine.iter().any(|((id, _), state)| {
                    *id == guest.id && matches!(state, FoundState::Running | FoundState::Frozen)
                });
                assert!(!live, "one guest runs once");
                self.check_room(guest, before);
            }
            DriverOp::Resume { from: PauseKind::Checkpoint } => {
                let spec = self.host.spec(call.id).unwrap();
                self.check_room(spec, before);
            }
            DriverOp::Pause { .. } | DriverOp::Stop if fence.is_none() => {
                let spec = self.host.spec(call.id).unwrap();
                assert!(!spec.stateful, "pressure never touches a stateful guest (I4)");
            }
            _ => {}
        }
    }

    /// I3 and I4, by the figures before the admission.
    fn check_room(&self, spec: &GuestSpec, before: Option<plimsoll_host::Account>) {
        let before = before.expect("a host that knows nothing admits nothing");
        assert!(!self.host.gate_is_shut(), "a shut gate lets nobody in");
        let after = self.host.account(self.now).unwrap();
        if need(self.regime, &spec.reserve, &shape(spec)) != Need::Anything {
            let charge = admission_charge(self.regime, &spec.reserve, &shape(spec));
            assert!(before.admittable >= charge.signed());
            assert!(after.charged.signed() <= after.budget, "I3");
        }
        if spec.stateful {
            assert!(after.stateful.signed() <= after.budget, "I4");
        }
    }

    fn command(&mut self, op: HostOp, back: u64, epoch_up: bool) {
        if epoch_up {
            self.epoch += 1;
        }
        // Mostly the next number; else one that was used before or was left out.
        let number = if back < 8 {
            self.number += 1 + u64::from(back == 7);
            self.number
        } else {
            self.number.saturating_sub(back - 8)
        };
        let epoch = if back == 11 { self.epoch.saturating_sub(1) } else { self.epoch };
        let fence = Fence { epoch, number };
        self.token += 1;
        self.asked.insert(self.token);
        let token = Token(self.token);
        let command = Box::new(HostCommand { fence, deadline_uptime_millis: None, op });
        self.input(HostInput::Command { token, command }, Some(fence));
        // Commands that were answered as fenced do not raise the epoch; those taken do.
        if epoch >= self.highest_epoch && number > self.published {
            self.highest_epoch = epoch;
        }
    }

    /// What the machine does on a call, and what its driver says of it.
    fn done(&mut self, which: u8, how: u8) {
        let Some(call) = self
            .in_flight
            .keys()
            .nth(usize::from(which) % self.in_flight.len().max(1))
            .and_then(|call| self.in_flight.get(call).cloned())
        else {
            return;
        };
        self.in_flight.remove(&call.call);
        let key = (call.id, call.attempt);
        let ended = matches!(self.machine.get(&key), Some(FoundState::Exited { .. }))
            && matches!(call.op, DriverOp::Pause { .. } | DriverOp::Resume { .. });
        let how = if ended { 7 } else { how };
        if how < 7 {
            self.carry_out(&call);
        }
        let result = match how {
            0..=6 => DriverResult::Done,
            7 | 8 => DriverResult::Failed { detail: "failed".to_owned() },
            _ => DriverResult::Unknown {
                detail: "took too long".to_owned(),
                found: Some(self.machine.get(&key).copied().unwrap_or(FoundState::Gone)),
            },
        };
        self.input(HostInput::DriverDone { call: call.call, result }, None);
    }

    /// An end breaks off what is under way with its guest, before or after that has come about.
    fn break_off(&mut self, end: &DriverCall) {
        let older: Vec<DriverCall> = self
            .in_flight
            .values()
            .filter(|call| (call.id, call.attempt) == (end.id, end.attempt))
            .cloned()
            .collect();
        for call in older {
            self.in_flight.remove(&call.call);
            if call.call.0 % 2 == 0 {
                self.carry_out(&call);
            }
        }
    }

    fn carry_out(&mut self, call: &DriverCall) {
        let key = (call.id, call.attempt);
        let ended = matches!(self.machine.get(&key), Some(FoundState::Exited { .. }));
        if ended && !matches!(call.op, DriverOp::Start { .. } | DriverOp::End) {
            return;
        }
        match &call.op {
            DriverOp::Start { previous, .. } => {
                if let Some(previous) = previous {
                    self.machine.remove(&(call.id, *previous));
                }
                self.machine.insert(key, FoundState::Running);
            }
            DriverOp::Pause { kind: PauseKind::Checkpoint } => {
                self.machine.insert(key, FoundState::Checkpointed);
            }
            DriverOp::Pause { .. } => {
                self.machine.insert(key, FoundState::Frozen);
            }
            DriverOp::Resume { .. } => {
                self.machine.insert(key, FoundState::Running);
            }
            DriverOp::Stop => {
                self.machine.insert(key, FoundState::Exited { code: None });
            }
            DriverOp::End => {
                self.machine.remove(&key);
            }
        }
    }

    fn sample(&mut self, system: u64, resident: u64, psi: u32, blind: bool) {
        let guests: Vec<GuestSample> = self
            .host
            .measurable()
            .map(|spec| GuestSample {
                id: spec.id,
                attempt: spec.attempt,
                resident: if blind { Err("blind".to_owned()) } else { Ok(Mib(resident)) },
                in_machine: true,
                cpu_millis_total_used: Some(self.now.uptime.0),
                egress_bytes_total: None,
                last_active_at: None,
            })
            .collect();
        let used = (system / 4 + resident * guests.len() as u64).min(MACHINE_MIB);
        let mut seen = sample(used);
        seen.memory_total = Ok(Mib(MACHINE_MIB));
        seen.memory_available = Ok(Mib(MACHINE_MIB - used));
        seen.pressure_some = Ok(BasisPoints(u64::from(psi)));
        seen.guests = guests;
        self.input(HostInput::Sample(Box::new(seen)), None);
    }

    fn beat(&mut self, heard: bool, unexpected: bool) {
        let report = self.host.heartbeat(self.now);
        self.published = report.seen_through.unwrap();
        let sequence = report.sequence;
        if heard {
            let unexpected_guests = if unexpected {
                report.guests.iter().map(|guest| guest.id.to_string()).take(1).collect()
            } else {
                vec![]
            };
            let answer = Box::new(HeartbeatAnswer {
                accepted: true,
                unexpected_guests,
                ..HeartbeatAnswer::default()
            });
            self.input(HostInput::HeartbeatAnswered { sequence, answer }, None);
        } else {
            self.input(HostInput::HeartbeatFailed, None);
        }
    }

    fn restart(&mut self) {
        // Half of what was under way has come about before the agent died.
        let in_flight: Vec<DriverCall> =
            core::mem::take(&mut self.in_flight).into_values().collect();
        let lost = !in_flight.is_empty();
        for (place, call) in in_flight.into_iter().enumerate() {
            if place % 2 == 0 {
                self.carry_out(&call);
            }
        }
        let before = self.host.account(self.now).ok();
        let unread = self.host.report(self.now).guests;
        self.published = self.published.max(self.host.report(self.now).seen_through.unwrap());
        // Commands that waited for the old agent get no answer from the new one.
        self.answered.extend(self.asked.iter().copied());
        self.boot += 1;
        let config = configured(self.regime, self.boot);
        self.host = Host::restore(config, self.journal.iter().cloned());
        let found: Vec<Found> = self
            .machine
            .iter()
            .map(|((id, attempt), state)| Found {
                id: *id,
                attempt: *attempt,
                state: *state,
                spec: None,
            })
            .collect();
        self.input(HostInput::Adopted { found, foreign: vec![] }, None);
        self.input(HostInput::Registered { incarnation: u64::from(self.boot) + 1 }, None);
        assert!(self.host.account(self.now).is_err(), "not measured since the start");
        if lost || before.is_none() {
            return;
        }
        // The same measurement as before brings the same charges, guest by guest. Left out are
        // those whose age alone decides, which only grows: a sample now may settle them.
        let guests: Vec<GuestSample> = unread
            .iter()
            .filter_map(|guest| {
                let plimsoll_types::ClaimId::Sandbox(id) = guest.id else { return None };
                let overhead = self.host.spec(id)?.overhead_mib;
                Some(GuestSample {
                    id,
                    attempt: guest.attempt,
                    resident: Ok(guest.resident_mib?.saturating_sub(overhead)),
                    in_machine: true,
                    cpu_millis_total_used: None,
                    egress_bytes_total: None,
                    last_active_at: None,
                })
            })
            .collect();
        let mut seen = sample(0);
        seen.guests = guests;
        self.input(HostInput::Sample(Box::new(seen)), None);
        let after = self.host.report(self.now).guests;
        for old in unread.iter().filter(|guest| guest.measured) {
            let new = after.iter().find(|guest| guest.id == old.id);
            assert_eq!(new.map(|new| new.charge_mib), Some(old.charge_mib), "{old:?}");
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Command { kind, guest: id, attempt, back, epoch_up, stateful } => {
                let (number, attempt_number) = (SandboxId(u128::from(id)), u32::from(attempt));
                let op = match kind {
                    0..=2 => {
                        HostOp::Start { guest: Box::new(guest(id, attempt, stateful && id == 5)) }
                    }
                    3 => HostOp::Pause {
                        id: number,
                        attempt: attempt_number,
                        kind: PauseKind::Driver,
                    },
                    4 => HostOp::Resume { id: number, attempt: attempt_number },
                    5 => HostOp::Stop { id: number, attempt: attempt_number },
                    _ => HostOp::End { id: number, attempt: attempt_number },
                };
                self.command(op, u64::from(back), epoch_up);
            }
            Step::Done { which, how } => self.done(which, how),
            Step::Exit { guest } => {
                let id = SandboxId(u128::from(guest));
                let running = self
                    .machine
                    .iter_mut()
                    .find(|((at, _), state)| *at == id && **state == FoundState::Running);
                if let Some(((_, attempt), state)) = running {
                    *state = FoundState::Exited { code: Some(1) };
                    let attempt = *attempt;
                    self.input(HostInput::GuestExited { id, attempt, code: Some(1) }, None);
                }
            }
            Step::Sample { system, resident, psi, blind } => {
                self.sample(u64::from(system), u64::from(resident), u32::from(psi), blind);
            }
            Step::Pass { millis } => {
                self.now.uptime.0 += u64::from(millis);
                self.now.clock = self.now.clock + Millis(u64::from(millis));
                self.input(HostInput::Tick, None);
            }
            Step::Beat { heard, unexpected } => self.beat(heard, unexpected),
            Step::Restart => self.restart(),
        }
    }

    /// Lets everything under way come out well: then everybody has an answer, and what the host
    /// says runs is what runs.
    fn finish(&mut self) {
        let mut rounds = 0;
        while !self.in_flight.is_empty() {
            self.done(0, 0);
            rounds += 1;
            assert!(rounds < 10_000, "it comes to an end");
        }
        assert_eq!(self.asked, self.answered, "every command has its answer");
        let report = self.host.report(self.now);
        let said: BTreeSet<String> = report
            .guests
            .iter()
            .filter(|guest| guest.status == plimsoll_types::GuestStatus::Running)
            .map(|guest| format!("{}.{}", guest.id, guest.attempt))
            .collect();
        let real: BTreeSet<String> = self
            .machine
            .iter()
            .filter(|(_, state)| **state == FoundState::Running)
            .map(|((id, attempt), _)| format!("{id}.{attempt}"))
            .collect();
        let mut ending: BTreeSet<String> = report
            .guests
            .iter()
            .filter(|guest| guest.status == plimsoll_types::GuestStatus::Ending)
            .map(|guest| format!("{}.{}", guest.id, guest.attempt))
            .collect();
        ending.extend(said.iter().cloned());
        assert!(said.is_subset(&real), "{said:?} of {real:?}");
        assert!(real.is_subset(&ending), "{real:?} in {ending:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_in(
        regime in prop::sample::select(Regime::ALL),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(regime);
        world.sample(1_000, 100, 0, false);
        for step in steps {
            world.take(step);
        }
        world.finish();
    }
}
