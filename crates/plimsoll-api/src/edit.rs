//! Fields of a PATCH body.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One field of a PATCH body that may be left alone, taken away or set (RFC 7386: absent, `null`,
/// a value).
///
/// Fields of this type are declared with
/// `#[serde(default, skip_serializing_if = "Patch::is_keep")]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Patch<T> {
    /// Absent: the value stays.
    #[default]
    Keep,
    /// `null`: the value goes.
    Clear,
    /// A new value.
    Set(T),
}

impl<T> Patch<T> {
    /// Whether the field was absent.
    #[must_use]
    pub const fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }

    /// The value set, if one was.
    #[must_use]
    pub const fn as_set(&self) -> Option<&T> {
        match self {
            Self::Set(value) => Some(value),
            Self::Keep | Self::Clear => None,
        }
    }

    /// Does to `held` what the field says.
    pub fn apply(self, held: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *held = None,
            Self::Set(value) => *held = Some(value),
        }
    }
}

impl<T: Serialize> Serialize for Patch<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_set().serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Clear, Self::Set))
    }
}
