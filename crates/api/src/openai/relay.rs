//! Passes a request on to a worker that serves its model, and the answer back, both as they are.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use hypha_engine::NewTask;
use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_model::{
    FailureKind, Form, Metadata, Name, Payload, Priority, Requirement, TaskId, TaskResult,
    TaskSpec, TaskState, Value,
};
use serde::de::IgnoredAny;
use tokio::time::Instant;

use super::call::{Call, News, Patience};
use super::catalogue::Catalogue;
use super::error::Error;
use super::peek::{Peek, peek};
use crate::backend::Backend;
use crate::caller::Caller;
use crate::surface::Surface;
use crate::{body, json, object, reply};

/// How clients of this protocol call the id of a request. Ours is the id of its task.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Tells a proxy in front of us not to collect a stream before it passes it on.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// As good as forever, where an operator set a timeout that no clock can hold.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// What requests have in common.
pub(super) struct Desk {
    catalogue: Arc<Catalogue>,
    /// The names of what the predictor is told, made once.
    prompt_bytes: Arc<str>,
    max_tokens: Arc<str>,
}

impl Desk {
    pub(super) fn new(catalogue: Arc<Catalogue>) -> Desk {
        let (prompt_bytes, max_tokens) = (Arc::from("prompt_bytes"), Arc::from("max_tokens"));
        Desk { catalogue, prompt_bytes, max_tokens }
    }

    /// What is known of a request before it runs and bears on how long that takes.
    fn metadata(&self, peek: &Peek<'_>, body: &[u8]) -> Metadata {
        let bytes = (Arc::clone(&self.prompt_bytes), Value::Number(body.len() as f64));
        let tokens = |number| (Arc::clone(&self.max_tokens), Value::Number(number));
        let entries = peek.max_tokens.map(tokens).into_iter().chain([bytes]);
        // Two finite numbers under short names are never refused.
        Metadata::new(entries).unwrap_or_default()
    }
}

/// Why nobody has a model: there is no such thing, or an operator has removed whoever has it.
fn missing(backend: &dyn Backend, model: &str) -> Error {
    let mut removed = false;
    backend.read(&mut |scheduler, _| {
        let gone = scheduler.removed_workers();
        let mut executors =
            gone.iter().filter_map(|view| view.worker.as_ref()).flat_map(|it| &it.executors);
        removed = executors.any(|executor| executor.models.iter().any(|one| one.as_str() == model));
    });
    if removed { Error::removed(model) } else { Error::unknown_model(model) }
}

/// Answers a request of any form.
pub(super) async fn answer(
    desk: &Desk,
    surface: &Surface,
    caller: &Caller,
    form: Form,
    request: Request,
) -> Response {
    match relayed(desk, surface, caller, form, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn relayed(
    desk: &Desk,
    surface: &Surface,
    caller: &Caller,
    form: Form,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    check_type(&parts.headers)?;
    let limit = surface.settings.max_request_bytes;
    let body = body::read_body(&parts.headers, body, limit).await.map_err(|error| {
        crate::error::Error::new(error.status(), error.code(), error.to_string())
    })?;
    let peek = peek(&body)?;
    let backend = &surface.backend;
    let Some(model) = desk.catalogue.find(&**backend, &peek.model).await else {
        return Err(missing(&**backend, &peek.model));
    };
    let stream = peek.stream && form != Form::Embedding;
    let spec = TaskSpec {
        requirement: requirement(model, caller),
        input: Payload::from(&*body),
        metadata: desk.metadata(&peek, &body),
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
    };
    let wait = Duration::from_micros(surface.settings.task_timeout.as_micros());
    let if_away = Duration::from_micros(surface.settings.away_patience.as_micros());
    let now = Instant::now();
    let until = now.checked_add(wait).unwrap_or(now + FOREVER);
    let patience = Patience { until, if_away };
    let mut call = Call::place(Arc::clone(backend), task, patience).await?;
    loop {
        match call.next().await {
            News::Piece(piece) if stream => return Ok(streamed(call, piece)),
            // An executor that gives pieces unasked gives the whole at the end, too.
            News::Piece(_) => {}
            News::Ended(task, finished) => {
                return ended(&**backend, caller, &task, &finished).await;
            }
            News::NoWorker => return Err(Error::no_worker(wait.as_secs())),
            News::Away(stranded) => return Err(Error::away(&stranded)),
            News::Lost => return Err(Error::lost()),
        }
    }
}

/// Nearly all say exactly this.
fn check_type(headers: &HeaderMap) -> Result<(), Error> {
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

/// The answer to a request that has ended before anything was passed on.
async fn ended(
    backend: &dyn Backend,
    caller: &Caller,
    task: &AcceptedTask,
    finished: &FinishedTask,
) -> Result<Response, Error> {
    let mut response = match (finished.state, &finished.result) {
        (TaskState::Completed, Some(TaskResult::Inline { payload, .. })) => whole(payload),
        (TaskState::Completed, Some(TaskResult::Object(object))) => {
            object::answer(backend, caller, task, *object, "application/json").await?
        }
        (TaskState::Failed, _) => match refused_by_server(finished) {
            Some(response) => response,
            None => Error::ended(finished).into_response(),
        },
        _ => Error::ended(finished).into_response(),
    };
    response.headers_mut().extend(request_id(finished.task));
    Ok(response)
}

/// A result as it came.
fn whole(payload: &Payload) -> Response {
    let kind = kind_of(payload.bytes());
    reply::with_type(StatusCode::OK, kind, Body::from(shared(payload.clone())))
}

/// What a result is: nearly always an object in JSON, which is not looked at any further.
fn kind_of(bytes: &[u8]) -> HeaderValue {
    let is_json = bytes.starts_with(b"{") || serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
    HeaderValue::from_static(match is_json {
        true => "application/json",
        false if bytes.starts_with(b"data:") => EVENT_STREAM,
        false => "application/octet-stream",
    })
}

/// The answer of a server that found a fault with the request: it is the client's to read.
fn refused_by_server(finished: &FinishedTask) -> Option<Response> {
    let error = finished.error.as_ref()?;
    let status = StatusCode::from_u16(error.status?).ok()?;
    // That the server wants no more at present is for the client, too; that it refuses our key is not.
    let is_for_client = match error.kind {
        FailureKind::InvalidInput => status.is_client_error(),
        _ => matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS),
    };
    if !is_for_client {
        return None;
    }
    // It may be cut off, if it was long.
    let kind = match serde_json::from_str::<IgnoredAny>(&error.message) {
        Ok(_) => "application/json",
        Err(_) => "text/plain; charset=utf-8",
    };
    let body = Body::from(error.message.clone());
    Some(reply::with_type(status, HeaderValue::from_static(kind), body))
}

/// The pieces as they come.
fn streamed(call: Call, first: Payload) -> Response {
    // A server that does not stream answers with an object all the same.
    let kind = if first.bytes().starts_with(b"{") { "application/json" } else { EVENT_STREAM };
    let id = request_id(call.task());
    let body = Body::from_stream(stream::unfold(Flow::First(first, call), Flow::next));
    let mut response = reply::with_type(StatusCode::OK, HeaderValue::from_static(kind), body);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    headers.extend(id);
    response
}

/// Where a stream is.
enum Flow {
    /// The first piece came with the answer's head.
    First(Payload, Call),
    /// `true` if what was passed on ends with a whole event.
    Under(Call, bool),
    Over,
}

impl Flow {
    async fn next(self) -> Option<(Result<Bytes, Infallible>, Flow)> {
        let (mut call, whole_event) = match self {
            Flow::First(piece, call) => return Some(Flow::pass(piece, call)),
            Flow::Under(call, whole_event) => (call, whole_event),
            Flow::Over => return None,
        };
        let error = match call.next().await {
            News::Piece(piece) => return Some(Flow::pass(piece, call)),
            News::Ended(_, finished) if finished.state == TaskState::Completed => return None,
            News::Ended(_, finished) => Error::ended(&finished),
            News::NoWorker | News::Away(_) | News::Lost => Error::lost(),
        };
        // An event that was cut off must not swallow this one.
        let mut event = if whole_event { Vec::new() } else { b"\n\n".to_vec() };
        event.extend(error.event());
        Some((Ok(event.into()), Flow::Over))
    }

    fn pass(piece: Payload, call: Call) -> (Result<Bytes, Infallible>, Flow) {
        let whole_event = piece.bytes().ends_with(b"\n\n");
        (Ok(shared(piece)), Flow::Under(call, whole_event))
    }
}

/// The id of a request's task, as a header.
fn request_id(task: TaskId) -> Option<(HeaderName, HeaderValue)> {
    Some((REQUEST_ID, HeaderValue::try_from(task.to_string()).ok()?))
}

/// The bytes of a payload, without a copy.
fn shared(payload: Payload) -> Bytes {
    struct Held(Payload);
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            self.0.bytes()
        }
    }
    Bytes::from_owner(Held(payload))
}

const EVENT_STREAM: &str = "text/event-stream";
