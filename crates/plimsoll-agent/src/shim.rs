//! The guest's shim: a small process beside each guest that owns its output, its bounded log and
//! its exit status.
//!
//! It is the same binary called again with a hidden subcommand, in a session and (where the
//! machine allows) a control group of its own, so that the agent's end, however violent, harms no
//! guest. The kernel hands it every process of the guest that loses its parent. What it knows it
//! keeps in files of the guest's folder, from which the next agent takes over; what only it can
//! do it does when called through a socket there.
//!
//! Guests of the `process` driver and their shim are apart by user only: that is no security
//! boundary.

mod control;
mod enter;
mod exec;
pub(crate) mod files;
mod guest;
pub(crate) mod image;
mod inside;
pub(crate) mod log;
pub(crate) mod plan;
mod reaper;
pub(crate) mod runsc;
mod sandbox;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

pub(crate) use control::SOCKET;
pub use plan::{ExitRecord, GuestUser};

/// Exit code of a call that makes no sense, as the sysexits convention has it.
const USAGE: u8 = 64;

/// The hidden subcommand's entry: `run FOLDER` for a shim, and two steps that shims start
/// themselves (`enter`, `sleep`).
///
/// The binary that calls this must hand over all words after the subcommand, and must not have
/// started threads or children before.
pub fn shim_main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    match words.as_slice() {
        [step, folder] if step == "run" => guest::run(Path::new(folder)),
        [step] if step == "enter" => enter::become_command(),
        [step] if step == "sleep" => enter::sleep(),
        _ => {
            eprintln!("guest-shim is started by the agent, not by hand");
            ExitCode::from(USAGE)
        }
    }
}
