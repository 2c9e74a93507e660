//! A program around the agent and nothing else, for tests that kill it: settings from the command
//! line's words, `name=value` each.
//!
//! Called as `guest-shim ...` it is the shim of its own guests, as every program that runs the
//! agent has to be.

use std::error::Error;
use std::process::ExitCode;

use plimsoll_agent::driver::ShimCommand;
use plimsoll_agent::{AgentConfig, Means};
use plimsoll_api::Secret;
use plimsoll_types::{HostId, PoolName};

const SHIM: &str = "guest-shim";

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    if words.peek().is_some_and(|word| word == SHIM) {
        return plimsoll_agent::shim::shim_main(words.skip(1));
    }
    let words = words.map(|word| word.to_string_lossy().into_owned()).collect();
    match serve(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agent: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn serve(words: Vec<String>) -> Result<(), Box<dyn Error>> {
    let mut config = AgentConfig::new(
        Vec::new(),
        Secret::new("host-key"),
        HostId::new("host-1")?,
        PoolName::new("local")?,
        "plimsoll-data".into(),
    );
    config.listen.set_port(0);
    for word in words {
        match word.split_once('=') {
            Some(("cell", url)) => config.cells.push(url.to_owned()),
            Some(("data", path)) => config.data = path.into(),
            Some(("driver", kind)) => config.drivers.push(kind.parse()?),
            Some(("control-groups", value)) => config.control_groups = value.parse()?,
            _ => return Err(format!("{word:?} is no setting").into()),
        }
    }
    let means = Means::find(&config, ShimCommand::of_this_binary(SHIM)?).await?;
    let agent = plimsoll_agent::run(config, means, async {
        // An error means that there are no signals to wait for; then nothing ends the agent.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
    .await?;
    println!("{}", agent.address);
    Ok(agent.join().await?)
}
