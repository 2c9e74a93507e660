//! Ids are newtypes: a host's name is no tenant's, a reservation is no sandbox.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smol_str::SmolStr;

use crate::limits::bounds;

/// Why a text is no id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdError {
    /// The prefix that ids of this kind carry.
    pub prefix: &'static str,
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected an id of the form {}<26 characters of base 32>", self.prefix)
    }
}

impl core::error::Error for IdError {}

/// Crockford's base 32, lower case: sorts as the number does and has no look-alikes.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The value of each letter: a restart reads millions of ids.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < ALPHABET.len() {
        digits[ALPHABET[value] as usize] = value as u8;
        value += 1;
    }
    digits
};

const NO_DIGIT: u8 = u8::MAX;

fn encode(value: u128) -> [u8; 26] {
    let mut out = [0_u8; 26];
    let mut rest = value;
    let mut place = 26;
    while place > 0 {
        place -= 1;
        out[place] = ALPHABET[(rest & 31) as usize];
        rest >>= 5;
    }
    out
}

fn decode(text: &[u8]) -> Option<u128> {
    if text.len() != 26 || text[0] > b'7' {
        return None;
    }
    let mut value = 0_u128;
    for byte in text {
        let digit = DIGITS[*byte as usize];
        if digit == NO_DIGIT {
            return None;
        }
        value = (value << 5) | digit as u128;
    }
    Some(value)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            /// What every id of this kind starts with.
            pub const PREFIX: &'static str = $prefix;
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let text = encode(self.0);
                f.write_str($prefix)?;
                f.write_str(core::str::from_utf8(&text).map_err(|_| fmt::Error)?)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix($prefix)
                    .and_then(|rest| decode(rest.as_bytes()))
                    .map(Self)
                    .ok_or(IdError { prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <alloc::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}

id!(
    /// One sandbox and its record.
    SandboxId,
    "sbx_"
);
id!(
    /// One claim on quota, slot and host memory.
    ReservationId,
    "rsv_"
);
id!(
    /// The record of one verdict.
    DecisionId,
    "dec_"
);
id!(
    /// One event; stable over every delivery attempt.
    EventId,
    "evt_"
);
id!(
    /// One API key (not its secret).
    KeyId,
    "key_"
);
id!(
    /// One webhook endpoint.
    EndpointId,
    "whe_"
);

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameError {
    given: String,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no name: 1 to {} of a-z, A-Z, 0-9, '.', '_', '-', the first a letter or digit",
            self.given,
            bounds::NAME_LENGTH_MAX
        )
    }
}

impl core::error::Error for NameError {}

/// A checked name, cheap to clone: up to 23 bytes lie in place, so that neither looking one up nor
/// dropping one goes to other memory, and threads that share one write nothing to count it.
type Name = SmolStr;

fn check(text: &str) -> Result<Name, NameError> {
    let bytes = text.as_bytes();
    let valid = !bytes.is_empty()
        && bytes.len() <= bounds::NAME_LENGTH_MAX
        && bytes[0].is_ascii_alphanumeric()
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if valid {
        Ok(SmolStr::new(text))
    } else {
        Err(NameError { given: text.chars().take(80).collect() })
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Name);

        impl $name {
            /// Checks and wraps a name.
            ///
            /// # Errors
            /// When the text is empty, too long, or holds a character outside the allowed set.
            pub fn new(text: &str) -> Result<Self, NameError> {
                check(text).map(Self)
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.as_str(), f)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl core::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <alloc::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::new(&text).map_err(|error| de::Error::custom(error.to_string()))
            }
        }
    };
}

name!(
    /// A machine that runs the agent.
    HostId
);
name!(
    /// A named set of hosts, or an external provider, admitted under one policy.
    PoolName
);
name!(
    /// Who is charged.
    TenantId
);
name!(
    /// A set of limits that tenants are given.
    PlanId
);
name!(
    /// A named shape of guest.
    TemplateName
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_text_and_sort_as_numbers_do() {
        for value in [0, 1, 31, 32, u128::from(u64::MAX), u128::MAX] {
            let id = SandboxId(value);
            let text = id.to_string();
            assert_eq!(text.len(), 30);
            assert_eq!(text.parse::<SandboxId>(), Ok(id));
        }
        assert!(SandboxId(7).to_string() < SandboxId(32).to_string());
    }

    #[test]
    fn foreign_and_broken_ids_are_refused() {
        for text in ["", "sbx_", "rsv_00000000000000000000000000", "sbx_zzzzzzzzzzzzzzzzzzzzzzzzzz"]
        {
            assert!(text.parse::<SandboxId>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_bounded_and_plain() {
        assert!(HostId::new("host-1.a_b").is_ok());
        for text in ["", "-a", "a b", "a/b", "é", &"x".repeat(bounds::NAME_LENGTH_MAX + 1)] {
            assert!(HostId::new(text).is_err(), "{text}");
        }
    }
}
