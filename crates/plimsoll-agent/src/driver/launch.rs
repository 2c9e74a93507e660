//! Starts shims and calls them.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::Command;

use super::folder::{GuestDir, Guests};
use super::{Fault, Started};
use crate::shim::SOCKET;
use crate::shim::plan::{ANSWER_BYTES_MAX, Answer, Call, StartLine};
use crate::shim::runsc::{TALK_BYTES_MAX, reason_in};

/// Longest wait for a shim to say that its guest runs. A process takes milliseconds and a boot a
/// fraction of a second; a restore of a large image takes as long as it takes to read, see
/// [`RESTORE_LIMIT`].
pub(crate) const START_LIMIT: Duration = Duration::from_secs(90);
/// Longest wait for a restore: 64 GiB at 128 MiB a second, and what else a start takes.
pub(crate) const RESTORE_LIMIT: Duration = Duration::from_secs(660);
/// Longest wait for a checkpoint to be written.
pub(crate) const CHECKPOINT_LIMIT: Duration = Duration::from_secs(720);
/// How much longer than a command's own time its answer may take: to kill it and gather output.
pub(crate) const EXEC_MARGIN: Duration = Duration::from_secs(30);
/// Longest wait for the shim to take a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a probe of the lock by someone else may be in the way.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// Most of a shim's first line: a reason of a few hundred bytes.
const START_LINE_BYTES_MAX: u64 = 64 * 1024;

/// How `runsc` says that a sandbox's command does not exist or may not be run.
const OF_COMMAND: [&str; 2] = ["creating process: failed to load ", "error finding executable "];

/// Starts the shim of a guest whose folder is ready, and hands the guest's lock to it; comes back
/// when the guest runs.
pub(crate) async fn start_shim(
    guests: &Guests,
    dir: &GuestDir,
    lock: std::fs::File,
    limit: Duration,
) -> Result<Started, Fault> {
    let errors = std::fs::File::create(dir.path().join("shim.err"))
        .map_err(Fault::io("make the shim's file of errors"))?;
    let shim = guests.shim();
    let mut child = Command::new(&shim.program)
        .args(&shim.words)
        .arg("run")
        .arg(dir.path())
        .env_clear()
        .stdin(Stdio::from(lock))
        .stdout(Stdio::piped())
        .stderr(Stdio::from(errors))
        .spawn()
        .map_err(Fault::io(format!("start {}", shim.program.display())))?;
    let stdout = child.stdout.take();
    // Reaps it whenever it ends; should this agent end first, the kernel's first process does.
    tokio::spawn(async move { child.wait().await });
    let mut line = String::new();
    let heard = async {
        if let Some(stdout) = stdout {
            BufReader::new(stdout.take(START_LINE_BYTES_MAX)).read_line(&mut line).await?;
        }
        io::Result::Ok(())
    };
    match tokio::time::timeout(limit, heard).await {
        Ok(done) => done.map_err(Fault::io("listen to the shim"))?,
        Err(_) => return Err(Fault::timeout("the guest's start", limit)),
    }
    match serde_json::from_str(&line) {
        Ok(StartLine::Started { started_at_unix_millis }) => {
            Ok(Started { started_at_unix_millis, notes: Vec::new() })
        }
        Ok(StartLine::Failed { detail, of_command }) => {
            let shown = reason_in(&dir.log_tail(TALK_BYTES_MAX));
            let of_command = of_command || OF_COMMAND.iter().any(|words| shown.contains(words));
            let detail = if shown.is_empty() { detail } else { format!("{detail}: {shown}") };
            if of_command {
                return Err(Fault::Command { detail });
            }
            Err(Fault::step("the guest's start", detail))
        }
        Err(_) => {
            let said = std::fs::read(dir.path().join("shim.err")).unwrap_or_default();
            let said = reason_in(&said);
            Err(Fault::step("the guest's start", format_args!("its shim ended: {said}")))
        }
    }
}

/// Takes the lock for a new shim. A probe may hold it for a moment; a living shim holds it for long.
pub(crate) fn take_lock(dir: &GuestDir) -> Result<std::fs::File, Fault> {
    let deadline = Instant::now() + LOCK_LIMIT;
    loop {
        let lock = dir
            .lock(FlockOperation::NonBlockingLockExclusive)
            .map_err(Fault::io("take the guest's lock"))?;
        if let Some(lock) = lock {
            return Ok(lock);
        }
        if Instant::now() >= deadline {
            return Err(Fault::step("the guest's start", "another shim of it lives"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Calls a guest's shim. `None` when the shim hung up without an answer: it has ended.
pub(crate) async fn call(
    dir: &GuestDir,
    call: &Call,
    step: &'static str,
    limit: Duration,
) -> Result<Option<Answer>, Fault> {
    let fail = || Fault::io(format!("{step}: call the guest's shim"));
    let mut stream = tokio::time::timeout(CONNECT_LIMIT, connect(dir.path()))
        .await
        .map_err(|_| Fault::timeout(step, CONNECT_LIMIT))?
        .map_err(fail())?;
    let mut line = serde_json::to_vec(call).map_err(|error| Fault::step(step, error))?;
    line.push(b'\n');
    let mut answer = String::new();
    let talk = async {
        stream.write_all(&line).await?;
        let most = ANSWER_BYTES_MAX as u64;
        BufReader::new((&mut stream).take(most)).read_line(&mut answer).await
    };
    match tokio::time::timeout(limit, talk).await {
        Err(_) => Err(Fault::timeout(step, limit)),
        Ok(Err(error)) if error.kind() != io::ErrorKind::ConnectionReset => Err(fail()(error)),
        Ok(_) if answer.is_empty() => Ok(None),
        Ok(_) => serde_json::from_str(&answer).map(Some).map_err(|error| Fault::step(step, error)),
    }
}

/// Connects through the folder's descriptor: a socket's path may have no more than 107 bytes, and
/// a data folder may lie deep.
async fn connect(folder: &Path) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd())).await
}
