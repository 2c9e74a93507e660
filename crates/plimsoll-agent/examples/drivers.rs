//! Measures what guests cost on this machine: `cargo run --release -p plimsoll-agent --example
//! drivers -- [process|gvisor] [rounds]`. Prints the median and the slowest of each step.
//!
//! It also shows how a binary lends itself to guests as their shim.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_agent::driver::{
    ExecRequest, GuestDriver, GuestName, Guests, GvisorConfig, GvisorDriver, ProcessConfig,
    ProcessDriver, ShimCommand,
};
use plimsoll_agent::shim::shim_main;
use plimsoll_types::{
    Driver, GuestSpec, Mib, PauseKind, ReserveRule, SandboxId, TemplateName, TenantId, Vcpus,
};

const SUBCOMMAND: &str = "guest-shim";

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    if words.next_if(|word| word == SUBCOMMAND).is_some() {
        return shim_main(words);
    }
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let kind = if words.first().is_some_and(|word| word == "gvisor") {
        Driver::Gvisor
    } else {
        Driver::Process
    };
    let rounds = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(20);
    let done = tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(measure(kind, rounds)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Steps(BTreeMap<&'static str, Vec<Duration>>);

impl Steps {
    async fn time<T, E>(
        &mut self,
        step: &'static str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let done = work.await?;
        self.0.entry(step).or_default().push(begun.elapsed());
        Ok(done)
    }
}

async fn measure(kind: Driver, rounds: u128) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let shim = ShimCommand::of_this_binary(SUBCOMMAND)?;
    let guests = Guests::open(&folder.path().join("data"), shim, true)?;
    let driver: Box<dyn GuestDriver> = match kind {
        Driver::Gvisor => Box::new(GvisorDriver::new(Arc::clone(&guests), GvisorConfig::default())),
        _ => Box::new(ProcessDriver::new(Arc::clone(&guests), ProcessConfig::default())),
    };
    let begun = Instant::now();
    println!("{kind}: {:?}", driver.available().await?);
    println!("trying it out took {:?}", begun.elapsed());
    let pause = if driver.pause_frees_memory() { PauseKind::Checkpoint } else { PauseKind::Keep };
    let mut steps = Steps::default();
    let mut resident = Vec::new();
    for number in 0..rounds {
        let baked = kind == Driver::Gvisor && number % 2 == 1;
        let spec = spec(kind, number, baked)?;
        let name = GuestName::of(&spec);
        let start = if baked { "start, baked" } else { "start" };
        steps.time(start, driver.start(&spec)).await?;
        let exec =
            ExecRequest { command: vec!["true".to_owned()], timeout: Duration::from_secs(9) };
        steps.time("exec", driver.exec(&name, exec)).await?;
        let usage = steps.time("usage", driver.usage(&name)).await?;
        resident.extend(usage.resident.map(|resident| resident.bytes >> 10));
        steps.time("pause", driver.pause(&name, pause)).await?;
        steps.time("resume", driver.resume(&name)).await?;
        steps.time("end", driver.end(&name)).await?;
    }
    for (step, mut times) in steps.0 {
        times.sort_unstable();
        let slowest = times.last().copied().unwrap_or_default();
        println!("{step:13} median {:?}, slowest {slowest:?}", times[times.len() / 2]);
    }
    resident.sort_unstable();
    println!("resident median {:?} KiB", resident.get(resident.len() / 2));
    Ok(())
}

fn spec(driver: Driver, number: u128, baked: bool) -> Result<GuestSpec, Box<dyn Error>> {
    Ok(GuestSpec {
        id: SandboxId(number),
        attempt: 1,
        tenant: TenantId::new("measure")?,
        template: TemplateName::new("shell")?,
        driver,
        memory_mib: Mib(256),
        overhead_mib: Mib(64),
        vcpus: Vcpus(1),
        stateful: false,
        preemptible: true,
        priority: 0,
        command: ["sh", "-c", "exec sleep 1000"].map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        rootfs: None,
        baked,
        fork_of: None,
        counted: BTreeMap::new(),
        reserve: ReserveRule::default(),
        settle_seconds: 3,
        decay_seconds: 120,
    })
}
