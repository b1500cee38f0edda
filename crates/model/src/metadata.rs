//! The metadata of a request from which its run time can be predicted: numbers and categories.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A number (`input_tokens: 100`) or a category (`hardware: "A100"`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetadataValue {
    /// A finite number.
    Number(f64),
    /// A category.
    Text(Arc<str>),
}

/// Keys with values, in the order of their keys, each key once.
/// Read and written as a map (`{"input_tokens": 100}`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(Box<[(Arc<str>, MetadataValue)]>);

/// Metadata that was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MetadataError {
    /// NaN or infinite.
    #[error("metadata field `{0}` is not a finite number")]
    NotFinite(String),
    /// More than [`Metadata::MAX_ENTRIES`].
    #[error("metadata has {0} fields, at most {max} are accepted", max = Metadata::MAX_ENTRIES)]
    TooMany(usize),
    /// A key or a text longer than [`Metadata::MAX_TEXT_BYTES`].
    #[error("metadata field `{0}` is longer than {max} bytes", max = Metadata::MAX_TEXT_BYTES)]
    TooLong(String),
}

impl Metadata {
    /// More than a predictor can learn from; a bound on the memory that a client can use.
    pub const MAX_ENTRIES: usize = 64;
    /// A category is a label, not a document.
    pub const MAX_TEXT_BYTES: usize = 256;

    /// Metadata of these entries; a later entry replaces an earlier one with the same key.
    pub fn new(
        entries: impl IntoIterator<Item = (Arc<str>, MetadataValue)>,
    ) -> Result<Metadata, MetadataError> {
        let mut sorted: Vec<(Arc<str>, MetadataValue)> = Vec::new();
        for (key, value) in entries {
            let shown = || key.chars().take(64).collect::<String>();
            let text_bytes = match &value {
                MetadataValue::Number(number) if !number.is_finite() => {
                    return Err(MetadataError::NotFinite(shown()));
                }
                MetadataValue::Number(_) => 0,
                MetadataValue::Text(text) => text.len(),
            };
            if key.len().max(text_bytes) > Metadata::MAX_TEXT_BYTES {
                return Err(MetadataError::TooLong(shown()));
            }
            match sorted.binary_search_by(|(other, _)| other.cmp(&key)) {
                Ok(at) => sorted[at].1 = value,
                Err(at) => sorted.insert(at, (key, value)),
            }
            if sorted.len() > Metadata::MAX_ENTRIES {
                return Err(MetadataError::TooMany(sorted.len()));
            }
        }
        // Without spare capacity: it may be kept a million times.
        Ok(Metadata(sorted.into()))
    }

    /// Metadata of numbers alone, for tests and the simulator. Numbers that are not finite are left out.
    pub fn of_numbers(entries: &[(&str, f64)]) -> Metadata {
        let finite = entries.iter().filter(|(_, number)| number.is_finite());
        Metadata::new(finite.map(|(key, number)| (Arc::from(*key), MetadataValue::Number(*number))))
            .unwrap_or_default()
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&MetadataValue> {
        let at = self.0.binary_search_by(|(other, _)| (**other).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &MetadataValue)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Metadata {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
        let entries = BTreeMap::<Arc<str>, MetadataValue>::deserialize(deserializer)?;
        Metadata::new(entries).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_sorted_and_the_last_one_wins() {
        let metadata = Metadata::of_numbers(&[("b", 1.0), ("a", 2.0), ("b", 3.0)]);
        assert_eq!(metadata.get("b"), Some(&MetadataValue::Number(3.0)));
        assert_eq!(metadata.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["a", "b"]);
        let json = r#"{"a":2.0,"b":3.0}"#;
        assert_eq!(serde_json::to_string(&metadata).unwrap(), json);
        assert_eq!(serde_json::from_str::<Metadata>(json).unwrap(), metadata);
    }

    #[test]
    fn invalid_metadata_is_refused() {
        let one = |value| Metadata::new([(Arc::from("tokens"), value)]);
        assert_eq!(
            one(MetadataValue::Number(f64::NAN)).unwrap_err().to_string(),
            "metadata field `tokens` is not a finite number"
        );
        assert!(one(MetadataValue::Text("x".repeat(257).into())).is_err());
        let long = format!(r#"{{"a": "{}"}}"#, "x".repeat(257));
        assert!(serde_json::from_str::<Metadata>(&long).is_err());
        let many = (0..65).map(|i| (Arc::from(format!("k{i}")), MetadataValue::Number(0.0)));
        assert_eq!(Metadata::new(many), Err(MetadataError::TooMany(65)));
    }
}
