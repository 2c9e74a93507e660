//! One module for each kind of row: its columns, how they are written, how they are read.
//!
//! Writing takes a row apart by pattern, without `..`: a field that is added to a row does not
//! compile until it has its column.

pub(super) mod config;
pub(super) mod decision;
pub(super) mod event;
pub(super) mod ledger;
pub(super) mod reservation;
pub(super) mod sandbox;
mod shared;
pub(super) mod usage;
pub(super) mod webhook;

use std::fmt::{self, Display, Write};
use std::str::FromStr;

use plimsoll_types::Timestamp;
use rusqlite::types::ValueRef;
use rusqlite::{Row, Statement, ToSql};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(super) use shared::Shared;
use shared::SharedName;

use crate::error::StoreError;

/// A kind of row as SQL knows it.
pub(super) trait SqlRow: Sized {
    /// Columns in the order in which they are written and read, the key first.
    const COLUMNS: &'static [&'static str];

    /// Binds every column.
    fn bind(&self, to: &mut Binder<'_, '_>) -> rusqlite::Result<()>;

    /// Reads every column.
    fn read(cells: &mut Cells<'_, '_>) -> Result<Self, StoreError>;
}

/// `INSERT OR REPLACE` of so many rows. Where the primary key is the table's only index, SQLite
/// overwrites in place: one descent for each row, no look-up before.
pub(super) fn put_sql<R: SqlRow>(table: &str, rows: usize) -> String {
    let row = format!("({})", vec!["?"; R::COLUMNS.len()].join(","));
    format!(
        "INSERT OR REPLACE INTO {table} ({}) VALUES {}",
        R::COLUMNS.join(","),
        vec![row.as_str(); rows].join(",")
    )
}

/// `SELECT` of every column, with what follows.
pub(super) fn select_sql<R: SqlRow>(table: &str, rest: &str) -> String {
    format!("SELECT {} FROM {table} {rest}", R::COLUMNS.join(","))
}

/// Binds parameters one after another.
pub(super) struct Binder<'s, 'c> {
    statement: &'s mut Statement<'c>,
    next: usize,
    json: Vec<u8>,
}

impl<'s, 'c> Binder<'s, 'c> {
    pub(super) fn new(statement: &'s mut Statement<'c>) -> Self {
        Self { statement, next: 1, json: Vec::new() }
    }

    /// Runs the statement and begins anew with its first parameter.
    pub(super) fn run(&mut self) -> rusqlite::Result<usize> {
        self.next = 1;
        self.statement.raw_execute()
    }

    fn put(&mut self, value: impl ToSql) -> rusqlite::Result<()> {
        self.statement.raw_bind_parameter(self.next, value)?;
        self.next += 1;
        Ok(())
    }

    pub(super) fn text(&mut self, text: &str) -> rusqlite::Result<()> {
        self.put(text)
    }

    pub(super) fn maybe_text(&mut self, text: Option<&str>) -> rusqlite::Result<()> {
        self.put(text)
    }

    pub(super) fn int(&mut self, number: i64) -> rusqlite::Result<()> {
        self.put(number)
    }

    pub(super) fn maybe_int(&mut self, number: Option<i64>) -> rusqlite::Result<()> {
        self.put(number)
    }

    /// An unsigned number. SQLite has none: above 2^63 it stands as its two's complement, so that
    /// what is read is what was written.
    pub(super) fn uint(&mut self, number: u64) -> rusqlite::Result<()> {
        self.put(number.cast_signed())
    }

    pub(super) fn maybe_uint(&mut self, number: Option<u64>) -> rusqlite::Result<()> {
        self.put(number.map(u64::cast_signed))
    }

    pub(super) fn flag(&mut self, flag: bool) -> rusqlite::Result<()> {
        self.put(flag)
    }

    pub(super) fn time(&mut self, at: Timestamp) -> rusqlite::Result<()> {
        self.put(at.millis())
    }

    pub(super) fn maybe_time(&mut self, at: Option<Timestamp>) -> rusqlite::Result<()> {
        self.put(at.map(Timestamp::millis))
    }

    /// An id as its text.
    pub(super) fn id(&mut self, id: &impl Display) -> rusqlite::Result<()> {
        let text = IdText::of(id);
        self.put(text.as_str())
    }

    pub(super) fn maybe_id(&mut self, id: Option<&impl Display>) -> rusqlite::Result<()> {
        match id {
            Some(id) => self.id(id),
            None => self.put(rusqlite::types::Null),
        }
    }

    /// A value as JSON text.
    pub(super) fn json(&mut self, value: &impl Serialize) -> rusqlite::Result<()> {
        self.json.clear();
        serde_json::to_writer(&mut self.json, value)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        let text = std::str::from_utf8(&self.json)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        self.statement.raw_bind_parameter(self.next, text)?;
        self.next += 1;
        Ok(())
    }

    /// A value as JSON text, or `NULL` where it says nothing.
    pub(super) fn json_unless(
        &mut self,
        empty: bool,
        value: &impl Serialize,
    ) -> rusqlite::Result<()> {
        if empty { self.put(rusqlite::types::Null) } else { self.json(value) }
    }
}

/// The text of an id, without an allocation.
pub(super) struct IdText {
    bytes: [u8; Self::LENGTH_MAX],
    length: usize,
}

impl IdText {
    /// Ids are 30 bytes long.
    const LENGTH_MAX: usize = 32;

    pub(super) fn of(id: &impl Display) -> Self {
        let mut text = Self { bytes: [0; Self::LENGTH_MAX], length: 0 };
        write!(text, "{id}").expect("an id is 30 bytes long");
        text
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).expect("only whole strings were appended")
    }
}

impl Write for IdText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let end = self.length + part.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(part.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Reads columns one after another, and says where one does not read.
pub(super) struct Cells<'r, 's> {
    row: &'r Row<'r>,
    shared: &'s mut Shared,
    table: &'static str,
    columns: &'static [&'static str],
    next: usize,
}

impl<'r, 's> Cells<'r, 's> {
    /// Reads a row that was selected with the columns of `R`.
    pub(super) fn read<R: SqlRow>(
        row: &'r Row<'r>,
        table: &'static str,
        shared: &'s mut Shared,
    ) -> Result<R, StoreError> {
        R::read(&mut Self { row, shared, table, columns: R::COLUMNS, next: 0 })
    }

    /// The damage: what stands in the column just read is not what belongs there.
    fn broken(&self, why: &str) -> StoreError {
        let column = self.columns.get(self.next.saturating_sub(1)).copied().unwrap_or("?");
        let key = match self.row.get_ref(0) {
            Ok(ValueRef::Text(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            Ok(ValueRef::Integer(number)) => number.to_string(),
            _ => "?".to_owned(),
        };
        StoreError::Corrupt { detail: format!("{}.{column} of row {key}: {why}", self.table) }
    }

    fn value(&mut self) -> Result<ValueRef<'r>, StoreError> {
        let at = self.next;
        self.next += 1;
        self.row.get_ref(at).map_err(|error| self.broken(&error.to_string()))
    }

    pub(super) fn maybe_text(&mut self) -> Result<Option<&'r str>, StoreError> {
        match self.value()? {
            ValueRef::Null => Ok(None),
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(self.broken("not UTF-8")),
            },
            _ => Err(self.broken("not text")),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'r str, StoreError> {
        let text = self.maybe_text()?;
        text.ok_or_else(|| self.broken("missing"))
    }

    pub(super) fn maybe_int(&mut self) -> Result<Option<i64>, StoreError> {
        match self.value()? {
            ValueRef::Null => Ok(None),
            ValueRef::Integer(number) => Ok(Some(number)),
            _ => Err(self.broken("not an integer")),
        }
    }

    pub(super) fn int(&mut self) -> Result<i64, StoreError> {
        let number = self.maybe_int()?;
        number.ok_or_else(|| self.broken("missing"))
    }

    /// A number of a smaller type.
    pub(super) fn small<T: TryFrom<i64>>(&mut self) -> Result<T, StoreError> {
        let number = self.int()?;
        T::try_from(number).map_err(|_| self.broken("out of range"))
    }

    pub(super) fn maybe_small<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, StoreError> {
        match self.maybe_int()? {
            None => Ok(None),
            Some(number) => T::try_from(number).map(Some).map_err(|_| self.broken("out of range")),
        }
    }

    pub(super) fn uint(&mut self) -> Result<u64, StoreError> {
        self.int().map(i64::cast_unsigned)
    }

    pub(super) fn maybe_uint(&mut self) -> Result<Option<u64>, StoreError> {
        Ok(self.maybe_int()?.map(i64::cast_unsigned))
    }

    pub(super) fn flag(&mut self) -> Result<bool, StoreError> {
        match self.int()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.broken("neither 0 nor 1")),
        }
    }

    pub(super) fn time(&mut self) -> Result<Timestamp, StoreError> {
        self.int().map(Timestamp)
    }

    pub(super) fn maybe_time(&mut self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.maybe_int()?.map(Timestamp))
    }

    /// A name that many rows have in common.
    pub(super) fn name<N: SharedName>(&mut self) -> Result<N, StoreError> {
        let text = self.text()?;
        self.shared.name(text).map_err(|_| self.broken("not a name"))
    }

    pub(super) fn maybe_name<N: SharedName>(&mut self) -> Result<Option<N>, StoreError> {
        match self.maybe_text()? {
            None => Ok(None),
            Some(text) => self.shared.name(text).map(Some).map_err(|_| self.broken("not a name")),
        }
    }

    /// An id or a word.
    pub(super) fn parse<T: FromStr>(&mut self) -> Result<T, StoreError> {
        let text = self.text()?;
        text.parse().map_err(|_| self.broken("not a valid value"))
    }

    pub(super) fn maybe_parse<T: FromStr>(&mut self) -> Result<Option<T>, StoreError> {
        match self.maybe_text()? {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| self.broken("not a valid value")),
        }
    }

    /// The one of `all` whose word this is.
    pub(super) fn word<T: Copy>(
        &mut self,
        all: &[T],
        word: impl Fn(T) -> &'static str,
    ) -> Result<T, StoreError> {
        let text = self.text()?;
        let found = all.iter().copied().find(|value| word(*value) == text);
        found.ok_or_else(|| self.broken("not a valid value"))
    }

    pub(super) fn json<T: DeserializeOwned>(&mut self) -> Result<T, StoreError> {
        let text = self.text()?;
        self.json_of(text)
    }

    /// A value from JSON, or the default where there is none.
    pub(super) fn json_or_default<T: DeserializeOwned + Default>(
        &mut self,
    ) -> Result<T, StoreError> {
        self.maybe_text()?.map_or_else(|| Ok(T::default()), |text| self.json_of(text))
    }

    /// A value from a text of this row.
    fn json_of<T: DeserializeOwned>(&self, text: &str) -> Result<T, StoreError> {
        // The text may hold a secret: the message tells its place, not its content.
        serde_json::from_str(text).map_err(|error| {
            self.broken(&format!(
                "not the JSON that belongs here, at line {} column {}",
                error.line(),
                error.column()
            ))
        })
    }
}
