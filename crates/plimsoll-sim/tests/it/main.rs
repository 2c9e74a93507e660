//! The simulator's own tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod capacity;
mod faults;
mod livelock;
