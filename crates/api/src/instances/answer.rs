//! What all answers of this surface begin with: `{"status": …, "message": …}`.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Error;
use crate::reply;

/// Whether it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = InstancesStatus)]
pub(crate) enum Status {
    /// It was.
    Success,
    /// It was not; `message` says why.
    Error,
}

/// Whether it was done, and if not, why.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesAnswer)]
pub(crate) struct Plain<'a> {
    status: Status,
    /// `OK`, or what was wrong and what to do about it.
    message: &'a str,
}

/// `{"status": "success", "message": "OK"}`, or the error.
pub(super) fn plain(done: Result<(), Error>) -> Response {
    match done {
        Ok(()) => reply::json(StatusCode::OK, &Plain { status: Status::Success, message: "OK" }),
        Err(error) => plain_refusal(&error),
    }
}

/// An error where there is nothing more to say than what it is.
pub(crate) fn plain_refusal(error: &Error) -> Response {
    refusal(error, &Plain { status: Status::Error, message: &error.message })
}

/// An error with the body that this route has.
pub(super) fn refusal<T: Serialize>(error: &Error, body: &T) -> Response {
    let mut response = reply::json(error.status, body);
    error.decorate(&mut response);
    response
}

/// What a client gave, as it is repeated in an answer: enough to recognise it.
pub(super) fn repeated(given: &str) -> String {
    given.chars().take(MAX_REPEATED).collect()
}

/// Longer than any id; an answer need not grow with the question.
const MAX_REPEATED: usize = 256;
