//! Billing periods as a pure function of the time (DESIGN 4.7): nothing is reset, so nothing can
//! race a reset.

use alloc::string::{String, ToString};
use core::fmt::Write as _;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use plimsoll_types::Timestamp;
use serde::{Deserialize, Serialize};

/// The day of the month on which periods start, in UTC.
///
/// In a month that has no such day the period starts on the month's last: an anchor of 31 gives
/// 31 January, 28 or 29 February, 31 March. The anchor 1 is the calendar month.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct AnchorDay(i8);

impl AnchorDay {
    /// Periods are calendar months.
    pub const CALENDAR: Self = Self(1);

    /// An anchor day; `None` unless it is 1 to 31.
    #[must_use]
    pub fn new(day: u8) -> Option<Self> {
        i8::try_from(day).ok().filter(|day| (1..=31).contains(day)).map(Self)
    }

    /// The day.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0.unsigned_abs()
    }

    /// When the period that starts in the month of `date` starts.
    fn start_in_month_of(self, date: Date) -> Date {
        let day = self.0.min(date.days_in_month());
        // The day is at least 1 and within the month.
        date.with().day(day).build().unwrap_or(date)
    }
}

impl Default for AnchorDay {
    fn default() -> Self {
        Self::CALENDAR
    }
}

impl TryFrom<u8> for AnchorDay {
    type Error = &'static str;

    fn try_from(day: u8) -> Result<Self, Self::Error> {
        Self::new(day).ok_or("an anchor day is 1 to 31")
    }
}

impl From<AnchorDay> for u8 {
    fn from(day: AnchorDay) -> Self {
        day.get()
    }
}

/// One billing period, half open: `start <= t < end`. Its start is its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Period {
    /// Its first instant, and its key.
    pub start: Timestamp,
    /// The first instant of the next.
    pub end: Timestamp,
}

impl Period {
    /// Whether an instant lies in it.
    #[must_use]
    pub fn contains(&self, at: Timestamp) -> bool {
        self.start <= at && at < self.end
    }

    /// How people call it: `2026-08` for a calendar month, the date of its first day otherwise.
    ///
    /// ```
    /// use plimsoll_policy::period::{AnchorDay, period_at};
    /// use plimsoll_types::Timestamp;
    ///
    /// let march_15th_2024 = Timestamp(1_710_460_800_000);
    /// let month = period_at(AnchorDay::CALENDAR, march_15th_2024);
    /// assert_eq!(month.label(AnchorDay::CALENDAR), "2024-03");
    /// let anchor = AnchorDay::new(31).unwrap();
    /// assert_eq!(period_at(anchor, march_15th_2024).label(anchor), "2024-02-29");
    /// ```
    #[must_use]
    pub fn label(&self, anchor: AnchorDay) -> String {
        let date = date_of(self.start);
        let mut label = String::with_capacity(10);
        let written = if anchor == AnchorDay::CALENDAR {
            write!(label, "{:04}-{:02}", date.year(), date.month())
        } else {
            write!(label, "{:04}-{:02}-{:02}", date.year(), date.month(), date.day())
        };
        debug_assert!(written.is_ok(), "a String takes what is written to it");
        label
    }
}

/// A tenant's anchor day, and the period that was running when it was last changed.
///
/// A period that has begun keeps its end, whatever is changed meanwhile: `resets_at` was said. The
/// next one begins there, and ends with the first period of the new anchor. So the period is a
/// function of the time and of this record alone, before a restart and after it.
///
/// ```
/// use plimsoll_policy::period::{AnchorDay, Anchors};
/// use plimsoll_types::Timestamp;
///
/// let march_15th_2024 = Timestamp(1_710_460_800_000);
/// let mut anchors = Anchors::new(AnchorDay::CALENDAR);
/// let march = anchors.period_at(march_15th_2024);
/// anchors.change(AnchorDay::new(10).unwrap(), march_15th_2024);
/// assert_eq!(anchors.period_at(march_15th_2024), march);
/// let short = anchors.period_at(march.end);
/// assert_eq!((short.start, anchors.label(&short).as_str()), (march.end, "2024-04-01"));
/// assert_eq!(anchors.label(&anchors.period_at(short.end)), "2024-04-10");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Anchors {
    day: AnchorDay,
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<Period>,
}

impl Anchors {
    /// An anchor that was never another.
    #[must_use]
    pub const fn new(day: AnchorDay) -> Self {
        Self { day, running: None }
    }

    /// The anchor day that holds from the end of the running period on.
    #[must_use]
    pub const fn day(&self) -> AnchorDay {
        self.day
    }

    /// Takes another anchor day from the end of the running period on.
    pub fn change(&mut self, day: AnchorDay, now: Timestamp) {
        if day != self.day {
            self.running = Some(self.period_at(now));
            self.day = day;
        }
    }

    /// The period that an instant lies in.
    #[must_use]
    pub fn period_at(&self, at: Timestamp) -> Period {
        let regular = period_at(self.day, at);
        match self.running {
            None => regular,
            Some(running) if running.contains(at) => running,
            Some(running) if at < running.start => {
                Period { end: regular.end.min(running.start), ..regular }
            }
            Some(running) => Period { start: regular.start.max(running.end), ..regular },
        }
    }

    /// How people call a period: by its month where it is one, else by its first day.
    #[must_use]
    pub fn label(&self, period: &Period) -> String {
        let is_month = period_at(AnchorDay::CALENDAR, period.start) == *period;
        let other = AnchorDay(2);
        period.label(if is_month { AnchorDay::CALENDAR } else { other })
    }
}

/// The years in which periods exist. An instant outside is treated as the nearest one inside: no
/// record of a sandbox lies there, and a wild clock must not panic a meter.
const YEARS: core::ops::RangeInclusive<i16> = 1..=9998;

/// An instant as people and programs read it: RFC 3339 in UTC.
///
/// ```
/// use plimsoll_policy::period::rfc3339;
/// use plimsoll_types::Timestamp;
///
/// assert_eq!(rfc3339(Timestamp(1_710_460_800_000)), "2024-03-15T00:00:00Z");
/// ```
#[must_use]
pub fn rfc3339(at: Timestamp) -> String {
    let (first, last) = (jiff::Timestamp::MIN, jiff::Timestamp::MAX);
    let nearest = if at.millis() < 0 { first } else { last };
    jiff::Timestamp::from_millisecond(at.millis()).unwrap_or(nearest).to_string()
}

/// The period that an instant lies in.
///
/// ```
/// use plimsoll_policy::period::{AnchorDay, period_at};
/// use plimsoll_types::Timestamp;
///
/// let march_2024 = period_at(AnchorDay::CALENDAR, Timestamp(1_710_460_800_000));
/// assert_eq!(march_2024.start, Timestamp(1_709_251_200_000));
/// assert_eq!(march_2024.end, Timestamp(1_711_929_600_000));
/// ```
#[must_use]
pub fn period_at(anchor: AnchorDay, at: Timestamp) -> Period {
    let date = date_of(at);
    let start = anchor.start_in_month_of(date);
    let first = date.first_of_month();
    let (start, end) = if date < start {
        (anchor.start_in_month_of(first.yesterday().unwrap_or(first)), start)
    } else {
        let next = date.last_of_month().tomorrow().unwrap_or(date);
        (start, anchor.start_in_month_of(next))
    };
    Period { start: midnight(start), end: midnight(end) }
}

/// The UTC date of an instant, held within [`YEARS`].
fn date_of(at: Timestamp) -> Date {
    let first = Date::constant(*YEARS.start(), 1, 1);
    let last = Date::constant(*YEARS.end(), 12, 31);
    match jiff::Timestamp::from_millisecond(at.millis()) {
        Ok(instant) => TimeZone::UTC.to_datetime(instant).date().clamp(first, last),
        Err(_) if at.millis() < 0 => first,
        Err(_) => last,
    }
}

/// The first instant of a date in UTC.
fn midnight(date: Date) -> Timestamp {
    let instant = TimeZone::UTC.to_timestamp(date.at(0, 0, 0, 0));
    // Dates within the years above, and a month to either side, are instants.
    Timestamp(instant.map_or(0, jiff::Timestamp::as_millisecond))
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        let instant: jiff::Timestamp = text.parse().unwrap();
        Timestamp(instant.as_millisecond())
    }

    fn day(date: &str) -> Timestamp {
        at(&format!("{date}T00:00:00Z"))
    }

    fn anchor(day: u8) -> AnchorDay {
        AnchorDay::new(day).unwrap()
    }

    fn period(anchor_day: u8, instant: &str) -> (Timestamp, Timestamp) {
        let period = period_at(anchor(anchor_day), at(instant));
        (period.start, period.end)
    }

    #[test]
    fn the_first_instant_of_a_month_belongs_to_it_and_the_last_does_too() {
        let august = (day("2026-08-01"), day("2026-09-01"));
        assert_eq!(period(1, "2026-08-01T00:00:00.000Z"), august);
        assert_eq!(period(1, "2026-08-31T23:59:59.999Z"), august);
        assert_eq!(period(1, "2026-09-01T00:00:00.000Z").0, august.1);
    }

    #[test]
    fn an_anchor_of_31_starts_on_the_last_day_where_there_is_no_31st() {
        let starts = ["2023-12-31", "2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30"];
        for pair in starts.windows(2) {
            let expected = (day(pair[0]), day(pair[1]));
            assert_eq!(period(31, &format!("{}T00:00:00Z", pair[0])), expected);
            let last = Timestamp(expected.1.0 - 1);
            assert_eq!(period_at(anchor(31), last).start, expected.0);
        }
    }

    #[test]
    fn february_ends_on_the_28th_except_in_leap_years() {
        assert_eq!(period(30, "2023-02-28T12:00:00Z"), (day("2023-02-28"), day("2023-03-30")));
        assert_eq!(period(30, "2024-02-28T12:00:00Z"), (day("2024-01-30"), day("2024-02-29")));
        assert_eq!(period(29, "1900-02-28T12:00:00Z").0, day("1900-02-28"));
        assert_eq!(period(29, "2000-02-28T12:00:00Z").0, day("2000-01-29"));
    }

    #[test]
    fn the_turn_of_the_year_is_no_exception() {
        assert_eq!(period(15, "2025-01-03T00:00:00Z"), (day("2024-12-15"), day("2025-01-15")));
        assert_eq!(period(1, "2024-12-31T23:59:59Z"), (day("2024-12-01"), day("2025-01-01")));
    }

    #[test]
    fn only_days_of_a_month_are_anchors() {
        assert_eq!(AnchorDay::new(0), None);
        assert_eq!(AnchorDay::new(32), None);
        assert_eq!(AnchorDay::new(255), None);
        assert_eq!(AnchorDay::try_from(31).map(u8::from), Ok(31));
        assert_eq!(AnchorDay::default(), anchor(1));
    }

    #[test]
    fn a_wild_clock_gets_a_period_all_the_same() {
        for wild in [i64::MIN, i64::MIN + 1, -62_135_596_800_001, 253_402_300_800_000, i64::MAX] {
            for day in 1..=31 {
                let period = period_at(anchor(day), Timestamp(wild));
                assert!(period.start < period.end);
            }
        }
    }

    proptest! {
        /// 1900 to 2200.
        #[test]
        fn periods_cover_time_without_gap_or_overlap(
            instant in -2_208_988_800_000_i64..7_258_118_400_000, day in 1_u8..=31,
        ) {
            let anchor = anchor(day);
            let period = period_at(anchor, Timestamp(instant));
            prop_assert!(period.contains(Timestamp(instant)));
            prop_assert_eq!(period_at(anchor, period.start), period);
            prop_assert_eq!(period_at(anchor, Timestamp(period.end.0 - 1)), period);
            prop_assert_eq!(period_at(anchor, period.end).start, period.end);
            prop_assert_eq!(period_at(anchor, Timestamp(period.start.0 - 1)).end, period.start);
            let days = (period.end.0 - period.start.0) / 86_400_000;
            prop_assert!((28..=31).contains(&days), "{days} days");
            prop_assert_eq!(period.start.0.rem_euclid(86_400_000), 0);
            let first = date_of(period.start);
            prop_assert_eq!(first.day(), (day as i8).min(first.days_in_month()));
        }

        #[test]
        fn a_change_of_the_anchor_leaves_no_gap_and_moves_no_end_that_was_said(
            instant in -2_208_988_800_000_i64..7_258_118_400_000, first in 1_u8..=31,
            changes in proptest::collection::vec((1_u8..=31, 0_i64..5_000_000_000), 1..4),
        ) {
            let mut anchors = Anchors::new(anchor(first));
            let mut now = instant;
            for (day, wait) in changes {
                now += wait;
                let running = anchors.period_at(Timestamp(now));
                anchors.change(anchor(day), Timestamp(now));
                prop_assert_eq!(anchors.period_at(Timestamp(now)), running);
                let mut at = running;
                for _ in 0..4 {
                    let next = anchors.period_at(at.end);
                    prop_assert_eq!(next.start, at.end);
                    prop_assert!(next.end > next.start);
                    prop_assert_eq!(anchors.period_at(Timestamp(next.end.0 - 1)), next);
                    at = next;
                }
                prop_assert_eq!(at, period_at(anchor(day), at.start));
                let before = anchors.period_at(Timestamp(running.start.0 - 1));
                prop_assert_eq!(before.end, running.start);
            }
        }

        #[test]
        fn twelve_periods_are_one_year(year in 1900_i16..2200, day in 1_u8..=31) {
            let anchor = anchor(day);
            let start = midnight(anchor.start_in_month_of(Date::constant(year, 1, 1)));
            let mut at = start;
            for _ in 0..12 {
                at = period_at(anchor, at).end;
            }
            prop_assert_eq!(at, midnight(anchor.start_in_month_of(Date::constant(year + 1, 1, 1))));
        }
    }
}
