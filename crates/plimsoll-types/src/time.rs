//! Time is an argument. A [`Timestamp`] counts milliseconds since 1970-01-01T00:00:00Z; nothing in
//! this crate can read a clock.

use core::fmt;
use core::ops::{Add, Sub};
use serde::{Deserialize, Serialize};

/// A length of time in milliseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// So many whole seconds, held at the largest value that fits.
    #[must_use]
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// The bare number of milliseconds.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whole seconds, rounded up.
    #[must_use]
    pub const fn seconds_ceil(self) -> u64 {
        self.0.div_ceil(1000)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// An instant: milliseconds since the Unix epoch, UTC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The bare number of milliseconds since the epoch.
    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// How long ago `earlier` was; zero when it lies in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        let gap = self.0.saturating_sub(earlier.0);
        Millis(if gap > 0 { gap as u64 } else { 0 })
    }
}

impl Add<Millis> for Timestamp {
    type Output = Self;

    fn add(self, length: Millis) -> Self {
        let length = if length.0 > i64::MAX as u64 { i64::MAX } else { length.0 as i64 };
        Self(self.0.saturating_add(length))
    }
}

impl Sub<Millis> for Timestamp {
    type Output = Self;

    fn sub(self, length: Millis) -> Self {
        let length = if length.0 > i64::MAX as u64 { i64::MAX } else { length.0 as i64 };
        Self(self.0.saturating_sub(length))
    }
}
