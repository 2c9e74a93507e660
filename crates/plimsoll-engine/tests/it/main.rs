//! The engine driven by hand, in virtual time.

mod bed;
mod reservations;
mod sandboxes;
