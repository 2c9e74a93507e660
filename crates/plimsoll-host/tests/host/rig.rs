//! A host on a table: its clock, its drivers and its journal in the test's hands.

use std::collections::BTreeMap;

use plimsoll_host::{
    DriverCall, DriverResult, Found, Host, HostConfig, HostEffect, HostEvent, HostInput, HostTime,
    JournalEntry, Sample, Token,
};
use plimsoll_types::{
    BasisPoints, Counted, Driver, DriverSet, Fence, GuestSpec, HostCommand, HostId, HostOp,
    HostOutcome, Mib, MilliCpu, Millis, PauseKind, PoolName, ReserveRule, SandboxId, TemplateName,
    TenantId, Timestamp, Vcpus,
};

pub struct Rig {
    pub host: Host,
    pub now: HostTime,
    pub journal: Vec<JournalEntry>,
    pub calls: Vec<DriverCall>,
    pub answers: BTreeMap<u64, HostOutcome>,
    pub events: Vec<HostEvent>,
    pub heartbeats_asked: usize,
    pub next_number: u64,
    next_token: u64,
}

pub fn config() -> HostConfig {
    let mut config = HostConfig::new(
        HostId::new("host-1").unwrap(),
        PoolName::new("local").unwrap(),
        "boot-1".to_owned(),
        "machine-1".to_owned(),
    );
    config.drivers = DriverSet::EMPTY.with(Driver::Process).with(Driver::Gvisor);
    config.headroom = Some(Mib(1024));
    config
}

pub fn spec(id: u128) -> GuestSpec {
    GuestSpec {
        id: SandboxId(id),
        attempt: 1,
        tenant: TenantId::new("default").unwrap(),
        template: TemplateName::new("shell").unwrap(),
        driver: Driver::Process,
        memory_mib: Mib(4096),
        overhead_mib: Mib(0),
        vcpus: Vcpus(1),
        stateful: false,
        preemptible: true,
        priority: 0,
        command: vec!["sleep".to_owned(), "60".to_owned()],
        env: BTreeMap::from([("SECRET".to_owned(), "hunter2".to_owned())]),
        rootfs: None,
        baked: false,
        fork_of: None,
        counted: Counted::new(),
        reserve: ReserveRule::default(),
        settle_seconds: 3,
        decay_seconds: 120,
    }
}

/// A machine of 32 GiB in which `used` is in use, with no pressure.
pub fn sample(used: u64) -> Sample {
    Sample {
        memory_total: Ok(Mib(32 * 1024)),
        memory_used: Ok(Mib(used)),
        memory_available: Ok(Mib(32 * 1024 - used)),
        cpu_total: Ok(MilliCpu(16_000)),
        cpu_used: Ok(MilliCpu(1_000)),
        pressure_some: Ok(BasisPoints(0)),
        pressure_full: Ok(BasisPoints(0)),
        counted: Counted::new(),
        guests: Vec::new(),
        reservations: Vec::new(),
    }
}

pub fn measured(id: u128, resident: u64) -> plimsoll_host::GuestSample {
    plimsoll_host::GuestSample {
        id: SandboxId(id),
        attempt: 1,
        resident: Ok(Mib(resident)),
        in_machine: true,
        cpu_millis_total_used: Some(1000),
        egress_bytes_total: None,
        last_active_at: None,
    }
}

impl Rig {
    /// A host that has adopted nothing, is registered and has measured an idle machine.
    pub fn new(config: HostConfig) -> Self {
        let mut rig = Self::bare(Host::new(config));
        rig.adopt(vec![]);
        rig.input(HostInput::Registered { incarnation: 1 });
        rig.input(HostInput::Sample(Box::new(sample(0))));
        rig
    }

    pub fn bare(host: Host) -> Self {
        Self {
            host,
            now: HostTime { clock: Timestamp(1_800_000_000_000), uptime: Millis(1_000_000) },
            journal: Vec::new(),
            calls: Vec::new(),
            answers: BTreeMap::new(),
            events: Vec::new(),
            heartbeats_asked: 0,
            next_number: 1,
            next_token: 1,
        }
    }

    pub fn adopt(&mut self, found: Vec<Found>) {
        self.input(HostInput::Adopted { found, foreign: vec![] });
    }

    pub fn pass(&mut self, millis: u64) {
        self.now.uptime.0 += millis;
        self.now.clock = self.now.clock + Millis(millis);
    }

    /// Feeds one input and files what comes out.
    pub fn input(&mut self, input: HostInput) {
        let mut out = Vec::new();
        self.host.handle(self.now, input, &mut out);
        for effect in out {
            match effect {
                HostEffect::Journal(entry) => self.journal.push(entry),
                HostEffect::Driver(call) => self.calls.push(call),
                HostEffect::Answer { token, outcome } => {
                    let before = self.answers.insert(token.0, outcome);
                    assert_eq!(before, None, "one answer for one command");
                }
                HostEffect::HeartbeatNow => self.heartbeats_asked += 1,
                HostEffect::Event(event) => self.events.push(event),
            }
        }
    }

    pub fn send_as(&mut self, fence: Fence, deadline: Option<u64>, op: HostOp) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let command = HostCommand { fence, deadline_uptime_millis: deadline, op };
        self.input(HostInput::Command { token: Token(token), command: Box::new(command) });
        token
    }

    /// Sends a command with the next number of epoch 1.
    pub fn send(&mut self, op: HostOp) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.send_as(Fence { epoch: 1, number }, None, op)
    }

    pub fn done(&mut self, result: DriverResult) {
        let call = self.calls.remove(0).call;
        self.input(HostInput::DriverDone { call, result });
    }

    /// Starts a guest all the way.
    pub fn run(&mut self, spec: GuestSpec) {
        let token = self.send(start(spec));
        self.done(DriverResult::Done);
        assert_eq!(self.answers[&token], HostOutcome::Done);
    }

    pub fn admittable(&self) -> i64 {
        self.host.account(self.now).unwrap().admittable
    }

    pub fn charged(&self) -> u64 {
        self.host.account(self.now).unwrap().charged.0
    }
}

pub fn start(spec: GuestSpec) -> HostOp {
    HostOp::Start { guest: Box::new(spec) }
}

pub fn pause(id: u128, kind: PauseKind) -> HostOp {
    HostOp::Pause { id: SandboxId(id), attempt: 1, kind }
}

pub fn resume(id: u128) -> HostOp {
    HostOp::Resume { id: SandboxId(id), attempt: 1 }
}

pub fn stop(id: u128) -> HostOp {
    HostOp::Stop { id: SandboxId(id), attempt: 1 }
}

pub fn end(id: u128) -> HostOp {
    HostOp::End { id: SandboxId(id), attempt: 1 }
}

pub fn failed(detail: &str) -> DriverResult {
    DriverResult::Failed { detail: detail.to_owned() }
}
