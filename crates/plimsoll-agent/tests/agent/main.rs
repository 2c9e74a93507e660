//! The agent against a small cell that the test plays.
#![allow(clippy::unwrap_used, reason = "tests")]

mod beats;
mod commands;
mod crashes;
mod http;
mod pressure;
mod processes;
mod rig;
mod slow;
