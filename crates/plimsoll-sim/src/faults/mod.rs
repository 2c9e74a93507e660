//! A cell, its hosts, its clients and the network between them, under seeded faults.
//!
//! The engine and the hosts are the very ones of production. Around them stands a small shell:
//! inputs go in one by one, changes are committed before replies and commands leave, and a store
//! or a process may fail between any two steps. Drivers, machines and clients are simulated.
//!
//! After every step the engine's own check runs, and an oracle that reads nothing but what leaves
//! the engine. At the end everything is mended, and fleet and records must come to agree.
//!
//! ```
//! use plimsoll_sim::faults::{Options, run};
//!
//! let report = run(1, &Options { minutes: 1, ..Options::default() });
//! assert!(report.failure.is_none(), "{:#?}", report.failure);
//! ```

mod calls;
mod cell;
mod client;
mod ending;
mod event;
mod hooks;
mod hosts;
mod machine;
mod money;
mod node;
mod oracle;
mod setup;
mod table;
mod trouble;
mod users;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use plimsoll_types::{Millis, RefusalCode, Timestamp};
use serde::Serialize;

use event::Event;

/// When every run begins: four minutes before a month does (2027-02-01 in UTC), so that a billing
/// period ends in the middle of it.
const BEGIN: Timestamp = Timestamp(1_801_440_000_000 - 240_000);

/// How long a mended world has until records and fleet must agree: longer than the longest pause
/// with its repeats, and than the time after which a silent host is given up.
const SETTLE: Millis = Millis::from_seconds(15 * 60);

/// What a run is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Virtual minutes in which things go wrong.
    pub minutes: u64,
    /// Fewest and most hosts.
    pub hosts: (u64, u64),
    /// Episodes of trouble per minute.
    pub troubles_per_minute: u64,
    /// Lines of trace that a failure carries; 0 traces nothing and runs faster.
    pub trace: usize,
}

impl Default for Options {
    /// 8 minutes of 2 to 8 hosts, 4 episodes a minute, no trace.
    fn default() -> Self {
        Self { minutes: 8, hosts: (2, 8), troubles_per_minute: 4, trace: 0 }
    }
}

/// What was found broken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The invariant's id, or a word for what is none of them.
    pub invariant: String,
    /// What was seen.
    pub detail: String,
    /// After how many steps.
    pub step: u64,
    /// Virtual milliseconds from the begin.
    pub at_millis: i64,
    /// The last events before it.
    pub trace: Vec<String>,
}

/// Counts over one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Events, ticks included.
    pub steps: u64,
    /// Inputs into the engine.
    pub inputs: u64,
    /// Admissions.
    pub admitted: u64,
    /// Refusals that were decided.
    pub refusals: u64,
    /// Admissions under the decision of an earlier refusal.
    pub decisions_again: u64,
    /// Commands to hosts.
    pub commands: u64,
    /// Commits that failed.
    pub store_failures: u64,
    /// Crashes of the cell.
    pub crashes: u64,
    /// Leaders that were frozen and replaced.
    pub takeovers: u64,
    /// Refusals that callers saw, by code.
    pub refused: BTreeMap<&'static str, u64>,
    /// Events that receivers of webhooks got, each time they got one.
    pub deliveries: u64,
    /// Events that were given up on.
    pub given_up: u64,
    /// What tenants were told about their budgets, by kind of event.
    pub ladder: BTreeMap<String, u64>,
    /// Sandboxes that were deleted for a budget that was used up.
    pub deleted_for_budget: u64,
    /// A fingerprint of everything that happened, in order.
    pub digest: u64,
}

impl Stats {
    fn refused(&mut self, code: RefusalCode) {
        *self.refused.entry(code.as_str()).or_default() += 1;
    }

    fn mix(&mut self, at: Timestamp, event: &Event) {
        let kind = match event {
            Event::Node { node, .. } => 1_000 + u64::try_from(*node).unwrap_or(0),
            Event::Report { report, .. } => 2_000 + report.sequence,
            Event::Outcome { rpc, .. } => 3_000 + rpc,
            Event::Request { conn, .. } => 4_000 + conn,
            Event::Answered { conn, .. } => 5_000 + conn,
            _ => 1,
        };
        for word in [at.0.unsigned_abs(), kind, self.admitted, self.refusals] {
            // FNV-1a over words.
            self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// How a run came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Its seed: the same one gives the same report.
    pub seed: u64,
    /// What was broken, if anything.
    pub failure: Option<Failure>,
    /// Counts.
    pub stats: Stats,
}

/// Runs one seed. A failure is run once more to collect its trace.
#[must_use]
pub fn run(seed: u64, options: &Options) -> Report {
    let report = run_once(seed, *options);
    if report.failure.is_none() || options.trace > 0 {
        return report;
    }
    run_once(seed, Options { trace: TRACE, ..*options })
}

/// Lines of trace of a failure.
const TRACE: usize = 50;

fn run_once(seed: u64, options: Options) -> Report {
    let mut world = setup::world(seed, options);
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    if let Err(panic) = ended {
        let said = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap_or_default();
        world.oracle.break_("panic", said);
    }
    let (step, at_millis) = (world.stats.steps, world.now.0 - BEGIN.0);
    let trace = world.trace();
    let failure =
        world.oracle.broken.take().map(|broken| Failure { step, at_millis, trace, ..broken });
    Report { seed, failure, stats: world.stats }
}
