//! The plimsoll binary: subcommands and wiring.
//!
//! Each command group has a file of its own. Client commands stand in `client`, and reach a cell
//! over HTTP alone; nothing here decides anything about a sandbox.

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod bench;
mod cli;
mod client;
mod connect;
mod demo;
mod failure;
mod server;
mod settings;
mod show;
mod sim;

use std::process::ExitCode;

use failure::Failure;

fn main() -> ExitCode {
    // A guest's shim must start neither threads nor children before its time.
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == server::agent::SHIM) {
        return plimsoll_agent::shim::shim_main(words);
    }
    match run() {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn run() -> Result<ExitCode, Failure> {
    let Some(cli) = settings::parse(std::env::args_os().collect())? else {
        return Ok(ExitCode::SUCCESS);
    };
    cli.log.start(&cli.command)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::refused(format!("no threads to run on: {error}")))?;
    runtime.block_on(cli.command.run())
}
