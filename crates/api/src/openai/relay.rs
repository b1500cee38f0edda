//! Forwards a request to a worker that serves its model, and the response to the client, both unchanged.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use hypha_engine::NewTask;
use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_model::{
    FailureKind, InputKind, Metadata, MetadataValue, Name, Payload, Priority, Requirement, TaskId,
    TaskResult, TaskSpec, TaskState,
};
use serde::de::IgnoredAny;
use tokio::time::Instant;

use super::call::{Call, CallEvent, WaitTimeouts};
use super::catalogue::Catalogue;
use super::error::OpenAiError;
use super::peek::{Peek, peek};
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::service::SchedulerApi;
use crate::{json, object, response};

/// The protocol's header for the id of a request. Ours is the id of its task.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Requests that a proxy in front of the scheduler does not buffer a stream.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Used for a configured timeout that is too long for a clock.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The state that requests share.
pub(super) struct RelayState {
    catalogue: Arc<Catalogue>,
    /// The names of the predictor's metadata, allocated once.
    prompt_bytes: Arc<str>,
    max_tokens: Arc<str>,
}

impl RelayState {
    pub(super) fn new(catalogue: Arc<Catalogue>) -> RelayState {
        let (prompt_bytes, max_tokens) = (Arc::from("prompt_bytes"), Arc::from("max_tokens"));
        RelayState { catalogue, prompt_bytes, max_tokens }
    }

    /// The properties of a request that help to predict its run time.
    fn metadata(&self, peek: &Peek<'_>, body: &[u8]) -> Metadata {
        let bytes = (Arc::clone(&self.prompt_bytes), MetadataValue::Number(body.len() as f64));
        let tokens = |number| (Arc::clone(&self.max_tokens), MetadataValue::Number(number));
        let entries = peek.max_tokens.map(tokens).into_iter().chain([bytes]);
        // Two finite numbers with short names are always valid.
        Metadata::new(entries).unwrap_or_default()
    }
}

/// Why no worker serves a model: it is unknown, or an operator has removed the workers that serve it.
fn missing_model_error(service: &dyn SchedulerApi, model: &str) -> OpenAiError {
    let mut removed = false;
    service.read(&mut |scheduler, _| {
        let gone = scheduler.removed_workers();
        let mut executors =
            gone.iter().filter_map(|view| view.worker.as_ref()).flat_map(|it| &it.executors);
        removed = executors.any(|executor| executor.models.iter().any(|one| one.as_str() == model));
    });
    if removed { OpenAiError::removed(model) } else { OpenAiError::unknown_model(model) }
}

/// Responds to a request of any form.
pub(super) async fn respond(
    relay_state: &RelayState,
    app: &AppState,
    caller: &Caller,
    form: InputKind,
    request: Request,
) -> Response {
    match try_respond(relay_state, app, caller, form, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn try_respond(
    relay_state: &RelayState,
    app: &AppState,
    caller: &Caller,
    form: InputKind,
    request: Request,
) -> Result<Response, OpenAiError> {
    let (parts, body) = request.into_parts();
    check_type(&parts.headers)?;
    let body = app.bodies.read(&parts.headers, body).await.map_err(crate::error::Error::from)?;
    let peek = peek(&body)?;
    let service = &app.service;
    let Some(model) = relay_state.catalogue.find(&**service, &peek.model).await else {
        return Err(missing_model_error(&**service, &peek.model));
    };
    let stream = peek.stream && form != InputKind::Embedding;
    let spec = TaskSpec {
        requirement: requirement(model, caller),
        input: Payload::from(&*body),
        metadata: relay_state.metadata(&peek, &body),
        tenant: caller.tenant.clone(),
        timeout: None,
        form,
        stream,
    };
    let task = NewTask {
        spec: Arc::new(spec),
        idempotency_key: None,
        bind_at_once: false,
        stored: false,
        quota: caller.quota,
        weight: caller.weight,
    };
    let wait = Duration::from_micros(app.settings.task_timeout.as_micros());
    let if_unschedulable = Duration::from_micros(app.settings.unschedulable_timeout.as_micros());
    let now = Instant::now();
    let until = now.checked_add(wait).unwrap_or(now + FOREVER);
    let timeouts = WaitTimeouts { until, if_unschedulable };
    let mut call = Call::submit(Arc::clone(service), task, timeouts).await?;
    loop {
        match call.next().await {
            CallEvent::Piece(piece) if stream => return Ok(streamed(call, piece)),
            // An executor that streams although it was not requested returns the whole result at the end, too.
            CallEvent::Piece(_) => {}
            CallEvent::Ended(task, finished) => {
                return ended(&**service, caller, &task, &finished).await;
            }
            CallEvent::NoWorker => return Err(OpenAiError::no_worker(wait.as_secs())),
            CallEvent::Unschedulable(unschedulable) => {
                return Err(OpenAiError::unschedulable(&unschedulable));
            }
            CallEvent::Lost => return Err(OpenAiError::lost()),
        }
    }
}

/// Nearly all requests have exactly this type, or none.
fn check_type(headers: &HeaderMap) -> Result<(), OpenAiError> {
    if headers.get(CONTENT_TYPE).is_none_or(|kind| kind == "application/json") {
        return Ok(());
    }
    Ok(json::check_type(headers)?)
}

fn requirement(model: Name, caller: &Caller) -> Requirement {
    let usual = Priority::default();
    let priority = caller.priority_ceiling.map_or(usual, |ceiling| ceiling.min(usual));
    Requirement { model: Some(model), priority, ..Requirement::default() }
}

/// The response to a request that ended before any piece was forwarded.
async fn ended(
    service: &dyn SchedulerApi,
    caller: &Caller,
    task: &AcceptedTask,
    finished: &FinishedTask,
) -> Result<Response, OpenAiError> {
    let mut response = match (finished.state, &finished.result) {
        (TaskState::Completed, Some(TaskResult::Inline { payload, .. })) => {
            inline_response(payload)
        }
        (TaskState::Completed, Some(TaskResult::Object(object))) => {
            object::respond(service, caller, task, *object, "application/json").await?
        }
        (TaskState::Failed, _) => match forwarded_back_end_error(finished) {
            Some(response) => response,
            None => OpenAiError::ended(finished).into_response(),
        },
        _ => OpenAiError::ended(finished).into_response(),
    };
    response.headers_mut().extend(request_id(finished.task));
    Ok(response)
}

/// A result, unchanged.
fn inline_response(payload: &Payload) -> Response {
    let kind = content_type_of(payload.bytes());
    response::with_type(StatusCode::OK, kind, Body::from(payload_bytes(payload.clone())))
}

/// The content type of a result: nearly always a JSON object, which is not parsed any further.
fn content_type_of(bytes: &[u8]) -> HeaderValue {
    let is_json = bytes.starts_with(b"{") || serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
    HeaderValue::from_static(match is_json {
        true => "application/json",
        false if bytes.starts_with(b"data:") => EVENT_STREAM,
        false => "application/octet-stream",
    })
}

/// The response of a back end that refused the request, if it is meant for the client.
fn forwarded_back_end_error(finished: &FinishedTask) -> Option<Response> {
    let error = finished.error.as_ref()?;
    let status = StatusCode::from_u16(error.status?).ok()?;
    // The client also gets the back end's rate limits, but not that it refuses the scheduler's key.
    let is_for_client = match error.kind {
        FailureKind::InvalidInput => {
            status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED
        }
        _ => matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS),
    };
    if !is_for_client {
        return None;
    }
    // A long body may be truncated.
    let kind = match serde_json::from_str::<IgnoredAny>(&error.message) {
        Ok(_) => "application/json",
        Err(_) => "text/plain; charset=utf-8",
    };
    let body = Body::from(error.message.clone());
    let mut response = response::with_type(status, HeaderValue::from_static(kind), body);
    if let Some(seconds) = error.retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    Some(response)
}

/// Streams the pieces as they arrive.
fn streamed(call: Call, first: Payload) -> Response {
    // A back end that does not stream responds with an object all the same.
    let kind = if first.bytes().starts_with(b"{") { "application/json" } else { EVENT_STREAM };
    let id = request_id(call.task());
    let body =
        Body::from_stream(stream::unfold(StreamState::First(first, call), StreamState::next));
    let mut response = response::with_type(StatusCode::OK, HeaderValue::from_static(kind), body);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    headers.extend(id);
    response
}

/// The state of a stream.
enum StreamState {
    /// The first piece, which goes out with the head of the response.
    First(Payload, Call),
    /// `true` if the forwarded pieces end with a whole event.
    Open(Call, bool),
    Closed,
}

impl StreamState {
    async fn next(self) -> Option<(Result<Bytes, Infallible>, StreamState)> {
        let (mut call, whole_event) = match self {
            StreamState::First(piece, call) => return Some(StreamState::forward(piece, call)),
            StreamState::Open(call, whole_event) => (call, whole_event),
            StreamState::Closed => return None,
        };
        let error = match call.next().await {
            CallEvent::Piece(piece) => return Some(StreamState::forward(piece, call)),
            CallEvent::Ended(_, finished) if finished.state == TaskState::Completed => return None,
            CallEvent::Ended(_, finished) => OpenAiError::ended(&finished),
            CallEvent::NoWorker | CallEvent::Unschedulable(_) | CallEvent::Lost => {
                OpenAiError::lost()
            }
        };
        // This event must not become part of one that was cut off.
        let mut event = if whole_event { Vec::new() } else { b"\n\n".to_vec() };
        event.extend(error.event());
        Some((Ok(event.into()), StreamState::Closed))
    }

    fn forward(piece: Payload, call: Call) -> (Result<Bytes, Infallible>, StreamState) {
        let whole_event = piece.bytes().ends_with(b"\n\n");
        (Ok(payload_bytes(piece)), StreamState::Open(call, whole_event))
    }
}

/// The id of a request's task, as a header.
fn request_id(task: TaskId) -> Option<(HeaderName, HeaderValue)> {
    Some((REQUEST_ID, HeaderValue::try_from(task.to_string()).ok()?))
}

/// The bytes of a payload, without a copy.
fn payload_bytes(payload: Payload) -> Bytes {
    struct PayloadOwner(Payload);
    impl AsRef<[u8]> for PayloadOwner {
        fn as_ref(&self) -> &[u8] {
            self.0.bytes()
        }
    }
    Bytes::from_owner(PayloadOwner(payload))
}

const EVENT_STREAM: &str = "text/event-stream";
