//! The cell's state machine: ledger, slots, queue, hosts and tenants, without I/O.
//!
//! One engine owns a cell's state. [`Engine::handle`] applies one input at a given time and says
//! what is to be written ([`Change`]), answered ([`Reply`]) and done ([`Effect`]). It reads no
//! clock, opens no socket and draws no randomness: time, ids and seeds are arguments, so that the
//! simulator drives the very same code.

mod command;
mod config;
mod engine;
pub mod index;
mod labels;
mod output;
pub mod rows;

pub use command::{
    Admin, Caller, Command, CreateSandbox, EnrolProvider, Explain, ForkSandbox, Input,
    PatchSandbox, Read, Reserve, ReserveBatch, ReserveItem, ReserveMode, SandboxFilter, Token,
};
pub use config::{AbuseAct, EngineConfig};
pub use engine::{Engine, RestoreError, Violation};
pub use labels::Labels;
pub use output::{
    CheckLine, ConcurrencyView, ConsumptionView, Counts, Disposition, Effect, Explanation, Gauges,
    HostGauge, HostLine, HostView, LimitHit, Observation, Output, PoolView, QuotaView, RateView,
    Refusal, Reply, SandboxView,
};
pub use rows::Change;
