//! `create` and `fork`.

use std::process::ExitCode;

use clap::Args;
use plimsoll_api::{Body as _, CreateSandbox, Env, ForkSandbox, Sandbox};
use plimsoll_client::CreateOptions;
use plimsoll_types::{
    Criticality, Lifecycle, OnFull, PoolName, SandboxId, SandboxStatus, TemplateName,
};

use super::pair;
use crate::connect::{As, Connect, Patience};
use crate::failure::Failure;
use crate::show;

/// What kind of sandbox, as `create` and `explain` take it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Shape {
    /// The template
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<TemplateName>,
    /// Configured memory in MiB [default: the template's]
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mib: Option<u64>,
    /// Virtual CPUs [default: the template's]
    #[arg(long, value_name = "N")]
    pub(crate) vcpus: Option<u64>,
    /// Whether its state must never be lost: it is then charged in full [default: the template's]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) stateful: Option<bool>,
    /// The pool [default: the template's, or the cell's]
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<PoolName>,
    /// Priority from -1000 to 1000; higher is served first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// Whether it may be paused to make room
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) preemptible: bool,
    /// How much it matters when the fleet must shed: critical, standard or sheddable
    #[arg(long, value_name = "WORD", default_value_t = Criticality::Standard)]
    pub(crate) criticality: Criticality,
    /// What to do where there is no room: reject or queue
    #[arg(long, value_name = "WORD", default_value_t = OnFull::Reject)]
    pub(crate) on_full: OnFull,
    /// Seconds that the cell itself may wait for room before it answers
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) wait_seconds: u64,
    /// Labels, for its owner; may be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) label: Vec<(String, String)>,
    /// Variables of its environment, added to the template's; may be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Pause after so many seconds without activity, at least 60; -1 is never [default: the pool's]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) idle_timeout_seconds: Option<i64>,
    /// Pause after running for so many seconds, at least 60; -1 is never [default: the pool's]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) max_run_seconds: Option<i64>,
    /// Delete after so many seconds paused or stopped, at least 60; -1 is never [default: the
    /// pool's]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) max_paused_seconds: Option<i64>,
    /// Delete after so many seconds whatever its state, at least 60; -1 is never [default: the
    /// pool's]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) ttl_seconds: Option<i64>,
    /// Command and arguments [default: the template's]
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

impl Shape {
    /// The body of a create, checked; `None` without a template.
    ///
    /// # Errors
    /// Names the field that is out of its bound.
    pub(crate) fn body(self) -> Result<Option<CreateSandbox>, Failure> {
        let Some(template) = self.template else { return Ok(None) };
        let body = CreateSandbox {
            template,
            memory_mib: self.memory_mib,
            vcpus: self.vcpus,
            stateful: self.stateful,
            command: self.command,
            env: Env(self.env.into_iter().collect()),
            labels: self.label.into_iter().collect(),
            pool: self.pool,
            priority: self.priority,
            preemptible: self.preemptible,
            criticality: self.criticality,
            on_full: self.on_full,
            wait_seconds: self.wait_seconds,
            lifecycle: Lifecycle {
                idle_timeout_seconds: self.idle_timeout_seconds,
                max_run_seconds: self.max_run_seconds,
                max_paused_seconds: self.max_paused_seconds,
                ttl_seconds: self.ttl_seconds,
            },
        };
        body.validate()?;
        Ok(Some(body))
    }
}

/// How the answer is wanted.
#[derive(Args, Clone, Debug)]
pub(crate) struct Answer {
    /// Answer at once with a sandbox that is still starting
    #[arg(long = "async")]
    pub(crate) run_async: bool,
    /// Key that makes repeats of this very call safe [default: made anew, and used for all
    /// attempts of this call]
    #[arg(long, value_name = "TEXT")]
    pub(crate) idempotency_key: Option<String>,
}

impl Answer {
    fn options(self) -> CreateOptions {
        CreateOptions { idempotency_key: self.idempotency_key, run_async: self.run_async }
    }
}

/// Creates a sandbox.
#[derive(Args, Clone, Debug)]
pub(crate) struct Create {
    #[command(flatten)]
    pub(crate) shape: Shape,
    #[command(flatten)]
    pub(crate) answer: Answer,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

impl Create {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let Some(body) = self.shape.body()? else {
            return Err(Failure::usage("--template is missing")
                .hint("`plimsoll templates` lists those that exist"));
        };
        let client = self.connect.client(As::Tenant, Patience::Waits)?;
        tell(&client.create_sandbox(&body, &self.answer.options()).await?)
    }
}

/// Makes a new sandbox from another's checkpoint.
#[derive(Args, Clone, Debug)]
pub(crate) struct Fork {
    /// The sandbox to fork
    #[arg(value_name = "ID")]
    id: SandboxId,
    /// Labels; may be given more than once [default: the parent's]
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// Priority from -1000 to 1000 [default: the parent's]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// What to do where there is no room: reject or queue
    #[arg(long, value_name = "WORD", default_value_t = OnFull::Reject)]
    on_full: OnFull,
    /// Seconds that the cell itself may wait for room before it answers
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait_seconds: u64,
    #[command(flatten)]
    answer: Answer,
    #[command(flatten)]
    connect: Connect,
}

impl Fork {
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let body = ForkSandbox {
            labels: (!self.label.is_empty()).then(|| self.label.into_iter().collect()),
            priority: self.priority,
            on_full: Some(self.on_full),
            wait_seconds: self.wait_seconds,
        };
        body.validate()?;
        let client = self.connect.client(As::Tenant, Patience::Waits)?;
        tell(&client.fork_sandbox(self.id, &body, &self.answer.options()).await?)
    }
}

/// Writes the new sandbox's id, and says where it stands.
fn tell(sandbox: &Sandbox) -> Result<ExitCode, Failure> {
    if show::wants_json() {
        show::json(sandbox)?;
    } else {
        show::out(&format!("{}\n", sandbox.id))?;
        let mut text = sandbox.status.to_string();
        if let Some(pool) = &sandbox.pool {
            text.push_str(&format!(" in pool {pool}"));
        }
        if let Some(place) = sandbox.queue_position {
            text.push_str(&format!(", place {place} in the queue"));
        }
        text.push_str(&format!(
            ": {} MiB configured, {} MiB charged",
            sandbox.memory_mib, sandbox.charge_mib
        ));
        if let Some(reason) = &sandbox.reason {
            text.push_str(&format!(" ({reason})"));
        }
        show::say(&text);
    }
    if sandbox.status == SandboxStatus::Failed {
        return Err(Failure::refused("the sandbox failed"));
    }
    Ok(ExitCode::SUCCESS)
}
