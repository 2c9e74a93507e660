//! Simulator: the real engine and the real host in virtual time.
//!
//! [`faults`] runs a cell, its hosts, clients and the network between them under seeded faults,
//! and holds every invariant after every step. A failure prints the seed that shows it again.
//!
//! Nothing here reads a clock or draws entropy: a seed is all that a run depends on.

pub mod capacity;
pub mod faults;
mod rng;
