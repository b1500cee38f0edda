//! Responses in JSON.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;

/// A response with `body` as JSON.
pub(crate) fn json<T: Serialize + ?Sized>(status: StatusCode, body: &T) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => raw_json(status, bytes.into()),
        // Our own types can always be serialized; a map with odd keys would be a bug.
        Err(_) => raw_json(
            StatusCode::INTERNAL_SERVER_ERROR,
            Bytes::from_static(b"{\"error\":{\"code\":\"internal\",\"message\":\"the answer could not be written\"}}"),
        ),
    }
}

/// A response with JSON that is already serialized.
pub(crate) fn raw_json(status: StatusCode, body: Bytes) -> Response {
    with_type(status, HeaderValue::from_static("application/json"), Body::from(body))
}

/// A response of any content type.
pub(crate) fn with_type(status: StatusCode, kind: HeaderValue, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    response
}
