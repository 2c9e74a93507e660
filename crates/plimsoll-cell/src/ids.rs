//! Ids: 128 bits in the layout of UUID version 7, so that they sort by time, and unique without
//! asking the system for randomness each time.

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_types::{DecisionId, EndpointId, EventId, KeyId, ReservationId, SandboxId};

use crate::clock::wall;

/// Bits of the counter that stand right after the time, so that ids of one millisecond sort by the
/// order in which they were made.
const COUNTER_BITS: u32 = 34;

/// Mints ids.
///
/// An id is 48 bits of milliseconds, 34 bits of a counter and 40 bits drawn once per process. Two
/// ids of one process differ in the counter; two processes that share a store differ in the draw.
#[derive(Debug)]
pub struct Ids {
    process: u64,
    next: AtomicU64,
}

impl Ids {
    /// A mint with a fresh draw.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn new() -> Result<Self, getrandom::Error> {
        Ok(Self { process: getrandom::u64()? & ((1 << 40) - 1), next: AtomicU64::new(0) })
    }

    fn mint(&self) -> u128 {
        let millis = wall().millis().max(0) as u64;
        let count = self.next.fetch_add(1, Ordering::Relaxed) & ((1 << COUNTER_BITS) - 1);
        layout(millis, count, self.process)
    }

    /// An id for a sandbox.
    pub fn sandbox(&self) -> SandboxId {
        SandboxId(self.mint())
    }

    /// An id for a reservation.
    pub fn reservation(&self) -> ReservationId {
        ReservationId(self.mint())
    }

    /// An id for a decision.
    pub fn decision(&self) -> DecisionId {
        DecisionId(self.mint())
    }

    /// An id for an event.
    pub fn event(&self) -> EventId {
        EventId(self.mint())
    }

    /// An id for a key.
    pub fn key(&self) -> KeyId {
        KeyId(self.mint())
    }

    /// An id for a webhook endpoint.
    pub fn endpoint(&self) -> EndpointId {
        EndpointId(self.mint())
    }
}

/// The layout of RFC 9562, section 5.7. The counter's upper 12 bits fill `rand_a`, its lower 22
/// bits the head of `rand_b`, the process's draw the rest.
fn layout(millis: u64, count: u64, process: u64) -> u128 {
    let upper = (count >> 22) & 0xfff;
    let lower = count & 0x3f_ffff;
    let time = u128::from(millis & 0xffff_ffff_ffff) << 80;
    let high = (7_u128 << 76) | (u128::from(upper) << 64);
    let low = (2_u64 << 62) | (lower << 40) | process;
    time | high | u128::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_version_seven_and_carry_their_time() {
        let id = uuid::Uuid::from_u128(layout(1_788_865_462_007, 5, 0xff_ffff_ffff));
        assert_eq!(id.get_version(), Some(uuid::Version::SortRand));
        assert_eq!(id.get_variant(), uuid::Variant::RFC4122);
        let (seconds, nanos) = id.get_timestamp().unwrap().to_unix();
        assert_eq!((seconds, nanos), (1_788_865_462, 7_000_000));
    }

    #[test]
    fn ids_of_one_millisecond_sort_in_the_order_of_their_making() {
        let count_max = (1 << COUNTER_BITS) - 1;
        for (one, other) in [(0, 1), (0x3f_ffff, 0x40_0000), (count_max - 1, count_max)] {
            assert!(layout(7, one, u64::MAX >> 24) < layout(7, other, 0));
        }
        assert!(layout(7, count_max, u64::MAX >> 24) < layout(8, 0, 0));
    }

    #[test]
    fn one_mint_gives_no_id_twice() {
        let ids = Ids::new().unwrap();
        let many: std::collections::BTreeSet<_> = (0..10_000).map(|_| ids.sandbox()).collect();
        assert_eq!(many.len(), 10_000);
    }
}
