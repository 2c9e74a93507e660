//! The simulator's own tests.

mod capacity;
mod faults;
