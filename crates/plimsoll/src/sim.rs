//! `plimsoll sim`: the real engine and the real hosts in virtual time.

mod capacity;

use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use plimsoll_sim::faults::{Options, Report, run};
use serde::Serialize;

use crate::failure::Failure;
use crate::show;

/// Simulations. A seed is all that a run depends on.
#[derive(Args, Clone, Debug)]
pub(crate) struct Sim {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// A cell, hosts, clients and a network under faults, every invariant checked at every step
    Faults(Faults),
    /// What a pool's slots give its users, for each way of sharing them
    Capacity(capacity::Capacity),
    /// How many slots so many users need
    Size(capacity::Size),
}

impl Sim {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        match self.what {
            What::Faults(faults) => faults.run(),
            What::Capacity(capacity) => capacity.run(),
            What::Size(size) => size.run(),
        }
    }
}

#[derive(Args, Clone, Debug)]
struct Faults {
    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 100)]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    from: u64,
    /// Run this one seed again; with --json the same bytes every time
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Virtual minutes of trouble in each run
    #[arg(long, value_name = "MINUTES", default_value_t = Options::default().minutes)]
    minutes: u64,
    /// Episodes of trouble in a virtual minute
    #[arg(long, value_name = "N", default_value_t = Options::default().troubles_per_minute)]
    troubles_per_minute: u64,
    /// Write JSON: every report
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct All {
    seeds: u64,
    failed: usize,
    steps: u64,
    reports: Vec<Report>,
}

impl Faults {
    fn run(mut self) -> Result<ExitCode, Failure> {
        show::want_json(self.json);
        if let Some(seed) = self.seed {
            (self.from, self.seeds) = (seed, 1);
        }
        let options = Options {
            minutes: self.minutes,
            troubles_per_minute: self.troubles_per_minute,
            ..Options::default()
        };
        // A broken run is told with its seed and trace; the panic behind it says no more.
        std::panic::set_hook(Box::new(|_| {}));
        let begun = Instant::now();
        // Draws nothing where the error stream is no terminal.
        let progress = ProgressBar::new(self.seeds);
        let (mut failed, mut steps, mut admitted, mut reports) =
            (0_usize, 0_u64, 0_u64, Vec::new());
        for seed in self.from..self.from.saturating_add(self.seeds) {
            let report = run(seed, &options);
            steps = steps.saturating_add(report.stats.steps);
            admitted = admitted.saturating_add(report.stats.admitted);
            if let Some(failure) = &report.failure {
                failed += 1;
                let trace = failure.trace.join("\n");
                let text = format!(
                    "{trace}\nseed {seed}: {} broken at step {} ({} ms): {}",
                    failure.invariant, failure.step, failure.at_millis, failure.detail
                );
                progress.suspend(|| show::say(&text));
            }
            if self.json {
                reports.push(report);
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        let _ = std::panic::take_hook();
        if self.json {
            show::json(&All { seeds: self.seeds, failed, steps, reports })?;
        } else {
            show::out(&format!(
                "{} seeds, {failed} failed, {steps} steps, {admitted} admissions, {:.1} s\n",
                self.seeds,
                begun.elapsed().as_secs_f64()
            ))?;
        }
        if failed > 0 {
            return Err(Failure::refused(format!("{failed} seeds break a promise"))
                .hint("`plimsoll sim faults --seed SEED` shows one again"));
        }
        Ok(ExitCode::SUCCESS)
    }
}
