//! Output: tables for people, JSON for scripts.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_api::Time;
use serde::Serialize;

use crate::failure::Failure;

/// Whether this process was asked for JSON; known once the command line is read.
static JSON: AtomicBool = AtomicBool::new(false);

/// Remembers that output is for scripts.
pub(crate) fn want_json(wanted: bool) {
    JSON.store(wanted, Ordering::Relaxed);
}

/// Whether output is for scripts.
pub(crate) fn wants_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Writes data to the output.
///
/// # Errors
/// When nobody reads it, or the disk is full.
pub(crate) fn out(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::refused(format!("the output cannot be written: {error}")))
}

/// Writes talk to the error stream: it is no data, and nobody need read it.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", clean(text));
}

/// Writes a value as JSON.
///
/// # Errors
/// As [`out`].
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::refused(format!("the answer makes no JSON: {error}")))?;
    text.push('\n');
    out(&text)
}

/// Text of others, without what would steer a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() && letter != '\n' { '\u{fffd}' } else { letter })
        .collect()
}

/// A table with aligned columns.
pub(crate) struct Table {
    head: Vec<&'static str>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns; one whose name begins with `>` is aligned to the right.
    pub(crate) fn new(columns: &[&'static str]) -> Self {
        let right = columns.iter().map(|name| name.starts_with('>')).collect();
        let head = columns.iter().map(|name| name.trim_start_matches('>')).collect();
        Self { head, right, rows: Vec::new() }
    }

    /// Adds a row; an empty cell shows as `-`.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        let cells = cells.into_iter().map(|cell| {
            let cell = clean(&cell).replace('\n', " ");
            if cell.is_empty() { "-".to_owned() } else { cell }
        });
        self.rows.push(cells.collect());
    }

    /// The table as text, without space at the ends of lines.
    pub(crate) fn text(&self) -> String {
        let mut widths: Vec<usize> = self.head.iter().map(|name| name.len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let head: Vec<String> = self.head.iter().map(|name| name.to_uppercase()).collect();
        let mut text = String::new();
        for row in std::iter::once(&head).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                let space = " ".repeat(width.saturating_sub(cell.chars().count()));
                line.push_str(&if *right { space + cell } else { cell.clone() + &space });
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Writes the table.
    ///
    /// # Errors
    /// As [`out`].
    pub(crate) fn print(&self) -> Result<(), Failure> {
        out(&self.text())
    }
}

/// Lines of a name and a value, for one object.
///
/// # Errors
/// As [`out`].
pub(crate) fn facts(lines: &[(&str, String)]) -> Result<(), Failure> {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        let value = clean(value).replace('\n', " ");
        format!("{name:width$}  {}\n", if value.is_empty() { "-" } else { &value })
    };
    out(&lines.iter().map(line).collect::<String>())
}

/// What is there, or nothing.
pub(crate) fn opt(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// A limit, where `None` is unlimited.
pub(crate) fn limit(value: Option<u64>) -> String {
    value.map_or_else(|| "unlimited".to_owned(), |value| value.to_string())
}

/// Yes or no.
pub(crate) fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// How long ago an instant was, in its largest unit.
pub(crate) fn ago(at: Time) -> String {
    let now = jiff::Timestamp::now().as_millisecond();
    length(u64::try_from(now.saturating_sub(at.0.millis())).unwrap_or(0))
}

/// A length of time in its largest unit, rounded down.
pub(crate) fn length(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0 => format!("{millis} ms"),
        1..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A share as a bar of twenty places and the two numbers. Unlimited has no bar.
pub(crate) fn bar(used: u64, limit: Option<u64>) -> String {
    const PLACES: u64 = 20;
    let Some(limit) = limit else { return format!("{used} of unlimited") };
    let full = used.saturating_mul(PLACES).checked_div(limit).unwrap_or(PLACES).min(PLACES);
    let full = usize::try_from(full).unwrap_or(0);
    let rest = 20_usize.saturating_sub(full);
    format!("[{}{}] {used} of {limit}", "#".repeat(full), ".".repeat(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_cells_are_marked() {
        let mut table = Table::new(&["id", ">mib"]);
        table.row(vec!["a".into(), "5".into()]);
        table.row(vec!["longer".into(), String::new()]);
        assert_eq!(table.text(), "ID      MIB\na         5\nlonger    -\n");
    }

    #[test]
    fn text_of_others_cannot_steer_the_terminal() {
        let mut table = Table::new(&["label"]);
        table.row(vec!["\u{1b}[2Jx\ny".into()]);
        assert_eq!(table.text(), "LABEL\n\u{fffd}[2Jx y\n");
    }

    #[test]
    fn bars_stay_within_their_ends() {
        assert_eq!(bar(5, Some(10)), "[##########..........] 5 of 10");
        assert_eq!(bar(30, Some(10)), "[####################] 30 of 10");
        assert_eq!(bar(0, Some(0)), "[####################] 0 of 0");
        assert_eq!(bar(u64::MAX, None), format!("{} of unlimited", u64::MAX));
    }

    #[test]
    fn lengths_are_in_their_largest_unit() {
        let texts = [0, 999, 1000, 119_999, 120_000, 7_200_000, 172_800_000].map(length);
        assert_eq!(texts, ["0 ms", "999 ms", "1 s", "119 s", "2 min", "2 h", "2 d"]);
    }
}
