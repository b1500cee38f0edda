//! A point in time as people read it in a certificate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::{OffsetDateTime, PrimitiveDateTime};

/// `2026-07-30 09:05:00 UTC`.
pub fn format_utc(time: SystemTime) -> String {
    let (first, last) = (PrimitiveDateTime::MIN.assume_utc(), PrimitiveDateTime::MAX.assume_utc());
    let (first, last) = (first.unix_timestamp(), last.unix_timestamp());
    let seconds = seconds_since_epoch(time).clamp(first, last);
    let date = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    let (hour, minute, second) = date.to_hms();
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// The time of a certificate field, which counts seconds before or after 1970.
pub(crate) fn from_seconds(seconds: i64) -> SystemTime {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(UNIX_EPOCH)
}

fn seconds_since_epoch(time: SystemTime) -> i64 {
    let whole = |distance: Duration| i64::try_from(distance.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => whole(after),
        Err(before) => -whole(before.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59:59 UTC"),
            (253_402_300_800, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(format_utc(from_seconds(seconds)), expected);
        }
    }
}
