//! The hours of the week in which a worker may be used, by the clock where it is.
//!
//! A range belongs to the day on which it begins: `Mon-Fri 18:00-08:00` ends on Saturday at 08:00. The clock of the place
//! decides, so a range is an hour shorter or longer on the days on which that clock is changed.

use std::fmt;
use std::str::FromStr;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const MINUTES_PER_DAY: u16 = 24 * 60;
const MINUTES_PER_WEEK: u16 = 7 * MINUTES_PER_DAY;

/// A day of the week, from Monday (0) to Sunday (6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weekday(u8);

/// What the clock and the calendar of a place show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalTime {
    minute_of_week: u16,
}

/// Hours of the week. The default is always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hours {
    /// `None` is always.
    ranges: Option<Vec<Range>>,
}

/// Why a text is not a range of hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoursError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    days: (Weekday, Weekday),
    /// The minute of the day at which it begins.
    from: u16,
    /// How long it is: up to a day.
    minutes: u16,
}

impl Weekday {
    /// The day with this number of days since Monday.
    pub fn from_monday(days: u8) -> Option<Weekday> {
        (days < 7).then_some(Weekday(days))
    }
}

impl LocalTime {
    /// A minute of a day; `None` if the day has no such minute.
    pub fn new(weekday: Weekday, minute: u16) -> Option<LocalTime> {
        let minute_of_week = u16::from(weekday.0) * MINUTES_PER_DAY + minute;
        (minute < MINUTES_PER_DAY).then_some(LocalTime { minute_of_week })
    }
}

impl Hours {
    /// The hours of these ranges.
    pub fn parse<'a>(ranges: impl IntoIterator<Item = &'a str>) -> Result<Hours, HoursError> {
        let ranges = ranges.into_iter().map(str::parse).collect::<Result<_, _>>()?;
        Ok(Hours { ranges: Some(ranges) })
    }

    /// Whether every time is within them because no ranges were given.
    pub fn is_always(&self) -> bool {
        self.ranges.is_none()
    }

    /// Whether a time is within the hours.
    pub fn contains(&self, at: LocalTime) -> bool {
        self.ranges.as_ref().is_none_or(|ranges| ranges.iter().any(|range| range.contains(at)))
    }
}

impl Range {
    fn contains(self, at: LocalTime) -> bool {
        let is_within = |day: u8| {
            let start = u16::from(day) * MINUTES_PER_DAY + self.from;
            let since = (at.minute_of_week + MINUTES_PER_WEEK - start) % MINUTES_PER_WEEK;
            since < self.minutes
        };
        self.days().any(is_within)
    }

    /// The days on which it begins; `Sat-Mon` is three of them.
    fn days(self) -> impl Iterator<Item = u8> {
        let (Weekday(first), Weekday(last)) = self.days;
        let count = (last + 7 - first) % 7 + 1;
        (0..count).map(move |offset| (first + offset) % 7)
    }
}

impl FromStr for Range {
    type Err = HoursError;

    /// `Mon-Fri 18:00-08:00`, `Sat-Sun`, `Wed 12:00-13:00` or, on every day, `22:00-06:00`.
    fn from_str(text: &str) -> Result<Range, HoursError> {
        let mut words = text.split_whitespace();
        let first = words.next().ok_or(HoursError)?;
        let (days, times) = match first.starts_with(|letter: char| letter.is_ascii_digit()) {
            true => (None, Some(first)),
            false => (Some(first), words.next()),
        };
        if words.next().is_some() {
            return Err(HoursError);
        }
        let (from, minutes) = times.map_or(Ok((0, MINUTES_PER_DAY)), parse_times)?;
        let days = days.map_or(Ok((Weekday(0), Weekday(6))), parse_days)?;
        Ok(Range { days, from, minutes })
    }
}

fn parse_days(text: &str) -> Result<(Weekday, Weekday), HoursError> {
    let day = |text: &str| {
        let at = DAYS.iter().position(|name| name.eq_ignore_ascii_case(text)).ok_or(HoursError)?;
        u8::try_from(at).map(Weekday).map_err(|_| HoursError)
    };
    match text.split_once('-') {
        Some((first, last)) => Ok((day(first)?, day(last)?)),
        None => Ok((day(text)?, day(text)?)),
    }
}

/// The first minute and the length. A range whose end is not after its beginning ends on the next day.
fn parse_times(text: &str) -> Result<(u16, u16), HoursError> {
    let (from, to) = text.split_once('-').ok_or(HoursError)?;
    let (from, to) = (parse_minute(from)?, parse_minute(to)?);
    if from == to || from == MINUTES_PER_DAY {
        return Err(HoursError);
    }
    Ok((from, if to > from { to - from } else { to + MINUTES_PER_DAY - from }))
}

/// `08:00`, up to `24:00`.
fn parse_minute(text: &str) -> Result<u16, HoursError> {
    let (hour, minute) = text.split_once(':').ok_or(HoursError)?;
    let number = |text: &str| match text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<u16>().map_err(|_| HoursError),
        false => Err(HoursError),
    };
    let (hour, minute) = (number(hour)?, number(minute)?);
    let minutes = hour * 60 + minute;
    if minute < 60 && minutes <= MINUTES_PER_DAY { Ok(minutes) } else { Err(HoursError) }
}

impl fmt::Display for HoursError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected hours such as \"Mon-Fri 18:00-08:00\", \"Sat-Sun\" or \"22:00-06:00\"",
        )
    }
}
