//! The real binary, end to end: real processes, sockets, signals and files.
//!
//! Each test has a folder of its own and ends every process that it started, whatever happens.
//! What a machine cannot do is skipped with a word about it, and is a failure where `CI=true`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod admission;
mod capacity;
mod caps;
mod commands;
mod crash;
mod demo;
mod edges;
mod external;
mod first_steps;
mod help;
mod input;
mod metrics;
mod quota;
mod receiver;
mod rig;
mod slots;
mod starts;
mod store;
mod tls;
mod webhooks;
