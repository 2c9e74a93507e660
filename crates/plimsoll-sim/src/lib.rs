//! Simulator: the real engine and the real host in virtual time under seeded faults.
