//! Labels as a live record keeps them: in one piece of memory.
//!
//! A map takes half a KiB for its first label, and most sandboxes have one or two. What a record
//! keeps is looked at by lists alone, so that a walk over it is quick enough.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of a length before a text.
const LENGTH: usize = size_of::<u32>();

/// Labels in the order of their keys, each key once. Cheap to clone; 24 bytes and the text for
/// the first label, 8 and the text for each other one, and nothing where there are none.
///
/// ```
/// use plimsoll_engine::Labels;
///
/// let labels: Labels = [("team", "ci"), ("job", "7")].into();
/// assert_eq!(labels.get("team"), Some("ci"));
/// assert_eq!(labels.iter().collect::<Vec<_>>(), [("job", "7"), ("team", "ci")]);
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Labels {
    /// For each label the lengths of key and value, and the two texts.
    packed: Option<Arc<[u8]>>,
}

impl Labels {
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.packed.is_none()
    }

    /// The value under a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Keys and values in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut rest = self.packed.as_deref().unwrap_or_default();
        std::iter::from_fn(move || {
            let (key, value) = (length(rest)?, length(rest.get(LENGTH..)?)?);
            let texts = rest.get(2 * LENGTH..)?;
            let (own, after) = texts.split_at_checked(key + value)?;
            rest = after;
            let (key, value) = own.split_at_checked(key)?;
            Some((std::str::from_utf8(key).ok()?, std::str::from_utf8(value).ok()?))
        })
    }

    /// The same as a map.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

fn length(bytes: &[u8]) -> Option<usize> {
    let bytes = bytes.first_chunk::<LENGTH>()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    /// Of labels with one key the last counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        let labels: Vec<(K, V)> = labels.into_iter().collect();
        let sorted: BTreeMap<&str, &str> =
            labels.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
        if sorted.is_empty() {
            return Self::default();
        }
        let texts: usize = sorted.iter().map(|(key, value)| key.len() + value.len()).sum();
        let mut packed = Vec::with_capacity(texts + 2 * LENGTH * sorted.len());
        for (key, value) in sorted {
            for text in [key, value] {
                let length = u32::try_from(text.len()).expect("a label has less than 4 GiB");
                packed.extend_from_slice(&length.to_le_bytes());
            }
            packed.extend_from_slice(key.as_bytes());
            packed.extend_from_slice(value.as_bytes());
        }
        Self { packed: Some(packed.into()) }
    }
}

impl<K: AsRef<str>, V: AsRef<str>, const N: usize> From<[(K, V); N]> for Labels {
    fn from(labels: [(K, V); N]) -> Self {
        labels.into_iter().collect()
    }
}

impl From<&BTreeMap<String, String>> for Labels {
    fn from(labels: &BTreeMap<String, String>) -> Self {
        labels.iter().collect()
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(&BTreeMap::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn labels_are_what_a_map_of_them_is(
            map in prop::collection::btree_map("\\PC{0,12}", "\\PC{0,12}", 0..8),
            asked in "\\PC{0,2}",
        ) {
            let labels = Labels::from(&map);
            prop_assert_eq!(labels.to_map(), map.clone());
            prop_assert_eq!(labels.is_empty(), map.is_empty());
            prop_assert_eq!(labels.get(&asked), map.get(&asked).map(String::as_str));
            for (key, value) in &map {
                prop_assert_eq!(labels.get(key), Some(value.as_str()));
            }
            prop_assert_eq!(format!("{labels:?}"), format!("{map:?}"));
            let text = serde_json::to_string(&labels).unwrap();
            prop_assert_eq!(&text, &serde_json::to_string(&map).unwrap());
            prop_assert_eq!(serde_json::from_str::<Labels>(&text).unwrap(), labels);
        }
    }

    #[test]
    fn labels_are_sorted_and_the_last_of_one_key_counts() {
        let labels: Labels = [("b", "1"), ("a", "2"), ("b", "3")].into();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
        assert_eq!(labels, [("a", "2"), ("b", "3")].into());
        assert_eq!(Labels::default(), <[(&str, &str); 0]>::into([]));
    }
}
