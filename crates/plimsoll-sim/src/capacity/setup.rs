//! The cell of the model: one pool with slots, and one outside without.

use plimsoll_engine::rows::{PoolRow, PoolSettings, Rows, TemplateRow};
use plimsoll_engine::{Admin, Caller, Command, Engine, EngineConfig, Input, Output, Token};
use plimsoll_types::{
    Driver, HostId, HostReport, Lifecycle, Mib, MilliCpu, PauseKind, PoolName, Regime,
    TemplateName, TenantId, Timestamp,
};

use super::{ModelError, Params, Strategy};

/// The pool with slots.
const POOL: &str = "computers";
/// The pool that creates overflow to.
const EXTERNAL: &str = "external";
/// The shape of every computer: OpenWork-like desktops. Slots decide, so that it does not matter.
const TEMPLATE: &str = "desktop";
/// Longer than any run: what the model does not have never happens.
const NEVER_SECONDS: u64 = 10 * 366 * 86_400;

pub(super) fn pool_name() -> PoolName {
    PoolName::new(POOL).expect("a valid name")
}

pub(super) fn template_name() -> TemplateName {
    TemplateName::new(TEMPLATE).expect("a valid name")
}

/// An engine that leads, with its pools and hosts.
pub(super) fn engine(
    users: u64,
    strategy: Strategy,
    params: &Params,
    caller: &Caller,
) -> Result<Engine, ModelError> {
    let mut out = Output::default();
    let most = usize::try_from(users).unwrap_or(usize::MAX).saturating_add(1);
    let config = EngineConfig {
        default_pool: pool_name(),
        default_tenant: caller.tenant.clone(),
        queue_max: most,
        queue_per_tenant_max: most,
        ..EngineConfig::default()
    };
    let mut engine = Engine::restore(config, 1, Rows::default(), Timestamp(0), &mut out)?;
    for admin in [
        Admin::PutPool(external(params)),
        Admin::PutPool(pool(users, strategy, params)),
        Admin::PutTemplate(template()),
    ] {
        let command = Command::Admin(Box::new(admin));
        let input = Input::Call { token: Token(0), caller: caller.clone(), command };
        engine.handle(Timestamp(0), input, &mut out);
    }
    for (pool, host) in [(POOL, "host"), (EXTERNAL, "provider")] {
        let report = Box::new(report(pool, host));
        let input = Input::Report { token: Token(0), report, probe: false };
        engine.handle(Timestamp(0), input, &mut out);
    }
    Ok(engine)
}

/// What both pools have in common: hosts of no bound that need not report again, and resumes that
/// wait for as long as it takes.
fn settings(params: &Params) -> PoolSettings {
    PoolSettings {
        regime: Regime::None,
        stale_seconds: NEVER_SECONDS,
        dead_seconds: NEVER_SECONDS,
        resume_lapse_seconds: NEVER_SECONDS,
        lifecycle: Lifecycle {
            idle_timeout_seconds: Some(i64::try_from(params.idle_timeout_seconds).unwrap_or(-1)),
            ..Lifecycle::default()
        },
        ..PoolSettings::default()
    }
}

fn external(params: &Params) -> PoolRow {
    let settings =
        PoolSettings { external: true, pause: PauseKind::Checkpoint, ..settings(params) };
    PoolRow { name: PoolName::new(EXTERNAL).expect("a valid name"), settings }
}

fn pool(users: u64, strategy: Strategy, params: &Params) -> PoolRow {
    let settings = PoolSettings {
        limit: Some(params.slots),
        pause: strategy.pause(),
        preemption: strategy.preemption(params),
        preemptions_per_minute_max: u32::try_from(users).unwrap_or(u32::MAX),
        preemption_protect_seconds: params.protect_seconds,
        preemption_pair_seconds: params.pair_seconds,
        overflow: vec![PoolName::new(EXTERNAL).expect("a valid name")],
        ..settings(params)
    };
    PoolRow { name: pool_name(), settings }
}

fn template() -> TemplateRow {
    TemplateRow {
        pool: Some(pool_name()),
        ..TemplateRow::new(template_name(), Driver::Gvisor, Mib(4_096))
    }
}

/// The one report of a host with room for everything.
fn report(pool: &str, host: &str) -> HostReport {
    const MEMORY: u64 = 1 << 40;
    let host = HostId::new(host).expect("a valid name");
    let pool = PoolName::new(pool).expect("a valid name");
    HostReport {
        address: Some("model".to_owned()),
        cpu_millis_total: MilliCpu(1 << 40),
        memory_mib_total: Mib(MEMORY),
        memory_mib_admittable: Some(MEMORY.cast_signed()),
        complete: true,
        ..HostReport::new(host, pool, "1", 1, Timestamp(0))
    }
}

/// Whom every call of the model comes from: the one tenant, acted for by its operator.
pub(super) fn caller() -> Caller {
    let tenant = TenantId::new("default").expect("a valid name");
    Caller { role: plimsoll_engine::rows::Role::Operator, tenant }
}
