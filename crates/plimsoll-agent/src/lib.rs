//! The host agent: probe, drivers, guest shims, journal and HTTP around the host's state machine.

pub mod driver;
pub mod probe;
pub mod shim;
