//! The host's state machine: charges, decay, admittable, start semaphore, pressure. Pure.
