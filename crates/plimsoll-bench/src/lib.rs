//! Load generator and benchmarks.
//!
//! [`load`] sends reservations to a cell over HTTP, one by one or in batches, in a closed or an
//! open loop, and says how many were made durable and how long each took. [`Empty`] is an axum
//! handler that does nothing, to be sent the same in the same run, so that a figure can be read on
//! any machine. The criterion benchmarks stand in `benches/`.

mod ceiling;
mod figures;
mod fleet;
mod load;

pub use ceiling::Empty;
pub use figures::{Figures, Outcome};
pub use fleet::{Fleet, FleetError};
pub use load::{LoadError, Loop, Shape, Target, load};
