//! Timestamps: RFC 3339 in UTC, with milliseconds.

use std::fmt;

use hypha_model::{Time, rfc3339};
use serde::{Serialize, Serializer};

/// A time, written as `2026-11-16T02:03:04.005Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timestamp(pub(crate) Time);

/// The end of the year 9999.
const LAST_SECONDS: f64 = 253_402_300_799.999;

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        rfc3339::write(self.0, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Timestamp {
    /// Parses `text`: RFC 3339 with any offset, or seconds since the Unix epoch.
    pub(crate) fn parse(text: &str) -> Option<Time> {
        match text.parse::<f64>() {
            Ok(seconds) => (0.0..=LAST_SECONDS)
                .contains(&seconds)
                .then(|| Time::from_micros((seconds * 1e6) as u64)),
            Err(_) => rfc3339::parse(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        let time = Time::from_micros(1_700_000_000_123_000);
        let text = "2023-11-14T22:13:20.123Z";
        assert_eq!(Timestamp(time).to_string(), text);
        assert_eq!(Timestamp::parse(text), Some(time));
        assert_eq!(Timestamp::parse("2023-11-15T00:13:20.123+02:00"), Some(time));
    }

    #[test]
    fn seconds_since_the_epoch_are_read() {
        let at = |text| Timestamp::parse(text).map(Time::as_micros);
        assert_eq!(at("1700000000"), Some(1_700_000_000_000_000));
        assert_eq!(at("1700000000.5"), Some(1_700_000_000_500_000));
        for text in ["", "now", "-1", "NaN", "inf", "1e300", "2023-02-29T00:00:00Z"] {
            assert_eq!(at(text), None, "{text}");
        }
    }
}
