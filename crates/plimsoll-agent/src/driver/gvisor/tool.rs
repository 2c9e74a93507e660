//! Calls of `runsc` from the agent's side.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::driver::Fault;
use crate::shim::runsc::{TALK_BYTES_MAX, reason_in};

/// Runs one tool to its end, with nothing to read and its talk in a file: a pipe would be kept
/// open by a sandbox that it leaves behind. Comes back with what it said.
pub(crate) fn run(
    mut command: Command,
    step: &'static str,
    talk: &Path,
    limit: Duration,
) -> Result<String, Fault> {
    let io = || Fault::io(format!("{step}: run {}", command_name(talk)));
    let file = std::fs::File::create(talk).map_err(io())?;
    let errors = file.try_clone().map_err(io())?;
    let mut child =
        command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn().map_err(io())?;
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(io())? {
            break status;
        }
        if Instant::now() >= deadline {
            // It may have ended just now; either way it is waited for.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Fault::timeout(step, limit));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut said = std::fs::read(talk).map_err(io())?;
    said.truncate(TALK_BYTES_MAX);
    if status.success() {
        return Ok(String::from_utf8_lossy(&said).into_owned());
    }
    Err(Fault::step(step, format_args!("{status}: {}", reason_in(&said))))
}

fn command_name(talk: &Path) -> String {
    talk.display().to_string()
}
