//! The agent's journal: one JSON line for each entry, on disk before what it announces begins.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use plimsoll_host::JournalEntry;

use crate::identity::replace;

/// The file's name in the data folder. Mode 0600: it holds guests' environments.
const NAME: &str = "agent.journal";
/// Longest line: a start with 64 KiB each of command and environment, every byte written as six,
/// and as much again for the rest.
const LINE_BYTES_MAX: u64 = 2 << 20;
/// A journal is written anew once it has this size and is [`GROWTH`] times what it was then: at
/// 1 KiB an entry these are 16 000 entries, read within a second at the next start.
const REWRITE_BYTES: u64 = 16 << 20;
/// See [`REWRITE_BYTES`].
const GROWTH: u64 = 4;

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It could not be read or written.
    #[error("journal {}", path.display())]
    Io {
        /// Where it is.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line in its midst makes no sense. A torn last line is no such case.
    #[error(
        "journal {}, line {line}: {detail}; guests and their start times stand there: restore the \
         file, or move it away and every guest that a driver finds is taken over as just started",
        path.display()
    )]
    Broken {
        /// Where it is.
        path: PathBuf,
        /// Which line.
        line: u64,
        /// What does not fit.
        detail: String,
    },
}

/// The open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    file: File,
    bytes: u64,
    bytes_at_rewrite: u64,
    buffer: Vec<u8>,
}

/// Reads the journal in `folder`; none is an empty one.
///
/// A last line without its end is what a cut of power leaves behind: nothing was acted on by it,
/// so it is left out. Where the machine was started anew since, so is everything from the first
/// line on that makes no sense: a sync covers all that was written before it, so nothing after
/// such a line can have been acted on. Without a new start of the machine no line can be torn.
pub(crate) fn read(folder: &Path, machine_boot: &str) -> Result<Vec<JournalEntry>, JournalError> {
    let path = folder.join(NAME);
    let fail = |source| io_error(folder, source);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(fail(error)),
    };
    let mut reader = BufReader::new(file);
    let mut entries = Vec::new();
    let mut same_boot = false;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let mut bounded = io::Read::take(&mut reader, LINE_BYTES_MAX);
        if bounded.read_until(b'\n', &mut line).map_err(fail)? == 0 {
            break;
        }
        let parsed = match line.last() {
            Some(b'\n') => serde_json::from_slice(&line).map_err(|error| error.to_string()),
            _ => Err("it has no end".to_owned()),
        };
        match parsed {
            Ok(entry) => {
                if let JournalEntry::Machine { boot } = &entry {
                    same_boot = boot == machine_boot;
                }
                entries.push(entry);
            }
            Err(detail) => {
                let is_last = reader.fill_buf().map_err(fail)?.is_empty();
                if same_boot && !is_last {
                    return Err(JournalError::Broken { path, line: number, detail });
                }
                tracing::warn!(line = number, detail, "the journal is torn here and ends");
                break;
            }
        }
    }
    Ok(entries)
}

/// Writes a journal that holds just this, in place of any other.
fn write_anew(folder: &Path, snapshot: &[JournalEntry]) -> Result<(File, u64), JournalError> {
    let mut bytes = 0;
    let file = replace(folder, NAME, |file| {
        for entry in snapshot {
            let line = line_of(entry)?;
            bytes += line.len() as u64;
            file.write_all(&line)?;
        }
        Ok(())
    });
    Ok((file.map_err(|source| io_error(folder, source))?, bytes))
}

impl Journal {
    /// Begins the journal anew with what `snapshot` holds, in place of the old one.
    pub(crate) fn begin(folder: &Path, snapshot: &[JournalEntry]) -> Result<Self, JournalError> {
        let (file, bytes) = write_anew(folder, snapshot)?;
        let buffer = Vec::new();
        Ok(Self { folder: folder.to_owned(), file, bytes, bytes_at_rewrite: bytes, buffer })
    }

    /// A journal on a disk that is full.
    #[cfg(test)]
    pub(crate) fn on_full_disk() -> Self {
        let file = std::fs::OpenOptions::new().write(true).open("/dev/full");
        Self {
            folder: PathBuf::new(),
            file: file.expect("Linux has one"),
            bytes: 0,
            bytes_at_rewrite: 0,
            buffer: Vec::new(),
        }
    }

    /// Whether it has grown enough to be worth beginning anew.
    pub(crate) fn wants_rewrite(&self) -> bool {
        self.bytes >= REWRITE_BYTES && self.bytes / GROWTH >= self.bytes_at_rewrite
    }

    /// Puts what `snapshot` holds in place of everything so far.
    pub(crate) fn rewrite(&mut self, snapshot: &[JournalEntry]) -> Result<(), JournalError> {
        (self.file, self.bytes) = write_anew(&self.folder, snapshot)?;
        self.bytes_at_rewrite = self.bytes;
        Ok(())
    }

    /// Appends entries; when one of them must be durable, all are on disk when this returns.
    pub(crate) fn append(&mut self, entries: &[JournalEntry]) -> Result<(), JournalError> {
        if entries.is_empty() {
            return Ok(());
        }
        let fail = |source| io_error(&self.folder, source);
        self.buffer.clear();
        for entry in entries {
            let line = line_of(entry).map_err(fail)?;
            self.buffer.extend_from_slice(&line);
        }
        self.file.write_all(&self.buffer).map_err(fail)?;
        self.bytes += self.buffer.len() as u64;
        if entries.iter().any(JournalEntry::must_be_durable) {
            self.file.sync_data().map_err(fail)?;
        }
        Ok(())
    }
}

fn io_error(folder: &Path, source: io::Error) -> JournalError {
    JournalError::Io { path: folder.join(NAME), source }
}

fn line_of(entry: &JournalEntry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use plimsoll_types::Fence;

    use super::*;

    fn seen(number: u64) -> JournalEntry {
        JournalEntry::Seen { fence: Fence { epoch: 1, number } }
    }

    fn add(folder: &Path, bytes: &[u8]) {
        let mut file = OpenOptions::new().append(true).open(folder.join(NAME)).unwrap();
        file.write_all(bytes).unwrap();
    }

    fn machine(boot: &str) -> JournalEntry {
        JournalEntry::Machine { boot: boot.to_owned() }
    }

    fn read_here(folder: &tempfile::TempDir) -> Result<Vec<JournalEntry>, JournalError> {
        read(folder.path(), "this")
    }

    #[test]
    fn what_was_appended_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_here(&folder).unwrap(), []);
        let mut journal = Journal::begin(folder.path(), &[seen(1)]).unwrap();
        journal.append(&[seen(2), seen(3)]).unwrap();
        assert_eq!(read_here(&folder).unwrap(), [seen(1), seen(2), seen(3)]);
        journal.rewrite(&[seen(3)]).unwrap();
        journal.append(&[seen(4)]).unwrap();
        assert_eq!(read_here(&folder).unwrap(), [seen(3), seen(4)]);
        assert!(!journal.wants_rewrite());
    }

    #[test]
    fn a_torn_tail_is_left_out_at_every_length() {
        let folder = tempfile::tempdir().unwrap();
        let line = line_of(&seen(2)).unwrap();
        for length in 0..line.len() {
            Journal::begin(folder.path(), &[machine("this"), seen(1)]).unwrap();
            add(folder.path(), &line[..length]);
            assert_eq!(read_here(&folder).unwrap(), [machine("this"), seen(1)], "{length}");
        }
        Journal::begin(folder.path(), &[machine("this"), seen(1)]).unwrap();
        add(folder.path(), b"\0\0\0\0}}\n");
        assert_eq!(read_here(&folder).unwrap(), [machine("this"), seen(1)]);
    }

    #[test]
    fn a_broken_line_in_the_midst_is_torn_only_where_power_was_cut() {
        let folder = tempfile::tempdir().unwrap();
        let broken = |boot: &str| {
            Journal::begin(folder.path(), &[machine(boot), seen(1)]).unwrap();
            add(folder.path(), b"\0\0\0\0\0\n");
            add(folder.path(), &line_of(&seen(2)).unwrap());
        };
        broken("this");
        let error = read_here(&folder).unwrap_err();
        assert!(matches!(error, JournalError::Broken { line: 3, .. }), "{error}");
        broken("an earlier one");
        assert_eq!(read_here(&folder).unwrap(), [machine("an earlier one"), seen(1)]);
    }

    #[test]
    fn an_interrupted_rewrite_leaves_the_old_journal() {
        let folder = tempfile::tempdir().unwrap();
        Journal::begin(folder.path(), &[seen(1)]).unwrap();
        std::fs::write(folder.path().join("agent.journal.new"), b"half").unwrap();
        assert_eq!(read_here(&folder).unwrap(), [seen(1)]);
        Journal::begin(folder.path(), &[seen(2)]).unwrap();
        assert_eq!(read_here(&folder).unwrap(), [seen(2)]);
    }
}
