//! When to try again.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::{rfc2822, strtime};
use tokio::time::Instant;

use crate::config::{WaitHook, Waiting};
use crate::error::Error;

/// How patient a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first window of jitter; it doubles with each attempt.
    pub base: Duration,
    /// The widest window.
    pub cap: Duration,
    /// When patience ends, counted from the call's start. No wait goes beyond it and no attempt
    /// begins after it.
    pub deadline: Duration,
}

impl Default for RetryPolicy {
    /// 250 ms, 8 s, 90 s: a full fleet has a half-life of seconds, and ninety of them are what a
    /// person waits.
    fn default() -> Self {
        Self {
            base: Duration::from_millis(250),
            cap: Duration::from_secs(8),
            deadline: Duration::from_secs(90),
        }
    }
}

impl RetryPolicy {
    /// No second attempt.
    #[must_use]
    pub const fn none() -> Self {
        Self { base: Duration::ZERO, cap: Duration::ZERO, deadline: Duration::ZERO }
    }

    /// The same with another deadline.
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long to wait before the next attempt, or `None` where patience ends first.
    ///
    /// `attempt` counts from 0, `elapsed` is the call's age, `random` is uniform over all of its
    /// values. The wait is `retry_after` plus full jitter: uniform from nothing to
    /// `min(cap, base x 2^attempt)`. Jitter lies above the floor, for else all who were refused in
    /// one second would return in one instant; where the deadline leaves less room, it is spread
    /// over that room and not cut off at its end, which would gather them there.
    ///
    /// ```
    /// use std::time::Duration;
    /// use plimsoll_client::RetryPolicy;
    ///
    /// let policy = RetryPolicy::default();
    /// let floor = Some(Duration::from_secs(5));
    /// let least = policy.next_delay(0, floor, Duration::ZERO, 0);
    /// assert_eq!(least, Some(Duration::from_secs(5)));
    /// let most = policy.next_delay(0, floor, Duration::ZERO, u64::MAX);
    /// assert_eq!(most, Some(Duration::from_millis(5250)));
    /// assert_eq!(policy.next_delay(0, floor, Duration::from_secs(86), 0), None);
    /// ```
    #[must_use]
    pub fn next_delay(
        &self,
        attempt: u32,
        retry_after: Option<Duration>,
        elapsed: Duration,
        random: u64,
    ) -> Option<Duration> {
        let left = self.deadline.checked_sub(elapsed).filter(|left| !left.is_zero())?;
        let floor = retry_after.unwrap_or_default();
        let room = left.checked_sub(floor)?;
        let doubled = 1_u32.checked_shl(attempt).and_then(|times| self.base.checked_mul(times));
        let window = doubled.map_or(self.cap, |window| window.min(self.cap)).min(room);
        Some(floor + share(window, random))
    }
}

/// The part of `window` that `random` is of all its values, in whole nanoseconds, rounded down.
fn share(window: Duration, random: u64) -> Duration {
    // A window is bounded by the deadline; one beyond 2^64 ns (584 years) is taken as that.
    let nanos = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
    let part = u128::from(nanos) * u128::from(random) / u128::from(u64::MAX);
    Duration::from_nanos(u64::try_from(part).unwrap_or(nanos))
}

/// The wait that a `Retry-After` header asks for, in either of its forms: whole seconds, or a date
/// (also in the two old ones that RFC 9110 has readers accept). A date is held against `now`,
/// which is best the `Date` of the same answer, so that no two clocks are compared.
#[must_use]
pub fn parse_retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // Digits too many for 64 bits mean "never" for any deadline.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let at = parse_http_date(value)?;
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

/// Reads a date as HTTP headers have it.
pub(crate) fn parse_http_date(value: &str) -> Option<Timestamp> {
    if let Ok(zoned) = rfc2822::parse(value) {
        return Some(zoned.timestamp());
    }
    let old = ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];
    old.iter().find_map(|format| {
        let parsed = strtime::parse(format, value).ok()?;
        let at = parsed.to_datetime().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
        Some(at.timestamp())
    })
}

/// Which errors a call may be repeated after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Twice is as good as once: any transient error.
    Safely,
    /// Only where the call was certainly not carried out.
    IfUndone,
    /// Its caller repeats it.
    Never,
}

impl Repeat {
    fn after(self, error: &Error) -> bool {
        match self {
            Self::Safely => error.is_transient(),
            Self::IfUndone => error.is_surely_undone(),
            Self::Never => false,
        }
    }
}

/// Makes attempts until one succeeds, one is refused for good, or patience ends. Each attempt is
/// told how much time the deadline leaves.
pub(crate) async fn persist<T, F: Future<Output = Result<T, Error>>>(
    policy: &RetryPolicy,
    repeat: Repeat,
    on_wait: Option<&WaitHook>,
    mut attempt: impl FnMut(Duration) -> F,
) -> Result<T, Error> {
    let start = Instant::now();
    let mut attempts = 0;
    loop {
        let left = policy.deadline.saturating_sub(start.elapsed());
        let error = match attempt(left).await {
            Ok(answer) => return Ok(answer),
            Err(error) if repeat.after(&error) => error,
            Err(error) => return Err(error),
        };
        let elapsed = start.elapsed();
        let delay = policy.next_delay(attempts, error.retry_after(), elapsed, random()?);
        attempts += 1;
        let Some(delay) = delay else {
            let last = Box::new(error);
            return Err(Error::CapacityUnavailable { waited: elapsed, attempts, last });
        };
        tracing::debug!(attempts, ?delay, %error, "waiting");
        if let Some(hook) = on_wait {
            let deadline = policy.deadline;
            hook(&Waiting { attempts, delay, elapsed, deadline, cause: &error });
        }
        tokio::time::sleep(delay).await;
    }
}

/// Sixty-four random bits of the system.
pub(crate) fn random() -> Result<u64, Error> {
    getrandom::u64().map_err(|error| Error::Entropy(error.to_string()))
}

#[cfg(test)]
mod tests;
