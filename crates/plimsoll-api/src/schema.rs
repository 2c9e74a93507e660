//! Schemas of the vocabulary's types, for the OpenAPI document only.
//!
//! `plimsoll-types` is `no_std` and knows nothing of documents. Fields of its types point here
//! with `#[schema(value_type = ...)]`. Words are listed from the very `ALL` that the types parse
//! by; mirrored structs are held against what the types write by a test.
#![allow(dead_code, reason = "mirrors exist for their derived schemas alone")]

use std::borrow::Cow;

use plimsoll_types as types;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

fn words_of(words: impl IntoIterator<Item = &'static str>) -> RefOr<Schema> {
    let words: Vec<&'static str> = words.into_iter().collect();
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).into()
}

macro_rules! words {
    ($($name:ident),* $(,)?) => {
        $(
            pub(crate) struct $name;

            impl PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    words_of(types::$name::ALL.iter().map(|word| word.as_str()))
                }
            }

            impl ToSchema for $name {
                fn name() -> Cow<'static, str> {
                    Cow::Borrowed(stringify!($name))
                }
            }
        )*
    };
}

words!(
    SandboxStatus,
    GuestStatus,
    Criticality,
    OnFull,
    Regime,
    PauseKind,
    Placement,
    PreemptionMode,
    PolicyMode,
    Driver,
    RefusalCode,
);

/// The codes of problems: refusals and the few beside them.
pub(crate) struct ProblemCodes;

impl PartialSchema for ProblemCodes {
    fn schema() -> RefOr<Schema> {
        let refusals = types::RefusalCode::ALL.iter().map(|code| code.as_str());
        words_of(refusals.chain(["wait_timeout", "method_not_allowed", "internal"]))
    }
}

impl ToSchema for ProblemCodes {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("ProblemCode")
    }
}

/// The types of events.
pub(crate) struct EventTypes;

impl PartialSchema for EventTypes {
    fn schema() -> RefOr<Schema> {
        let all = crate::webhook::EventType::ALL;
        let about = all.iter().map(|event| format!("- `{event}`: {}", event.about()));
        let words: Vec<&str> = all.iter().map(|event| event.as_str()).collect();
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some(about.collect::<Vec<_>>().join("\n")))
            .enum_values(Some(words))
            .into()
    }
}

impl ToSchema for EventTypes {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("EventType")
    }
}

impl PartialSchema for crate::time::Time {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(utoipa::openapi::KnownFormat::DateTime)))
            .into()
    }
}

impl ToSchema for crate::time::Time {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Time")
    }
}

/// How many hosts fell to each filter, over all eligible pools.
#[derive(ToSchema, serde::Serialize, Default)]
pub(crate) struct FilterCounts {
    /// Hosts looked at.
    hosts: u32,
    /// Hosts that would take the request.
    candidates: u32,
    driver: u32,
    labels: u32,
    dead: u32,
    stale: u32,
    unknown: u32,
    draining: u32,
    pressure: u32,
    set_aside: u32,
    tried: u32,
    held: u32,
    starts_saturated: u32,
    full: u32,
    stateful_full: u32,
    cpu_ratio: u32,
    counted: u32,
}

/// How much of a guest's configured memory is charged before it is measured.
#[derive(ToSchema, serde::Serialize, Default)]
pub(crate) struct ReserveRule {
    /// Never less than this; no guest is charged above its configured memory.
    floor_mib: u64,
    /// Share of the configured memory in basis points, rounded up.
    fraction_bp: u64,
    /// How long an admission holds before its guest must exist.
    ttl_seconds: u64,
}

/// Whom a pool may pause for a waiter, and when.
#[derive(ToSchema)]
pub(crate) struct Preemption {
    /// `off`, `idle` or `lru`.
    mode: PreemptionMode,
    /// Mode idle: no activity for this long.
    idle_seconds: u64,
    /// Mode lru: never a guest that ran less than this.
    min_run_seconds: u64,
}

/// Lifecycle limits in seconds: absent takes the operator's default, -1 is off, else at least 60.
#[derive(ToSchema, serde::Serialize, Default)]
pub(crate) struct Lifecycle {
    /// Pause after this long without activity.
    idle_timeout_seconds: Option<i64>,
    /// Pause after running this long without a break.
    max_run_seconds: Option<i64>,
    /// Delete after staying paused or stopped this long.
    max_paused_seconds: Option<i64>,
    /// Delete after this long, whatever the state.
    ttl_seconds: Option<i64>,
}

/// The order of commands to one host.
#[derive(ToSchema, serde::Serialize, Default)]
pub(crate) struct Fence {
    /// The leader's epoch.
    epoch: u64,
    /// The command's number on this host.
    number: u64,
}

/// One fenced command to a host; which members stand beside `op` depends on it.
#[derive(ToSchema)]
pub(crate) struct HostCommand {
    fence: Fence,
    /// Not to be begun once the host's uptime has passed this.
    deadline_uptime_millis: Option<u64>,
    /// `start`, `pause`, `resume`, `stop` or `end`.
    op: String,
    /// For `start`: all that the host needs to know.
    #[schema(value_type = Option<Object>)]
    guest: Option<()>,
    /// For all but `start`: which guest.
    id: Option<String>,
    /// For all but `start`: which attempt.
    attempt: Option<u32>,
    /// For `pause`: `keep` or `checkpoint`.
    kind: Option<PauseKind>,
}

/// How a command to a host came out; which members stand beside `outcome` depends on it.
#[derive(ToSchema)]
pub(crate) struct HostOutcome {
    /// `done`, `refused`, `failed`, `fenced` or `unknown`.
    outcome: String,
    /// For `refused`: which no.
    code: Option<RefusalCode>,
    /// For people.
    detail: Option<String>,
    /// For `fenced`: the highest that the host has acted on.
    highest: Option<Fence>,
}

/// A reservation that a host is told of.
#[derive(ToSchema)]
pub(crate) struct HostReservation {
    id: String,
    memory_mib: u64,
    stateful: bool,
    cgroup: Option<String>,
}

/// What the cell answers to a heartbeat.
#[derive(ToSchema)]
pub(crate) struct HeartbeatAnswer {
    /// Whether the report was taken.
    accepted: bool,
    /// Guests that the host should not have, as `id` or `id.attempt`.
    unexpected_guests: Vec<String>,
    /// Committed reservations on this host.
    reservations: Vec<HostReservation>,
    /// The pool's regime.
    regime: Option<Regime>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    fn keys(value: &impl serde::Serialize) -> BTreeSet<String> {
        match serde_json::to_value(value).unwrap() {
            Value::Object(members) => members.keys().cloned().collect(),
            other => panic!("no object: {other}"),
        }
    }

    #[test]
    fn mirrors_have_the_members_of_what_they_mirror() {
        assert_eq!(keys(&FilterCounts::default()), keys(&types::FilterCounts::default()));
        assert_eq!(keys(&ReserveRule::default()), keys(&types::ReserveRule::default()));
        assert_eq!(keys(&Lifecycle::default()), keys(&types::Lifecycle::default()));
        assert_eq!(keys(&Fence::default()), keys(&types::Fence::default()));
        let preemption: BTreeSet<String> =
            ["mode", "idle_seconds", "min_run_seconds"].map(String::from).into();
        assert_eq!(keys(&types::Preemption::default()), preemption);
        let answer: BTreeSet<String> =
            ["accepted", "unexpected_guests", "reservations", "regime"].map(String::from).into();
        assert_eq!(keys(&types::HeartbeatAnswer::default()), answer);
    }
}
