//! Commands about sandboxes that exist.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use plimsoll_api::{Body as _, ExecRequest, ListSandboxes, LogsQuery, Sandbox, WaitQuery};
use plimsoll_client::{Client, Waited};
use plimsoll_types::{PoolName, SandboxId, SandboxStatus, bounds};

use super::{Rows, pair};
use crate::connect::{As, Connect, Patience};
use crate::failure::Failure;
use crate::show::{self, Table, opt, yes};

/// Exit code of a command whose time ran out, as `timeout(1)` has it.
const TIMED_OUT: u8 = 124;
/// A wait for a state asks anew this often: what turned back on the way is noticed then.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// What is added to a signal's number for an exit code, as shells do.
const SIGNALLED: i32 = 128;

/// Lists sandboxes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Ls {
    /// Only these states, such as running or queued; may be given more than once [default: all
    /// that have not ended]
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    status: Vec<SandboxStatus>,
    /// Those that have ended, too
    #[arg(long)]
    all: bool,
    /// Only this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<PoolName>,
    /// Only those with all of these labels; may be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    connect: Connect,
}

impl Ls {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.connect.client(As::Viewer, Patience::Answers)?;
        let statuses = if self.status.is_empty() && !self.all {
            SandboxStatus::ALL.iter().copied().filter(|status| !status.is_terminal()).collect()
        } else {
            self.status
        };
        let filter = ListSandboxes {
            statuses,
            pool: self.pool,
            labels: self.label,
            tenant: self.connect.tenant.clone(),
            ..ListSandboxes::default()
        };
        let query = |page| ListSandboxes { page, ..filter.clone() };
        let page = self.rows.collect(async |page| client.sandboxes(&query(page)).await).await?;
        if show::wants_json() {
            show::json(&page)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new(&[
            "id",
            "tenant",
            "template",
            "status",
            "pool",
            "host",
            ">mib",
            ">charged",
            ">resident",
            "age",
            "reason",
        ]);
        for sandbox in &page.items {
            table.row(vec![
                sandbox.id.to_string(),
                sandbox.tenant.to_string(),
                sandbox.template.to_string(),
                sandbox.status.to_string(),
                opt(sandbox.pool.as_ref()),
                opt(sandbox.host.as_ref()),
                sandbox.memory_mib.to_string(),
                sandbox.charge_mib.to_string(),
                opt(sandbox.resident_mib),
                show::ago(sandbox.created_at),
                opt(sandbox.reason.as_ref()),
            ]);
        }
        table.print()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Shows one sandbox.
#[derive(Args, Clone, Debug)]
pub(crate) struct Show {
    /// The sandbox
    #[arg(value_name = "ID")]
    id: SandboxId,
    #[command(flatten)]
    connect: Connect,
}

impl Show {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.connect.client(As::Viewer, Patience::Answers)?;
        print(&client.sandbox(self.id).await?)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn print(sandbox: &Sandbox) -> Result<(), Failure> {
    if show::wants_json() {
        return show::json(sandbox);
    }
    let labels: Vec<String> =
        sandbox.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let resident = opt(sandbox.resident_mib.map(|mib| format!("{mib} MiB")));
    show::facts(&[
        ("id", sandbox.id.to_string()),
        ("tenant", sandbox.tenant.to_string()),
        ("template", sandbox.template.to_string()),
        ("status", sandbox.status.to_string()),
        ("reason", opt(sandbox.reason.as_ref())),
        ("pool", opt(sandbox.pool.as_ref())),
        ("host", opt(sandbox.host.as_ref())),
        ("driver", opt(sandbox.driver)),
        ("memory", format!("{} MiB and {} MiB overhead", sandbox.memory_mib, sandbox.overhead_mib)),
        ("charged", format!("{} MiB", sandbox.charge_mib)),
        ("resident", resident),
        ("measured", yes(sandbox.measured)),
        ("vcpus", sandbox.vcpus.to_string()),
        ("stateful", yes(sandbox.stateful)),
        ("slot released", yes(sandbox.slot_released)),
        ("priority", sandbox.priority.to_string()),
        ("preemptible", yes(sandbox.preemptible)),
        ("criticality", sandbox.criticality.to_string()),
        ("idled", yes(sandbox.idled)),
        ("resume waits since", opt(sandbox.resume_requested_at)),
        ("place in queue", opt(sandbox.queue_position)),
        ("created", sandbox.created_at.to_string()),
        ("started", opt(sandbox.started_at)),
        ("last active", opt(sandbox.last_active_at)),
        ("ended", opt(sandbox.ended_at)),
        ("exit code", opt(sandbox.exit_code)),
        ("attempt", sandbox.attempt.to_string()),
        ("forked from", opt(sandbox.forked_from)),
        ("labels", labels.join(" ")),
        ("command", sandbox.command.join(" ")),
        ("decision", opt(sandbox.decision_id)),
    ])
}

/// Runs a command in a sandbox.
#[derive(Args, Clone, Debug)]
pub(crate) struct Exec {
    /// The sandbox
    #[arg(value_name = "ID")]
    id: SandboxId,
    /// Seconds after which the command is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout_seconds: u64,
    #[command(flatten)]
    connect: Connect,
    /// Command and arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let body = ExecRequest { command: self.command, timeout_seconds: self.timeout_seconds };
        body.validate()?;
        let client = self.connect.client(As::Tenant, Patience::Waits)?;
        let done = client.exec(self.id, &body).await?;
        if show::wants_json() {
            show::json(&done)?;
            return Ok(ExitCode::SUCCESS);
        }
        show::out(&done.stdout)?;
        // Nobody need read the error stream.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), done.stderr.as_bytes());
        if done.truncated {
            show::say("the output was cut off at its bound");
        }
        if done.timed_out {
            show::say(&format!("the command was ended after {} s", self.timeout_seconds));
        }
        Ok(ExitCode::from(exit_code(done.exit_code)))
    }
}

/// Shows what a sandbox's own command has written, the newest of it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Logs {
    /// The sandbox
    #[arg(value_name = "ID")]
    id: SandboxId,
    /// Most bytes, at most 524288
    #[arg(long, value_name = "BYTES", default_value_t = LogsQuery::default().bytes)]
    bytes: usize,
    #[command(flatten)]
    connect: Connect,
}

impl Logs {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let query = LogsQuery { bytes: self.bytes };
        LogsQuery::from_pairs(&query.to_pairs())?;
        let client = self.connect.client(As::Viewer, Patience::Answers)?;
        let logs = client.sandbox_logs(self.id, &query).await?;
        if show::wants_json() {
            show::json(&logs)?;
            return Ok(ExitCode::SUCCESS);
        }
        show::out(&logs.output)?;
        if logs.truncated {
            show::say("there is older output; --bytes shows more");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A guest's exit status as that of this process.
fn exit_code(code: Option<i32>) -> u8 {
    let Some(code) = code else { return TIMED_OUT };
    let code = if code < 0 { SIGNALLED.saturating_sub(code) } else { code };
    u8::try_from(code).unwrap_or(u8::MAX)
}

macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident => $call:ident, $patience:ident, $there:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Args, Clone, Debug)]
            pub(crate) struct $name {
                /// The sandbox
                #[arg(value_name = "ID")]
                id: SandboxId,
                /// Answer at once, and do not wait until it is there; so does --deadline 0
                #[arg(long)]
                no_wait: bool,
                #[command(flatten)]
                connect: Connect,
            }

            impl $name {
                pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
                    let client = self.connect.client(As::Tenant, Patience::$patience)?;
                    let patience = self.connect.patience().filter(|_| !self.no_wait);
                    let sandbox = client.$call(self.id).await?;
                    match patience {
                        Some(patience) => {
                            reach(&client, sandbox, SandboxStatus::$there, patience).await
                        }
                        None => stands(&sandbox),
                    }
                }
            }
        )*
    };
}

verbs! {
    /// Pauses a sandbox, and waits until it is paused.
    Pause => pause_sandbox, Answers, Paused;
    /// Resumes a sandbox, and waits until it runs.
    Resume => resume_sandbox, Waits, Running;
    /// Stops a sandbox.
    Stop => stop_sandbox, Answers, Stopped;
    /// Starts a stopped sandbox, and waits until it runs.
    Start => start_sandbox, Waits, Running;
}

/// Waits until a sandbox is where a call sent it, and tells where it stands.
async fn reach(
    client: &Client,
    mut sandbox: Sandbox,
    there: SandboxStatus,
    patience: Duration,
) -> Result<ExitCode, Failure> {
    let until = Instant::now() + patience;
    let mut said = None;
    while sandbox.status != there {
        let what = format!("it is {} and not {there}", sandbox.status);
        let left = until.saturating_duration_since(Instant::now());
        if !on_its_way(&sandbox) || left.is_zero() {
            stands(&sandbox)?;
            return Err(if on_its_way(&sandbox) {
                Failure::not_now(what).hint("`plimsoll wait` waits on; it keeps its place")
            } else {
                Failure::refused(what)
            });
        }
        if said != sandbox.reason {
            said.clone_from(&sandbox.reason);
            show::say(&format!("waiting, {}", show::clean(&opt(said.as_ref()))));
        }
        // The cell takes whole seconds, at least one.
        let timeout_seconds = left.min(LOOK_INTERVAL).as_secs().max(1);
        let query = WaitQuery { status: there, timeout_seconds };
        sandbox = match client.wait_sandbox(sandbox.id, &query).await? {
            Waited::Reached(sandbox) | Waited::NotYet(sandbox) => *sandbox,
        };
    }
    stands(&sandbox)
}

/// Whether a sandbox goes somewhere by itself.
fn on_its_way(sandbox: &Sandbox) -> bool {
    match sandbox.status {
        SandboxStatus::Provisioning
        | SandboxStatus::Queued
        | SandboxStatus::Pausing
        | SandboxStatus::Resuming => true,
        SandboxStatus::Paused | SandboxStatus::Stopped => sandbox.resume_requested_at.is_some(),
        SandboxStatus::Running
        | SandboxStatus::Terminating
        | SandboxStatus::Terminated
        | SandboxStatus::Failed => false,
    }
}

/// Tells where a sandbox stands after a call.
fn stands(sandbox: &Sandbox) -> Result<ExitCode, Failure> {
    if show::wants_json() {
        show::json(sandbox)?;
    } else {
        let reason = sandbox.reason.as_ref().map(|reason| format!(" ({reason})"));
        show::out(&format!("{} {}{}\n", sandbox.id, sandbox.status, show::clean(&opt(reason))))?;
        if sandbox.resume_requested_at.is_some() {
            show::say(
                "its resume waits for room and keeps its place; `plimsoll wait` waits for it",
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for a state.
#[derive(Args, Clone, Debug)]
pub(crate) struct Wait {
    /// The sandbox
    #[arg(value_name = "ID")]
    id: SandboxId,
    /// The state
    #[arg(long, value_name = "STATUS", default_value_t = SandboxStatus::Running)]
    status: SandboxStatus,
    /// Seconds to wait, at most 600
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout_seconds: u64,
    #[command(flatten)]
    connect: Connect,
}

impl Wait {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        if self.timeout_seconds > bounds::WAIT_SECONDS_MAX {
            let most = bounds::WAIT_SECONDS_MAX;
            return Err(Failure::usage(format!("--timeout-seconds is above {most}")));
        }
        let client = self.connect.client(As::Viewer, Patience::Waits)?;
        let query = WaitQuery { status: self.status, timeout_seconds: self.timeout_seconds };
        match client.wait_sandbox(self.id, &query).await? {
            Waited::Reached(sandbox) => stands(&sandbox),
            Waited::NotYet(sandbox) => {
                stands(&sandbox)?;
                let what = format!("it is {} and not {}", sandbox.status, self.status);
                Err(if sandbox.status.is_terminal() {
                    Failure::refused(what).hint("it has ended and will not get there")
                } else {
                    Failure::not_now(what).hint("wait again: --timeout-seconds up to 600")
                })
            }
        }
    }
}

/// Terminates sandboxes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Rm {
    /// The sandboxes
    #[arg(value_name = "ID", required = true)]
    ids: Vec<SandboxId>,
    #[command(flatten)]
    connect: Connect,
}

impl Rm {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.connect.client(As::Tenant, Patience::Answers)?;
        let mut ended = Vec::new();
        for id in self.ids {
            let sandbox = client.delete_sandbox(id).await?;
            if show::wants_json() {
                ended.push(sandbox);
            } else {
                stands(&sandbox)?;
            }
        }
        if show::wants_json() {
            show::json(&serde_json::json!({ "items": ended }))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_exit_is_told_as_a_shell_would() {
        let cases = [(Some(0), 0), (Some(7), 7), (Some(-9), 137), (None, 124), (Some(300), 255)];
        for (code, expected) in cases {
            assert_eq!(exit_code(code), expected, "{code:?}");
        }
    }
}
