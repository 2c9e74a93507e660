//! Plans, tenants and keys.

use plimsoll_types::{HostId, KeyId, PlanId, TenantId, bounds};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::edit::Patch;
use crate::input::{Body, FieldError, check_opt, check_text};
use crate::secret::Secret;
use crate::time::Time;

/// A limit that may state nothing.
trait Silent {
    /// Whether it states nothing.
    fn is_silent(&self) -> bool;
}

/// One limit. `null` is unlimited in a plan; in a tenant's overrides it is the plan's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// The limit, in the unit of its counter.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// A sustained limit and the burst above it. `null` is unlimited in a plan; in a tenant's overrides
/// it is the plan's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BurstLimit {
    /// What may be held for ever.
    #[serde(default)]
    pub limit: Option<u64>,
    /// What may be held while there is credit; the limit itself where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_limit: Option<u64>,
}

impl Silent for BurstLimit {
    fn is_silent(&self) -> bool {
        self.limit.is_none() && self.burst_limit.is_none()
    }
}

impl BurstLimit {
    fn validate(&self, field: &str) -> Result<(), FieldError> {
        let within = |error: FieldError| error.within(field);
        check_opt("limit", self.limit).map_err(within)?;
        check_opt("burst_limit", self.burst_limit).map_err(within)?;
        match (self.limit, self.burst_limit) {
            (Some(limit), Some(burst)) if burst < limit => {
                let bound = format!("at least the limit, {limit}");
                Err(FieldError::new(format!("{field}.burst_limit"), burst, bound))
            }
            (None, Some(burst)) => {
                let bound = "no burst beside no limit";
                Err(FieldError::new(format!("{field}.burst_limit"), burst, bound))
            }
            _ => Ok(()),
        }
    }
}

impl Silent for Limit {
    fn is_silent(&self) -> bool {
        self.limit.is_none()
    }
}

impl Limit {
    fn validate(&self, field: &str) -> Result<(), FieldError> {
        check_opt("limit", self.limit).map_err(|error| error.within(field))
    }
}

/// Declares a set of limits by counter, its PATCH form, and what both need.
macro_rules! limits {
    (
        $(#[$doc:meta])* $name:ident, $patch:ident, $limit:ident, $word:literal,
        { $($(#[$fdoc:meta])* $field:ident,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[$fdoc])*
                #[serde(default, skip_serializing_if = "Silent::is_silent")]
                pub $field: $limit,
            )*
        }

        impl $name {
            fn validate(&self) -> Result<(), FieldError> {
                $(self.$field.validate(concat!($word, ".", stringify!($field)))?;)*
                Ok(())
            }

            /// These limits, and those of `other` where these are silent.
            #[must_use]
            pub fn or(&self, other: &Self) -> Self {
                Self { $($field: if self.$field.is_silent() { other.$field } else { self.$field },)* }
            }
        }

        /// Limits to change: absent stays, `null` goes.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $patch {
            $(
                $(#[$fdoc])*
                #[serde(default, skip_serializing_if = "Patch::is_keep")]
                #[schema(value_type = Option<$limit>)]
                pub $field: Patch<$limit>,
            )*
        }

        impl $patch {
            /// Changes the limits that the body names.
            pub fn apply(self, held: &mut $name) {
                $(
                    match self.$field {
                        Patch::Keep => {}
                        Patch::Clear => held.$field = $limit::default(),
                        Patch::Set(limit) => held.$field = limit,
                    }
                )*
            }
        }
    };
}

limits!(
    /// How much may be alive at once. An absent counter is unlimited.
    ConcurrencyLimits, ConcurrencyPatch, BurstLimit, "concurrency",
    {
        /// Sandboxes in any state but queued, terminated and failed.
        sandboxes,
        /// Virtual CPUs.
        vcpus,
        /// Configured memory, without overhead.
        memory_mib,
    }
);

limits!(
    /// How much may be used in one period. An absent counter is unlimited.
    ConsumptionLimits, ConsumptionPatch, Limit, "consumption",
    {
        /// CPU-seconds.
        cpu_seconds,
        /// GiB-hours of memory charged.
        gib_hours,
        /// Bytes sent out.
        egress_bytes,
    }
);

limits!(
    /// How often something may be done. An absent counter is unlimited.
    RateLimits, RatePatch, Limit, "rate",
    {
        /// Creates a minute, against loops.
        creates_per_minute,
        /// Creates an hour, sustained.
        creates_per_hour,
        /// Forks a minute.
        forks_per_minute,
        /// Forks an hour.
        forks_per_hour,
        /// Resumes a minute.
        resumes_per_minute,
        /// Resumes an hour.
        resumes_per_hour,
    }
);

/// All limits of a plan, or those that a tenant has of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// How much may be alive at once.
    #[serde(default)]
    pub concurrency: ConcurrencyLimits,
    /// How much may be used in one period.
    #[serde(default)]
    pub consumption: ConsumptionLimits,
    /// How often something may be done.
    #[serde(default)]
    pub rate: RateLimits,
}

impl Limits {
    /// These limits, and those of `plan` where these are silent: a tenant's overrides before its
    /// plan.
    #[must_use]
    pub fn or(&self, plan: &Self) -> Self {
        Self {
            concurrency: self.concurrency.or(&plan.concurrency),
            consumption: self.consumption.or(&plan.consumption),
            rate: self.rate.or(&plan.rate),
        }
    }
}

/// Fields of plans and tenants that hold objects.
const OBJECTS: &[&str] = &[
    "concurrency",
    "consumption",
    "rate",
    "overrides",
    "sandboxes",
    "vcpus",
    "memory_mib",
    "cpu_seconds",
    "gib_hours",
    "egress_bytes",
    "creates_per_minute",
    "creates_per_hour",
    "forks_per_minute",
    "forks_per_hour",
    "resumes_per_minute",
    "resumes_per_hour",
];

impl Body for Limits {
    const OBJECTS: &'static [&'static str] = OBJECTS;

    fn validate(&self) -> Result<(), FieldError> {
        self.concurrency.validate()?;
        self.consumption.validate()?;
        self.rate.validate()
    }
}

/// Limits to change, counter by counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsPatch {
    /// How much may be alive at once.
    #[serde(default)]
    pub concurrency: ConcurrencyPatch,
    /// How much may be used in one period.
    #[serde(default)]
    pub consumption: ConsumptionPatch,
    /// How often something may be done.
    #[serde(default)]
    pub rate: RatePatch,
}

impl LimitsPatch {
    /// Changes the limits that the body names.
    pub fn apply(self, held: &mut Limits) {
        self.concurrency.apply(&mut held.concurrency);
        self.consumption.apply(&mut held.consumption);
        self.rate.apply(&mut held.rate);
    }
}

impl Body for LimitsPatch {
    const OBJECTS: &'static [&'static str] = OBJECTS;

    fn validate(&self) -> Result<(), FieldError> {
        let mut set = Limits::default();
        self.clone().apply(&mut set);
        set.validate()
    }
}

/// A plan: a set of limits that tenants are given. Its PATCH body is [`LimitsPatch`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its name.
    #[schema(value_type = String)]
    pub id: PlanId,
    /// How much may be alive at once.
    #[serde(default)]
    pub concurrency: ConcurrencyLimits,
    /// How much may be used in one period.
    #[serde(default)]
    pub consumption: ConsumptionLimits,
    /// How often something may be done.
    #[serde(default)]
    pub rate: RateLimits,
}

impl Plan {
    /// A plan of the given limits.
    #[must_use]
    pub fn new(id: PlanId, limits: Limits) -> Self {
        let Limits { concurrency, consumption, rate } = limits;
        Self { id, concurrency, consumption, rate }
    }

    /// Its limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            concurrency: self.concurrency.clone(),
            consumption: self.consumption.clone(),
            rate: self.rate.clone(),
        }
    }
}

impl Body for Plan {
    const OBJECTS: &'static [&'static str] = OBJECTS;

    fn validate(&self) -> Result<(), FieldError> {
        self.limits().validate()
    }
}

/// Body of `POST /v1/admin/tenants`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTenant {
    /// Its name.
    #[schema(value_type = String)]
    pub id: TenantId,
    /// Its plan; `default` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub plan: Option<PlanId>,
    /// Whether it pays: a payment method is on file and its subscription is live. It is then never
    /// refused for consumption.
    #[serde(default)]
    pub payment_method: bool,
    /// Since when it is a tenant; now where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// Limits of its own, before its plan's.
    #[serde(default)]
    pub overrides: Limits,
    /// Day of the month on which its period begins, in UTC, the last day of shorter months; the
    /// first where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_anchor_day: Option<u8>,
}

impl Body for CreateTenant {
    const OBJECTS: &'static [&'static str] = OBJECTS;

    fn validate(&self) -> Result<(), FieldError> {
        check_opt("period_anchor_day", self.period_anchor_day)?;
        self.overrides.validate().map_err(|error| error.within("overrides"))
    }
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Its name.
    #[schema(value_type = String)]
    pub id: TenantId,
    /// Its plan.
    #[schema(value_type = String)]
    pub plan: PlanId,
    /// Whether it pays: a payment method is on file and its subscription is live.
    pub payment_method: bool,
    /// Since when it is a tenant.
    pub created_at: Time,
    /// Limits of its own, before its plan's.
    pub overrides: Limits,
    /// Whether an operator has suspended it: it starts nothing.
    #[serde(default)]
    pub suspended: bool,
    /// Why.
    #[serde(default)]
    pub suspended_reason: Option<String>,
    /// Day of the month on which its period begins.
    #[serde(default)]
    pub period_anchor_day: Option<u8>,
}

/// Body of `PATCH /v1/admin/tenants/{id}`: what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantPatch {
    /// Another plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub plan: Option<PlanId>,
    /// Whether it pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment_method: Option<bool>,
    /// Limits of its own to change, counter by counter; a counter that is `null` goes back to the
    /// plan's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<LimitsPatch>,
    /// Whether it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// Why it is suspended; gone when it no longer is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_reason: Option<String>,
    /// Day of the month on which its period begins.
    #[serde(default, skip_serializing_if = "Patch::is_keep")]
    #[schema(value_type = Option<u8>)]
    pub period_anchor_day: Patch<u8>,
}

impl TenantPatch {
    /// Changes what the body names.
    pub fn apply(self, held: &mut Tenant) {
        held.plan = self.plan.unwrap_or_else(|| held.plan.clone());
        held.payment_method = self.payment_method.unwrap_or(held.payment_method);
        held.suspended = self.suspended.unwrap_or(held.suspended);
        held.suspended_reason = match self.suspended_reason {
            _ if !held.suspended => None,
            Some(reason) => Some(reason),
            None => held.suspended_reason.take(),
        };
        self.period_anchor_day.apply(&mut held.period_anchor_day);
        if let Some(overrides) = self.overrides {
            overrides.apply(&mut held.overrides);
        }
    }
}

impl Body for TenantPatch {
    const OBJECTS: &'static [&'static str] = OBJECTS;

    fn validate(&self) -> Result<(), FieldError> {
        check_opt("period_anchor_day", self.period_anchor_day.as_set().copied())?;
        if let Some(reason) = &self.suspended_reason {
            check_text("suspended_reason", reason, bounds::LABEL_LENGTH_MAX)?;
        }
        let Some(overrides) = &self.overrides else { return Ok(()) };
        overrides.validate().map_err(|error| error.within("overrides"))
    }
}

/// What a key may do.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Its own tenant only.
    Tenant,
    /// Everything.
    Operator,
    /// Heartbeats, and its own host.
    Host,
}

impl Role {
    /// The word at every edge.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Operator => "operator",
            Self::Host => "host",
        }
    }
}

/// Body of `POST /v1/admin/keys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What it may do.
    pub role: Role,
    /// Role tenant: which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantId>,
    /// Role host: which; any host where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub host: Option<HostId>,
}

impl Body for CreateKey {
    fn validate(&self) -> Result<(), FieldError> {
        match (self.role, &self.tenant, &self.host) {
            (Role::Tenant, None, _) => {
                Err(FieldError::new("tenant", "nothing", "the tenant that the key speaks for"))
            }
            (Role::Tenant | Role::Operator, _, Some(host)) => {
                Err(FieldError::new("host", host, "nothing but for role host"))
            }
            (Role::Operator | Role::Host, Some(tenant), _) => {
                Err(FieldError::new("tenant", tenant, "nothing but for role tenant"))
            }
            _ => Ok(()),
        }
    }
}

/// A key, without what it proves itself by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Its id.
    #[schema(value_type = String)]
    pub id: KeyId,
    /// What it may do.
    pub role: Role,
    /// Role tenant: which.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantId>,
    /// Role host: which; any where `null`.
    #[schema(value_type = Option<String>)]
    pub host: Option<HostId>,
    /// When it was made.
    #[serde(default)]
    pub created_at: Option<Time>,
}

/// Answer to the making of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewKey {
    /// The secret, shown this once.
    pub key: Secret,
    /// The rest.
    #[serde(flatten)]
    pub info: Key,
}
