//! Short names that people choose: models, executors, hardware, tenants.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A name: 1 to [`Name::MAX_BYTES`] bytes, no control characters, no space at either end. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(Arc<str>);

/// An invalid name.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NameError {
    /// The name is empty.
    #[error("a name must not be empty")]
    Empty,
    /// More than [`Name::MAX_BYTES`].
    #[error("a name has at most {max} bytes, this one has {0}", max = Name::MAX_BYTES)]
    TooLong(usize),
    /// Control characters or outer spaces.
    #[error("a name must not contain control characters or begin or end with a space")]
    Unprintable,
}

impl Name {
    /// Long enough for any model repository with its revision, short enough to be kept by the thousand.
    pub const MAX_BYTES: usize = 256;

    /// The name that a program itself writes, which needs no check.
    pub fn literal(text: &'static str) -> Name {
        debug_assert!(text.parse::<Name>().is_ok(), "{text:?}");
        Name(Arc::from(text))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Name, NameError> {
        if text.is_empty() {
            Err(NameError::Empty)
        } else if text.len() > Name::MAX_BYTES {
            Err(NameError::TooLong(text.len()))
        } else if text.trim() != text || text.chars().any(char::is_control) {
            Err(NameError::Unprintable)
        } else {
            Ok(Name(Arc::from(text)))
        }
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_printable() {
        assert_eq!("llama-2-7b".parse::<Name>().unwrap().as_str(), "llama-2-7b");
        assert_eq!("".parse::<Name>(), Err(NameError::Empty));
        assert_eq!("a\nb".parse::<Name>(), Err(NameError::Unprintable));
        assert_eq!(" a".parse::<Name>(), Err(NameError::Unprintable));
        assert_eq!("x".repeat(257).parse::<Name>(), Err(NameError::TooLong(257)));
        assert!(serde_json::from_str::<Name>("\"\"").is_err());
    }
}
