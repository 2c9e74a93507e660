//! How many slots do so many users need?

use std::collections::BTreeMap;

use serde::Serialize;

use super::params::within;
use super::{DAY_SECONDS, ModelError, ParamError, Params, Row, Seeds, Strategy, USERS_MAX};

/// What a number of slots has to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The longest wait that 95 of 100 sessions may have.
    pub p95_seconds: u64,
    /// The least part of the users whose computers are to be on the pool.
    pub on_pool_percent: u64,
}

impl Target {
    /// Holds both against their bounds.
    ///
    /// # Errors
    /// Names the first one that is out of them.
    pub fn check(&self) -> Result<(), ParamError> {
        within("p95", self.p95_seconds, 0, DAY_SECONDS)?;
        within("on-pool-percent", self.on_pool_percent, 0, 100)
    }

    #[expect(clippy::cast_precision_loss, reason = "both are bounded by a day of seconds")]
    fn is_met(&self, row: &Row) -> bool {
        row.mean.wait_p95_seconds <= self.p95_seconds as f64
            && row.mean.on_pool_percent >= self.on_pool_percent as f64
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sizing {
    /// The fewest slots that reach the target, such that more of them do so too.
    pub slots: u64,
    /// What they give.
    pub row: Row,
    /// What one slot fewer gives; `None` where one slot is enough.
    pub fewer: Option<Row>,
    /// The numbers of slots that were run, in order.
    pub checked_slots: Vec<u64>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SizeError {
    /// Not even a slot for each user reaches the target.
    #[error(
        "with a slot for each of {users} users the p95 wait is {p95_seconds:.0} s: sessions also \
         wait for resumes and for pauses under way"
    )]
    OutOfReach {
        /// Users.
        users: u64,
        /// What that many slots give.
        p95_seconds: f64,
    },
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Numbers of slots above the answer that are checked at most: all of them for up to so many
/// users, an even sample for more.
const CHECKS_MAX: u64 = 16;

/// Finds the fewest slots for so many users, by halving. `params.slots` does not matter; `each` is
/// called after each run.
///
/// Waits need not fall with every slot that is added: where few slots serve few of the users, the
/// others are external and hardly wait, so that too few slots can look as good as enough. The
/// answer is therefore held against the numbers above it, and sought anew above any that misses.
///
/// # Errors
/// When no number of slots is enough, or the model fails.
pub fn size(
    users: u64,
    strategy: Strategy,
    params: &Params,
    seeds: Seeds,
    target: Target,
    mut each: impl FnMut(),
) -> Result<Sizing, SizeError> {
    let users = users.clamp(1, USERS_MAX);
    let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
    let mut row_of = |slots: u64| -> Result<Row, ModelError> {
        if let Some(row) = rows.get(&slots) {
            return Ok(*row);
        }
        let row = Row::of(users, strategy, &Params { slots, ..*params }, seeds, &mut each)?;
        rows.insert(slots, row);
        Ok(row)
    };
    let most = row_of(users)?;
    if !target.is_met(&most) {
        let p95_seconds = most.mean.wait_p95_seconds;
        return Err(SizeError::OutOfReach { users, p95_seconds });
    }
    let mut misses = 0;
    let slots = loop {
        let mut meets = users;
        while meets - misses > 1 {
            let middle = misses.midpoint(meets);
            if target.is_met(&row_of(middle)?) {
                meets = middle;
            } else {
                misses = middle;
            }
        }
        let mut worse = None;
        for slots in above(meets, users) {
            if !target.is_met(&row_of(slots)?) {
                worse = Some(slots);
            }
        }
        match worse {
            Some(slots) => misses = slots,
            None => break meets,
        }
    };
    let row = row_of(slots)?;
    let fewer = if slots > 1 { Some(row_of(slots - 1)?) } else { None };
    Ok(Sizing { slots, row, fewer, checked_slots: rows.into_keys().collect() })
}

/// At most [`CHECKS_MAX`] numbers between the two, evenly spread.
fn above(slots: u64, users: u64) -> impl Iterator<Item = u64> {
    let between = users.saturating_sub(slots + 1);
    let checks = between.min(CHECKS_MAX);
    (1..=checks).map(move |check| slots + (check * between).div_ceil(checks.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(users: u64, strategy: Strategy, p95_seconds: u64, on_pool_percent: u64) -> Sizing {
        let target = Target { p95_seconds, on_pool_percent };
        let seeds = Seeds { first: 1, number: 2 };
        size(users, strategy, &Params::default(), seeds, target, || {}).unwrap()
    }

    #[test]
    fn one_slot_fewer_misses_and_every_number_above_meets() {
        let target = Target { p95_seconds: 120, on_pool_percent: 90 };
        let seeds = Seeds { first: 1, number: 2 };
        let answer = sized(10, Strategy::PreemptIdle, 120, 90);
        for slots in 1..=10 {
            let params = Params { slots, ..Params::default() };
            let row = Row::of(10, Strategy::PreemptIdle, &params, seeds, || {}).unwrap();
            let meets = target.is_met(&row);
            if slots >= answer.slots {
                assert!(meets, "{slots}: {row:?}");
            }
            if slots == answer.slots {
                assert_eq!(answer.row, row);
            }
            if slots + 1 == answer.slots {
                assert!(!meets);
                assert_eq!(answer.fewer, Some(row));
            }
        }
        assert!(answer.slots > 1);
    }

    #[test]
    fn holding_needs_a_slot_for_each_user_that_is_to_be_on_the_pool() {
        assert_eq!(sized(6, Strategy::Hold, 200, 100).slots, 6);
        let any = sized(6, Strategy::Hold, 200, 0);
        assert_eq!((any.slots, any.fewer), (1, None));
    }

    #[test]
    fn a_target_that_no_number_of_slots_reaches_is_said_to_be() {
        let target = Target { p95_seconds: 0, on_pool_percent: 0 };
        let seeds = Seeds { first: 1, number: 1 };
        let none = size(3, Strategy::Release, &Params::default(), seeds, target, || {});
        assert!(matches!(none, Err(SizeError::OutOfReach { users: 3, .. })), "{none:?}");
    }

    #[test]
    fn what_is_checked_above_lies_between_and_is_bounded() {
        assert_eq!(above(4, 8).collect::<Vec<_>>(), [5, 6, 7]);
        assert_eq!(above(8, 8).count() + above(7, 8).count(), 0);
        let many: Vec<u64> = above(10, 10_000).collect();
        assert_eq!(many.len(), 16);
        assert!(many.iter().all(|slots| (11..10_000).contains(slots)), "{many:?}");
        assert!(many.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
