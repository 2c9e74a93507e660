//! What control groups say, version 2, version 1, or a mix of both.
//!
//! On a mixed machine version 2 may be mounted without the memory controller, which then is in
//! version 1. So each figure is looked for in version 2 first, then in version 1.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{MemoryMethod, Reading, Resident, Unknown};

/// Controllers of version 1 that are of use: memory for limit and use, cpu for the quota, cpuacct
/// for use, pids for the limit, freezer for a pause.
const CONTROLLERS_V1: [&str; 5] = ["memory", "cpu", "cpuacct", "pids", "freezer"];

/// Where the machine's control groups are mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// Version 2.
    pub unified: Option<PathBuf>,
    /// Version 1, by controller.
    pub v1: BTreeMap<String, PathBuf>,
}

impl Hierarchies {
    /// Looks at the mounts of this process.
    ///
    /// # Errors
    /// When the list of mounts cannot be read.
    pub fn detect() -> Reading<Self> {
        std::fs::read_to_string("/proc/self/mountinfo")
            .map(|text| parse_cgroup_mounts(&text))
            .map_err(|error| Unknown::new("control groups", format_args!("mountinfo: {error}")))
    }

    /// The existing control group of this name, relative to the mounts, for example one that an
    /// orchestrator named for a reservation of its own.
    ///
    /// # Errors
    /// When the name is not plain and relative, or no hierarchy has such a group.
    pub fn find(&self, name: &str) -> Reading<GuestCgroup> {
        let unknown = |why: &str| Unknown::new("control group", format_args!("{name:?}: {why}"));
        let relative = Path::new(name.trim_start_matches('/'));
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if relative.as_os_str().is_empty() || !relative.components().all(plain) {
            return Err(unknown("not a plain path below the mount of control groups"));
        }
        let existing = |mount: &PathBuf| Some(mount.join(relative)).filter(|path| path.is_dir());
        let found = GuestCgroup {
            unified: self.unified.as_ref().and_then(existing),
            v1: self
                .v1
                .iter()
                .filter_map(|(name, mount)| Some((name.clone(), existing(mount)?)))
                .collect(),
        };
        if found.is_empty() { Err(unknown("does not exist")) } else { Ok(found) }
    }
}

/// Finds control groups in `/proc/self/mountinfo`. Lines that make no sense are passed over.
#[must_use]
pub fn parse_cgroup_mounts(text: &str) -> Hierarchies {
    let mut found = Hierarchies::default();
    for line in text.lines() {
        let Some((mount, fs)) = line.split_once(" - ") else { continue };
        let mut fs = fs.split_ascii_whitespace();
        let (kind, options) = (fs.next(), fs.nth(1).unwrap_or(""));
        let Some(point) = mount.split_ascii_whitespace().nth(4) else { continue };
        let point = PathBuf::from(unescape(point));
        match kind {
            Some("cgroup2") => {
                found.unified.get_or_insert(point);
            }
            Some("cgroup") => {
                for controller in options.split(',').filter(|name| CONTROLLERS_V1.contains(name)) {
                    found.v1.entry(controller.to_owned()).or_insert_with(|| point.clone());
                }
            }
            _ => {}
        }
    }
    found
}

/// Undoes the kernel's octal escapes of space, tab, newline and backslash in a mount point.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Reads one value from a file of `key value` lines, such as `memory.stat`.
///
/// # Errors
/// When the key is missing or its value is no number.
pub fn parse_flat_keyed(text: &str, key: &'static str) -> Reading<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| value.trim().parse().ok())
        .ok_or_else(|| Unknown::new(key, "no such line, or no number on it"))
}

/// The control group of one guest: a folder in version 2, or one per controller in version 1, or
/// both. Empty where the machine has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestCgroup {
    /// Version 2.
    pub unified: Option<PathBuf>,
    /// Version 1, by controller.
    pub v1: BTreeMap<String, PathBuf>,
}

impl GuestCgroup {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unified.is_none() && self.v1.is_empty()
    }

    /// Every folder, each once.
    pub(crate) fn folders(&self) -> Vec<&Path> {
        let mut folders: Vec<&Path> =
            self.unified.iter().chain(self.v1.values()).map(PathBuf::as_path).collect();
        folders.sort_unstable();
        folders.dedup();
        folders
    }

    /// The processes in it, in order.
    ///
    /// # Errors
    /// When there is no group, or its list cannot be read.
    pub fn pids(&self) -> Reading<Vec<i32>> {
        let folders = self.folders();
        let folder = self.unified.as_deref().or_else(|| folders.first().copied());
        let folder = folder.ok_or_else(|| Unknown::new("processes", "no control group"))?;
        let text = read(folder, "cgroup.procs")?;
        let mut pids: Vec<i32> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
        pids.sort_unstable();
        Ok(pids)
    }

    /// Memory in use, without file pages that the kernel would drop first.
    ///
    /// # Errors
    /// When neither version has the memory controller here, or its files make no sense.
    pub fn resident(&self) -> Reading<Resident> {
        let v2 = self.unified.as_ref().filter(|folder| folder.join("memory.current").exists());
        let (folder, current, inactive, method) = match (v2, self.v1.get("memory")) {
            (Some(folder), _) => {
                (folder, "memory.current", "inactive_file", MemoryMethod::CgroupV2)
            }
            (None, Some(folder)) => {
                (folder, "memory.usage_in_bytes", "total_inactive_file", MemoryMethod::CgroupV1)
            }
            (None, None) => return Err(Unknown::new("memory", "no memory controller")),
        };
        let used = number(&read(folder, current)?, current)?;
        let droppable = parse_flat_keyed(&read(folder, "memory.stat")?, inactive)?;
        Ok(Resident { bytes: used.saturating_sub(droppable), method })
    }

    /// CPU used by whatever was in the group since it was made, in core-milliseconds, rounded
    /// down. Processes that ended are in it.
    ///
    /// # Errors
    /// When neither version keeps count here.
    pub fn cpu_millis(&self) -> Reading<u64> {
        // In version 2 the kernel keeps this count with and without the cpu controller.
        if let Some(folder) = &self.unified
            && let Ok(text) = read(folder, "cpu.stat")
        {
            return Ok(parse_flat_keyed(&text, "usage_usec")? / 1000);
        }
        let folder = self.v1.get("cpuacct");
        let folder = folder.ok_or_else(|| Unknown::new("cpu used", "no cpu accounting"))?;
        Ok(number(&read(folder, "cpuacct.usage")?, "cpuacct.usage")? / 1_000_000)
    }

    /// How many processes the kernel killed here for want of memory.
    ///
    /// # Errors
    /// When neither version keeps count here.
    pub fn oom_kills(&self) -> Reading<u64> {
        if let Some(folder) = &self.unified
            && let Ok(text) = read(folder, "memory.events")
        {
            return parse_flat_keyed(&text, "oom_kill");
        }
        let folder = self.v1.get("memory");
        let folder = folder.ok_or_else(|| Unknown::new("oom kills", "no memory controller"))?;
        parse_flat_keyed(&read(folder, "memory.oom_control")?, "oom_kill")
    }
}

fn read(folder: &Path, file: &'static str) -> Reading<String> {
    let path = folder.join(file);
    std::fs::read_to_string(&path)
        .map_err(|error| Unknown::new(file, format_args!("{}: {error}", path.display())))
}

fn number(text: &str, what: &'static str) -> Reading<u64> {
    text.trim().parse().map_err(|_| Unknown::new(what, "no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixed_machine_is_seen_as_it_is() {
        let text = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/a\\040b rw,relatime - cgroup2 cgroup2 rw
42 31 0:38 / /elsewhere rw,relatime - cgroup2 cgroup2 rw
";
        let found = parse_cgroup_mounts(text);
        assert_eq!(found.unified, Some("/sys/fs/cgroup/a b".into()));
        assert_eq!(
            found
                .v1
                .iter()
                .map(|(name, path)| (name.as_str(), path.to_str().unwrap()))
                .collect::<Vec<_>>(),
            [
                ("cpu", "/sys/fs/cgroup/cpu,cpuacct"),
                ("cpuacct", "/sys/fs/cgroup/cpu,cpuacct"),
                ("memory", "/sys/fs/cgroup/memory"),
            ]
        );
        for text in ["", " - ", "a - cgroup2", "1 2 3 4 - cgroup cgroup memory", "- cgroup2 -"] {
            assert_eq!(parse_cgroup_mounts(text), Hierarchies::default(), "{text:?}");
        }
    }

    fn write(folder: &Path, files: &[(&str, &str)]) {
        std::fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn version_2_is_asked_first_and_version_1_where_it_lacks_the_controller() {
        let folder = tempfile::tempdir().unwrap();
        let (v2, v1) = (folder.path().join("v2"), folder.path().join("v1"));
        write(
            &v2,
            &[("cgroup.procs", "30\n4\n"), ("cpu.stat", "usage_usec 2500999\nuser_usec 1\n")],
        );
        write(
            &v1,
            &[
                ("memory.usage_in_bytes", "1000\n"),
                ("memory.stat", "inactive_file 1\ntotal_inactive_file 300\n"),
                ("memory.oom_control", "under_oom 0\noom_kill 2\n"),
            ],
        );
        let group = GuestCgroup {
            unified: Some(v2.clone()),
            v1: BTreeMap::from([("memory".to_owned(), v1)]),
        };
        assert_eq!(group.pids(), Ok(vec![4, 30]));
        assert_eq!(group.cpu_millis(), Ok(2500));
        assert_eq!(group.resident(), Ok(Resident { bytes: 700, method: MemoryMethod::CgroupV1 }));
        assert_eq!(group.oom_kills(), Ok(2));
        write(
            &v2,
            &[
                ("memory.current", "4096\n"),
                ("memory.stat", "anon 1\ninactive_file 8192\n"),
                ("memory.events", "low 0\noom_kill 1\n"),
            ],
        );
        assert_eq!(group.resident(), Ok(Resident { bytes: 0, method: MemoryMethod::CgroupV2 }));
        assert_eq!(group.oom_kills(), Ok(1));
    }

    #[test]
    fn what_is_missing_or_broken_is_unknown() {
        let none = GuestCgroup::default();
        assert!(none.is_empty());
        assert!(none.resident().is_err() && none.cpu_millis().is_err());
        assert!(none.oom_kills().is_err() && none.pids().is_err());
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &[("memory.current", "max\n"), ("cpu.stat", "usage_usec x\n")]);
        let broken = GuestCgroup { unified: Some(folder.path().to_owned()), ..none };
        assert!(broken.resident().is_err() && broken.cpu_millis().is_err());
        for text in ["", "a", "a ", "a b", " a 1", "aa 1", "a -1"] {
            assert!(parse_flat_keyed(text, "a").is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_named_group_stays_below_the_mounts() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("mount/pods/one")).unwrap();
        let machine =
            Hierarchies { unified: Some(folder.path().join("mount")), v1: BTreeMap::new() };
        for name in ["pods/one", "/pods/one"] {
            let found = machine.find(name).unwrap();
            assert_eq!(found.unified, Some(folder.path().join("mount/pods/one")));
        }
        for name in ["", "/", "..", "../mount", "pods/../../x", "./pods", "pods/two"] {
            assert!(machine.find(name).is_err(), "{name:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC*", line in "[0-9a-z ,:/\\\\-]{0,80}") {
            for text in [&text, &line] {
                let _ = parse_cgroup_mounts(text);
                let _ = parse_flat_keyed(text, "a");
            }
        }
    }
}
