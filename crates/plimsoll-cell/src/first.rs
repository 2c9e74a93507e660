//! The first start: keys in files, and a template to try things with.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_engine::Admin;
use plimsoll_engine::rows::{KeyRow, Role, Rows, TemplateRow};
use plimsoll_types::{Driver, Mib, TemplateName, TenantId, Timestamp};

use crate::auth::{NewKey, hash_hex};
use crate::ids::Ids;

/// The file that holds the address bound.
const ADDRESS_FILE: &str = "address";
/// The file that a cell at work has locked.
const LOCK_FILE: &str = "lock";
/// The file that holds the operator's key, the first one made.
const OPERATOR_KEY_FILE: &str = "operator.key";
/// The file that holds the key which serves any host.
const HOST_KEY_FILE: &str = "host.key";
/// Longest key that is read from a file.
const KEY_LENGTH_MAX: usize = 512;

/// Makes the data folder, for its owner alone.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// What keeps a second cell off the folder, whatever store it has: it would write its own address
/// over the first one's. The kernel lets go of it with the process, however that ends.
#[derive(Debug)]
pub(crate) struct FolderLock(#[expect(dead_code, reason = "held, not read")] File);

impl FolderLock {
    /// Takes it at once or not at all.
    ///
    /// # Errors
    /// When another cell has it, or the file cannot be made.
    pub(crate) fn take(folder: &Path) -> Result<Self, TryLockError> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(folder.join(LOCK_FILE)).map_err(TryLockError::Error)?;
        file.try_lock()?;
        Ok(Self(file))
    }
}

/// The file that says where the cell listens, so that clients of the same machine find it: as
/// `127.0.0.1:7070`, with TLS as `https://127.0.0.1:7070`.
///
/// Whoever finds it looks for a key next. So it is there only while the keys are.
pub(crate) struct AddressFile {
    pub(crate) folder: PathBuf,
    pub(crate) address: SocketAddr,
    pub(crate) is_tls: bool,
}

impl AddressFile {
    /// Writes it where keys are already there; else takes an old one away, which leads nowhere.
    ///
    /// # Errors
    /// When it cannot be written or taken away.
    pub(crate) fn begin(&self) -> io::Result<()> {
        if self.folder.join(OPERATOR_KEY_FILE).exists() {
            return self.write();
        }
        match fs::remove_file(self.folder.join(ADDRESS_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self) -> io::Result<()> {
        let temporary = self.folder.join(".address.new");
        let scheme = if self.is_tls { "https://" } else { "" };
        fs::write(&temporary, format!("{scheme}{}\n", self.address))?;
        fs::rename(temporary, self.folder.join(ADDRESS_FILE))
    }
}

/// What a cell over an empty store has to make.
///
/// A store without any key has never been started, or is in memory. Key files that are there
/// already are taken over, so that a crash between files and rows leaves no dead key, and a cell
/// in memory keeps its keys over restarts.
pub(crate) struct FirstStart {
    pub(crate) folder: PathBuf,
    pub(crate) default_tenant: TenantId,
    /// Whether a key that serves any host is made.
    pub(crate) host_key: bool,
    /// Whether keys whose files are missing are made anew.
    pub(crate) renew: bool,
    pub(crate) ids: Arc<Ids>,
}

impl FirstStart {
    /// The changes to make, if this is a first start.
    ///
    /// # Errors
    /// When a key file cannot be read or written.
    pub(crate) fn changes(&self, rows: &Rows, now: Timestamp) -> io::Result<Vec<Admin>> {
        let mut changes = Vec::new();
        if rows.keys.is_empty() {
            let tenant = &self.default_tenant;
            let tenant_file = format!("tenant-{tenant}.key");
            changes.push(self.key(OPERATOR_KEY_FILE, Role::Operator, None, now)?);
            changes.push(self.key(&tenant_file, Role::Tenant, Some(tenant), now)?);
            if self.host_key {
                changes.push(self.key(HOST_KEY_FILE, Role::Host, None, now)?);
            }
            if rows.templates.is_empty() {
                changes.push(Admin::PutTemplate(shell_template()));
            }
            File::open(&self.folder)?.sync_all()?;
        } else if self.renew {
            changes.extend(self.renewed(rows, OPERATOR_KEY_FILE, Role::Operator, now)?);
            if self.host_key {
                changes.extend(self.renewed(rows, HOST_KEY_FILE, Role::Host, now)?);
            }
            File::open(&self.folder)?.sync_all()?;
        } else if !self.folder.join(OPERATOR_KEY_FILE).exists() {
            tracing::warn!("operator.key is missing; --renew-keys makes a new one");
        }
        Ok(changes)
    }

    /// A key anew for a file that is missing, or whose key the store does not know.
    ///
    /// The operator's key takes the place of the one of the first start, which is revoked by that:
    /// nobody knows where it is. The hosts' key stands beside the former one, which agents of other
    /// machines may still show.
    fn renewed(
        &self,
        rows: &Rows,
        file: &str,
        role: Role,
        now: Timestamp,
    ) -> io::Result<Option<Admin>> {
        let text = read_or_draw(&self.folder.join(file))?;
        let hash = hash_hex(&text);
        if rows.keys.iter().any(|row| row.role == role && row.hash == hash) {
            return Ok(None);
        }
        // What the first start makes is older than every key that somebody asked for.
        let begun = rows.keys.iter().map(|row| row.created_at).min();
        let lost = rows.keys.iter().find(|row| {
            role == Role::Operator && row.role == role && Some(row.created_at) == begun
        });
        let row = KeyRow {
            id: lost.map_or_else(|| self.ids.key(), |row| row.id),
            role,
            tenant: None,
            host: None,
            hash,
            created_at: lost.map_or(now, |row| row.created_at),
        };
        tracing::warn!(file, key = %row.id, revoked = lost.is_some(), "a key is made anew");
        Ok(Some(Admin::RenewKey(row)))
    }

    fn key(
        &self,
        file: &str,
        role: Role,
        tenant: Option<&TenantId>,
        now: Timestamp,
    ) -> io::Result<Admin> {
        let text = read_or_draw(&self.folder.join(file))?;
        Ok(Admin::PutKey(KeyRow {
            id: self.ids.key(),
            role,
            tenant: tenant.cloned(),
            host: None,
            hash: hash_hex(&text),
            created_at: now,
        }))
    }
}

/// The key in a file; a new one where there is no file.
fn read_or_draw(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) => {
            let key = text.trim();
            if key.is_empty() || key.len() > KEY_LENGTH_MAX || key.contains(char::is_whitespace) {
                let what = format!("{} holds no key on one line", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            Ok(key.to_owned())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = NewKey::draw().map_err(|error| io::Error::other(error.to_string()))?;
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            writeln!(file, "{}", key.text)?;
            file.sync_all()?;
            Ok(key.text)
        }
        Err(error) => Err(error),
    }
}

/// A shape to try things with: a process with half a GiB.
fn shell_template() -> TemplateRow {
    let name = TemplateName::new("shell").expect("a valid name");
    TemplateRow::new(name, Driver::Process, Mib(512))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_address_is_there_only_while_the_keys_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("address");
        let address = "127.0.0.1:9".parse().unwrap();
        let file = |is_tls| AddressFile { folder: folder.path().to_owned(), address, is_tls };
        file(false).begin().unwrap();
        assert!(!path.exists());
        fs::write(&path, "of an earlier cell\n").unwrap();
        file(false).begin().unwrap();
        assert!(!path.exists());
        first(folder.path()).changes(&Rows::default(), Timestamp(0)).unwrap();
        file(false).begin().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "127.0.0.1:9\n");
        file(true).write().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "https://127.0.0.1:9\n");
    }

    fn first(folder: &Path) -> FirstStart {
        FirstStart {
            folder: folder.to_owned(),
            default_tenant: TenantId::new("default").unwrap(),
            host_key: true,
            renew: false,
            ids: Arc::new(Ids::new().unwrap()),
        }
    }

    fn hashes(changes: &[Admin]) -> Vec<String> {
        let hash = |change: &Admin| match change {
            Admin::PutKey(row) => Some(row.hash.clone()),
            _ => None,
        };
        changes.iter().filter_map(hash).collect()
    }

    #[test]
    fn an_empty_store_gets_keys_that_the_files_hold() {
        let folder = tempfile::tempdir().unwrap();
        let changes = first(folder.path()).changes(&Rows::default(), Timestamp(5)).unwrap();
        let files = ["operator.key", "tenant-default.key", "host.key"];
        let from_files: Vec<String> = files
            .iter()
            .map(|file| {
                let path = folder.path().join(file);
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{file}");
                let text = fs::read_to_string(path).unwrap();
                assert_eq!(text.lines().count(), 1);
                hash_hex(text.trim())
            })
            .collect();
        assert_eq!(hashes(&changes), from_files);
    }

    #[test]
    fn files_that_are_there_are_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let before = first(folder.path()).changes(&Rows::default(), Timestamp(5)).unwrap();
        let after = first(folder.path()).changes(&Rows::default(), Timestamp(6)).unwrap();
        assert_eq!(hashes(&before), hashes(&after));
    }

    #[test]
    fn a_store_with_keys_gets_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut rows = Rows::default();
        for change in first(folder.path()).changes(&rows, Timestamp(5)).unwrap() {
            if let Admin::PutKey(row) = change {
                rows.keys.push(row);
            }
        }
        assert!(first(folder.path()).changes(&rows, Timestamp(6)).unwrap().is_empty());
    }

    fn made(changes: Vec<Admin>) -> Vec<KeyRow> {
        let key = |change| match change {
            Admin::PutKey(row) | Admin::RenewKey(row) => Some(row),
            _ => None,
        };
        changes.into_iter().filter_map(key).collect()
    }

    #[test]
    fn lost_files_come_back_when_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let first = FirstStart { renew: true, ..first(folder.path()) };
        let mut rows = Rows::default();
        rows.keys = made(first.changes(&rows, Timestamp(5)).unwrap());
        let (operator, host) = (rows.keys[0].clone(), rows.keys[2].clone());
        // Somebody asked for one more, which has nothing to do with the files.
        let other = KeyRow {
            id: first.ids.key(),
            hash: hash_hex("other"),
            created_at: Timestamp(6),
            ..operator.clone()
        };
        rows.keys.insert(0, other);
        assert!(first.changes(&rows, Timestamp(7)).unwrap().is_empty(), "nothing is lost");
        for name in ["operator.key", "host.key", "tenant-default.key"] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        let anew = made(first.changes(&rows, Timestamp(7)).unwrap());
        let [new_operator, new_host] = anew.as_slice() else { panic!("{anew:?}") };
        assert_eq!((new_operator.id, new_operator.role), (operator.id, Role::Operator));
        assert_ne!(new_operator.hash, operator.hash);
        assert_eq!(new_host.role, Role::Host);
        assert_ne!(new_host.id, host.id, "agents elsewhere may show the former one");
        assert!(!folder.path().join("tenant-default.key").exists());
        // The batch was lost: the files that are there are taken over.
        assert_eq!(made(first.changes(&rows, Timestamp(8)).unwrap())[0].hash, new_operator.hash);
    }

    #[test]
    fn a_broken_key_file_stops_the_start() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("operator.key"), "two words\n").unwrap();
        let error = first(folder.path()).changes(&Rows::default(), Timestamp(5)).unwrap_err();
        assert!(error.to_string().contains("operator.key"), "{error}");
    }
}
