//! Guests' names and folders, and what a host's guests have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use plimsoll_types::{GuestSpec, SandboxId};
use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};

use super::Fault;
use crate::probe::{GuestCgroup, Hierarchies, ProcessTable};
use crate::shim::files::{read_json, remove_folder};
use crate::shim::log;
use crate::shim::plan::{LaunchPlan, StateFile};
use crate::shim::{ExitRecord, image};

/// How long one scan of all processes serves further questions: within one round of sampling.
const SCAN_FRESH: Duration = Duration::from_millis(200);
/// Before a folder's name while it is being removed.
const GONE: &str = ".gone-";
/// Before a folder's name while it is being made.
const NEW: &str = ".new-";
/// Before the name of a stopped guest's folder while the guest is started under the same name.
const FORMER: &str = ".former-";

/// A guest's name on its host: the sandbox and which try this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestName {
    /// The sandbox.
    pub id: SandboxId,
    /// Which try.
    pub attempt: u32,
}

impl GuestName {
    /// The name of the guest that this specification is for.
    #[must_use]
    pub const fn of(spec: &GuestSpec) -> Self {
        Self { id: spec.id, attempt: spec.attempt }
    }
}

impl fmt::Display for GuestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.id, self.attempt)
    }
}

/// A text that is no guest's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no guest: expected a sandbox id, a dot and the number of the attempt")]
pub struct GuestNameError(String);

impl FromStr for GuestName {
    type Err = GuestNameError;

    fn from_str(text: &str) -> Result<Self, GuestNameError> {
        text.split_once('.')
            .and_then(|(id, attempt)| {
                let name = Self { id: id.parse().ok()?, attempt: attempt.parse().ok()? };
                // One guest has one folder: `1` and `01` are not both its name.
                (name.to_string() == text).then_some(name)
            })
            .ok_or_else(|| GuestNameError(text.chars().take(80).collect()))
    }
}

/// How to call this binary's shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShimCommand {
    /// The binary.
    pub program: PathBuf,
    /// The words before the shim's own, such as the hidden subcommand's name.
    pub words: Vec<String>,
}

impl ShimCommand {
    /// This very binary, with its hidden subcommand.
    ///
    /// # Errors
    /// When the system does not tell which file runs.
    pub fn of_this_binary(subcommand: &str) -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, words: vec![subcommand.to_owned()] })
    }
}

/// One guest's folder.
///
/// | file | holds | written by |
/// | --- | --- | --- |
/// | `spec.json` | the specification, environment included | agent |
/// | `plan.json` | how it is launched | agent |
/// | `state.json` | its shim, its first process, its phase | shim |
/// | `exit.json` | how it ended | shim |
/// | `log.0`, `log.1` | its output, newest and former | shim |
/// | `lock` | held by the shim while it lives | - |
/// | `call` | the shim's socket | shim |
/// | `work/` | the guest's own folder | guest |
/// | `checkpoint/` | its memory, when it is paused so | shim |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestDir(PathBuf);

impl GuestDir {
    pub(crate) const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where the guest's command runs, and the one place that is its own.
    #[must_use]
    pub fn work_path(&self) -> PathBuf {
        self.0.join("work")
    }

    /// The newest output, at most so many bytes. Outputs and errors are in the order in which they
    /// came.
    #[must_use]
    pub fn log_tail(&self, bytes_max: usize) -> Vec<u8> {
        log::tail(&self.0, bytes_max)
    }

    /// What the guest was started from; `None` when there is no such file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn spec(&self) -> io::Result<Option<GuestSpec>> {
        read_json(&self.spec_path())
    }

    /// How the guest ended; `None` when it has not.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn exit(&self) -> io::Result<Option<ExitRecord>> {
        read_json(&self.exit_path())
    }

    pub(crate) fn plan(&self) -> io::Result<Option<LaunchPlan>> {
        read_json(&self.plan_path())
    }

    /// What the shim wrote, if it did so since the machine's boot.
    pub(crate) fn state(&self) -> io::Result<Option<StateFile>> {
        let state: Option<StateFile> = read_json(&self.state_path())?;
        Ok(state.filter(|state| crate::probe::boot_id().as_ref() == Ok(&state.boot_id)))
    }

    pub(crate) fn checkpoint(&self) -> Option<image::Manifest> {
        image::manifest(&self.0.join(image::CHECKPOINT))
    }

    pub(crate) fn spec_path(&self) -> PathBuf {
        self.0.join("spec.json")
    }

    pub(crate) fn plan_path(&self) -> PathBuf {
        self.0.join("plan.json")
    }

    pub(crate) fn state_path(&self) -> PathBuf {
        self.0.join("state.json")
    }

    pub(crate) fn exit_path(&self) -> PathBuf {
        self.0.join("exit.json")
    }

    pub(crate) fn bundle_path(&self) -> PathBuf {
        self.0.join("bundle")
    }

    /// Marks a sandbox that is frozen, or about to be.
    pub(crate) fn frozen_path(&self) -> PathBuf {
        self.0.join("frozen")
    }

    /// Takes the lock that a living shim holds; `None` when one lives.
    ///
    /// The lock belongs to the open file and goes to the shim with it, so there is no moment in
    /// which a shim lives unseen, and no pid that could be recycled.
    pub(crate) fn lock(&self, how: FlockOperation) -> io::Result<Option<std::fs::File>> {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.0.join("lock"))?;
        match rustix::fs::flock(&file, how) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the guest's shim lives.
    pub(crate) fn shim_lives(&self) -> io::Result<bool> {
        match self.lock(FlockOperation::NonBlockingLockShared) {
            Ok(lock) => Ok(lock.is_none()),
            // No folder, no shim.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The guests of one agent: where their folders are, and what their drivers share.
pub struct Guests {
    data: PathBuf,
    /// Whether every user may pass through to the guests' folders.
    reachable: bool,
    /// Tells this agent's control groups and sandboxes from those of others on the machine.
    tag: String,
    shim: ShimCommand,
    machine: Hierarchies,
    shims: GuestCgroup,
    locks: Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>,
    cpu_seen: Mutex<BTreeMap<GuestName, u64>>,
    scanned: Mutex<Option<(Instant, ProcessTable)>>,
    cleared: AtomicBool,
}

impl fmt::Debug for Guests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guests").field("data", &self.data).finish_non_exhaustive()
    }
}

impl Guests {
    /// Opens the guests below an agent's data folder. One that is made here may be passed through
    /// by every user (mode 0711), so that guests which have a user of their own come to their work
    /// folder; nothing in it but that is readable to them. `control_groups: false` leaves the machine's
    /// control groups alone: guests are then found by descent and measured by their processes, and
    /// neither memory nor CPU is limited.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(data: &Path, shim: ShimCommand, control_groups: bool) -> Result<Arc<Self>, Fault> {
        let fail = |path: &Path| Fault::io(format!("open {}", path.display()));
        passable_folder(data).map_err(fail(data))?;
        let data = data.canonicalize().map_err(fail(data))?;
        let guests = data.join("guests");
        passable_folder(&guests).map_err(fail(&guests))?;
        // Without control groups the machine is measured by other means, and says so there.
        let machine = if control_groups { Hierarchies::detect().ok() } else { None };
        let machine = machine.unwrap_or_default();
        let digest = Sha256::digest(data.as_os_str().as_encoded_bytes());
        let tag = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Ok(Arc::new(Self {
            shims: machine.make_for_shims(),
            reachable: guests.ancestors().all(is_passable),
            data,
            tag,
            shim,
            machine,
            locks: Mutex::default(),
            cpu_seen: Mutex::default(),
            scanned: Mutex::default(),
            cleared: AtomicBool::new(false),
        }))
    }

    /// The agent's data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The folder of this guest, whether it exists or not.
    #[must_use]
    pub fn dir(&self, name: &GuestName) -> GuestDir {
        GuestDir(self.data.join("guests").join(name.to_string()))
    }

    /// Every guest that has a folder, in order, and the names of folders that are no guest's.
    ///
    /// # Errors
    /// When the folders cannot be listed.
    pub fn list(&self) -> io::Result<(BTreeSet<GuestName>, Vec<String>)> {
        let (mut names, mut others) = (BTreeSet::new(), Vec::new());
        for entry in std::fs::read_dir(self.data.join("guests"))? {
            let text = entry?.file_name().to_string_lossy().into_owned();
            match text.parse() {
                Ok(name) => {
                    names.insert(name);
                }
                Err(_) if [GONE, NEW, FORMER].iter().any(|prefix| text.starts_with(prefix)) => {}
                Err(_) => others.push(text),
            }
        }
        Ok((names, others))
    }

    /// Every attempt of this sandbox that has a folder, oldest first.
    ///
    /// # Errors
    /// When the folders cannot be listed.
    pub fn attempts(&self, id: SandboxId) -> io::Result<Vec<GuestName>> {
        Ok(self.list()?.0.into_iter().filter(|name| name.id == id).collect())
    }

    /// Whether remains may be cleared: true once, since later a folder or control group without a
    /// guest may be one in the making.
    pub(crate) fn may_clear(&self) -> bool {
        !self.cleared.swap(true, Ordering::SeqCst)
    }

    /// Moves a stopped guest's folder out of the way of a start under the same name.
    pub(crate) fn set_aside(&self, name: &GuestName) -> io::Result<GuestDir> {
        let former = GuestDir(self.data.join("guests").join(format!("{FORMER}{name}")));
        std::fs::rename(self.dir(name).path(), former.path())?;
        Ok(former)
    }

    /// Brings a stopped guest's folder back where the start under the same name was cut short
    /// before the guest had its disk; else lets go of what is left of it.
    fn recover(&self, former: &GuestDir, name: &GuestName) -> io::Result<()> {
        let dir = self.dir(name);
        if former.work_path().is_dir() && !dir.work_path().is_dir() {
            remove_folder(dir.path())?;
            return std::fs::rename(former.path(), dir.path());
        }
        remove_folder(former.path())
    }

    /// Removes what was left by the making or removal of a folder that was cut short. Only for
    /// an agent's start, when nothing is being made.
    pub(crate) fn clear_remains(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(self.data.join("guests"))? {
            let entry = entry?;
            let name = entry.file_name();
            let former = name.to_string_lossy().strip_prefix(FORMER).and_then(|of| of.parse().ok());
            if let Some(of) = former {
                self.recover(&GuestDir(entry.path()), &of)?;
                continue;
            }
            if [GONE, NEW].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                remove_folder(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Makes an empty folder that becomes this guest's by [`Guests::settle`]: a guest's folder is
    /// never seen half made.
    pub(crate) fn stage(&self, name: &GuestName) -> io::Result<GuestDir> {
        let staged = GuestDir(self.data.join("guests").join(format!("{NEW}{name}")));
        remove_folder(staged.path())?;
        passable_folder(staged.path())?;
        Ok(staged)
    }

    /// Gives a staged folder its name.
    pub(crate) fn settle(&self, staged: &GuestDir, name: &GuestName) -> io::Result<GuestDir> {
        let dir = self.dir(name);
        std::fs::rename(staged.path(), dir.path())?;
        Ok(dir)
    }

    /// Removes a guest's folder: by its name at once, then all that is in it.
    pub(crate) fn remove(&self, dir: &GuestDir) -> io::Result<()> {
        let name = dir.path().file_name().unwrap_or_default();
        let mut gone = OsString::from(GONE);
        gone.push(name);
        let gone = dir.path().with_file_name(gone);
        remove_folder(&gone)?;
        match std::fs::rename(dir.path(), &gone) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => remove_folder(&gone),
        }
    }

    /// Waits for its turn with this guest (or other thing of that name).
    pub(crate) async fn turn(&self, name: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            match locks.get(name).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    let lock = Arc::default();
                    locks.insert(name.to_owned(), Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_owned().await
    }

    /// Whether a user of a guest's own can come to its folder by its path.
    pub(crate) fn reachable(&self) -> bool {
        self.reachable
    }

    pub(crate) fn shim(&self) -> &ShimCommand {
        &self.shim
    }

    pub(crate) fn machine(&self) -> &Hierarchies {
        &self.machine
    }

    pub(crate) fn shims_cgroup(&self) -> &GuestCgroup {
        &self.shims
    }

    /// The name of a guest's control group and sandbox: unique on the machine, also where several
    /// agents share it.
    #[must_use]
    pub fn tagged(&self, name: impl fmt::Display) -> String {
        format!("{}-{name}", self.tag)
    }

    /// All processes, as of a moment ago: guests sampled in one round share one scan.
    pub(crate) fn processes(&self) -> ProcessTable {
        let mut scanned = self.scanned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, table)) = &*scanned
            && at.elapsed() < SCAN_FRESH
        {
            return table.clone();
        }
        let table = ProcessTable::scan();
        *scanned = Some((Instant::now(), table.clone()));
        table
    }

    /// Holds a guest's CPU count at the highest that was seen, since a count over living processes
    /// falls when one ends that nobody waited for.
    pub(crate) fn cpu_never_falls(&self, name: &GuestName, millis: u64) -> u64 {
        let mut seen = self.cpu_seen.lock().unwrap_or_else(PoisonError::into_inner);
        let highest = seen.entry(*name).or_default();
        *highest = (*highest).max(millis);
        *highest
    }

    pub(crate) fn forget(&self, name: &GuestName) {
        self.cpu_seen.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// Makes a folder that others may pass through and not read, so that a guest with a user of its
/// own comes to its work folder. An existing one is left as its owner made it.
pub(crate) fn passable_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(path)
}

fn is_passable(folder: &Path) -> bool {
    std::fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o001 != 0)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_guest_has_one_name() {
        let name = GuestName { id: SandboxId(77), attempt: 3 };
        let text = name.to_string();
        assert_eq!(text.parse(), Ok(name));
        assert!(text.ends_with(".3"));
        let id = SandboxId(77).to_string();
        for text in
            ["", ".", "x.1", &id, &format!("{id}."), &format!("{id}.01"), &format!("{id}.-1")]
        {
            assert!(text.parse::<GuestName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_start_anew_that_was_cut_short_gives_the_disk_back() {
        let folder = tempfile::tempdir().unwrap();
        let shim = ShimCommand { program: "/bin/false".into(), words: Vec::new() };
        let guests = Guests::open(folder.path(), shim, false).unwrap();
        let name = GuestName { id: SandboxId(7), attempt: 1 };
        let dir = guests.dir(&name);
        let file = dir.work_path().join("file");
        let kept = || std::fs::read_to_string(&file).ok();
        let make = |text: &str| {
            std::fs::create_dir_all(dir.work_path()).unwrap();
            std::fs::write(&file, text).unwrap();
        };
        // Before the new folder had its name, and before it had the disk.
        for is_named in [false, true] {
            make("first");
            guests.set_aside(&name).unwrap();
            if is_named {
                std::fs::create_dir(dir.path()).unwrap();
            }
            assert_eq!(
                guests.list().unwrap(),
                (BTreeSet::from_iter(is_named.then_some(name)), vec![])
            );
            guests.clear_remains().unwrap();
            assert_eq!(kept().as_deref(), Some("first"));
        }
        // And after: what is left of the former folder goes.
        let former = guests.set_aside(&name).unwrap();
        make("second");
        guests.clear_remains().unwrap();
        assert_eq!(kept().as_deref(), Some("second"));
        assert!(!former.path().exists());
    }

    #[tokio::test]
    async fn one_turn_at_a_time_per_name() {
        let folder = tempfile::tempdir().unwrap();
        let shim = ShimCommand { program: "/bin/false".into(), words: Vec::new() };
        let guests = Guests::open(folder.path(), shim, false).unwrap();
        let first = guests.turn("a").await;
        let _other = guests.turn("b").await;
        let mut second = Box::pin(guests.turn("a"));
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        second.await;
    }

    #[test]
    fn a_lock_tells_a_living_holder() {
        let folder = tempfile::tempdir().unwrap();
        let dir = GuestDir::at(folder.path().to_owned());
        assert!(!dir.shim_lives().unwrap());
        let held = dir.lock(FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(dir.shim_lives().unwrap());
        drop(held);
        assert!(!dir.shim_lives().unwrap());
        assert!(!GuestDir::at(folder.path().join("none")).shim_lives().unwrap());
    }
}
