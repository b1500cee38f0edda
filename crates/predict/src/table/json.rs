//! Tables as JSON: a list of objects, one a row.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::row::{ERROR_MS, HARDWARE, MEAN_MS, MODEL, Rows, TableError, UncheckedRow};

pub(super) fn parse(text: &str) -> Result<Rows, TableError> {
    let mut rows = Rows::new();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = List(&mut rows).deserialize(&mut deserializer).and_then(|()| deserializer.end());
    read.map_err(|error| {
        // The position is a field of its own; serde_json also appends it to every message.
        let message = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let what = message.strip_suffix(&place).unwrap_or(&message).to_owned();
        TableError::Line { line: error.line(), what }
    })?;
    Ok(rows)
}

/// Rows are checked while they are read: only then does the parser know the line.
struct List<'a>(&'a mut Rows);
struct Object<'a>(&'a mut Rows);

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Object(self.0))?.is_some() {}
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row as an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let mut draft = UncheckedRow::default();
        let mut seen: Vec<String> = Vec::new();
        while let Some(name) = fields.next_key::<String>()? {
            if seen.contains(&name) {
                return Err(A::Error::custom(format!("`{name}` occurs twice")));
            }
            match name.as_str() {
                MODEL => draft.model = fields.next_value()?,
                HARDWARE => draft.hardware = fields.next_value()?,
                MEAN_MS => draft.mean_ms = fields.next_value()?,
                ERROR_MS => draft.error_ms = fields.next_value()?,
                feature => {
                    let at = self.0.column(feature).map_err(A::Error::custom)?;
                    draft.features[at] = fields.next_value()?;
                }
            }
            seen.push(name);
        }
        self.0.push(draft).map_err(A::Error::custom)
    }
}
