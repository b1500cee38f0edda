//! Errors in the format of the OpenAI protocol.

use std::borrow::Cow;

use axum::http::header::{ALLOW, RETRY_AFTER};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use hypha_engine::SubmitRejection;
use hypha_engine::record::{FinishedTask, NO_WORKER_LEFT};
use hypha_engine::scheduler::Unschedulable;
use hypha_model::{FailureKind, TaskError};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::UNAVAILABLE_RETRY_S;
use crate::service::ServiceUnavailable;
use crate::{response, unavailability};

/// How much of a client's own text an error repeats.
const MAX_SHOWN_CHARS: usize = 64;

/// How much of a back end's error message is included in ours.
const MAX_BACK_END_MESSAGE_CHARS: usize = 500;

/// A failed request.
#[derive(Debug)]
pub(super) struct OpenAiError {
    status: StatusCode,
    retry_after_s: Option<u32>,
    detail: OpenAiErrorDetail,
}

/// An error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAiError)]
pub(super) struct OpenAiErrorBody {
    /// What went wrong.
    error: OpenAiErrorDetail,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OpenAiErrorDetail)]
pub(super) struct OpenAiErrorDetail {
    /// For people.
    #[schema(value_type = String)]
    message: Cow<'static, str>,
    /// For programs: whose fault it is.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    kind: &'static str,
    /// The field of the request that is at fault.
    param: Option<&'static str>,
    /// For programs: what it is.
    code: Option<&'static str>,
}

impl OpenAiError {
    fn new(
        status: StatusCode,
        kind: &'static str,
        code: Option<&'static str>,
        message: impl Into<Cow<'static, str>>,
    ) -> OpenAiError {
        let detail = OpenAiErrorDetail { message: message.into(), kind, param: None, code };
        OpenAiError { status, retry_after_s: None, detail }
    }

    fn retry_after(mut self, seconds: u32) -> OpenAiError {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The request is invalid.
    pub(super) fn invalid(
        param: Option<&'static str>,
        message: impl Into<Cow<'static, str>>,
    ) -> OpenAiError {
        let mut error = OpenAiError::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, None, message);
        error.detail.param = param;
        error
    }

    /// No worker serves the model.
    pub(super) fn unknown_model(model: &str) -> OpenAiError {
        let shown: String = model.chars().take(MAX_SHOWN_CHARS).collect();
        let message =
            format!("the model `{shown}` does not exist here; GET /v1/models lists those that do");
        let code = Some("model_not_found");
        let mut error = OpenAiError::new(StatusCode::NOT_FOUND, INVALID_REQUEST, code, message);
        error.detail.param = Some("model");
        error
    }

    /// All workers that serve the model were removed. They may be readmitted.
    pub(super) fn removed(model: &str) -> OpenAiError {
        let shown: String = model.chars().take(MAX_SHOWN_CHARS).collect();
        let message =
            format!("all workers that serve the model `{shown}` were removed; try again later");
        let code = Some("no_worker");
        OpenAiError::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, code, message)
            .retry_after(UNAVAILABLE_RETRY_S)
    }

    /// The route does not support the method.
    pub(super) fn wrong_method(method: &Method) -> OpenAiError {
        let message = format!("{method} is not allowed on this route; see the header `{ALLOW}`");
        let code = Some("method_not_allowed");
        OpenAiError::new(StatusCode::METHOD_NOT_ALLOWED, INVALID_REQUEST, code, message)
    }

    /// All workers that serve the model are unavailable. Clients do not see which workers, or the details.
    pub(super) fn unschedulable(unschedulable: &Unschedulable) -> OpenAiError {
        let why = unschedulable.why.as_ref().map_or("gone", unavailability::kind_label);
        let message = format!(
            "{NO_WORKER_LEFT}: all workers that serve this model are unavailable ({why}); try again later"
        );
        let code = Some("no_worker");
        OpenAiError::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, code, message)
            .retry_after(UNAVAILABLE_RETRY_S)
    }

    /// Every worker that serves the model was busy for as long as a request waits.
    pub(super) fn no_worker(waited_s: u64) -> OpenAiError {
        let message = format!("no worker was free for this model within {waited_s} s; try again");
        let code = Some("no_worker");
        OpenAiError::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, code, message)
            .retry_after(UNAVAILABLE_RETRY_S)
    }

    /// The outcome is unknown: the scheduler is stopping, or the client read its stream too slowly.
    pub(super) fn lost() -> OpenAiError {
        let message = "the request was abandoned: the scheduler is stopping, or the response was \
                       read too slowly";
        let code = Some("unavailable");
        OpenAiError::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, code, message)
            .retry_after(UNAVAILABLE_RETRY_S)
    }

    /// A task that ended without a result: the status depends on the kind of its failure, the message is the task's.
    pub(super) fn ended(finished: &FinishedTask) -> OpenAiError {
        let nothing_known = TaskError::new(FailureKind::Unknown, "no attempt succeeded");
        let error = finished.error.as_ref().unwrap_or(&nothing_known);
        let text = match error.status {
            Some(status) => back_end_error_message(status, &error.message, finished.attempts),
            None => error.message.clone(),
        };
        let failed = |status, code| OpenAiError::new(status, SERVER, Some(code), text.clone());
        match error.kind {
            FailureKind::InvalidInput => OpenAiError::invalid(None, text),
            FailureKind::ProgramFailed => {
                failed(StatusCode::INTERNAL_SERVER_ERROR, "program_failed")
            }
            FailureKind::LimitExceeded => {
                failed(StatusCode::INTERNAL_SERVER_ERROR, "limit_exceeded")
            }
            FailureKind::Cancelled => {
                let message = "the request was cancelled at the scheduler";
                OpenAiError::new(StatusCode::GONE, SERVER, Some("cancelled"), message)
            }
            FailureKind::TimedOut | FailureKind::Expired => {
                failed(StatusCode::GATEWAY_TIMEOUT, "timeout")
            }
            FailureKind::BackendBusy => failed(StatusCode::SERVICE_UNAVAILABLE, "no_worker")
                .retry_after(error.retry_after_s.unwrap_or(UNAVAILABLE_RETRY_S)),
            FailureKind::BackendUnreachable
            | FailureKind::Refused
            | FailureKind::Returned
            | FailureKind::Interrupted => failed(StatusCode::SERVICE_UNAVAILABLE, "no_worker")
                .retry_after(UNAVAILABLE_RETRY_S),
            FailureKind::WorkerFailed
            | FailureKind::WorkerLost
            | FailureKind::CorruptResult
            | FailureKind::BackendFailed
            | FailureKind::BackendError
            | FailureKind::UnknownPermanent
            | FailureKind::Unknown => failed(StatusCode::BAD_GATEWAY, "worker_failed"),
        }
    }

    /// As the last event of a stream that breaks off.
    pub(super) fn event(self) -> Vec<u8> {
        let mut event = b"data: ".to_vec();
        // Serializing strings into memory does not fail.
        drop(serde_json::to_writer(&mut event, &OpenAiErrorBody { error: self.detail }));
        event.extend(b"\n\n");
        event
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let mut response = response::json(self.status, &OpenAiErrorBody { error: self.detail });
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Errors that are common to all routes keep their message, in this format.
impl From<crate::error::Error> for OpenAiError {
    fn from(error: crate::error::Error) -> OpenAiError {
        let kind = match error.status {
            StatusCode::TOO_MANY_REQUESTS => RATE_LIMIT,
            status if status.is_client_error() => INVALID_REQUEST,
            _ => SERVER,
        };
        let converted = OpenAiError::new(error.status, kind, Some(error.code), error.message);
        OpenAiError { retry_after_s: error.retry_after_s, ..converted }
    }
}

impl From<ServiceUnavailable> for OpenAiError {
    fn from(unavailable: ServiceUnavailable) -> OpenAiError {
        crate::error::Error::from(unavailable).into()
    }
}

impl From<SubmitRejection> for OpenAiError {
    fn from(reject: SubmitRejection) -> OpenAiError {
        crate::error::Error::from(reject).into()
    }
}

/// Includes the back end's own error message, if its body has the format of this protocol. Any other body (an HTML
/// page, a stack trace) is not for the client.
fn back_end_error_message(status: u16, body: &str, attempts: u32) -> String {
    #[derive(serde::Deserialize)]
    struct BackEndErrorBody {
        error: Detail,
    }
    #[derive(serde::Deserialize)]
    struct Detail {
        message: String,
    }
    let mut text = format!("the back end answered {status}, attempt {attempts} was the last");
    if let Ok(body) = serde_json::from_str::<BackEndErrorBody>(body) {
        text.push_str(": ");
        text.extend(body.error.message.chars().take(MAX_BACK_END_MESSAGE_CHARS));
    }
    text
}

const INVALID_REQUEST: &str = "invalid_request_error";
const RATE_LIMIT: &str = "rate_limit_error";
const SERVER: &str = "server_error";
