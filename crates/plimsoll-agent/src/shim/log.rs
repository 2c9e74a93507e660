//! A guest's output, bounded: the newest part of it, in two files.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most bytes of one log file. Two are kept, so between one and two MiB of output can be read
/// back: some ten thousand lines, while a thousand guests fill no more than 2 GiB of disk.
pub(crate) const LOG_FILE_BYTES_MAX: u64 = 1 << 20;

const CURRENT: &str = "log.0";
const FORMER: &str = "log.1";

/// Takes output and keeps its newest part.
#[derive(Debug)]
pub(crate) struct LogRing {
    folder: PathBuf,
    file: File,
    written: u64,
    file_bytes_max: u64,
}

impl LogRing {
    /// Goes on where a former ring in this folder ended.
    pub(crate) fn open(folder: &Path, file_bytes_max: u64) -> io::Result<Self> {
        let (file, written) = open_current(folder)?;
        Ok(Self { folder: folder.to_owned(), file, written, file_bytes_max })
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.written >= self.file_bytes_max {
                std::fs::rename(self.folder.join(CURRENT), self.folder.join(FORMER))?;
                (self.file, self.written) = open_current(&self.folder)?;
            }
            let room = usize::try_from(self.file_bytes_max - self.written).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.file.write_all(now)?;
            self.written += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }
}

fn open_current(folder: &Path) -> io::Result<(File, u64)> {
    let path = folder.join(CURRENT);
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// The newest `bytes_max` bytes of what a guest has written.
pub(crate) fn tail(folder: &Path, bytes_max: usize) -> Vec<u8> {
    let newest = read_end(&folder.join(CURRENT), bytes_max);
    let mut all = read_end(&folder.join(FORMER), bytes_max - newest.len());
    all.extend(newest);
    all
}

fn read_end(path: &Path, bytes_max: usize) -> Vec<u8> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(bytes_max as u64)))?;
        let mut bytes = Vec::new();
        file.take(bytes_max as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    // No log yet is an empty log.
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_output_stays_within_two_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut ring = LogRing::open(folder.path(), 10).unwrap();
        for number in 0..100 {
            ring.write(format!("{number:03}\n").as_bytes()).unwrap();
            let sizes: u64 = std::fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().metadata().unwrap().len())
                .sum();
            assert!(sizes <= 20, "{sizes}");
        }
        let text = String::from_utf8(tail(folder.path(), 100)).unwrap();
        assert!(text.ends_with("098\n099\n") && text.len() > 10, "{text:?}");
        assert_eq!(tail(folder.path(), 5), b"\n099\n");
    }

    #[test]
    fn a_second_ring_goes_on_and_one_large_write_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        LogRing::open(folder.path(), 10).unwrap().write(b"first ").unwrap();
        LogRing::open(folder.path(), 10).unwrap().write(&[b'x'; 35]).unwrap();
        let kept = tail(folder.path(), 100);
        assert!(kept.len() <= 20 && kept.iter().all(|byte| *byte == b'x'), "{kept:?}");
        assert!(tail(&folder.path().join("none"), 100).is_empty());
    }
}
