//! A shim's life: start the guest, listen, wait for its end, write down how it ended.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use plimsoll_types::GuestSpec;
use rustix::process::Signal;

use super::enter::{EnterError, enter};
use super::exec::Execs;
use super::files::{Outlives, read_json, replace_json};
use super::log::{LOG_FILE_BYTES_MAX, LogRing};
use super::plan::{
    Answer, Call, EnterRequest, ExitRecord, LaunchPlan, Phase, StartLine, StateFile, unix_millis,
};
use super::reaper::{Child, Ended, Reaper};
use super::{control, exec, image, inside, sandbox};
use crate::driver::tree::signal_pid;
use crate::driver::{ExecOutput, GuestDir};
use crate::probe::{ProcessId, ProcessTable, boot_id};

/// How long what is left of a guest may take to die after its first process ended.
const DYING: Duration = Duration::from_secs(10);
/// How long output may still come once every process of the guest is gone.
const DRAIN: Duration = Duration::from_secs(1);

/// Exit code of a command that does not exist or may not be run, as shells give it.
const NOT_RUN: i32 = 127;

/// What every thread of a shim needs.
pub(super) struct Shim {
    pub dir: GuestDir,
    pub plan: LaunchPlan,
    pub spec: GuestSpec,
    pub reaper: Arc<Reaper>,
    pub state: Mutex<StateFile>,
    /// Held by whoever changes whether the guest lives. Set once a checkpoint has taken its
    /// place: its processes' end is then no end of the guest.
    pub written_out: Mutex<bool>,
    /// Why the guest's end is a loss, where it is one.
    spoiled: Mutex<Option<String>>,
    pub execs: Execs,
}

/// Why a guest did not start.
struct NotStarted {
    detail: String,
    /// Its own command is why.
    of_command: bool,
}

impl<T: Into<String>> From<T> for NotStarted {
    fn from(detail: T) -> Self {
        Self { detail: detail.into(), of_command: false }
    }
}

/// Runs a shim to its guest's end. Its standard input holds the guest's lock for as long as it
/// lives, its standard output takes one line.
pub(super) fn run(folder: &Path) -> ExitCode {
    match start(folder) {
        Ok((shim, main, log)) => {
            let ended = main.wait();
            shim.finish(ended, log);
            ExitCode::SUCCESS
        }
        Err(NotStarted { detail, of_command }) => {
            tell(&StartLine::Failed { detail, of_command });
            ExitCode::FAILURE
        }
    }
}

/// Says how the start went and lets go of the agent's pipe.
fn tell(line: &StartLine) {
    let mut text = serde_json::to_string(line).unwrap_or_default();
    text.push('\n');
    // An agent that has ended meanwhile reads the state file instead.
    let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

fn start(folder: &Path) -> Result<(Arc<Shim>, Child, JoinHandle<()>), NotStarted> {
    let fail = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    std::env::set_current_dir(folder).map_err(fail("enter the guest's folder"))?;
    let dir = GuestDir::at(std::env::current_dir().map_err(fail("find the guest's folder"))?);
    let spec = dir.spec().map_err(fail("read the specification"))?.ok_or("no specification")?;
    let plan: LaunchPlan =
        read_json(&dir.plan_path()).map_err(fail("read the plan"))?.ok_or("no plan")?;

    rustix::process::setsid().map_err(|error| format!("start a session: {error}"))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // Without these two the guest works as well; it is only less sheltered from the agent's end
    // and from the kernel's choice of victims.
    let _ = plan.shim_cgroup.join();
    let _ = std::fs::write("/proc/self/oom_score_adj", "-900");
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| format!("become the parent of orphans: {error}"))?;

    let own = ProcessId::of(rustix::process::getpid().as_raw_nonzero().get());
    let state = StateFile {
        phase: Phase::Starting,
        boot_id: boot_id().map_err(|unknown| unknown.to_string())?,
        shim: own.ok_or("find this process")?,
        main: None,
        entered: None,
        started_at_unix_millis: unix_millis(),
        cpu_base_millis: 0,
    };
    let reaper = Reaper::start().map_err(fail("start a thread"))?;
    let shim = Arc::new(Shim {
        dir,
        plan,
        spec,
        reaper,
        state: Mutex::new(state),
        written_out: Mutex::new(false),
        spoiled: Mutex::new(None),
        execs: Execs::default(),
    });
    shim.update(|_| ()).map_err(fail("write the state"))?;

    let (reader, writer) = io::pipe().map_err(fail("make a pipe"))?;
    let log = keep_log(shim.dir.path(), reader).map_err(fail("start the log"))?;
    // The agent calls only when the guest runs; but from then on a call must find its ear.
    let own = Arc::clone(&shim);
    control::serve(shim.dir.path(), move |call, caller| own.answer(call, caller))
        .map_err(fail("listen for calls"))?;
    let started = if shim.plan.sandbox.is_some() {
        sandbox::start(&shim, writer).map_err(NotStarted::from)
    } else {
        shim.start_process(writer)
    };
    let started_at_unix_millis = unix_millis();
    let started = started.and_then(|main| {
        let id = ProcessId::of(main.pid);
        let written = shim.update(|state| {
            state.phase = Phase::Running;
            state.main = id;
            state.started_at_unix_millis = started_at_unix_millis;
        });
        written.map_err(fail("write the state"))?;
        Ok(main)
    });
    let main = match started {
        Ok(main) => main,
        Err(why) => {
            // What it was restored from counts again, once nothing of it runs any more.
            if shim.kill_rest().is_ok() {
                let _ = image::put_back(shim.dir.path());
            }
            return Err(why);
        }
    };
    // The running guest is on record, so what it was restored from has served. What cannot be
    // removed is known as used up by that record.
    let _ = image::discard_used(shim.dir.path());
    tell(&StartLine::Started { started_at_unix_millis });
    Ok((shim, main, log))
}

/// Keeps what the guest writes until nobody can write any more.
fn keep_log(folder: &Path, mut reader: PipeReader) -> io::Result<JoinHandle<()>> {
    let mut ring = LogRing::open(folder, LOG_FILE_BYTES_MAX)?;
    std::thread::Builder::new().name("log".into()).spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                // A full disk loses output, and never stops the guest.
                Ok(length) => drop(ring.write(&buffer[..length])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    })
}

/// The output of a command that could not be run, as a shell would put it.
pub(super) fn not_run(detail: String) -> ExecOutput {
    ExecOutput {
        exit_code: NOT_RUN,
        timed_out: false,
        stdout: String::new(),
        stdout_truncated: false,
        stderr: format!("{detail}\n"),
        stderr_truncated: false,
    }
}

impl Shim {
    /// Changes the state and writes it down.
    pub(super) fn update(&self, change: impl FnOnce(&mut StateFile)) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        replace_json(&self.dir.state_path(), &*state, Outlives::Processes)
    }

    pub(super) fn state(&self) -> StateFile {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a process of this guest's own is given.
    fn request(&self, command: Vec<String>) -> EnterRequest {
        let mut env = self.spec.env.clone();
        let work = self.dir.work_path();
        env.entry("PATH".to_owned()).or_insert_with(|| {
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()
        });
        env.entry("HOME".to_owned()).or_insert_with(|| self.plan.home.clone());
        EnterRequest {
            again: self.plan.again.clone(),
            command,
            env,
            folder: work.display().to_string(),
            user: self.plan.user,
            user_is_own: self.plan.user_is_own,
            cgroup: self.plan.cgroup.clone(),
            confine: true,
        }
    }

    fn start_process(&self, output: PipeWriter) -> Result<Child, NotStarted> {
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        let request = self.request(self.plan.command.clone());
        let main =
            enter(&self.reaper, &request, output.into(), errors.into()).map_err(|error| {
                let of_command = error.is_the_commands();
                NotStarted { detail: error.into_detail(), of_command }
            })?;
        let id = ProcessId::of(main.pid);
        self.update(|state| state.entered = id).map_err(|error| error.to_string())?;
        Ok(main)
    }

    fn answer(&self, call: Call, caller: &UnixStream) -> Answer {
        let done = match call {
            Call::Exec { command, timeout_millis } => {
                self.exec(&command, Duration::from_millis(timeout_millis), caller).map(Answer::Exec)
            }
            Call::Checkpoint { paused } => {
                sandbox::checkpoint(self, paused).map(|()| Answer::Checkpointed)
            }
        };
        done.unwrap_or_else(|detail| Answer::Failed { detail })
    }

    fn exec(
        &self,
        command: &[String],
        timeout: Duration,
        caller: &UnixStream,
    ) -> Result<ExecOutput, String> {
        let slot = self.execs.begin()?;
        let pipe = || io::pipe().map_err(|error| format!("make a pipe: {error}"));
        let ((stdout, out), (stderr, err)) = (pipe()?, pipe()?);
        if self.plan.sandbox.is_some() {
            return inside::exec(self, slot.number(), command, (out, err), &|child, kill| {
                exec::gather(child, &stdout, &stderr, caller, timeout, kill)
            });
        }
        let request = self.request(command.to_vec());
        let child = match enter(&self.reaper, &request, out.into(), err.into()) {
            Ok(child) => child,
            Err(EnterError::Command(detail)) => return Ok(not_run(detail)),
            Err(EnterError::Place(detail)) => return Err(detail),
        };
        let pid = child.pid;
        let id = ProcessId::of(pid);
        exec::gather(&child, &stdout, &stderr, caller, timeout, &|| {
            // It leads a session; what has left that session ends with the guest.
            let wanted = crate::probe::Membership {
                descendants_of: id.into_iter().collect(),
                sessions: id.into_iter().collect(),
            };
            for process in ProcessTable::scan().members(&wanted) {
                signal_pid(process.pid, Signal::KILL);
            }
        })
    }

    /// Ends whatever is left of the guest. The error counts those that would not die.
    pub(super) fn kill_rest(&self) -> Result<(), String> {
        let left = self.plan.tree(Some(&self.state())).kill(DYING);
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{} processes would not die", left.len()))
        }
    }

    /// CPU used over the guest's whole life, as far as it can be told.
    pub(super) fn cpu_millis_total(&self) -> u64 {
        let state = self.state();
        let now = self.plan.tree(Some(&state)).cpu_millis(&mut ProcessTable::scan);
        state.cpu_base_millis.saturating_add(now.unwrap_or(0))
    }

    /// Writes down how the guest ended, unless a checkpoint has taken its place.
    fn finish(&self, ended: Ended, log: JoinHandle<()>) {
        // A checkpoint under way holds this until it is sealed or has failed.
        let written_out = *self.written_out.lock().unwrap_or_else(PoisonError::into_inner);
        let out_of_memory = self.plan.cgroup.oom_kills().is_ok_and(|kills| kills > 0);
        let survivors = self.kill_rest().err();
        let cpu_millis_total = self.cpu_millis_total();
        let deadline = Instant::now() + DRAIN;
        while !log.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if survivors.is_none() {
            // What cannot be removed now is cleared away with the guest.
            let _ = self.plan.cgroup.remove();
        }
        let _ = std::fs::remove_file(self.dir.path().join(control::SOCKET));
        if written_out {
            return;
        }
        let spoiled = self.spoiled.lock().unwrap_or_else(PoisonError::into_inner).take();
        let code = spoiled.is_none().then(|| ended.shell_code());
        let mut reason = match (spoiled, ended.signal, out_of_memory) {
            (Some(detail), ..) => format!("lost in a checkpoint that failed: {detail}"),
            (None, _, true) => "the kernel ended some of it for want of memory".to_owned(),
            (None, Some(signal), false) => format!("ended by signal {signal}"),
            (None, None, false) => "exited".to_owned(),
        };
        if let Some(survivors) = survivors {
            reason = format!("{reason}; {survivors}");
        }
        let record = ExitRecord {
            code,
            out_of_memory,
            reason,
            cpu_millis_total,
            at_unix_millis: unix_millis(),
        };
        // Should the disk be full, the guest is found to have ended without anybody having seen
        // how; that is all that is lost.
        let _ = replace_json(&self.dir.exit_path(), &record, Outlives::Machine);
    }

    /// Makes the end that is coming a loss.
    pub(super) fn spoil(&self, detail: &str) {
        *self.spoiled.lock().unwrap_or_else(PoisonError::into_inner) = Some(detail.to_owned());
    }

    /// A file of this guest's for one tool's talk.
    pub(super) fn talk_path(&self, word: &str) -> PathBuf {
        self.dir.path().join(format!("talk.{word}"))
    }
}
