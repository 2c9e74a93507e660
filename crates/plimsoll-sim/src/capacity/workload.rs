//! The sessions of one user, drawn before a run and the same under every strategy.

use plimsoll_types::{Millis, Timestamp};

use super::Params;
use crate::rng::Rng;

/// Streams of users begin here, apart from every other purpose.
const PURPOSE: u64 = 1 << 32;

/// One session: its window does not move, however long its computer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) begin: Timestamp,
    pub(super) end: Timestamp,
}

/// The sessions of one user, in order, none overlapping another.
///
/// Each user has a stream of its own: with more users, the first ones live the same days.
pub(super) fn sessions(seed: u64, user: u64, params: &Params) -> Vec<Session> {
    let mut rng = Rng::new(seed, PURPOSE + user);
    let hour =
        |day: u64, hour: u64| Timestamp(0) + Millis::from_seconds(day * 86_400 + hour * 3_600);
    let mut sessions = Vec::new();
    let mut free = Timestamp(0);
    for day in 0..params.days {
        let close = hour(day, params.until_hour);
        let mut at = hour(day, params.from_hour).max(free);
        loop {
            at = at + exponential(&mut rng, params.gap_seconds);
            if at >= close {
                break;
            }
            let end = at + log_normal(&mut rng, params);
            sessions.push(Session { begin: at, end });
            (at, free) = (end, end);
        }
    }
    sessions
}

/// An exponential length of this mean, in whole milliseconds, by inversion.
fn exponential(rng: &mut Rng, mean_seconds: u64) -> Millis {
    millis(-rng.unit().ln() * seconds(mean_seconds))
}

/// A log-normal length, at least a millisecond, by the transform of Box and Muller.
fn log_normal(rng: &mut Rng, params: &Params) -> Millis {
    let radius = (-2.0 * rng.unit().ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * rng.unit()).cos();
    let length = (params.session_sigma * normal).exp() * seconds(params.session_median_seconds);
    Millis(millis(length).0.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "parameters are bounded by a day of seconds")]
fn seconds(whole: u64) -> f64 {
    whole as f64
}

/// The longest length that is drawn: with the widest spread, a few in a million would be longer.
const LONGEST: f64 = 30.0 * 86_400.0;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "neither negative nor beyond the bound"
)]
fn millis(seconds: f64) -> Millis {
    Millis((seconds.clamp(0.0, LONGEST) * 1000.0).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(params: &Params) -> Vec<Vec<Session>> {
        (0..200).map(|user| sessions(1, user, params)).collect()
    }

    #[test]
    fn sessions_begin_in_the_hours_and_do_not_overlap() {
        let params = Params::default();
        for sessions in many(&params) {
            for session in &sessions {
                let of_day = session.begin.0.rem_euclid(86_400_000);
                assert!((9 * 3_600_000..17 * 3_600_000).contains(&of_day), "{session:?}");
                assert!(session.end > session.begin);
            }
            assert!(sessions.windows(2).all(|pair| pair[0].end <= pair[1].begin));
            assert!(sessions.last().is_none_or(|last| last.begin.0 < 5 * 86_400_000));
        }
    }

    #[test]
    fn lengths_and_gaps_are_as_asked_for() {
        let params = Params { days: 20, ..Params::default() };
        let mut lengths: Vec<f64> = Vec::new();
        for session in many(&params).concat() {
            lengths.push(session.end.since(session.begin).0 as f64 / 1000.0);
        }
        lengths.sort_by(f64::total_cmp);
        let number = lengths.len() as f64;
        let median = lengths[lengths.len() / 2];
        assert!((median - 720.0).abs() < 15.0, "{median}");
        let logs = lengths.iter().map(|length| (length / 720.0).ln().powi(2)).sum::<f64>();
        let sigma = (logs / number).sqrt();
        assert!((sigma - 0.75).abs() < 0.015, "{sigma}");
        // Eight hours hold five of 80 minutes and a session's length each.
        let daily = number / 4_000.0;
        assert!((4.8..5.2).contains(&daily), "{daily}");
    }

    #[test]
    fn without_spread_every_session_has_the_median_length() {
        let params = Params { session_sigma: 0.0, ..Params::default() };
        let all = many(&params).concat();
        assert!(all.iter().all(|session| session.end.since(session.begin) == Millis(720_000)));
    }

    #[test]
    fn the_first_users_live_the_same_days_whatever_the_others_do() {
        let params = Params::default();
        assert_eq!(sessions(1, 3, &params), sessions(1, 3, &params));
        assert_ne!(sessions(1, 3, &params), sessions(1, 4, &params));
        assert_ne!(sessions(1, 3, &params), sessions(2, 3, &params));
    }
}
