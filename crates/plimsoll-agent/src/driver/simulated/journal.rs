//! Simulated guests on disk: one line per change, rewritten as one line per guest at each start.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Guest;
use crate::driver::folder::GuestName;

/// One change: a guest as it is from then on, or gone.
#[derive(Serialize, Deserialize)]
struct Line<G> {
    name: String,
    guest: Option<G>,
}

/// Takes changes. They survive the process's end at once, the machine's crash not always: a real
/// guest does not survive that either.
#[derive(Debug)]
pub(super) struct Journal(File);

impl Journal {
    /// Opens a journal and reads the guests from it. A last line that was cut short never was
    /// answered for, and is dropped.
    pub(super) fn open(path: &Path) -> io::Result<(Self, BTreeMap<GuestName, Guest>)> {
        let guests = match File::open(path) {
            Ok(file) => read(BufReader::new(file))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let staged = path.with_extension("new");
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&staged)?;
        let mut out = BufWriter::new(file);
        for (name, guest) in &guests {
            write(&mut out, name, Some(guest))?;
        }
        out.flush()?;
        std::fs::rename(&staged, path)?;
        Ok((Self(OpenOptions::new().append(true).open(path)?), guests))
    }

    pub(super) fn write(&mut self, name: &GuestName, guest: Option<&Guest>) -> io::Result<()> {
        let mut line = Vec::new();
        write(&mut line, name, guest)?;
        self.0.write_all(&line)
    }
}

fn write(out: &mut impl Write, name: &GuestName, guest: Option<&Guest>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Line { name: name.to_string(), guest })?;
    out.write_all(b"\n")
}

fn read(lines: impl BufRead) -> io::Result<BTreeMap<GuestName, Guest>> {
    let mut guests = BTreeMap::new();
    let mut lines = lines.lines().peekable();
    while let Some(line) = lines.next() {
        let parsed = serde_json::from_str::<Line<Guest>>(&line?)
            .map_err(io::Error::other)
            .and_then(|line| Ok((line.name.parse().map_err(io::Error::other)?, line.guest)));
        match parsed {
            Ok((name, Some(guest))) => {
                guests.insert(name, guest);
            }
            Ok((name, None)) => {
                guests.remove(&name);
            }
            Err(_) if lines.peek().is_none() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(guests)
}
