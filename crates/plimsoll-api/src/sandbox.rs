//! Sandboxes: create, record, change, exec, fork, list.

use std::collections::BTreeMap;
use std::fmt;

use plimsoll_types::{
    Criticality, DecisionId, Driver, HostId, Lifecycle, OnFull, PoolName, SandboxId, SandboxStatus,
    TemplateName, TenantId, bounds,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::input::{
    Body, FieldError, LIFECYCLE_BOUND, check, check_command_words, check_labels, check_opt,
};
use crate::page::{ListQuery, Pairs, push, unknown, word};
use crate::schema;
use crate::time::Time;

/// Environment of a guest. Its values stand in no record, log, decision or error.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct Env(pub BTreeMap<String, String>);

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Env {
    /// Checks number, names and total size.
    pub(crate) fn validate(&self) -> Result<(), FieldError> {
        let Self(env) = self;
        if env.len() > bounds::ENV_MAX {
            let bound = format!("at most {} variables", bounds::ENV_MAX);
            return Err(FieldError::new("env", "too many", bound));
        }
        let mut bytes = 0_usize;
        for (name, value) in env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(FieldError::new("env", "a name", "names without '=' and NUL"));
            }
            if value.contains('\0') {
                return Err(FieldError::new(format!("env.{name}"), "", "a value without NUL"));
            }
            bytes = bytes.saturating_add(name.len()).saturating_add(value.len()).saturating_add(2);
        }
        if bytes > bounds::COMMAND_BYTES_MAX {
            let bound = format!("at most {} bytes in all", bounds::COMMAND_BYTES_MAX);
            return Err(FieldError::new("env", bytes, bound));
        }
        Ok(())
    }
}

/// Checks each lifecycle limit.
pub(crate) fn check_lifecycle(lifecycle: &Lifecycle) -> Result<(), FieldError> {
    let limits = [
        ("idle_timeout_seconds", lifecycle.idle_timeout_seconds),
        ("max_run_seconds", lifecycle.max_run_seconds),
        ("max_paused_seconds", lifecycle.max_paused_seconds),
        ("ttl_seconds", lifecycle.ttl_seconds),
    ];
    for (name, value) in limits {
        if let Some(value) = value.filter(|value| !LIFECYCLE_BOUND.holds((*value).into())) {
            let bound = LIFECYCLE_BOUND.to_string();
            return Err(FieldError::new(format!("lifecycle.{name}"), value, bound));
        }
    }
    Ok(())
}

/// Takes over the limits that `change` states.
pub(crate) fn merge_lifecycle(held: &mut Lifecycle, change: &Lifecycle) {
    *held = Lifecycle {
        idle_timeout_seconds: change.idle_timeout_seconds.or(held.idle_timeout_seconds),
        max_run_seconds: change.max_run_seconds.or(held.max_run_seconds),
        max_paused_seconds: change.max_paused_seconds.or(held.max_paused_seconds),
        ttl_seconds: change.ttl_seconds.or(held.ttl_seconds),
    };
}

/// Body of `POST /v1/sandboxes`. Everything but `template` is optional.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    /// The shape.
    #[schema(value_type = String)]
    pub template: TemplateName,
    /// Configured memory; the template's where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Virtual CPUs; the template's where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u64>,
    /// Whether its state must never be lost; the template's where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stateful: Option<bool>,
    /// Command and arguments; the template's where empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Environment, added to the template's.
    #[serde(default, skip_serializing_if = "env_is_empty")]
    pub env: Env,
    /// Labels of the sandbox, for its owner.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The pool; the default one where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub pool: Option<PoolName>,
    /// Higher is served first.
    #[serde(default)]
    pub priority: i32,
    /// Whether it may be paused to make room.
    #[serde(default = "yes")]
    pub preemptible: bool,
    /// How much it matters when the fleet must shed.
    #[serde(default = "standard")]
    #[schema(value_type = schema::Criticality)]
    pub criticality: Criticality,
    /// What to do where there is no room.
    #[serde(default = "reject")]
    #[schema(value_type = schema::OnFull)]
    pub on_full: OnFull,
    /// How long to wait for room before answering.
    #[serde(default)]
    pub wait_seconds: u64,
    /// Lifecycle limits.
    #[serde(default)]
    #[schema(value_type = schema::Lifecycle)]
    pub lifecycle: Lifecycle,
}

fn env_is_empty(env: &Env) -> bool {
    env.0.is_empty()
}

pub(crate) const fn yes() -> bool {
    true
}

pub(crate) const fn standard() -> Criticality {
    Criticality::Standard
}

const fn reject() -> OnFull {
    OnFull::Reject
}

impl CreateSandbox {
    /// A create of a template with every default.
    #[must_use]
    pub fn new(template: TemplateName) -> Self {
        Self {
            template,
            memory_mib: None,
            vcpus: None,
            stateful: None,
            command: Vec::new(),
            env: Env::default(),
            labels: BTreeMap::new(),
            pool: None,
            priority: 0,
            preemptible: true,
            criticality: Criticality::Standard,
            on_full: OnFull::Reject,
            wait_seconds: 0,
            lifecycle: Lifecycle::default(),
        }
    }
}

impl Body for CreateSandbox {
    const OBJECTS: &'static [&'static str] = &["lifecycle"];

    fn validate(&self) -> Result<(), FieldError> {
        check_opt("memory_mib", self.memory_mib)?;
        check_opt("vcpus", self.vcpus)?;
        check_command_words("command", &self.command)?;
        self.env.validate()?;
        check_labels("labels", self.labels.iter())?;
        check("priority", self.priority)?;
        check("wait_seconds", self.wait_seconds)?;
        check_lifecycle(&self.lifecycle)
    }
}

/// The record of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Its id.
    #[schema(value_type = String)]
    pub id: SandboxId,
    /// Who is charged.
    #[schema(value_type = String)]
    pub tenant: TenantId,
    /// Its shape.
    #[schema(value_type = String)]
    pub template: TemplateName,
    /// Where it stands.
    #[schema(value_type = schema::SandboxStatus)]
    pub status: SandboxStatus,
    /// Why it stands there, for people.
    pub reason: Option<String>,
    /// Its pool; `null` while it waits in more than one.
    #[schema(value_type = Option<String>)]
    pub pool: Option<PoolName>,
    /// Its host; `null` where it has none, and to tenants.
    #[schema(value_type = Option<String>)]
    pub host: Option<HostId>,
    /// Configured memory.
    pub memory_mib: u64,
    /// Virtual CPUs.
    pub vcpus: u64,
    /// Whether its state must never be lost.
    pub stateful: bool,
    /// What its host's budget is charged for it now.
    pub charge_mib: u64,
    /// Measured resident memory; `null` before the first measurement.
    pub resident_mib: Option<u64>,
    /// Whether a measurement stands behind the charge.
    pub measured: bool,
    /// Whether it gave its slot back.
    pub slot_released: bool,
    /// Higher is served first.
    pub priority: i32,
    /// Whether it may be paused to make room.
    pub preemptible: bool,
    /// Whether it was paused for being idle or to make room: its next call wakes it.
    pub idled: bool,
    /// Since when its resume waits.
    pub resume_requested_at: Option<Time>,
    /// When it was asked for.
    pub created_at: Time,
    /// When it last came to run.
    pub started_at: Option<Time>,
    /// Its last activity.
    pub last_active_at: Option<Time>,
    /// The decision that admitted or queued it.
    #[schema(value_type = Option<String>)]
    pub decision_id: Option<DecisionId>,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Lifecycle limits as asked for; absent ones are the operator's.
    #[serde(default)]
    #[schema(value_type = schema::Lifecycle)]
    pub lifecycle: Lifecycle,
    /// Command and arguments.
    #[serde(default)]
    pub command: Vec<String>,
    /// What its driver needs on top of the configured memory.
    #[serde(default)]
    pub overhead_mib: u64,
    /// What is done for it where there is no room.
    #[serde(default = "reject")]
    #[schema(value_type = schema::OnFull)]
    pub on_full: OnFull,
    /// What runs it.
    #[serde(default)]
    #[schema(value_type = Option<schema::Driver>)]
    pub driver: Option<Driver>,
    /// How much it matters when the fleet must shed.
    #[serde(default = "standard")]
    #[schema(value_type = schema::Criticality)]
    pub criticality: Criticality,
    /// Which try of starting it this is, from 1; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// How its command ended.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Its place in the queue, from 1, while it or its resume waits.
    #[serde(default)]
    pub queue_position: Option<u64>,
    /// The sandbox that it was forked from.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub forked_from: Option<SandboxId>,
    /// Since when it stands where it stands: for a paused or stopped one, when that was finished.
    #[serde(default)]
    pub status_since: Option<Time>,
    /// When it came to its end; the record stays readable for 24 h after that.
    #[serde(default)]
    pub ended_at: Option<Time>,
}

/// Body of `PATCH /v1/sandboxes/{id}`: what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchSandbox {
    /// All labels anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Higher is served first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Whether it may be paused to make room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
    /// Lifecycle limits to change; an absent one stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Lifecycle>)]
    pub lifecycle: Option<Lifecycle>,
}

impl Body for PatchSandbox {
    const OBJECTS: &'static [&'static str] = &["lifecycle"];

    fn validate(&self) -> Result<(), FieldError> {
        if let Some(labels) = &self.labels {
            check_labels("labels", labels.iter())?;
        }
        check_opt("priority", self.priority)?;
        self.lifecycle.as_ref().map_or(Ok(()), check_lifecycle)
    }
}

/// Body of `POST /v1/sandboxes/{id}/exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Command and arguments; at least the program.
    pub command: Vec<String>,
    /// Longest run before the command is ended.
    #[serde(default = "exec_timeout_seconds")]
    pub timeout_seconds: u64,
}

/// A minute: what an interactive caller waits for.
pub(crate) const fn exec_timeout_seconds() -> u64 {
    60
}

/// Checks a command that must name a program.
pub(crate) fn check_exec(command: &[String], timeout_seconds: u64) -> Result<(), FieldError> {
    if command.is_empty() {
        return Err(FieldError::new("command", "an empty list", "a program and its arguments"));
    }
    check_command_words("command", command)?;
    check("timeout_seconds", timeout_seconds)
}

impl Body for ExecRequest {
    fn validate(&self) -> Result<(), FieldError> {
        check_exec(&self.command, self.timeout_seconds)
    }
}

/// How a command in a guest came out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecResponse {
    /// Its exit status; minus the signal's number where a signal ended it, `null` where time ran
    /// out.
    pub exit_code: Option<i32>,
    /// What it wrote, bytes that are no UTF-8 replaced.
    pub stdout: String,
    /// What it wrote to the error stream.
    pub stderr: String,
    /// Whether it was ended because `timeout_seconds` had passed.
    #[serde(default)]
    pub timed_out: bool,
    /// Whether output beyond the bound was cut off.
    #[serde(default)]
    pub truncated: bool,
}

/// The newest of what a sandbox's own command has written, both streams as they came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxLogs {
    /// The sandbox.
    #[schema(value_type = String)]
    pub id: SandboxId,
    /// The output; bytes that are no UTF-8 are replaced.
    pub output: String,
    /// Whether older output that is still kept was left off.
    #[serde(default)]
    pub truncated: bool,
}

impl SandboxLogs {
    /// The newest `bytes_max` bytes of a tail.
    #[must_use]
    pub fn of(id: SandboxId, tail: &[u8], bytes_max: usize) -> Self {
        let cut = tail.len().saturating_sub(bytes_max);
        let mut newest = tail.get(cut..).unwrap_or_default();
        if cut > 0 {
            // A character that the cut went through is left off whole: three bytes at most.
            let inside = newest.iter().take(3).take_while(|byte| (**byte & 0xc0) == 0x80).count();
            newest = newest.get(inside..).unwrap_or_default();
        }
        Self { id, output: String::from_utf8_lossy(newest).into_owned(), truncated: cut > 0 }
    }
}

/// Body of `POST /v1/sandboxes/{id}/fork`: all optional, the rest is the parent's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSandbox {
    /// Labels; the parent's where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Higher is served first; the parent's where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// What to do where there is no room; `reject` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::OnFull>)]
    pub on_full: Option<OnFull>,
    /// How long to wait for room before answering.
    #[serde(default)]
    pub wait_seconds: u64,
}

impl Body for ForkSandbox {
    fn validate(&self) -> Result<(), FieldError> {
        if let Some(labels) = &self.labels {
            check_labels("labels", labels.iter())?;
        }
        check_opt("priority", self.priority)?;
        check("wait_seconds", self.wait_seconds)
    }
}

/// Query of `GET /v1/sandboxes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListSandboxes {
    /// Which page.
    pub page: ListQuery,
    /// Only these states; all where empty. May be given more than once.
    pub statuses: Vec<SandboxStatus>,
    /// Only this pool.
    pub pool: Option<PoolName>,
    /// Only sandboxes with all of these labels, each `key:value`. May be given more than once.
    pub labels: Vec<(String, String)>,
    /// Only this tenant; operators only.
    pub tenant: Option<TenantId>,
}

impl ListSandboxes {
    /// Reads the query.
    ///
    /// # Errors
    /// Names the parameter that is unknown or out of its bound.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Self, FieldError> {
        let mut query = Self::default();
        for (name, value) in pairs {
            match name.as_str() {
                "status" => query.statuses.push(word("status", value)?),
                "pool" => query.pool = Some(word("pool", value)?),
                "tenant" => query.tenant = Some(word("tenant", value)?),
                "label" => {
                    let (key, value) = value
                        .split_once(':')
                        .ok_or_else(|| FieldError::new("label", value, "key:value"))?;
                    if query.labels.len() == bounds::LABELS_MAX {
                        let bound = format!("at most {} labels", bounds::LABELS_MAX);
                        return Err(FieldError::new("label", "one more", bound));
                    }
                    query.labels.push((key.to_owned(), value.to_owned()));
                }
                _ if query.page.take(name, value)? => {}
                _ => return Err(unknown(name, "status, pool, label, tenant, limit, cursor")),
            }
        }
        Ok(query)
    }

    /// The query as pairs.
    #[must_use]
    pub fn to_pairs(&self) -> Pairs {
        let mut pairs = self.page.to_pairs();
        for status in &self.statuses {
            push(&mut pairs, "status", Some(status));
        }
        push(&mut pairs, "pool", self.pool.as_ref());
        push(&mut pairs, "tenant", self.tenant.as_ref());
        for (key, value) in &self.labels {
            push(&mut pairs, "label", Some(format_args!("{key}:{value}")));
        }
        pairs
    }
}
