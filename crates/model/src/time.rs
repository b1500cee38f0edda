//! Instants and spans as integer microseconds. A driver supplies `Time`; nothing here reads a clock.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// Microseconds since the Unix epoch, as supplied by the driver. The driver never lets it run backwards, also across
/// restarts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(u64);

/// A length of time in microseconds. Arithmetic saturates: a span is wrong where a result exceeds 584,000 years, but
/// never negative and never a panic.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Span(u64);

const MICROS_PER_MILLI: u64 = 1_000;
const MICROS_PER_SECOND: u64 = 1_000_000;

impl Time {
    /// The Unix epoch: earlier than any time that a driver reports.
    pub const ZERO: Time = Time(0);
    /// Later than any time; stands for "never".
    pub const MAX: Time = Time(u64::MAX);

    /// The instant `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: u64) -> Time {
        Time(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> u64 {
        self.0 / MICROS_PER_MILLI
    }

    /// Seconds since the Unix epoch.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / MICROS_PER_SECOND as f64
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);
    /// Longer than any span.
    pub const MAX: Span = Span(u64::MAX);

    /// A span of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Span {
        Span(micros)
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Span {
        Span(millis.saturating_mul(MICROS_PER_MILLI))
    }

    /// A span of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Span {
        Span(secs.saturating_mul(MICROS_PER_SECOND))
    }

    /// The nearest span to `secs` seconds; zero for negatives and NaN, `MAX` if it is too long. For arithmetic. Input
    /// from outside goes through [`crate::amount::parse_seconds`], which refuses such values.
    pub fn from_secs_f64(secs: f64) -> Span {
        Span((secs * MICROS_PER_SECOND as f64).round() as u64)
    }

    /// Whole microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Milliseconds.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / MICROS_PER_MILLI as f64
    }

    /// Seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / MICROS_PER_SECOND as f64
    }

    /// This span `factor` times; negatives and NaN count as zero.
    pub fn mul_f64(self, factor: f64) -> Span {
        Span((self.0 as f64 * factor).round() as u64)
    }

    /// This span `factor` times.
    pub const fn times(self, factor: u64) -> Span {
        Span(self.0.saturating_mul(factor))
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Time {
    type Output = Time;
    fn sub(self, span: Span) -> Time {
        Time(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl Sub for Span {
    type Output = Span;
    fn sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Span) {
        *self = *self + other;
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.as_secs_f64())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0 s"),
            micros if micros < MICROS_PER_MILLI => write!(f, "{micros} µs"),
            // A value that would round to 1000.0 ms is shown as a second.
            micros if micros < MICROS_PER_SECOND - MICROS_PER_MILLI / 20 => {
                write!(f, "{:.1} ms", self.as_millis_f64())
            }
            _ => write!(f, "{:.2} s", self.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Time::MAX + Span::from_secs(1), Time::MAX);
        assert_eq!(Time::ZERO - Span::from_secs(1), Time::ZERO);
        assert_eq!(Time::ZERO.since(Time::MAX), Span::ZERO);
        assert_eq!(Span::MAX + Span::MAX, Span::MAX);
        assert_eq!(Span::from_secs(u64::MAX), Span::MAX);
    }

    #[test]
    fn spans_are_shown_in_a_fitting_unit() {
        let shown = |micros| Span::from_micros(micros).to_string();
        assert_eq!(
            [shown(0), shown(999), shown(1_500), shown(999_949), shown(999_999), shown(61_000_000)],
            ["0 s", "999 µs", "1.5 ms", "999.9 ms", "1.00 s", "61.00 s"]
        );
    }

    #[test]
    fn floats_outside_the_range_are_clamped() {
        assert_eq!(Span::from_secs_f64(-1.0), Span::ZERO);
        assert_eq!(Span::from_secs_f64(f64::NAN), Span::ZERO);
        assert_eq!(Span::from_secs_f64(f64::INFINITY), Span::MAX);
        assert_eq!(Span::from_secs_f64(0.000_001_4), Span::from_micros(1));
    }
}
