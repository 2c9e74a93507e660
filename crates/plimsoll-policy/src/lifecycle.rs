//! When a sandbox's own limits fall due (seed 001, section 4).

use core::fmt;

use plimsoll_types::{Lifecycle, Millis, SandboxStatus, Timestamp, bounds};

/// How long after a pause that failed a limit asks for the next: a driver that could not a moment
/// ago is not asked for ever anew, and limits are counted in minutes.
pub const PAUSE_AGAIN: Millis = Millis::from_seconds(60);

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
    /// When a pause of it failed last, if one has.
    pub pause_failed_at: Option<Timestamp>,
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
    /// Every action.
    pub const ALL: [Self; 4] =
        [Self::ExpireTtl, Self::ExpirePaused, Self::PauseMaxRun, Self::PauseIdle];

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
///     pause_failed_at: None,
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
    let again = facts.pause_failed_at.map(|at| at + PAUSE_AGAIN);
    let pause = |since: Timestamp, limit: Option<Millis>, action| {
        after(since, limit, action)
            .map(|(at, action)| (again.map_or(at, |next| at.max(next)), action))
    };
    let due = [
        alive.then(|| after(facts.created_at, limits.ttl, Action::ExpireTtl)),
        rests.then(|| after(facts.at_rest_since, limits.max_paused, Action::ExpirePaused)),
        running.then(|| pause(facts.running_since, limits.max_run, Action::PauseMaxRun)),
        running.then(|| pause(active, limits.idle, Action::PauseIdle)),
    ];
    due.into_iter().flatten().flatten().min()
}

/// What is to be done now: the limit that is due, if one is.
#[must_use]
pub fn due(limits: &Limits, facts: &Facts, now: Timestamp) -> Option<Action> {
    next_due(limits, facts).filter(|(at, _)| *at <= now).map(|(_, action)| action)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;

    const OFF_ALL: Lifecycle = Lifecycle {
        idle_timeout_seconds: Some(-1),
        max_run_seconds: Some(-1),
        max_paused_seconds: Some(-1),
        ttl_seconds: Some(-1),
    };

    fn running() -> Facts {
        Facts {
            status: SandboxStatus::Running,
            created_at: Timestamp(0),
            running_since: Timestamp(10_000),
            last_active_at: Timestamp(20_000),
            at_rest_since: Timestamp(0),
            resume_requested: false,
            pause_failed_at: None,
        }
    }

    fn limits(seconds: u64) -> Limits {
        let limit = Some(Millis::from_seconds(seconds));
        Limits { idle: limit, max_run: limit, max_paused: limit, ttl: limit }
    }

    #[test]
    fn values_are_off_or_between_a_minute_and_ten_years() {
        assert_eq!(check(&OFF_ALL), Ok(()));
        assert_eq!(check(&Lifecycle::default()), Ok(()));
        for given in [-2, 0, 1, 59, bounds::LIFECYCLE_SECONDS_MAX + 1, i64::MIN, i64::MAX] {
            let error = check(&Lifecycle { max_run_seconds: Some(given), ..OFF_ALL }).unwrap_err();
            assert_eq!(error, LimitError { field: "max_run_seconds", given });
            assert!(error.to_string().contains("max_run_seconds"), "{error}");
            assert!(error.to_string().contains("60"), "{error}");
        }
    }

    #[test]
    fn a_request_overrides_the_default_and_off_is_a_value() {
        let defaults = Lifecycle { idle_timeout_seconds: Some(300), ..OFF_ALL };
        let of = |seconds| {
            let requested = Lifecycle { idle_timeout_seconds: seconds, ..Lifecycle::default() };
            resolve(&requested, &defaults).idle
        };
        assert_eq!(of(None), Some(Millis(300_000)));
        assert_eq!(of(Some(60)), Some(Millis(60_000)));
        assert_eq!(of(Some(-1)), None);
        assert_eq!(resolve(&Lifecycle::default(), &OFF_ALL), Limits::default());
    }

    #[test]
    fn each_limit_looks_at_its_own_clock() {
        let with = |limits: Limits, facts: Facts| next_due(&limits, &facts);
        let all = limits(100);
        let none = Limits::default();
        let idle = Limits { idle: all.idle, ..none };
        assert_eq!(with(idle, running()), Some((Timestamp(120_000), Action::PauseIdle)));
        let max_run = Limits { max_run: all.max_run, ..none };
        assert_eq!(with(max_run, running()), Some((Timestamp(110_000), Action::PauseMaxRun)));
        assert_eq!(with(all, running()), Some((Timestamp(100_000), Action::ExpireTtl)));
        for status in [SandboxStatus::Paused, SandboxStatus::Stopped] {
            let at_rest = Facts { status, at_rest_since: Timestamp(50_000), ..running() };
            let max_paused = Limits { ttl: None, ..all };
            assert_eq!(with(max_paused, at_rest), Some((Timestamp(150_000), Action::ExpirePaused)));
            let awaited = Facts { resume_requested: true, ..at_rest };
            assert_eq!(with(max_paused, awaited), None);
        }
    }

    #[test]
    fn a_resumed_guest_is_not_idle_for_what_it_did_before() {
        let facts = Facts { running_since: Timestamp(900_000), ..running() };
        let idle = Limits { ttl: None, max_run: None, ..limits(100) };
        assert_eq!(next_due(&idle, &facts), Some((Timestamp(1_000_000), Action::PauseIdle)));
    }

    #[test]
    fn a_pause_that_failed_is_asked_for_again_after_a_while() {
        let facts = Facts { pause_failed_at: Some(Timestamp(2_000_000)), ..running() };
        let pauses = Limits { ttl: None, ..limits(100) };
        assert_eq!(next_due(&pauses, &facts), Some((Timestamp(2_060_000), Action::PauseMaxRun)));
        let deletes = Limits { ttl: limits(100).ttl, ..pauses };
        assert_eq!(due(&deletes, &facts, Timestamp(2_000_001)), Some(Action::ExpireTtl));
    }

    #[test]
    fn time_to_live_holds_in_every_state_that_has_not_ended() {
        let ttl = Limits { ttl: limits(60).ttl, ..Limits::default() };
        for status in SandboxStatus::ALL {
            let facts = Facts { status: *status, ..running() };
            let ended = status.is_terminal() || *status == SandboxStatus::Terminating;
            assert_eq!(next_due(&ttl, &facts).is_some(), !ended, "{status}");
        }
    }

    #[test]
    fn of_two_limits_at_once_the_one_that_deletes_acts() {
        let facts =
            Facts { running_since: Timestamp(0), last_active_at: Timestamp(0), ..running() };
        assert_eq!(due(&limits(60), &facts, Timestamp(60_000)), Some(Action::ExpireTtl));
        assert_eq!(due(&limits(60), &facts, Timestamp(59_999)), None);
    }

    proptest! {
        #[test]
        fn what_is_next_is_due_from_its_instant_on_and_not_before(
            status in 0_usize..10,
            (created, ran, active, rested) in
                (0_i64..1000, 0_i64..1000, 0_i64..1000, 0_i64..1000),
            seconds in proptest::array::uniform4(proptest::option::of(60_u64..1000)),
            resume_requested: bool,
            failed in proptest::option::of(0_i64..100_000),
        ) {
            let [idle, max_run, max_paused, ttl] =
                seconds.map(|seconds| seconds.map(Millis::from_seconds));
            let limits = Limits { idle, max_run, max_paused, ttl };
            let facts = Facts {
                status: SandboxStatus::ALL[status],
                created_at: Timestamp(created),
                running_since: Timestamp(ran),
                last_active_at: Timestamp(active),
                at_rest_since: Timestamp(rested),
                resume_requested,
                pause_failed_at: failed.map(Timestamp),
            };
            match next_due(&limits, &facts) {
                Some((at, action)) => {
                    prop_assert_eq!(due(&limits, &facts, at), Some(action));
                    prop_assert_eq!(due(&limits, &facts, Timestamp(at.0 - 1)), None);
                }
                None => prop_assert_eq!(due(&limits, &facts, Timestamp(i64::MAX)), None),
            }
            // Activity never brings an end closer.
            let active = Facts { last_active_at: Timestamp(active + 500), ..facts };
            let instant = |facts| next_due(&limits, facts).map(|(at, _)| at);
            prop_assert!(instant(&active) >= instant(&facts));
        }
    }
}
