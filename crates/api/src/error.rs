//! The one shape of an error on the surfaces of the scheduler: `{"error": {"code": …, "message": …}}`.

use axum::http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use hypha_engine::SubmitRejection;
use hypha_model::GpuIds;
use serde::Serialize;
use utoipa::ToSchema;

use crate::response;
use crate::service::ServiceUnavailable;

/// How long a client should wait before it retries at a scheduler that cannot acknowledge anything, in
/// seconds.
pub(crate) const UNAVAILABLE_RETRY_S: u32 = 2;

/// When a tenant whose quota is used up should retry, in seconds: which of its tasks ends next is not known.
const QUOTA_RETRY_S: u32 = 1;

/// Longer than any message of ours; a longer one repeats the client's input.
const MAX_MESSAGE_BYTES: usize = 1_000;
/// How much of the end of a cut message is kept.
const MESSAGE_END_BYTES: usize = 100;

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) retry_after_s: Option<u32>,
}

/// An error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorBody<'a> {
    error: ErrorDetail<'a>,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorDetail<'a> {
    /// A code for programs.
    #[schema(example = "not_found")]
    code: &'a str,
    /// A sentence for people.
    message: &'a str,
}

impl Error {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Error {
        Error { status, code, message: shortened(message.into()), retry_after_s: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Error {
        Error::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(crate) fn unauthorized() -> Error {
        let message = "give a valid token of this scheduler: `Authorization: Bearer …`";
        Error::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Error {
        Error::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Error {
        Error::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Error {
        Error::new(StatusCode::CONFLICT, "conflict", message)
    }

    pub(crate) fn unprocessable(message: impl Into<String>) -> Error {
        Error::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    }

    pub(crate) fn too_many(message: impl Into<String>, retry_after_s: u32) -> Error {
        let error = Error::new(StatusCode::TOO_MANY_REQUESTS, "too_many_tasks", message);
        Error { retry_after_s: Some(retry_after_s), ..error }
    }

    pub(crate) fn wrong_method(method: &Method) -> Error {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let message = format!("{method} is not allowed on this route; see the header `Allow`");
        Error::new(status, "method_not_allowed", message)
    }

    /// The scheduler's reply does not match the command: a bug.
    pub(crate) fn internal() -> Error {
        let message = "internal error: the scheduler gave an unexpected response; try again";
        Error::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// The part that goes into a body.
    pub(crate) fn detail(&self) -> ErrorDetail<'_> {
        ErrorDetail { code: self.code, message: &self.message }
    }

    /// Adds its headers.
    pub(crate) fn add_headers(&self, response: &mut Response) {
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let realm = HeaderValue::from_static("Bearer realm=\"hypha\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, realm);
        }
    }
}

/// A message that a client can inflate with its input is cut in the middle: its end says where the fault is.
fn shortened(message: String) -> String {
    if message.len() <= MAX_MESSAGE_BYTES {
        return message;
    }
    let head = message.floor_char_boundary(MAX_MESSAGE_BYTES - MESSAGE_END_BYTES);
    let tail = message.ceil_char_boundary(message.len() - MESSAGE_END_BYTES);
    format!("{} … {}", &message[..head], &message[tail..])
}

impl From<ServiceUnavailable> for Error {
    fn from(unavailable: ServiceUnavailable) -> Error {
        let error = Error::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            format!("the scheduler cannot acknowledge anything at present: {unavailable}"),
        );
        Error { retry_after_s: Some(UNAVAILABLE_RETRY_S), ..error }
    }
}

impl From<SubmitRejection> for Error {
    fn from(reject: SubmitRejection) -> Error {
        match reject {
            SubmitRejection::QueueFull { retry_after_s } => {
                Error::too_many("the queue is full; try again later", retry_after_s)
            }
            SubmitRejection::OverQuota { open, quota } => {
                let message = format!(
                    "the tenant has {open} open tasks and may have {quota}; wait for some to end"
                );
                Error::too_many(message, QUOTA_RETRY_S)
            }
            SubmitRejection::NoWorker => {
                let message = "no worker can run this; see /api/v1/workers";
                let error = Error::new(StatusCode::SERVICE_UNAVAILABLE, "no_worker", message);
                Error { retry_after_s: Some(UNAVAILABLE_RETRY_S), ..error }
            }
            SubmitRejection::GpusUnknown(ids) => Error::unprocessable(format!(
                "gpu_ids: no available worker that could run this has {}; see /api/v1/workers",
                gpus(ids)
            )),
            SubmitRejection::GpusTaken(ids) => {
                let message = format!(
                    "gpu_ids: no worker that could run this has {} free; wait for a task to end, or leave \
                     gpu_ids out",
                    gpus(ids)
                );
                Error { retry_after_s: Some(UNAVAILABLE_RETRY_S), ..Error::conflict(message) }
            }
            SubmitRejection::DeadlineUnreachable { least, left } => {
                let message = format!(
                    "deadline: no worker can meet it: the fastest that could run this is expected to take at least \
                     {least}, and the result is wanted within {left}; give a longer deadline, or leave \
                     deadline_policy out"
                );
                Error::new(StatusCode::UNPROCESSABLE_ENTITY, "deadline_unreachable", message)
            }
        }
    }
}

/// `GPU 3`, or `GPUs 0 and 3`.
fn gpus(ids: GpuIds) -> String {
    let ids: Vec<String> = ids.iter().map(|id| id.to_string()).collect();
    match ids.split_last() {
        Some((last, [])) => format!("GPU {last}"),
        Some((last, others)) => format!("GPUs {} and {last}", others.join(", ")),
        None => "GPUs".to_owned(),
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = response::json(self.status, &ErrorBody { error: self.detail() });
        self.add_headers(&mut response);
        response
    }
}

/// For routes that do not exist.
pub(crate) async fn no_such_route() -> Error {
    Error::not_found("no such route; /openapi.json lists all routes")
}

/// For methods that a route does not have. The router adds `Allow`.
pub(crate) async fn no_such_method(method: Method) -> Error {
    Error::wrong_method(&method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_in_the_middle() {
        let said = |text: &str| Error::bad_request(text).message;
        assert_eq!(said("é"), "é");
        let cut = said(&format!("unknown field `{}`, at line 7", "é".repeat(10_000)));
        assert!(cut.len() < MAX_MESSAGE_BYTES + 10, "{cut}");
        assert!(cut.starts_with("unknown field `é") && cut.ends_with("`, at line 7"), "{cut}");
    }
}
