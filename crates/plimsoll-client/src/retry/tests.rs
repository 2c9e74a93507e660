use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use plimsoll_api::Problem;
use plimsoll_types::{Millis, RefusalCode, RetryHint};
use proptest::prelude::*;

use super::*;
use crate::error::Refused;

fn refusal(code: RefusalCode, retry_after: Option<Duration>) -> Error {
    let hint = retry_after.map_or(RetryHint::Never, |after| {
        RetryHint::After(Millis(u64::try_from(after.as_millis()).unwrap()))
    });
    let problem = Problem::new(code, "no room").with_retry(hint);
    Error::Refused(Box::new(Refused {
        status: problem.status,
        problem: Some(problem),
        retry_after,
    }))
}

fn millis() -> impl Strategy<Value = Duration> {
    (0_u64..200_000).prop_map(Duration::from_millis)
}

fn policies() -> impl Strategy<Value = RetryPolicy> {
    (millis(), millis(), millis()).prop_map(|(base, cap, deadline)| RetryPolicy {
        base,
        cap,
        deadline,
    })
}

proptest! {
    #[test]
    fn a_wait_is_never_below_the_floor_nor_past_the_deadline(
        policy in policies(),
        attempt in 0_u32..100,
        floor in proptest::option::of(millis()),
        elapsed in millis(),
        random: u64,
    ) {
        let left = policy.deadline.saturating_sub(elapsed);
        match policy.next_delay(attempt, floor, elapsed, random) {
            Some(delay) => {
                prop_assert!(delay >= floor.unwrap_or_default());
                prop_assert!(delay <= left);
                prop_assert!(delay <= floor.unwrap_or_default() + policy.cap);
            }
            None => prop_assert!(left.is_zero() || floor.unwrap_or_default() > left),
        }
    }

    #[test]
    fn jitter_is_full(attempt in 0_u32..100, floor in proptest::option::of(0_u64..10)) {
        let policy = RetryPolicy::default();
        let floor = floor.map(Duration::from_secs);
        let window = 250_u64.saturating_mul(1_u64.checked_shl(attempt).unwrap_or(u64::MAX)).min(8_000);
        let at = |random| policy.next_delay(attempt, floor, Duration::ZERO, random).unwrap();
        let floor = floor.unwrap_or_default();
        prop_assert_eq!(at(0), floor);
        prop_assert_eq!(at(u64::MAX), floor + Duration::from_millis(window));
        let half = at(u64::MAX / 2) - floor;
        prop_assert!(half.abs_diff(Duration::from_millis(window) / 2) <= Duration::from_nanos(1));
    }

    #[test]
    fn more_randomness_is_a_longer_wait(
        policy in policies(),
        attempt in 0_u32..40,
        less: u64,
        more: u64,
    ) {
        let (less, more) = (less.min(more), less.max(more));
        let at = |random| policy.next_delay(attempt, None, Duration::ZERO, random);
        prop_assert!(at(less) <= at(more));
    }
}

/// Public failure C1: a thousand clients that were refused in one second with the same Retry-After
/// come back spread over the whole window, in no common instant.
#[test]
fn a_herd_does_not_return_together() {
    let policy = RetryPolicy::default();
    // An even spread stands in for a thousand independent draws.
    let draws = |count: u64| (0..count).map(move |at| u64::MAX / count * at);
    for (attempt, share_max) in [(0, 0.41), (1, 0.21), (2, 0.11), (3, 0.06), (5, 0.02)] {
        let mut buckets: BTreeMap<u128, u32> = BTreeMap::new();
        for random in draws(1000) {
            let floor = Some(Duration::from_secs(2));
            let delay = policy.next_delay(attempt, floor, Duration::ZERO, random).unwrap();
            assert!(delay >= Duration::from_secs(2));
            *buckets.entry(delay.as_millis() / 100).or_default() += 1;
        }
        let fullest = f64::from(*buckets.values().max().unwrap()) / 1000.0;
        assert!(fullest <= share_max, "attempt {attempt}: {fullest} within 100 ms");
    }
}

#[test]
fn a_herd_at_its_deadline_is_spread_over_what_is_left() {
    let policy = RetryPolicy::default();
    let elapsed = Duration::from_millis(89_000);
    let at = |random| policy.next_delay(9, None, elapsed, random).unwrap();
    assert_eq!(at(0), Duration::ZERO);
    assert!(at(u64::MAX / 2).abs_diff(Duration::from_millis(500)) < Duration::from_millis(1));
    assert_eq!(at(u64::MAX), Duration::from_millis(1000));
}

#[test]
fn both_forms_of_retry_after_are_read() {
    let now: Timestamp = "1994-11-06T08:49:30Z".parse().unwrap();
    let seconds = |value| parse_retry_after(value, now).map(|wait| wait.as_secs());
    assert_eq!(seconds("0"), Some(0));
    assert_eq!(seconds(" 120 "), Some(120));
    assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(7));
    assert_eq!(seconds("Sunday, 06-Nov-94 08:49:37 GMT"), Some(7));
    assert_eq!(seconds("Sun Nov  6 08:49:37 1994"), Some(7));
    assert_eq!(seconds("Sun, 06 Nov 1994 08:49:00 GMT"), Some(0));
    assert_eq!(seconds("99999999999999999999999"), Some(u64::MAX));
    for value in ["", "-1", "1.5", "soon", "Sun, 06 Nov"] {
        assert_eq!(seconds(value), None, "{value}");
    }
}

/// Drives `persist` against a script of outcomes; answers the result, the waits and the time taken.
async fn scripted(
    policy: RetryPolicy,
    repeat: Repeat,
    script: Vec<Option<Error>>,
) -> (Result<u32, Error>, Vec<Duration>, Duration) {
    let waits = Arc::new(Mutex::new(Vec::new()));
    let hook: WaitHook = {
        let waits = Arc::clone(&waits);
        Arc::new(move |waiting: &Waiting<'_>| waits.lock().unwrap().push(waiting.delay))
    };
    let start = Instant::now();
    let mut script = script.into_iter();
    let mut made = 0;
    let result = persist(&policy, repeat, Some(&hook), |_| {
        made += 1;
        std::future::ready(match script.next() {
            Some(Some(error)) => Err(error),
            _ => Ok(made),
        })
    })
    .await;
    let waits = waits.lock().unwrap().clone();
    (result, waits, start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_full_fleet_is_waited_out() {
    let floor = Some(Duration::from_secs(2));
    let script = vec![
        Some(refusal(RefusalCode::NoCapacity, floor)),
        Some(refusal(RefusalCode::RateLimited, floor)),
        Some(refusal(RefusalCode::StartFailed, None)),
        None,
    ];
    let (result, waits, took) = scripted(RetryPolicy::default(), Repeat::Safely, script).await;
    assert_eq!(result.unwrap(), 4);
    assert_eq!(waits.len(), 3);
    assert!(waits[0] >= Duration::from_secs(2) && waits[1] >= Duration::from_secs(2));
    assert!(waits[2] <= Duration::from_secs(1));
    assert!(took >= Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn what_is_final_is_not_repeated() {
    for code in RefusalCode::ALL {
        let row = plimsoll_api::refusal(*code);
        let script = vec![Some(refusal(*code, None)), None];
        let (result, waits, _) = scripted(RetryPolicy::default(), Repeat::Safely, script).await;
        if matches!(row.status, 429 | 502 | 503 | 504) {
            assert_eq!(result.unwrap(), 2, "{code}");
        } else {
            assert_eq!(result.unwrap_err().code(), Some(*code));
            assert!(waits.is_empty(), "{code}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn when_patience_ends_the_work_is_waiting_and_not_failed() {
    let policy = RetryPolicy::default();
    let script = (0..1000).map(|_| Some(refusal(RefusalCode::NoCapacity, None))).collect();
    let (result, _, took) = scripted(policy, Repeat::Safely, script).await;
    let error = result.unwrap_err();
    assert!(took <= policy.deadline, "{took:?}");
    assert!(error.is_transient());
    assert_eq!(error.code(), Some(RefusalCode::NoCapacity));
    let said = error.to_string();
    assert!(said.contains("still waiting") && said.contains("not failed"), "{said}");
    assert!(!said.contains("no_capacity"), "the cause is the source's to tell: {said}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("no_capacity"), "{source}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_deadline_is_not_begun() {
    let floor = Some(Duration::from_secs(91));
    let script = vec![Some(refusal(RefusalCode::NoCapacity, floor)), None];
    let (result, waits, took) = scripted(RetryPolicy::default(), Repeat::Safely, script).await;
    assert!(matches!(result, Err(Error::CapacityUnavailable { attempts: 1, .. })));
    assert!(waits.is_empty() && took.is_zero());
}

#[tokio::test(start_paused = true)]
async fn what_must_not_happen_twice_is_repeated_only_where_it_was_refused() {
    let timeout = || Error::Timeout { url: String::new(), after: Duration::ZERO };
    let (result, ..) =
        scripted(RetryPolicy::default(), Repeat::IfUndone, vec![Some(timeout()), None]).await;
    assert!(matches!(result, Err(Error::Timeout { .. })));
    let (result, ..) =
        scripted(RetryPolicy::default(), Repeat::Safely, vec![Some(timeout()), None]).await;
    assert_eq!(result.unwrap(), 2);
    let full = refusal(RefusalCode::WaitingTimeout, None);
    let (result, ..) =
        scripted(RetryPolicy::default(), Repeat::IfUndone, vec![Some(full), None]).await;
    assert_eq!(result.unwrap(), 2);
}
