//! From SQLite's errors to the store's.

use rusqlite::ErrorCode;

use crate::error::StoreError;

/// What was being done, and on which file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) doing: &'static str,
    pub(super) path: &'a str,
}

impl Context<'_> {
    /// Maps a result's error.
    pub(super) fn of<T>(&self, result: rusqlite::Result<T>) -> Result<T, StoreError> {
        result.map_err(|error| sqlite(error, self.doing, self.path))
    }
}

/// Maps one error.
pub(super) fn sqlite(error: rusqlite::Error, doing: &'static str, path: &str) -> StoreError {
    let code = error.sqlite_error_code();
    match code {
        Some(ErrorCode::DiskFull) => StoreError::Full { doing },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy { doing },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Corrupt { detail: format!("{path}: {error}") }
        }
        _ => StoreError::Io { doing: format!("{doing} ({path})"), detail: error.to_string() },
    }
}

/// Maps an operating system's error about a file.
pub(super) fn file(error: &std::io::Error, doing: &str, path: &str) -> StoreError {
    if error.kind() == std::io::ErrorKind::StorageFull {
        return StoreError::Full { doing: "opening the database" };
    }
    StoreError::Io { doing: format!("{doing} {path}"), detail: error.to_string() }
}
