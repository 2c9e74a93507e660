//! Wire bodies, the table of refusals, and the OpenAPI document.
//!
//! Everything that crosses a socket of Plimsoll has its type here, so that server, agent, client
//! and document cannot disagree. Bodies that callers send refuse unknown fields and are checked by
//! [`parse`], whose errors name the field and its bound; bodies that the service answers with
//! tolerate fields that a newer service may add. The host protocol tolerates both, because a cell
//! and its agents may differ by one version.

mod admin;
mod agent;
mod edit;
mod explain;
mod host;
mod input;
mod openapi;
mod page;
mod plan;
mod policy;
mod pool;
mod problem;
mod quota;
mod reservation;
mod routes;
mod sandbox;
mod schema;
mod secret;
mod time;
mod webhook;

pub use admin::{
    DecisionQuery, DecisionView, HostStatus, HostView, ReplicaRole, Status, StatusCounts,
};
pub use agent::{
    EndGuest, EnrolHost, GuestExec, RegisterAnswer, RegisterHost, check_command, outcome_status,
};
pub use edit::Patch;
pub use explain::{CheckLine, ExplainRequest, Explanation, HostLine, Verdict};
pub use host::{Ended, Guest, Heartbeat, HeartbeatDefaults};
pub use input::{
    Body, FieldError, IDEMPOTENCY_KEY_HEADER, TENANT_HEADER, check_idempotency_key, parse,
    parse_or_default,
};
pub use openapi::document;
pub use page::{ListQuery, LogsQuery, PAGE_LIMIT_DEFAULT, Page, Pairs, WaitQuery};
pub use plan::{
    BurstLimit, ConcurrencyLimits, ConcurrencyPatch, ConsumptionLimits, ConsumptionPatch,
    CreateKey, CreateTenant, Key, Limit, Limits, LimitsPatch, NewKey, Plan, RateLimits, RatePatch,
    Role, Tenant, TenantPatch,
};
pub use policy::{
    DSSE_PAYLOAD_TYPE, Envelope, EnvelopeSignature, POLICY_PAYLOAD_BYTES_MAX, PolicySnapshot,
    PolicyView, dsse_pre_authentication,
};
pub use pool::{Pool, PoolPatch, Template, TemplatePatch};
pub use problem::{
    Acts, DECISION_HEADER, PROBLEM_CONTENT_TYPE, Problem, ProblemCode, Refusal, RetryKind, refusal,
    retry_after_seconds,
};
pub use quota::{
    BurstUsage, ConcurrencyUsage, Consumer, ConsumptionUsage, QuotaState, QuotaView, TokensLeft,
    UsageGroup, UsageQuery, UsageRow, UsedOf,
};
pub use reservation::{
    CommitReservation, DryRun, RenewReservation, Reservation, ReservationBatch, ReservationState,
    Reservations, ReserveMode, ReserveRequest,
};
pub use routes::{
    Access, AnswerBody, Kind, Method, Parameter, ROUTES, RequestBody, Route, Service,
};
pub use sandbox::{
    CreateSandbox, Env, ExecRequest, ExecResponse, ForkSandbox, ListSandboxes, PatchSandbox,
    Sandbox, SandboxLogs,
};
pub use secret::Secret;
pub use time::{Time, TimeError};
pub use webhook::{
    CreateEndpoint, Delivery, DeliveryState, Endpoint, EndpointPatch, Event, EventQuery, EventType,
    NewEndpoint, PatchedEndpoint,
};
