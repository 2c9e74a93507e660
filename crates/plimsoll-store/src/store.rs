//! The two sides of a store: one writer, many readers.

use std::sync::Arc;

use plimsoll_engine::Change;
use plimsoll_engine::rows::{DecisionRow, ReservationRow, Rows, SandboxRow};
use plimsoll_types::{
    DecisionId, EndpointId, EventId, Millis, ReservationId, SandboxId, TenantId, Timestamp,
};

use plimsoll_engine::SandboxFilter;

use crate::delivery::{DeliveryPage, DeliveryRow, Progress};
use crate::error::StoreError;
use crate::query::{
    DecisionPage, DecisionQuery, EventPage, EventQuery, SandboxPage, UsageDay, UsagePage,
    UsageQuery,
};

/// The right to write, held by one process at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Grows by one at every acquisition and is never given out twice.
    pub epoch: u64,
    /// Who holds it.
    pub holder: String,
    /// When it runs out unless renewed; `None` where something else guards it, as the file lock
    /// does for SQLite.
    pub expires_at: Option<Timestamp>,
}

/// How much [`Store::load`] brings back beyond what is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadLimits {
    /// Ended sandboxes and reservations come back for so long: as long as their keys stay bound.
    pub key_ttl: Millis,
    /// Most ended sandboxes, and as many ended reservations; the newest come back. The engine
    /// holds no more than that in memory.
    pub ended_max: usize,
    /// Usage comes back from so far back: the current period and the one before it.
    pub usage: Millis,
    /// Most rows of usage that come back claim by claim, the newest first; some 100 ms of reading.
    /// What a claim may still write again comes back beyond that, and the rest in sums.
    pub usage_rows_max: usize,
}

impl Default for LoadLimits {
    fn default() -> Self {
        Self {
            key_ttl: Millis::from_seconds(24 * 3600),
            ended_max: 100_000,
            // Two months of 31 days.
            usage: Millis::from_seconds(62 * 24 * 3600),
            usage_rows_max: 200_000,
        }
    }
}

/// How long rows are kept, and how much one call to [`Store::prune`] may remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Ended sandboxes and reservations, from their end: records stay readable this long.
    pub ended: Millis,
    /// Decisions.
    pub decisions: Millis,
    /// Events that every endpoint has passed or was given up on; the others stay.
    pub events: Millis,
    /// Delivery attempts.
    pub deliveries: Millis,
    /// Usage, from the hour's start.
    pub usage: Millis,
    /// Usage older than this is kept by the day instead of the hour, day by day in UTC.
    pub usage_hourly: Millis,
    /// Most rows of each kind that one call removes. 2 000 take some 5 ms, during which nothing
    /// else is committed.
    pub rows_max: usize,
}

impl Default for Retention {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        Self {
            ended: Millis::from_seconds(DAY),
            decisions: Millis::from_seconds(7 * DAY),
            events: Millis::from_seconds(7 * DAY),
            deliveries: Millis::from_seconds(7 * DAY),
            usage: Millis::from_seconds(400 * DAY),
            usage_hourly: Millis::from_seconds(3 * DAY),
            rows_max: 2_000,
        }
    }
}

/// What one call to [`Store::prune`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Rows removed.
    pub rows: u64,
    /// Whether there may be more to remove now: call again soon.
    pub more: bool,
}

/// What a store says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// `memory` or `sqlite`.
    pub backend: &'static str,
    /// The epoch of the last acquisition; 0 before the first.
    pub epoch: u64,
    /// Who acquired it.
    pub holder: Option<String>,
    /// Bytes on disk, the log included; `None` where there is no disk.
    pub bytes: Option<u64>,
    /// Bytes of the write-ahead log among them.
    pub log_bytes: Option<u64>,
}

/// The writer's side. It belongs to one thread, and blocks it for as long as the disk takes.
pub trait Store: Send {
    /// Takes the lease under a new epoch and makes that durable. From then on every write under an
    /// older epoch is fenced off.
    ///
    /// # Errors
    /// [`StoreError::Held`] while another holder's lease runs.
    fn acquire(&mut self, holder: &str, now: Timestamp) -> Result<Lease, StoreError>;

    /// Holds the lease for longer. Where a lease cannot run out this only checks the epoch.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] once the lease is lost.
    fn renew(&mut self, lease: &mut Lease, now: Timestamp) -> Result<(), StoreError>;

    /// Reads everything that an engine is rebuilt from, in the order of keys.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] once the lease is lost; [`StoreError::Corrupt`] when a row does not
    /// read, which names it.
    fn load(
        &mut self,
        lease: &Lease,
        now: Timestamp,
        limits: &LoadLimits,
    ) -> Result<Rows, StoreError>;

    /// The same without a lease and without a write: for questions while the store takes nothing.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] as [`Store::load`]; when reading fails.
    fn peek(&mut self, now: Timestamp, limits: &LoadLimits) -> Result<Rows, StoreError>;

    /// Applies changes in order, all or none, durable when it returns `Ok`.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] once the lease is lost. After [`StoreError::Io`] the outcome is
    /// unknown, see [`StoreError::outcome_unknown`].
    fn commit(&mut self, lease: &Lease, changes: &[Change]) -> Result<(), StoreError>;

    /// Logs delivery attempts and moves endpoints' cursors, all or none. A cursor never moves
    /// back. What concerns an endpoint that is gone is dropped.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn record(
        &mut self,
        lease: &Lease,
        deliveries: &[DeliveryRow],
        progress: &[Progress],
    ) -> Result<(), StoreError>;

    /// Removes what is older than it must be kept, a bounded piece at a time.
    ///
    /// # Errors
    /// As [`Store::commit`].
    fn prune(
        &mut self,
        lease: &Lease,
        now: Timestamp,
        retention: &Retention,
    ) -> Result<Pruned, StoreError>;

    /// The other side, for any thread.
    fn reader(&self) -> Arc<dyn Reader>;
}

/// The readers' side: what was committed, from any thread, while the writer works.
pub trait Reader: Send + Sync {
    /// One decision.
    ///
    /// # Errors
    /// When reading fails, as everywhere below.
    fn decision(&self, id: DecisionId) -> Result<Option<DecisionRow>, StoreError>;

    /// A page of decisions, the newest first.
    ///
    /// # Errors
    /// When reading fails.
    fn decisions(&self, query: &DecisionQuery) -> Result<DecisionPage, StoreError>;

    /// A page of events, the oldest first.
    ///
    /// # Errors
    /// When reading fails.
    fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError>;

    /// The newest event, above which every later one must lie.
    ///
    /// # Errors
    /// When reading fails.
    fn last_event(&self) -> Result<Option<EventId>, StoreError>;

    /// One sandbox as last committed, alive or ended.
    ///
    /// # Errors
    /// When reading fails.
    fn sandbox(&self, id: SandboxId) -> Result<Option<SandboxRow>, StoreError>;

    /// One reservation as last committed, holding or ended.
    ///
    /// # Errors
    /// When reading fails.
    fn reservation(&self, id: ReservationId) -> Result<Option<ReservationRow>, StoreError>;

    /// A page of ended sandboxes in the order of their ids: those that the engine has let go.
    ///
    /// # Errors
    /// When reading fails.
    fn sandboxes_ended(&self, filter: &SandboxFilter) -> Result<SandboxPage, StoreError>;

    /// A tenant's use by sandbox. Of days that are no longer kept by the hour, the whole day
    /// counts where its first hour lies in the range.
    ///
    /// # Errors
    /// When reading fails, or [`StoreError::TooWide`] when the range holds too many rows.
    fn usage(&self, query: &UsageQuery) -> Result<UsagePage, StoreError>;

    /// A tenant's use by the day of UTC, oldest first, over the hours that begin within
    /// `from..to`; days without use are left out. Of days that are no longer kept by the hour, as
    /// for [`Self::usage`].
    ///
    /// # Errors
    /// As [`Self::usage`].
    fn usage_by_day(
        &self,
        tenant: &TenantId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<UsageDay>, StoreError>;

    /// A page of an endpoint's delivery attempts, the newest first; `before` is the cursor of the
    /// page before.
    ///
    /// # Errors
    /// When reading fails.
    fn deliveries(
        &self,
        endpoint: EndpointId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<DeliveryPage, StoreError>;

    /// How far every endpoint has come.
    ///
    /// # Errors
    /// When reading fails.
    fn progress(&self) -> Result<Vec<Progress>, StoreError>;

    /// What the store says about itself.
    ///
    /// # Errors
    /// When reading fails.
    fn status(&self) -> Result<StoreStatus, StoreError>;
}
