//! `plimsoll sim capacity` and `plimsoll sim size`: what a pool's slots give, and how many it needs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use plimsoll_sim::capacity::{
    ModelError, ParamError, Params, Row, Seeds, SizeError, Sizing, Strategy, Study, Target, csv,
    size, svg,
};
use serde::Serialize;

use crate::failure::Failure;
use crate::show::{self, Table};

/// The users, their computers and the pool, beside its slots.
#[derive(Args, Clone, Debug)]
struct World {
    /// Simulated days of each run
    #[arg(long, value_name = "DAYS", default_value_t = Params::default().days)]
    days: u64,
    /// How many seeds are averaged
    #[arg(long, value_name = "N", default_value_t = Seeds::default().number)]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = Seeds::default().first)]
    first_seed: u64,
    /// The hour of the day from which sessions begin
    #[arg(long, value_name = "HOUR", default_value_t = Params::default().from_hour)]
    from_hour: u64,
    /// The hour of the day from which none begins any more
    #[arg(long, value_name = "HOUR", default_value_t = Params::default().until_hour)]
    until_hour: u64,
    /// Mean time between a user's sessions, and before the first of a day
    #[arg(long, value_name = "SECONDS", default_value_t = Params::default().gap_seconds)]
    gap_seconds: u64,
    /// Median length of a session
    #[arg(long, value_name = "SECONDS", default_value_t = Params::default().session_median_seconds)]
    session_median_seconds: u64,
    /// Spread of session lengths: standard deviation of their logarithm
    #[arg(long, value_name = "SIGMA", default_value_t = Params::default().session_sigma)]
    session_sigma: f64,
    /// How often a session calls into its computer
    #[arg(long, value_name = "SECONDS", default_value_t = Params::default().call_seconds)]
    call_seconds: u64,
    /// A computer is paused after so long without a call
    #[arg(long, value_name = "SECONDS", default_value_t = Params::default().idle_timeout_seconds)]
    idle_timeout_seconds: u64,
    /// How long a pause takes, until its slot is free
    #[arg(long, value_name = "SECONDS", default_value_t = Params::default().pause_seconds)]
    pause_seconds: u64,
    /// How long a start or a resume takes
    #[arg(long, value_name = "SECONDS", default_value_t = Params::default().resume_seconds)]
    resume_seconds: u64,
    /// preempt-idle pauses a computer after so long without a call
    #[arg(long, value_name = "SECONDS", default_value_t = Params::default().preempt_idle_seconds)]
    preempt_idle_seconds: u64,
    /// preempt-lru pauses a computer that has run for so long, busy or not
    #[arg(long, value_name = "SECONDS", default_value_t = Params::default().preempt_lru_seconds)]
    preempt_lru_seconds: u64,
    /// A computer brought in by preemption is not preempted for so long (new pools: 60)
    #[arg(long, value_name = "SECONDS", default_value_t = Params::default().protect_seconds)]
    protect_seconds: u64,
    /// Nor for so long by the computer that made way for it (new pools: 300)
    #[arg(long, value_name = "SECONDS", default_value_t = Params::default().pair_seconds)]
    pair_seconds: u64,
}

impl World {
    fn params(&self, slots: u64) -> Params {
        Params {
            slots,
            days: self.days,
            from_hour: self.from_hour,
            until_hour: self.until_hour,
            gap_seconds: self.gap_seconds,
            session_median_seconds: self.session_median_seconds,
            session_sigma: self.session_sigma,
            call_seconds: self.call_seconds,
            idle_timeout_seconds: self.idle_timeout_seconds,
            pause_seconds: self.pause_seconds,
            resume_seconds: self.resume_seconds,
            preempt_idle_seconds: self.preempt_idle_seconds,
            preempt_lru_seconds: self.preempt_lru_seconds,
            protect_seconds: self.protect_seconds,
            pair_seconds: self.pair_seconds,
        }
    }

    fn seeds(&self) -> Seeds {
        Seeds { first: self.first_seed, number: self.seeds }
    }
}

impl From<ParamError> for Failure {
    fn from(error: ParamError) -> Self {
        Self::usage(format!("--{error}"))
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self::refused(error.to_string())
    }
}

#[derive(Args, Clone, Debug)]
pub(super) struct Capacity {
    /// Slots of the pool
    #[arg(long, value_name = "N", default_value_t = Params::default().slots)]
    slots: u64,
    /// Numbers of users, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = Study::default().users)]
    users: Vec<u64>,
    /// hold, release, preempt-idle, preempt-lru, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values_t = Strategy::ALL)]
    strategies: Vec<Strategy>,
    /// Write JSON: a list of the rows
    #[arg(long)]
    json: bool,
    /// Write comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Draw waits and external hours against users into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    world: World,
}

impl Capacity {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        show::want_json(self.json);
        let study = Study {
            users: self.users,
            strategies: self.strategies,
            params: self.world.params(self.slots),
            seeds: self.world.seeds(),
        };
        study.check()?;
        let begun = Instant::now();
        // Draws nothing where the error stream is no terminal.
        let progress = ProgressBar::new(study.runs());
        let rows = study.rows(|| progress.inc(1))?;
        progress.finish_and_clear();
        if let Some(path) = &self.plot {
            draw(path, &svg(&rows, &study.params))?;
        }
        if self.json {
            show::json(&rows)?;
        } else if self.csv {
            show::out(&csv(&rows))?;
        } else {
            let lines = rows.iter().map(|row| cells(None, row));
            print(false, lines)?;
        }
        told(study.runs(), begun);
        Ok(ExitCode::SUCCESS)
    }
}

fn draw(path: &Path, text: &str) -> Result<(), Failure> {
    let name = path.display();
    std::fs::write(path, text)
        .map_err(|error| Failure::refused(format!("--plot {name} cannot be written: {error}")))?;
    show::say(&format!("drawn into {name}"));
    Ok(())
}

fn told(runs: u64, begun: Instant) {
    show::say(&format!("{runs} runs in {:.1} s", begun.elapsed().as_secs_f64()));
}

/// One line of a table for people.
fn cells(slots: Option<u64>, row: &Row) -> Vec<String> {
    let mean = &row.mean;
    let mut cells: Vec<String> = slots.iter().map(ToString::to_string).collect();
    cells.extend([
        row.users.to_string(),
        row.strategy.to_string(),
        format!("{:.0} %", mean.on_pool_percent),
        format!("{:.0} h", mean.external_hours),
        format!("{:.0} %", mean.utilisation_percent),
        format!("{:.0} s", mean.wait_p50_seconds),
        format!("{:.0} s", mean.wait_p95_seconds),
        format!("{:.1}", mean.preemptions_per_day),
        format!("{:.1}", mean.interrupted_per_day),
    ]);
    cells
}

fn print(with_slots: bool, lines: impl Iterator<Item = Vec<String>>) -> Result<(), Failure> {
    let columns = [
        ">slots",
        ">users",
        "strategy",
        ">on pool",
        ">external",
        ">utilisation",
        ">wait p50",
        ">wait p95",
        ">preempted/day",
        ">interrupted/day",
    ];
    let mut table = Table::new(&columns[usize::from(!with_slots)..]);
    lines.for_each(|line| table.row(line));
    table.print()
}

#[derive(Args, Clone, Debug)]
pub(super) struct Size {
    /// How many users there are
    #[arg(long, value_name = "N")]
    users: u64,
    /// The longest wait that 95 of 100 sessions may have
    #[arg(long, value_name = "SECONDS")]
    p95: u64,
    /// The least part of the users that are to be on the pool, not outside
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    on_pool_percent: u64,
    /// hold, release, preempt-idle or preempt-lru
    #[arg(long, value_name = "NAME", default_value_t = Strategy::PreemptIdle)]
    strategy: Strategy,
    /// Write JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    world: World,
}

/// What was asked, and the answer.
#[derive(Serialize)]
struct Answer {
    users: u64,
    strategy: Strategy,
    p95_seconds: u64,
    on_pool_percent: u64,
    #[serde(flatten)]
    sizing: Sizing,
}

impl Size {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        show::want_json(self.json);
        let params = self.world.params(self.users);
        let study = Study {
            users: vec![self.users],
            strategies: vec![self.strategy],
            params: Params { slots: 1, ..params },
            seeds: self.world.seeds(),
        };
        study.check()?;
        let target = Target { p95_seconds: self.p95, on_pool_percent: self.on_pool_percent };
        target.check()?;
        let begun = Instant::now();
        let progress = ProgressBar::new_spinner();
        let mut runs = 0;
        let sizing = size(self.users, self.strategy, &params, study.seeds, target, || {
            runs += 1;
            progress.set_message(format!("{runs} runs"));
            progress.tick();
        });
        progress.finish_and_clear();
        let sizing = sizing.map_err(|error| {
            let failure = Failure::refused(error.to_string());
            match error {
                SizeError::OutOfReach { .. } => failure.hint("accept a longer --p95"),
                SizeError::Model(_) => failure,
            }
        })?;
        if self.json {
            show::json(&Answer {
                users: self.users,
                strategy: self.strategy,
                p95_seconds: self.p95,
                on_pool_percent: self.on_pool_percent,
                sizing,
            })?;
        } else {
            let fewer = sizing.fewer.iter().map(|row| cells(Some(sizing.slots - 1), row));
            let line = std::iter::once(cells(Some(sizing.slots), &sizing.row));
            print(true, line.chain(fewer))?;
            let slots = if sizing.slots == 1 { "slot is" } else { "slots are" };
            show::say(&format!("{} {slots} enough", sizing.slots));
        }
        told(runs, begun);
        Ok(ExitCode::SUCCESS)
    }
}
