//! Bodies as the contract writes them, and what is made of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests stop where a test cannot go on")]

mod events;
mod hosts;
mod operators;
mod queries;
mod reservations;
mod sandboxes;

use plimsoll_api::*;
use plimsoll_types::{
    ClaimId, Criticality, Driver, DriverSet, Fence, HostCommand, HostId, HostOp, HostOutcome,
    HostReport, Mib, PlanId, PoolName, RefusalCode, Regime, ReservationId, SandboxId,
    SandboxStatus, TenantId, Timestamp,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn take<T: Body>(body: Value) -> Result<T, FieldError> {
    parse(&serde_json::to_vec(&body).unwrap())
}

fn taken<T: Body>(body: Value) -> T {
    take(body).unwrap()
}

fn about<T: Body + std::fmt::Debug>(body: Value) -> (String, String) {
    let error = take::<T>(body).unwrap_err();
    (error.field, error.bound)
}

/// A copy of `body` with one member set.
fn with(mut body: Value, pointer: &str, value: Value) -> Value {
    *body.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
    body
}

fn sbx(number: u128) -> String {
    SandboxId(number).to_string()
}

/// Whatever is written is read back the same.
fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value, "{text}");
}

#[test]
fn answers_survive_the_wire() {
    survives(&Page::whole(vec![1_u8]));
    survives(&StatusCounts::default());
    survives(&ExecResponse { exit_code: Some(-9), ..ExecResponse::default() });
    let quota: QuotaView = serde_json::from_value(json!({
        "period": "2026-09", "resets_at": "2026-10-01T00:00:00Z", "plan": "default", "state": "ok",
        "concurrency": {
            "sandboxes": {"used": 1, "limit": 10, "burst_limit": 30, "burst_seconds_left": 3600},
            "vcpus": {"used": 1, "limit": null, "burst_limit": null, "burst_seconds_left": null},
            "memory_mib": {"used": 512, "limit": null, "burst_limit": null,
                           "burst_seconds_left": null}
        },
        "consumption": {"cpu_seconds": {"used": 1, "limit": null},
                        "gib_hours": {"used": 0, "limit": 5},
                        "egress_bytes": {"used": 0, "limit": null}},
        "rate": {"creates_per_minute": {"left": 59, "limit": 60}},
        "top_consumers": [{"id": sbx(1), "cpu_seconds": 1, "gib_hours": 0}]
    }))
    .unwrap();
    assert_eq!(quota.rate["creates_per_minute"].left, Some(59));
    survives(&quota);
    let mut problem = Problem::new(RefusalCode::NoCapacity, "d");
    problem.counts = Some(plimsoll_types::FilterCounts::default());
    problem.known = vec!["a".into()];
    survives(&problem);
}
