//! The arithmetic of admission as pure functions: charge, reserve, fit, score, quota, lifecycle, retry.
//!
//! Every formula of the system stands here once. The cell, the host agent, the simulator and
//! `explain` call the same function, so that a verdict, its explanation and its replay cannot
//! disagree. The crate is `no_std`: time is an argument, nothing is random, and every quantity is
//! an integer whose rounding is named.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod abuse;
pub mod aside;
pub mod charge;
pub mod consumption;
pub mod deletion;
pub mod delivery;
pub mod fit;
pub mod fresh;
pub mod host;
pub mod invariant;
pub mod ladder;
pub mod learned;
pub mod lifecycle;
pub mod mode;
pub mod period;
pub mod precedence;
pub mod pressure;
pub mod quota;
pub mod rate;
pub mod retry;
pub mod score;
pub mod slots;
pub mod usage;
pub mod victims;

pub use invariant::Invariant;
