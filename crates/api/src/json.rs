//! Strict JSON in requests: errors name the field and the position.

use std::fmt;

use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use crate::app_state::AppState;
use crate::error::Error;

/// A body as JSON. A body that is not JSON is refused with 400, one that does not fit `T` with 422, another
/// content type with 415 and too large a body with 413. A missing content type is taken as JSON.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<AppState> for Json<T> {
    type Rejection = Error;

    async fn from_request(request: Request, app: &AppState) -> Result<Json<T>, Error> {
        let bytes = JsonBytes::from_request(request, app).await?.0;
        Ok(Json(parse_object(&bytes)?))
    }
}

/// The bytes of a body that is declared as JSON, or not declared at all; see [`Json`].
pub(crate) struct JsonBytes(pub(crate) bytes::Bytes);

impl FromRequest<AppState> for JsonBytes {
    type Rejection = Error;

    async fn from_request(request: Request, app: &AppState) -> Result<JsonBytes, Error> {
        check_type(request.headers())?;
        let (parts, body) = request.into_parts();
        Ok(JsonBytes(app.bodies.read(&parts.headers, body).await?))
    }
}

/// Refuses a content type that is not JSON.
pub(crate) fn check_type(headers: &HeaderMap) -> Result<(), Error> {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = kind.to_str().unwrap_or("").split(';').next().unwrap_or("").trim();
    let (class, rest) = essence.split_once('/').unwrap_or(("", ""));
    let rest = rest.to_ascii_lowercase();
    if class.eq_ignore_ascii_case("application") && (rest == "json" || rest.ends_with("+json")) {
        return Ok(());
    }
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let message = "the body must be JSON: send it with `Content-Type: application/json`";
    Err(Error::new(status, "unsupported_media_type", message))
}

/// Parses `bytes`.
pub(crate) fn parse<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| parse_error(&error))
}

/// Parses an object. Nothing else is accepted: the fields of a type could be read from an array, too.
pub(crate) fn parse_object<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Error> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        parse::<IgnoredAny>(bytes)?;
        return Err(Error::unprocessable("expected an object, with its fields in braces: {…}"));
    }
    parse(bytes)
}

/// Converts an error of the parser.
pub(crate) fn parse_error(error: &serde_json::Error) -> Error {
    match error.classify() {
        Category::Data => Error::unprocessable(error.to_string()),
        Category::Syntax | Category::Eof | Category::Io => Error::new(
            StatusCode::BAD_REQUEST,
            "malformed_json",
            format!("the body is not JSON: {error}"),
        ),
    }
}

/// Any JSON that other parsers can read, too: nested no deeper than the parser follows, numbers within the
/// range of floats, strings without lone surrogates. Nothing of it is kept.
pub(crate) struct PortableJson;

impl<'de> Deserialize<'de> for PortableJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PortableJson, D::Error> {
        deserializer.deserialize_any(PortableJson)
    }
}

impl<'de> Visitor<'de> for PortableJson {
    type Value = PortableJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }
    fn visit_i64<E>(self, _: i64) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }
    fn visit_u64<E>(self, _: u64) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }
    fn visit_f64<E>(self, _: f64) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }
    fn visit_str<E>(self, _: &str) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }
    fn visit_unit<E>(self) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PortableJson, A::Error> {
        while seq.next_element::<PortableJson>()?.is_some() {}
        Ok(PortableJson)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PortableJson, A::Error> {
        while map.next_entry::<PortableJson, PortableJson>()?.is_some() {}
        Ok(PortableJson)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Sample {
        name: String,
        size: Option<u8>,
    }

    fn refused(text: &[u8]) -> (u16, String) {
        let error = parse_object::<Sample>(text).unwrap_err();
        (error.status.as_u16(), error.message)
    }

    #[test]
    fn refusals_distinguish_syntax_errors_from_invalid_values() {
        let cases: [(&[u8], u16, &str); 11] = [
            (b"[\"a\", 1]", 422, "expected an object"),
            (b" null", 422, "expected an object"),
            (b"[1,]", 400, "expected value"),
            (b"{", 400, "EOF"),
            (b"", 400, "EOF"),
            (b"{\"name\": NaN}", 400, "expected value"),
            (b"{\"name\": \"\xff\"}", 400, "invalid unicode"),
            (b"{\"name\": \"a\", \"name\": \"b\"}", 422, "duplicate field `name`"),
            (b"{\"size\": 1}", 422, "missing field `name`"),
            (b"{\"name\": \"a\", \"siez\": 1}", 422, "unknown field `siez`"),
            (b"{\"name\": \"a\", \"size\": 256}", 422, "256"),
        ];
        for (text, status, message) in cases {
            let (got, said) = refused(text);
            assert_eq!(got, status, "{}: {said}", String::from_utf8_lossy(text));
            assert!(said.contains(message), "{said}");
        }
    }

    #[test]
    fn readable_json_is_accepted_by_other_parsers() {
        let readable = |text: &str| serde_json::from_str::<PortableJson>(text).is_ok();
        assert!(readable(r#"{"a": [1, -2, 3.5e300, "\u00e9", null, true, {}]}"#));
        assert!(readable(
            &"[".repeat(100).chars().chain("]".repeat(100).chars()).collect::<String>()
        ));
        assert!(!readable(&"[".repeat(10_000)));
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert!(!readable(&deep));
        for bad in ["1e999", r#""\ud800""#, r#"{"\ud800": 1}"#, "NaN", "[1,]", "'a'", "01"] {
            assert!(!readable(bad), "{bad}");
        }
    }

    #[test]
    fn only_json_content_types_are_accepted() {
        let of = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
            check_type(&headers).is_ok()
        };
        assert!(check_type(&HeaderMap::new()).is_ok());
        assert!(of("application/json") && of("Application/JSON; charset=utf-8"));
        assert!(of("application/problem+json"));
        assert!(!of("text/plain") && !of("application/x-www-form-urlencoded") && !of("json"));
    }
}
