//! An instant as the API writes it: RFC 3339.

use std::fmt;
use std::str::FromStr;

use hypha_model::{Span, Time};
use serde::{Deserialize, Serialize};

/// An instant, and how the scheduler spelled it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timestamp {
    time: Time,
    text: String,
}

impl Timestamp {
    /// The instant.
    pub fn time(&self) -> Time {
        self.time
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(&self, earlier: &Timestamp) -> Span {
        self.time.since(earlier.time)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Timestamp {
    type Err = String;
    fn from_str(text: &str) -> Result<Timestamp, String> {
        let shown = || text.chars().take(64).collect::<String>();
        let micros =
            micros(text).ok_or_else(|| format!("`{}` is not a time in RFC 3339", shown()))?;
        Ok(Timestamp { time: Time::from_micros(micros), text: text.to_owned() })
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Microseconds since the Unix epoch of `2026-01-02T03:04:05.678Z`, or with an offset such as `+01:00`.
fn micros(text: &str) -> Option<u64> {
    // Not everything that is 19 bytes long ends a character there.
    let (date_time, rest) = (text.get(..19)?, text.get(19..)?);
    let bytes = date_time.as_bytes();
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if separators.iter().any(|(at, wanted)| bytes[*at] != *wanted) || !b"Tt ".contains(&bytes[10]) {
        return None;
    }
    let number = |from: usize, to: usize| digits(date_time.get(from..to)?);
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let in_range = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !in_range {
        return None;
    }
    let (fraction, zone) = fraction(rest)?;
    let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second
        - offset(zone)?;
    u64::try_from(seconds).ok()?.checked_mul(1_000_000)?.checked_add(fraction)
}

fn digits(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The microseconds of `.678…`, and what follows them.
fn fraction(text: &str) -> Option<(u64, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    let digits = rest.get(..end).filter(|digits| !digits.is_empty())?;
    // Finer than a microsecond is cut off.
    let micros = format!("{:0<6}", digits.get(..6).unwrap_or(digits)).parse().ok()?;
    Some((micros, rest.get(end..)?))
}

/// The seconds that the zone is ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    if zone == "Z" || zone == "z" {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    if hours.len() != 2 || minutes.len() != 2 {
        return None;
    }
    Some(sign * (digits(hours)? * 3_600 + digits(minutes)? * 60))
}

/// Days from 1970-01-01 in the Gregorian calendar. The year is taken to begin in March, so that the leap day
/// is its last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before_month = (153 * month + 2) / 5;
    let days_before_year =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // 719,468 days from the first of March of the year 0 to the epoch.
    days_before_year + days_before_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_any_zone() {
        let good = [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.001Z", 1_000),
            ("1970-01-01T01:00:00.000001+01:00", 1),
            ("1969-12-31T23:00:00-01:00", 0),
            ("2000-02-29T12:00:00.5Z", 951_825_600_500_000),
            ("2026-11-16T02:04:52.123456789Z", 1_794_794_692_123_456),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000_000),
        ];
        for (text, micros) in good {
            let read: Timestamp = text.parse().unwrap();
            assert_eq!(read.time().as_micros(), micros, "{text}");
            assert_eq!(read.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "now",
            "2026-11-16",
            "2026-11-16T02:04:52",
            "2026-13-16T02:04:52Z",
            "2026-11-16T24:04:52Z",
            "2026-11-16T02:04:52.Z",
            "2026-11-16T02:04:52+1",
            "2026-11-16T02:04:5éZ",
            "1969-12-31T23:59:59Z",
            "+026-11-16T02:04:52Z",
        ] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
    }
}
