//! Every way of saying no. The one table from here to status and retry stands in `plimsoll-api`.

use core::fmt;
use serde::{Deserialize, Serialize};

use crate::time::Millis;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// A stable, machine-readable reason for a refusal.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum RefusalCode {
            $($(#[$doc])* $variant,)*
        }

        impl RefusalCode {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code as callers see it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl core::str::FromStr for RefusalCode {
            type Err = ();

            fn from_str(text: &str) -> Result<Self, ()> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(()),
                }
            }
        }
    };
}

codes! {
    /// No host or no slot takes it now.
    NoCapacity = "no_capacity",
    /// No host has reported, or all are stale, dead or unknown.
    NoHealthyHosts = "no_healthy_hosts",
    /// Hosts fit, but all are at their bound of concurrent starts.
    HostStartsSaturated = "host_starts_saturated",
    /// Hosts have shut their gates under memory pressure.
    HostPressure = "host_pressure",
    /// The policy is in STATIC mode and sheds sheddable work first.
    Degraded = "degraded",
    /// A call that wakes a guest waited its longest; the resume stays queued.
    WaitingTimeout = "waiting_timeout",
    /// The cell itself has no room for another request.
    Overloaded = "overloaded",
    /// This replica does not lead.
    NotLeader = "not_leader",
    /// The store did not take the batch; the outcome is unknown and the key tells on retry.
    StoreUnavailable = "store_unavailable",
    /// Too many operations in a short time.
    RateLimited = "rate_limited",
    /// A concurrency limit of the tenant.
    QuotaExceeded = "quota_exceeded",
    /// The period's consumption is used up.
    BudgetExhausted = "budget_exhausted",
    /// The tenant is suspended.
    TenantSuspended = "tenant_suspended",
    /// Larger than the largest host known, or than the tenant's own limit.
    NeverFits = "never_fits",
    /// No template of this name.
    UnknownTemplate = "unknown_template",
    /// No pool of this name.
    UnknownPool = "unknown_pool",
    /// The request is malformed.
    InvalidRequest = "invalid_request",
    /// The body is larger than its bound.
    PayloadTooLarge = "payload_too_large",
    /// No key, or one that is not known.
    Unauthenticated = "unauthenticated",
    /// The key's role does not allow this.
    Forbidden = "forbidden",
    /// No such object, or not the caller's.
    NotFound = "not_found",
    /// The same key with another body, or a state that does not allow the call.
    Conflict = "conflict",
    /// The reservation lapsed before it was committed.
    ReservationExpired = "reservation_expired",
    /// The guest could not be started.
    StartFailed = "start_failed",
}

impl RefusalCode {
    /// Whether this is a statement about right now: such a refusal never writes a failure into
    /// anyone's record (I7).
    #[must_use]
    pub const fn is_capacity(self) -> bool {
        matches!(
            self,
            Self::NoCapacity
                | Self::NoHealthyHosts
                | Self::HostStartsSaturated
                | Self::HostPressure
                | Self::Degraded
        )
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// When trying again makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryHint {
    /// Never: the request itself must change, or somebody must act first.
    Never,
    /// After so long, by estimate or exactly.
    After(Millis),
    /// May be tried again; nothing is known about when.
    Maybe,
}
