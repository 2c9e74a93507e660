//! The engine's own bounds and settings. What an operator sets per pool stands in
//! [`crate::rows::PoolSettings`].

use plimsoll_policy::ladder::LadderRule;
use plimsoll_types::{Lifecycle, Millis, PoolName, TenantId};

/// What is done about a tenant without a payment method that is suspected of abuse, beside saying
/// so. An operator takes it back by lifting the suspension; a payment method does by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AbuseAct {
    /// Nothing: people look at it.
    #[default]
    Nothing,
    /// It is suspended: it starts nothing new.
    StopAdmitting,
    /// It is suspended, and everything of it that runs is paused.
    Pause,
}

/// Settings of one cell's engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The pool of a request that names none.
    pub default_pool: PoolName,
    /// The tenant of the single-tenant case.
    pub default_tenant: TenantId,
    /// Limits for sandboxes where neither request nor pool names one.
    pub lifecycle: Lifecycle,
    /// A start that has no outcome by then is taken as unknown. Longer than an agent's own bound,
    /// so that the agent's answer is what usually ends it.
    pub start_timeout: Millis,
    /// The same for a pause: a checkpoint of a large guest takes minutes.
    pub pause_timeout: Millis,
    /// Terminating ends by then whatever the host says (S3); a tombstone stays.
    pub terminate_timeout: Millis,
    /// Starts tried on different hosts before a create has failed.
    pub start_attempts_max: u32,
    /// The one deadline for hosts that are asked afresh before a refusal.
    pub probe_timeout: Millis,
    /// A host is asked at most so often.
    pub probe_interval: Millis,
    /// Most requests that wait for such answers; beyond it a refusal says `unprobed`.
    pub parked_max: usize,
    /// Most sandboxes, resumes and reservations that wait in one pool.
    pub queue_max: usize,
    /// Most of them of one tenant, so that one tenant cannot fill the queue.
    pub queue_per_tenant_max: usize,
    /// How long a key keeps the place of a refused request.
    pub ticket_ttl: Millis,
    /// Most such keys: 100 bytes each.
    pub tickets_max: usize,
    /// How long an ended object's key stays bound.
    pub key_ttl: Millis,
    /// Most ended objects that are kept in memory for their keys and readers; older ones are read
    /// from the store.
    pub ended_max: usize,
    /// Measured figures are written at most so often.
    pub measured_write_interval: Millis,
    /// Use is written at most so often for each guest, and at the end of each hour. A crash loses
    /// none of it: counters are written with it, and a report brings the rest again.
    pub usage_write_interval: Millis,
    /// Burst credit and rate tokens are written at most so often for each tenant: what a crash
    /// gives back to the tenant.
    pub state_write_interval: Millis,
    /// Where the rungs of the quota ladder are.
    pub ladder: LadderRule,
    /// A sandbox that was not called into and has used next to no CPU for so long is idle to the
    /// ladder: a build without calls is not.
    pub hibernate_idle: Millis,
    /// How often a hibernated tenant's sandboxes are looked at for those that have become idle.
    pub hibernate_interval: Millis,
    /// What is done about suspected abuse.
    pub abuse: AbuseAct,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            default_pool: PoolName::new("local").expect("a valid name"),
            default_tenant: TenantId::new("default").expect("a valid name"),
            lifecycle: Lifecycle::default(),
            start_timeout: Millis(60_000),
            pause_timeout: Millis(600_000),
            terminate_timeout: Millis(120_000),
            start_attempts_max: 3,
            probe_timeout: Millis(1_000),
            probe_interval: Millis(1_000),
            parked_max: 1_024,
            queue_max: 10_000,
            queue_per_tenant_max: 1_000,
            ticket_ttl: Millis(600_000),
            tickets_max: 100_000,
            key_ttl: Millis(86_400_000),
            ended_max: 100_000,
            measured_write_interval: Millis(10_000),
            usage_write_interval: Millis(60_000),
            state_write_interval: Millis(5_000),
            ladder: LadderRule::default(),
            hibernate_idle: Millis(600_000),
            hibernate_interval: Millis(60_000),
            abuse: AbuseAct::default(),
        }
    }
}
