//! JSON as written: every digit is kept on the way from a file to a model, or from a model to a file.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// Levels that indented output shows. JSON can be nested as deeply as it is long: without a bound, its
/// indentation would be its length squared.
const MAX_INDENTED_LEVELS: usize = 64;

/// Any JSON. Two are equal if they are written alike.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

impl Json {
    /// Anything that can be serialized as JSON; `null` for anything else.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Json {
        to_raw_value(value).map_or_else(|_| Json::default(), Json)
    }

    /// Bytes that are not JSON, as the API shows them: `{"base64": …}`.
    pub fn of_bytes(bytes: &[u8]) -> Json {
        Json::of(&serde_json::json!({ "base64": BASE64.encode(bytes) }))
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        self.as_str() == "null"
    }

    /// The string, if it is one.
    pub fn text(&self) -> Option<String> {
        match self.as_str().starts_with('"') {
            true => self.read(),
            false => None,
        }
    }

    /// The parsed value, if it has this type.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.as_str()).ok()
    }

    /// As a value. Numbers that a machine cannot represent are rounded; JSON that is nested too deeply is
    /// `null`.
    pub fn to_value(&self) -> Value {
        self.read().unwrap_or_default()
    }
}

/// `null`.
impl Default for Json {
    fn default() -> Json {
        Json(RawValue::NULL.to_owned())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Json) -> bool {
        self.as_str() == other.as_str()
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Json {
        Json::of(&value)
    }
}

impl FromStr for Json {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Json, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// As written; with `{:#}` indented, its parts unchanged.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match f.alternate() {
            true => f.write_str(&indented(self.as_str())),
            false => f.write_str(self.as_str()),
        }
    }
}

/// The same JSON with a line for each part.
fn indented(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let mut level = 0_usize;
    let line = |text: &mut String, level: usize| {
        text.push('\n');
        text.push_str(&"  ".repeat(level.min(MAX_INDENTED_LEVELS)));
    };
    let (mut within, mut escaped, mut opened) = (false, false, false);
    for one in json.chars() {
        if within {
            text.push(one);
            within = escaped || one != '"';
            escaped = one == '\\' && !escaped;
            continue;
        }
        if one.is_ascii_whitespace() {
            continue;
        }
        let closes = matches!(one, '}' | ']');
        // An empty object or array stays on its line.
        if std::mem::take(&mut opened) && !closes {
            line(&mut text, level);
        } else if closes && !text.ends_with(['{', '[']) {
            line(&mut text, level.saturating_sub(1));
        }
        text.push(one);
        match one {
            '"' => within = true,
            '{' | '[' => (level, opened) = (level + 1, true),
            '}' | ']' => level = level.saturating_sub(1),
            ':' => text.push(' '),
            ',' => line(&mut text, level),
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_is_changed() {
        let text = r#"{"b": 0.1000, "a":[12345678901234567890123, 1E5, "\u00e9"]}"#;
        let json: Json = text.parse().unwrap();
        assert_eq!((json.as_str(), json.to_string().as_str()), (text, text));
        assert_eq!(Json::of(&json), json);
        let whole: Vec<Json> = serde_json::from_str(&format!("[{text}, null]")).unwrap();
        assert_eq!(whole, [json, Json::default()]);
        assert!("{".parse::<Json>().is_err() && "1 2".parse::<Json>().is_err());
    }

    #[test]
    fn parts_are_read() {
        let json = |text: &str| text.parse::<Json>().unwrap();
        assert_eq!(json(r#""a\n""#).text().as_deref(), Some("a\n"));
        assert_eq!((json("1").text(), json("null").is_null()), (None, true));
        assert_eq!(json(r#"{"a": 1}"#).to_value(), json!({"a": 1}));
        let deep = json(&("[".repeat(500) + &"]".repeat(500)));
        assert!(deep.to_value().is_null());
        assert_eq!(Json::of_bytes(b"\xff").as_str(), r#"{"base64":"/w=="}"#);
    }

    #[test]
    fn an_indented_text_is_the_same_json() {
        let text = r#" {"a" :0.10,"b":[ ] ,"c":{},"d":[1,[true, "x, \"{\\"] ], "e":{"f":null}}"#;
        let json: Json = text.trim().parse().unwrap();
        let expected = r#"{
  "a": 0.10,
  "b": [],
  "c": {},
  "d": [
    1,
    [
      true,
      "x, \"{\\"
    ]
  ],
  "e": {
    "f": null
  }
}"#;
        assert_eq!(format!("{json:#}"), expected);
        assert_eq!(format!("{:#}", Json::of("[a]")), "\"[a]\"");
        let deep: Json = ("[".repeat(9_000) + "[[]]" + &"]".repeat(9_000)).parse().unwrap();
        assert!(format!("{deep:#}").len() < 3_000_000);
    }
}
