//! The simulator's own tests.

mod faults;
