//! The common fields of all responses of this API: `{"status": …, "message": …}`.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Error;
use crate::response;

/// Whether the request succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = InstancesStatus)]
pub(crate) enum Status {
    /// It succeeded.
    Success,
    /// It failed; `message` states why.
    Error,
}

/// Whether the request succeeded, and if not, why.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesResponse)]
pub(crate) struct Envelope<'a> {
    status: Status,
    /// `OK`, or what was wrong and what to do about it.
    message: &'a str,
}

/// `{"status": "success", "message": "OK"}`, or the error.
pub(super) fn respond(done: Result<(), Error>) -> Response {
    match done {
        Ok(()) => {
            response::json(StatusCode::OK, &Envelope { status: Status::Success, message: "OK" })
        }
        Err(error) => error_envelope(&error),
    }
}

/// An error without further fields.
pub(crate) fn error_envelope(error: &Error) -> Response {
    error_response(error, &Envelope { status: Status::Error, message: &error.message })
}

/// An error with the body of this route.
pub(super) fn error_response<T: Serialize>(error: &Error, body: &T) -> Response {
    let mut response = response::json(error.status, body);
    error.add_headers(&mut response);
    response
}

/// The client's input as it is repeated in a response: enough to recognise it.
pub(super) fn truncated_echo(given: &str) -> String {
    given.chars().take(MAX_ECHOED_CHARS).collect()
}

/// Longer than any id; a response need not grow with the request.
const MAX_ECHOED_CHARS: usize = 256;
