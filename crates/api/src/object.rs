//! Results that were too large to be kept with their task: what stands for them there, and their bytes.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, HeaderValue};
use axum::response::Response;
use data_encoding::HEXLOWER;
use hypha_model::Digest;
use serde::Deserialize;

use crate::backend::Object;
use crate::reply;

/// Longer than any reference: what is longer is a result itself, and not read.
const MAX_REFERENCE_BYTES: usize = 128;

/// What stands for a result that is kept elsewhere.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference<'a> {
    object: &'a str,
    #[serde(rename = "bytes")]
    _bytes: u64,
}

/// The object that a result stands for, if it stands for one.
pub(crate) fn named_in(result: &[u8]) -> Option<Digest> {
    if result.len() > MAX_REFERENCE_BYTES {
        return None;
    }
    let reference: Reference<'_> = serde_json::from_slice(result).ok()?;
    let digest = HEXLOWER.decode(reference.object.as_bytes()).ok()?;
    Some(Digest::from_bytes(digest.try_into().ok()?))
}

/// An answer with the bytes of an object.
pub(crate) fn streamed(object: Object, kind: HeaderValue) -> Response {
    let mut response = reply::with_type(StatusCode::OK, kind, Body::from_stream(object.pieces));
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(object.bytes));
    response
}

#[cfg(test)]
mod tests {
    use hypha_model::Payload;

    use super::*;

    #[test]
    fn only_a_reference_is_taken_for_one() {
        let digest = Payload::from(&b"x"[..]).digest();
        let of = |text: String| named_in(text.as_bytes());
        let (most, spaces) = (u64::MAX, " ".repeat(MAX_REFERENCE_BYTES));
        assert_eq!(of(format!("{{\"object\":\"{digest}\",\"bytes\":{most}}}")), Some(digest));
        assert_eq!(of(format!("{{\"object\":\"{digest}\"}}")), None);
        assert_eq!(of(format!("{{\"object\":\"{digest}\",\"bytes\":7,\"x\":1}}")), None);
        assert_eq!(of("{\"object\":\"abc\",\"bytes\":7}".to_owned()), None);
        assert_eq!(of(format!("{{\"object\":\"{digest}\",\"bytes\":7}}{spaces}")), None);
    }
}
