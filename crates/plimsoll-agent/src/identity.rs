//! What an agent keeps about itself in its data folder.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use plimsoll_api::Secret;
use rustix::fs::{FlockOperation, flock};

/// Random bytes of the secret between cell and agent: more than can be guessed, as hexadecimal
/// digits well within a header.
const SECRET_BYTES: usize = 32;

/// Why the data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another agent uses it.
    #[error("{} is in use by another agent", .0.display())]
    InUse(PathBuf),
    /// A file could not be read or written.
    #[error("{}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The secret's file holds something else.
    #[error("{} holds no secret; remove it and the agent makes a new one", .0.display())]
    Secret(PathBuf),
    /// The system gave no randomness.
    #[error("the system gives no randomness: {0}")]
    Entropy(String),
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { path, source }
}

/// The data folder, held against a second agent for as long as this lives.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Self, FolderError> {
        DirBuilder::new().recursive(true).mode(0o711).create(path).map_err(io_at(path))?;
        let lock_path = path.join("agent.lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(io_at(&lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(FolderError::InUse(path.to_owned())),
            Err(error) => Err(io_at(&lock_path)(error.into())),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The secret that cell and agent show each other: made at the first start, kept in a file
    /// that only the agent's own user can read.
    pub(crate) fn secret(&self) -> Result<Secret, FolderError> {
        let path = self.path.join("agent.secret");
        match File::open(&path) {
            Ok(file) => {
                let mut text = String::new();
                file.take(1024).read_to_string(&mut text).map_err(io_at(&path))?;
                let text = text.trim();
                let hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit());
                if text.len() != 2 * SECRET_BYTES || !hexadecimal {
                    return Err(FolderError::Secret(path));
                }
                Ok(Secret::new(text))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make_secret(&path),
            Err(error) => Err(io_at(&path)(error)),
        }
    }

    fn make_secret(&self, path: &Path) -> Result<Secret, FolderError> {
        let mut bytes = [0_u8; SECRET_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| FolderError::Entropy(error.to_string()))?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        replace(&self.path, "agent.secret", |file| writeln!(file, "{text}"))
            .map_err(io_at(path))?;
        Ok(Secret::new(text))
    }
}

/// Writes a file of mode 0600 beside its name, syncs it and renames it into place, so that there
/// is the old one or the new one whatever happens.
pub(crate) fn replace(
    folder: &Path,
    name: &str,
    write: impl FnOnce(&mut io::BufWriter<&File>) -> io::Result<()>,
) -> io::Result<File> {
    let beside = folder.join(format!("{name}.new"));
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&beside)?;
    let mut writer = io::BufWriter::new(&file);
    write(&mut writer)?;
    writer.flush()?;
    drop(writer);
    file.sync_all()?;
    std::fs::rename(&beside, folder.join(name))?;
    File::open(folder)?.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_secret_is_made_once_and_for_its_owner_alone() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::open(data.path()).unwrap();
        let secret = folder.secret().unwrap();
        assert_eq!(secret.expose().len(), 64);
        assert_eq!(folder.secret().unwrap(), secret);
        let mode = std::fs::metadata(data.path().join("agent.secret")).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        std::fs::write(data.path().join("agent.secret"), "short\n").unwrap();
        assert!(matches!(folder.secret(), Err(FolderError::Secret(_))));
    }

    #[test]
    fn a_folder_has_one_agent() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::open(data.path()).unwrap();
        assert!(matches!(Folder::open(data.path()), Err(FolderError::InUse(_))));
        drop(folder);
        assert!(Folder::open(data.path()).is_ok());
    }
}
