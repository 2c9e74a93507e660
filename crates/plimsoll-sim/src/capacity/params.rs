//! What a run of the model is made of, and the bounds of it.

use std::fmt;
use std::str::FromStr;

use plimsoll_types::{Millis, PauseKind, Preemption, PreemptionMode};
use serde::{Serialize, Serializer};

/// How the pool of the model treats a paused computer, and whom it preempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// A paused computer keeps its slot: its pool's pause keeps it on the host.
    Hold,
    /// A paused computer gives its slot back, and resumes queue.
    Release,
    /// `release`, and a waiting resume has an idle computer paused.
    PreemptIdle,
    /// `release`, and a waiting resume has the least recently used computer paused, busy or not.
    PreemptLru,
}

impl Strategy {
    /// Every strategy, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Hold, Self::Release, Self::PreemptIdle, Self::PreemptLru];

    /// Its word on the command line and in every table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Release => "release",
            Self::PreemptIdle => "preempt-idle",
            Self::PreemptLru => "preempt-lru",
        }
    }

    /// What a pause does on the model's pool.
    pub(super) const fn pause(self) -> PauseKind {
        match self {
            Self::Hold => PauseKind::Keep,
            _ => PauseKind::Checkpoint,
        }
    }

    /// Whether a paused computer has given its slot back.
    pub(super) const fn releases(self) -> bool {
        matches!(self.pause(), PauseKind::Checkpoint)
    }

    /// The pool's preemption.
    pub(super) const fn preemption(self, params: &Params) -> Preemption {
        let mode = match self {
            Self::Hold | Self::Release => PreemptionMode::Off,
            Self::PreemptIdle => PreemptionMode::Idle,
            Self::PreemptLru => PreemptionMode::Lru,
        };
        Preemption {
            mode,
            idle_seconds: params.preempt_idle_seconds,
            min_run_seconds: params.preempt_lru_seconds,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Strategy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A word that names no strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no strategy {given:?}; there are: hold, release, preempt-idle, preempt-lru")]
pub struct UnknownStrategy {
    /// What was given.
    pub given: String,
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(word: &str) -> Result<Self, UnknownStrategy> {
        Self::ALL
            .into_iter()
            .find(|strategy| strategy.as_str() == word)
            .ok_or_else(|| UnknownStrategy { given: word.to_owned() })
    }
}

/// What a run is made of, beside the number of users, the strategy and the seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Slots of the pool.
    pub slots: u64,
    /// Days of a run.
    pub days: u64,
    /// The hour of the day from which sessions begin.
    pub from_hour: u64,
    /// The hour of the day from which none begins any more.
    pub until_hour: u64,
    /// Mean time from the end of a user's session, or from the day's begin, to the next one.
    pub gap_seconds: u64,
    /// Median length of a session.
    pub session_median_seconds: u64,
    /// Standard deviation of the logarithm of a session's length.
    pub session_sigma: f64,
    /// How often a session calls into its computer.
    pub call_seconds: u64,
    /// A computer is paused when it was not called into for so long.
    pub idle_timeout_seconds: u64,
    /// How long a pause takes.
    pub pause_seconds: u64,
    /// How long a start or a resume takes.
    pub resume_seconds: u64,
    /// Strategy `preempt-idle`: a computer that was not called into for so long may be preempted.
    pub preempt_idle_seconds: u64,
    /// Strategy `preempt-lru`: a computer that has run for so long may be preempted.
    pub preempt_lru_seconds: u64,
    /// A computer brought in by preemption is not preempted for so long.
    pub protect_seconds: u64,
    /// A user does not get back the slot of whoever made that user wait before this long.
    pub pair_seconds: u64,
}

impl Default for Params {
    /// Four slots; five days of sessions from 9:00 to 17:00, 80 min apart, median 12 min; idle
    /// after 5 min; 3 min to pause and 2 s to resume; preemption after 1 min of idling or 10 min
    /// of running, with no protection beyond that.
    fn default() -> Self {
        Self {
            slots: 4,
            days: 5,
            from_hour: 9,
            until_hour: 17,
            gap_seconds: 4_800,
            session_median_seconds: 720,
            session_sigma: 0.75,
            call_seconds: 30,
            idle_timeout_seconds: 300,
            pause_seconds: 180,
            resume_seconds: 2,
            preempt_idle_seconds: 60,
            preempt_lru_seconds: 600,
            protect_seconds: 0,
            pair_seconds: 0,
        }
    }
}

/// A parameter that is out of its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {given}; it must be {bound}")]
pub struct ParamError {
    /// The parameter, as the command line calls it.
    pub field: &'static str,
    /// What was given.
    pub given: String,
    /// What it may be.
    pub bound: String,
}

/// Most users and slots: a run keeps a record of each user in memory, and its time grows with
/// them.
pub const USERS_MAX: u64 = 10_000;

/// Most days: the figures of a year of days do not change any more.
pub const DAYS_MAX: u64 = 366;

/// Most seeds.
pub const SEEDS_MAX: u64 = 10_000;

/// The longest of every length of time: a day.
pub(super) const DAY_SECONDS: u64 = 86_400;

/// The widest spread of session lengths: with it one session in six lasts twenty times the median.
const SIGMA_MAX: f64 = 3.0;

/// Holds a whole number against its bounds.
///
/// # Errors
/// When it is out of them.
pub fn within(field: &'static str, given: u64, least: u64, most: u64) -> Result<(), ParamError> {
    if (least..=most).contains(&given) {
        return Ok(());
    }
    Err(ParamError { field, given: given.to_string(), bound: format!("{least} to {most}") })
}

impl Params {
    /// Holds every parameter against its bounds.
    ///
    /// # Errors
    /// Names the first one that is out of them.
    ///
    /// ```
    /// use plimsoll_sim::capacity::Params;
    ///
    /// assert!(Params::default().check().is_ok());
    /// let error = Params { slots: 0, ..Params::default() }.check().unwrap_err();
    /// assert_eq!(error.to_string(), "slots is 0; it must be 1 to 10000");
    /// ```
    pub fn check(&self) -> Result<(), ParamError> {
        within("slots", self.slots, 1, USERS_MAX)?;
        within("days", self.days, 1, DAYS_MAX)?;
        within("until-hour", self.until_hour, 1, 24)?;
        within("from-hour", self.from_hour, 0, self.until_hour - 1)?;
        within("gap-seconds", self.gap_seconds, 1, DAY_SECONDS)?;
        within("session-median-seconds", self.session_median_seconds, 1, DAY_SECONDS)?;
        if !(0.0..=SIGMA_MAX).contains(&self.session_sigma) {
            return Err(ParamError {
                field: "session-sigma",
                given: self.session_sigma.to_string(),
                bound: format!("0 to {SIGMA_MAX}"),
            });
        }
        // Below a minute the engine takes a lifecycle limit as off.
        within("idle-timeout-seconds", self.idle_timeout_seconds, 60, DAY_SECONDS)?;
        // A session that calls less often would be paused as idle.
        within("call-seconds", self.call_seconds, 1, self.idle_timeout_seconds - 1)?;
        within("pause-seconds", self.pause_seconds, 0, DAY_SECONDS)?;
        within("resume-seconds", self.resume_seconds, 0, DAY_SECONDS)?;
        within("preempt-idle-seconds", self.preempt_idle_seconds, 0, DAY_SECONDS)?;
        within("preempt-lru-seconds", self.preempt_lru_seconds, 0, DAY_SECONDS)?;
        within("protect-seconds", self.protect_seconds, 0, DAY_SECONDS)?;
        within("pair-seconds", self.pair_seconds, 0, DAY_SECONDS)
    }

    /// The length of a run.
    pub(super) const fn length(&self) -> Millis {
        Millis::from_seconds(self.days * DAY_SECONDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_bounds_and_is_named_with_them() {
        let day = "86400";
        let params = Params::default;
        for (wrong, field, bound) in [
            (Params { slots: 10_001, ..params() }, "slots is 10001", "1 to 10000"),
            (Params { days: 0, ..params() }, "days is 0", "1 to 366"),
            (Params { until_hour: 25, ..params() }, "until-hour is 25", "1 to 24"),
            (Params { from_hour: 17, ..params() }, "from-hour is 17", "0 to 16"),
            (Params { gap_seconds: 0, ..params() }, "gap-seconds is 0", day),
            (
                Params { session_median_seconds: 86_401, ..params() },
                "session-median-seconds is 86401",
                day,
            ),
            (Params { session_sigma: -0.1, ..params() }, "session-sigma is -0.1", "0 to 3"),
            (Params { session_sigma: f64::NAN, ..params() }, "session-sigma is NaN", "0 to 3"),
            (
                Params { idle_timeout_seconds: 59, ..params() },
                "idle-timeout-seconds is 59",
                "60 to 86400",
            ),
            (Params { call_seconds: 300, ..params() }, "call-seconds is 300", "1 to 299"),
            (Params { pause_seconds: 86_401, ..params() }, "pause-seconds is 86401", day),
            (Params { resume_seconds: 86_401, ..params() }, "resume-seconds is 86401", day),
            (
                Params { preempt_idle_seconds: 86_401, ..params() },
                "preempt-idle-seconds is 86401",
                day,
            ),
            (
                Params { preempt_lru_seconds: 86_401, ..params() },
                "preempt-lru-seconds is 86401",
                day,
            ),
            (Params { protect_seconds: 86_401, ..params() }, "protect-seconds is 86401", day),
            (Params { pair_seconds: 86_401, ..params() }, "pair-seconds is 86401", day),
        ] {
            let said = wrong.check().unwrap_err().to_string();
            assert!(said.starts_with(&format!("{field}; it must be ")), "{said}");
            assert!(said.ends_with(bound), "{said}");
        }
        assert_eq!(params().check(), Ok(()));
    }

    #[test]
    fn strategies_are_read_by_their_words_alone() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.as_str().parse(), Ok(strategy));
        }
        let said = "lru".parse::<Strategy>().unwrap_err().to_string();
        assert!(said.contains("\"lru\"") && said.contains("preempt-lru"), "{said}");
    }
}
