//! What tenants cost by being there: a decision's time, and memory.
//!
//! `cargo bench -p plimsoll-bench --bench tenants`. DESIGN 11: a decision costs no more among
//! 100 000 tenants than among 100; a tenant that does nothing takes less than 1 KiB, and so does
//! the record of a sandbox that runs.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark that cannot go on panics")]

mod bed;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bed::{Bed, all_limits};
use plimsoll_engine::rows::{PlanLimits, TemplateRow};
use plimsoll_engine::{Admin, Caller, Command, CreateSandbox, Effect, Input};
use plimsoll_types::{DecisionId, Driver, HostOutcome, Mib, SandboxId, TemplateName};

/// Tenants, or sandboxes, of which each one's part is taken.
const MANY: u64 = 100_000;
/// Tenants to compare with.
const FEW: u64 = 100;

fn main() {
    if let Ok(what) = std::env::var(MEASURE) {
        return measure(&what);
    }
    memory();
    for (limits, name) in [(PlanLimits::default(), "no limits"), (all_limits(), "every limit")] {
        decisions(limits, name);
    }
}

/// Cycles that are timed as one, and how often that is done.
const BLOCK: u64 = 1_000;
const BLOCKS: usize = 401;
/// Calls at hand at a time, as a cell has them when it is busy: see [`plimsoll_engine::Engine::foresee`].
const ROUND: usize = 64;
/// Visits all tenants in no order of memory.
const STRIDE: u64 = 61_803;

/// A cell, and who asks next.
struct Cell {
    bed: Bed,
    tenants: u64,
    turn: u64,
}

impl Cell {
    fn new(tenants: u64, limits: PlanLimits) -> Self {
        let mut bed = Bed::new(1);
        bed.tenants(tenants, limits, PlanLimits::default());
        // The first decision about a tenant writes its state; none of these is timed.
        for number in 0..tenants {
            bed.cycle(&bed::tenant(number));
        }
        Self { bed, tenants, turn: 0 }
    }

    /// The mean of one cycle of a block, in nanoseconds. Callers come with their names from outside:
    /// they are made before the clock runs.
    fn block(&mut self, stride: u64) -> f64 {
        let callers: Vec<Caller> = (0..BLOCK)
            .map(|_| {
                self.turn = (self.turn + stride) % self.tenants;
                bed::tenant(self.turn)
            })
            .collect();
        let begin = Instant::now();
        for round in callers.chunks(ROUND) {
            self.bed.engine.foresee(round);
            for caller in round {
                self.bed.cycle(caller);
            }
        }
        begin.elapsed().as_secs_f64() * 1e9 / BLOCK as f64
    }
}

/// Reserve, commit and release, among few tenants and among many, in turns within one run: for one
/// that asks again and again, and for another one each time.
fn decisions(limits: PlanLimits, name: &str) {
    let mut few = Cell::new(FEW, limits);
    let mut many = Cell::new(MANY, limits);
    for (stride, who) in [(0, "the same tenant"), (STRIDE, "another tenant each time")] {
        let (mut of_few, mut of_many, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..BLOCKS {
            let (one, other) = (few.block(stride), many.block(stride));
            of_few.push(one);
            of_many.push(other);
            ratios.push(other / one);
        }
        println!(
            "{name}, {who}: {:.0} ns a cycle among {FEW} tenants, {:.0} ns among {MANY}, \
             {:.2} times (medians of {BLOCKS} blocks in turns)",
            median(&mut of_few),
            median(&mut of_many),
            median(&mut ratios),
        );
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What this process holds in memory, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Names the one thing whose memory this process is to measure, and nothing else.
const MEASURE: &str = "PLIMSOLL_BENCH_MEMORY";

const WHAT: [&str; 5] = [
    "idle tenant, no limits",
    "idle tenant, every limit by its plan",
    "idle tenant, every limit of its own",
    "sandbox that runs, as its template has it",
    "sandbox that runs, with command, key and a label",
];

/// What one of each takes in memory. Each is measured in a process of its own: freed memory that
/// is used again would not show. What is resident is counted in small pages: in pages of 2 MiB, which
/// the allocator asks for where the kernel has them, it is what is taken up to the next whole one.
fn memory() {
    let own = std::env::current_exe().unwrap();
    for what in WHAT {
        let mut child = std::process::Command::new(&own);
        let status = child.env(MEASURE, what).env("MIMALLOC_ALLOW_THP", "0").status().unwrap();
        assert!(status.success(), "{what}");
    }
}

fn measure(what: &str) {
    let none = PlanLimits::default();
    let each = match WHAT.iter().position(|one| *one == what) {
        Some(0) => idle(none, none),
        Some(1) => idle(all_limits(), none),
        Some(2) => idle(none, all_limits()),
        Some(3) => living(false),
        Some(4) => living(true),
        _ => panic!("{MEASURE}: nothing is called {what}"),
    };
    println!("{each} bytes for each {what}");
}

fn idle(limits: PlanLimits, own: PlanLimits) -> u64 {
    let mut bed = Bed::new(1);
    let before = resident();
    bed.tenants(MANY, limits, own);
    let each = resident().saturating_sub(before) / MANY;
    black_box(&bed.engine);
    each
}

/// What a sandbox that runs takes: as its template has it, and with a command, an idempotency key
/// and a label of its own.
fn living(own: bool) -> u64 {
    let mut bed = Bed::new(1);
    bed.tenants(FEW, all_limits(), PlanLimits::default());
    let shell = TemplateName::new("shell").unwrap();
    bed.admin(Admin::PutTemplate(TemplateRow::new(shell.clone(), Driver::Process, Mib(4))));
    let before = resident();
    for number in 0..MANY {
        let id = u128::from(number) + 1;
        let mut create = CreateSandbox::new(SandboxId(id), DecisionId(id), shell.clone());
        if own {
            create.key = Some((Arc::from(format!("create-{number}")), number));
            create.command = ["sh", "-c", "sleep 600"].map(str::to_owned).to_vec();
            create.labels = BTreeMap::from([("job".to_owned(), format!("ci-{number}"))]);
        }
        bed.call(&bed::tenant(number % FEW), Command::Create(Box::new(create)));
        for effect in std::mem::take(&mut bed.out.effects) {
            if let Effect::HostCommand { host, command, .. } = effect {
                let outcome = HostOutcome::Done;
                bed.input(Input::Outcome { host, command, outcome });
            }
        }
        bed.out.clear();
    }
    let each = resident().saturating_sub(before) / MANY;
    black_box(&bed.engine);
    each
}
