//! Makes, limits, freezes and removes a guest's control group.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_types::{Mib, Vcpus};

use crate::probe::{GuestCgroup, Hierarchies, parse_flat_keyed};

/// The group above all guests', at the mount's root: not below the agent's own, which a service
/// manager may end as a whole.
pub const PARENT: &str = "plimsoll";
/// The group of shims, beside the guests'.
const SHIMS: &str = "shims";
/// Most processes and threads of one guest: what common container engines set for one container,
/// and a fork bomb cannot take the machine's pids.
pub const PIDS_MAX: u64 = 4096;
/// Period of the CPU quota in microseconds, the kernel's own default.
const CPU_PERIOD_MICROS: u64 = 100_000;
/// How long a group may stay busy after its last process ended: the kernel lets go of a dying
/// process some milliseconds later.
const REMOVE_LIMIT: Duration = Duration::from_secs(5);

/// What a guest may use at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CgroupLimits {
    pub memory_mib: Mib,
    pub vcpus: Vcpus,
}

impl Hierarchies {
    /// Makes a guest's group wherever the machine allows. What could not be made or limited is
    /// said and no error: the guest then runs with less held down, and is measured otherwise.
    pub(crate) fn make(&self, name: &str, limits: CgroupLimits) -> (GuestCgroup, Vec<String>) {
        let (group, mut notes) = self.make_bare(name);
        if group.is_empty() {
            return (group, notes);
        }
        let memory = limits.memory_mib.get().saturating_mul(1 << 20).to_string();
        let quota = limits.vcpus.get().saturating_mul(CPU_PERIOD_MICROS);
        let pids = PIDS_MAX.to_string();
        for (v2_file, v2_value, controller, v1_file, v1_value) in [
            ("memory.max", memory.clone(), "memory", "memory.limit_in_bytes", memory),
            (
                "cpu.max",
                format!("{quota} {CPU_PERIOD_MICROS}"),
                "cpu",
                "cpu.cfs_quota_us",
                quota.to_string(),
            ),
            ("pids.max", pids.clone(), "pids", "pids.max", pids),
        ] {
            let v2 = group.unified.as_ref().map(|folder| folder.join(v2_file));
            let v2 = v2.filter(|path| path.exists());
            let (path, value) = match (v2, group.v1.get(controller)) {
                (Some(path), _) => (path, v2_value),
                (None, Some(folder)) => (folder.join(v1_file), v1_value),
                (None, None) => {
                    notes.push(format!("no {controller} controller: not limited"));
                    continue;
                }
            };
            if let Err(error) = std::fs::write(&path, value) {
                notes.push(format!("{}: {error}", path.display()));
            }
        }
        (group, notes)
    }

    /// Makes the group that holds shims, as far as that goes.
    pub(crate) fn make_for_shims(&self) -> GuestCgroup {
        // A shim that stays with the agent's group still works.
        self.make_bare(SHIMS).0
    }

    fn make_bare(&self, name: &str) -> (GuestCgroup, Vec<String>) {
        let mut group = GuestCgroup::default();
        let mut notes = Vec::new();
        if let Some(mount) = &self.unified {
            let parent = mount.join(PARENT);
            let made = std::fs::create_dir_all(&parent).and_then(|()| {
                for above in [mount, &parent] {
                    for controller in ["+memory", "+cpu", "+pids"] {
                        // Not every controller is there, and a mount within a container may hold
                        // processes beside groups: then the limit is missing and said so above.
                        let _ = std::fs::write(above.join("cgroup.subtree_control"), controller);
                    }
                }
                create_folder(&parent.join(name))
            });
            match made {
                Ok(path) => group.unified = Some(path),
                Err(error) => notes.push(format!("control group version 2: {error}")),
            }
        }
        for (controller, mount) in &self.v1 {
            let parent = mount.join(PARENT);
            match std::fs::create_dir_all(&parent).and_then(|()| create_folder(&parent.join(name)))
            {
                Ok(path) => {
                    group.v1.insert(controller.clone(), path);
                }
                Err(error) => notes.push(format!("control group {controller}: {error}")),
            }
        }
        (group, notes)
    }

    /// Guests' groups that exist and whose name begins so, as one group per name.
    pub(crate) fn existing(&self, prefix: &str) -> Vec<(String, GuestCgroup)> {
        let mut names = std::collections::BTreeSet::new();
        for mount in self.unified.iter().chain(self.v1.values()) {
            let Ok(entries) = std::fs::read_dir(mount.join(PARENT)) else { continue };
            names.extend(
                entries
                    .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                    .filter(|name| name.starts_with(prefix)),
            );
        }
        names
            .into_iter()
            .filter_map(|name| {
                let group = self.find(&format!("{PARENT}/{name}")).ok()?;
                Some((name, group))
            })
            .collect()
    }
}

/// Makes a folder; one that is there already is taken as it is.
fn create_folder(path: &Path) -> io::Result<PathBuf> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(path.to_owned()),
    }
}

impl GuestCgroup {
    /// Moves the calling process in, wherever that is allowed.
    pub(crate) fn join(&self) -> io::Result<()> {
        for folder in self.folders() {
            std::fs::write(folder.join("cgroup.procs"), "0")?;
        }
        Ok(())
    }

    /// Ends all that is in it by one write, where the kernel can (version 2, Linux 5.14). False
    /// where it cannot.
    pub(crate) fn kill_all(&self) -> bool {
        self.unified
            .as_ref()
            .is_some_and(|folder| std::fs::write(folder.join("cgroup.kill"), "1").is_ok())
    }

    pub(crate) fn can_freeze(&self) -> bool {
        self.freeze_file().is_some()
    }

    /// The file that freezes, what to write to freeze, and what to thaw.
    fn freeze_file(&self) -> Option<(PathBuf, &'static str, &'static str)> {
        let v2 = self.unified.as_ref().map(|folder| (folder.join("cgroup.freeze"), "1", "0"));
        let v1 = || {
            let folder = self.v1.get("freezer")?;
            Some((folder.join("freezer.state"), "FROZEN", "THAWED"))
        };
        v2.filter(|(path, ..)| path.exists()).or_else(v1)
    }

    pub(crate) fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        let (path, freeze, thaw) = self.freeze_file().ok_or(io::ErrorKind::Unsupported)?;
        std::fs::write(path, if frozen { freeze } else { thaw })
    }

    /// Whether every process in it stands still.
    pub(crate) fn is_frozen(&self) -> bool {
        let v2 = self.unified.as_ref().map(|folder| folder.join("cgroup.events"));
        if let Some(Ok(text)) = v2.map(std::fs::read_to_string)
            && let Ok(frozen) = parse_flat_keyed(&text, "frozen")
        {
            return frozen == 1;
        }
        self.v1
            .get("freezer")
            .and_then(|folder| std::fs::read_to_string(folder.join("freezer.state")).ok())
            .is_some_and(|state| state.trim() == "FROZEN")
    }

    /// Removes it. Everything in it must have ended.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + REMOVE_LIMIT;
        for folder in self.folders() {
            loop {
                match std::fs::remove_dir(folder) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(error) if Instant::now() >= deadline => return Err(error),
                    // Still held by a process that is on its way out.
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                    Ok(()) => break,
                }
            }
        }
        Ok(())
    }
}
