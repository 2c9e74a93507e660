//! What can go wrong in a store, told apart by who can act on it.

use plimsoll_types::Timestamp;

/// Why a store did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another writer has taken the lease since. Nothing was written.
    #[error("the lease of epoch {epoch} is lost: the store is at epoch {current}")]
    Fenced {
        /// The epoch that was shown.
        epoch: u64,
        /// The store's epoch.
        current: u64,
    },
    /// Another holder's lease still runs; or, for SQLite, another process has the file open.
    #[error("{what} is held by {holder}")]
    Held {
        /// The store: a file's path, a database's name.
        what: String,
        /// Who holds it, as far as is known.
        holder: String,
        /// When the lease runs out unless renewed; `None` when it does not by itself.
        until: Option<Timestamp>,
    },
    /// The disk is full. Nothing was written.
    #[error("no room left while {doing}")]
    Full {
        /// What was being done.
        doing: &'static str,
    },
    /// Somebody else kept the database locked for longer than the bound. Nothing was written.
    #[error("the database stayed locked by another program while {doing}")]
    Busy {
        /// What was being done.
        doing: &'static str,
    },
    /// What was read is no valid data of this store.
    #[error("the store is damaged: {detail}")]
    Corrupt {
        /// What was found and where.
        detail: String,
    },
    /// The data was written by a newer version of this program.
    #[error(
        "{what} has schema version {found} and this program knows up to {known}: \
         use the program that wrote it, or a newer one"
    )]
    TooNew {
        /// The store: a file's path, a database's name.
        what: String,
        /// The version found.
        found: i64,
        /// The newest version known.
        known: i64,
    },
    /// A question asks for more rows than one answer may look at.
    #[error("the range holds more than {rows_max} rows of {what}: ask for a shorter one")]
    TooWide {
        /// Which rows.
        what: &'static str,
        /// The bound.
        rows_max: usize,
    },
    /// Reading or writing failed. After a failed commit the outcome is unknown: a restart may
    /// find the batch or may not.
    #[error("{doing} failed: {detail}")]
    Io {
        /// What was being done, and to which file.
        doing: String,
        /// The cause, in full.
        detail: String,
    },
}

impl StoreError {
    /// Whether a commit that failed with this may nevertheless have been written.
    #[must_use]
    pub const fn outcome_unknown(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Corrupt { .. })
    }

    /// One word for logs and metrics.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Fenced { .. } => "fenced",
            Self::Held { .. } => "held",
            Self::Full { .. } => "full",
            Self::Busy { .. } => "busy",
            Self::Corrupt { .. } => "corrupt",
            Self::TooNew { .. } => "too_new",
            Self::TooWide { .. } => "too_wide",
            Self::Io { .. } => "io",
        }
    }
}
