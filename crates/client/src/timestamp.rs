//! An instant as the API writes it: RFC 3339.

use std::fmt;
use std::str::FromStr;

use hypha_model::{Span, Time, rfc3339};
use serde::{Deserialize, Serialize};

/// An instant, as the scheduler wrote it.
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
        let time = rfc3339::parse(text)
            .ok_or_else(|| format!("`{}` is not a time in RFC 3339", shown()))?;
        Ok(Timestamp { time, text: text.to_owned() })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_keeps_its_spelling() {
        let text = "2000-02-29T13:00:00.5+01:00";
        let read: Timestamp = text.parse().unwrap();
        assert_eq!(read.time().as_micros(), 951_825_600_500_000);
        assert_eq!(read.to_string(), text);
    }

    #[test]
    fn invalid_times_are_refused() {
        for text in ["", "now", "2026-11-16", "2026-02-30T02:04:52Z", "1969-12-31T23:59:59Z"] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
    }
}
