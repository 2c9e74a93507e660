//! Runs a command beside the guest's own and gathers what it says.

use std::collections::BTreeSet;
use std::io::{self, PipeReader, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::reaper::{Child, timespec};
use crate::driver::{EXEC_OUTPUT_BYTES_MAX, EXECS_MAX, ExecOutput};

/// Exit code of a command whose time ran out, as the `timeout` tool gives it.
const TIMED_OUT: i32 = 124;
/// How long output is still taken after the command's end while something that it left behind
/// holds its pipes open.
const DRAIN: Duration = Duration::from_millis(200);
/// How long a killed command may take to go.
pub(super) const DYING: Duration = Duration::from_secs(5);

/// Execs under way: bounded in number, and shut out while the guest is written out.
#[derive(Debug, Default)]
pub(super) struct Execs(Mutex<Running>);

#[derive(Debug, Default)]
struct Running {
    numbers: BTreeSet<u64>,
    next: u64,
    closed: bool,
}

/// One exec's place among them, until dropped.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    execs: &'a Execs,
    number: u64,
}

impl Slot<'_> {
    /// Its number, never used again by this shim.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.execs.running().numbers.remove(&self.number);
    }
}

impl Execs {
    fn running(&self) -> MutexGuard<'_, Running> {
        // Every change is one insert or remove, so a panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self) -> Result<Slot<'_>, String> {
        let mut running = self.running();
        if running.closed {
            return Err("the guest is being written out".to_owned());
        }
        if running.numbers.len() >= EXECS_MAX {
            return Err(format!("{EXECS_MAX} execs are under way in this guest, the bound"));
        }
        let number = running.next;
        running.next += 1;
        running.numbers.insert(number);
        Ok(Slot { execs: self, number })
    }

    /// Lets no other begin; comes back with those under way.
    pub(super) fn close(&self) -> Vec<u64> {
        let mut running = self.running();
        running.closed = true;
        running.numbers.iter().copied().collect()
    }

    pub(super) fn reopen(&self) {
        self.running().closed = false;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.running().closed
    }

    /// Waits until this one is over. False when it is not in time.
    pub(super) fn wait_for(&self, number: u64, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.running().numbers.contains(&number) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

/// One output: what is kept of it, and whether there was more.
#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    truncated: bool,
    closed: bool,
}

impl Kept {
    /// Takes what is there now; never blocks once poll has said that there is something.
    fn take(&mut self, mut pipe: &PipeReader) {
        let mut buffer = [0; 64 * 1024];
        match pipe.read(&mut buffer) {
            Ok(0) => self.closed = true,
            Ok(length) => {
                let room = EXEC_OUTPUT_BYTES_MAX - self.bytes.len();
                self.bytes.extend_from_slice(&buffer[..length.min(room)]);
                self.truncated |= length > room;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.closed = true,
        }
    }

    fn text(self) -> String {
        match String::from_utf8(self.bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }
}

/// Waits for a command's end, its time, or the caller's hanging up; kills it in the last two cases.
pub(super) fn gather(
    child: &Child,
    stdout: &PipeReader,
    stderr: &PipeReader,
    caller: &UnixStream,
    timeout: Duration,
    kill: &dyn Fn(),
) -> Result<ExecOutput, String> {
    let deadline = Instant::now() + timeout;
    let (mut out, mut err) = (Kept::default(), Kept::default());
    let mut drain_until = None;
    let mut timed_out = false;
    loop {
        let now = Instant::now();
        if drain_until.is_none() {
            if child.ended().is_some() {
                drain_until = Some(now + DRAIN);
            } else if now >= deadline {
                timed_out = true;
                kill();
                drain_until = Some(
                    now + if child.wait_timeout(DYING).is_some() { DRAIN } else { Duration::ZERO },
                );
            }
        }
        let until = drain_until.unwrap_or(deadline);
        if (out.closed && err.closed && drain_until.is_some())
            || (drain_until.is_some() && now >= until)
        {
            break;
        }
        let mut fds = vec![PollFd::new(caller, PollFlags::RDHUP)];
        let mut add = |wanted: bool, fd| {
            wanted.then(|| {
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
                fds.len() - 1
            })
        };
        let end_at = add(drain_until.is_none(), child.as_fd());
        let out_at = add(!out.closed, stdout.as_fd());
        let err_at = add(!err.closed, stderr.as_fd());
        if poll(&mut fds, Some(&timespec(until.saturating_duration_since(now)))).is_err() {
            continue;
        }
        let ready = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
        let hung_up = ready(Some(0));
        let (ended, out_ready, err_ready) = (ready(end_at), ready(out_at), ready(err_at));
        if hung_up && !ended {
            kill();
            return Err("the caller hung up".to_owned());
        }
        if out_ready {
            out.take(stdout);
        }
        if err_ready {
            err.take(stderr);
        }
    }
    let exit_code = match child.ended() {
        _ if timed_out => TIMED_OUT,
        Some(ended) => ended.shell_code(),
        None => return Err("the command neither ended nor could be killed".to_owned()),
    };
    Ok(ExecOutput {
        exit_code,
        timed_out,
        stdout_truncated: out.truncated,
        stdout: out.text(),
        stderr_truncated: err.truncated,
        stderr: err.text(),
    })
}
