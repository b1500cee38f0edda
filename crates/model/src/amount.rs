//! Amounts as users write them: `16GB`, `0.5` cores, `2500m`, `30s`. Errors name the field.

use std::fmt;

use thiserror::Error;

use crate::decimal::AmountFormat;
use crate::priority::Priority;
use crate::time::Span;

/// One exbibyte: above any machine, and a few of them still add up within a signed 64-bit column.
pub const MAX_BYTES: u64 = 1 << 60;
/// A million cores, in thousandths: above any machine.
pub const MAX_MILLI: u64 = 1_000_000_000;
/// Ten years: longer than any task or deadline.
pub const MAX_SECONDS: u64 = 10 * 365 * 86_400;
/// How much of a wrong value is repeated: enough to recognise it, too little to flood a log.
const MAX_SHOWN: usize = 64;

/// An input value that was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field}: `{given}` {problem}")]
pub struct FieldError {
    /// The field that it was given for.
    pub field: String,
    /// The value that was given, cut short.
    pub given: String,
    /// What is wrong with it, and what to write instead.
    pub problem: String,
}

impl FieldError {
    /// `given` was refused for `field`, because it `problem`.
    pub fn new(field: &str, given: impl fmt::Display, problem: impl Into<String>) -> FieldError {
        let given = given.to_string().chars().take(MAX_SHOWN).collect();
        FieldError { field: field.to_owned(), given, problem: problem.into() }
    }
}

/// Bytes: a whole number, or a number with a decimal (`16GB`, `16G`) or binary (`512 KiB`, `1.5Gi`) unit in
/// any case. A fraction of a unit is rounded to the nearest byte.
pub fn parse_bytes(field: &str, text: &str) -> Result<u64, FieldError> {
    BYTES.parse(field, text)
}

/// Like [`parse_bytes`], but a bare number counts gigabytes, as in the resources of a job.
pub fn parse_gigabytes(field: &str, text: &str) -> Result<u64, FieldError> {
    GIGABYTES.parse(field, text)
}

/// Thousandths of a core or a GPU: `4`, `0.5`, `2500m`.
pub fn parse_milli(field: &str, text: &str) -> Result<u64, FieldError> {
    MILLI.parse(field, text)
}

/// A length of time: a number of seconds, or a number with a unit (`500ms`, `30s`, `5m`, `2h`), rounded to
/// the nearest microsecond.
pub fn parse_seconds(field: &str, text: &str) -> Result<Span, FieldError> {
    SECONDS.parse(field, text).map(Span::from_micros)
}

/// A whole number up to `max`.
pub fn parse_count(field: &str, text: &str, max: u32) -> Result<u32, FieldError> {
    let count = AmountFormat { max: u64::from(max), ..COUNT }.parse(field, text)?;
    Ok(u32::try_from(count).unwrap_or(max))
}

/// A priority: any finite number.
pub fn parse_priority(field: &str, text: &str) -> Result<Priority, FieldError> {
    let refused = |problem| {
        let problem = format!("{problem}: give a number such as 0.9, 5 or -1e6");
        FieldError::new(field, text, problem)
    };
    let number: f64 = text.trim().parse().map_err(|_| refused("is not a number"))?;
    Priority::new(number).ok_or_else(|| refused("is not finite"))
}

const BYTES: AmountFormat = AmountFormat {
    unit: bytes_in,
    rounds: true,
    max: MAX_BYTES,
    example: "a number of bytes such as 16000000000 or \"16GB\"",
    max_text: Some("1024 PiB"),
    step_text: "a byte",
};
const GIGABYTES: AmountFormat = AmountFormat {
    unit: |unit| if unit.is_empty() { Some(1_000_000_000) } else { bytes_in(unit) },
    example: "a number of gigabytes such as 16 or \"16GB\"",
    ..BYTES
};
const MILLI: AmountFormat = AmountFormat {
    unit: |unit| match unit {
        "" => Some(1_000),
        "m" => Some(1),
        _ => None,
    },
    rounds: false,
    max: MAX_MILLI,
    example: "a number such as 4, 0.5 or \"500m\"",
    max_text: Some("1000000"),
    step_text: "a thousandth",
};
const SECONDS: AmountFormat = AmountFormat {
    unit: micros_in,
    rounds: true,
    max: MAX_SECONDS * 1_000_000,
    example: "a number of seconds such as 30, or \"500ms\", \"30s\", \"5m\" or \"2h\"",
    max_text: Some("ten years"),
    step_text: "a microsecond",
};
const COUNT: AmountFormat = AmountFormat {
    unit: |unit| unit.is_empty().then_some(1),
    rounds: false,
    max: u32::MAX as u64,
    example: "a whole number such as 2",
    max_text: None,
    step_text: "one",
};

fn bytes_in(unit: &str) -> Option<u64> {
    let prefix = unit.strip_suffix('b').unwrap_or(unit);
    let (prefix, base) = match prefix.strip_suffix('i') {
        Some(prefix) if !prefix.is_empty() => (prefix, 1_024u64),
        _ => (prefix, 1_000),
    };
    let power = ["", "k", "m", "g", "t", "p"].iter().position(|known| *known == prefix)?;
    Some(base.pow(power as u32))
}

fn micros_in(unit: &str) -> Option<u64> {
    Some(match unit {
        "us" | "µs" | "μs" => 1,
        "ms" => 1_000,
        "" | "s" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check<T: PartialEq + fmt::Debug>(
        parse: impl Fn(&str, &str) -> Result<T, FieldError>,
        good: &[(&str, T)],
        bad: &[(&str, &str)],
    ) {
        for (text, expected) in good {
            assert_eq!(parse("f", text).as_ref(), Ok(expected), "{text:?}");
        }
        for (text, problem) in bad {
            let error = parse("f", text).expect_err(text).to_string();
            assert!(error.starts_with(&format!("f: `{text}` {problem}")), "{text:?} gave: {error}");
        }
    }

    #[test]
    fn bytes() {
        let good = [
            ("16000000000", 16_000_000_000),
            ("16GB", 16_000_000_000),
            ("16gb", 16_000_000_000),
            ("16 G", 16_000_000_000),
            (" 10MB ", 10_000_000),
            ("512 KiB", 524_288),
            ("1.5GiB", 1_610_612_736),
            ("1.5gi", 1_610_612_736),
            ("0.1GiB", 107_374_182),
            ("0.0015kB", 2),
            ("0.0014kB", 1),
            ("0.3GB", 300_000_000),
            ("0.30000000000000004GB", 300_000_000),
            (".5kB", 500),
            ("5.", 5),
            ("0", 0),
            ("000000000000000000000000007", 7),
            ("7B", 7),
            ("1024PiB", MAX_BYTES),
            ("1152921504606846976", MAX_BYTES),
        ];
        let bad = [
            ("", "is empty: give a number of bytes"),
            ("  ", "is empty"),
            ("-5", "is negative: give a number of bytes such as 16000000000 or \"16GB\""),
            ("-5GB", "is negative"),
            ("NaN", "is not finite"),
            ("inf", "is not finite"),
            ("-inf", "is not finite"),
            ("GB", "is not a number"),
            (".", "is not a number"),
            ("1.2.3", "is not a number"),
            ("1,5GB", "has the unknown unit `,5gb`"),
            ("+5", "is not a number"),
            ("16GiBB", "has the unknown unit `gibb`"),
            ("16ib", "has the unknown unit `ib`"),
            ("16 bytes", "has the unknown unit `bytes`"),
            ("1e9", "has the unknown unit `e9`"),
            ("1.5", "is finer than a byte"),
            ("1152921504606846977", "is too large: the most is 1024 PiB"),
            ("1025PiB", "is too large"),
            ("18446744073709551616", "is too large"),
            ("99999999999999999999999999999999999999999999", "is too large"),
        ];
        check(parse_bytes, &good, &bad);
        check(
            parse_gigabytes,
            &[("10.0", 10_000_000_000), ("8GiB", 8 << 30), ("0.5", 500_000_000)],
            &[("-1", "is negative: give a number of gigabytes"), ("1152921505", "is too large")],
        );
    }

    #[test]
    fn thousandths() {
        let good = [("4", 4_000), ("0.5", 500), ("2500m", 2_500), ("1.250", 1_250), ("0", 0)];
        let bad = [
            ("-1", "is negative"),
            ("0.0005", "is finer than a thousandth"),
            ("1.0000000000000000001", "is finer than a thousandth"),
            ("1.5m", "is finer than a thousandth"),
            ("4 cores", "has the unknown unit `cores`"),
            ("1000000.001", "is too large: the most is 1000000"),
        ];
        check(parse_milli, &good, &bad);
    }

    #[test]
    fn spans() {
        let good = [
            ("300.0", Span::from_secs(300)),
            ("500ms", Span::from_millis(500)),
            ("30s", Span::from_secs(30)),
            ("5m", Span::from_secs(300)),
            ("1.5 min", Span::from_secs(90)),
            ("2h", Span::from_secs(7_200)),
            ("0.30000000000000004", Span::from_millis(300)),
            ("0.0000001", Span::ZERO),
            ("3 µs", Span::from_micros(3)),
        ];
        let bad = [
            ("-1s", "is negative: give a number of seconds such as 30"),
            ("infinity", "is not finite"),
            ("5 weeks", "has the unknown unit `weeks`"),
            ("3651d", "is too large: the most is ten years"),
        ];
        check(parse_seconds, &good, &bad);
    }

    #[test]
    fn counts_and_priorities() {
        let bad = [
            ("2.5", "is finer than one"),
            ("9", "is too large: the most is 8"),
            ("4294967297", "is too large"),
        ];
        check(|field, text| parse_count(field, text, 8), &[("2", 2), ("2.0", 2), ("8", 8)], &bad);
        let good = [
            ("0.9", Priority::from_milli(900)),
            ("5", Priority::from_milli(5_000)),
            ("-0.001", Priority::from_milli(-1)),
            ("-0", Priority::default()),
            ("0.8437291", Priority::new(0.8437291).unwrap()),
            ("-1e300", Priority::new(-1e300).unwrap()),
        ];
        let bad = [
            ("--1", "is not a number"),
            ("-nan", "is not finite"),
            ("1e999", "is not finite"),
            ("high", "is not a number"),
        ];
        check(parse_priority, &good, &bad);
    }

    #[test]
    fn long_value_is_cut_short() {
        let error = parse_bytes("min_memory", &"x".repeat(100_000)).unwrap_err();
        assert_eq!(error.given.len(), MAX_SHOWN);
        assert!(error.to_string().len() < 300);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,40}") {
            let _ = (parse_bytes("f", &text), parse_seconds("f", &text), parse_priority("f", &text));
        }

        #[test]
        fn whole_numbers_round_trip(bytes in 0..=MAX_BYTES, milli in 0..=MAX_MILLI) {
            prop_assert_eq!(parse_bytes("f", &bytes.to_string()), Ok(bytes));
            let text = format!("{}.{:03}", milli / 1_000, milli % 1_000);
            prop_assert_eq!(parse_milli("f", &text), Ok(milli));
        }
    }
}
