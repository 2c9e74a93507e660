//! The table that the model was made after: measured facts of another implementation, four slots,
//! five days, the mean of five seeds of its own.

use plimsoll_sim::capacity::{FIGURES, Strategy};

/// Its numbers of users.
pub(super) const USERS: [u64; 5] = [6, 8, 12, 16, 24];

/// The figures of each row, by users, then by strategy, as they were printed.
pub(super) const ROWS: [[f64; FIGURES]; 20] = [
    [67.0, 17.0, 6.0, 2.0, 3.0, 0.0, 0.0],
    [100.0, 0.0, 8.0, 2.0, 13.0, 0.0, 0.0],
    [100.0, 0.0, 8.0, 2.0, 13.0, 0.2, 0.0],
    [100.0, 0.0, 8.0, 2.0, 33.0, 0.2, 0.2],
    [50.0, 36.0, 6.0, 2.0, 2.0, 0.0, 0.0],
    [95.0, 4.0, 10.0, 2.0, 55.0, 0.0, 0.0],
    [95.0, 4.0, 10.0, 2.0, 55.0, 0.8, 0.0],
    [95.0, 4.0, 10.0, 2.0, 118.0, 1.1, 0.8],
    [33.0, 76.0, 6.0, 2.0, 2.0, 0.0, 0.0],
    [87.0, 15.0, 14.0, 2.0, 437.0, 0.0, 0.0],
    [87.0, 15.0, 14.0, 2.0, 248.0, 6.6, 0.0],
    [87.0, 15.0, 14.0, 2.0, 341.0, 10.2, 7.5],
    [25.0, 119.0, 6.0, 2.0, 2.0, 0.0, 0.0],
    [74.0, 42.0, 15.0, 2.0, 569.0, 0.0, 0.0],
    [74.0, 42.0, 15.0, 2.0, 372.0, 12.0, 0.0],
    [74.0, 42.0, 15.0, 3.0, 476.0, 17.1, 12.7],
    [17.0, 194.0, 6.0, 2.0, 2.0, 0.0, 0.0],
    [58.0, 97.0, 17.0, 2.0, 648.0, 0.0, 0.0],
    [58.0, 97.0, 17.0, 2.0, 414.0, 19.7, 0.0],
    [58.0, 97.0, 17.0, 2.0, 482.0, 26.6, 19.9],
];

/// How far each printed figure may be from what it was rounded from.
pub(super) const ROUNDING: [f64; FIGURES] = [0.5, 0.5, 0.5, 0.5, 0.5, 0.05, 0.05];

/// Users, strategy and figures of each row.
pub(super) fn rows() -> impl Iterator<Item = (u64, Strategy, [f64; FIGURES])> {
    let keys = USERS.into_iter().flat_map(|users| Strategy::ALL.map(|strategy| (users, strategy)));
    keys.zip(ROWS).map(|((users, strategy), figures)| (users, strategy, figures))
}
