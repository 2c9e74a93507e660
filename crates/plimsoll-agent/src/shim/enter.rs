//! The step between shim and guest: a process of its own that takes its place (session, control
//! group, limits, user, folder) and then becomes the command.
//!
//! It is a process of its own, and not work done between fork and exec, since only async-signal-safe
//! calls are allowed there, which safe Rust cannot promise.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit};

use super::plan::EnterRequest;
use super::reaper::{Child, Reaper};
use crate::driver::PIDS_MAX;

/// Longest time from fork to exec; milliseconds on an idle machine.
const ENTER_LIMIT: Duration = Duration::from_secs(30);
/// Most open files of one guest process: what service managers commonly allow.
const OPEN_FILES_MAX: u64 = 65_536;
/// How much sooner than other work the kernel picks a guest when the machine runs out of memory.
const OOM_SCORE: &str = "300";
/// Exit code of a process that could not become its command, as shells use it.
const CANNOT_RUN: u8 = 126;

/// The program that this process runs, also after its file was replaced.
pub(crate) const SELF: &str = "/proc/self/exe";

/// Before what is said of a command that cannot be run, as opposed to a place that cannot be taken.
const COMMAND_FAILED: &str = "command ";

/// Why a process did not become its command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EnterError {
    /// There is no such program, or it may not be run.
    Command(String),
    /// The process could not be started or put in its place.
    Place(String),
}

impl EnterError {
    /// Whether it is about the command, whatever the machine.
    pub(super) const fn is_the_commands(&self) -> bool {
        matches!(self, Self::Command(_))
    }

    pub(super) fn into_detail(self) -> String {
        match self {
            Self::Command(detail) | Self::Place(detail) => detail,
        }
    }
}

/// Starts a process that becomes the request's command; comes back when it has.
pub(super) fn enter(
    reaper: &Reaper,
    request: &EnterRequest,
    stdout: Stdio,
    stderr: Stdio,
) -> Result<Child, EnterError> {
    let fail = |error: io::Error| EnterError::Place(format!("start a process: {error}"));
    let (ours, theirs) = UnixStream::pair().map_err(fail)?;
    let mut command = Command::new(SELF);
    command.args(&request.again).arg("enter").env_clear();
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(stdout).stderr(stderr);
    let child = reaper.spawn(&mut command).map_err(fail)?;
    // The command holds the other end of the pair, which must close with the process.
    drop(command);
    let talk = || -> io::Result<String> {
        ours.set_write_timeout(Some(ENTER_LIMIT))?;
        ours.set_read_timeout(Some(ENTER_LIMIT))?;
        (&ours).write_all(&serde_json::to_vec(request)?)?;
        ours.shutdown(Shutdown::Write)?;
        let mut said = String::new();
        // Becoming the command closes the other end without a word.
        (&ours).read_to_string(&mut said)?;
        Ok(said)
    };
    match talk() {
        Ok(said) if said.is_empty() => Ok(child),
        Ok(said) => Err(match said.strip_prefix(COMMAND_FAILED) {
            Some(detail) => EnterError::Command(detail.to_owned()),
            None => EnterError::Place(said),
        }),
        Err(error) => {
            crate::driver::tree::signal_pid(child.pid, rustix::process::Signal::KILL);
            Err(fail(error))
        }
    }
}

/// The process's own side: comes back only when it could not become the command.
pub(super) fn become_command() -> ExitCode {
    let Ok(stream) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else {
        return ExitCode::from(CANNOT_RUN);
    };
    let said = match prepare(&stream) {
        Ok(mut command) => {
            let program = command.get_program().to_string_lossy().into_owned();
            let error = command.exec();
            let whose = if is_the_commands(&error) { COMMAND_FAILED } else { "" };
            format!("{whose}{program}: {error}")
        }
        Err(error) => error.to_string(),
    };
    // If the shim is gone, nobody is left to tell.
    let _ = (&stream).write_all(said.as_bytes());
    ExitCode::from(CANNOT_RUN)
}

/// Whether what the system said on becoming a command is about the command, not about what the
/// machine is short of.
fn is_the_commands(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let Some(code) = error.raw_os_error() else { return true };
    ![Errno::AGAIN, Errno::IO, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::TXTBSY]
        .contains(&Errno::from_raw_os_error(code))
}

fn prepare(mut stream: &UnixStream) -> io::Result<Command> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let request: EnterRequest = serde_json::from_str(&text)?;
    rustix::process::setsid()?;
    request.cgroup.join()?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    std::env::set_current_dir(&request.folder)?;
    let mut command = match request.command.split_first() {
        Some((program, words)) => {
            let mut command = Command::new(program);
            command.args(words);
            command
        }
        None => {
            let mut command = Command::new(SELF);
            command.args(&request.again).arg("sleep");
            command
        }
    };
    command.env_clear().envs(&request.env).stdin(Stdio::null());
    // The shim is sheltered from the kernel's choice; what it starts is not. Refused to an agent
    // that may not change it, and then not needed.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    if request.confine {
        confine(&request)?;
    }
    if let Some(user) = request.user {
        // Sheds all other groups, too.
        command.uid(user.uid).gid(user.gid);
    }
    Ok(command)
}

/// Holds the guest down where a control group does not.
fn confine(request: &EnterRequest) -> io::Result<()> {
    let limit = |resource, most: u64| {
        let allowed = rustix::process::getrlimit(resource).maximum;
        let most = Some(allowed.map_or(most, |allowed| allowed.min(most)));
        rustix::process::setrlimit(resource, Rlimit { current: most, maximum: most })
    };
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, OPEN_FILES_MAX)?;
    if request.user_is_own {
        // Counted per user: among guests that share one it would hit bystanders.
        limit(Resource::Nproc, PIDS_MAX)?;
    }
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// A guest without a command: waits to be ended.
pub(super) fn sleep() -> ExitCode {
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_a_start_is_shorter_than_the_agents() {
        assert!(ENTER_LIMIT < crate::driver::launch::START_LIMIT);
    }
}
