//! Where a guest stands, told from its folder, its lock and its processes.

use std::io;
use std::time::{Duration, Instant};

use plimsoll_types::{Driver, GuestStatus, PauseKind};

use super::folder::GuestDir;
use super::{Fault, GuestState};
use crate::shim::ExitRecord;
use crate::shim::image::{self, Manifest};
use crate::shim::plan::{LaunchPlan, Phase, RestoreFrom, StateFile, unix_millis};

/// Everything that is known of a guest at one moment.
#[derive(Debug)]
pub(crate) struct Look {
    pub plan: Option<LaunchPlan>,
    pub state: Option<StateFile>,
    pub checkpoint: Option<Manifest>,
    pub shim_lives: bool,
    pub guest: GuestState,
    /// Whether it is in a state that nobody will bring to an end, or has ended without a record:
    /// its shim was killed. See `settle`.
    pub unsettled: bool,
}

impl Look {
    /// Whether there is a folder and no more: its shim has left no word, so that the start was cut
    /// short before anything ran (or the machine was restarted soon after).
    pub(crate) fn never_began(&self) -> bool {
        self.unsettled && self.state.is_none() && self.guest.status == GuestStatus::Exited
    }

    /// All processes of the guest, by what is known of them.
    pub(crate) fn tree(&self) -> super::tree::GuestTree {
        self.plan.as_ref().map(|plan| plan.tree(self.state.as_ref())).unwrap_or_default()
    }
}

/// Looks at a guest; `None` when there is none.
pub(crate) fn look(dir: &GuestDir, driver: Driver) -> Result<Option<Look>, Fault> {
    look_now(dir, driver).map_err(Fault::io(format!("look at {}", dir.path().display())))
}

fn look_now(dir: &GuestDir, driver: Driver) -> io::Result<Option<Look>> {
    if !dir.path().exists() {
        return Ok(None);
    }
    // In this order: a shim that ends meanwhile has written the exit before it let go of the lock.
    let shim_lives = dir.shim_lives()?;
    let exit = dir.exit()?;
    let plan = dir.plan()?;
    let state = dir.state()?;
    let checkpoint = dir.checkpoint();
    let mut look = Look {
        plan,
        state,
        checkpoint,
        shim_lives,
        guest: GuestState {
            status: GuestStatus::Exited,
            paused: None,
            exit,
            started_at_unix_millis: None,
        },
        unsettled: false,
    };
    look.guest.started_at_unix_millis =
        look.state.as_ref().map(|state| state.started_at_unix_millis);
    if look.guest.exit.is_some() {
        return Ok(Some(look));
    }
    let (status, paused) =
        if shim_lives { with_shim(&look, dir, driver) } else { without(&look, dir, driver) };
    look.guest.status = status;
    look.guest.paused = paused;
    if status == GuestStatus::Exited {
        look.guest.exit = Some(lost(&look));
    }
    look.unsettled = !shim_lives && !matches!(status, GuestStatus::Running | GuestStatus::Paused);
    Ok(Some(look))
}

fn with_shim(look: &Look, dir: &GuestDir, driver: Driver) -> (GuestStatus, Option<PauseKind>) {
    match look.state.as_ref().map(|state| state.phase) {
        None | Some(Phase::Starting) => {
            let sandbox = look.plan.as_ref().and_then(|plan| plan.sandbox.as_ref());
            let resumes = sandbox.is_some_and(|plan| plan.restore == Some(RestoreFrom::Own));
            (if resumes { GuestStatus::Resuming } else { GuestStatus::Starting }, None)
        }
        Some(Phase::Checkpointing) => (GuestStatus::Pausing, None),
        Some(Phase::Running) => running_or_frozen(look, dir, driver),
    }
}

fn without(look: &Look, dir: &GuestDir, driver: Driver) -> (GuestStatus, Option<PauseKind>) {
    if look.checkpoint.is_some() {
        return (GuestStatus::Paused, Some(PauseKind::Checkpoint));
    }
    // Cut short: to be settled.
    if is_half_restored(look, dir) {
        return (GuestStatus::Resuming, None);
    }
    if is_staged(look, dir) {
        return (GuestStatus::Pausing, None);
    }
    let main = look.state.as_ref().and_then(|state| state.main);
    if main.is_some_and(crate::probe::ProcessId::is_alive) {
        return running_or_frozen(look, dir, driver);
    }
    (GuestStatus::Exited, None)
}

fn running_or_frozen(
    look: &Look,
    dir: &GuestDir,
    driver: Driver,
) -> (GuestStatus, Option<PauseKind>) {
    // A sandbox is frozen inside, which does not show outside.
    let frozen = match driver {
        Driver::Gvisor => dir.frozen_path().exists(),
        _ => look.tree().is_frozen(),
    };
    if frozen { (GuestStatus::Paused, Some(PauseKind::Keep)) } else { (GuestStatus::Running, None) }
}

/// The record of an end that nobody saw: the machine was restarted, or the shim was killed.
fn lost(look: &Look) -> ExitRecord {
    let reason = match &look.state {
        None => "its end was not seen: the machine was restarted, or the start was cut short",
        Some(_) => "its end was not seen: its shim was killed",
    };
    ExitRecord {
        code: None,
        out_of_memory: false,
        reason: reason.to_owned(),
        cpu_millis_total: look.state.as_ref().map_or(0, |state| state.cpu_base_millis),
        at_unix_millis: unix_millis(),
    }
}

/// Waits until the guest's shim has ended. False when it lives at the deadline.
pub(crate) fn wait_for_shim(dir: &GuestDir, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    while dir.shim_lives()? {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(true)
}

/// Whether a checkpoint was begun in this boot, and neither sealed nor given up.
pub(crate) fn is_staged(look: &Look, dir: &GuestDir) -> bool {
    look.state.is_some() && dir.path().join(image::STAGED).exists()
}

/// Whether a restore was begun whose guest never was on record as running.
pub(crate) fn is_half_restored(look: &Look, dir: &GuestDir) -> bool {
    look.state.as_ref().is_none_or(|state| state.phase == Phase::Starting)
        && image::manifest(&dir.path().join(image::CONSUMED)).is_some()
}
