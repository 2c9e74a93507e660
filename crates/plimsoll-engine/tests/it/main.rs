//! The engine driven by hand, in virtual time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod bed;
mod events;
mod external;
mod kept;
mod lifecycle;
mod preemption;
mod quota;
mod reservations;
mod sandboxes;
mod slots;
mod under_faults;
