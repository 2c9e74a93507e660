//! `plimsoll bench`: figures that anyone can measure again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use plimsoll_api::CreateSandbox;
use plimsoll_bench::{Empty, Figures, Fleet, Loop, Shape, Target, load};
use plimsoll_client::{Client, CreateOptions};
use plimsoll_types::TemplateName;
use serde::Serialize;

use crate::connect::{As, Connect, Patience};
use crate::failure::Failure;
use crate::show::{self, Table};

/// Benchmarks against a cell on this machine.
#[derive(Args, Clone, Debug)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Durable reservations over HTTP, beside an empty handler in the same run
    Reservations(Reservations),
    /// Whole creates of real guests, and the decision's part of them
    Creates(Creates),
}

impl Bench {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        match self.what {
            What::Reservations(bench) => bench.run().await,
            What::Creates(bench) => bench.run().await,
        }
    }
}

#[derive(Args, Clone, Debug)]
struct Reservations {
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 64)]
    connections: u32,
    /// Reservations in one request, at most 1000; 1 sends them one by one
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: u32,
    /// Seconds to send for
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    seconds: u64,
    /// Requests a second over all connections [default: as fast as they are answered]
    #[arg(long, value_name = "N")]
    rate: Option<u64>,
    /// Hosts that exist only as heartbeats
    #[arg(long, value_name = "N", default_value_t = 100)]
    hosts: u32,
    #[command(flatten)]
    connect: Connect,
}

/// What was measured, and the ceiling beside it.
#[derive(Debug, Serialize)]
struct Measured {
    cell: Figures,
    ceiling: Figures,
    /// Requests of the cell for a hundred of the empty handler.
    percent_of_ceiling: u64,
}

impl Reservations {
    async fn run(self) -> Result<ExitCode, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::refused(error.to_string());
        let (url, key) = self.connect.found(As::Operator)?;
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let address = address.parse().map_err(|_| {
            Failure::usage(format!("{url} is no address of this machine: expected http://IP:PORT"))
        })?;
        let fleet = Fleet::start(&url, key, self.hosts).await.map_err(|error| failed(&error))?;
        let run = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
        let shape = if self.batch > 1 { Shape::Batch(self.batch) } else { Shape::Single };
        let pace = self.rate.map_or(Loop::Closed, Loop::Open);
        let length = Duration::from_secs(self.seconds);
        let (key, pool) = (fleet.tenant_key().to_owned(), fleet.pool().to_owned());
        let target = Target { address, key, pool, run };
        show::say(&format!("{} s against {address} ...", self.seconds));
        let cell = load("cell", &target, shape, pace, self.connections, length)
            .await
            .map_err(|error| failed(&error))?;
        show::say("and against a handler that does nothing ...");
        let empty = Empty::start().await.map_err(|error| failed(&error))?;
        let target = Target { address: empty.address(), ..target };
        let ceiling =
            load("empty handler", &target, Shape::Single, Loop::Closed, self.connections, length)
                .await
                .map_err(|error| failed(&error))?;
        let percent = cell.requests_per_second.saturating_mul(100);
        let percent_of_ceiling =
            percent.checked_div(ceiling.requests_per_second).unwrap_or_default();
        let measured = Measured { cell, ceiling, percent_of_ceiling };
        if show::wants_json() {
            show::json(&measured)?;
        } else {
            show::out(&measured.text())?;
        }
        if let Some(why) = measured.cell.broken {
            return Err(Failure::not_now(format!("connections broke: {why}")));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Measured {
    fn text(&self) -> String {
        let mut table = Table::new(&[
            "",
            ">requests/s",
            ">items/s",
            ">p50 us",
            ">p99 us",
            ">p99.9 us",
            ">max us",
            "answers",
        ]);
        for figures in [&self.cell, &self.ceiling] {
            let statuses: Vec<String> =
                figures.statuses.iter().map(|(code, count)| format!("{code}: {count}")).collect();
            table.row(vec![
                figures.name.clone(),
                figures.requests_per_second.to_string(),
                figures.items_per_second.to_string(),
                figures.p50_micros.to_string(),
                figures.p99_micros.to_string(),
                figures.p999_micros.to_string(),
                figures.max_micros.to_string(),
                statuses.join(", "),
            ]);
        }
        format!("{}{} % of the empty handler\n", table.text(), self.percent_of_ceiling)
    }
}

#[derive(Args, Clone, Debug)]
struct Creates {
    /// How many, one after the other; each is ended again
    #[arg(long, value_name = "N", default_value_t = 50)]
    count: usize,
    /// The template
    #[arg(long, value_name = "NAME", default_value = "shell")]
    template: TemplateName,
    #[command(flatten)]
    connect: Connect,
}

/// Creates, and the decision's part of them.
#[derive(Debug, Serialize)]
struct CreateFigures {
    template: String,
    count: usize,
    create_p50_micros: u64,
    create_p99_micros: u64,
    /// Mean time inside the engine for one verdict, from the cell's own metrics.
    decision_mean_micros: f64,
    /// The bucket of the cell's metrics within which half of these verdicts lie.
    decision_p50_micros_at_most: Option<f64>,
    /// The bucket of the cell's metrics within which 99 of 100 of these verdicts lie.
    decision_p99_micros_at_most: Option<f64>,
    /// The mean decision in percent of the median create.
    decision_percent: f64,
}

impl Creates {
    async fn run(self) -> Result<ExitCode, Failure> {
        if self.count == 0 {
            return Err(Failure::usage("--count is 0"));
        }
        let client = self.connect.client(As::Operator, Patience::Waits)?;
        let mut body = CreateSandbox::new(self.template.clone());
        body.command = ["sh", "-c", "sleep 600"].map(str::to_owned).to_vec();
        // The first of a template may have to bake its image.
        one(&client, &body).await?;
        let before = Verdicts::read(&client.metrics().await?);
        let mut micros = Vec::with_capacity(self.count);
        for _ in 0..self.count {
            micros.push(one(&client, &body).await?);
        }
        let verdicts = Verdicts::read(&client.metrics().await?).since(&before);
        micros.sort_unstable();
        let create_p50_micros = nearest_rank(&micros, 50);
        let decision_mean_micros = verdicts.mean_micros();
        let figures = CreateFigures {
            template: self.template.to_string(),
            count: self.count,
            create_p50_micros,
            create_p99_micros: nearest_rank(&micros, 99),
            decision_mean_micros,
            decision_p50_micros_at_most: verdicts.micros_at(0.5),
            decision_p99_micros_at_most: verdicts.micros_at(0.99),
            decision_percent: decision_mean_micros * 100.0 / create_p50_micros.max(1) as f64,
        };
        if show::wants_json() {
            show::json(&figures)?;
            return Ok(ExitCode::SUCCESS);
        }
        show::facts(&[
            ("creates", format!("{} of {}", figures.count, figures.template)),
            ("create, p50", format!("{} us", figures.create_p50_micros)),
            ("create, p99", format!("{} us", figures.create_p99_micros)),
            ("decision, mean", format!("{decision_mean_micros:.1} us")),
            ("decision, p50", at_most(figures.decision_p50_micros_at_most)),
            ("decision, p99", at_most(figures.decision_p99_micros_at_most)),
            ("decision's part", format!("{:.3} % of the median create", figures.decision_percent)),
        ])?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The upper bound of a bucket, in words.
fn at_most(micros: Option<f64>) -> String {
    micros.map_or_else(
        || "beyond the last bucket".to_owned(),
        |micros| format!("at most {micros:.0} us"),
    )
}

/// Creates one, ends it, and says how long the create took, in microseconds.
async fn one(client: &Client, body: &CreateSandbox) -> Result<u64, Failure> {
    let begun = Instant::now();
    let sandbox = client.create_sandbox(body, &CreateOptions::default()).await?;
    let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    client.delete_sandbox(sandbox.id).await?;
    Ok(took)
}

/// The value at so many hundredths of a sorted list, by the nearest rank.
fn nearest_rank(sorted: &[u64], hundredths: usize) -> u64 {
    let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// `plimsoll_decision_seconds` of a metrics page.
#[derive(Debug, Default, PartialEq)]
struct Verdicts {
    sum_seconds: f64,
    count: f64,
    /// Upper bound in seconds and number up to it.
    buckets: Vec<(f64, f64)>,
}

impl Verdicts {
    fn read(page: &str) -> Self {
        let mut read = Self::default();
        for line in page.lines() {
            let Some(rest) = line.strip_prefix("plimsoll_decision_seconds_") else { continue };
            let Some((name, value)) = rest.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse() else { continue };
            let bound =
                name.strip_prefix("bucket{le=\"").and_then(|bound| bound.strip_suffix("\"}"));
            match (name, bound.and_then(|bound| bound.parse().ok())) {
                ("sum", _) => read.sum_seconds = value,
                ("count", _) => read.count = value,
                (_, Some(bound)) => read.buckets.push((bound, value)),
                _ => {}
            }
        }
        read
    }

    fn since(self, before: &Self) -> Self {
        let buckets = self.buckets.into_iter().enumerate().map(|(at, (bound, count))| {
            (bound, count - before.buckets.get(at).map_or(0.0, |(_, count)| *count))
        });
        Self {
            sum_seconds: self.sum_seconds - before.sum_seconds,
            count: self.count - before.count,
            buckets: buckets.collect(),
        }
    }

    fn mean_micros(&self) -> f64 {
        if self.count > 0.0 { self.sum_seconds * 1e6 / self.count } else { 0.0 }
    }

    /// The upper bound of the bucket that holds this share of the verdicts; `None` past the last.
    fn micros_at(&self, share: f64) -> Option<f64> {
        let enough = self.count * share;
        let within = self.buckets.iter().find(|(_, count)| *count >= enough);
        within.map(|(bound, _)| bound * 1e6).filter(|micros| micros.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_from_the_page_and_taken_from_each_other() {
        let page = |sum: &str, few: u32, all: u32| {
            format!(
                "# TYPE plimsoll_decision_seconds histogram\n\
                 plimsoll_decision_seconds_sum {sum}\nplimsoll_decision_seconds_count {all}\n\
                 plimsoll_decision_seconds_bucket{{le=\"0.00001\"}} {few}\n\
                 plimsoll_decision_seconds_bucket{{le=\"+Inf\"}} {all}\n"
            )
        };
        let before = Verdicts::read(&page("1.0", 0, 10));
        let since = Verdicts::read(&page("1.0005", 100, 110)).since(&before);
        assert!((since.mean_micros() - 5.0).abs() < 0.01, "{since:?}");
        assert_eq!(since.micros_at(0.99).map(f64::round), Some(10.0));
        assert_eq!(Verdicts::default().micros_at(0.99), None);
    }

    #[test]
    fn ranks_are_nearest() {
        let values: Vec<u64> = (1..=50).collect();
        assert_eq!((nearest_rank(&values, 50), nearest_rank(&values, 99)), (25, 50));
        assert_eq!(nearest_rank(&[7], 99), 7);
    }
}
