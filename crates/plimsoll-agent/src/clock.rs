//! The one place where the agent reads the time.

use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_host::HostTime;
use plimsoll_types::{Millis, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// Both clocks now: the wall clock for people, the time since boot (sleep included) for lengths.
pub(crate) fn now() -> HostTime {
    let boot = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(boot.tv_sec).unwrap_or(0);
    let millis = u64::try_from(boot.tv_nsec / 1_000_000).unwrap_or(0);
    let clock = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        // A clock before 1970 is wrong, and the start of its count is as good as any.
        Err(_) => 0,
    };
    HostTime {
        clock: Timestamp(clock),
        uptime: Millis(seconds.saturating_mul(1000).saturating_add(millis)),
    }
}
