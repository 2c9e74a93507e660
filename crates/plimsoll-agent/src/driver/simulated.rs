//! The `simulated` driver: guests that exist only as numbers.
//!
//! What a guest uses is a function of its id, its configuration and how long it ran, so a fleet
//! of any size can be watched without a machine for it, and twice with the same outcome. A guest
//! costs a few hundred bytes and no process.

mod journal;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use plimsoll_types::{BasisPoints, Driver, GuestSpec, GuestStatus, Mib, PauseKind, SandboxId};
use serde::{Deserialize, Serialize};

use self::journal::Journal;
use super::folder::GuestName;
use super::shared::check_exec;
use super::{
    Abilities, Adopted, ChangeError, EndError, ExecError, ExecOutput, ExecRequest, Fault, FinalUse,
    Found, GuestDriver, GuestState, LookError, StartError, Started, Unavailable, Usage,
};
use crate::probe::{MemoryMethod, Resident};
use crate::shim::ExitRecord;
use crate::shim::plan::unix_millis;

/// How simulated guests behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedConfig {
    /// Memory that a guest comes to use, as a share of what it is configured with, on average over
    /// guests; each has a share of its own between half and one and a half of this, at most all.
    pub peak_share: BasisPoints,
    /// How long memory rises to its peak, in a straight line from a tenth of it.
    pub ramp: Duration,
    /// CPU in use, as a share of the guest's vCPUs.
    pub cpu_share: BasisPoints,
    /// Bytes sent out per second.
    pub egress_bytes_per_second: u64,
    /// How long a start takes.
    pub start_delay: Duration,
    /// How long writing a guest out takes.
    pub checkpoint_delay: Duration,
    /// How long a restore takes.
    pub restore_delay: Duration,
    /// Share of starts that fail; which ones depends on the guest's name alone.
    pub start_failures: BasisPoints,
    /// Where guests are kept, so that they outlive the agent as real ones do; `None` keeps them
    /// in memory only.
    pub journal: Option<PathBuf>,
}

impl Default for SimulatedConfig {
    /// Roughly what agents' sandboxes show: a third of their memory in use, reached within two
    /// minutes, an eighth of their CPU; starts as fast as a restored sandbox's.
    fn default() -> Self {
        Self {
            peak_share: BasisPoints(3300),
            ramp: Duration::from_secs(120),
            cpu_share: BasisPoints(1250),
            egress_bytes_per_second: 0,
            start_delay: Duration::from_millis(180),
            checkpoint_delay: Duration::from_millis(100),
            restore_delay: Duration::from_millis(180),
            start_failures: BasisPoints::ZERO,
            journal: None,
        }
    }
}

/// Where a simulated guest stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    Starting,
    Running,
    Pausing,
    Kept,
    WrittenOut,
    Resuming,
    Stopped,
}

/// One simulated guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Guest {
    spec: Box<GuestSpec>,
    phase: Phase,
    /// When it began to run last, or was stopped.
    since_unix_millis: i64,
    /// How long it ran before that.
    ran_before_millis: u64,
}

/// Reads a clock: milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Keeps simulated guests.
pub struct SimulatedDriver {
    config: SimulatedConfig,
    clock: Clock,
    guests: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    guests: BTreeMap<GuestName, Guest>,
    journal: Option<Journal>,
}

impl std::fmt::Debug for SimulatedDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedDriver").field("config", &self.config).finish_non_exhaustive()
    }
}

impl SimulatedDriver {
    /// A driver by the machine's clock; takes up the guests of its journal.
    ///
    /// # Errors
    /// When the journal cannot be read or written.
    pub fn new(config: SimulatedConfig) -> Result<Self, Fault> {
        Self::with_clock(config, Arc::new(unix_millis))
    }

    /// A driver by another clock, for tests and virtual time.
    ///
    /// # Errors
    /// When the journal cannot be read or written.
    pub fn with_clock(config: SimulatedConfig, clock: Clock) -> Result<Self, Fault> {
        let kept = match &config.journal {
            None => Kept::default(),
            Some(path) => {
                let (journal, guests) =
                    Journal::open(path).map_err(Fault::io(format!("open {}", path.display())))?;
                Kept { guests, journal: Some(journal) }
            }
        };
        Ok(Self { config, clock, guests: Mutex::new(kept) })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Every change is one insert or remove: a panic elsewhere leaves the map whole.
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> i64 {
        (self.clock)()
    }

    /// How long a guest has run, pauses left out.
    fn ran_millis(&self, guest: &Guest) -> u64 {
        let now = match guest.phase {
            Phase::Running | Phase::Pausing => self.now().saturating_sub(guest.since_unix_millis),
            _ => 0,
        };
        let ran = guest.ran_before_millis.saturating_add(u64::try_from(now).unwrap_or(0));
        life_millis(&guest.spec).map_or(ran, |life| ran.min(life))
    }

    fn has_exited(&self, guest: &Guest) -> bool {
        guest.phase == Phase::Stopped
            || life_millis(&guest.spec).is_some_and(|life| self.ran_millis(guest) >= life)
    }

    fn resident_bytes(&self, guest: &Guest) -> u64 {
        if self.has_exited(guest) || matches!(guest.phase, Phase::WrittenOut | Phase::Starting) {
            return 0;
        }
        resident_bytes(&self.config, guest.spec.id, guest.spec.memory_mib, self.ran_millis(guest))
            .saturating_add(guest.spec.overhead_mib.get().saturating_mul(1 << 20))
    }

    fn state(&self, guest: &Guest) -> GuestState {
        let (status, paused) = match guest.phase {
            _ if self.has_exited(guest) => (GuestStatus::Exited, None),
            Phase::Starting => (GuestStatus::Starting, None),
            Phase::Running => (GuestStatus::Running, None),
            Phase::Pausing => (GuestStatus::Pausing, None),
            Phase::Kept => (GuestStatus::Paused, Some(PauseKind::Keep)),
            Phase::WrittenOut => (GuestStatus::Paused, Some(PauseKind::Checkpoint)),
            Phase::Resuming => (GuestStatus::Resuming, None),
            Phase::Stopped => (GuestStatus::Exited, None),
        };
        let stopped = guest.phase == Phase::Stopped;
        let last_run =
            life_millis(&guest.spec).unwrap_or(0).saturating_sub(guest.ran_before_millis);
        let last_run = if stopped { 0 } else { i64::try_from(last_run).unwrap_or(i64::MAX) };
        let ended_at = guest.since_unix_millis.saturating_add(last_run);
        let exit = (status == GuestStatus::Exited).then(|| ExitRecord {
            code: if stopped { None } else { Some(0) },
            out_of_memory: false,
            reason: if stopped { "stopped" } else { "exited" }.to_owned(),
            cpu_millis_total: self.cpu_millis(guest),
            at_unix_millis: ended_at,
        });
        GuestState { status, paused, exit, started_at_unix_millis: Some(guest.since_unix_millis) }
    }

    fn cpu_millis(&self, guest: &Guest) -> u64 {
        let used = u128::from(self.ran_millis(guest))
            * u128::from(guest.spec.vcpus.get())
            * u128::from(self.config.cpu_share.get())
            / u128::from(BasisPoints::ONE.get());
        u64::try_from(used).unwrap_or(u64::MAX)
    }

    /// Changes a guest and writes it down. `None` when it is gone.
    fn change(&self, name: &GuestName, phase: Phase) -> Result<Option<()>, Fault> {
        let mut kept = self.kept();
        let Some(guest) = kept.guests.get(name) else { return Ok(None) };
        let mut guest = guest.clone();
        if matches!(phase, Phase::Kept | Phase::WrittenOut | Phase::Stopped) {
            guest.ran_before_millis = self.ran_millis(&guest);
        }
        if matches!(phase, Phase::Running | Phase::Stopped) {
            guest.since_unix_millis = self.now();
        }
        guest.phase = phase;
        kept.put(name, Some(guest))?;
        Ok(Some(()))
    }

    fn find(&self, name: &GuestName) -> Result<(Phase, GuestState), ChangeError> {
        let kept = self.kept();
        let guest = kept.guests.get(name).ok_or(ChangeError::NotFound(*name))?;
        Ok((guest.phase, self.state(guest)))
    }

    /// Starts a guest that was stopped, under the name that it had. Where that fails it stays
    /// stopped.
    async fn restart_guest(&self, spec: &GuestSpec) -> Result<Started, StartError> {
        let name = GuestName::of(spec);
        let former = {
            let mut kept = self.kept();
            let former = kept.guests.get(&name).cloned();
            let ended = |guest: &Guest| self.state(guest).status == GuestStatus::Exited;
            let former = former.filter(ended);
            if former.is_some() {
                kept.put(&name, None)?;
            }
            former
        };
        let started = self.start_guest(spec).await;
        if started.is_err() && former.is_some() {
            self.kept().put(&name, former)?;
        }
        started
    }

    async fn start_guest(&self, spec: &GuestSpec) -> Result<Started, StartError> {
        let name = GuestName::of(spec);
        {
            let mut kept = self.kept();
            if let Some(guest) = kept.guests.get(&name) {
                let state = self.state(guest);
                return match (state.status, state.started_at_unix_millis) {
                    (GuestStatus::Running, Some(started_at_unix_millis)) => {
                        Ok(Started { started_at_unix_millis, notes: Vec::new() })
                    }
                    (status, _) => Err(StartError::Used { name, status }),
                };
            }
            if let Some(source) = spec.fork_of
                && !kept.guests.keys().any(|other| other.id == source)
            {
                let why = format!("{source} is not on this host");
                return Err(StartError::Invalid { field: "fork_of", why });
            }
            let guest = Guest {
                spec: Box::new(spec.clone()),
                phase: Phase::Starting,
                since_unix_millis: self.now(),
                ran_before_millis: 0,
            };
            kept.put(&name, Some(guest))?;
        }
        tokio::time::sleep(self.config.start_delay).await;
        if chance(&name, "start") < self.config.start_failures.get() {
            self.kept().put(&name, None)?;
            return Err(Fault::step("the start", "meant to fail by the simulation").into());
        }
        match self.change(&name, Phase::Running)? {
            Some(()) => Ok(Started { started_at_unix_millis: self.now(), notes: Vec::new() }),
            None => Err(Fault::step("the start", "the guest was ended meanwhile").into()),
        }
    }

    async fn pause_guest(&self, name: &GuestName, kind: PauseKind) -> Result<(), ChangeError> {
        let (phase, state) = self.find(name)?;
        let wanted = if kind == PauseKind::Keep { Phase::Kept } else { Phase::WrittenOut };
        match (state.status, phase) {
            (GuestStatus::Paused, Phase::WrittenOut) => return Ok(()),
            (GuestStatus::Paused, Phase::Kept) if wanted == Phase::Kept => return Ok(()),
            (GuestStatus::Running | GuestStatus::Paused, _) => {}
            (status, _) => return Err(ChangeError::State { name: *name, status }),
        }
        if wanted == Phase::WrittenOut {
            if phase == Phase::Running {
                self.change(name, Phase::Pausing)?;
            }
            tokio::time::sleep(self.config.checkpoint_delay).await;
        }
        self.change(name, wanted)?.ok_or(ChangeError::NotFound(*name))
    }

    async fn resume_guest(&self, name: &GuestName) -> Result<(), ChangeError> {
        let (phase, state) = self.find(name)?;
        match state.status {
            GuestStatus::Running => return Ok(()),
            GuestStatus::Paused => {}
            status => return Err(ChangeError::State { name: *name, status }),
        }
        if phase == Phase::WrittenOut {
            self.change(name, Phase::Resuming)?;
            tokio::time::sleep(self.config.restore_delay).await;
        }
        self.change(name, Phase::Running)?.ok_or(ChangeError::NotFound(*name))
    }

    fn exec_in(&self, name: &GuestName, request: &ExecRequest) -> Result<ExecOutput, ExecError> {
        check_exec(request)?;
        let (_, state) = self.find(name).map_err(|_| ExecError::NotFound(*name))?;
        if state.status != GuestStatus::Running {
            return Err(ExecError::State { name: *name, status: state.status });
        }
        Ok(ExecOutput {
            exit_code: i32::from(request.command[0] == "false"),
            timed_out: false,
            stdout: format!("{}\n", request.command.join(" ")),
            stdout_truncated: false,
            stderr: String::new(),
            stderr_truncated: false,
        })
    }

    fn usage_of(&self, name: &GuestName) -> Result<Usage, LookError> {
        let kept = self.kept();
        let guest = kept.guests.get(name).ok_or(LookError::NotFound(*name))?;
        let bytes = self.resident_bytes(guest);
        let used = self.final_use(guest);
        Ok(Usage {
            resident: Ok(Resident { bytes, method: MemoryMethod::Simulated }),
            cpu_millis_total: Ok(used.cpu_millis_total),
            egress_bytes_total: used.egress_bytes_total,
        })
    }

    /// What it has used, should it end now.
    fn final_use(&self, guest: &Guest) -> FinalUse {
        let seconds = self.ran_millis(guest) / 1000;
        FinalUse {
            cpu_millis_total: self.cpu_millis(guest),
            egress_bytes_total: Some(self.config.egress_bytes_per_second.saturating_mul(seconds)),
        }
    }

    /// Guests whose step the agent's end cut short are back where they were before it.
    fn adopt_guests(&self) -> Result<Found, Fault> {
        let mut kept = self.kept();
        let cut_short: Vec<(GuestName, Guest)> =
            kept.guests.iter().map(|(name, guest)| (*name, guest.clone())).collect();
        for (name, mut guest) in cut_short {
            guest.phase = match guest.phase {
                Phase::Starting | Phase::Pausing => Phase::Running,
                Phase::Resuming => Phase::WrittenOut,
                _ => continue,
            };
            kept.put(&name, Some(guest))?;
        }
        let guests = kept
            .guests
            .iter()
            .map(|(name, guest)| Adopted {
                name: *name,
                spec: guest.spec.clone(),
                state: self.state(guest),
            })
            .collect();
        Ok(Found { guests, broken: Vec::new() })
    }
}

impl Kept {
    /// Sets or removes a guest, on disk first.
    fn put(&mut self, name: &GuestName, guest: Option<Guest>) -> Result<(), Fault> {
        if let Some(journal) = &mut self.journal {
            journal.write(name, guest.as_ref()).map_err(Fault::io("write the journal"))?;
        }
        match guest {
            Some(guest) => self.guests.insert(*name, guest),
            None => self.guests.remove(name),
        };
        Ok(())
    }
}

/// How long a guest lives that runs `sleep N`; others run until they are ended.
fn life_millis(spec: &GuestSpec) -> Option<u64> {
    match spec.command.as_slice() {
        [sleep, seconds] if sleep == "sleep" => seconds.parse::<u64>().ok()?.checked_mul(1000),
        _ => None,
    }
}

/// Memory of a guest that has run so long, without overhead.
fn resident_bytes(config: &SimulatedConfig, id: SandboxId, memory: Mib, ran_millis: u64) -> u64 {
    let one = BasisPoints::ONE.get();
    // Between half and one and a half of the average share.
    let own = 5_000 + mix(id.0, 1) % 10_001;
    let share = (u128::from(config.peak_share.get()) * u128::from(own) / u128::from(one))
        .min(u128::from(one));
    let ramp = u64::try_from(config.ramp.as_millis()).unwrap_or(u64::MAX).max(1);
    let risen = u128::from(ran_millis.min(ramp)) * 9_000 / u128::from(ramp) + 1_000;
    let bytes = u128::from(memory.get()) << 20;
    let resident = bytes * share / u128::from(one) * risen / u128::from(one);
    u64::try_from(resident).unwrap_or(u64::MAX)
}

/// A number below 10 000 that depends on the guest's name and the purpose alone.
fn chance(name: &GuestName, purpose: &str) -> u64 {
    let salt = purpose.bytes().fold(u64::from(name.attempt), |sum, byte| {
        sum.wrapping_mul(257).wrapping_add(u64::from(byte))
    });
    mix(name.id.0, salt) % 10_000
}

/// Mixes an id and a salt into an even-handed number (the finisher of SplitMix64, by Steele, Lea
/// and Flood, 2014).
fn mix(id: u128, salt: u64) -> u64 {
    let low = u64::try_from(id & u128::from(u64::MAX)).unwrap_or(0);
    let high = u64::try_from(id >> 64).unwrap_or(0);
    let mut state = low ^ high.rotate_left(32) ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

impl GuestDriver for SimulatedDriver {
    fn kind(&self) -> Driver {
        Driver::Simulated
    }

    fn available(&self) -> BoxFuture<'_, Result<Abilities, Unavailable>> {
        let abilities =
            Abilities { version: "simulated".to_owned(), checkpoint: true, notes: Vec::new() };
        Box::pin(async move { Ok(abilities) })
    }

    fn pause_frees_memory(&self) -> bool {
        true
    }

    fn uses_machine(&self) -> bool {
        false
    }

    fn start<'a>(&'a self, spec: &'a GuestSpec) -> BoxFuture<'a, Result<Started, StartError>> {
        Box::pin(self.start_guest(spec))
    }

    fn restart<'a>(&'a self, spec: &'a GuestSpec) -> BoxFuture<'a, Result<Started, StartError>> {
        Box::pin(self.restart_guest(spec))
    }

    fn pause<'a>(
        &'a self,
        name: &'a GuestName,
        kind: PauseKind,
    ) -> BoxFuture<'a, Result<(), ChangeError>> {
        Box::pin(self.pause_guest(name, kind))
    }

    fn resume<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<(), ChangeError>> {
        Box::pin(self.resume_guest(name))
    }

    fn stop<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<(), ChangeError>> {
        Box::pin(async move {
            let (_, state) = self.find(name)?;
            if state.status != GuestStatus::Exited {
                self.change(name, Phase::Stopped)?;
            }
            Ok(())
        })
    }

    fn end<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<Option<FinalUse>, EndError>> {
        Box::pin(async move {
            let mut kept = self.kept();
            let used = kept.guests.get(name).map(|guest| self.final_use(guest));
            kept.put(name, None)?;
            Ok(used)
        })
    }

    fn exec<'a>(
        &'a self,
        name: &'a GuestName,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<ExecOutput, ExecError>> {
        Box::pin(async move { self.exec_in(name, &request) })
    }

    fn usage<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<Usage, LookError>> {
        Box::pin(async move { self.usage_of(name) })
    }

    fn status<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<GuestState, LookError>> {
        Box::pin(async move {
            let kept = self.kept();
            let guest = kept.guests.get(name).ok_or(LookError::NotFound(*name))?;
            Ok(self.state(guest))
        })
    }

    fn adopt(&self) -> BoxFuture<'_, Result<Found, Fault>> {
        Box::pin(async move { self.adopt_guests() })
    }
}

#[cfg(test)]
mod tests;
