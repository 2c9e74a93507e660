//! Lists and their queries.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use plimsoll_types::{SandboxStatus, bounds};

use crate::input::{FieldError, allowed};

/// Rows of one page where the caller does not say: a screenful or two, cheap to build.
pub const PAGE_LIMIT_DEFAULT: usize = 100;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Where the next page begins; `null` on the last one.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A page that is the whole list.
    #[must_use]
    pub const fn whole(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }
}

/// A query as decoded name and value pairs, in order.
///
/// Every query type reads itself from pairs and writes itself as pairs, so that a label may be
/// asked for twice and an unknown name is refused by name.
pub type Pairs = Vec<(String, String)>;

/// Which page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Most rows, at most 1 000; [`PAGE_LIMIT_DEFAULT`] where absent.
    pub limit: Option<usize>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl ListQuery {
    /// Rows to give.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(PAGE_LIMIT_DEFAULT)
    }

    /// Reads a query that has nothing but a page.
    ///
    /// # Errors
    /// Names the parameter that is unknown or out of its bound.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Self, FieldError> {
        let mut query = Self::default();
        for (name, value) in pairs {
            if !query.take(name, value)? {
                return Err(unknown(name, "limit, cursor"));
            }
        }
        Ok(query)
    }

    /// Takes one parameter, if it is one of a page's.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> Result<bool, FieldError> {
        match name {
            "limit" => {
                let bound = format!("an integer from 1 to {}", bounds::PAGE_LIMIT_MAX);
                let limit: Option<usize> = value.parse().ok();
                match limit.filter(|limit| (1..=bounds::PAGE_LIMIT_MAX).contains(limit)) {
                    Some(limit) => self.limit = Some(limit),
                    None => return Err(FieldError::new("limit", value, bound)),
                }
            }
            "cursor" => self.cursor = (!value.is_empty()).then(|| value.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The query as pairs.
    #[must_use]
    pub fn to_pairs(&self) -> Pairs {
        let mut pairs = Pairs::new();
        push(&mut pairs, "limit", self.limit);
        push(&mut pairs, "cursor", self.cursor.as_ref());
        pairs
    }
}

/// What `GET /v1/sandboxes/{id}/wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitQuery {
    /// The state; `running` where absent.
    pub status: SandboxStatus,
    /// Longest wait in seconds; 60 where absent.
    pub timeout_seconds: u64,
}

impl Default for WaitQuery {
    fn default() -> Self {
        Self { status: SandboxStatus::Running, timeout_seconds: 60 }
    }
}

impl WaitQuery {
    /// Reads the query.
    ///
    /// # Errors
    /// Names the parameter that is unknown or out of its bound.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Self, FieldError> {
        let mut query = Self::default();
        for (name, value) in pairs {
            match name.as_str() {
                "status" => query.status = word("status", value)?,
                "timeout_seconds" => {
                    let bound = format!("an integer from 0 to {}", bounds::WAIT_SECONDS_MAX);
                    query.timeout_seconds = value
                        .parse()
                        .ok()
                        .filter(|seconds| *seconds <= bounds::WAIT_SECONDS_MAX)
                        .ok_or_else(|| FieldError::new("timeout_seconds", value, bound))?;
                }
                _ => return Err(unknown(name, "status, timeout_seconds")),
            }
        }
        Ok(query)
    }

    /// The query as pairs.
    #[must_use]
    pub fn to_pairs(&self) -> Pairs {
        let mut pairs = Pairs::new();
        push(&mut pairs, "status", Some(self.status));
        push(&mut pairs, "timeout_seconds", Some(self.timeout_seconds));
        pairs
    }
}

/// Which of a guest's output `GET /v1/sandboxes/{id}/logs` and the agent's
/// `GET /v1/guests/{id}/logs` answer: the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogsQuery {
    /// Most bytes; 65 536 where absent.
    pub bytes: usize,
}

impl Default for LogsQuery {
    fn default() -> Self {
        Self { bytes: 64 << 10 }
    }
}

impl LogsQuery {
    /// Reads the query.
    ///
    /// # Errors
    /// Names the parameter that is unknown or out of its bound.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Self, FieldError> {
        let mut query = Self::default();
        for (name, value) in pairs {
            if name != "bytes" {
                return Err(unknown(name, "bytes"));
            }
            query.bytes = value
                .parse()
                .ok()
                .filter(|bytes| (1..=bounds::OUTPUT_BYTES_MAX).contains(bytes))
                .ok_or_else(|| {
                    let bound = format!("an integer from 1 to {}", bounds::OUTPUT_BYTES_MAX);
                    FieldError::new("bytes", value, bound)
                })?;
        }
        Ok(query)
    }

    /// The query as pairs.
    #[must_use]
    pub fn to_pairs(&self) -> Pairs {
        let mut pairs = Pairs::new();
        push(&mut pairs, "bytes", Some(self.bytes));
        pairs
    }
}

/// The error about a parameter that no query of this route has.
pub(crate) fn unknown(name: &str, known: &str) -> FieldError {
    FieldError::new(name, "an unknown parameter", format!("one of the known parameters: {known}"))
}

/// Reads one word, id, name or time of a query.
pub(crate) fn word<T>(field: &str, value: &str) -> Result<T, FieldError>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    value.parse().map_err(|error: T::Err| {
        FieldError::new(field, format_args!("{value:?}"), allowed(&error.to_string()))
    })
}

/// Adds a parameter that is there.
pub(crate) fn push(pairs: &mut Pairs, name: &str, value: Option<impl std::fmt::Display>) {
    if let Some(value) = value {
        pairs.push((name.to_owned(), value.to_string()));
    }
}
