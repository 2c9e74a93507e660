//! What operators set and see.

use std::collections::BTreeMap;

use plimsoll_api as api;
use plimsoll_engine::rows::{
    ConcurrencyLimits, ConsumptionLimits, DecisionRow, EndpointRow, EventRow, KeyRow, Limit,
    PlanLimits, PlanRow, PoolRow, PoolSettings, RateLimits, Role, TemplateRow, TenantRow,
};
use plimsoll_engine::{Counts, HostView};
use plimsoll_store::{DeliveryOutcome, DeliveryRow};
use plimsoll_types::{BasisPoints, HostFilter, Mib, PlanId, Timestamp, Vcpus};

use super::sandbox::version;

fn limits_row(limits: &api::Limits) -> PlanLimits {
    let burst =
        |limit: api::BurstLimit| Limit { limit: limit.limit, burst_limit: limit.burst_limit };
    let api::Limits { concurrency, consumption, rate } = limits;
    PlanLimits {
        concurrency: ConcurrencyLimits {
            sandboxes: burst(concurrency.sandboxes),
            vcpus: burst(concurrency.vcpus),
            memory_mib: burst(concurrency.memory_mib),
        },
        consumption: ConsumptionLimits {
            cpu_seconds: consumption.cpu_seconds.limit,
            gib_hours: consumption.gib_hours.limit,
            egress_bytes: consumption.egress_bytes.limit,
        },
        rate: RateLimits {
            creates_per_minute: rate.creates_per_minute.limit,
            creates_per_hour: rate.creates_per_hour.limit,
            forks_per_minute: rate.forks_per_minute.limit,
            forks_per_hour: rate.forks_per_hour.limit,
            resumes_per_minute: rate.resumes_per_minute.limit,
            resumes_per_hour: rate.resumes_per_hour.limit,
        },
    }
}

fn limits(row: &PlanLimits) -> api::Limits {
    let burst =
        |limit: Limit| api::BurstLimit { limit: limit.limit, burst_limit: limit.burst_limit };
    let plain = |limit| api::Limit { limit };
    let PlanLimits { concurrency, consumption, rate } = row;
    api::Limits {
        concurrency: api::ConcurrencyLimits {
            sandboxes: burst(concurrency.sandboxes),
            vcpus: burst(concurrency.vcpus),
            memory_mib: burst(concurrency.memory_mib),
        },
        consumption: api::ConsumptionLimits {
            cpu_seconds: plain(consumption.cpu_seconds),
            gib_hours: plain(consumption.gib_hours),
            egress_bytes: plain(consumption.egress_bytes),
        },
        rate: api::RateLimits {
            creates_per_minute: plain(rate.creates_per_minute),
            creates_per_hour: plain(rate.creates_per_hour),
            forks_per_minute: plain(rate.forks_per_minute),
            forks_per_hour: plain(rate.forks_per_hour),
            resumes_per_minute: plain(rate.resumes_per_minute),
            resumes_per_hour: plain(rate.resumes_per_hour),
        },
    }
}

/// A plan as kept.
pub(crate) fn plan_row(body: &api::Plan) -> PlanRow {
    PlanRow { id: body.id.clone(), limits: limits_row(&body.limits()) }
}

/// A plan as shown.
pub(crate) fn plan(row: PlanRow) -> api::Plan {
    api::Plan::new(row.id, limits(&row.limits))
}

/// A new tenant as kept.
pub(crate) fn tenant_row(body: api::CreateTenant, default: PlanId, now: Timestamp) -> TenantRow {
    let created_at = body.created_at.map_or(now, Into::into);
    TenantRow {
        payment_method: body.payment_method,
        payment_method_ever: body.payment_method,
        overrides: limits_row(&body.overrides),
        anchor_day: body.period_anchor_day,
        ..TenantRow::new(body.id, body.plan.unwrap_or(default), created_at)
    }
}

/// A tenant as shown.
pub(crate) fn tenant(row: TenantRow) -> api::Tenant {
    api::Tenant {
        id: row.id,
        plan: row.plan,
        payment_method: row.payment_method,
        created_at: row.created_at.into(),
        overrides: limits(&row.overrides),
        suspended: row.suspended.is_some(),
        suspended_reason: row.suspended,
        period_anchor_day: row.anchor_day,
    }
}

/// A tenant as kept after a change to what is shown of it.
pub(crate) fn tenant_row_changed(held: &TenantRow, changed: api::Tenant) -> TenantRow {
    TenantRow {
        id: changed.id,
        plan: changed.plan,
        payment_method: changed.payment_method,
        payment_method_ever: held.payment_method_ever || changed.payment_method,
        created_at: held.created_at,
        overrides: limits_row(&changed.overrides),
        suspended: changed.suspended.then(|| changed.suspended_reason.unwrap_or_default()),
        anchor_day: changed.period_anchor_day,
    }
}

/// The role of a key as kept.
pub(crate) fn key_role(role: api::Role) -> Role {
    match role {
        api::Role::Tenant => Role::Tenant,
        api::Role::Operator => Role::Operator,
        api::Role::Host => Role::Host,
    }
}

/// A key as shown: without its secret, which is nowhere.
pub(crate) fn key(row: KeyRow) -> api::Key {
    let role = match row.role {
        Role::Tenant => api::Role::Tenant,
        Role::Operator => api::Role::Operator,
        Role::Host => api::Role::Host,
    };
    api::Key {
        id: row.id,
        role,
        tenant: row.tenant,
        host: row.host,
        created_at: Some(row.created_at.into()),
    }
}

/// A pool as kept.
pub(crate) fn pool_row(body: api::Pool) -> PoolRow {
    let settings = PoolSettings {
        limit: body.limit,
        regime: body.regime,
        pause: body.pause,
        preemption: body.preemption,
        placement: body.placement,
        overflow: body.overflow,
        external: body.external,
        reserve: body.reserve,
        settle_seconds: body.settle_seconds,
        decay_seconds: body.decay_seconds,
        max_vcpu_ratio_bp: body.max_vcpu_ratio_bp.map(BasisPoints),
        queue_hold_seconds: body.queue_hold_seconds,
        hold_ttl_seconds: body.hold_ttl_seconds,
        resume_lapse_seconds: body.resume_lapse_seconds,
        // Within the bound of the body, which is far below.
        preemptions_per_minute_max: u32::try_from(body.preemptions_per_minute_max)
            .unwrap_or(u32::MAX),
        preemption_protect_seconds: body.preemption_protect_seconds,
        preemption_pair_seconds: body.preemption_pair_seconds,
        stale_seconds: body.stale_seconds,
        dead_seconds: body.dead_seconds,
        inventory_grace_seconds: body.inventory_grace_seconds,
        lifecycle: body.lifecycle,
    };
    PoolRow { name: body.name, settings }
}

/// A pool as shown.
pub(crate) fn pool(row: PoolRow) -> api::Pool {
    let held = row.settings;
    api::Pool {
        name: row.name,
        limit: held.limit,
        regime: held.regime,
        pause: held.pause,
        preemption: held.preemption,
        placement: held.placement,
        overflow: held.overflow,
        external: held.external,
        reserve: held.reserve,
        settle_seconds: held.settle_seconds,
        decay_seconds: held.decay_seconds,
        max_vcpu_ratio_bp: held.max_vcpu_ratio_bp.map(BasisPoints::get),
        stale_seconds: held.stale_seconds,
        dead_seconds: held.dead_seconds,
        queue_hold_seconds: held.queue_hold_seconds,
        hold_ttl_seconds: held.hold_ttl_seconds,
        resume_lapse_seconds: held.resume_lapse_seconds,
        preemptions_per_minute_max: u64::from(held.preemptions_per_minute_max),
        preemption_protect_seconds: held.preemption_protect_seconds,
        preemption_pair_seconds: held.preemption_pair_seconds,
        inventory_grace_seconds: held.inventory_grace_seconds,
        lifecycle: held.lifecycle,
    }
}

/// A template as kept.
pub(crate) fn template_row(body: api::Template) -> TemplateRow {
    TemplateRow {
        name: body.name,
        driver: body.driver,
        memory_mib: Mib(body.memory_mib),
        overhead_mib: Mib(body.overhead_mib),
        vcpus: Vcpus(body.vcpus),
        stateful: body.stateful,
        rootfs: body.rootfs,
        command: body.command,
        env: body.env.0,
        host_labels: body.labels,
        counted: body.counted,
        baked: body.baked,
        pool: body.pool,
    }
}

/// A template as shown.
pub(crate) fn template(row: TemplateRow) -> api::Template {
    api::Template {
        name: row.name,
        driver: row.driver,
        memory_mib: row.memory_mib.get(),
        vcpus: row.vcpus.get(),
        stateful: row.stateful,
        overhead_mib: row.overhead_mib.get(),
        rootfs: row.rootfs,
        command: row.command,
        env: api::Env(row.env),
        labels: row.host_labels,
        counted: row.counted,
        baked: row.baked,
        pool: row.pool,
    }
}

/// A host as the cell sees it.
pub(crate) fn host(view: HostView) -> api::HostView {
    let status = match view.standing {
        Some(HostFilter::Dead) => api::HostStatus::Dead,
        Some(HostFilter::Stale) => api::HostStatus::Stale,
        _ if view.age.is_none() => api::HostStatus::Unknown,
        _ => api::HostStatus::Fresh,
    };
    api::HostView {
        id: view.row.id,
        pool: view.row.pool,
        status,
        standing: view.standing,
        age_millis: view.age.map(|age| age.get()),
        heartbeat_at: view.heartbeat_at.map(Into::into),
        clock_skew_millis: view.clock_skew_millis,
        enrolled_at: Some(view.row.enrolled_at.into()),
        region: Some(view.region),
        address: view.row.address,
        labels: view.labels,
        drivers: view.drivers.into_iter().map(str::to_owned).collect(),
        boot_id: Some(view.boot_id),
        incarnation: view.reported_incarnation,
        sequence: Some(view.sequence),
        cpu_millis_total: view.cpu_millis_total.get(),
        cpu_millis_used: view.cpu_millis_used.get(),
        memory_mib_total: view.memory_mib_total.get(),
        memory_mib_used: view.memory_mib_used.get(),
        memory_admission: view.regime,
        memory_mib_admittable: view.admittable_mib,
        not_admitting: view.not_admitting,
        pending_mib: view.pending_mib.get(),
        effective_mib: view.effective_mib,
        guests: view.guests,
        charged_mib: view.charged_mib.get(),
        configured_mib: view.configured_mib.get(),
        resident_mib: view.resident_mib.get(),
        unexpected_guests: view.unexpected,
        starts_in_flight: view.starts_in_flight,
        starts_limit: view.starts_limit,
        counted: view.counted,
        pressure_bp: view.pressure_bp,
        draining: view.row.draining,
        failures_in_a_row: view.failures,
        set_aside_until: view.set_aside_until.map(Into::into),
    }
}

/// One decision of the log.
pub(crate) fn decision(row: DecisionRow) -> api::DecisionView {
    let verdict = if row.code.is_some() { api::Verdict::Refuse } else { api::Verdict::Admit };
    api::DecisionView {
        id: row.id,
        at: row.at.into(),
        tenant: row.tenant,
        verb: row.verb.as_str().to_owned(),
        verdict,
        code: row.code,
        detail: row.detail.as_deref().map(str::to_owned),
        object: row.object.map(|object| object.to_string()),
        pool: row.pool,
        host: row.host,
        memory_mib: row.memory_mib.get(),
        vcpus: row.vcpus.get(),
        stateful: row.stateful,
        charge_mib: row.charge_mib.get(),
        items: row.items,
        policy_version: version(row.policy_version),
        policy_mode: row.policy_mode,
        counts: row.counts,
        slots_held: row.slots.map(|(held, _)| held),
        slots_limit: row.slots.and_then(|(_, limit)| limit),
    }
}

/// An event as delivered and listed.
pub(crate) fn event(row: EventRow) -> api::Event {
    api::Event { id: row.id, kind: row.kind, at: row.at.into(), tenant: row.tenant, data: row.data }
}

/// A webhook endpoint as shown: without its secrets.
pub(crate) fn endpoint(row: EndpointRow) -> api::Endpoint {
    api::Endpoint {
        id: row.id,
        tenant: row.tenant,
        url: row.url,
        events: row.events,
        description: row.description,
        enabled: row.disabled.is_none(),
        disabled_reason: row.disabled,
        failing_since: row.failing_since.map(Into::into),
        created_at: row.created_at.into(),
    }
}

/// One attempt to deliver an event.
pub(crate) fn delivery(row: DeliveryRow) -> api::Delivery {
    let state = match row.outcome {
        DeliveryOutcome::Delivered => api::DeliveryState::Delivered,
        DeliveryOutcome::Failed => api::DeliveryState::Pending,
        DeliveryOutcome::GivenUp => api::DeliveryState::Failed,
    };
    api::Delivery {
        event_id: row.event,
        kind: row.kind,
        state,
        attempts: row.attempt,
        last_status: row.status,
        last_error: row.detail,
        last_attempt_at: Some(row.at.into()),
        next_attempt_at: row.next_attempt_at.map(Into::into),
        // An event's id begins with its time in milliseconds.
        created_at: Timestamp(i64::try_from(row.event.0 >> 80).unwrap_or(i64::MAX)).into(),
    }
}

/// Counts over everything, with the broken invariants by id.
pub(crate) fn counts(counts: Counts, violations: BTreeMap<String, u64>) -> api::StatusCounts {
    api::StatusCounts {
        hosts: counts.hosts,
        hosts_ready: counts.hosts_ready,
        sandboxes_live: counts.sandboxes_live,
        sandboxes_queued: counts.sandboxes_queued,
        reservations_held: counts.reservations_held,
        parked: counts.parked,
        tenants: counts.tenants,
        pools: counts.pools,
        invariant_violations: violations,
    }
}
