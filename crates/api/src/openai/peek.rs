//! Reads the model, the `stream` flag and the token limit from the body of a request, without parsing the rest.
//!
//! The body goes to the back end unchanged; all other fields are for the back end.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::error::OpenAiError;

/// The fields of a request that the scheduler needs.
#[derive(Debug, PartialEq)]
pub(super) struct Peek<'b> {
    /// The model.
    pub(super) model: Cow<'b, str>,
    /// Whether to stream the response.
    pub(super) stream: bool,
    /// The maximum length of the response, in tokens.
    pub(super) max_tokens: Option<f64>,
}

/// Reads a body. Fails if it is not a JSON object that names a model.
pub(super) fn peek(body: &[u8]) -> Result<Peek<'_>, OpenAiError> {
    // The parser does not check the values that it skips below.
    let text = std::str::from_utf8(body).map_err(|error| {
        OpenAiError::invalid(
            None,
            format!("the body is not UTF-8 from byte {} on", error.valid_up_to()),
        )
    })?;
    let fields: Fields<'_> = serde_json::from_str(text)
        .map_err(|error| OpenAiError::invalid(None, format!("the body is invalid: {error}")))?;
    let model = match fields.model {
        Some(LenientValue::Text(model)) if !model.is_empty() => model,
        None | Some(LenientValue::Null | LenientValue::Text(_)) => {
            return Err(OpenAiError::invalid(Some("model"), "the request must name a `model`"));
        }
        Some(_) => return Err(OpenAiError::invalid(Some("model"), "`model` must be a string")),
    };
    let stream = match fields.stream {
        None | Some(LenientValue::Null) => false,
        Some(LenientValue::Bool(stream)) => stream,
        Some(_) => {
            return Err(OpenAiError::invalid(Some("stream"), "`stream` must be true or false"));
        }
    };
    let number = |field: Option<LenientValue<'_>>| match field {
        Some(LenientValue::Number(number)) if number.is_finite() && number >= 0.0 => Some(number),
        _ => None,
    };
    let max_tokens = number(fields.max_completion_tokens).or(number(fields.max_tokens));
    Ok(Peek { model, stream, max_tokens })
}

/// The fields that the scheduler needs, with values of any type. Each may occur once.
#[derive(Default)]
struct Fields<'b> {
    model: Option<LenientValue<'b>>,
    stream: Option<LenientValue<'b>>,
    max_tokens: Option<LenientValue<'b>>,
    max_completion_tokens: Option<LenientValue<'b>>,
}

/// A value of any type. Arrays and objects are skipped, to any depth, in constant space.
enum LenientValue<'b> {
    Null,
    Bool(bool),
    Number(f64),
    Text(Cow<'b, str>),
    Other,
}

enum Key {
    Model,
    Stream,
    MaxTokens,
    MaxCompletionTokens,
    Other,
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'de>, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        while let Some(key) = map.next_key()? {
            let (field, name) = match key {
                Key::Model => (&mut fields.model, "model"),
                Key::Stream => (&mut fields.stream, "stream"),
                Key::MaxTokens => (&mut fields.max_tokens, "max_tokens"),
                Key::MaxCompletionTokens => {
                    (&mut fields.max_completion_tokens, "max_completion_tokens")
                }
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            // Of two values, the back end might use the other one.
            if field.is_some() {
                return Err(A::Error::duplicate_field(name));
            }
            *field = Some(map.next_value()?);
        }
        Ok(fields)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_identifier(KeyVisitor)
    }
}

struct KeyVisitor;

impl Visitor<'_> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(match key {
            "model" => Key::Model,
            "stream" => Key::Stream,
            "max_tokens" => Key::MaxTokens,
            "max_completion_tokens" => Key::MaxCompletionTokens,
            _ => Key::Other,
        })
    }
}

impl<'de> Deserialize<'de> for LenientValue<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LenientValue<'de>, D::Error> {
        deserializer.deserialize_any(LenientValueVisitor)
    }
}

struct LenientValueVisitor;

impl<'de> Visitor<'de> for LenientValueVisitor {
    type Value = LenientValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<LenientValue<'de>, E> {
        Ok(LenientValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<LenientValue<'de>, E> {
        Ok(LenientValue::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<LenientValue<'de>, E> {
        Ok(LenientValue::Number(value as f64))
    }

    fn visit_i64<E>(self, value: i64) -> Result<LenientValue<'de>, E> {
        Ok(LenientValue::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<LenientValue<'de>, E> {
        Ok(LenientValue::Number(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<LenientValue<'de>, E> {
        Ok(LenientValue::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<LenientValue<'de>, E> {
        Ok(LenientValue::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<LenientValue<'de>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(LenientValue::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LenientValue<'de>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(LenientValue::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<(String, bool, Option<f64>), String> {
        let peek = peek(body.as_bytes()).map_err(|error| format!("{error:?}"))?;
        Ok((peek.model.into_owned(), peek.stream, peek.max_tokens))
    }

    #[test]
    fn fields_are_found_in_any_position() {
        let cases = [
            (r#"{"model":"m"}"#, false, None),
            (r#" {"messages":[{"model":"x","stream":true}],"model":"m"} "#, false, None),
            (r#"{"stream":true,"model":"m","max_tokens":7}"#, true, Some(7.0)),
            (r#"{"stream":null,"model":"m","max_tokens":null}"#, false, None),
            (r#"{"max_completion_tokens":5,"max_tokens":7,"model":"m"}"#, false, Some(5.0)),
            (r#"{"max_tokens":"many","model":"m"}"#, false, None),
            (r#"{"max_tokens":-1,"model":"m"}"#, false, None),
            (r#"{"\u006dodel":"m"}"#, false, None),
        ];
        for (body, stream, max_tokens) in cases {
            assert_eq!(read(body), Ok(("m".to_owned(), stream, max_tokens)), "{body}");
        }
        let escaped = read(r#"{"model":"org\/m"}"#).unwrap();
        assert_eq!(escaped.0, "org/m");
    }

    #[test]
    fn a_name_without_escapes_is_not_copied() {
        let body = br#"{"model":"m"}"#;
        assert!(matches!(peek(body).unwrap().model, Cow::Borrowed(_)));
    }

    #[test]
    fn invalid_bodies_are_refused_with_a_reason() {
        let cases = [
            ("", "the body is invalid: EOF"),
            ("[\"m\", true]", "expected an object"),
            ("\"m\"", "expected an object"),
            ("{", "EOF"),
            (r#"{"model":"m"} x"#, "trailing characters"),
            (r#"{"model":"m","model":"m"}"#, "duplicate field `model`"),
            (r#"{"model":"m","stream":true,"stream":false}"#, "duplicate field `stream`"),
            (r#"{"model":"m","x":NaN}"#, "expected value"),
            (r#"{"model":"m","x":"a"#, "EOF"),
            (r#"{"messages":[]}"#, "must name a `model`"),
            (r#"{"model":null}"#, "must name a `model`"),
            (r#"{"model":""}"#, "must name a `model`"),
            (r#"{"model":5}"#, "`model` must be a string"),
            (r#"{"model":["m"]}"#, "`model` must be a string"),
            (r#"{"model":"m","stream":"true"}"#, "`stream` must be true or false"),
            (r#"{"model":"m","stream":{}}"#, "`stream` must be true or false"),
        ];
        for (body, expected) in cases {
            let error = read(body).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
        }
        let error = peek(b"{\"model\":\"m\",\"x\":\"\xff\"}").unwrap_err();
        assert!(format!("{error:?}").contains("not UTF-8 from byte 18 on"), "{error:?}");
    }

    #[test]
    fn deep_nesting_is_accepted() {
        let deep = |at: &str| format!("{{{at}:{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(read(&deep("\"x\"")).unwrap_err().contains("must name a `model`"));
        assert!(read(&deep("\"model\"")).unwrap_err().contains("`model` must be a string"));
    }
}
