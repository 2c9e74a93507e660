//! Which processes are a guest's, and what they use, where no control group tells.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{MemoryMethod, Reading, Resident, Unknown};

/// One line of `/proc/PID/stat`, as far as it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Process id.
    pub pid: i32,
    /// State letter; `Z` and `X` are dead, `T` is stopped.
    pub state: char,
    /// Parent's process id.
    pub parent: i32,
    /// Session id.
    pub session: i32,
    /// CPU that it used itself, in clock ticks.
    pub own_ticks: u64,
    /// CPU that children used which it has waited for, in clock ticks.
    pub waited_ticks: u64,
    /// When it started, in clock ticks since boot. With the pid, names it for good.
    pub start_ticks: u64,
}

impl ProcessStat {
    /// Whether it has ended and only waits to be reaped.
    #[must_use]
    pub const fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Reads `/proc/PID/stat`. The command name, which a process chooses itself, may hold spaces and
/// brackets; everything is counted from its last closing bracket.
///
/// # Errors
/// When a field is missing or is no number.
pub fn parse_stat(text: &str) -> Reading<ProcessStat> {
    let unknown = |why: &str| Unknown::new("process", why);
    let (pid, _) = text.split_once(" (").ok_or_else(|| unknown("no command name"))?;
    let (_, rest) = text.rsplit_once(") ").ok_or_else(|| unknown("no end of command name"))?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().take(20).collect();
    let number = |at: usize| {
        fields
            .get(at)
            .and_then(|word| word.parse::<i64>().ok())
            .ok_or_else(|| unknown("a field is no number"))
    };
    let id = |at: usize| number(at).and_then(|n| i32::try_from(n).map_err(|_| unknown("no id")));
    // A count below zero cannot be; clamping it keeps a kernel's slip from wrapping around.
    let count = |at: usize| number(at).map(|n| u64::try_from(n).unwrap_or(0));
    Ok(ProcessStat {
        pid: pid.trim().parse().map_err(|_| unknown("no process id"))?,
        state: fields
            .first()
            .and_then(|word| word.chars().next())
            .ok_or_else(|| unknown("no state"))?,
        parent: id(1)?,
        session: id(3)?,
        own_ticks: count(11)?.saturating_add(count(12)?),
        waited_ticks: count(13)?.saturating_add(count(14)?),
        start_ticks: count(19)?,
    })
}

fn proc_file(pid: i32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

fn read_stat(pid: i32) -> Option<ProcessStat> {
    let text = std::fs::read(proc_file(pid, "stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&text)).ok()
}

/// A process named so that a recycled pid is never taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessId {
    /// Names the process that has this pid now; `None` when there is none or it is dead.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = read_stat(pid).filter(|stat| !stat.is_dead())?;
        Some(Self { pid, start_ticks: stat.start_ticks })
    }

    /// Whether this very process still lives. One that waits to be reaped does not.
    #[must_use]
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends a signal if this very process still lives. Between the look and the signal it may
    /// end, and the pid be given out again: only within one scheduler tick, while pids are handed
    /// out in order.
    pub fn signal(self, signal: rustix::process::Signal) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid).filter(|_| self.is_alive()) {
            // It may have ended on its own just now, which is what the signal was for.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// How to tell a guest's processes from others: whoever matches one of these belongs to it.
///
/// Not by user: another agent on the machine may have given the same one to a guest of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Every descendant of these processes (themselves left out), such as the guest's shim, to
    /// which the kernel hands whatever loses its parent.
    pub descendants_of: Vec<ProcessId>,
    /// Everything in the sessions that these processes lead or led. The kernel gives the number
    /// to no other process while the session lives.
    pub sessions: Vec<ProcessId>,
}

/// All processes of the machine at one moment. One scan serves every guest.
#[derive(Clone, Debug, Default)]
pub struct ProcessTable {
    entries: Vec<ProcessStat>,
}

impl ProcessTable {
    /// Looks at `/proc` now. Processes that come and go meanwhile may be missed.
    #[must_use]
    pub fn scan() -> Self {
        let Ok(folder) = std::fs::read_dir("/proc") else { return Self::default() };
        let entries = folder
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter_map(read_stat)
            .collect();
        Self { entries }
    }

    /// The line of this very process, dead or alive.
    #[must_use]
    pub fn get(&self, id: ProcessId) -> Option<ProcessStat> {
        let found = self.entries.iter().find(|entry| entry.pid == id.pid)?;
        (found.start_ticks == id.start_ticks).then_some(*found)
    }

    /// The living processes that match, in order of their pids.
    #[must_use]
    pub fn members(&self, wanted: &Membership) -> Vec<ProcessStat> {
        // A process that has the number but started at another time is someone else.
        let recycled = |id: &ProcessId| {
            self.entries
                .iter()
                .any(|entry| entry.pid == id.pid && entry.start_ticks != id.start_ticks)
        };
        let same = |ids: &[ProcessId]| -> BTreeSet<i32> {
            ids.iter().filter(|id| !recycled(id)).map(|id| id.pid).collect()
        };
        let sessions = same(&wanted.sessions);
        let mut parents = same(&wanted.descendants_of);
        let mut descendants = BTreeSet::new();
        // Each round finds one more generation; it ends when none is left.
        loop {
            let before = descendants.len();
            for entry in &self.entries {
                if parents.contains(&entry.parent) {
                    parents.insert(entry.pid);
                    descendants.insert(entry.pid);
                }
            }
            if descendants.len() == before {
                break;
            }
        }
        self.entries
            .iter()
            .filter(|entry| descendants.contains(&entry.pid) || sessions.contains(&entry.session))
            .filter(|entry| !entry.is_dead())
            .copied()
            .collect()
    }
}

/// Whether some process that this one may look into has this file open.
pub(crate) fn is_open_anywhere(path: &Path) -> bool {
    ProcessTable::scan().entries.iter().any(|process| {
        std::fs::read_dir(proc_file(process.pid, "fd")).is_ok_and(|files| {
            files
                .flatten()
                .any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target == path))
        })
    })
}

/// Reads the proportional set size from `/proc/PID/smaps_rollup`.
///
/// # Errors
/// When there is no `Pss` line in kB.
pub fn parse_pss_bytes(text: &str) -> Reading<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|rest| {
            let (number, unit) = rest.trim().split_once(' ')?;
            (unit == "kB").then(|| number.parse::<u64>().ok())??.checked_mul(1024)
        })
        .ok_or_else(|| Unknown::new("pss", "no Pss line in kB"))
}

/// Reads the resident pages from `/proc/PID/statm`.
///
/// # Errors
/// When the second word is no number.
pub fn parse_resident_pages(text: &str) -> Reading<u64> {
    text.split_ascii_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| Unknown::new("rss", "the second word is no number"))
}

/// Memory of these processes: proportional where the kernel tells, resident where it does not for
/// one of them (then for all, so that a sum never mixes the two).
///
/// # Errors
/// When some process lives of which neither can be read. Processes that have ended meanwhile use
/// nothing.
pub fn resident_bytes(processes: &[ProcessStat]) -> Reading<Resident> {
    let sum = |file: &str, parse: &dyn Fn(&str) -> Reading<u64>| {
        let mut bytes = 0_u64;
        for process in processes {
            let read = std::fs::read_to_string(proc_file(process.pid, file))
                .map_err(|error| Unknown::new("memory", format_args!("{file}: {error}")))
                .and_then(|text| parse(&text));
            match read {
                Ok(more) => bytes = bytes.saturating_add(more),
                Err(unknown) => {
                    let same = ProcessId { pid: process.pid, start_ticks: process.start_ticks };
                    if same.is_alive() {
                        return Err(unknown);
                    }
                }
            }
        }
        Ok(bytes)
    };
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    sum("smaps_rollup", &parse_pss_bytes)
        .map(|bytes| Resident { bytes, method: MemoryMethod::Pss })
        .or_else(|_| {
            sum("statm", &|text| Ok(parse_resident_pages(text)?.saturating_mul(page)))
                .map(|bytes| Resident { bytes, method: MemoryMethod::Rss })
        })
}

/// CPU that these processes used, in core-milliseconds, rounded down: their own, and that of
/// children they waited for. What a process used whose parent did not wait for it is lost.
#[must_use]
pub fn cpu_millis_of(processes: &[ProcessStat]) -> u64 {
    let ticks = processes.iter().fold(0_u64, |sum, process| {
        sum.saturating_add(process.own_ticks).saturating_add(process.waited_ticks)
    });
    ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "42 (a) b (c)) S 7 42 40 0 -1 4194560 1 2 3 4 500 60 7 8 20 0 1 0 987654 1 2";

    #[test]
    fn a_name_with_brackets_and_spaces_fools_nobody() {
        let stat = parse_stat(LINE).unwrap();
        assert_eq!(
            stat,
            ProcessStat {
                pid: 42,
                state: 'S',
                parent: 7,
                session: 40,
                own_ticks: 560,
                waited_ticks: 15,
                start_ticks: 987_654
            }
        );
    }

    #[test]
    fn garbage_is_unknown() {
        for text in ["", "(", ")", "1 (x)", "1 (x) ", "1 (x) S", "x (y) S 1 1 1", ") (", "(x) S 1"]
        {
            assert!(parse_stat(text).is_err(), "{text:?}");
        }
        for text in ["", "Pss:", "Pss: x kB", "Pss: 5 MB", "Pss: 5", "Rss: 5 kB"] {
            assert!(parse_pss_bytes(text).is_err(), "{text:?}");
        }
        assert!(parse_pss_bytes("Pss: 18446744073709551615 kB").is_err());
        assert_eq!(parse_pss_bytes("Rss: 9 kB\nPss:     364 kB\n"), Ok(364 * 1024));
        assert_eq!(parse_resident_pages("10 4 1"), Ok(4));
        assert!(parse_resident_pages("10").is_err());
    }

    #[test]
    fn descendants_are_found_over_generations_in_any_order() {
        let process = |pid, parent, session| ProcessStat {
            pid,
            state: 'S',
            parent,
            session,
            own_ticks: 1,
            waited_ticks: 0,
            start_ticks: 1,
        };
        let table = ProcessTable {
            entries: vec![
                process(9, 8, 9),
                process(8, 7, 7),
                process(7, 5, 7),
                process(5, 1, 5),
                process(6, 1, 6),
                ProcessStat { state: 'Z', ..process(10, 5, 5) },
            ],
        };
        let pids = |wanted: &Membership| {
            table.members(wanted).iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        let id = |pid, start_ticks| vec![ProcessId { pid, start_ticks }];
        let tree = |ids| Membership { descendants_of: ids, ..Membership::default() };
        let session = |ids| Membership { sessions: ids, ..Membership::default() };
        assert_eq!(pids(&tree(id(5, 1))), [9, 8, 7]);
        assert_eq!(pids(&session(id(7, 1))), [8, 7]);
        assert!(pids(&tree(id(5, 2))).is_empty(), "a recycled pid");
        assert!(pids(&session(id(7, 2))).is_empty(), "a recycled session");
        assert!(pids(&Membership::default()).is_empty());
    }

    #[test]
    fn this_process_can_be_found_and_measured() {
        let own = i32::try_from(std::process::id()).unwrap();
        let id = ProcessId::of(own).unwrap();
        assert!(id.is_alive());
        assert!(!ProcessId { start_ticks: id.start_ticks + 1, ..id }.is_alive(), "a recycled pid");
        let stat = read_stat(own).unwrap();
        let resident = resident_bytes(&[stat]).unwrap();
        assert!(resident.bytes > 1 << 18, "{resident:?}");
        let gone = ProcessStat { pid: i32::MAX, ..stat };
        assert_eq!(resident_bytes(&[gone]).unwrap().bytes, 0);
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC*", line in "[0-9 ()SZ-]{0,80}") {
            for text in [&text, &line] {
                let _ = parse_stat(text);
                let _ = parse_pss_bytes(text);
                let _ = parse_resident_pages(text);
            }
        }
    }
}
