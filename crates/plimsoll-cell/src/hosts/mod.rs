//! Calls to hosts: commands, fresh questions, and what comes back.

mod calls;
mod wire;

pub(crate) use calls::Calls;
pub use wire::AgentSetupError;
pub(crate) use wire::{Agent, AgentError};
