//! Durable storage of a cell's rows: memory and SQLite behind one trait.
//!
//! A [`Store`] is the writer's side and belongs to one thread: it holds the lease, loads the rows
//! that an engine is rebuilt from, and commits batches of [`plimsoll_engine::Change`]s. A
//! [`Reader`] answers questions about what was committed (decisions, events, ended sandboxes,
//! usage, deliveries) from any thread while the writer works.
//!
//! Three rules hold for every backend, and one conformance suite checks them on each:
//! - A batch is one transaction. A reader, or a restart after `kill -9`, sees all of it or none.
//! - Every transaction checks the lease's epoch. A writer that lost its lease gets
//!   [`StoreError::Fenced`] and changes nothing.
//! - Rows are facts. No backend computes a verdict.

mod delivery;
mod error;
mod memory;
mod query;
mod sqlite;
mod store;
mod usage;

pub use delivery::{
    DELIVERIES_PER_ENDPOINT_MAX, DeliveryOutcome, DeliveryPage, DeliveryRow, Progress,
};
pub use error::StoreError;
pub use memory::{Fault, MemoryStore};
pub use query::{
    CodeFilter, DecisionPage, DecisionQuery, EventPage, EventQuery, SandboxPage, UsageDay,
    UsagePage, UsageQuery, UsageTotal,
};
pub use sqlite::{SqliteSettings, SqliteStore};
pub use store::{Lease, LoadLimits, Pruned, Reader, Retention, Store, StoreStatus};
