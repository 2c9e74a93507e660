//! What can go wrong with a call.

use std::fmt;
use std::time::Duration;

use plimsoll_api::{Problem, ProblemCode};
use plimsoll_types::{DecisionId, RefusalCode};

/// Why a call gave no answer of its own.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The service said no.
    #[error("{0}")]
    Refused(Box<Refused>),
    /// Patience ended while the service could not take the call. Transient: the work is waiting,
    /// it has not failed, and this belongs in no status column.
    #[error(
        "still waiting after {:.1} s and {attempts} attempts; not failed, try again later",
        waited.as_secs_f64()
    )]
    CapacityUnavailable {
        /// How long the call took.
        waited: Duration,
        /// How many attempts were made.
        attempts: u32,
        /// What the last one came to.
        #[source]
        last: Box<Error>,
    },
    /// No connection came about: the call was certainly not carried out.
    #[error("cannot connect to {url}")]
    Connect {
        /// The replica.
        url: String,
        /// Why not.
        #[source]
        source: reqwest::Error,
    },
    /// The connection broke before the answer was there: the call may have been carried out.
    #[error("the connection to {url} broke")]
    Broken {
        /// The replica.
        url: String,
        /// How.
        #[source]
        source: reqwest::Error,
    },
    /// No whole answer in time: the call may have been carried out.
    #[error("no answer from {url} within {:.1} s", after.as_secs_f64())]
    Timeout {
        /// The replica.
        url: String,
        /// The time it had.
        after: Duration,
    },
    /// The answer is larger than what this client reads.
    #[error("the answer of {url} is larger than {bytes_max} bytes")]
    TooLarge {
        /// The replica.
        url: String,
        /// The bound.
        bytes_max: usize,
    },
    /// The answer is none that this client understands.
    #[error("the answer of {url} with status {status} is not understood: {detail}")]
    Malformed {
        /// The replica.
        url: String,
        /// Its status.
        status: u16,
        /// What does not fit.
        detail: String,
    },
    /// The settings or the arguments make no request.
    #[error("{what}: {detail}")]
    Config {
        /// Which setting or argument.
        what: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// The system gave no randomness, without which neither keys nor jitter can be made.
    #[error("the system gives no randomness: {0}")]
    Entropy(String),
}

/// A no of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// The body, where it was a problem; something between client and cell may answer otherwise.
    pub problem: Option<Problem>,
    /// Not before so long: the larger of the header and the body's `retry_after_millis`.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(problem) = &self.problem else {
            return write!(f, "refused with status {} and no reason", self.status);
        };
        let said = if problem.detail.is_empty() { &problem.title } else { &problem.detail };
        write!(f, "{}: {said}", problem.code)
    }
}

impl Error {
    /// The refusal, the last one where patience ended.
    #[must_use]
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            Self::Refused(refused) => Some(refused),
            Self::CapacityUnavailable { last, .. } => last.refused(),
            _ => None,
        }
    }

    /// The problem body of the refusal.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        self.refused().and_then(|refused| refused.problem.as_ref())
    }

    /// The HTTP status of the refusal.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.refused().map(|refused| refused.status)
    }

    /// The code of the refusal, where this version knows it.
    #[must_use]
    pub fn code(&self) -> Option<RefusalCode> {
        self.problem().and_then(|problem| problem.code.refusal())
    }

    /// The decision behind the refusal.
    #[must_use]
    pub fn decision_id(&self) -> Option<DecisionId> {
        self.problem().and_then(|problem| problem.decision_id)
    }

    /// Not before so long, as the service said.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.refused().and_then(|refused| refused.retry_after)
    }

    /// Whether the same call may succeed later with nobody changing anything: statuses 429, 502,
    /// 503 and 504, and everything that went wrong on the way.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused(refused) => matches!(refused.status, 429 | 502 | 503 | 504),
            Self::CapacityUnavailable { .. }
            | Self::Connect { .. }
            | Self::Broken { .. }
            | Self::Timeout { .. } => true,
            Self::TooLarge { .. }
            | Self::Malformed { .. }
            | Self::Config { .. }
            | Self::Entropy(_) => false,
        }
    }

    /// Whether the call was certainly not carried out, so that even one that must not happen twice
    /// may be sent again.
    pub(crate) fn is_surely_undone(&self) -> bool {
        match self {
            Self::Refused(refused) => matches!(refused.status, 429 | 503),
            Self::Connect { .. } => true,
            _ => false,
        }
    }

    /// Whether another replica may be able to answer what this one could not.
    pub(crate) fn is_of_replica(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Broken { .. } | Self::Timeout { .. } => true,
            Self::Refused(refused) => refused.problem.as_ref().is_some_and(|problem| {
                problem.code == ProblemCode::Refusal(RefusalCode::NotLeader)
            }),
            _ => false,
        }
    }
}
