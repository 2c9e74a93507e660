//! Routes of the agent of each host.

use super::Access::Secret;
use super::AnswerBody::{One, Text};
use super::Kind::{Command, Read};
use super::Method::{Delete, Get, Post};
use super::build::{OUTPUT_BYTES, parameter, route};
use super::{Route, Service};

/// Routes of the agent of each host.
pub(super) const AGENT: &[Route] = &[
    route(
        Get,
        "/v1/capacity",
        "capacity",
        Secret,
        Read,
        "The host's report, computed now",
        &[(200, One("Heartbeat"))],
    )
    .by(Service::Agent),
    route(
        Post,
        "/v1/guests",
        "start_guest",
        Secret,
        Command,
        "Start a guest",
        &[(200, One("HostOutcome"))],
    )
    .body("HostCommand")
    .by(Service::Agent),
    route(
        Post,
        "/v1/guests/{id}/pause",
        "pause_guest",
        Secret,
        Command,
        "Pause a guest",
        &[(200, One("HostOutcome"))],
    )
    .body("HostCommand")
    .by(Service::Agent),
    route(
        Post,
        "/v1/guests/{id}/resume",
        "resume_guest",
        Secret,
        Command,
        "Let a guest run again",
        &[(200, One("HostOutcome"))],
    )
    .body("HostCommand")
    .by(Service::Agent),
    route(
        Post,
        "/v1/guests/{id}/stop",
        "stop_guest",
        Secret,
        Command,
        "End a guest's process and keep its disk and name",
        &[(200, One("HostOutcome"))],
    )
    .body("HostCommand")
    .by(Service::Agent),
    route(
        Post,
        "/v1/guests/{id}/exec",
        "exec_in_guest",
        Secret,
        Command,
        "Run a command in a guest",
        &[(200, One("ExecResponse"))],
    )
    .body("GuestExec")
    .by(Service::Agent),
    route(
        Get,
        "/v1/guests/{id}/logs",
        "guest_logs",
        Secret,
        Read,
        "The newest of a guest's output",
        &[(200, Text("application/octet-stream"))],
    )
    .query(&[OUTPUT_BYTES])
    .by(Service::Agent),
    route(
        Delete,
        "/v1/guests/{id}",
        "end_guest",
        Secret,
        Command,
        "End a guest, whatever its state",
        &[(200, One("HostOutcome"))],
    )
    .query(&[
        parameter("epoch", "integer", "The leader's epoch.").needed(),
        parameter("number", "integer", "The command's number on this host.").needed(),
        parameter("attempt", "integer", "Every attempt up to this one.").needed(),
        parameter(
            "deadline_uptime_millis",
            "integer",
            "Not to be begun once the host's uptime has passed this.",
        ),
    ])
    .by(Service::Agent),
];
