//! Ids, units, requests, verdicts, refusal reasons and states: the vocabulary of Plimsoll.
//!
//! This crate is `no_std`: it cannot read a clock, open a socket or draw randomness. Everything
//! above it speaks in these words, so that a host id is never taken for a tenant id and MiB never
//! for MB.
#![no_std]

extern crate alloc;

mod host;
mod ids;
mod limits;
mod refusal;
mod state;
mod time;
mod units;
mod verdict;

pub use host::{
    ClaimId, Counted, EndedGuest, Fence, GuestReport, GuestSpec, HOST_PROTOCOL_VERSION,
    HeartbeatAnswer, HostCommand, HostOp, HostOutcome, HostReport, HostReservation,
};
pub use ids::{
    DecisionId, EndpointId, EventId, HostId, IdError, KeyId, NameError, PlanId, PoolName,
    ReservationId, SandboxId, TemplateName, TenantId,
};
pub use limits::bounds;
pub use refusal::{RefusalCode, RetryHint};
pub use state::{
    Criticality, Driver, DriverSet, GuestStatus, Lifecycle, OnFull, PauseKind, Placement,
    PolicyMode, Preemption, PreemptionMode, Regime, ReserveRule, SandboxStatus,
};
pub use time::{Millis, Timestamp};
pub use units::{BasisPoints, Mib, MilliCpu, Vcpus};
pub use verdict::{FilterCounts, Filtered, HostFilter};
