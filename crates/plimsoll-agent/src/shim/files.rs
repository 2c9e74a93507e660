//! Files that another process may look at while they change, and that a crash may cut short.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Mode of every file in a guest's folder but its work folder: they hold environment values.
const PRIVATE: u32 = 0o600;

/// What a file has to outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlives {
    /// The processes that use it. Such a file speaks of this boot only.
    Processes,
    /// A crash of the machine.
    Machine,
}

/// Writes a file so that readers see the old text or the new, never a part: a new file renamed
/// over the old one.
pub(crate) fn replace(path: &Path, bytes: &[u8], outlives: Outlives) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("a file needs a folder"))?;
    let name = path.file_name().ok_or_else(|| io::Error::other("a file needs a name"))?;
    let mut staged_name = std::ffi::OsString::from(".new-");
    staged_name.push(name);
    let staged = folder.join(staged_name);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(PRIVATE).open(&staged)?;
    file.write_all(bytes)?;
    if outlives == Outlives::Machine {
        file.sync_all()?;
    }
    std::fs::rename(&staged, path)?;
    if outlives == Outlives::Machine {
        sync_folder(folder)?;
    }
    Ok(())
}

/// Makes renames and new names in a folder survive a crash of the machine.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// As [`replace`], in JSON.
pub(crate) fn replace_json<T: Serialize>(
    path: &Path,
    value: &T,
    outlives: Outlives,
) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(io::Error::other)?;
    bytes.push(b'\n');
    replace(path, &bytes, outlives)
}

/// Reads JSON; `None` when there is no such file.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let mut text = String::new();
    match File::open(path) {
        Ok(mut file) => file.read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    serde_json::from_str(&text).map(Some).map_err(io::Error::other)
}

/// Makes a folder, and those above it, that only its owner may enter. An existing one is left.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes a file; none is well, too.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes a folder with all that is in it; none is well, too.
pub(crate) fn remove_folder(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // An agent without root meets folders that a guest shut for it.
            unlock(path);
            std::fs::remove_dir_all(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Opens every folder below for its owner, as far as that goes.
fn unlock(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700));
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            unlock(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_replaced_file_is_whole_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        assert_eq!(read_json::<u32>(&path).unwrap(), None);
        for (value, outlives) in [(1_u32, Outlives::Processes), (2, Outlives::Machine)] {
            replace_json(&path, &value, outlives).unwrap();
            assert_eq!(read_json(&path).unwrap(), Some(value));
        }
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing staged is left");
        std::fs::write(&path, "{").unwrap();
        assert!(read_json::<u32>(&path).is_err());
    }

    #[test]
    fn a_folder_goes_though_a_guest_shut_it() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("c"), "").unwrap();
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o000)).unwrap();
        remove_folder(&folder.path().join("a")).unwrap();
        assert!(!folder.path().join("a").exists());
        remove_folder(&folder.path().join("a")).unwrap();
    }
}
