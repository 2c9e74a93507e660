//! When a sandbox's own limits fall due (seed 001, section 4).

use core::fmt;

use plimsoll_types::{Lifecycle, Millis, SandboxStatus, Timestamp, bounds};

/// Turns a limit off.
pub const OFF: i64 = -1;

/// A lifecycle limit that is out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitError {
    /// The field.
    pub field: &'static str,
    /// What it holds.
    pub given: i64,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {}; it must be {} to {} seconds, or {OFF} for off",
            self.field,
            self.given,
            bounds::LIFECYCLE_SECONDS_MIN,
            bounds::LIFECYCLE_SECONDS_MAX
        )
    }
}

impl core::error::Error for LimitError {}

/// Whether every limit that is set is in bounds: at least 60 s, or -1 for off.
///
/// # Errors
/// Names the first field that is not.
///
/// ```
/// use plimsoll_policy::lifecycle::check;
/// use plimsoll_types::Lifecycle;
///
/// assert!(check(&Lifecycle { ttl_seconds: Some(60), ..Lifecycle::default() }).is_ok());
/// let error = check(&Lifecycle { ttl_seconds: Some(59), ..Lifecycle::default() }).unwrap_err();
/// assert_eq!((error.field, error.given), ("ttl_seconds", 59));
/// ```
pub fn check(lifecycle: &Lifecycle) -> Result<(), LimitError> {
    let fields = [
        ("idle_timeout_seconds", lifecycle.idle_timeout_seconds),
        ("max_run_seconds", lifecycle.max_run_seconds),
        ("max_paused_seconds", lifecycle.max_paused_seconds),
        ("ttl_seconds", lifecycle.ttl_seconds),
    ];
    let range = bounds::LIFECYCLE_SECONDS_MIN..=bounds::LIFECYCLE_SECONDS_MAX;
    for (field, value) in fields {
        if let Some(given) = value
            && given != OFF
            && !range.contains(&given)
        {
            return Err(LimitError { field, given });
        }
    }
    Ok(())
}

/// The limits that hold for one sandbox; `None` is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Pause after this long without activity.
    pub idle: Option<Millis>,
    /// Pause after this long of running without a break.
    pub max_run: Option<Millis>,
    /// Delete after this long at rest.
    pub max_paused: Option<Millis>,
    /// Delete after this long.
    pub ttl: Option<Millis>,
}

/// The limits that a request's values and the operator's defaults amount to: what the request
/// says counts, off included; what it leaves out takes the default.
///
/// Values come checked ([`check`]); one that is out of bounds all the same is treated as off,
/// since the other reading would end a guest.
#[must_use]
pub fn resolve(requested: &Lifecycle, defaults: &Lifecycle) -> Limits {
    let limit = |requested: Option<i64>, default: Option<i64>| {
        let seconds = requested.or(default)?;
        if seconds < bounds::LIFECYCLE_SECONDS_MIN {
            return None;
        }
        Some(Millis::from_seconds(seconds.unsigned_abs()))
    };
    Limits {
        idle: limit(requested.idle_timeout_seconds, defaults.idle_timeout_seconds),
        max_run: limit(requested.max_run_seconds, defaults.max_run_seconds),
        max_paused: limit(requested.max_paused_seconds, defaults.max_paused_seconds),
        ttl: limit(requested.ttl_seconds, defaults.ttl_seconds),
    }
}

/// What of a sandbox's record its limits look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its state.
    pub status: SandboxStatus,
    /// When it was created.
    pub created_at: Timestamp,
    /// While running: since when without a break.
    pub running_since: Timestamp,
    /// Its last activity.
    pub last_active_at: Timestamp,
    /// While paused or stopped: since when.
    pub at_rest_since: Timestamp,
    /// Whether a resume of it is queued. What somebody waits for is not deleted for resting.
    pub resume_requested: bool,
}

/// What a limit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Delete: the time to live is over.
    ExpireTtl,
    /// Delete: it has been at rest too long.
    ExpirePaused,
    /// Pause (or stop, where a pause is not possible): it has run too long without a break.
    PauseMaxRun,
    /// Pause (or stop): it is idle.
    PauseIdle,
}

impl Action {
    /// Whether the sandbox is deleted.
    #[must_use]
    pub const fn deletes(self) -> bool {
        matches!(self, Self::ExpireTtl | Self::ExpirePaused)
    }

    /// The word for the metric's `action` label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ExpireTtl => "ttl",
            Self::ExpirePaused => "max_paused",
            Self::PauseMaxRun => "max_run",
            Self::PauseIdle => "idle",
        }
    }
}

/// The limit that falls due first in the sandbox's present state, and when; of two at once, the
/// one that deletes. `None` when no limit applies.
///
/// ```
/// use plimsoll_policy::lifecycle::{Action, Facts, Limits, next_due};
/// use plimsoll_types::{Millis, SandboxStatus, Timestamp};
///
/// let limits = Limits {
///     idle: Some(Millis(60_000)),
///     ttl: Some(Millis(100_000)),
///     ..Limits::default()
/// };
/// let mut facts = Facts {
///     status: SandboxStatus::Running,
///     created_at: Timestamp(0),
///     running_since: Timestamp(1_000),
///     last_active_at: Timestamp(5_000),
///     at_rest_since: Timestamp(0),
///     resume_requested: false,
/// };
/// assert_eq!(next_due(&limits, &facts), Some((Timestamp(65_000), Action::PauseIdle)));
/// facts.last_active_at = Timestamp(50_000);
/// assert_eq!(next_due(&limits, &facts), Some((Timestamp(100_000), Action::ExpireTtl)));
/// ```
#[must_use]
pub fn next_due(limits: &Limits, facts: &Facts) -> Option<(Timestamp, Action)> {
    use SandboxStatus::{Paused, Running, Stopped, Terminating};
    let after = |since: Timestamp, limit: Option<Millis>, action| {
        limit.map(|limit| (since + limit, action))
    };
    let alive = !facts.status.is_terminal() && facts.status != Terminating;
    let running = facts.status == Running;
    let rests = matches!(facts.status, Paused | Stopped) && !facts.resume_requested;
    let active = facts.last_active_at.max(facts.running_since);
    let due = [
        alive.then(|| after(facts.created_at, limits.ttl, Action::ExpireTtl)),
        rests.then(|| after(facts.at_rest_since, limits.max_paused, Action::ExpirePaused)),
        running.then(|| after(facts.running_since, limits.max_run, Action::PauseMaxRun)),
        running.then(|| after(active, limits.idle, Action::PauseIdle)),
    ];
    due.into_iter().flatten().flatten().min()
}

/// What is to be done now: the limit that is due, if one is.
#[must_use]
pub fn due(limits: &Limits, facts: &Facts, now: Timestamp) -> Option<Action> {
    next_due(limits, facts).filter(|(at, _)| *at <= now).map(|(_, action)| action)
}
