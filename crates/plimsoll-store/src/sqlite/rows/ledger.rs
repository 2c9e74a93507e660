//! Rows that live and end, as both kinds have it.

use plimsoll_engine::rows::{ReservationRow, SandboxRow};
use plimsoll_types::{ReservationId, SandboxId};

use super::SqlRow;

/// A row that lives in one table and ends in another.
pub(in crate::sqlite) trait LedgerRow: SqlRow + Send {
    /// The key.
    type Id: Copy + Ord + std::hash::Hash + std::fmt::Display + std::str::FromStr + Send;
    /// Where it stands while it lives.
    const LIVE: &'static str;
    /// Where it stands once it has ended.
    const ENDED: &'static str;

    /// Its key.
    fn id(&self) -> Self::Id;
    /// Whether it has come to its end.
    fn has_ended(&self) -> bool;
}

impl LedgerRow for SandboxRow {
    type Id = SandboxId;
    const LIVE: &'static str = "sandboxes";
    const ENDED: &'static str = "sandboxes_ended";

    fn id(&self) -> SandboxId {
        self.id
    }

    fn has_ended(&self) -> bool {
        self.status.is_terminal()
    }
}

impl LedgerRow for ReservationRow {
    type Id = ReservationId;
    const LIVE: &'static str = "reservations";
    const ENDED: &'static str = "reservations_ended";

    fn id(&self) -> ReservationId {
        self.id
    }

    fn has_ended(&self) -> bool {
        !self.state.holds()
    }
}
