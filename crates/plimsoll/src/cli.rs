//! The command line: which commands there are.

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::bench::Bench;
use crate::client::{
    create, decisions, events, explain, fleet, policy, quota, reservations, sandboxes, shapes,
    tenants, webhooks,
};
use crate::demo::Demo;
use crate::failure::Failure;
use crate::server::{agent, cell, up};
use crate::sim::Sim;

/// The load line for sandbox fleets: says whether a sandbox may be created, and where.
///
/// Settings come from flags, then from PLIMSOLL_* variables, then from plimsoll.toml (one table
/// for each command, keys named as the flags). Data goes to the output, talk to the error stream.
/// Exit codes: 0 done, 1 refused for good, 2 usage, 75 refused for now.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// Which command.
    #[command(subcommand)]
    pub(crate) command: Action,
    /// File with settings [default: plimsoll.toml, where it exists]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global")]
    pub(crate) config: Option<std::path::PathBuf>,
    /// How to log.
    #[command(flatten)]
    pub(crate) log: Log,
}

/// How to log, to the error stream.
#[derive(Args, Debug)]
pub(crate) struct Log {
    /// What to log, such as `info` or `plimsoll_cell=debug` [default: info for servers, else warn]
    #[arg(long, global = true, value_name = "FILTER", help_heading = "Global")]
    pub(crate) log: Option<String>,
    /// Form of the log
    #[arg(long, global = true, value_enum, default_value = "text", help_heading = "Global")]
    pub(crate) log_format: LogFormat,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line of text for each entry.
    Text,
    /// One JSON object for each entry.
    Json,
}

impl Log {
    /// Starts to log; servers log more by themselves than clients.
    ///
    /// # Errors
    /// When the filter is malformed.
    pub(crate) fn start(&self, action: &Action) -> Result<(), Failure> {
        let serves = matches!(action, Action::Up(_) | Action::Cell(_) | Action::Agent(_));
        let text = self.log.as_deref().unwrap_or(if serves { "info" } else { "warn" });
        let filter = EnvFilter::try_new(text)
            .map_err(|error| Failure::usage(format!("--log {text:?}: {error}")))?;
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => log.with_ansi(false).init(),
            LogFormat::Json => log.json().init(),
        }
        Ok(())
    }
}

macro_rules! actions {
    ($($(#[$doc:meta])* $variant:ident($args:ty),)*) => {
        /// One command.
        #[derive(Debug, Subcommand)]
        pub(crate) enum Action {
            $($(#[$doc])* $variant($args),)*
        }

        impl Action {
            /// Carries the command out.
            ///
            /// # Errors
            /// When it is not done.
            pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
                match self {
                    $(Self::$variant(args) => args.run().await,)*
                }
            }
        }
    };
}

actions! {
    /// Run a cell and an agent on this machine
    Up(Box<up::Up>),
    /// Run a cell: the API, the engine and the store
    Cell(cell::CellCommand),
    /// Run a host's agent: its gate, drivers and heartbeats
    Agent(Box<agent::AgentCommand>),
    /// Show the load line at work on this machine, with real guests, in under two minutes
    Demo(Demo),
    /// Run the real engine in virtual time: under faults, or to size a pool
    Sim(Sim),
    /// Measure a cell on this machine
    Bench(Bench),
    /// Create a sandbox, waiting for room; prints its id
    Create(create::Create),
    /// List sandboxes
    Ls(sandboxes::Ls),
    /// Show one sandbox
    Show(sandboxes::Show),
    /// Run a command in a sandbox, waking it first; exits with the command's own code
    Exec(sandboxes::Exec),
    /// What a sandbox's own command has written lately
    Logs(sandboxes::Logs),
    /// Pause a sandbox
    Pause(sandboxes::Pause),
    /// Resume a paused sandbox
    Resume(sandboxes::Resume),
    /// End a sandbox's process and keep its record, slot and disk
    Stop(sandboxes::Stop),
    /// Start a stopped sandbox
    Start(sandboxes::Start),
    /// Wait until a sandbox has reached a state
    Wait(sandboxes::Wait),
    /// Make a new sandbox from another's checkpoint; prints its id
    Fork(create::Fork),
    /// Terminate sandboxes
    Rm(sandboxes::Rm),
    /// Reserve room for a guest that an orchestrator of your own starts
    Reserve(reservations::Reserve),
    /// Say that the guest of a reservation exists
    Commit(reservations::Commit),
    /// Hold a reservation for longer
    Renew(reservations::Renew),
    /// Give a reservation back
    Release(reservations::Release),
    /// What a request would come to now, check by check and host by host, changing nothing
    Explain(explain::Explain),
    /// Limits and what is used of them
    Quota(quota::Quota),
    /// Metered use
    Usage(quota::Usage),
    /// Events, oldest first
    Events(events::Events),
    /// Webhook endpoints: list, add, show, set, rotate, test, deliveries, rm
    Webhooks(webhooks::Webhooks),
    /// Hosts as the cell sees them
    Hosts(fleet::Hosts),
    /// Place nothing new on a host
    Drain(fleet::Drain),
    /// Take a host back in
    Undrain(fleet::Undrain),
    /// How the cell is
    Status(fleet::Status),
    /// The decision log, newest first, or one decision
    Decisions(decisions::Decisions),
    /// Pools: list, show, create, set, rm
    Pools(shapes::Pools),
    /// Templates: list, show, create, set, rm
    Templates(shapes::Templates),
    /// Plans: list, show, create, set, rm
    Plans(tenants::Plans),
    /// Tenants: list, show, create, set, rm
    Tenants(tenants::Tenants),
    /// Keys: list, create, rm
    Keys(tenants::Keys),
    /// Policy snapshots: what is held, or put one
    Policy(policy::Policy),
}
