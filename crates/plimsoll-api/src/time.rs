//! Time at the edge: RFC 3339, UTC.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use plimsoll_types::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An instant as the wire carries it: RFC 3339 in UTC with milliseconds.
///
/// Inside, time is an integer ([`Timestamp`]); text stands only at the edge. Three decimals are
/// always written, so that the texts sort as the instants do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub Timestamp);

/// Why a text is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a time as RFC 3339 has it, such as 2026-09-08T11:04:22Z")]
pub struct TimeError;

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Self {
        Self(at)
    }
}

impl From<Time> for Timestamp {
    fn from(time: Time) -> Self {
        time.0
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = jiff::Timestamp::from_millisecond(self.0.millis()).unwrap_or(
            // Outside the years that RFC 3339 can write: the nearest one that it can.
            if self.0.millis() < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX },
        );
        write!(f, "{at:.3}")
    }
}

impl FromStr for Time {
    type Err = TimeError;

    /// Reads any offset and any number of decimals; what is finer than a millisecond is cut off.
    fn from_str(text: &str) -> Result<Self, TimeError> {
        let at: jiff::Timestamp = text.parse().map_err(|_| TimeError)?;
        Ok(Self(Timestamp(at.as_millisecond())))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_with_milliseconds() {
        assert_eq!(Time(Timestamp(0)).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Time(Timestamp(1_788_865_462_007)).to_string(), "2026-09-08T11:04:22.007Z");
    }

    #[test]
    fn offsets_and_fine_fractions_are_read() {
        let time: Time = "2026-09-08T13:04:22.0079+02:00".parse().unwrap();
        assert_eq!(time.0.millis(), 1_788_865_462_007);
        assert_eq!("1970-01-01T00:00:00Z".parse(), Ok(Time(Timestamp(0))));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "yesterday", "2026-09-08", "2026-13-01T00:00:00Z", "1788865462"] {
            assert_eq!(text.parse::<Time>(), Err(TimeError), "{text}");
        }
    }

    #[test]
    fn instants_beyond_the_calendar_are_written_as_its_ends() {
        assert!(Time(Timestamp(i64::MAX)).to_string().starts_with("9999-12-"));
        assert!(Time(Timestamp(i64::MIN)).to_string().starts_with("-009999-01-"));
    }
}
