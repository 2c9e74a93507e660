//! The webhook log: what was tried, and how far each endpoint has come.
//!
//! The engine owns an endpoint's settings. How far its deliveries have come is the delivering
//! task's to say, so it is kept beside the endpoint's row and laid over it when rows are loaded: an
//! endpoint that an operator edits is never thrown back to an older event.

use plimsoll_types::{EndpointId, EventId, Timestamp};
use serde::{Deserialize, Serialize};

/// Most attempts that are kept of one endpoint, the newest: some months of an endpoint that fails,
/// the last minutes of a busy one, and 200 KiB either way.
pub const DELIVERIES_PER_ENDPOINT_MAX: usize = 1_000;

/// How one attempt to deliver came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryOutcome {
    /// The endpoint took it.
    Delivered,
    /// It did not; there will be another attempt.
    Failed,
    /// It did not, and there will be no other attempt.
    GivenUp,
}

impl DeliveryOutcome {
    /// Every outcome.
    pub const ALL: [Self; 3] = [Self::Delivered, Self::Failed, Self::GivenUp];

    /// The word used at every edge.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::GivenUp => "given_up",
        }
    }
}

/// One attempt to deliver one event to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRow {
    /// To whom.
    pub endpoint: EndpointId,
    /// What; the same id on every attempt.
    pub event: EventId,
    /// The event's kind, for lists.
    pub kind: String,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// When it began.
    pub at: Timestamp,
    /// How long it took, in milliseconds.
    pub duration_millis: u64,
    /// How it came out.
    pub outcome: DeliveryOutcome,
    /// The HTTP status, where there was an answer.
    pub status: Option<u16>,
    /// Why it failed, for people; never a secret.
    pub detail: Option<String>,
    /// When the next attempt is due.
    pub next_attempt_at: Option<Timestamp>,
}

/// A page of one endpoint's attempts, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryPage {
    /// The attempts.
    pub items: Vec<DeliveryRow>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<u64>,
}

/// How far an endpoint has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Whose.
    pub endpoint: EndpointId,
    /// Every event up to this one was delivered or given up on.
    pub cursor: EventId,
    /// Since when its deliveries have failed.
    pub failing_since: Option<Timestamp>,
}
