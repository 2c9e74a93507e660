use plimsoll_types::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// The two clocks of a host at one moment.
///
/// Lengths are taken from the uptime alone: the wall clock may be set back or forth while guests
/// run, and a reserve must not decay because of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTime {
    /// The wall clock, for what people read.
    pub clock: Timestamp,
    /// Time since the machine booted, sleep included. Never falls within one boot.
    pub uptime: Millis,
}

impl HostTime {
    /// How long ago the uptime was `earlier`; zero when that lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Millis) -> Millis {
        Millis(self.uptime.0.saturating_sub(earlier.0))
    }
}

/// The uptime `length` after `from`, held at the largest value that fits.
pub(crate) const fn later(from: Millis, length: Millis) -> Millis {
    Millis(from.0.saturating_add(length.0))
}

/// An uptime as the instant that the policy's functions take; only differences count there.
pub(crate) const fn instant(uptime: Millis) -> Timestamp {
    Timestamp(if uptime.0 > i64::MAX as u64 { i64::MAX } else { uptime.0 as i64 })
}
