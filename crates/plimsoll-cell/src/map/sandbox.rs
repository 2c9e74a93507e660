//! Sandboxes and reservations.

use std::sync::Arc;

use plimsoll_api as api;
use plimsoll_engine::rows::{ReservationRow, ReservationState, SandboxRow};
use plimsoll_engine::{
    CreateSandbox, Explanation, ForkSandbox, PatchSandbox, ReserveItem, ReserveMode,
};
use plimsoll_types::{DecisionId, Mib, OnFull, ReservationId, RetryHint, SandboxId, Vcpus};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// A fingerprint of a parsed body, the same for every way to write it and over restarts: rows keep
/// it to tell a repeated request from another one under the same key.
pub(crate) fn fingerprint(body: &impl Serialize) -> u64 {
    // Bodies are plain structs with ordered maps; writing them to memory does not fail.
    let text = serde_json::to_vec(body).unwrap_or_default();
    let digest: [u8; 32] = Sha256::digest(&text).into();
    let [a, b, c, d, e, f, g, h, ..] = digest;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// A create for the engine. `key` is the caller's with the fingerprint of the body.
pub(crate) fn create(
    body: api::CreateSandbox,
    id: SandboxId,
    decision: DecisionId,
    key: Option<(Arc<str>, u64)>,
    on_full: OnFull,
    answered: bool,
) -> CreateSandbox {
    CreateSandbox {
        id,
        decision,
        key,
        template: body.template,
        memory_mib: body.memory_mib.map(Mib),
        vcpus: body.vcpus.map(Vcpus),
        stateful: body.stateful,
        command: body.command,
        env: body.env.0,
        labels: body.labels,
        pool: body.pool,
        priority: body.priority,
        preemptible: body.preemptible,
        criticality: body.criticality,
        on_full,
        lifecycle: body.lifecycle,
        answered,
    }
}

/// A fork for the engine.
pub(crate) fn fork(
    body: api::ForkSandbox,
    from: SandboxId,
    id: SandboxId,
    decision: DecisionId,
    key: Option<(Arc<str>, u64)>,
    on_full: OnFull,
    answered: bool,
) -> ForkSandbox {
    ForkSandbox {
        from,
        id,
        decision,
        key,
        labels: body.labels,
        priority: body.priority,
        on_full,
        answered,
    }
}

/// A change for the engine.
pub(crate) fn patch(id: SandboxId, body: api::PatchSandbox) -> PatchSandbox {
    PatchSandbox {
        id,
        labels: body.labels,
        priority: body.priority,
        preemptible: body.preemptible,
        lifecycle: body.lifecycle,
    }
}

/// A sandbox's record. Tenants do not see hosts.
pub(crate) fn sandbox(row: SandboxRow, place: Option<u64>, sees_hosts: bool) -> api::Sandbox {
    let spec = &row.spec;
    api::Sandbox {
        labels: row.labels.to_map(),
        lifecycle: spec.lifecycle,
        command: spec.command.clone(),
        forked_from: spec.fork_of,
        id: row.id,
        tenant: row.tenant,
        template: row.template,
        status: row.status,
        reason: row.reason.as_deref().map(str::to_owned),
        pool: row.pool,
        host: row.host.filter(|_| sees_hosts),
        memory_mib: row.memory_mib.get(),
        vcpus: row.vcpus.get(),
        stateful: row.stateful,
        charge_mib: row.charge_mib.get(),
        resident_mib: row.resident_mib.map(Mib::get),
        measured: row.measured,
        slot_released: row.slot_released,
        priority: row.priority,
        preemptible: row.preemptible,
        idled: row.idled,
        resume_requested_at: row.resume_requested_at.map(Into::into),
        created_at: row.created_at.into(),
        started_at: row.started_at.map(Into::into),
        last_active_at: Some(row.last_active_at.into()),
        decision_id: Some(row.decision_id),
        driver: Some(row.driver),
        criticality: row.criticality,
        attempt: row.attempt,
        exit_code: row.exit_code,
        // The engine counts places from 1, the record how many are served before.
        queue_position: place.map(|place| place.saturating_sub(1)),
        overhead_mib: row.overhead_mib.get(),
        on_full: row.on_full,
        status_since: Some(row.status_since.into()),
        ended_at: row.ended_at.map(Into::into),
    }
}

/// A claim for the engine.
pub(crate) fn reserve_item(body: api::ReserveRequest, id: ReservationId) -> ReserveItem {
    ReserveItem {
        id,
        body_hash: fingerprint(&body),
        key: body.key.into(),
        memory_mib: Mib(body.memory_mib),
        vcpus: Vcpus(body.vcpus),
        stateful: body.stateful,
        pool: body.pool,
        priority: body.priority,
        criticality: body.criticality,
        ttl_seconds: body.ttl_seconds,
    }
}

/// How a reservation meets a full fleet.
pub(crate) fn reserve_mode(body: &api::ReserveRequest) -> ReserveMode {
    match body.mode {
        api::ReserveMode::Reject => ReserveMode::Reject,
        api::ReserveMode::Wait => ReserveMode::Wait { seconds: body.wait() },
        api::ReserveMode::DryRun => ReserveMode::DryRun,
    }
}

/// A reservation's record. Its host is what it was asked for: tenants see it.
pub(crate) fn reservation(row: &ReservationRow) -> api::Reservation {
    let state = match row.state {
        ReservationState::Reserved => api::ReservationState::Reserved,
        ReservationState::Committed => api::ReservationState::Committed,
        ReservationState::Released => api::ReservationState::Released,
        ReservationState::Expired => api::ReservationState::Expired,
    };
    // The time to live ends only what is not committed.
    let expires = matches!(row.state, ReservationState::Reserved | ReservationState::Expired);
    api::Reservation {
        id: row.id,
        host: row.host.clone(),
        charge_mib: row.charge_mib.get(),
        generation: row.generation,
        expires_at: expires.then(|| row.expires_at.into()),
        decision_id: row.decision_id,
        key: row.key.to_string(),
        tenant: row.tenant.clone(),
        pool: row.pool.clone(),
        state,
        memory_mib: row.memory_mib.get(),
        vcpus: row.vcpus.get(),
        stateful: row.stateful,
        created_at: Some(row.created_at.into()),
        cgroup: row.cgroup.as_deref().map(str::to_owned),
    }
}

/// The verdict that a request would get. Tenants see hosts without their names.
pub(crate) fn explanation(of: Explanation, queues: bool, sees_hosts: bool) -> api::Explanation {
    let verdict = match of.code {
        None => api::Verdict::Admit,
        Some(code) if queues && code.is_capacity() => api::Verdict::Queue,
        Some(_) => api::Verdict::Refuse,
    };
    let checks = of.checks.into_iter().map(|line| api::CheckLine {
        check: line.check.to_owned(),
        passes: line.refuses.is_none(),
        code: line.refuses,
        used: None,
        incoming: None,
        limit: None,
        detail: line.detail,
    });
    let hosts = of.hosts.into_iter().map(|line| api::HostLine {
        host: sees_hosts.then_some(line.host),
        pool: line.pool,
        filter: line.filter,
        charge_mib: line.charge_mib.get(),
        admittable_mib: line.admittable_mib,
        score: line.score,
        detail: line.detail,
    });
    api::Explanation {
        verdict,
        code: of.code,
        detail: of.detail,
        retry_after_millis: match of.retry {
            RetryHint::After(wait) => Some(wait.get()),
            RetryHint::Never | RetryHint::Maybe => None,
        },
        host: of.host.filter(|_| sees_hosts),
        pool: of.pool,
        charge_mib: of.charge_mib.get(),
        policy_version: version(of.policy_version),
        policy_mode: of.policy_mode,
        checks: checks.collect(),
        hosts: hosts.collect(),
        counts: of.counts,
    }
}

/// Version 0 is the local policy, which has none.
pub(super) fn version(version: u64) -> Option<u64> {
    (version > 0).then_some(version)
}
