//! One conformance suite, run on every backend, and what only one backend can be asked.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backend;
mod crash;
mod faults;
mod make;
mod oracle;
mod pruning;
mod reading;
mod sqlite;
mod usage;
mod writing;

/// Makes a test of each check on each backend.
macro_rules! on_every_backend {
    ($($check:ident),* $(,)?) => {
        mod memory {
            $(#[test] fn $check() { super::$check(&mut crate::backend::Memory::new()); })*
        }
        mod sqlite {
            $(#[test] fn $check() { super::$check(&mut crate::backend::Sqlite::new()); })*
        }
    };
}
pub(crate) use on_every_backend;
