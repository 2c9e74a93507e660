//! Waits for children, those included that the kernel hands over because their parents ended.

use std::collections::{HashMap, VecDeque};
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{WaitOptions, WaitStatus};

/// Ends of processes that nobody asked about yet. A sandbox is adopted by pid some milliseconds
/// after it was born, and few other orphans end in between; 256 is far above that.
const UNCLAIMED_MAX: usize = 256;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Its exit code, or `None` when a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl Ended {
    /// The exit code as a shell would say it: 128 and the signal for a signal.
    pub(crate) fn shell_code(self) -> i32 {
        self.code.unwrap_or_else(|| 128 + self.signal.unwrap_or(0))
    }

    fn from_status(status: WaitStatus) -> Self {
        Self { code: status.exit_status(), signal: status.terminating_signal() }
    }
}

/// A process whose end can be waited for, by call or by poll.
#[derive(Debug)]
pub(crate) struct Child {
    pub pid: i32,
    ended: Arc<OnceLock<Ended>>,
    /// Closed at the other end when the process has ended.
    notice: PipeReader,
}

impl Child {
    /// Waits for as long as it takes.
    pub(crate) fn wait(&self) -> Ended {
        loop {
            if let Some(ended) = self.ended.get() {
                return *ended;
            }
            // End of file tells; an interrupted read is taken up again.
            let _ = (&self.notice).read(&mut [0]);
        }
    }

    /// Waits no longer than this; `None` when it still runs.
    pub(crate) fn wait_timeout(&self, limit: Duration) -> Option<Ended> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(ended) = self.ended.get() {
                return Some(*ended);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let mut fds = [PollFd::new(&self.notice, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&timespec(left)));
        }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended.get().copied()
    }
}

impl AsFd for Child {
    /// Becomes readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notice.as_fd()
    }
}

/// A length of time for `poll`.
pub(crate) fn timespec(length: Duration) -> rustix::event::Timespec {
    rustix::event::Timespec {
        tv_sec: i64::try_from(length.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(length.subsec_nanos()),
    }
}

#[derive(Debug, Default)]
struct Table {
    watched: HashMap<i32, (Arc<OnceLock<Ended>>, PipeWriter)>,
    unclaimed: VecDeque<(i32, Ended)>,
    /// Counts spawns, so that the reaper never sleeps through one.
    spawned: u64,
}

/// Reaps every child of this process. Nobody else in the process may wait for children.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    table: Mutex<Table>,
    has_children: Condvar,
}

impl Reaper {
    /// Starts the thread that waits.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let reaper = Arc::new(Self::default());
        let own = Arc::clone(&reaper);
        std::thread::Builder::new().name("reaper".into()).spawn(move || own.run())?;
        Ok(reaper)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change of the table is one insert or remove, so a panic elsewhere leaves it whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a child. Its end is never missed, however early.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut table = self.table();
        let pid = i32::try_from(command.spawn()?.id()).map_err(io::Error::other)?;
        // Whoever ended with this pid before was someone else: this one cannot have been reaped yet.
        table.unclaimed.retain(|(unclaimed, _)| *unclaimed != pid);
        table.spawned += 1;
        self.has_children.notify_all();
        watch(&mut table, pid)
    }

    /// Watches a process that the kernel has handed over, or will when its parent ends. One that
    /// ended shortly before is found, too.
    pub(crate) fn adopt(&self, pid: i32) -> io::Result<Child> {
        watch(&mut self.table(), pid)
    }

    fn run(&self) {
        loop {
            let spawned = self.table().spawned;
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) => {
                    self.settle(pid.as_raw_nonzero().get(), Ended::from_status(status));
                }
                // No child at all: nothing can end before the next spawn.
                Err(Errno::CHILD) => {
                    let mut table = self.table();
                    while table.spawned == spawned {
                        table =
                            self.has_children.wait(table).unwrap_or_else(PoisonError::into_inner);
                    }
                }
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn settle(&self, pid: i32, how: Ended) {
        let mut table = self.table();
        if let Some((ended, notice)) = table.watched.remove(&pid) {
            let _ = ended.set(how);
            drop(notice);
        } else {
            if table.unclaimed.len() == UNCLAIMED_MAX {
                table.unclaimed.pop_front();
            }
            table.unclaimed.push_back((pid, how));
        }
    }
}

fn watch(table: &mut Table, pid: i32) -> io::Result<Child> {
    let (notice, writer) = io::pipe()?;
    let ended = Arc::new(OnceLock::new());
    let early = table.unclaimed.iter().position(|(unclaimed, _)| *unclaimed == pid);
    match early.and_then(|at| table.unclaimed.remove(at)) {
        Some((_, how)) => {
            let _ = ended.set(how);
        }
        None => {
            table.watched.insert(pid, (Arc::clone(&ended), writer));
        }
    }
    Ok(Child { pid, ended, notice })
}
