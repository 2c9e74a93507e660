//! The `process` driver: a guest is a command with its children. No security boundary: guests are
//! apart by user, and otherwise see the machine as any process does.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use plimsoll_types::{Driver, GuestSpec, GuestStatus, PauseKind};
use rustix::process::Signal;
use sha2::{Digest, Sha256};

use super::adopt::adopt;
use super::cgroup::CgroupLimits;
use super::folder::{GuestDir, GuestName, Guests};
use super::launch::START_LIMIT;
use super::shared::{END_GRACE, Polite, STOP_GRACE, Shared, blocking};
use super::{
    Abilities, ChangeError, EndError, ExecError, ExecOutput, ExecRequest, Fault, FinalUse, Found,
    GuestDriver, GuestState, LookError, StartError, Started, Unavailable, Usage,
};
use crate::shim::GuestUser;
use crate::shim::plan::LaunchPlan;

/// Longest wait for a guest's processes to stand still: those in uninterruptible waits for a slow
/// disk take a while.
const FREEZE_LIMIT: Duration = Duration::from_secs(10);

/// Users that guests are given, one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRange {
    /// First user id; the group has the same number.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

impl UserRange {
    /// Users of one agent: more than one machine holds guests.
    const COUNT: u32 = 65_536;
    /// First of all ranges: above what common assignments take (system services, containers' user
    /// namespaces, directory services).
    const FIRST: u32 = 1_900_000_000;
    /// How many ranges there are below 2^31.
    const RANGES: u32 = (i32::MAX as u32 - Self::FIRST) / Self::COUNT;

    /// The range for an agent's folder: agents that share a machine rarely share a range.
    fn for_folder(data: &Path) -> Self {
        let digest = Sha256::digest(data.as_os_str().as_encoded_bytes());
        let number = digest.iter().take(4).fold(0_u32, |sum, byte| (sum << 8) | u32::from(*byte));
        Self { first: Self::FIRST + number % Self::RANGES * Self::COUNT, count: Self::COUNT }
    }
}

/// How the process driver runs guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessConfig {
    /// Each guest as a user of its own, from this range or one that the agent's folder leads to;
    /// needs root.
    OwnUser(Option<UserRange>),
    /// All guests as this user; needs root. They can then signal and read each other.
    OneUser(GuestUser),
    /// All guests as the agent's own user. They can then do to the agent what it can.
    AgentsUser,
}

impl Default for ProcessConfig {
    /// A user of its own for each guest where the agent is root, else the agent's.
    fn default() -> Self {
        if rustix::process::geteuid().is_root() { Self::OwnUser(None) } else { Self::AgentsUser }
    }
}

/// Runs guests as processes.
#[derive(Debug)]
pub struct ProcessDriver {
    shared: Shared,
    config: ProcessConfig,
    users: Arc<Mutex<Option<BTreeMap<GuestName, u32>>>>,
}

impl ProcessDriver {
    /// A driver over these guests.
    #[must_use]
    pub fn new(guests: Arc<Guests>, config: ProcessConfig) -> Self {
        Self { shared: Shared { kind: Driver::Process, guests }, config, users: Arc::default() }
    }

    async fn start_guest(&self, spec: &GuestSpec) -> Result<Started, StartError> {
        check(spec)?;
        let name = GuestName::of(spec);
        let _turn = self.shared.guests.turn(&name.to_string()).await;
        if let Some(started) = self.shared.started_before(&name).await? {
            return Ok(started);
        }
        self.start_new(spec, None).await
    }

    /// Starts a guest that was stopped, under the name and with the disk that it had.
    async fn restart_guest(&self, spec: &GuestSpec) -> Result<Started, StartError> {
        check(spec)?;
        let name = GuestName::of(spec);
        let _turn = self.shared.guests.turn(&name.to_string()).await;
        let Some(former) = self.shared.set_aside(&name).await? else {
            return match self.shared.started_before(&name).await? {
                Some(started) => Ok(started),
                None => self.start_new(spec, None).await,
            };
        };
        let started = self.start_new(spec, Some(&former)).await;
        self.shared.settle_former(&name, former).await;
        started
    }

    /// Starts a guest whose name is free; `former` is the folder that it had before it was stopped.
    async fn start_new(
        &self,
        spec: &GuestSpec,
        former: Option<&GuestDir>,
    ) -> Result<Started, StartError> {
        let name = GuestName::of(spec);
        let keeps_user = former.is_some();
        let notes = Arc::new(Mutex::new(Vec::new()));
        let (guests, own_guests) =
            (Arc::clone(&self.shared.guests), Arc::clone(&self.shared.guests));
        let (users, config) = (Arc::clone(&self.users), self.config);
        let (own_spec, own_notes) = (spec.clone(), Arc::clone(&notes));
        let former = former.cloned();
        let disk = blocking(move || match former {
            Some(dir) => disk_in(&dir),
            None => former_disk(&own_guests, &name),
        })
        .await?;
        let work = disk.as_ref().map(|disk| disk.work.clone());
        let started = self
            .shared
            .launch(spec, START_LIMIT, work, move |staged, dir| {
                let user = pick_user(&guests, &users, config, &name, disk.as_ref())?;
                let (mut plan, said) =
                    prepare(&guests, &own_spec, staged, dir, user, disk.is_some())?;
                plan.user_is_own = matches!(config, ProcessConfig::OwnUser(_));
                *own_notes.lock().unwrap_or_else(PoisonError::into_inner) = said;
                Ok(plan)
            })
            .await;
        match started {
            Ok(mut started) => {
                started.notes =
                    std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(started)
            }
            Err(fault) => {
                // The disk of one that was stopped stays its user's.
                if !keeps_user {
                    self.free_user(&name);
                }
                Err(fault.into())
            }
        }
    }

    fn free_user(&self, name: &GuestName) {
        if let Some(users) = &mut *self.users.lock().unwrap_or_else(PoisonError::into_inner) {
            users.remove(name);
        }
    }

    async fn pause_guest(&self, name: &GuestName, kind: PauseKind) -> Result<(), ChangeError> {
        if kind == PauseKind::Checkpoint {
            let what = "pause that writes memory out";
            return Err(ChangeError::Unsupported { driver: Driver::Process, what });
        }
        let _turn = self.shared.guests.turn(&name.to_string()).await;
        let (_, look) = self.shared.find(name).await?;
        match look.guest.status {
            GuestStatus::Paused => return Ok(()),
            GuestStatus::Running => {}
            status => return Err(ChangeError::State { name: *name, status }),
        }
        let tree = look.tree();
        blocking(move || {
            if tree.freeze(FREEZE_LIMIT) {
                return Ok(());
            }
            // Half frozen is no state: let it run on.
            tree.thaw().map_err(|detail| Fault::step("the thaw after a failed pause", detail))?;
            Err(Fault::timeout("the pause", FREEZE_LIMIT))
        })
        .await?;
        Ok(())
    }

    async fn resume_guest(&self, name: &GuestName) -> Result<(), ChangeError> {
        let _turn = self.shared.guests.turn(&name.to_string()).await;
        let (_, look) = self.shared.find(name).await?;
        match look.guest.status {
            GuestStatus::Running => return Ok(()),
            GuestStatus::Paused => {}
            status => return Err(ChangeError::State { name: *name, status }),
        }
        let tree = look.tree();
        blocking(move || tree.thaw().map_err(|detail| Fault::step("the resume", detail))).await?;
        Ok(())
    }
}

/// Refuses what processes cannot be given.
fn check(spec: &GuestSpec) -> Result<(), StartError> {
    let wrong = [
        ("rootfs", spec.rootfs.is_some()),
        ("baked", spec.baked),
        ("fork_of", spec.fork_of.is_some()),
    ];
    match wrong.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => {
            let why = "the process driver runs commands of the machine itself, and has none";
            Err(StartError::Invalid { field, why: why.to_owned() })
        }
        None => Ok(()),
    }
}

/// A disk that an earlier attempt of the same sandbox left, which the next one takes over.
struct FormerDisk {
    work: std::path::PathBuf,
    user: Option<GuestUser>,
}

fn former_disk(guests: &Guests, name: &GuestName) -> Result<Option<FormerDisk>, Fault> {
    let fail = || Fault::io("look for an earlier attempt's disk");
    for earlier in guests.attempts(name.id).map_err(fail())?.into_iter().rev() {
        let dir = guests.dir(&earlier);
        if earlier < *name
            && dir.exit().map_err(fail())?.is_some()
            && let Some(disk) = disk_in(&dir)?
        {
            return Ok(Some(disk));
        }
    }
    Ok(None)
}

/// The disk in a folder, with the user whose it is.
fn disk_in(dir: &GuestDir) -> Result<Option<FormerDisk>, Fault> {
    let work = dir.work_path();
    if !work.is_dir() {
        return Ok(None);
    }
    let plan = dir.plan().map_err(Fault::io("read the plan beside a disk"))?;
    Ok(Some(FormerDisk { work, user: plan.and_then(|plan| plan.user) }))
}

/// The guest's user: that of the disk it takes over, or one that no guest has.
fn pick_user(
    guests: &Guests,
    users: &Mutex<Option<BTreeMap<GuestName, u32>>>,
    config: ProcessConfig,
    name: &GuestName,
    disk: Option<&FormerDisk>,
) -> Result<Option<GuestUser>, Fault> {
    let range = match config {
        ProcessConfig::AgentsUser => return Ok(None),
        ProcessConfig::OneUser(user) => return Ok(Some(user)),
        ProcessConfig::OwnUser(range) => {
            range.unwrap_or_else(|| UserRange::for_folder(guests.data()))
        }
    };
    let mut users = users.lock().unwrap_or_else(PoisonError::into_inner);
    if users.is_none() {
        // The first start of this agent: guests of its predecessor keep theirs.
        *users = Some(users_in_use(guests)?);
    }
    let users = users.get_or_insert_default();
    let former = disk.and_then(|disk| disk.user).map(|user| user.uid);
    let taken: BTreeSet<u32> = users.values().copied().collect();
    let free =
        || (range.first..range.first.saturating_add(range.count)).find(|uid| !taken.contains(uid));
    let uid = former.or_else(free).ok_or_else(|| {
        Fault::step("the choice of a user", format_args!("all {} are taken", range.count))
    })?;
    users.insert(*name, uid);
    Ok(Some(GuestUser { uid, gid: uid }))
}

fn users_in_use(guests: &Guests) -> Result<BTreeMap<GuestName, u32>, Fault> {
    let (names, _) = guests.list().map_err(Fault::io("list the guests"))?;
    let user = |name: &GuestName| guests.dir(name).plan().ok()??.user;
    Ok(names.iter().filter_map(|name| Some((*name, user(name)?.uid))).collect())
}

fn prepare(
    guests: &Guests,
    spec: &GuestSpec,
    staged: &GuestDir,
    dir: &GuestDir,
    user: Option<GuestUser>,
    has_disk: bool,
) -> Result<(LaunchPlan, Vec<String>), Fault> {
    if !has_disk {
        make_work(&staged.work_path(), user).map_err(Fault::io("make the work folder"))?;
    }
    let limits = CgroupLimits {
        memory_mib: spec.memory_mib.saturating_add(spec.overhead_mib),
        vcpus: spec.vcpus,
    };
    let (cgroup, notes) = guests.machine().make(&guests.tagged(GuestName::of(spec)), limits);
    let own_path = user.is_none() || guests.reachable();
    let plan = LaunchPlan {
        again: guests.shim().words.clone(),
        command: spec.command.clone(),
        user,
        user_is_own: false,
        home: if own_path { dir.work_path().display().to_string() } else { "/".to_owned() },
        cgroup,
        shim_cgroup: guests.shims_cgroup().clone(),
        sandbox: None,
    };
    Ok((plan, notes))
}

fn make_work(work: &Path, user: Option<GuestUser>) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(work)?;
    match user {
        Some(user) => chown(work, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

/// Asks every process of a guest to end.
fn ask(look: &super::look::Look) {
    look.tree().signal(Signal::TERM);
}

impl GuestDriver for ProcessDriver {
    fn kind(&self) -> Driver {
        Driver::Process
    }

    fn available(&self) -> BoxFuture<'_, Result<Abilities, Unavailable>> {
        Box::pin(async move {
            let root = rustix::process::geteuid().is_root();
            if !root && self.config != ProcessConfig::AgentsUser {
                return Err(Unavailable("running guests as another user needs root".to_owned()));
            }
            let mut notes = vec!["no security boundary between guests and machine".to_owned()];
            if self.config == ProcessConfig::AgentsUser {
                notes.push("guests run as the agent's own user".to_owned());
            } else if !self.shared.guests.reachable() {
                notes
                    .push("the data folder shuts guests' users out: HOME is / for them".to_owned());
            }
            let machine = self.shared.guests.machine();
            if machine.unified.is_none() && machine.v1.is_empty() {
                notes.push("no control groups: neither memory nor CPU is limited".to_owned());
            }
            Ok(Abilities { version: "processes".to_owned(), checkpoint: false, notes })
        })
    }

    fn pause_frees_memory(&self) -> bool {
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
            let _turn = self.shared.guests.turn(&name.to_string()).await;
            self.shared.stop(name, Polite::Yes(&ask, STOP_GRACE)).await
        })
    }

    fn end<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<Option<FinalUse>, EndError>> {
        Box::pin(async move {
            let _turn = self.shared.guests.turn(&name.to_string()).await;
            let used = self.shared.end(name, Polite::Yes(&ask, END_GRACE)).await?;
            self.free_user(name);
            Ok(used)
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
        Box::pin(self.shared.usage(name))
    }

    fn status<'a>(&'a self, name: &'a GuestName) -> BoxFuture<'a, Result<GuestState, LookError>> {
        Box::pin(self.shared.status(name))
    }

    fn adopt(&self) -> BoxFuture<'_, Result<Found, Fault>> {
        Box::pin(adopt(&self.shared))
    }
}
