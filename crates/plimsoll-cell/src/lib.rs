//! The cell's server: HTTP API, engine loop, host calls, auth, metrics.
//!
//! A [`Cell`] is one engine behind one HTTP listener. The engine is pure and single-threaded; this
//! crate is the shell around it, and the shell has no choices left to make:
//! - [`start`] opens the store, listens, and begins a term: the lease, the rows, an engine.
//! - Handlers (`api`) parse, ask and answer. They hold no state and decide nothing.
//! - `core` carries calls to the engine in three lanes, makes what came of them durable in batches,
//!   and only then lets answers and effects out. A commit that fails ends the term.
//! - `webhooks` delivers events.
//! - `hosts` carries out what the engine wants of hosts, and brings back what came of it.

mod api;
mod app;
mod auth;
mod cell;
mod clock;
mod config;
mod core;
mod first;
mod hosts;
mod http;
mod ids;
mod map;
mod metrics;
mod replays;
mod requests;
mod shell;
#[cfg(test)]
mod tests;
mod waiters;
mod webhooks;

pub use cell::{Cell, StartError, start};
pub use config::{CellConfig, HttpLimits, StoreUrl, StoreUrlError, TlsFiles};
pub use core::TermError;
pub use http::ServeError;
pub use plimsoll_engine::{AbuseAct, EngineConfig};
