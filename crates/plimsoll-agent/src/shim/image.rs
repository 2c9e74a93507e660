//! A checkpoint on disk: image files and a manifest, which alone makes them a checkpoint.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::{Outlives, read_json, remove_folder, replace_json, sync_folder};

/// A checkpoint: exists only with its manifest, synced and renamed into place as a whole.
pub(crate) const CHECKPOINT: &str = "checkpoint";
/// One being written.
pub(crate) const STAGED: &str = "checkpoint.new";
/// One that a guest is being restored from.
pub(crate) const CONSUMED: &str = "checkpoint.used";
const MANIFEST: &str = "manifest.json";
/// The file that `runsc checkpoint` writes.
pub(crate) const IMAGE_FILE: &str = "checkpoint.img";

/// What belongs to a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub files: Vec<ImageFile>,
    /// CPU that the guest had used by then, over its whole life.
    pub cpu_millis_total: u64,
    pub at_unix_millis: i64,
}

/// One file of a checkpoint. Its size tells a file cut short; a hash would cost seconds for each
/// GiB at every pause, and a damaged image fails its restore, which keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageFile {
    pub name: String,
    pub bytes: u64,
}

/// Makes the staged folder of a guest a checkpoint.
pub(crate) fn seal(guest: &Path, cpu_millis_total: u64) -> io::Result<()> {
    let staged = guest.join(STAGED);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&staged)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| io::ErrorKind::InvalidData)?;
        if name == MANIFEST || name.starts_with('.') {
            continue;
        }
        let file = File::open(entry.path())?;
        file.sync_all()?;
        files.push(ImageFile { name, bytes: file.metadata()?.len() });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    if files.iter().all(|file| file.bytes == 0) {
        return Err(io::Error::other("the image is empty"));
    }
    let at_unix_millis = super::plan::unix_millis();
    let manifest = Manifest { files, cpu_millis_total, at_unix_millis };
    replace_json(&staged.join(MANIFEST), &manifest, Outlives::Machine)?;
    std::fs::rename(&staged, guest.join(CHECKPOINT))?;
    sync_folder(guest)
}

/// The manifest of a whole checkpoint in this folder; `None` when there is none, or a file of it
/// is missing or cut short.
pub(crate) fn manifest(checkpoint: &Path) -> Option<Manifest> {
    let manifest: Manifest = read_json(&checkpoint.join(MANIFEST)).ok()??;
    let whole = manifest.files.iter().all(|file| {
        std::fs::metadata(checkpoint.join(&file.name)).is_ok_and(|found| found.len() == file.bytes)
    });
    whole.then_some(manifest)
}

/// Takes the guest's checkpoint away for a restore, so that no crash leaves both a running guest
/// and a checkpoint that claims to be its state.
pub(crate) fn take(guest: &Path) -> io::Result<PathBuf> {
    let used = guest.join(CONSUMED);
    // One that could not be removed after an earlier restore has served long ago.
    remove_folder(&used)?;
    std::fs::rename(guest.join(CHECKPOINT), &used)?;
    sync_folder(guest)?;
    Ok(used)
}

/// Puts a checkpoint back whose restore failed; none is well, too.
pub(crate) fn put_back(guest: &Path) -> io::Result<()> {
    match std::fs::rename(guest.join(CONSUMED), guest.join(CHECKPOINT)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_folder(guest),
    }
}

/// Removes what a restore that worked has used up.
pub(crate) fn discard_used(guest: &Path) -> io::Result<()> {
    remove_folder(&guest.join(CONSUMED))
}

/// Makes the checkpoint of one guest that of another, too. Images never change, so their files
/// are shared by hard links where the file system can, and copied where it cannot.
pub(crate) fn share(from: &Path, guest: &Path) -> io::Result<()> {
    let manifest = manifest(from).ok_or_else(|| io::Error::other("no whole checkpoint"))?;
    let staged = guest.join(STAGED);
    remove_folder(&staged)?;
    super::files::private_folder(&staged)?;
    for file in &manifest.files {
        let (source, target) = (from.join(&file.name), staged.join(&file.name));
        if std::fs::hard_link(&source, &target).is_err() {
            std::fs::copy(&source, &target)?;
        }
    }
    // A new guest has used no CPU of its own.
    seal(guest, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(guest: &Path) -> PathBuf {
        let folder = guest.join(STAGED);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn only_a_sealed_and_whole_image_is_a_checkpoint() {
        let guest = tempfile::tempdir().unwrap();
        let checkpoint = guest.path().join(CHECKPOINT);
        std::fs::write(staged(guest.path()).join(IMAGE_FILE), "").unwrap();
        assert!(seal(guest.path(), 1).is_err(), "an empty image");
        std::fs::write(staged(guest.path()).join(IMAGE_FILE), "memory").unwrap();
        assert_eq!(manifest(&checkpoint), None);
        seal(guest.path(), 77).unwrap();
        let sealed = manifest(&checkpoint).unwrap();
        assert_eq!(sealed.cpu_millis_total, 77);
        assert_eq!(sealed.files, [ImageFile { name: IMAGE_FILE.to_owned(), bytes: 6 }]);
        std::fs::write(checkpoint.join(IMAGE_FILE), "mem").unwrap();
        assert_eq!(manifest(&checkpoint), None, "cut short");
    }

    #[test]
    fn a_taken_checkpoint_is_none_until_it_is_put_back() {
        let guest = tempfile::tempdir().unwrap();
        std::fs::write(staged(guest.path()).join(IMAGE_FILE), "memory").unwrap();
        seal(guest.path(), 0).unwrap();
        let used = take(guest.path()).unwrap();
        assert!(manifest(&used).is_some() && manifest(&guest.path().join(CHECKPOINT)).is_none());
        put_back(guest.path()).unwrap();
        assert!(manifest(&guest.path().join(CHECKPOINT)).is_some());
        take(guest.path()).unwrap();
        discard_used(guest.path()).unwrap();
        assert_eq!(std::fs::read_dir(guest.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_shared_checkpoint_outlives_its_source() {
        let (source, fork) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(staged(source.path()).join(IMAGE_FILE), "memory").unwrap();
        seal(source.path(), 9).unwrap();
        share(&source.path().join(CHECKPOINT), fork.path()).unwrap();
        remove_folder(&source.path().join(CHECKPOINT)).unwrap();
        assert_eq!(manifest(&fork.path().join(CHECKPOINT)).unwrap().cpu_millis_total, 0);
        assert!(share(&source.path().join(CHECKPOINT), fork.path()).is_err());
    }
}
