//! A host: the real state machine, its journal, and what stands between it and its machine.

use std::collections::BTreeMap;

use plimsoll_host::{Host, HostConfig, JournalEntry};
use plimsoll_types::{
    Counted, Driver, DriverSet, Fence, HostId, HostReport, Mib, Millis, PoolName, Regime, Timestamp,
};

use super::event::AtNode;
use super::machine::Machine;

/// What a report is made to say besides the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lie {
    #[default]
    None,
    /// More room than there is.
    Boast,
    /// An unfinished list.
    Unfinished,
    /// One complete list without any guest.
    Forgetful,
    /// A guest that nobody knows.
    Stranger,
}

/// Where the answer to a command goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) process: u64,
    pub(super) rpc: u64,
}

/// One host of the world.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: HostId,
    pub(super) pool: PoolName,
    drivers: DriverSet,
    starts_limit: Option<u32>,
    stream_restore: bool,
    labels: BTreeMap<String, String>,
    counted: Counted,
    regime: Option<Regime>,
    pub(super) machine: Machine,
    /// `None` while its agent is down.
    pub(super) host: Option<Host>,
    /// Counts starts of the agent.
    pub(super) agent: u64,
    /// Lines of the journal, the first `synced` of them on disk for certain.
    pub(super) journal: Vec<JournalEntry>,
    pub(super) synced: usize,
    boots: u64,
    booted_at: Timestamp,
    /// How far its wall clock is ahead of the world's.
    pub(super) clock_ahead: i64,
    pub(super) powered: bool,
    /// Its agent is frozen: what arrives waits.
    pub(super) hung: Option<Vec<AtNode>>,
    /// Nothing gets through.
    pub(super) cut: bool,
    pub(super) lie: Lie,
    /// Commands that wait for their answer.
    pub(super) callers: BTreeMap<u64, Caller>,
    next_token: u64,
    /// The sequence number of the heartbeat that is out.
    pub(super) beat: Option<u64>,
    /// The highest command that its driver has begun anything for, for the fence's oracle.
    pub(super) fence: Fence,
}

/// What a host is made of.
pub(super) struct Make {
    pub(super) id: HostId,
    pub(super) pool: PoolName,
    pub(super) drivers: DriverSet,
    pub(super) starts_limit: Option<u32>,
    pub(super) stream_restore: bool,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) counted: Counted,
    pub(super) regime: Option<Regime>,
    pub(super) machine: Machine,
    pub(super) booted_at: Timestamp,
    pub(super) clock_ahead: i64,
}

impl Node {
    pub(super) fn new(make: Make) -> Self {
        Self {
            id: make.id,
            pool: make.pool,
            drivers: make.drivers,
            starts_limit: make.starts_limit,
            stream_restore: make.stream_restore,
            labels: make.labels,
            counted: make.counted,
            regime: make.regime,
            machine: make.machine,
            host: None,
            agent: 0,
            journal: Vec::new(),
            synced: 0,
            boots: 1,
            booted_at: make.booted_at,
            clock_ahead: make.clock_ahead,
            powered: true,
            hung: None,
            cut: false,
            lie: Lie::None,
            callers: BTreeMap::new(),
            next_token: 0,
            beat: None,
            fence: Fence::default(),
        }
    }

    pub(super) fn time(&self, now: Timestamp) -> plimsoll_host::HostTime {
        plimsoll_host::HostTime {
            clock: Timestamp(now.0 + self.clock_ahead),
            uptime: now.since(self.booted_at),
        }
    }

    fn config(&self) -> HostConfig {
        let boot = format!("{}-{}", self.id, self.agent);
        let machine = format!("{}-machine-{}", self.id, self.boots);
        let mut config = HostConfig::new(self.id.clone(), self.pool.clone(), boot, machine);
        config.drivers = self.drivers;
        config.starts_limit = self.starts_limit;
        config.stream_restore = self.stream_restore;
        config.labels.clone_from(&self.labels);
        config.counted.clone_from(&self.counted);
        config.regime = self.regime;
        config.address = Some(format!("http://{}", self.id));
        config.headroom = Some(Mib(self.machine.total.0 / 16));
        config
    }

    /// Starts the agent from its journal. Gives the name of this start.
    pub(super) fn start(&mut self, compact: bool) -> String {
        self.agent += 1;
        let config = self.config();
        let boot = config.boot_id.clone();
        let entry = JournalEntry::Machine { boot: config.machine_boot.clone() };
        let host = Host::restore(config, self.journal.iter().cloned());
        if compact {
            self.journal = host.snapshot();
        } else {
            self.journal.push(entry);
        }
        self.synced = self.journal.len();
        self.host = Some(host);
        self.callers.clear();
        self.beat = None;
        boot
    }

    /// Its agent is killed; of the journal's last lines only so many may be lost.
    pub(super) fn kill(&mut self, lost: u64) {
        let kept = self.journal.len().saturating_sub(usize::try_from(lost).unwrap_or(usize::MAX));
        self.journal.truncate(kept.max(self.synced));
        self.host = None;
        self.hung = None;
        self.callers.clear();
        self.beat = None;
        // Whatever was meant for this start reaches nobody.
        self.agent += 1;
    }

    /// The machine comes up again.
    pub(super) fn boot(&mut self, now: Timestamp) {
        self.boots += 1;
        self.booted_at = now;
        self.powered = true;
    }

    pub(super) fn write(&mut self, entry: JournalEntry) {
        let durable = entry.must_be_durable();
        self.journal.push(entry);
        if durable {
            self.synced = self.journal.len();
        }
    }

    pub(super) fn token(&mut self, caller: Caller) -> plimsoll_host::Token {
        self.next_token += 1;
        self.callers.insert(self.next_token, caller);
        plimsoll_host::Token(self.next_token)
    }

    /// When its state machine has something to do by itself.
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        if self.hung.is_some() {
            return None;
        }
        let uptime = self.host.as_ref()?.next_wake()?;
        Some(self.booted_at + uptime)
    }

    pub(super) fn up(&self) -> bool {
        self.host.is_some()
    }

    /// Makes a report say what the host's present lie is.
    pub(super) fn distort(&mut self, report: &mut HostReport) {
        match self.lie {
            Lie::None => {}
            Lie::Boast => {
                let total = report.memory_mib_total.signed();
                if let Some(admittable) = &mut report.memory_mib_admittable {
                    *admittable = (*admittable + 2_048).min(total);
                }
            }
            Lie::Unfinished => {
                report.complete = false;
                report.guests.truncate(report.guests.len() / 2);
            }
            Lie::Forgetful => {
                report.guests.clear();
                self.lie = Lie::None;
            }
            Lie::Stranger => report.foreign_guests.push("somebody".to_owned()),
        }
    }
}

/// The drivers of a host of a pool of this kind.
pub(super) fn drivers(of: &[Driver]) -> DriverSet {
    of.iter().copied().collect()
}

/// How often machine and guests are measured: twice a heartbeat.
pub(super) const SAMPLE: Millis = Millis::from_seconds(5);
