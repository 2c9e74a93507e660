//! Questions to a [`crate::Reader`], and pages of answers.
//!
//! A page is bounded twice: by the rows that it returns and by the rows that it looks at. A rare
//! match in a long log therefore comes as a short page with a cursor, and a question never holds a
//! connection for long. Only a cursor of `None` ends a list.

use plimsoll_engine::SandboxFilter;
use plimsoll_engine::rows::{DecisionRow, EventRow, SandboxRow, UsageRow};
use plimsoll_types::{
    ClaimId, DecisionId, EventId, RefusalCode, SandboxId, TenantId, Timestamp, bounds,
};

/// Most rows that one page looks at, filtered ones included: some 20 ms of reading.
pub(crate) const EXAMINED_MAX: usize = 20_000;

/// Most rows that one page returns.
pub(crate) const PAGE_MAX: usize = bounds::PAGE_LIMIT_MAX;

/// Ids grow with time, to within this: a scan for decisions since an instant may stop at the
/// first one that is older by more. Ten minutes covers clock steps between replicas.
pub(crate) const ID_ORDER_SLACK_MILLIS: u64 = 600_000;

/// Decisions with which verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeFilter {
    /// Those that admitted.
    Admitted,
    /// Those that refused, for whatever reason.
    Refused,
    /// Those that refused with this code.
    Code(RefusalCode),
}

impl CodeFilter {
    /// Whether a decision with this code is meant.
    #[must_use]
    pub fn matches(self, code: Option<RefusalCode>) -> bool {
        match self {
            Self::Admitted => code.is_none(),
            Self::Refused => code.is_some(),
            Self::Code(wanted) => code == Some(wanted),
        }
    }
}

/// Which decisions, the newest first.
#[derive(Clone, Debug, Default)]
pub struct DecisionQuery {
    /// Of this tenant.
    pub tenant: Option<TenantId>,
    /// With this verdict.
    pub code: Option<CodeFilter>,
    /// Not older than this.
    pub from: Option<Timestamp>,
    /// Older than this one: the cursor of the page before.
    pub before: Option<DecisionId>,
    /// Most rows; at least 1 and at most `bounds::PAGE_LIMIT_MAX` are returned.
    pub limit: usize,
}

impl DecisionQuery {
    /// Whether a row is asked for, its place in the list aside.
    pub(crate) fn matches(&self, row: &DecisionRow) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
            && self.code.is_none_or(|code| code.matches(row.code))
            && self.from.is_none_or(|from| row.at >= from)
    }

    /// Whether no older row than this one can be asked for.
    pub(crate) fn ends_at(&self, at: Timestamp) -> bool {
        self.from.is_some_and(|from| from.since(at).get() > ID_ORDER_SLACK_MILLIS)
    }
}

/// A page of decisions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecisionPage {
    /// The rows, the newest first.
    pub items: Vec<DecisionRow>,
    /// What to ask for next as `before`; `None` at the end.
    pub next: Option<DecisionId>,
}

/// Which events, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct EventQuery {
    /// After this one; `None` from the beginning of what is kept.
    pub after: Option<EventId>,
    /// Of this tenant; `None` is every event, those for operators only included.
    pub tenant: Option<TenantId>,
    /// Most rows; at least 1 and at most `bounds::PAGE_LIMIT_MAX` are returned.
    pub limit: usize,
}

/// A page of events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventPage {
    /// The rows, the oldest first.
    pub items: Vec<EventRow>,
    /// The last event looked at, whether it was asked for or not: what to ask for next as `after`.
    /// `None` when there was none after the one asked for.
    pub through: Option<EventId>,
    /// Whether there may be more after it now.
    pub more: bool,
}

/// A page of ended sandboxes in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxPage {
    /// The rows.
    pub items: Vec<SandboxRow>,
    /// What to ask for next as `after`; `None` at the end.
    pub next: Option<SandboxId>,
}

/// Whose use, and when. Hours that begin within `from..to`.
#[derive(Clone, Debug)]
pub struct UsageQuery {
    /// Whose.
    pub tenant: TenantId,
    /// From the hour that begins here or later.
    pub from: Timestamp,
    /// Up to, and without, the hour that begins here.
    pub to: Timestamp,
    /// After this one, in the order of ids.
    pub after: Option<ClaimId>,
    /// Most rows; at least 1 and at most `bounds::PAGE_LIMIT_MAX` are returned.
    pub limit: usize,
}

/// What one sandbox or reservation used over the hours asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageTotal {
    /// Which.
    pub claim: ClaimId,
    /// CPU in core-milliseconds.
    pub cpu_millis: u64,
    /// Charged memory in MiB-milliseconds.
    pub charged_mib_millis: u64,
    /// Resident memory in MiB-milliseconds.
    pub resident_mib_millis: u64,
    /// Bytes sent out.
    pub egress_bytes: u64,
}

impl UsageTotal {
    /// Nothing used yet.
    pub(crate) const fn of(claim: ClaimId) -> Self {
        Self {
            claim,
            cpu_millis: 0,
            charged_mib_millis: 0,
            resident_mib_millis: 0,
            egress_bytes: 0,
        }
    }

    /// Adds one row.
    pub(crate) fn add(&mut self, row: &UsageRow) {
        self.cpu_millis = self.cpu_millis.saturating_add(row.cpu_millis);
        self.charged_mib_millis = self.charged_mib_millis.saturating_add(row.charged_mib_millis);
        self.resident_mib_millis = self.resident_mib_millis.saturating_add(row.resident_mib_millis);
        self.egress_bytes = self.egress_bytes.saturating_add(row.egress_bytes);
    }
}

/// A page of usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsagePage {
    /// The rows, in the order of their ids.
    pub items: Vec<UsageTotal>,
    /// What to ask for next as `after`; `None` at the end.
    pub next: Option<ClaimId>,
}

/// What a tenant used on one day of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageDay {
    /// Where the day begins.
    pub day: Timestamp,
    /// CPU in core-milliseconds.
    pub cpu_millis: u64,
    /// Charged memory in MiB-milliseconds.
    pub charged_mib_millis: u64,
    /// Resident memory in MiB-milliseconds.
    pub resident_mib_millis: u64,
    /// Bytes sent out.
    pub egress_bytes: u64,
}

impl UsageDay {
    /// Nothing used yet.
    pub(crate) const fn of(day: Timestamp) -> Self {
        Self { day, cpu_millis: 0, charged_mib_millis: 0, resident_mib_millis: 0, egress_bytes: 0 }
    }

    /// Adds one row.
    pub(crate) fn add(&mut self, row: &UsageRow) {
        self.cpu_millis = self.cpu_millis.saturating_add(row.cpu_millis);
        self.charged_mib_millis = self.charged_mib_millis.saturating_add(row.charged_mib_millis);
        self.resident_mib_millis = self.resident_mib_millis.saturating_add(row.resident_mib_millis);
        self.egress_bytes = self.egress_bytes.saturating_add(row.egress_bytes);
    }
}

/// A caller's limit held within bounds.
pub(crate) fn page_limit(limit: usize) -> usize {
    limit.clamp(1, PAGE_MAX)
}

/// Whether a sandbox is asked for, its place in the list aside.
pub(crate) fn sandbox_matches(filter: &SandboxFilter, row: &SandboxRow) -> bool {
    filter.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
        && filter.status.is_none_or(|status| status == row.status)
        && filter.pool.as_ref().is_none_or(|pool| Some(pool) == row.pool.as_ref())
        && filter
            .label
            .as_ref()
            .is_none_or(|(key, value)| row.labels.get(key) == Some(value.as_str()))
}
