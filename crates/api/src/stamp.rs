//! Times as people and programs write them: RFC 3339 in UTC, with milliseconds.

use std::fmt;

use hypha_model::Time;
use serde::{Serialize, Serializer};

/// A time, written as `2026-11-16T02:03:04.005Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(pub(crate) Time);

const MILLIS_PER_DAY: u64 = 86_400_000;
/// Years have four digits.
const LAST_MILLIS: u64 = 253_402_300_799_999;
/// The days from the first of March of the year 0 to the Unix epoch.
const EPOCH_DAY: u64 = 719_468;
const DAYS_PER_ERA: u64 = 146_097;

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis().min(LAST_MILLIS);
        let (days, rest) = (millis / MILLIS_PER_DAY, millis % MILLIS_PER_DAY);
        let (year, month, day) = date_of(days);
        let (hours, minutes) = (rest / 3_600_000, rest / 60_000 % 60);
        let (seconds, millis) = (rest / 1_000 % 60, rest % 1_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
    }
}

impl Serialize for Stamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Stamp {
    /// The time that `text` gives: RFC 3339 with any offset, or seconds since the Unix epoch.
    pub(crate) fn parse(text: &str) -> Option<Time> {
        if let Ok(seconds) = text.parse::<f64>() {
            let micros = seconds * 1e6;
            return (0.0..=LAST_MILLIS as f64 * 1e3)
                .contains(&micros)
                .then(|| Time::from_micros(micros as u64));
        }
        let (date, time) = text.split_once(['T', 't', ' '])?;
        let [year, month, day] = numbers::<3>(date, '-', &[4, 2, 2])?;
        let at = time.find(['Z', 'z', '+', '-'])?;
        let (clock, offset) = time.split_at(at);
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
        let [hours, minutes, seconds] = numbers::<3>(clock, ':', &[2, 2, 2])?;
        if !(1..=12).contains(&month) || !(1..=days_in(year, month)).contains(&day) {
            return None;
        }
        // The 61st second of a minute is real, and rare.
        if hours > 23 || minutes > 59 || seconds > 60 {
            return None;
        }
        let days = day_of(year, month, day).checked_sub(EPOCH_DAY)?;
        let whole = days * 86_400 + hours * 3_600 + minutes * 60 + seconds;
        let utc = whole.checked_add_signed(-offset_seconds(offset)?)?;
        Some(Time::from_micros(utc * 1_000_000 + micros_of(fraction)?))
    }
}

/// Year, month and day of a day since the Unix epoch. Years begin in March here, so that the day that some of
/// them have more is the last.
fn date_of(days: u64) -> (u64, u64, u64) {
    let day = days + EPOCH_DAY;
    let (era, of_era) = (day / DAYS_PER_ERA, day % DAYS_PER_ERA);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + later, month, day)
}

/// The other way round: the day, counted from the first of March of the year 0.
fn day_of(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.max(1) - 1, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * DAYS_PER_ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year
}

fn days_in(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// `N` numbers of as many digits as `digits` says, with `between` between them.
fn numbers<const N: usize>(text: &str, between: char, digits: &[usize; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    let mut parts = text.split(between);
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next().filter(|part| part.len() == *digits)?;
        *number = all_digits(part)?;
    }
    parts.next().is_none().then_some(numbers)
}

fn all_digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn micros_of(fraction: &str) -> Option<u64> {
    let known: String = fraction.chars().chain("000000".chars()).take(6).collect();
    all_digits(fraction.get(..fraction.len().min(20))?).or(fraction.is_empty().then_some(0))?;
    all_digits(&known)
}

fn offset_seconds(text: &str) -> Option<i64> {
    let (sign, rest) = match text.split_at_checked(1)? {
        ("Z" | "z", "") => return Some(0),
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let [hours, minutes] = numbers::<2>(rest, ':', &[2, 2])?;
    (hours < 24 && minutes < 60).then_some(sign * (hours as i64 * 3_600 + minutes as i64 * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times, and how they are written.
    const KNOWN: [(u64, &str); 9] = [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (951_868_799_999, "2000-02-29T23:59:59.999Z"),
        (951_868_800_000, "2000-03-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        (LAST_MILLIS, "9999-12-31T23:59:59.999Z"),
    ];

    #[test]
    fn times_are_written_and_read() {
        for (millis, text) in KNOWN {
            let time = Time::from_micros(millis * 1_000);
            assert_eq!(Stamp(time).to_string(), text);
            assert_eq!(Stamp::parse(text), Some(time), "{text}");
        }
        assert_eq!(Stamp(Time::MAX).to_string(), "9999-12-31T23:59:59.999Z");
        // Every day of four hundred years comes back.
        for day in 0..DAYS_PER_ERA {
            let (year, month, of_month) = date_of(day);
            assert_eq!(day_of(year, month, of_month), day + EPOCH_DAY);
            assert!((1..=days_in(year, month)).contains(&of_month));
        }
    }

    #[test]
    fn other_spellings_are_read() {
        let at = |text| Stamp::parse(text).map(Time::as_micros);
        let known = Some(1_700_000_000_000_000);
        assert_eq!(at("2023-11-14T22:13:20Z"), known);
        assert_eq!(at("2023-11-15T00:13:20.000000+02:00"), known);
        assert_eq!(at("2023-11-14t16:43:20-05:30"), known);
        assert_eq!(at("1700000000"), known);
        assert_eq!(at("1700000000.5"), Some(1_700_000_000_500_000));
        assert_eq!(at("2023-11-14 22:13:20.1234567Z"), Some(1_700_000_000_123_456));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        let long = format!("2023-01-01T00:00:00.{}Z", "é".repeat(9));
        for text in [
            "",
            "now",
            "-1",
            "NaN",
            "inf",
            "1e300",
            "2023-02-29T00:00:00Z",
            "2023-13-01T00:00:00Z",
            "2023-00-10T00:00:00Z",
            "2023-01-00T00:00:00Z",
            "2023-01-01T24:00:00Z",
            "2023-01-01T00:00:00",
            "2023-01-01",
            "2023-1-1T00:00:00Z",
            "2023-01-01T00:00:00+2:00",
            "2023-01-01T00:00:00.Zx",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "+023-01-01T00:00:00Z",
            "2023-01-01T00:00:00.1-x",
            "2023-01-01T00:00:00.x1Z",
            &long,
        ] {
            assert_eq!(Stamp::parse(text), None, "{text}");
        }
    }
}
