//! Reservations, for an orchestrator of one's own.

use std::collections::BTreeSet;

use plimsoll_types::{Criticality, DecisionId, HostId, PoolName, ReservationId, TenantId, bounds};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::input::{Body, FieldError, check, check_key, check_opt, check_text};
use crate::sandbox::standard;
use crate::schema;
use crate::time::Time;

/// Longest name of a control group in bytes: what Linux takes as one path.
const CGROUP_LENGTH_MAX: usize = 4095;

/// What to do with a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReserveMode {
    /// Answer no where there is no room.
    #[default]
    Reject,
    /// Wait for room, at most `wait_seconds`.
    Wait,
    /// Answer as `reject` would, and hold nothing.
    DryRun,
}

/// Body of `POST /v1/reservations`. Needs `key`, `memory_mib` and `vcpus`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveRequest {
    /// The caller's own key: the same key and body give the same reservation.
    pub key: String,
    /// Configured memory.
    pub memory_mib: u64,
    /// Virtual CPUs.
    pub vcpus: u64,
    /// Whether its state must never be lost: charged in full.
    #[serde(default)]
    pub stateful: bool,
    /// The pool; the default one where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub pool: Option<PoolName>,
    /// Higher is served first.
    #[serde(default)]
    pub priority: i32,
    /// How much it matters when the fleet must shed.
    #[serde(default = "standard")]
    #[schema(value_type = schema::Criticality)]
    pub criticality: Criticality,
    /// `reject`, `wait` or `dry_run`.
    #[serde(default)]
    pub mode: ReserveMode,
    /// How long it holds without a commit; the pool's where absent, 60 s unless set otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Mode wait: longest wait for room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
}

impl ReserveRequest {
    /// How long mode wait waits where the caller does not say, in seconds: as long as a call that
    /// wakes a guest.
    pub const WAIT_SECONDS_DEFAULT: u64 = 60;

    /// A reservation of the given size with every default.
    #[must_use]
    pub fn new(key: impl Into<String>, memory_mib: u64, vcpus: u64) -> Self {
        Self {
            key: key.into(),
            memory_mib,
            vcpus,
            stateful: false,
            pool: None,
            priority: 0,
            criticality: Criticality::Standard,
            mode: ReserveMode::Reject,
            ttl_seconds: None,
            wait_seconds: None,
        }
    }

    /// How long to wait for room: nothing but in mode wait.
    #[must_use]
    pub fn wait(&self) -> u64 {
        match self.mode {
            ReserveMode::Wait => self.wait_seconds.unwrap_or(Self::WAIT_SECONDS_DEFAULT),
            ReserveMode::Reject | ReserveMode::DryRun => 0,
        }
    }
}

impl Body for ReserveRequest {
    fn validate(&self) -> Result<(), FieldError> {
        check_key("key", &self.key)?;
        check("memory_mib", self.memory_mib)?;
        check("vcpus", self.vcpus)?;
        check("priority", self.priority)?;
        check_opt("ttl_seconds", self.ttl_seconds)?;
        check_opt("wait_seconds", self.wait_seconds)
    }
}

/// Where a reservation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReservationState {
    /// Held, waiting for its commit.
    Reserved,
    /// Committed: it holds until it is released.
    Committed,
    /// Released.
    Released,
    /// Lapsed without a commit.
    Expired,
}

/// One reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reservation {
    /// Its id.
    #[schema(value_type = String)]
    pub id: ReservationId,
    /// The host that it holds memory on.
    #[schema(value_type = String)]
    pub host: HostId,
    /// What the host's budget is charged.
    pub charge_mib: u64,
    /// Grows with each change of the reservation.
    pub generation: u64,
    /// When it lapses; `null` once committed.
    pub expires_at: Option<Time>,
    /// The decision that admitted it.
    #[schema(value_type = String)]
    pub decision_id: DecisionId,
    /// The caller's key.
    pub key: String,
    /// Who is charged.
    #[schema(value_type = String)]
    pub tenant: TenantId,
    /// Its pool.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// Where it stands.
    pub state: ReservationState,
    /// Configured memory.
    pub memory_mib: u64,
    /// Virtual CPUs.
    pub vcpus: u64,
    /// Whether it is charged in full for its state.
    pub stateful: bool,
    /// When it was admitted.
    #[serde(default)]
    pub created_at: Option<Time>,
    /// The guest's control group, where the commit named one.
    #[serde(default)]
    pub cgroup: Option<String>,
}

/// Answer to a reservation in mode `dry_run` that would have been admitted (200). One that would
/// not gets the refusal that mode `reject` gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DryRun {
    /// Always true: nothing is held.
    pub dry_run: bool,
    /// The host that would have been chosen.
    #[schema(value_type = String)]
    pub host: HostId,
    /// Its pool.
    #[schema(value_type = String)]
    pub pool: PoolName,
    /// What that host's budget would have been charged.
    pub charge_mib: u64,
    /// The decision.
    #[schema(value_type = String)]
    pub decision_id: DecisionId,
}

/// Body of `POST /v1/reservations/batch`: all or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReservationBatch {
    /// At most 1 000 reservations, each with a key of its own.
    pub items: Vec<ReserveRequest>,
}

impl Body for ReservationBatch {
    fn validate(&self) -> Result<(), FieldError> {
        if !(1..=bounds::BATCH_ITEMS_MAX).contains(&self.items.len()) {
            let bound = format!("1 to {} items", bounds::BATCH_ITEMS_MAX);
            return Err(FieldError::new("items", self.items.len(), bound));
        }
        let mut keys = BTreeSet::new();
        for (at, item) in self.items.iter().enumerate() {
            let parent = format!("items[{at}]");
            item.validate().map_err(|error| error.within(&parent))?;
            if item.mode != ReserveMode::Reject {
                let bound = "reject: a batch is taken whole or refused at once";
                return Err(FieldError::new(
                    format!("{parent}.mode"),
                    format_args!("{:?}", item.mode),
                    bound,
                ));
            }
            if !keys.insert(item.key.as_str()) {
                let bound = "a key that no other item of the batch has";
                return Err(FieldError::new(format!("{parent}.key"), &item.key, bound));
            }
        }
        Ok(())
    }
}

/// Answer to a batch, in the order of its items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reservations {
    /// The reservations.
    pub items: Vec<Reservation>,
}

/// Body of `POST /v1/reservations/{id}/commit`; may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitReservation {
    /// The guest's control group on its host: the agent then measures it as a guest. Without it the
    /// reservation stays charged at configured memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

impl Body for CommitReservation {
    fn validate(&self) -> Result<(), FieldError> {
        let Some(cgroup) = &self.cgroup else { return Ok(()) };
        check_text("cgroup", cgroup, CGROUP_LENGTH_MAX)?;
        let climbs = cgroup.split('/').any(|part| part == "..");
        if cgroup.is_empty() || climbs {
            let bound = "a path below the control group root, without '..'";
            return Err(FieldError::new("cgroup", format_args!("{cgroup:?}"), bound));
        }
        Ok(())
    }
}

/// Body of `POST /v1/reservations/{id}/renew`; may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewReservation {
    /// The new time to live, counted from now; the one it was made with where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
}

impl Body for RenewReservation {
    fn validate(&self) -> Result<(), FieldError> {
        check_opt("ttl_seconds", self.ttl_seconds)
    }
}
