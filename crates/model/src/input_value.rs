//! A value as a user gave it, before its field's type is known. Reading one never fails, so that the error comes
//! later, from code that knows the name of the field.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::amount::FieldError;
use crate::name::Name;

/// A number or a text where an amount, a name or a boolean is expected, from JSON or TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputValue {
    /// A number, spelled out without an exponent.
    Number(String),
    /// A text.
    Text(String),
    /// `true` or `false`.
    Bool(bool),
    /// A list or a table, which no field accepts.
    Other(&'static str),
}

impl InputValue {
    /// Its text: the input of the parsers in [`crate::amount`], and what an error repeats.
    pub fn as_str(&self) -> &str {
        match self {
            InputValue::Number(text) | InputValue::Text(text) => text,
            InputValue::Bool(true) => "true",
            InputValue::Bool(false) => "false",
            InputValue::Other(what) => what,
        }
    }

    /// The boolean value for `field`.
    pub fn as_bool(&self, field: &str) -> Result<bool, FieldError> {
        match self {
            InputValue::Bool(on) => Ok(*on),
            other => Err(FieldError::new(field, other, "is not a boolean: give true or false")),
        }
    }

    /// The name for `field`.
    pub fn as_name(&self, field: &str) -> Result<Name, FieldError> {
        match self {
            InputValue::Text(text) => text
                .parse()
                .map_err(|error| FieldError::new(field, text, format!("is refused: {error}"))),
            other => Err(FieldError::new(field, other, "is not a text: give a name in quotes")),
        }
    }
}

impl fmt::Display for InputValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&str> for InputValue {
    fn from(text: &str) -> InputValue {
        InputValue::Text(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for InputValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<InputValue, D::Error> {
        deserializer.deserialize_any(InputValueVisitor)
    }
}

struct InputValueVisitor;

impl<'de> Visitor<'de> for InputValueVisitor {
    type Value = InputValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text")
    }

    fn visit_bool<E>(self, value: bool) -> Result<InputValue, E> {
        Ok(InputValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<InputValue, E> {
        Ok(InputValue::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<InputValue, E> {
        Ok(InputValue::Number(value.to_string()))
    }

    /// The shortest digits that mean exactly this float: `0.1` stays `0.1`.
    fn visit_f64<E>(self, value: f64) -> Result<InputValue, E> {
        Ok(InputValue::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<InputValue, E> {
        Ok(InputValue::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<InputValue, E> {
        Ok(InputValue::Other("null"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<InputValue, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(InputValue::Other("[…]"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InputValue, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(InputValue::Other("{…}"))
    }
}
