//! How `runsc` is called.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::reaper::Reaper;

/// Longest step of `runsc` that only talks to a living sandbox (pause, resume, kill, state): tens
/// of milliseconds on an idle machine; one that is this late is stuck.
pub(crate) const TALK: Duration = Duration::from_secs(20);
/// Longest boot of a sandbox: 0.2 s on an idle machine, while a hundred at once on two cores have
/// been seen to take 20 s.
pub(crate) const BOOT: Duration = Duration::from_secs(60);
/// Longest writing or reading of a checkpoint: 64 GiB at 128 MiB a second, with some room.
pub(crate) const IMAGE: Duration = Duration::from_secs(600);
/// Most of a tool's talk, or a guest's output, that is looked at for the reason of a failure:
/// room for a stack trace behind it.
pub(crate) const TALK_BYTES_MAX: usize = 64 * 1024;
/// Most of it that is shown.
const REASON_BYTES_MAX: usize = 800;

/// A `runsc` binary and the flags that stand before each subcommand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Runsc {
    pub program: PathBuf,
    /// Platform, overlay and whatever else was found to work on this machine.
    pub flags: Vec<String>,
    /// Where it keeps its state: a folder of the guest's own, so that nothing is shared and
    /// removing the guest's folder removes it.
    pub root: PathBuf,
}

impl Runsc {
    /// The words of one call, the program first. Neither network nor control groups are left to
    /// `runsc`: a guest has no network, and is put into its group before `runsc` runs.
    pub(crate) fn words(&self, subcommand: &[&str]) -> Vec<String> {
        let mut words = vec![self.program.display().to_string()];
        words.push(format!("--root={}", self.root.display()));
        words.extend(["--network=none", "--ignore-cgroups", "--log=/dev/null"].map(str::to_owned));
        words.extend(self.flags.iter().cloned());
        words.extend(subcommand.iter().map(|word| (*word).to_owned()));
        words
    }

    /// The call as a command with nothing to read.
    pub(crate) fn command(&self, subcommand: &[&str]) -> Command {
        let words = self.words(subcommand);
        let mut command = Command::new(&self.program);
        command.args(&words[1..]).stdin(Stdio::null()).env_clear();
        command
    }

    /// Runs one step to its end within a process that has a reaper. Its talk goes to a file: a
    /// sandbox that it leaves behind may inherit its output, and would keep a pipe open for good.
    pub(crate) fn run(
        &self,
        reaper: &Reaper,
        talk: &Path,
        subcommand: &[&str],
        stdin: Stdio,
        limit: Duration,
    ) -> Result<(), String> {
        let word = subcommand.first().copied().unwrap_or("runsc");
        let fail = |error: io::Error| format!("runsc {word}: {error}");
        let file = std::fs::File::create(talk).map_err(fail)?;
        let mut command = self.command(subcommand);
        command.stdin(stdin).stdout(file.try_clone().map_err(fail)?).stderr(file);
        let child = reaper.spawn(&mut command).map_err(fail)?;
        match child.wait_timeout(limit) {
            Some(ended) if ended.code == Some(0) => Ok(()),
            Some(ended) => {
                let mut said = std::fs::read(talk).unwrap_or_default();
                said.truncate(TALK_BYTES_MAX);
                let said = reason_in(&said);
                Err(format!("runsc {word} ended with {}: {said}", ended.shell_code()))
            }
            None => {
                kill(child.pid);
                Err(format!("runsc {word} took longer than {} s", limit.as_secs()))
            }
        }
    }
}

/// The reason in a tool's talk, on one line: what it said last, before any stack trace.
pub(crate) fn reason_in(talk: &[u8]) -> String {
    let text = String::from_utf8_lossy(talk);
    let text = text.split("\ngoroutine ").next().unwrap_or_default();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let line = words.join(" ");
    let mut from = line.len().saturating_sub(REASON_BYTES_MAX);
    while !line.is_char_boundary(from) {
        from += 1;
    }
    line[from..].to_owned()
}

fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // It may have ended just now.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Finds a program in the folders of `PATH`.
pub(crate) fn find_program(name: &Path, path: Option<OsString>) -> Option<PathBuf> {
    if name.is_absolute() {
        return name.is_file().then(|| name.to_owned());
    }
    std::env::split_paths(&path?).map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_stands_before_the_stack_trace() {
        let talk = b"hello\nrestoring: header error: EOF:\ngoroutine 1 [running]:\nmain.go:3\n";
        assert_eq!(reason_in(talk), "hello restoring: header error: EOF:");
        let long = format!("{}\u{e9}{}", "x".repeat(900), "y".repeat(REASON_BYTES_MAX - 1));
        assert_eq!(reason_in(long.as_bytes()), "y".repeat(REASON_BYTES_MAX - 1));
        assert_eq!(reason_in(b""), "");
    }

    #[test]
    fn a_program_is_looked_up_as_a_shell_would() {
        let path = Some(OsString::from("/no/such/folder:/bin"));
        assert_eq!(find_program(Path::new("sh"), path.clone()), Some("/bin/sh".into()));
        assert_eq!(find_program(Path::new("/bin/sh"), None), Some("/bin/sh".into()));
        assert_eq!(find_program(Path::new("no-such-program"), path), None);
        assert_eq!(find_program(Path::new("sh"), None), None);
    }
}
