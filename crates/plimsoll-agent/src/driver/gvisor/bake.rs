//! Baked images: a root file system booted once with the waiting init and written out, so that
//! each create is a restore.
//!
//! The image holds the init alone, with neither a command nor an environment: every guest made
//! from it may belong to another tenant. What the guest is to run is handed to the init after the
//! restore, which becomes it; so the command's exit is the guest's, as after a plain boot.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_types::{
    Driver, GuestSpec, Mib, ReserveRule, SandboxId, TemplateName, TenantId, Vcpus,
};
use sha2::{Digest, Sha256};

use super::bundle::{self, INIT, READY};
use super::setup::Setup;
use crate::driver::cgroup::CgroupLimits;
use crate::driver::folder::{GuestDir, Guests};
use crate::driver::launch::{CHECKPOINT_LIMIT, RESTORE_LIMIT, call, start_shim, take_lock};
use crate::driver::look::{look, wait_for_shim};
use crate::driver::shared::blocking;
use crate::driver::{Fault, Started};
use crate::shim::files::{Outlives, private_folder, remove_folder, replace_json, sync_folder};
use crate::shim::image;
use crate::shim::plan::{Answer, Call, LaunchPlan, RestoreFrom, SandboxPlan};
use crate::shim::runsc::{Runsc, TALK_BYTES_MAX, reason_in};

/// Memory of a sandbox that only waits: gVisor's own needs, with room.
const WAITING_MIB: Mib = Mib(1024);
/// How long the init may take from its start to its wait: one `mkfifo`.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// How long a sandbox that is no longer needed may take to go.
const DYING: Duration = Duration::from_secs(15);
/// Before the name of a sandbox that is at work on an image.
const WORK: &str = ".work-";

fn baked_folder(guests: &Guests) -> PathBuf {
    guests.data().join("baked")
}

/// What an image depends on: another `runsc`, other flags, another init or another root file
/// system give another image. A root file system is told by its folder's identity and time of
/// change, not by its content: whoever changes files below it gives it a new folder.
pub(super) fn key(setup: &Setup, rootfs: &Path) -> Result<String, Fault> {
    let folder = std::fs::metadata(rootfs).map_err(Fault::io(rootfs.display().to_string()))?;
    let mut digest = Sha256::new();
    let identity =
        format!("{} {} {}.{}", folder.dev(), folder.ino(), folder.mtime(), folder.mtime_nsec());
    let flags = setup.flags.join(" ");
    let path = rootfs.display().to_string();
    for part in [&setup.version, &flags, &path, &identity, INIT] {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    Ok(digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// The image of this root file system, whose key is given; bakes it when there is none yet.
pub(super) async fn image_of(
    guests: &Guests,
    setup: &Setup,
    rootfs: &Path,
    key: &str,
) -> Result<PathBuf, Fault> {
    let _turn = guests.turn(&format!("baked {key}")).await;
    let ready = baked_folder(guests).join(key);
    if image::manifest(&ready).is_some() {
        return Ok(ready);
    }
    let (dir, _) = boot(guests, setup, rootfs, key, None).await?;
    let baked = write_out(&dir).await;
    if baked.is_ok() {
        let source = dir.path().join(image::CHECKPOINT);
        let target = ready.clone();
        blocking(move || {
            let fail = || Fault::io(format!("keep the baked image {}", target.display()));
            remove_folder(&target).map_err(fail())?;
            std::fs::rename(&source, &target).map_err(fail())?;
            target.parent().map_or(Ok(()), sync_folder).map_err(fail())
        })
        .await?;
    }
    discard(&dir).await?;
    baked.map(|()| ready)
}

async fn write_out(dir: &GuestDir) -> Result<(), Fault> {
    const STEP: &str = "the baking of an image";
    let waits = dir.clone();
    blocking(move || {
        let deadline = Instant::now() + READY_LIMIT;
        while !String::from_utf8_lossy(&waits.log_tail(4096)).contains(READY) {
            if Instant::now() >= deadline || !waits.shim_lives().map_err(Fault::io(STEP))? {
                let said = reason_in(&waits.log_tail(TALK_BYTES_MAX));
                return Err(Fault::step(STEP, format_args!("its init does not wait: {said}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    })
    .await?;
    match call(dir, &Call::Checkpoint { paused: false }, STEP, CHECKPOINT_LIMIT).await? {
        Some(Answer::Failed { detail }) => Err(Fault::step(STEP, detail)),
        // The shim may be gone before its answer has left it.
        _ if dir.checkpoint().is_some() => Ok(()),
        _ => Err(Fault::step(STEP, "the sandbox ended")),
    }
}

/// Starts a waiting sandbox that is no guest, booted or restored.
pub(super) async fn boot(
    guests: &Guests,
    setup: &Setup,
    rootfs: &Path,
    label: &str,
    restore: Option<PathBuf>,
) -> Result<(GuestDir, Started), Fault> {
    let dir = GuestDir::at(baked_folder(guests).join(format!("{WORK}{label}")));
    discard(&dir).await?;
    let name = guests.tagged(format_args!("baked-{label}"));
    let limits = CgroupLimits { memory_mib: WAITING_MIB, vcpus: Vcpus(1) };
    let (cgroup, _) = guests.machine().make(&name, limits);
    let plan = LaunchPlan {
        again: guests.shim().words.clone(),
        command: Vec::new(),
        user: None,
        user_is_own: false,
        home: "/".to_owned(),
        cgroup,
        shim_cgroup: guests.shims_cgroup().clone(),
        sandbox: Some(SandboxPlan {
            runsc: Runsc {
                program: setup.program.clone(),
                flags: setup.flags.clone(),
                root: dir.path().join("runsc"),
            },
            container: name,
            restore: restore.map(RestoreFrom::Baked),
            wake: None,
        }),
    };
    let (own, rootfs) = (dir.clone(), rootfs.to_owned());
    let lock = blocking(move || {
        let fail = || Fault::io(format!("make {}", own.path().display()));
        private_folder(&own.bundle_path()).map_err(fail())?;
        let spec = waiting_spec()?;
        let config = bundle::config(&rootfs, &[], &spec.env, WAITING_MIB.get() << 20);
        replace_json(&own.spec_path(), &spec, Outlives::Processes).map_err(fail())?;
        replace_json(&own.plan_path(), &plan, Outlives::Processes).map_err(fail())?;
        replace_json(&own.bundle_path().join("config.json"), &config, Outlives::Processes)
            .map_err(fail())?;
        take_lock(&own)
    })
    .await?;
    match start_shim(guests, &dir, lock, RESTORE_LIMIT).await {
        Ok(started) => Ok((dir, started)),
        Err(fault) => {
            discard(&dir).await?;
            Err(fault)
        }
    }
}

/// Ends and removes a sandbox at work; none is well.
pub(super) async fn discard(dir: &GuestDir) -> Result<(), Fault> {
    let dir = dir.clone();
    blocking(move || {
        let Some(look) = look(&dir, Driver::Gvisor)? else { return Ok(()) };
        let tree = look.tree();
        let left = tree.kill(DYING);
        let gone = wait_for_shim(&dir, DYING).map_err(Fault::io("wait for a shim"))?;
        if !left.is_empty() || !gone {
            return Err(Fault::step("the end of a sandbox", "some of it would not die"));
        }
        tree.cgroup.remove().map_err(Fault::io("remove a control group"))?;
        remove_folder(dir.path()).map_err(Fault::io(format!("remove {}", dir.path().display())))
    })
    .await
}

/// Ends and removes every sandbox at work that an earlier agent left.
pub(super) async fn discard_all(guests: &Guests) -> Result<(), Fault> {
    let Ok(entries) = std::fs::read_dir(baked_folder(guests)) else { return Ok(()) };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(WORK) {
            discard(&GuestDir::at(entry.path())).await?;
        }
    }
    Ok(())
}

/// A specification for a sandbox that is nobody's guest.
fn waiting_spec() -> Result<GuestSpec, Fault> {
    let fail = |error: plimsoll_types::NameError| Fault::step("a waiting sandbox", error);
    Ok(GuestSpec {
        id: SandboxId(0),
        attempt: 0,
        tenant: TenantId::new("plimsoll").map_err(fail)?,
        template: TemplateName::new("baked").map_err(fail)?,
        driver: Driver::Gvisor,
        memory_mib: WAITING_MIB,
        overhead_mib: Mib::ZERO,
        vcpus: Vcpus(1),
        stateful: false,
        preemptible: true,
        priority: 0,
        command: Vec::new(),
        env: Default::default(),
        rootfs: None,
        baked: false,
        fork_of: None,
        counted: Default::default(),
        reserve: ReserveRule::default(),
        settle_seconds: 0,
        decay_seconds: 0,
    })
}
