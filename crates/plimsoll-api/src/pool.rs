//! Pools and templates.

use std::collections::BTreeMap;

use plimsoll_types::{
    Counted, Driver, Lifecycle, PauseKind, Placement, PoolName, Preemption, Regime, ReserveRule,
    TemplateName, bounds,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::edit::Patch;
use crate::input::{
    Body, FieldError, check, check_command_words, check_counted, check_labels, check_opt,
    check_text,
};
use crate::sandbox::{Env, check_lifecycle, merge_lifecycle};
use crate::schema;

/// Most pools that one pool may overflow to: a request asks each in turn.
const OVERFLOW_MAX: usize = 16;
/// Longest path or name of a root file system in bytes: what Linux takes as one path.
const ROOTFS_LENGTH_MAX: usize = 4095;

/// A pool: hosts, or a provider outside, admitted under one policy.
///
/// Everything but `name` has a default, so that a body states what is special.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Its name.
    #[schema(value_type = String)]
    pub name: PoolName,
    /// Slots; `null` is unlimited.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Which arithmetic admits, where a host does not say.
    #[serde(default = "defaults::regime")]
    #[schema(value_type = schema::Regime)]
    pub regime: Regime,
    /// What a pause does.
    #[serde(default = "defaults::pause")]
    #[schema(value_type = schema::PauseKind)]
    pub pause: PauseKind,
    /// Whom it may pause to make room.
    #[serde(default)]
    #[schema(value_type = schema::Preemption)]
    pub preemption: Preemption,
    /// Which host is preferred.
    #[serde(default = "defaults::placement")]
    #[schema(value_type = schema::Placement)]
    pub placement: Placement,
    /// Pools that a create may go to where this one is full, in order.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub overflow: Vec<PoolName>,
    /// Whether it is a provider outside, without hosts of its own.
    #[serde(default)]
    pub external: bool,
    /// What is charged before the first measurement.
    #[serde(default)]
    #[schema(value_type = schema::ReserveRule)]
    pub reserve: ReserveRule,
    /// No sample counts as a measurement before the guest is this old.
    #[serde(default = "defaults::settle_seconds")]
    pub settle_seconds: u64,
    /// The reserve decays to nothing over this long after that.
    #[serde(default = "defaults::decay_seconds")]
    pub decay_seconds: u64,
    /// Most vCPUs for each core of a host; `null` never refuses for CPU.
    #[serde(default)]
    pub max_vcpu_ratio_bp: Option<u64>,
    /// A report older than this makes its host no candidate.
    #[serde(default = "defaults::stale_seconds")]
    pub stale_seconds: u64,
    /// A report older than this declares its host dead.
    #[serde(default = "defaults::dead_seconds")]
    pub dead_seconds: u64,
    /// Once the head of the queue has waited this long, what is freed is kept for it.
    #[serde(default = "defaults::queue_hold_seconds")]
    pub queue_hold_seconds: u64,
    /// How long what was set aside for a waiter is kept for it.
    #[serde(default = "defaults::hold_ttl_seconds")]
    pub hold_ttl_seconds: u64,
    /// A resume that has waited this long lapses.
    #[serde(default = "defaults::resume_lapse_seconds")]
    pub resume_lapse_seconds: u64,
    /// Most guests paused to make room in a minute.
    #[serde(default = "defaults::preemptions_per_minute_max")]
    pub preemptions_per_minute_max: u64,
    /// A guest brought in by preemption is no victim for this long.
    #[serde(default = "defaults::preemption_protect_seconds")]
    pub preemption_protect_seconds: u64,
    /// A waiter does not evict the guest that it made way for before this long.
    #[serde(default = "defaults::preemption_pair_seconds")]
    pub preemption_pair_seconds: u64,
    /// A guest must be missing from whole inventories for this long before it is released.
    #[serde(default = "defaults::inventory_grace_seconds")]
    pub inventory_grace_seconds: u64,
    /// Lifecycle limits of sandboxes that state none.
    #[serde(default)]
    #[schema(value_type = schema::Lifecycle)]
    pub lifecycle: Lifecycle,
}

/// What a pool is where its body is silent.
mod defaults {
    use plimsoll_types::{PauseKind, Placement, Regime};

    pub(super) const fn regime() -> Regime {
        Regime::WorkingSet
    }
    pub(super) const fn pause() -> PauseKind {
        PauseKind::Driver
    }
    pub(super) const fn placement() -> Placement {
        Placement::Spread
    }
    /// DESIGN 4.1: earlier samples see little of what a guest will touch.
    pub(super) const fn settle_seconds() -> u64 {
        3
    }
    /// DESIGN 4.1: at two minutes, the median guest has reached 0.99 of its peak.
    pub(super) const fn decay_seconds() -> u64 {
        120
    }
    /// Three heartbeats.
    pub(super) const fn stale_seconds() -> u64 {
        30
    }
    /// Twelve heartbeats: death cannot be taken back.
    pub(super) const fn dead_seconds() -> u64 {
        120
    }
    /// Long enough for small work to use what the head cannot, short enough to bound its wait.
    pub(super) const fn queue_hold_seconds() -> u64 {
        30
    }
    /// As a reservation's time to live.
    pub(super) const fn hold_ttl_seconds() -> u64 {
        60
    }
    /// Nobody waits an hour for a call to be answered.
    pub(super) const fn resume_lapse_seconds() -> u64 {
        3600
    }
    /// One in two seconds: checkpoints share the hosts' disks.
    pub(super) const fn preemptions_per_minute_max() -> u64 {
        30
    }
    /// A minute's run is the least that makes a preemption worth its checkpoint.
    pub(super) const fn preemption_protect_seconds() -> u64 {
        60
    }
    /// Two guests that want one slot may take turns, not chase each other.
    pub(super) const fn preemption_pair_seconds() -> u64 {
        300
    }
    /// Two inventories sent at once after a large change must not count as two.
    pub(super) const fn inventory_grace_seconds() -> u64 {
        5
    }
}

impl Pool {
    /// A pool with every default.
    #[must_use]
    pub fn new(name: PoolName) -> Self {
        Self {
            name,
            limit: None,
            regime: defaults::regime(),
            pause: defaults::pause(),
            preemption: Preemption::default(),
            placement: defaults::placement(),
            overflow: Vec::new(),
            external: false,
            reserve: ReserveRule::default(),
            settle_seconds: defaults::settle_seconds(),
            decay_seconds: defaults::decay_seconds(),
            max_vcpu_ratio_bp: None,
            stale_seconds: defaults::stale_seconds(),
            dead_seconds: defaults::dead_seconds(),
            queue_hold_seconds: defaults::queue_hold_seconds(),
            hold_ttl_seconds: defaults::hold_ttl_seconds(),
            resume_lapse_seconds: defaults::resume_lapse_seconds(),
            preemptions_per_minute_max: defaults::preemptions_per_minute_max(),
            preemption_protect_seconds: defaults::preemption_protect_seconds(),
            preemption_pair_seconds: defaults::preemption_pair_seconds(),
            inventory_grace_seconds: defaults::inventory_grace_seconds(),
            lifecycle: Lifecycle::default(),
        }
    }
}

impl Body for Pool {
    const OBJECTS: &'static [&'static str] = &["preemption", "reserve", "lifecycle"];

    fn validate(&self) -> Result<(), FieldError> {
        check_opt("limit", self.limit)?;
        let preemption = &self.preemption;
        let reserve = &self.reserve;
        let nested = |parent: &'static str| move |error: FieldError| error.within(parent);
        check("idle_seconds", preemption.idle_seconds).map_err(nested("preemption"))?;
        check("min_run_seconds", preemption.min_run_seconds).map_err(nested("preemption"))?;
        check("floor_mib", reserve.floor_mib.get()).map_err(nested("reserve"))?;
        check("fraction_bp", reserve.fraction_bp.get()).map_err(nested("reserve"))?;
        check("ttl_seconds", reserve.ttl_seconds).map_err(nested("reserve"))?;
        for (field, value) in [
            ("settle_seconds", self.settle_seconds),
            ("decay_seconds", self.decay_seconds),
            ("stale_seconds", self.stale_seconds),
            ("dead_seconds", self.dead_seconds),
            ("queue_hold_seconds", self.queue_hold_seconds),
            ("hold_ttl_seconds", self.hold_ttl_seconds),
            ("resume_lapse_seconds", self.resume_lapse_seconds),
            ("preemptions_per_minute_max", self.preemptions_per_minute_max),
            ("preemption_protect_seconds", self.preemption_protect_seconds),
            ("preemption_pair_seconds", self.preemption_pair_seconds),
            ("inventory_grace_seconds", self.inventory_grace_seconds),
        ] {
            check(field, value)?;
        }
        check_opt("max_vcpu_ratio_bp", self.max_vcpu_ratio_bp)?;
        if self.dead_seconds < self.stale_seconds {
            let bound = format!("at least stale_seconds, {}", self.stale_seconds);
            return Err(FieldError::new("dead_seconds", self.dead_seconds, bound));
        }
        if self.overflow.len() > OVERFLOW_MAX {
            let bound = format!("at most {OVERFLOW_MAX} pools");
            return Err(FieldError::new("overflow", self.overflow.len(), bound));
        }
        if let Some(at) = self.overflow.iter().position(|pool| *pool == self.name) {
            let bound = "pools other than this one";
            return Err(FieldError::new(format!("overflow[{at}]"), &self.name, bound));
        }
        check_lifecycle(&self.lifecycle)
    }
}

/// Declares a PATCH body of plain fields: absent stays.
macro_rules! changes {
    ($body:ident, $held:ident: $($field:ident),* $(,)?) => {
        $(
            if let Some(value) = $body.$field {
                $held.$field = value;
            }
        )*
    };
}

/// Body of `PATCH /v1/admin/pools/{name}`: what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PoolPatch {
    /// Slots; `null` is unlimited.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    #[schema(value_type = Option<u64>)]
    pub limit: Patch<u64>,
    /// Which arithmetic admits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Regime>)]
    pub regime: Option<Regime>,
    /// What a pause does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::PauseKind>)]
    pub pause: Option<PauseKind>,
    /// Whom it may pause; the whole rule anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Preemption>)]
    pub preemption: Option<Preemption>,
    /// Which host is preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Placement>)]
    pub placement: Option<Placement>,
    /// Pools that a create may go to; the whole list anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub overflow: Option<Vec<PoolName>>,
    /// Whether it is a provider outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<bool>,
    /// What is charged before the first measurement; the whole rule anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::ReserveRule>)]
    pub reserve: Option<ReserveRule>,
    /// No sample counts as a measurement before the guest is this old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_seconds: Option<u64>,
    /// The reserve decays to nothing over this long after that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_seconds: Option<u64>,
    /// Most vCPUs for each core of a host; `null` never refuses for CPU.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    #[schema(value_type = Option<u64>)]
    pub max_vcpu_ratio_bp: Patch<u64>,
    /// A report older than this makes its host no candidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_seconds: Option<u64>,
    /// A report older than this declares its host dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_seconds: Option<u64>,
    /// Once the head of the queue has waited this long, what is freed is kept for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_hold_seconds: Option<u64>,
    /// How long what was set aside for a waiter is kept for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_ttl_seconds: Option<u64>,
    /// A resume that has waited this long lapses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_lapse_seconds: Option<u64>,
    /// Most guests paused to make room in a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptions_per_minute_max: Option<u64>,
    /// A guest brought in by preemption is no victim for this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_protect_seconds: Option<u64>,
    /// A waiter does not evict the guest that it made way for before this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_pair_seconds: Option<u64>,
    /// A guest must be missing from whole inventories for this long before it is released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inventory_grace_seconds: Option<u64>,
    /// Lifecycle limits to change; an absent one stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Lifecycle>)]
    pub lifecycle: Option<Lifecycle>,
}

impl PoolPatch {
    /// The pool as the body makes it, checked as a whole.
    ///
    /// # Errors
    /// Names the first field that is out of its bound.
    pub fn apply(self, held: &Pool) -> Result<Pool, FieldError> {
        let mut pool = held.clone();
        let body = self;
        body.limit.apply(&mut pool.limit);
        body.max_vcpu_ratio_bp.apply(&mut pool.max_vcpu_ratio_bp);
        if let Some(lifecycle) = body.lifecycle {
            merge_lifecycle(&mut pool.lifecycle, &lifecycle);
        }
        changes!(body, pool:
            regime, pause, preemption, placement, overflow, external, reserve, settle_seconds,
            decay_seconds, stale_seconds, dead_seconds, queue_hold_seconds, hold_ttl_seconds,
            resume_lapse_seconds, preemptions_per_minute_max, preemption_protect_seconds,
            preemption_pair_seconds,
            inventory_grace_seconds,
        );
        pool.validate()?;
        Ok(pool)
    }
}

impl Body for PoolPatch {
    const OBJECTS: &'static [&'static str] = &["preemption", "reserve", "lifecycle"];

    /// Checks nothing by itself: only the pool that comes of it can be judged.
    fn validate(&self) -> Result<(), FieldError> {
        Ok(())
    }
}

/// A template: a named shape of guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// Its name.
    #[schema(value_type = String)]
    pub name: TemplateName,
    /// What runs its guests.
    #[schema(value_type = schema::Driver)]
    pub driver: Driver,
    /// Configured memory where a create does not say.
    pub memory_mib: u64,
    /// Virtual CPUs where a create does not say.
    #[serde(default = "one")]
    pub vcpus: u64,
    /// Whether state must never be lost, where a create does not say.
    #[serde(default)]
    pub stateful: bool,
    /// What the driver needs on top of the configured memory of each guest.
    #[serde(default)]
    pub overhead_mib: u64,
    /// Root file system folder or image, where the driver takes one.
    #[serde(default)]
    pub rootfs: Option<String>,
    /// Command and arguments where a create does not say.
    #[serde(default)]
    pub command: Vec<String>,
    /// Environment, to which a create may add.
    #[serde(default)]
    pub env: Env,
    /// Labels that a host must have.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Counted resources that each guest holds.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, u64>)]
    pub counted: Counted,
    /// Whether a create is a restore of the template's own checkpoint; memory is then fixed.
    #[serde(default)]
    pub baked: bool,
    /// Pool of guests whose create names none; the default one where absent.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub pool: Option<PoolName>,
}

const fn one() -> u64 {
    1
}

impl Template {
    /// A template of the given size with every default.
    #[must_use]
    pub fn new(name: TemplateName, driver: Driver, memory_mib: u64) -> Self {
        Self {
            name,
            driver,
            memory_mib,
            vcpus: one(),
            stateful: false,
            overhead_mib: 0,
            rootfs: None,
            command: Vec::new(),
            env: Env::default(),
            labels: BTreeMap::new(),
            counted: Counted::new(),
            baked: false,
            pool: None,
        }
    }
}

impl Body for Template {
    fn validate(&self) -> Result<(), FieldError> {
        check("memory_mib", self.memory_mib)?;
        check("vcpus", self.vcpus)?;
        check("overhead_mib", self.overhead_mib)?;
        let whole = self.memory_mib.saturating_add(self.overhead_mib);
        if whole > bounds::MEMORY_MIB_MAX {
            let bound = format!("at most {} together with memory_mib", bounds::MEMORY_MIB_MAX);
            return Err(FieldError::new("overhead_mib", self.overhead_mib, bound));
        }
        if let Some(rootfs) = &self.rootfs {
            check_text("rootfs", rootfs, ROOTFS_LENGTH_MAX)?;
        }
        check_command_words("command", &self.command)?;
        self.env.validate()?;
        check_labels("labels", self.labels.iter())?;
        check_counted("counted", &self.counted)
    }
}

/// Body of `PATCH /v1/admin/templates/{name}`: what is absent stays. Guests that exist keep the
/// shape that they were made with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TemplatePatch {
    /// What runs its guests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Driver>)]
    pub driver: Option<Driver>,
    /// Configured memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Virtual CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u64>,
    /// Whether state must never be lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stateful: Option<bool>,
    /// What the driver needs on top.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead_mib: Option<u64>,
    /// Root file system folder or image.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    #[schema(value_type = Option<String>)]
    pub rootfs: Patch<String>,
    /// Command and arguments anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// The whole environment anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<Env>,
    /// All labels anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// All counted resources anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, u64>>)]
    pub counted: Option<Counted>,
    /// Whether a create is a restore of the template's own checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baked: Option<bool>,
    /// Pool of guests whose create names none; `null` is the default one.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    #[schema(value_type = Option<String>)]
    pub pool: Patch<PoolName>,
}

impl TemplatePatch {
    /// The template as the body makes it, checked as a whole.
    ///
    /// # Errors
    /// Names the first field that is out of its bound.
    pub fn apply(self, held: &Template) -> Result<Template, FieldError> {
        let mut template = held.clone();
        let body = self;
        body.rootfs.apply(&mut template.rootfs);
        body.pool.apply(&mut template.pool);
        changes!(body, template:
            driver, memory_mib, vcpus, stateful, overhead_mib, command, env, labels, counted, baked,
        );
        template.validate()?;
        Ok(template)
    }
}

impl Body for TemplatePatch {
    /// Checks nothing by itself: only the template that comes of it can be judged.
    fn validate(&self) -> Result<(), FieldError> {
        Ok(())
    }
}
