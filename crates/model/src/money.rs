//! Prices and sums, in integers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::amount::FieldError;
use crate::decimal::AmountFormat;
use crate::time::Span;

/// An amount of money in millionths of a unit; a market's members agree on the unit. Prices are never negative, so
/// this is not either. Users write decimals, read with [`Money::parse`]; it is stored and sent as the integer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Money(u64);

const MICROS_PER_UNIT: u64 = 1_000_000;
const MICROS_PER_HOUR: u128 = 3_600_000_000;

impl Money {
    /// Nothing.
    pub const ZERO: Money = Money(0);
    /// More than any price; stands for "any price".
    pub const MAX: Money = Money(u64::MAX);
    /// A million million: above any price, and sums of many stay within 64 bits.
    pub const MAX_WRITTEN_UNITS: u64 = 1_000_000_000_000;

    /// An amount of `micros` millionths.
    pub const fn from_micros(micros: u64) -> Money {
        Money(micros)
    }

    /// The millionths.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// In units, for ranking and for metrics.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / MICROS_PER_UNIT as f64
    }

    /// The price in `text` (`110.0`, `160`) for `field`: up to six decimals.
    pub fn parse(field: &str, text: &str) -> Result<Money, FieldError> {
        PRICE.parse(field, text).map(Money)
    }

    /// The sum, or `None` if it does not fit.
    pub const fn checked_add(self, other: Money) -> Option<Money> {
        match self.0.checked_add(other.0) {
            Some(micros) => Some(Money(micros)),
            None => None,
        }
    }

    /// The difference, or `None` if it would be negative.
    pub const fn checked_sub(self, other: Money) -> Option<Money> {
        match self.0.checked_sub(other.0) {
            Some(micros) => Some(Money(micros)),
            None => None,
        }
    }

    /// The sum, at most [`Money::MAX`].
    pub const fn saturating_add(self, other: Money) -> Money {
        Money(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    pub const fn saturating_sub(self, other: Money) -> Money {
        Money(self.0.saturating_sub(other.0))
    }

    /// This amount `factor` times, at most [`Money::MAX`].
    pub const fn times(self, factor: u64) -> Money {
        Money(self.0.saturating_mul(factor))
    }

    /// The cost of `span` at this price per hour, to the nearest millionth: rounding up would charge many short leases
    /// for unused time.
    pub fn per_hour_for(self, span: Span) -> Money {
        let product = u128::from(self.0) * u128::from(span.as_micros());
        Money(u64::try_from((product + MICROS_PER_HOUR / 2) / MICROS_PER_HOUR).unwrap_or(u64::MAX))
    }
}

const PRICE: AmountFormat = AmountFormat {
    unit: |unit| unit.is_empty().then_some(MICROS_PER_UNIT),
    rounds: false,
    max: Money::MAX_WRITTEN_UNITS * MICROS_PER_UNIT,
    example: "a price such as 110.0",
    max_text: Some("1000000000000"),
    step_text: "a millionth",
};

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, micros) = (self.0 / MICROS_PER_UNIT, self.0 % MICROS_PER_UNIT);
        let decimals = format!("{micros:06}");
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{units}"),
            decimals => write!(f, "{units}.{decimals}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_and_shown() {
        let good = [
            ("110.0", 110_000_000, "110"),
            ("160", 160_000_000, "160"),
            ("0.000001", 1, "0.000001"),
            ("0.10", 100_000, "0.1"),
            ("1000000000000", Money::MAX_WRITTEN_UNITS * MICROS_PER_UNIT, "1000000000000"),
        ];
        for (text, micros, shown) in good {
            let money = Money::parse("bid", text).unwrap();
            assert_eq!((money.as_micros(), money.to_string().as_str()), (micros, shown));
        }
        let bad = [
            ("-1", "bid: `-1` is negative: give a price such as 110.0"),
            ("0.0000001", "bid: `0.0000001` is finer than a millionth: give a price such as 110.0"),
            ("NaN", "bid: `NaN` is not finite: give a price such as 110.0"),
            ("5 EUR", "bid: `5 EUR` has the unknown unit `eur`: give a price such as 110.0"),
            ("1000000000001", "bid: `1000000000001` is too large: the most is 1000000000000"),
        ];
        for (text, expected) in bad {
            assert_eq!(Money::parse("bid", text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn an_hour_costs_the_price_of_an_hour() {
        let price = Money::parse("price", "3.6").unwrap();
        let cases = [
            (Span::from_secs(3_600), 3_600_000),
            (Span::from_secs(1), 1_000),
            (Span::from_micros(499), 0),
            (Span::from_micros(500), 1),
            (Span::ZERO, 0),
        ];
        for (span, micros) in cases {
            assert_eq!(price.per_hour_for(span), Money(micros), "{span}");
        }
        assert_eq!(Money::MAX.per_hour_for(Span::MAX), Money::MAX);
    }

    #[test]
    fn arithmetic_is_checked_or_saturates() {
        let one = Money(1);
        assert_eq!(Money::MAX.checked_add(one), None);
        assert_eq!(Money::ZERO.checked_sub(one), None);
        assert_eq!(Money::MAX.saturating_add(one), Money::MAX);
        assert_eq!(Money::ZERO.saturating_sub(one), Money::ZERO);
        assert_eq!(Money::MAX.times(2), Money::MAX);
        assert_eq!(serde_json::to_string(&Money(5)).unwrap(), "5");
    }
}
