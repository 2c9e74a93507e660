//! The `gvisor` driver: a guest is a sandbox of gVisor's `runsc`, without network, whose pause
//! writes its memory out.
//!
//! Its disk is an overlay in the sandbox's own memory: it is part of a checkpoint and of a fork,
//! and ends with a stop.

mod bake;
mod bundle;
mod rootfs;
mod setup;
pub(crate) mod tool;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use plimsoll_types::{Driver, GuestSpec, GuestStatus, PauseKind};
use tokio::sync::OnceCell;

use self::setup::Setup;
use super::adopt::adopt;
use super::cgroup::CgroupLimits;
use super::folder::{GuestDir, GuestName, Guests};
use super::launch::{CHECKPOINT_LIMIT, RESTORE_LIMIT, call, start_shim, take_lock};
use super::look::{Look, wait_for_shim};
use super::shared::{Polite, STOP_GRACE, Shared, blocking};
use super::{
    Abilities, ChangeError, EndError, ExecError, ExecOutput, ExecRequest, Fault, FinalUse, Found,
    GuestDriver, GuestState, LookError, StartError, Started, Unavailable, Usage, describe,
};
use crate::shim::files::{
    Outlives, private_folder, remove_file, remove_folder, replace, replace_json, sync_folder,
};
use crate::shim::image;
use crate::shim::plan::{Answer, Call, LaunchPlan, RestoreFrom, SandboxPlan};
use crate::shim::runsc::{IMAGE, Runsc, TALK};
pub(crate) use bundle::WAKE;

/// How long a shim may take to end after its guest was written out.
const SHIM_ENDS: Duration = Duration::from_secs(30);

/// How the gVisor driver runs guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GvisorConfig {
    /// The `runsc` binary, looked up in `PATH` when it is a bare name.
    pub runsc: PathBuf,
    /// A static busybox, for templates that bring no root file system and for trying things out.
    pub busybox: PathBuf,
    /// The platform of gVisor; left out, what `runsc` takes by itself, else one that works.
    pub platform: Option<String>,
}

impl Default for GvisorConfig {
    fn default() -> Self {
        Self { runsc: "runsc".into(), busybox: "/bin/busybox".into(), platform: None }
    }
}

/// Runs guests as gVisor sandboxes.
#[derive(Debug)]
pub struct GvisorDriver {
    shared: Shared,
    config: GvisorConfig,
    setup: OnceCell<Result<Setup, Unavailable>>,
    /// Images that could not be baked, and why: tried once in an agent's life, since a try may
    /// take its full time limit.
    unbaked: Mutex<BTreeMap<String, String>>,
}

impl GvisorDriver {
    /// A driver over these guests.
    #[must_use]
    pub fn new(guests: Arc<Guests>, config: GvisorConfig) -> Self {
        Self {
            shared: Shared { kind: Driver::Gvisor, guests },
            config,
            setup: OnceCell::new(),
            unbaked: Mutex::default(),
        }
    }

    async fn setup(&self) -> Result<&Setup, Unavailable> {
        let tried = self.setup.get_or_init(|| setup::try_out(&self.shared.guests, &self.config));
        tried.await.as_ref().map_err(Clone::clone)
    }

    async fn start_guest(&self, spec: &GuestSpec) -> Result<Started, StartError> {
        let unavailable = |why: Unavailable| Fault::step("the gVisor driver", why);
        let setup = self.setup().await.map_err(unavailable)?;
        let rootfs = self.rootfs(spec, setup)?;
        let name = GuestName::of(spec);
        let _turn = self.shared.guests.turn(&name.to_string()).await;
        if let Some(started) = self.shared.started_before(&name).await? {
            return Ok(started);
        }
        self.start_new(spec, setup, rootfs).await
    }

    /// Starts a guest that was stopped, under the name that it had.
    async fn restart_guest(&self, spec: &GuestSpec) -> Result<Started, StartError> {
        let unavailable = |why: Unavailable| Fault::step("the gVisor driver", why);
        let setup = self.setup().await.map_err(unavailable)?;
        let rootfs = self.rootfs(spec, setup)?;
        let name = GuestName::of(spec);
        let _turn = self.shared.guests.turn(&name.to_string()).await;
        let Some(former) = self.shared.set_aside(&name).await? else {
            return match self.shared.started_before(&name).await? {
                Some(started) => Ok(started),
                None => self.start_new(spec, setup, rootfs).await,
            };
        };
        let started = self.start_new(spec, setup, rootfs).await;
        self.shared.settle_former(&name, former).await;
        started
    }

    /// Starts a guest whose name is free.
    async fn start_new(
        &self,
        spec: &GuestSpec,
        setup: &Setup,
        rootfs: PathBuf,
    ) -> Result<Started, StartError> {
        let name = GuestName::of(spec);
        let mut notes = Vec::new();
        let fork = match spec.fork_of {
            Some(source) => Some(self.branch(source, &name).await?),
            None => None,
        };
        let baked = if fork.is_none() && spec.baked {
            self.baked(spec, setup, &rootfs, &mut notes).await
        } else {
            None
        };
        let restore = match (&fork, baked) {
            (Some(_), _) => Some(RestoreFrom::Own),
            (None, Some(image)) => Some(RestoreFrom::Baked(image)),
            (None, None) => None,
        };
        let wake = match &restore {
            Some(RestoreFrom::Baked(_)) => bundle::become_script(spec),
            _ => None,
        };
        let said = Arc::new(Mutex::new(Vec::new()));
        let (guests, own_spec, own_said) =
            (Arc::clone(&self.shared.guests), spec.clone(), Arc::clone(&said));
        let runsc = (setup.program.clone(), setup.flags.clone());
        let branch = fork.clone();
        let started = self
            .shared
            .launch(spec, RESTORE_LIMIT, None, move |staged, dir| {
                if let Some(branch) = branch {
                    let image = branch.join(image::CHECKPOINT);
                    std::fs::rename(image, staged.path().join(image::CHECKPOINT))
                        .map_err(Fault::io("take the fork's checkpoint"))?;
                }
                let (plan, notes) =
                    prepare(&guests, &own_spec, runsc, &rootfs, (staged, dir), restore, wake)?;
                *own_said.lock().unwrap_or_else(PoisonError::into_inner) = notes;
                Ok(plan)
            })
            .await;
        if let Some(branch) = fork {
            remove_folder(&branch).map_err(Fault::io("remove the fork's folder"))?;
        }
        let mut started = started?;
        notes.append(&mut said.lock().unwrap_or_else(PoisonError::into_inner));
        started.notes = notes;
        Ok(started)
    }

    /// The root file system: the template's folder, which holds nothing of the agent's, or the
    /// built-in one.
    fn rootfs(&self, spec: &GuestSpec, setup: &Setup) -> Result<PathBuf, StartError> {
        let Some(given) = &spec.rootfs else { return Ok(setup.rootfs.clone()) };
        let invalid = |why: String| StartError::Invalid { field: "rootfs", why };
        let path = Path::new(given);
        if !path.is_absolute() {
            return Err(invalid(format!("{given:?} is no absolute path")));
        }
        let folder = path.canonicalize().map_err(|error| invalid(format!("{given:?}: {error}")))?;
        if !folder.is_dir() {
            return Err(invalid(format!("{given:?} is no folder; images are not unpacked here")));
        }
        if self.shared.guests.data().starts_with(&folder) {
            let why = format!("{given:?} holds the agent's own data, which guests would read");
            return Err(invalid(why));
        }
        Ok(folder)
    }

    /// The baked image for this guest, or why it boots plainly.
    async fn baked(
        &self,
        spec: &GuestSpec,
        setup: &Setup,
        rootfs: &Path,
        notes: &mut Vec<String>,
    ) -> Option<PathBuf> {
        if !bundle::can_be_woken(spec) {
            notes
                .push("booted plainly: a variable of its environment has no shell name".to_owned());
            return None;
        }
        let unbaked = || self.unbaked.lock().unwrap_or_else(PoisonError::into_inner);
        let key = match bake::key(setup, rootfs) {
            Ok(key) => key,
            Err(fault) => {
                notes.push(format!("booted plainly: {}", describe(&fault)));
                return None;
            }
        };
        if let Some(why) = unbaked().get(&key) {
            notes.push(format!("booted plainly: {why}"));
            return None;
        }
        match bake::image_of(&self.shared.guests, setup, rootfs, &key).await {
            Ok(image) => Some(image),
            Err(fault) => {
                let why = describe(&fault);
                notes.push(format!("booted plainly: {why}"));
                unbaked().insert(key, why);
                None
            }
        }
    }

    /// Takes a checkpoint of another guest into a folder of its own. A running source stands still
    /// while it is written out and restored: `runsc` can take no checkpoint that leaves it running.
    async fn branch(
        &self,
        source: plimsoll_types::SandboxId,
        name: &GuestName,
    ) -> Result<PathBuf, StartError> {
        let invalid = |why: String| StartError::Invalid { field: "fork_of", why };
        let attempts =
            self.shared.guests.attempts(source).map_err(Fault::io("look for the fork's source"))?;
        let gone = || invalid(format!("{source} is not on this host"));
        let source = *attempts.last().ok_or_else(gone)?;
        let _turn = self.shared.guests.turn(&source.to_string()).await;
        let before = self.look(&source).await?.ok_or_else(gone)?.guest;
        match (before.status, before.paused) {
            (GuestStatus::Running | GuestStatus::Paused, _) => {}
            (status, _) => return Err(invalid(format!("{source} is {status}"))),
        }
        let in_memory = before.paused != Some(PauseKind::Checkpoint);
        let change = |error: ChangeError| match error {
            ChangeError::Fault(fault) => fault,
            other => Fault::step("the fork", other),
        };
        if in_memory {
            self.write_out(&source).await.map_err(change)?;
        }
        let from = self.shared.guests.dir(&source).path().join(image::CHECKPOINT);
        let branch = self.shared.guests.data().join("branches").join(name.to_string());
        let target = branch.clone();
        let shared = blocking(move || {
            let fail = || Fault::io("share the source's checkpoint");
            remove_folder(&target).map_err(fail())?;
            private_folder(&target).map_err(fail())?;
            image::share(&from, &target).map_err(fail())
        })
        .await;
        // The source runs on, whether the fork comes to be or not.
        if in_memory {
            self.restore(&source).await.map_err(change)?;
        }
        if before.paused == Some(PauseKind::Keep) {
            self.freeze(&source).await.map_err(change)?;
        }
        shared?;
        Ok(branch)
    }

    async fn look(&self, name: &GuestName) -> Result<Option<Look>, Fault> {
        self.shared.look(name).await
    }

    async fn pause_guest(&self, name: &GuestName, kind: PauseKind) -> Result<(), ChangeError> {
        let _turn = self.shared.guests.turn(&name.to_string()).await;
        let (_, look) = self.shared.find(name).await?;
        let status = look.guest.status;
        match (status, look.guest.paused, kind) {
            (GuestStatus::Paused, Some(PauseKind::Checkpoint), _) => Ok(()),
            (GuestStatus::Paused, _, PauseKind::Keep) => Ok(()),
            (GuestStatus::Running, _, PauseKind::Keep) => self.freeze(name).await,
            (GuestStatus::Running | GuestStatus::Paused, ..) => self.write_out(name).await,
            _ => Err(ChangeError::State { name: *name, status }),
        }
    }

    async fn resume_guest(&self, name: &GuestName) -> Result<(), ChangeError> {
        let _turn = self.shared.guests.turn(&name.to_string()).await;
        let (_, look) = self.shared.find(name).await?;
        let status = look.guest.status;
        match (status, look.guest.paused) {
            (GuestStatus::Running, _) => Ok(()),
            (GuestStatus::Paused, Some(PauseKind::Checkpoint)) => self.restore(name).await,
            (GuestStatus::Paused, _) => self.thaw(name).await,
            _ => Err(ChangeError::State { name: *name, status }),
        }
    }

    /// Runs one step of `runsc` on a living sandbox.
    async fn runsc(
        &self,
        name: &GuestName,
        step: &'static str,
        words: &'static [&'static str],
        last: &'static [&'static str],
    ) -> Result<String, Fault> {
        let dir = self.shared.guests.dir(name);
        blocking(move || {
            let plan = dir.plan().map_err(Fault::io("read the guest's plan"))?;
            let sandbox = plan.and_then(|plan| plan.sandbox);
            let sandbox = sandbox.ok_or_else(|| Fault::step(step, "the guest is no sandbox"))?;
            let all: Vec<&str> = words
                .iter()
                .copied()
                .chain([sandbox.container.as_str()])
                .chain(last.iter().copied())
                .collect();
            tool::run(sandbox.runsc.command(&all), step, &dir.path().join("talk.agent"), TALK)
        })
        .await
    }

    /// Freezes a sandbox in place. The mark is set before and taken back after, so that a sandbox
    /// without it is never frozen.
    async fn freeze(&self, name: &GuestName) -> Result<(), ChangeError> {
        let mark = self.shared.guests.dir(name).frozen_path();
        replace(&mark, b"", Outlives::Processes).map_err(Fault::io("mark the guest as frozen"))?;
        if let Err(fault) = self.runsc(name, "the pause", &["pause"], &[]).await {
            // A sandbox that is frozen already says no as well: look.
            if self.is_frozen_inside(name).await != Ok(true) {
                remove_file(&mark).map_err(Fault::io("unmark the guest"))?;
                return Err(fault.into());
            }
        }
        Ok(())
    }

    async fn thaw(&self, name: &GuestName) -> Result<(), ChangeError> {
        if let Err(fault) = self.runsc(name, "the resume", &["resume"], &[]).await
            && self.is_frozen_inside(name).await != Ok(false)
        {
            return Err(fault.into());
        }
        remove_mark(&self.shared.guests.dir(name))?;
        Ok(())
    }

    /// What `runsc` itself says of a living sandbox.
    async fn is_frozen_inside(&self, name: &GuestName) -> Result<bool, ()> {
        let said = self.runsc(name, "the question for the state", &["state"], &[]).await;
        let state: serde_json::Value = serde_json::from_str(&said.map_err(drop)?).map_err(drop)?;
        match state["status"].as_str() {
            Some("paused") => Ok(true),
            Some("running") => Ok(false),
            _ => Err(()),
        }
    }

    /// Writes a sandbox out and lets it leave the host's memory.
    async fn write_out(&self, name: &GuestName) -> Result<(), ChangeError> {
        const STEP: &str = "the checkpoint";
        let dir = self.shared.guests.dir(name);
        let own = dir.clone();
        let paused = blocking(move || {
            let fail = || Fault::io("keep the guest's specification");
            // With the image they must outlive the machine's boot.
            if let (Some(spec), Some(plan)) =
                (own.spec().map_err(fail())?, own.plan().map_err(fail())?)
            {
                replace_json(&own.spec_path(), &spec, Outlives::Machine).map_err(fail())?;
                replace_json(&own.plan_path(), &plan, Outlives::Machine).map_err(fail())?;
            }
            // The folder's own name, too.
            own.path().parent().map_or(Ok(()), sync_folder).map_err(fail())?;
            Ok(own.frozen_path().exists())
        })
        .await?;
        let answer = call(&dir, &Call::Checkpoint { paused }, STEP, CHECKPOINT_LIMIT).await?;
        if let Some(Answer::Failed { detail }) = answer {
            return Err(Fault::step(STEP, detail).into());
        }
        blocking(move || {
            if !wait_for_shim(&dir, SHIM_ENDS).map_err(Fault::io("wait for the shim"))? {
                return Err(Fault::timeout("the end of the guest's shim", SHIM_ENDS));
            }
            // The shim may have been killed half-way.
            super::adopt::settle(&dir, Driver::Gvisor)?;
            if dir.checkpoint().is_none() {
                return Err(Fault::step(STEP, "the guest was not written out"));
            }
            remove_mark(&dir)
        })
        .await?;
        Ok(())
    }

    /// Restores a sandbox from its checkpoint, which is consumed. When that fails it is kept.
    async fn restore(&self, name: &GuestName) -> Result<(), ChangeError> {
        let (dir, _) = self.shared.find(name).await?;
        let (guests, own, own_name) = (Arc::clone(&self.shared.guests), dir.clone(), *name);
        let lock = blocking(move || {
            let lock = take_lock(&own)?;
            prepare_restore(&guests, &own, &own_name)?;
            Ok(lock)
        })
        .await?;
        let started = start_shim(&self.shared.guests, &dir, lock, RESTORE_LIMIT).await;
        if let Err(fault) = started {
            blocking(move || {
                // The shim has put the checkpoint back, or was killed before it could.
                wait_for_shim(&dir, SHIM_ENDS).map_err(Fault::io("wait for the shim"))?;
                super::adopt::settle(&dir, Driver::Gvisor)
            })
            .await?;
            return Err(fault.into());
        }
        Ok(())
    }

    async fn adopt_guests(&self) -> Result<Found, Fault> {
        bake::discard_all(&self.shared.guests).await?;
        remove_folder(&self.shared.guests.data().join("branches"))
            .map_err(Fault::io("clear what earlier forks left"))?;
        let mut found = adopt(&self.shared).await?;
        for guest in &mut found.guests {
            if guest.state.paused != Some(PauseKind::Keep) {
                continue;
            }
            // The mark is set before the freeze: an agent killed in between left a running guest.
            if self.is_frozen_inside(&guest.name).await == Ok(false) {
                remove_mark(&self.shared.guests.dir(&guest.name))?;
                guest.state.status = GuestStatus::Running;
                guest.state.paused = None;
            }
        }
        Ok(found)
    }
}

fn remove_mark(dir: &GuestDir) -> Result<(), Fault> {
    remove_file(&dir.frozen_path()).map_err(Fault::io("unmark the guest"))
}

/// Fills a guest's folder and plans its launch.
fn prepare(
    guests: &Guests,
    spec: &GuestSpec,
    (program, flags): (PathBuf, Vec<String>),
    rootfs: &Path,
    (staged, dir): (&GuestDir, &GuestDir),
    restore: Option<RestoreFrom>,
    wake: Option<String>,
) -> Result<(LaunchPlan, Vec<String>), Fault> {
    let fail = || Fault::io("make the guest's bundle");
    let limits = limits_of(spec);
    let bytes = limits.memory_mib.get().saturating_mul(1 << 20);
    let config = bundle::config(rootfs, &spec.command, &spec.env, bytes);
    private_folder(&staged.bundle_path()).map_err(fail())?;
    replace_json(&staged.bundle_path().join("config.json"), &config, Outlives::Machine)
        .map_err(fail())?;
    let name = guests.tagged(GuestName::of(spec));
    let (cgroup, notes) = guests.machine().make(&name, limits);
    let plan = LaunchPlan {
        again: guests.shim().words.clone(),
        command: spec.command.clone(),
        user: None,
        user_is_own: false,
        home: "/root".to_owned(),
        cgroup,
        shim_cgroup: guests.shims_cgroup().clone(),
        sandbox: Some(SandboxPlan {
            runsc: Runsc { program, flags, root: dir.path().join("runsc") },
            container: name,
            restore,
            wake,
        }),
    };
    Ok((plan, notes))
}

fn limits_of(spec: &GuestSpec) -> CgroupLimits {
    CgroupLimits {
        memory_mib: spec.memory_mib.saturating_add(spec.overhead_mib),
        vcpus: spec.vcpus,
    }
}

/// Plans another life of a guest that was written out.
fn prepare_restore(guests: &Guests, dir: &GuestDir, name: &GuestName) -> Result<(), Fault> {
    let fail = || Fault::io("plan the guest's restore");
    let (spec, plan) = (dir.spec().map_err(fail())?, dir.plan().map_err(fail())?);
    let (Some(spec), Some(mut plan)) = (spec, plan) else {
        return Err(Fault::step("the restore", "no specification or plan"));
    };
    if let Some(sandbox) = &mut plan.sandbox {
        sandbox.restore = Some(RestoreFrom::Own);
        sandbox.wake = None;
    }
    // The group went when the guest left; the binary and its words may be newer than the plan.
    (plan.cgroup, _) = guests.machine().make(&guests.tagged(name), limits_of(&spec));
    plan.again = guests.shim().words.clone();
    plan.shim_cgroup = guests.shims_cgroup().clone();
    replace_json(&dir.plan_path(), &plan, Outlives::Machine).map_err(fail())?;
    // What the former shim wrote would pass for the new one's.
    remove_file(&dir.state_path()).map_err(fail())
}

/// Waits until no process of the machine has this image open. The tool that asked for it and the
/// sandbox that writes it both have it open from the beginning to the end.
pub(crate) fn wait_for_image(staged: &Path) -> Result<(), Fault> {
    let image = staged.join(image::IMAGE_FILE);
    let deadline = Instant::now() + IMAGE;
    while crate::probe::is_open_anywhere(&image) {
        if Instant::now() >= deadline {
            return Err(Fault::timeout("the writing of an image", IMAGE));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

impl GuestDriver for GvisorDriver {
    fn kind(&self) -> Driver {
        Driver::Gvisor
    }

    fn available(&self) -> BoxFuture<'_, Result<Abilities, Unavailable>> {
        Box::pin(async move { Ok(self.setup().await?.abilities.clone()) })
    }

    fn pause_frees_memory(&self) -> bool {
        true
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
            let _turn = self.shared.guests.turn(&name.to_string()).await;
            let (_, look) = self.shared.find(name).await?;
            if look.guest.status == GuestStatus::Running {
                // A sandbox that cannot be talked to is ended without a word.
                let _ = self.runsc(name, "the request to end", &["kill"], &["TERM"]).await;
            }
            self.shared.stop(name, Polite::Yes(&|_| (), STOP_GRACE)).await
        })
    }

    fn end<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<Option<FinalUse>, EndError>> {
        Box::pin(async move {
            let _turn = self.shared.guests.turn(&name.to_string()).await;
            // Its disk goes with it: there is nothing that it could still bring to safety.
            let used = self.shared.end(name, Polite::No).await?;
            // A sandbox has no network at all, so this zero is known.
            Ok(used.map(|used| FinalUse { egress_bytes_total: Some(0), ..used }))
        })
    }

    fn exec<'a>(
        &'a self,
        name: &'a GuestName,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<ExecOutput, ExecError>> {
        Box::pin(self.shared.exec(name, request))
    }

    fn usage<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<Usage, LookError>> {
        Box::pin(async move {
            let mut usage = self.shared.usage(name).await?;
            // A sandbox has no network at all, so this zero is known.
            usage.egress_bytes_total = Some(0);
            Ok(usage)
        })
    }

    fn status<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<GuestState, LookError>> {
        Box::pin(self.shared.status(name))
    }

    fn adopt(&self) -> BoxFuture<'_, Result<Found, Fault>> {
        Box::pin(self.adopt_guests())
    }
}
