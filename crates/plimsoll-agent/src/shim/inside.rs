//! Runs commands inside a sandbox, so that its checkpoints stay restorable.
//!
//! `runsc exec` gives a process descriptors of the host's. A checkpoint takes their numbers along,
//! and a restore fails on them, or meets other files under them. So a command gets descriptors of
//! the sandbox's own: a small shell beside it holds those of the host, hands the output over at
//! the end, and is killed before a checkpoint. What a command leaves running then harms no
//! checkpoint either.

use std::io::PipeWriter;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::exec::DYING;
use super::guest::{Shim, not_run};
use super::plan::SandboxPlan;
use super::reaper::Child;
use super::runsc::TALK;
use super::sandbox::sandbox;
use crate::driver::tree::signal_pid;
use crate::driver::{EXEC_OUTPUT_BYTES_MAX, ExecOutput};

/// Beside each command: keeps the first `$2` blocks of each output in the sandbox's memory, reads
/// and drops the rest, and hands over at the end. It waits a moment for what the command left
/// running, and leaves that its pipes. Asked to end (TERM), it kills the command and hands over;
/// asked to go (USR1), it leaves the command running and unheard.
const BESIDE: &str = r#"
exec </dev/null
f=/run/plimsoll/exec-$1 keep=$2; shift 2
mkfifo $f.1 $f.2 || { echo 'plimsoll: no exec' >&2; exit 125; }
(ulimit -f $keep; cat >$f.out || cat; : >$f.3) <$f.1 >/dev/null 2>&1 &
(ulimit -f $keep; cat >$f.err || cat; : >$f.4) <$f.2 >/dev/null 2>&1 &
"$@" >$f.1 2>$f.2 & c=$!
trap 'kill -9 $c' TERM
trap 'rm -f $f.*; exit 0' USR1
wait $c; code=$?
wait $c 2>/dev/null
n=0
until [ -e $f.3 ] && [ -e $f.4 ]; do
  [ $((n+=1)) -gt 100 ] && { [ $n -gt 110 ] && break; sleep 0.02 || sleep 1; }
done
[ -s $f.out ] && cat $f.out
[ -s $f.err ] && cat $f.err >&2
rm -f $f.*
exit $code
"#;

/// What shells count file sizes in for `ulimit`; some take twice that, which keeps more.
const ULIMIT_BLOCK_BYTES: usize = 512;
/// Exit code and words of the shell above where the sandbox lacks what it needs.
const NO_SHELL_EXEC: (i32, &str) = (125, "plimsoll: no exec");
/// Exit code of `runsc exec` when it could not run the command, how its reason begins, and what
/// it says of a program that does not exist: by name, by path.
const RUNSC_FAILED: i32 = 128;
const RUNSC_REASON: &str = "executing processes for container: ";
const NO_PROGRAM: [&str; 2] = ["error finding executable", "failed to load"];
/// How long the shell beside a command is asked to go before it is killed.
const ASK: Duration = Duration::from_secs(3);
/// Between two such requests: a shell takes one only when its own child has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(300);
/// Marks a guest in which a command was given descriptors of the host's.
const HOST_FILES: &str = "host-files";

/// Waits for a command's end, given a way to kill it.
type Gather<'a> = &'a dyn Fn(&Child, &dyn Fn()) -> Result<ExecOutput, String>;

/// Runs a command in the sandbox.
pub(super) fn exec(
    shim: &Shim,
    number: u64,
    command: &[String],
    pipes: (PipeWriter, PipeWriter),
    gather: Gather<'_>,
) -> Result<ExecOutput, String> {
    let plan = sandbox(shim)?;
    let fail = |error: std::io::Error| format!("exec: {error}");
    let again = (pipes.0.try_clone().map_err(fail)?, pipes.1.try_clone().map_err(fail)?);
    // A little more than is handed on tells that there was more.
    let keep = (EXEC_OUTPUT_BYTES_MAX / ULIMIT_BLOCK_BYTES + 1).to_string();
    // Files of an earlier life of the guest may still be there.
    let name = format!("{}-{number}", shim.state().started_at_unix_millis);
    let beside = ["/bin/sh", "-c", BESIDE, "exec", &name, &keep];
    let words: Vec<&str> = beside.into_iter().chain(command.iter().map(String::as_str)).collect();
    let output = call(shim, plan, number, &words, pipes, true, gather)?;
    let no_shell = has_no_program(&output)
        || output.exit_code == NO_SHELL_EXEC.0 && output.stderr.contains(NO_SHELL_EXEC.1);
    if !no_shell {
        return Ok(output);
    }
    // A root file system without a shell: the command itself gets the host's descriptors, and
    // nobody can tell how long something holds on to them.
    std::fs::write(mark(shim), "").map_err(fail)?;
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let output = call(shim, plan, number, &words, again, false, gather)?;
    if has_no_program(&output) {
        return Ok(not_run(format!("{}: not found", words[0])));
    }
    Ok(output)
}

fn has_no_program(output: &ExecOutput) -> bool {
    output.exit_code == RUNSC_FAILED
        && output.stderr.starts_with(RUNSC_REASON)
        && NO_PROGRAM.iter().any(|words| output.stderr.contains(words))
}

fn mark(shim: &Shim) -> PathBuf {
    shim.dir.path().join(HOST_FILES)
}

fn pid_file(shim: &Shim, number: u64) -> PathBuf {
    shim.dir.path().join(format!("exec.{number}"))
}

fn pid_in(file: &Path) -> Option<i32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn call(
    shim: &Shim,
    plan: &SandboxPlan,
    number: u64,
    words: &[&str],
    (out, err): (PipeWriter, PipeWriter),
    polite: bool,
    gather: Gather<'_>,
) -> Result<ExecOutput, String> {
    let pid_file = pid_file(shim, number);
    // A former shim's would name some other process.
    super::files::remove_file(&pid_file).map_err(|error| format!("exec: {error}"))?;
    let pid_flag = format!("--internal-pid-file={}", pid_file.display());
    let all: Vec<&str> =
        ["exec", &pid_flag, &plan.container].into_iter().chain(words.iter().copied()).collect();
    let mut tool = plan.runsc.command(&all);
    tool.stdout(out).stderr(err);
    let child = shim.reaper.spawn(&mut tool).map_err(|error| format!("exec: {error}"))?;
    // The tool's command holds the pipes' other ends, which must close with the process.
    drop(tool);
    let gathered = gather(&child, &|| {
        if let Some(inside) = pid_in(&pid_file) {
            // A sandbox that cannot be talked to ends with the guest.
            let _ = signal_inside(shim, plan, inside, if polite { "TERM" } else { "KILL" });
            if polite && child.wait_timeout(DYING).is_none() {
                let _ = signal_inside(shim, plan, inside, "KILL");
            }
        }
        signal_pid(child.pid, Signal::KILL);
    });
    let _ = std::fs::remove_file(&pid_file);
    if shim.execs.is_closed() {
        return Err("the guest was written out meanwhile; the command goes on with it".to_owned());
    }
    gathered
}

fn signal_inside(shim: &Shim, plan: &SandboxPlan, pid: i32, signal: &str) -> Result<(), String> {
    let pid_flag = format!("--pid={pid}");
    plan.runsc.run(
        &shim.reaper,
        &shim.talk_path("kill"),
        &["kill", &pid_flag, &plan.container, signal],
        Stdio::null(),
        TALK,
    )
}

/// Makes sure that nothing in the sandbox holds a descriptor of the host's: shuts out execs, and
/// ends the shells beside those under way, which leaves their commands running. On an error execs
/// are let in again.
pub(super) fn let_go(shim: &Shim, plan: &SandboxPlan, paused: bool) -> Result<(), String> {
    if mark(shim).exists() {
        return Err("a command ran in it without a shell, so it can only be frozen".to_owned());
    }
    let under_way = shim.execs.close();
    let end_shells = || -> Result<(), String> {
        if under_way.is_empty() {
            return Ok(());
        }
        let run = |word: &str| {
            plan.runsc.run(
                &shim.reaper,
                &shim.talk_path(word),
                &[word, &plan.container],
                Stdio::null(),
                TALK,
            )
        };
        // A frozen sandbox takes no signal.
        if paused {
            run("resume")?;
        }
        for number in &under_way {
            end_shell(shim, plan, *number)?;
        }
        if paused { run("pause") } else { Ok(()) }
    };
    let done = end_shells();
    if done.is_err() {
        shim.execs.reopen();
    }
    done
}

fn end_shell(shim: &Shim, plan: &SandboxPlan, number: u64) -> Result<(), String> {
    let deadline = Instant::now() + TALK;
    let ask_until = Instant::now() + ASK;
    loop {
        // One that has only begun has no pid yet; one that is ending has it no more.
        if let Some(inside) = pid_in(&pid_file(shim, number)) {
            let signal = if Instant::now() < ask_until { "USR1" } else { "KILL" };
            let _ = signal_inside(shim, plan, inside, signal);
        }
        if shim.execs.wait_for(number, LOOK_AGAIN) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!("an exec would not let go within {} s", TALK.as_secs()));
        }
    }
}
