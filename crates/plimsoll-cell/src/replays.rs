//! Answers that can be given once, kept for callers that repeat the question.
//!
//! A new key or endpoint is answered with a secret that is stored nowhere. A caller whose
//! connection broke repeats its call under the same idempotency key and must get the same answer,
//! so these few answers are kept in memory for a while.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use plimsoll_types::{KeyId, Millis, Timestamp};

/// Kept for as long as an idempotency key is bound.
const KEPT_FOR: Millis = Millis::from_seconds(24 * 3600);
/// Most answers kept: far above what operators make in a day. The oldest goes first.
const KEPT_MAX: usize = 4_096;

/// Who asked, where, under which key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    /// The caller's API key.
    pub(crate) by: KeyId,
    /// The route.
    pub(crate) route: &'static str,
    /// Its idempotency key.
    pub(crate) key: Arc<str>,
}

/// What is known of a question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Not asked before.
    No,
    /// Asked with the same body: the same answer.
    Same(Bytes),
    /// Asked with another body.
    Other,
}

#[derive(Debug, Default)]
struct Kept {
    answers: HashMap<Question, (u64, Bytes, Timestamp)>,
    order: VecDeque<Question>,
}

/// The answers.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    kept: Mutex<Kept>,
}

impl Replays {
    /// Whether this was asked before.
    pub(crate) fn known(&self, question: &Question, body: u64, now: Timestamp) -> Known {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.answers.get(question) {
            Some((_, _, at)) if now.since(*at) > KEPT_FOR => Known::No,
            Some((before, answer, _)) if *before == body => Known::Same(answer.clone()),
            Some(_) => Known::Other,
            None => Known::No,
        }
    }

    /// Keeps an answer.
    pub(crate) fn keep(&self, question: Question, body: u64, answer: Bytes, now: Timestamp) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.answers.insert(question.clone(), (body, answer, now)).is_none() {
            kept.order.push_back(question);
        }
        while kept.order.len() > KEPT_MAX {
            if let Some(oldest) = kept.order.pop_front() {
                kept.answers.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(key: &str) -> Question {
        Question { by: KeyId(1), route: "/v1/admin/keys", key: key.into() }
    }

    #[test]
    fn the_same_question_gets_the_same_answer_for_a_day() {
        let replays = Replays::default();
        let now = Timestamp(1_000);
        assert_eq!(replays.known(&question("a"), 7, now), Known::No);
        replays.keep(question("a"), 7, Bytes::from_static(b"x"), now);
        assert_eq!(replays.known(&question("a"), 7, now), Known::Same(Bytes::from_static(b"x")));
        assert_eq!(replays.known(&question("a"), 8, now), Known::Other);
        assert_eq!(replays.known(&question("b"), 7, now), Known::No);
        let later = now + Millis(KEPT_FOR.0 + 1);
        assert_eq!(replays.known(&question("a"), 7, later), Known::No);
    }

    #[test]
    fn the_oldest_goes_first() {
        let replays = Replays::default();
        for number in 0..=KEPT_MAX {
            replays.keep(question(&number.to_string()), 7, Bytes::new(), Timestamp(0));
        }
        assert_eq!(replays.known(&question("0"), 7, Timestamp(0)), Known::No);
        assert_ne!(replays.known(&question("1"), 7, Timestamp(0)), Known::No);
    }
}
