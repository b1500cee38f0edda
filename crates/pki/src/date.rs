//! A point in time as people read it in a certificate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `2026-07-30 09:05:00 UTC`.
pub fn utc(time: SystemTime) -> String {
    let seconds = seconds_since_epoch(time);
    let (year, month, day) = civil(seconds.div_euclid(SECONDS_A_DAY));
    let of_day = seconds.rem_euclid(SECONDS_A_DAY);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
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

const SECONDS_A_DAY: i64 = 86_400;

fn seconds_since_epoch(time: SystemTime) -> i64 {
    let whole = |distance: Duration| i64::try_from(distance.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => whole(after),
        Err(before) => -whole(before.duration()),
    }
}

/// The Gregorian date of a day counted from 1970-01-01. Years are taken from March, so that the
/// leap day comes last in its year.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_IN_400_YEARS: i64 = 146_097;
    const FROM_MARCH_OF_YEAR_0: i64 = 719_468;
    let days = days + FROM_MARCH_OF_YEAR_0;
    let cycle = days.div_euclid(DAYS_IN_400_YEARS);
    let of_cycle = days.rem_euclid(DAYS_IN_400_YEARS);
    let leap_days = of_cycle / 1460 - of_cycle / 36_524 + of_cycle / 146_096;
    let year_of_cycle = (of_cycle - leap_days) / 365;
    let of_year = of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (cycle * 400 + year_of_cycle + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (-1, "1969-12-31 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(utc(from_seconds(seconds)), expected);
        }
    }
}
