//! HTTP client with honest retries: full jitter, deadline, Retry-After as a floor.
//!
//! [`Client`] speaks the public API with a key, to any of a cell's replicas. A refusal that says
//! "not now" is waited out within [`RetryPolicy::deadline`]; one that says "not ever" comes back at
//! once. When patience ends, the error is [`Error::CapacityUnavailable`]: the work is still waiting
//! and has not failed, and nobody should write it down as failed.
//!
//! [`AgentClient`] is the cell's side of the host protocol: it never repeats a command by itself,
//! since only the engine knows whether a command may be sent again.

mod admin;
mod agent;
mod call;
mod config;
mod error;
mod hosts;
mod quota;
mod reservations;
mod retry;
mod sandboxes;
mod transport;

pub use agent::{AgentClient, AgentError, AgentTarget};
pub use config::{ClientConfig, WaitHook, Waiting};
pub use error::{Error, Refused};
pub use retry::{RetryPolicy, parse_retry_after};
pub use sandboxes::{CreateOptions, Waited};
pub use transport::Client;
