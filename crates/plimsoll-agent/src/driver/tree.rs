//! All processes of one guest: found, signalled, frozen and ended together.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::probe::{
    GuestCgroup, Membership, ProcessId, ProcessStat, ProcessTable, Reading, Resident, Unknown,
    cpu_millis_of, resident_bytes,
};

/// Between two looks at processes that were told to end or stop: they need a scheduler tick.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Where a guest's processes are found: in its control group, or, where the machine has none, by
/// descent and session.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestTree {
    pub cgroup: GuestCgroup,
    pub membership: Membership,
}

impl GuestTree {
    /// Living processes, each named for good.
    pub(crate) fn processes(&self) -> Vec<ProcessId> {
        match self.cgroup.pids() {
            Ok(pids) => pids.into_iter().filter_map(ProcessId::of).collect(),
            Err(_) => self.scan(),
        }
    }

    /// The slower way, which also finds what has left the control group.
    fn scan(&self) -> Vec<ProcessId> {
        ProcessTable::scan()
            .members(&self.membership)
            .iter()
            .map(|stat| ProcessId { pid: stat.pid, start_ticks: stat.start_ticks })
            .collect()
    }

    /// Memory of all of it. `scan` is called only where there is no memory controller.
    pub(crate) fn resident(&self, scan: &mut dyn FnMut() -> ProcessTable) -> Reading<Resident> {
        self.cgroup.resident().or_else(|_| resident_bytes(&scan().members(&self.membership)))
    }

    /// CPU used since its control group was made, or as far as its living processes and those
    /// that they waited for tell.
    pub(crate) fn cpu_millis(&self, scan: &mut dyn FnMut() -> ProcessTable) -> Reading<u64> {
        self.cgroup.cpu_millis().or_else(|_| {
            let table = scan();
            let mut processes = table.members(&self.membership);
            // Orphans that have ended are in the count of the shim, which reaped them.
            let shim = self.membership.descendants_of.first().and_then(|id| table.get(*id));
            processes.extend(shim.map(|shim| ProcessStat { own_ticks: 0, ..shim }));
            if processes.is_empty() {
                return Err(Unknown::new("cpu used", "no process of the guest is left"));
            }
            Ok(cpu_millis_of(&processes))
        })
    }

    /// Sends one signal to each process.
    pub(crate) fn signal(&self, signal: Signal) {
        for process in self.processes() {
            process.signal(signal);
        }
    }

    /// Ends every process, frozen ones too; comes back with those that still live at the deadline.
    pub(crate) fn kill(&self, limit: Duration) -> Vec<ProcessId> {
        let deadline = Instant::now() + limit;
        loop {
            if !self.cgroup.kill_all() {
                self.signal(Signal::KILL);
                // A frozen process of version 1 dies when it thaws.
                let _ = self.thaw();
            }
            let left = self.processes();
            // Once the group is empty, one scan makes sure that nothing has left it.
            let left = if left.is_empty() { self.scan() } else { left };
            if left.is_empty() || Instant::now() >= deadline {
                return left;
            }
            for process in &left {
                process.signal(Signal::KILL);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Stops every process where it stands. True when all stand still within the limit.
    pub(crate) fn freeze(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        if self.cgroup.can_freeze() {
            let asked = self.cgroup.set_frozen(true).is_ok();
            while asked && !self.cgroup.is_frozen() {
                if Instant::now() >= deadline {
                    return false;
                }
                std::thread::sleep(LOOK_AGAIN);
            }
            return asked;
        }
        // Without a freezer a process may fork between look and signal: look until all stand.
        loop {
            self.signal(Signal::STOP);
            if self.is_frozen() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Lets every process go on.
    pub(crate) fn thaw(&self) -> Result<(), String> {
        if self.cgroup.can_freeze() {
            self.cgroup.set_frozen(false).map_err(|error| error.to_string())
        } else {
            self.signal(Signal::CONT);
            Ok(())
        }
    }

    /// Whether every process stands still. A guest without processes is not frozen.
    pub(crate) fn is_frozen(&self) -> bool {
        if self.cgroup.can_freeze() {
            return self.cgroup.is_frozen();
        }
        all_stand(&ProcessTable::scan().members(&self.membership))
    }
}

/// Whether every one of these processes is stopped, or waits for one that is: between `vfork` and
/// `exec` of its child a parent cannot be stopped, nor can it run.
fn all_stand(processes: &[ProcessStat]) -> bool {
    let stopped = |stat: &ProcessStat| matches!(stat.state, 'T' | 't');
    let waits = |stat: &ProcessStat| {
        stat.state == 'D'
            && processes.iter().any(|child| child.parent == stat.pid && stopped(child))
    };
    !processes.is_empty() && processes.iter().all(|stat| stopped(stat) || waits(stat))
}

/// Sends a signal to a process that is known to be a child not yet waited for, or is of no harm
/// when gone.
pub(crate) fn signal_pid(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // Gone is what was wanted.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_that_waits_for_its_stopped_child_stands_still() {
        let process = |pid, parent, state| ProcessStat {
            pid,
            state,
            parent,
            session: 1,
            own_ticks: 0,
            waited_ticks: 0,
            start_ticks: 0,
        };
        assert!(!all_stand(&[]));
        assert!(all_stand(&[process(1, 0, 'T'), process(2, 1, 't')]));
        assert!(all_stand(&[process(1, 0, 'D'), process(2, 1, 'T')]));
        assert!(!all_stand(&[process(1, 0, 'D'), process(2, 0, 'T')]));
        assert!(!all_stand(&[process(1, 0, 'S'), process(2, 1, 'T')]));
    }
}
