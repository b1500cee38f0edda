//! Reads a decimal number with a unit, on integers: `0.1` is exactly a tenth.

use crate::amount::FieldError;

/// The format of one kind of amount.
#[derive(Clone, Copy)]
pub(crate) struct AmountFormat {
    /// The size of a unit, given in lower case; the empty unit is that of a bare number.
    pub(crate) unit: fn(&str) -> Option<u64>,
    /// Whether a fraction that does not come out even is rounded; otherwise it is refused.
    pub(crate) rounds: bool,
    /// The greatest result.
    pub(crate) max: u64,
    /// What to write, after "give".
    pub(crate) example: &'static str,
    /// The greatest value in the user's words, after "the most is"; `max` itself if `None`.
    pub(crate) max_text: Option<&'static str>,
    /// The least step in the user's words, after "is finer than".
    pub(crate) step_text: &'static str,
}

/// The problems of a number.
enum DecimalError {
    Empty,
    Negative,
    NotFinite,
    NotANumber,
    UnknownUnit(String),
    TooLarge,
    TooFine,
}

/// Decimals that count; further ones are below the rounding of any amount here. Ten to this power times the greatest
/// unit (2^50) stays within 128 bits.
const DECIMALS: usize = 18;
const ONE: u128 = 10u128.pow(DECIMALS as u32);

impl AmountFormat {
    /// The amount that `text` gives for `field`.
    pub(crate) fn parse(&self, field: &str, text: &str) -> Result<u64, FieldError> {
        self.read(text).map_err(|error| FieldError::new(field, text, self.explain(error)))
    }

    fn read(&self, text: &str) -> Result<u64, DecimalError> {
        let text = text.trim().to_lowercase();
        match text.trim_start_matches(['+', '-']) {
            "" if text.is_empty() => return Err(DecimalError::Empty),
            "nan" | "inf" | "infinity" => return Err(DecimalError::NotFinite),
            _ if text.starts_with('-') => return Err(DecimalError::Negative),
            _ => {}
        }
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim());
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return Err(DecimalError::NotANumber);
        }
        let unit = (self.unit)(unit).ok_or_else(|| DecimalError::UnknownUnit(unit.to_owned()))?;
        self.scale(whole, fraction, unit)
    }

    /// `whole.fraction` units, where both parts are digits only.
    fn scale(&self, whole: &str, fraction: &str, unit: u64) -> Result<u64, DecimalError> {
        let digits = whole.trim_start_matches('0');
        let whole: u64 = if digits.is_empty() { Ok(0) } else { digits.parse() }
            .map_err(|_| DecimalError::TooLarge)?;
        let (counted, rest) = fraction.split_at(fraction.len().min(DECIMALS));
        let counted = counted.bytes().chain(std::iter::repeat(b'0')).take(DECIMALS);
        let part = counted.fold(0, |sum, digit| sum * 10 + u128::from(digit - b'0'));
        let part = part * u128::from(unit);
        // A fraction of something indivisible (half a byte, half a task) is a mistake, not a rounding.
        let even = part.is_multiple_of(ONE) && rest.bytes().all(|digit| digit == b'0');
        if !even && (unit == 1 || !self.rounds) {
            return Err(DecimalError::TooFine);
        }
        let amount = u128::from(whole) * u128::from(unit) + (part + ONE / 2) / ONE;
        u64::try_from(amount)
            .ok()
            .filter(|amount| *amount <= self.max)
            .ok_or(DecimalError::TooLarge)
    }

    fn explain(&self, error: DecimalError) -> String {
        let example = self.example;
        match error {
            DecimalError::Empty => format!("is empty: give {example}"),
            DecimalError::Negative => format!("is negative: give {example}"),
            DecimalError::NotFinite => format!("is not finite: give {example}"),
            DecimalError::NotANumber => format!("is not a number: give {example}"),
            DecimalError::UnknownUnit(unit) => {
                let unit: String = unit.chars().take(16).collect();
                format!("has the unknown unit `{unit}`: give {example}")
            }
            DecimalError::TooFine => format!("is finer than {}: give {example}", self.step_text),
            DecimalError::TooLarge => match self.max_text {
                Some(most) => format!("is too large: the most is {most}"),
                None => format!("is too large: the most is {}", self.max),
            },
        }
    }
}
