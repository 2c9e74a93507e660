//! The engine driven by hand, in virtual time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod bed;
mod events;
mod kept;
mod quota;
mod reservations;
mod sandboxes;
mod under_faults;
