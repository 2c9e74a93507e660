//! The capacity model: what a pool's slots give its users, under each way of sharing them.
//!
//! Each user owns one computer, made at the first session and kept; a computer that finds no slot
//! then is external for life. Sessions come and go by a workload that is drawn before the run and
//! is the same under every strategy. Slots, queue, idle pauses and preemption are those of the
//! engine: the model sends it calls and tells it how hosts' commands came out.

mod params;
mod plot;
mod run;
mod setup;
mod size;
mod table;
mod workload;

use params::DAY_SECONDS;
pub use params::{
    DAYS_MAX, ParamError, Params, SEEDS_MAX, Strategy, USERS_MAX, UnknownStrategy, within,
};
pub use plot::svg;
pub use run::{Run, run};
pub use size::{SizeError, Sizing, Target, size};
pub use table::{COLUMNS, FIGURES, Figures, Row, Seeds, Study, csv};

/// Why a run came to nothing: a fault of the model, never of its arguments.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The engine refused a call that the model takes for granted.
    #[error("the engine refused a call of the model: {code}: {detail}")]
    Refused {
        /// The refusal's code.
        code: &'static str,
        /// Its detail.
        detail: String,
    },
    /// The engine did not start.
    #[error(transparent)]
    Restore(#[from] plimsoll_engine::RestoreError),
}
