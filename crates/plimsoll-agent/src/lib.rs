//! The host agent: probe, drivers, guest shims, journal and HTTP around the host's state machine.
//!
//! [`run`] starts an agent. What it decides, it decides in [`plimsoll_host::Host`], which one
//! thread owns; around it stand tasks that decide nothing: one sends heartbeats, one measures, one
//! serves the cell's commands, and each driver call has its own. Everything that is about to be
//! done with a guest is in the journal before it begins, so that an agent that is killed takes its
//! guests over when it comes back.

mod agent;
mod beat;
mod calls;
mod clock;
mod config;
mod core;
pub mod driver;
mod identity;
mod journal;
mod means;
mod metrics;
pub mod probe;
mod sampler;
mod server;
pub mod shim;

pub use agent::{AgentHandle, RunError, StartError, run};
pub use config::{AgentConfig, CallTimeouts, ConfigError, TlsFiles};
pub use identity::FolderError;
pub use journal::JournalError;
pub use means::Means;
pub use sampler::MachineSource;
pub use server::ServeError;
