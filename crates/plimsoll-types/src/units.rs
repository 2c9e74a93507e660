//! Units. Memory is MiB (2^20 bytes) as an integer; CPU is thousandths of a core; ratios are basis
//! points. Verdicts use integers only.

use core::fmt;
use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $suffix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Nothing of this unit.
            pub const ZERO: Self = Self(0);

            /// The bare number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The sum, or `None` when it does not fit in 64 bits.
            #[must_use]
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// The sum, held at the largest value that the type can say.
            #[must_use]
            pub const fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }

            /// The difference, never below zero.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// As a signed number for sums that may go below zero. Values above `i64::MAX` are held there.
            #[must_use]
            pub const fn signed(self) -> i64 {
                if self.0 > i64::MAX as u64 { i64::MAX } else { self.0 as i64 }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{} ", $suffix), self.0)
            }
        }
    };
}

unit!(
    /// Memory in MiB (2^20 bytes).
    Mib,
    "MiB"
);
unit!(
    /// CPU in thousandths of a core.
    MilliCpu,
    "mCPU"
);
unit!(
    /// Whole virtual CPUs that a guest is given.
    Vcpus,
    "vCPU"
);
unit!(
    /// A ratio in ten-thousandths: 10 000 is 1.0.
    BasisPoints,
    "bp"
);

impl Mib {
    /// MiB that hold `bytes`, rounded up.
    #[must_use]
    pub const fn from_bytes_ceil(bytes: u64) -> Self {
        Self(bytes.div_ceil(1 << 20))
    }

    /// MiB that `bytes` fill completely, rounded down.
    #[must_use]
    pub const fn from_bytes_floor(bytes: u64) -> Self {
        Self(bytes >> 20)
    }
}

impl Vcpus {
    /// The same CPU in thousandths of a core.
    #[must_use]
    pub const fn millis(self) -> MilliCpu {
        MilliCpu(self.0.saturating_mul(1000))
    }
}

impl BasisPoints {
    /// The ratio 1.0.
    pub const ONE: Self = Self(10_000);
}
