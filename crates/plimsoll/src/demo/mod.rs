//! `plimsoll demo`: the load line at work on this machine, with real guests, in under two minutes.
//!
//! Each part runs a cell and an agent of its own in a folder that is removed afterwards, and
//! measures what it claims.

mod burst;
mod fill;
mod report;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use plimsoll_api::{CreateSandbox, Pool, PoolPatch};
use plimsoll_client::{Client, ClientConfig, CreateOptions, Error, RetryPolicy};
use plimsoll_types::{BasisPoints, Mib, PoolName, Regime, ReserveRule, SandboxId};

use crate::connect::key_in;
use crate::failure::Failure;
use crate::server::asked_to_stop;
use crate::server::up::{Pair, Up};
use crate::show;

/// Memory that the demo's host offers: small, so that it fills in seconds on any machine.
const OFFERED_MIB: u64 = 1024;
/// What of it is left free.
const HEADROOM_MIB: u64 = 64;
/// Reserve of a guest: never below this. Smaller than the usual 512 MiB as the whole host is.
const RESERVE_FLOOR_MIB: u64 = 16;
/// Share of the configured memory that is reserved, in basis points: the usual quarter.
const RESERVE_FRACTION_BP: u64 = 2_500;
/// How long a reserve takes to decay: shorter than the usual 120 s, so that it can be watched.
const DECAY_SECONDS: u64 = 5;
/// Earliest sample that counts.
const SETTLE_SECONDS: u64 = 1;

/// Shows what admission by working set gains, that reserves hold in a burst, and how waiting works.
#[derive(Args, Clone, Debug)]
pub(crate) struct Demo {
    /// Write JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Demo {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        show::want_json(self.json);
        let stop = asked_to_stop()?;
        let begun = Instant::now();
        let report = tokio::select! {
            biased;
            () = stop => Err(Failure::refused("stopped")),
            report = all(begun) => report,
        }?;
        if self.json {
            show::json(&report)?;
        } else {
            show::out(&report.text())?;
        }
        match report.broken() {
            None => Ok(ExitCode::SUCCESS),
            Some(what) => Err(Failure::refused(format!("the demo did not show it: {what}"))),
        }
    }
}

async fn all(begun: Instant) -> Result<report::Report, Failure> {
    let folder = tempfile::Builder::new()
        .prefix("plimsoll-demo-")
        .tempdir()
        .map_err(|error| Failure::refused(format!("no scratch folder: {error}")))?;
    show::say("1 of 3: filling a host with mostly idle guests, charged by configured memory ...");
    let committed = fill::run(&folder.path().join("committed"), Regime::Committed).await?;
    show::say("1 of 3: and now charged by what they use ...");
    let working_set = fill::run(&folder.path().join("working-set"), Regime::WorkingSet).await?;
    show::say("2 of 3: twenty creates at once ...");
    let (burst, wait) = burst::run(&folder.path().join("burst")).await?;
    let seconds = begun.elapsed().as_secs();
    Ok(report::Report { committed, working_set, burst, wait, seconds })
}

/// A small host with its cell, for one part.
struct Stage {
    pair: Pair,
    tenant: Client,
}

impl Stage {
    async fn set(data: &Path, regime: Regime) -> Result<Self, Failure> {
        let words = [
            "--driver=process".to_owned(),
            "--host-name=demo".to_owned(),
            format!("--regime={regime}"),
            format!("--memory-mib={OFFERED_MIB}"),
            format!("--headroom-mib={HEADROOM_MIB}"),
            "--heartbeat-millis=500".to_owned(),
            "--sample-millis=200".to_owned(),
            "--starts-limit=unbounded".to_owned(),
            "--end-guests".to_owned(),
        ];
        let pair = Pair::start(Up::scratch(data, &words)?).await?;
        let key = key_in(&data.join("tenant-default.key"))?;
        let mut config = ClientConfig::new([pair.url.clone()]).with_key(key);
        config.retry = RetryPolicy::none();
        let stage = Self { tenant: Client::new(config)?, pair };
        let reserve = ReserveRule {
            floor_mib: Mib(RESERVE_FLOOR_MIB),
            fraction_bp: BasisPoints(RESERVE_FRACTION_BP),
            ..ReserveRule::default()
        };
        let patch = PoolPatch {
            regime: Some(regime),
            reserve: Some(reserve),
            settle_seconds: Some(SETTLE_SECONDS),
            decay_seconds: Some(DECAY_SECONDS),
            ..PoolPatch::default()
        };
        let changed: Result<Pool, Error> = stage.pair.operator.patch_pool(&pool(), &patch).await;
        match changed {
            Ok(_) => Ok(stage),
            Err(error) => {
                stage.strike().await?;
                Err(error.into())
            }
        }
    }

    /// One create, tried once.
    async fn create(&self, memory_mib: u64, wait_seconds: u64) -> Result<SandboxId, Error> {
        create(&self.tenant, memory_mib, wait_seconds).await
    }

    /// Ends guests, agent and cell.
    async fn strike(self) -> Result<(), Failure> {
        self.pair.shutdown().await
    }
}

fn pool() -> PoolName {
    "local".parse().expect("a valid name")
}

/// Creates a guest that touches four MiB and then waits.
async fn create(client: &Client, memory_mib: u64, wait_seconds: u64) -> Result<SandboxId, Error> {
    let mut body = CreateSandbox::new("process".parse().expect("a valid name"));
    body.memory_mib = Some(memory_mib);
    body.wait_seconds = wait_seconds;
    let script = "x=$(head -c 4194304 /dev/zero | tr '\\0' x); sleep 300";
    body.command = ["sh", "-c", script].map(str::to_owned).to_vec();
    Ok(client.create_sandbox(&body, &CreateOptions::default()).await?.id)
}

/// Longest wait for a host's next report.
const REPORT: Duration = Duration::from_secs(5);
