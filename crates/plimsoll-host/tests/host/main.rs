//! The host's state machine from outside, with a driver that the test moves by hand.
#![allow(clippy::unwrap_used, reason = "tests")]

mod commands;
mod memory;
mod pressure;
mod properties;
mod reports;
mod restart;
mod rig;
