//! A value as a user gave it, before anyone knows what it should have been. Reading one never fails, so that
//! the error comes later, from whoever knows the name of the field.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::amount::AmountError;
use crate::name::Name;

/// A number or a text where an amount, a name or a switch is expected, from JSON or TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// A number, spelled out without an exponent.
    Number(String),
    /// A text.
    Text(String),
    /// `true` or `false`.
    Switch(bool),
    /// What none of the fields takes: a list or a table.
    Other(&'static str),
}

impl Given {
    /// How it reads: what the parsers in [`crate::amount`] take, and what an error repeats.
    pub fn as_str(&self) -> &str {
        match self {
            Given::Number(text) | Given::Text(text) => text,
            Given::Switch(true) => "true",
            Given::Switch(false) => "false",
            Given::Other(what) => what,
        }
    }

    /// The switch that this is for `field`.
    pub fn switch(&self, field: &str) -> Result<bool, AmountError> {
        match self {
            Given::Switch(on) => Ok(*on),
            other => Err(AmountError::new(field, other, "is not a switch: give true or false")),
        }
    }

    /// The name that this is for `field`.
    pub fn name(&self, field: &str) -> Result<Name, AmountError> {
        match self {
            Given::Text(text) => text
                .parse()
                .map_err(|error| AmountError::new(field, text, format!("is refused: {error}"))),
            other => Err(AmountError::new(field, other, "is not a text: give a name in quotes")),
        }
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&str> for Given {
    fn from(text: &str) -> Given {
        Given::Text(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Given, D::Error> {
        deserializer.deserialize_any(Anything)
    }
}

struct Anything;

impl<'de> Visitor<'de> for Anything {
    type Value = Given;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Given, E> {
        Ok(Given::Switch(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Given, E> {
        Ok(Given::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Given, E> {
        Ok(Given::Number(value.to_string()))
    }

    /// The shortest digits that mean this very float: `0.1` comes back as `0.1`.
    fn visit_f64<E>(self, value: f64) -> Result<Given, E> {
        Ok(Given::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Given, E> {
        Ok(Given::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Given, E> {
        Ok(Given::Other("null"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Given, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Given::Other("[…]"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Given::Other("{…}"))
    }
}
