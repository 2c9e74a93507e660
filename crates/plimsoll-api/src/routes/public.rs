//! Routes for tenants and hosts.

use super::Access::{Host, Tenant};
use super::AnswerBody::{Either, None as Nothing, One, Page};
use super::Kind::{Admit, Read, Wake, Write};
use super::Method::{Delete, Get, Patch, Post};
use super::Route;
use super::build::{
    ASYNC, CURSOR, FROM, LIMIT, OF_TENANT, OUTPUT_BYTES, PAGE, TO, parameter, route,
};

/// Routes for tenants and hosts.
pub(super) const PUBLIC: &[Route] = &[
    // Sandboxes.
    route(
        Post,
        "/v1/sandboxes",
        "create_sandbox",
        Tenant,
        Admit,
        "Create a sandbox: 201, 202 where it is queued, 200 where its key made it before",
        &[(201, One("Sandbox")), (202, One("Sandbox")), (200, One("Sandbox"))],
    )
    .body("CreateSandbox")
    .query(ASYNC)
    .keyed(),
    route(
        Get,
        "/v1/sandboxes",
        "sandboxes",
        Tenant,
        Read,
        "List sandboxes",
        &[(200, Page("Sandbox"))],
    )
    .query(&[
        parameter("status", "string", "Only this state.").repeats(),
        parameter("pool", "string", "Only this pool."),
        parameter("label", "string", "Only with this label, as `key:value`.").repeats(),
        OF_TENANT,
        LIMIT,
        CURSOR,
    ]),
    route(
        Get,
        "/v1/sandboxes/{id}",
        "sandbox",
        Tenant,
        Read,
        "Show a sandbox",
        &[(200, One("Sandbox"))],
    ),
    route(
        Patch,
        "/v1/sandboxes/{id}",
        "patch_sandbox",
        Tenant,
        Write,
        "Change labels, priority, preemptible and lifecycle",
        &[(200, One("Sandbox"))],
    )
    .body("PatchSandbox"),
    route(
        Delete,
        "/v1/sandboxes/{id}",
        "delete_sandbox",
        Tenant,
        Write,
        "Terminate a sandbox; idempotent",
        &[(202, One("Sandbox"))],
    ),
    route(
        Post,
        "/v1/sandboxes/{id}/pause",
        "pause_sandbox",
        Tenant,
        Write,
        "Pause a sandbox: 202 while that is under way",
        &[(200, One("Sandbox")), (202, One("Sandbox"))],
    ),
    route(
        Post,
        "/v1/sandboxes/{id}/resume",
        "resume_sandbox",
        Tenant,
        Wake,
        "Resume a sandbox: 200 once it runs, 202 while it waits for a slot",
        &[(200, One("Sandbox")), (202, One("Sandbox"))],
    ),
    route(
        Post,
        "/v1/sandboxes/{id}/stop",
        "stop_sandbox",
        Tenant,
        Write,
        "End a sandbox's process and keep its record, slot and disk",
        &[(200, One("Sandbox")), (202, One("Sandbox"))],
    ),
    route(
        Post,
        "/v1/sandboxes/{id}/start",
        "start_sandbox",
        Tenant,
        Wake,
        "Start a stopped sandbox",
        &[(200, One("Sandbox")), (202, One("Sandbox"))],
    ),
    route(
        Post,
        "/v1/sandboxes/{id}/keepalive",
        "keepalive_sandbox",
        Tenant,
        Wake,
        "Count as activity, and wake an idled sandbox",
        &[(200, One("Sandbox")), (202, One("Sandbox"))],
    ),
    route(
        Post,
        "/v1/sandboxes/{id}/exec",
        "exec",
        Tenant,
        Wake,
        "Run a command; wakes a paused sandbox and waits up to 60 s for that",
        &[(200, One("ExecResponse"))],
    )
    .body("ExecRequest"),
    route(
        Post,
        "/v1/sandboxes/{id}/fork",
        "fork_sandbox",
        Tenant,
        Admit,
        "Make a sandbox from this one's checkpoint, through the gate and quota of a create",
        &[(201, One("Sandbox")), (202, One("Sandbox")), (200, One("Sandbox"))],
    )
    .optional_body("ForkSandbox")
    .query(ASYNC)
    .keyed(),
    route(
        Get,
        "/v1/sandboxes/{id}/logs",
        "sandbox_logs",
        Tenant,
        Read,
        "The newest of what a sandbox's command has written; 409 where it has no guest, 502 where \
         its host does not answer",
        &[(200, One("SandboxLogs")), (409, One("Problem")), (502, One("Problem"))],
    )
    .query(&[OUTPUT_BYTES]),
    route(
        Get,
        "/v1/sandboxes/{id}/wait",
        "wait_sandbox",
        Tenant,
        Read,
        "Wait for a state: 200 when it is reached, 408 otherwise with the record under `sandbox`",
        &[(200, One("Sandbox")), (408, One("Problem"))],
    )
    .query(&[
        parameter("status", "string", "The state; `running` where absent."),
        parameter("timeout_seconds", "integer", "Longest wait: 0 to 600, 60 where absent."),
    ]),
    // Reservations.
    route(
        Post,
        "/v1/reservations",
        "reserve",
        Tenant,
        Admit,
        "Reserve: 201, 200 where its key holds it already and for a dry run",
        &[(201, One("Reservation")), (200, Either(&["Reservation", "DryRun"]))],
    )
    .body("ReserveRequest"),
    route(
        Post,
        "/v1/reservations/batch",
        "reserve_batch",
        Tenant,
        Admit,
        "Reserve up to 1 000 at once, all or nothing",
        &[(201, One("Reservations")), (200, One("Reservations"))],
    )
    .body("ReservationBatch"),
    route(
        Get,
        "/v1/reservations/{id}",
        "reservation",
        Tenant,
        Read,
        "Show a reservation",
        &[(200, One("Reservation"))],
    ),
    route(
        Post,
        "/v1/reservations/{id}/commit",
        "commit_reservation",
        Tenant,
        Write,
        "Say that its guest exists; idempotent, 409 `reservation_expired` where it lapsed before",
        &[(200, One("Reservation"))],
    )
    .optional_body("CommitReservation"),
    route(
        Post,
        "/v1/reservations/{id}/renew",
        "renew_reservation",
        Tenant,
        Write,
        "Hold it for longer; idempotent",
        &[(200, One("Reservation"))],
    )
    .optional_body("RenewReservation"),
    route(
        Delete,
        "/v1/reservations/{id}",
        "release_reservation",
        Tenant,
        Write,
        "Give it back, in any state; idempotent",
        &[(200, One("Reservation"))],
    ),
    route(
        Post,
        "/v1/explain",
        "explain",
        Tenant,
        Read,
        "The verdict that a create or a reservation would get now, changing nothing",
        &[(200, One("Explanation"))],
    )
    .body("ExplainRequest"),
    // Hosts.
    route(
        Post,
        "/v1/hosts/{host}/register",
        "register_host",
        Host,
        Write,
        "Say that the host's agent has started, and get its incarnation",
        &[(200, One("RegisterAnswer"))],
    )
    .body("RegisterHost"),
    route(
        Post,
        "/v1/hosts/{host}/heartbeat",
        "heartbeat",
        Host,
        Write,
        "Report what the host has and runs",
        &[(200, One("HeartbeatAnswer"))],
    )
    .body("Heartbeat"),
    // Quota, use, events.
    route(
        Get,
        "/v1/quota",
        "quota",
        Tenant,
        Read,
        "Show the tenant's limits and what is used of them",
        &[(200, One("QuotaView"))],
    ),
    route(Get, "/v1/usage", "usage", Tenant, Read, "List metered use", &[(200, Page("UsageRow"))])
        .query(&[
            FROM,
            TO,
            parameter("group_by", "string", "`total` (the default), `day` or `sandbox`."),
            OF_TENANT,
            LIMIT,
            CURSOR,
        ]),
    route(
        Post,
        "/v1/webhooks/endpoints",
        "create_endpoint",
        Tenant,
        Write,
        "Make a webhook endpoint; its secret is shown once",
        &[(201, One("NewEndpoint"))],
    )
    .body("CreateEndpoint")
    .keyed(),
    route(
        Get,
        "/v1/webhooks/endpoints",
        "endpoints",
        Tenant,
        Read,
        "List webhook endpoints",
        &[(200, Page("Endpoint"))],
    )
    .query(PAGE),
    route(
        Get,
        "/v1/webhooks/endpoints/{id}",
        "endpoint",
        Tenant,
        Read,
        "Show a webhook endpoint",
        &[(200, One("Endpoint"))],
    ),
    route(
        Patch,
        "/v1/webhooks/endpoints/{id}",
        "patch_endpoint",
        Tenant,
        Write,
        "Change a webhook endpoint; a new secret is shown once",
        &[(200, One("PatchedEndpoint"))],
    )
    .body("EndpointPatch"),
    route(
        Delete,
        "/v1/webhooks/endpoints/{id}",
        "delete_endpoint",
        Tenant,
        Write,
        "Remove a webhook endpoint",
        &[(204, Nothing)],
    ),
    route(
        Post,
        "/v1/webhooks/endpoints/{id}/test",
        "test_endpoint",
        Tenant,
        Write,
        "Send a test event to a webhook endpoint",
        &[(200, One("Delivery"))],
    ),
    route(
        Get,
        "/v1/webhooks/endpoints/{id}/deliveries",
        "deliveries",
        Tenant,
        Read,
        "List deliveries to a webhook endpoint, newest first",
        &[(200, Page("Delivery"))],
    )
    .query(PAGE),
    route(
        Get,
        "/v1/events",
        "events",
        Tenant,
        Read,
        "List events, oldest first",
        &[(200, Page("Event"))],
    )
    .query(&[
        parameter("after", "string", "Only events after the one of this id."),
        parameter("type", "string", "Only this type.").repeats(),
        LIMIT,
        CURSOR,
    ]),
];
