//! The shim's side of a sandbox: boot or restore it, run commands in it, write it out.

use std::io::PipeWriter;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::enter::{EnterError, enter};
use super::files::{private_folder, remove_folder};
use super::guest::Shim;
use super::plan::{EnterRequest, Phase, RestoreFrom, SandboxPlan};
use super::reaper::Child;
use super::runsc::{BOOT, IMAGE, TALK};
use super::{image, inside};
use crate::driver::gvisor::WAKE;
use crate::probe::{ProcessId, ProcessTable};

/// Free disk that must remain beside an image: the state files and logs of the host's guests. A
/// checkpoint that runs into a full disk loses the guest, so it is not begun.
const DISK_BYTES_SPARE: u64 = 256 << 20;

/// How long a sandbox condemned by a failed save takes to go once it is resumed; it takes some
/// milliseconds.
const CONDEMNED: Duration = Duration::from_secs(2);

pub(super) fn sandbox(shim: &Shim) -> Result<&SandboxPlan, String> {
    shim.plan.sandbox.as_ref().ok_or_else(|| "the guest is no sandbox".to_owned())
}

/// Boots or restores the sandbox; comes back with its process. A checkpoint of its own is taken
/// out of the way: to be put back when that fails, and discarded when the guest is on record.
pub(super) fn start(shim: &Shim, output: PipeWriter) -> Result<Child, String> {
    let plan = sandbox(shim)?;
    let folder = shim.dir.path();
    let fail = |error: std::io::Error| error.to_string();
    // What an earlier life of the guest left with runsc would be in the way.
    remove_folder(&plan.runsc.root)
        .and_then(|()| private_folder(&plan.runsc.root))
        .map_err(fail)?;
    let image = match &plan.restore {
        None => None,
        Some(RestoreFrom::Baked(folder)) => Some(folder.clone()),
        Some(RestoreFrom::Own) => {
            let sealed = image::manifest(&folder.join(image::CHECKPOINT)).ok_or("no checkpoint")?;
            shim.update(|state| state.cpu_base_millis = sealed.cpu_millis_total).map_err(fail)?;
            Some(image::take(folder).map_err(fail)?)
        }
    };
    let main = boot(shim, plan, image, output)?;
    if let Some(become_what) = &plan.wake {
        wake(shim, plan, become_what)?;
    }
    Ok(main)
}

fn boot(
    shim: &Shim,
    plan: &SandboxPlan,
    image: Option<PathBuf>,
    output: PipeWriter,
) -> Result<Child, String> {
    let folder = shim.dir.path();
    let pid_file = folder.join("sandbox.pid");
    let bundle = format!("--bundle={}", shim.dir.bundle_path().display());
    let pid_flag = format!("--pid-file={}", pid_file.display());
    let image_flag = image.as_ref().map(|path| format!("--image-path={}", path.display()));
    let mut words = vec![if image.is_some() { "restore" } else { "run" }, "--detach"];
    words.extend([bundle.as_str(), pid_flag.as_str()]);
    words.extend(image_flag.as_deref());
    words.push(&plan.container);
    // The sandbox inherits group and output of the process that makes it.
    let request = EnterRequest {
        again: shim.plan.again.clone(),
        command: plan.runsc.words(&words),
        env: std::collections::BTreeMap::new(),
        folder: folder.display().to_string(),
        user: None,
        user_is_own: false,
        cgroup: shim.plan.cgroup.clone(),
        confine: false,
    };
    let errors = output.try_clone().map_err(|error| error.to_string())?;
    let maker = enter(&shim.reaper, &request, output.into(), errors.into())
        .map_err(EnterError::into_detail)?;
    let entered = ProcessId::of(maker.pid);
    shim.update(|state| state.entered = entered).map_err(|error| error.to_string())?;
    let limit = if image.is_some() { IMAGE } else { BOOT };
    match maker.wait_timeout(limit) {
        Some(ended) if ended.code == Some(0) => {}
        Some(ended) => return Err(format!("runsc {} ended with {}", words[0], ended.shell_code())),
        None => return Err(format!("runsc {} took longer than {} s", words[0], limit.as_secs())),
    }
    let pid = std::fs::read_to_string(&pid_file)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or("runsc named no sandbox process")?;
    shim.reaper.adopt(pid).map_err(|error| error.to_string())
}

/// Tells the waiting init of a baked image what to become.
fn wake(shim: &Shim, plan: &SandboxPlan, become_what: &str) -> Result<(), String> {
    let script = shim.talk_path("wake-script");
    let fail = |error: std::io::Error| format!("wake the sandbox: {error}");
    // It holds environment values, so it goes by a private file and not by an argument.
    super::files::replace(&script, become_what.as_bytes(), super::files::Outlives::Processes)
        .map_err(fail)?;
    let input = std::fs::File::open(&script).map_err(fail)?;
    let done = plan.runsc.run(
        &shim.reaper,
        &shim.talk_path("wake"),
        &["exec", &plan.container, "/bin/sh", "-c", WAKE],
        Stdio::from(input),
        TALK,
    );
    let _ = std::fs::remove_file(&script);
    done
}

/// Writes the sandbox out and ends it. On an error the guest runs on, or its end is on record.
///
/// The sandbox is paused first: its frozen process then stays until the image is sealed, so that
/// a shim killed half-way leaves a frozen sandbox, a whole image, or both, and never neither.
pub(super) fn checkpoint(shim: &Shim, paused: bool) -> Result<(), String> {
    let plan = sandbox(shim)?;
    let folder = shim.dir.path();
    let fail = |error: std::io::Error| error.to_string();
    let mut written_out = shim.written_out.lock().unwrap_or_else(PoisonError::into_inner);
    if *written_out {
        return Ok(());
    }
    check_disk(shim)?;
    inside::let_go(shim, plan, paused)?;
    let run = |words: &[&str], limit: Duration| {
        plan.runsc.run(&shim.reaper, &shim.talk_path(words[0]), words, Stdio::null(), limit)
    };
    shim.update(|state| state.phase = Phase::Checkpointing).map_err(fail)?;
    let staged = folder.join(image::STAGED);
    let write = || -> Result<(), String> {
        remove_folder(&staged).and_then(|()| private_folder(&staged)).map_err(fail)?;
        if !paused {
            run(&["pause", &plan.container], TALK)?;
        }
        let image_flag = format!("--image-path={}", staged.display());
        run(&["checkpoint", &image_flag, &plan.container], IMAGE)?;
        image::seal(folder, shim.cpu_millis_total()).map_err(fail)
    };
    match write() {
        Ok(()) => {
            // From here on no exec may begin, and none is under way.
            *written_out = true;
            // Frozen, with its state on disk: nothing more can come of it.
            shim.kill_rest()
        }
        Err(detail) => {
            let resumed = if paused { Ok(()) } else { run(&["resume", &plan.container], TALK) };
            let _ = remove_folder(&staged);
            let _ = shim.update(|state| state.phase = Phase::Running);
            shim.execs.reopen();
            if !paused && dies(shim) {
                shim.spoil(&detail);
                return Err(format!("{detail}; the guest is lost"));
            }
            match resumed {
                Ok(()) => Err(detail),
                Err(more) => Err(format!("{detail}; and then {more}")),
            }
        }
    }
}

/// Whether the sandbox ends now: a failed save ends it as a successful one does, a step that
/// failed before the save does not.
fn dies(shim: &Shim) -> bool {
    let main = shim.state().main;
    let deadline = Instant::now() + CONDEMNED;
    while main.is_some_and(ProcessId::is_alive) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn check_disk(shim: &Shim) -> Result<(), String> {
    let disk = rustix::fs::statvfs(shim.dir.path()).map_err(|error| error.to_string())?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let tree = shim.plan.tree(Some(&shim.state()));
    let image =
        tree.resident(&mut ProcessTable::scan).map_err(|unknown| unknown.to_string())?.bytes;
    let needed = image.saturating_add(DISK_BYTES_SPARE);
    if free < needed {
        return Err(format!("the disk has {} MiB free, {} are needed", free >> 20, needed >> 20));
    }
    Ok(())
}
