//! The guest's shim as a binary of its own, for tests of the drivers. In production the agent
//! calls its own binary again.

use std::process::ExitCode;

fn main() -> ExitCode {
    plimsoll_agent::shim::shim_main(std::env::args_os().skip(1))
}
