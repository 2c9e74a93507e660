//! API keys: who calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use plimsoll_engine::Change;
use plimsoll_engine::rows::{KeyRow, Role};
use plimsoll_types::{HostId, KeyId, TenantId};
use sha2::{Digest, Sha256};

/// What every key starts with, so that scanners for leaked secrets can tell it.
const KEY_PREFIX: &str = "plim_";

/// Who holds a key.
#[derive(Debug)]
pub(crate) struct Principal {
    /// The key.
    pub(crate) key: KeyId,
    /// What it may do.
    pub(crate) role: Role,
    /// For role tenant: whose.
    pub(crate) tenant: Option<TenantId>,
    /// For role host: which; `None` serves any name.
    pub(crate) host: Option<HostId>,
    /// Requests under it since they were last taken.
    requests: AtomicU64,
}

impl Principal {
    /// A request was made under this key.
    pub(crate) fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

/// A key before it is hashed. Its text is shown once.
pub(crate) struct NewKey {
    /// The text that the holder shows.
    pub(crate) text: String,
    /// Its hash, as kept.
    pub(crate) hash: String,
}

impl NewKey {
    /// Draws a key: 32 random bytes.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub(crate) fn draw() -> Result<Self, getrandom::Error> {
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes)?;
        let text = format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        Ok(Self { hash: hash_hex(&text), text })
    }
}

/// The hash of a key as rows keep it. Keys are random, so that a plain hash is no weaker than a
/// slow one.
pub(crate) fn hash_hex(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().fold(String::with_capacity(64), |mut hex, byte| {
        hex.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
        hex.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
        hex
    })
}

fn from_hex(hex: &str) -> Option<[u8; 32]> {
    let bytes = hex.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    let mut hash = [0_u8; 32];
    for (byte, pair) in hash.iter_mut().zip(bytes.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = (high * 16 + low) as u8;
    }
    Some(hash)
}

type Table = HashMap<[u8; 32], Arc<Principal>>;

/// The table of keys. Reading it takes no lock; it is replaced whole when keys change.
///
/// A key is found by its hash, so that the time of a look-up says nothing about how much of a
/// guessed key was right.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    table: ArcSwap<Table>,
}

impl Keys {
    /// Replaces the table.
    pub(crate) fn load(&self, rows: &[KeyRow]) {
        self.table.store(Arc::new(rows.iter().filter_map(entry).collect()));
    }

    /// Applies what a committed batch changed.
    pub(crate) fn apply(&self, changes: &[Change]) {
        let mut table = Table::clone(&self.table.load());
        for change in changes {
            match change {
                Change::Key(row) => {
                    table.retain(|_, held| held.key != row.id);
                    table.extend(entry(row));
                }
                Change::KeyGone(id) => table.retain(|_, held| held.key != *id),
                _ => {}
            }
        }
        self.table.store(Arc::new(table));
    }

    /// Requests of tenants since the last time, by tenant; a tenant with several keys comes up once
    /// for each.
    pub(crate) fn take_requests(&self) -> Vec<(TenantId, u64)> {
        let table = self.table.load();
        let taken = table.values().filter_map(|held| {
            let tenant = held.tenant.as_ref()?;
            let count = held.requests.swap(0, Ordering::Relaxed);
            (count > 0).then(|| (tenant.clone(), count))
        });
        taken.collect()
    }

    /// Who shows this key.
    pub(crate) fn find(&self, text: &str) -> Option<Arc<Principal>> {
        let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        self.table.load().get(&hash).cloned()
    }
}

fn entry(row: &KeyRow) -> Option<([u8; 32], Arc<Principal>)> {
    let principal = Principal {
        key: row.id,
        role: row.role,
        tenant: row.tenant.clone(),
        host: row.host.clone(),
        requests: AtomicU64::new(0),
    };
    let Some(hash) = from_hex(&row.hash) else {
        tracing::error!(key = %row.id, "the stored hash of a key is no SHA-256; the key is dead");
        return None;
    };
    Some((hash, Arc::new(principal)))
}

#[cfg(test)]
mod tests {
    use plimsoll_types::Timestamp;

    use super::*;

    fn row(id: u128, hash: &str) -> KeyRow {
        KeyRow {
            id: KeyId(id),
            role: Role::Operator,
            tenant: None,
            host: None,
            hash: hash.to_owned(),
            created_at: Timestamp(0),
        }
    }

    #[test]
    fn a_drawn_key_is_found_by_its_text_alone() {
        let (one, other) = (NewKey::draw().unwrap(), NewKey::draw().unwrap());
        assert_ne!(one.text, other.text);
        assert_eq!(one.text.len(), KEY_PREFIX.len() + 43);
        let keys = Keys::default();
        keys.load(&[row(1, &one.hash)]);
        assert_eq!(keys.find(&one.text).map(|held| held.key), Some(KeyId(1)));
        assert!(keys.find(&other.text).is_none());
        assert!(keys.find(&one.hash).is_none());
        assert!(keys.find("").is_none());
    }

    #[test]
    fn committed_changes_show_at_once() {
        let (one, other) = (NewKey::draw().unwrap(), NewKey::draw().unwrap());
        let keys = Keys::default();
        keys.apply(&[Change::Key(row(1, &one.hash)), Change::Key(row(2, &other.hash))]);
        assert!(keys.find(&one.text).is_some() && keys.find(&other.text).is_some());
        keys.apply(&[Change::KeyGone(KeyId(1))]);
        assert!(keys.find(&one.text).is_none() && keys.find(&other.text).is_some());
    }

    #[test]
    fn requests_of_tenants_are_counted_and_taken_once() {
        let (one, other) = (NewKey::draw().unwrap(), NewKey::draw().unwrap());
        let tenant = TenantId::new("acme").unwrap();
        let own = KeyRow { tenant: Some(tenant.clone()), ..row(1, &one.hash) };
        let keys = Keys::default();
        keys.load(&[own, row(2, &other.hash)]);
        for key in [&one, &one, &other] {
            keys.find(&key.text).unwrap().count();
        }
        assert_eq!(keys.take_requests(), [(tenant, 2)]);
        assert_eq!(keys.take_requests(), []);
    }

    #[test]
    fn a_broken_hash_opens_nothing() {
        let keys = Keys::default();
        for hash in ["", "zz", &"g".repeat(64), &"a".repeat(63)] {
            keys.load(&[row(1, hash)]);
            assert!(keys.table.load().is_empty(), "{hash}");
        }
        assert_eq!(from_hex(&hash_hex("x")), Some(Sha256::digest(b"x").into()));
    }
}
