//! Extracts the metadata that a predictor can learn from.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_model::{Metadata, MetadataValue};

use crate::error::Error;

/// Numbers, short strings and booleans of `given`. Clients of this API may send anything, so values that a
/// predictor cannot use are ignored; only more than [`Metadata::MAX_ENTRIES`] usable ones are refused.
pub(crate) fn predictor_metadata(
    given: &BTreeMap<String, serde_json::Value>,
) -> Result<Metadata, Error> {
    let entries = given.iter().filter_map(|(key, value)| {
        let value = match value {
            serde_json::Value::Number(number) => MetadataValue::Number(number.as_f64()?),
            serde_json::Value::String(text) => MetadataValue::Text(Arc::from(text.as_str())),
            serde_json::Value::Bool(true) => MetadataValue::Text(Arc::from("true")),
            serde_json::Value::Bool(false) => MetadataValue::Text(Arc::from("false")),
            _ => return None,
        };
        let too_long = |text: &str| text.len() > Metadata::MAX_TEXT_BYTES;
        let passed_over =
            too_long(key) || matches!(&value, MetadataValue::Text(text) if too_long(text));
        (!passed_over).then(|| (Arc::from(key.as_str()), value))
    });
    Metadata::new(entries).map_err(|error| Error::unprocessable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: serde_json::Value) -> Result<String, Error> {
        let given = serde_json::from_value(given).unwrap();
        predictor_metadata(&given).map(|metadata| serde_json::to_string(&metadata).unwrap())
    }

    #[test]
    fn usable_metadata_is_kept() {
        let long = "x".repeat(257);
        let given = serde_json::json!({
            "hardware": "A100", "input_tokens": 100, "half": 0.5, "flash": true,
            "none": null, "list": [1], "object": {"a": 1}, "long": long, long.clone(): 1,
        });
        let kept = r#"{"flash":"true","half":0.5,"hardware":"A100","input_tokens":100.0}"#;
        assert_eq!(check(given).unwrap(), kept);
        assert_eq!(check(serde_json::json!({})).unwrap(), "{}");
    }

    #[test]
    fn too_many_are_refused() {
        let many = |count: usize| {
            (0..count).map(|i| (format!("k{i}"), i.into())).collect::<serde_json::Map<_, _>>()
        };
        assert!(check(many(64).into()).is_ok());
        let error = check(many(65).into()).unwrap_err();
        assert_eq!(error.status.as_u16(), 422);
        assert!(error.message.contains("at most 64"), "{}", error.message);
    }
}
