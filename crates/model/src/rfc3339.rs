//! Times as people and programs write them: RFC 3339. The `time` crate does the calendar.

use std::fmt;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::Time;

/// Years have four digits.
const LAST_MILLIS: u64 = 253_402_300_799_999;

/// Parses a time such as `2026-11-16T02:03:04.005Z`, or with an offset such as `+01:00`; a space may replace the `T`.
/// Digits finer than a microsecond are cut off. `None` if it is not a time, or before 1970.
pub fn parse(text: &str) -> Option<Time> {
    // The crate would accept any byte there.
    text.as_bytes().get(10).filter(|between| b"Tt ".contains(between))?;
    let nanos = OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp_nanos();
    u64::try_from(nanos.div_euclid(1_000)).ok().map(Time::from_micros)
}

/// Writes a time in UTC with milliseconds: `2026-11-16T02:03:04.005Z`.
pub fn write(time: Time, f: &mut impl fmt::Write) -> fmt::Result {
    let millis = time.as_millis().min(LAST_MILLIS);
    let seconds = i64::try_from(millis / 1_000).map_err(|_| fmt::Error)?;
    let date = OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| fmt::Error)?;
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    let (hour, minute, second) = date.to_hms();
    let millis = millis % 1_000;
    write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(time: Time) -> String {
        let mut text = String::new();
        write(time, &mut text).unwrap();
        text
    }

    /// Times, and how they are written. From `date -u -d '…' +%s`.
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
            assert_eq!(written(time), text);
            assert_eq!(parse(text), Some(time), "{text}");
        }
        assert_eq!(written(Time::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn times_are_read_in_any_zone() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T01:00:00.000001+01:00", 1),
            ("1969-12-31T23:00:00-01:00", 0),
            ("2000-02-29T12:00:00.5z", 951_825_600_500_000),
            ("2023-11-14t16:43:20-05:30", 1_700_000_000_000_000),
            ("2023-11-14 22:13:20.1234567Z", 1_700_000_000_123_456),
            ("2026-11-16T02:04:52.12345678901234567890Z", 1_794_794_692_123_456),
        ] {
            assert_eq!(parse(text).map(Time::as_micros), Some(micros), "{text}");
        }
    }

    #[test]
    fn invalid_times_are_refused() {
        let long = format!("2023-01-01T00:00:00.{}Z", "é".repeat(9));
        for text in [
            "",
            "now",
            "2023-01-01",
            "2023-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2023-13-01T00:00:00Z",
            "2023-00-10T00:00:00Z",
            "2023-01-00T00:00:00Z",
            "2023-04-31T00:00:00Z",
            "2023-01-01T24:00:00Z",
            "2023-01-01T00:60:00Z",
            "2023-01-01T00:00:60Z",
            "2023-01-01T00:00:00",
            "2023-01-01_00:00:00Z",
            "2023-1-1T00:00:00Z",
            "2023-01-01T00:00:00+2:00",
            "2023-01-01T00:00:00.Z",
            "2023-01-01T00:00:00.x1Z",
            "2023-01-01T00:00:0éZ",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "+023-01-01T00:00:00Z",
            &long,
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
