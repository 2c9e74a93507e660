//! Drivers with real guests: processes and sandboxes that are started, frozen, written out,
//! orphaned and ended on the machine that runs the tests.
#![allow(clippy::unwrap_used)]

mod gvisor;
mod host;
mod process;
