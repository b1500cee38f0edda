//! The routes of the bridge.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use hypha_model::Payload;
use serde::Deserialize;
use serde_json::json;

use super::current::{CurrentAttempt, ProgramAnswer, TooLarge};
use super::{BridgeMode, Shared, openapi};
use crate::running::MAX_PERMILLE;

/// Names the attempt: in the response of `/v1/next`, and in requests that must not be applied to another
/// attempt.
const ATTEMPT: HeaderName = HeaderName::from_static("hypha-attempt");
/// The model of the attempt that `/v1/next` returns.
const MODEL: HeaderName = HeaderName::from_static("hypha-model");
/// Whether the output of that attempt is streamed.
const STREAM: HeaderName = HeaderName::from_static("hypha-stream");
/// How long `/v1/next` waits. Less than the minute after which many clients give up by themselves.
const NEXT_TIMEOUT: Duration = Duration::from_secs(25);
/// A message for a person, not a log.
const MAX_FAILURE_BYTES: usize = 16 * 1024;
/// One piece of output travels to the scheduler as a whole. Half of what a message to it holds (16 MiB), so
/// that the pieces queued before it fit beside it.
const MAX_PIECE_BYTES: usize = 8 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    permille: u16,
}

type ErrorResponse = (StatusCode, Json<serde_json::Value>);
type StatusResult = Result<StatusCode, ErrorResponse>;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/input", get(input))
        .route("/v1/status", get(status))
        .route("/v1/progress", post(progress))
        .route("/v1/output", post(output))
        .route("/v1/result", put(result))
        .route("/v1/failure", post(failure))
        .route("/v1/refusal", post(refusal))
        .route("/v1/next", get(next))
        .route("/openapi.json", get(|| async { Json(openapi::document()) }))
        .fallback(|| async {
            error_response(StatusCode::NOT_FOUND, "no such route: see /openapi.json")
        })
        .method_not_allowed_fallback(|| async {
            error_response(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: see /openapi.json")
        })
        .layer(DefaultBodyLimit::max(shared.result_bytes))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), authorised))
        .with_state(shared)
}

async fn authorised(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given.and_then(|value| value.strip_prefix("Bearer "));
    // Comparing two of these digests takes the same time whatever they contain.
    match token {
        Some(token) if blake3::hash(token.as_bytes()) == shared.token => next.run(request).await,
        _ => error_response(
            StatusCode::UNAUTHORIZED,
            "send `Authorization: Bearer` with the secret in HYPHA_BRIDGE_TOKEN",
        )
        .into_response(),
    }
}

async fn input(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
) -> Result<Vec<u8>, ErrorResponse> {
    with_current(&shared, &headers, |current| Ok(current.input.bytes().to_vec()))
}

async fn status(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
) -> Result<Json<serde_json::Value>, ErrorResponse> {
    with_current(&shared, &headers, |current| {
        Ok(Json(json!({
            "attempt": current.attempt,
            "model": current.model,
            "stream": current.stream,
            "input_bytes": current.input.bytes().len(),
            "progress": current.permille(),
            "result": current.is_answered(),
        })))
    })
}

async fn progress(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Body(body): Body,
) -> StatusResult {
    match serde_json::from_slice(&body) {
        Ok(Progress { permille: permille @ 0..=MAX_PERMILLE }) => {
            with_current(&shared, &headers, |current| {
                current.progress(permille);
                Ok(StatusCode::NO_CONTENT)
            })
        }
        Ok(_) => {
            Err(error_response(StatusCode::UNPROCESSABLE_ENTITY, "`permille` is at most 1000"))
        }
        Err(error) => Err(error_response(StatusCode::BAD_REQUEST, &error.to_string())),
    }
}

async fn output(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Body(piece): Body,
) -> StatusResult {
    if piece.len() > MAX_PIECE_BYTES {
        let why = format!(
            "a piece is at most {MAX_PIECE_BYTES} bytes: post several, or send all of it to PUT /v1/result"
        );
        return Err(error_response(StatusCode::PAYLOAD_TOO_LARGE, &why));
    }
    let listener = with_unanswered(&shared, &headers, |current| {
        current.append(&piece, shared.result_bytes).map_err(|TooLarge| {
            error_response(
                StatusCode::PAYLOAD_TOO_LARGE,
                "all pieces together are larger than a result",
            )
        })
    })?;
    if let Some(listener) = listener {
        // The program waits here for a slow reader. A reader that is gone needs nothing.
        let _ = listener.send(piece).await;
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn result(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Body(body): Body,
) -> StatusResult {
    answer(&shared, &headers, ProgramAnswer::Result(Payload::from(&body[..])))
}

async fn failure(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Body(body): Body,
) -> StatusResult {
    answer(&shared, &headers, ProgramAnswer::Failure(reason(&body)?))
}

async fn refusal(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Body(body): Body,
) -> StatusResult {
    answer(&shared, &headers, ProgramAnswer::Refusal(reason(&body)?))
}

fn reason(body: &Bytes) -> Result<String, ErrorResponse> {
    if body.len() > MAX_FAILURE_BYTES {
        return Err(error_response(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the message is too long: at most 16 KiB",
        ));
    }
    Ok(String::from_utf8_lossy(body).into_owned())
}

async fn next(State(shared): State<Arc<Shared>>) -> Response {
    let waited = tokio::time::sleep(NEXT_TIMEOUT);
    tokio::pin!(waited);
    loop {
        let arrived = shared.arrived.notified();
        tokio::pin!(arrived);
        // Registered before the check, so that no attempt is missed in between.
        arrived.as_mut().enable();
        if let Some(response) = try_next(&shared) {
            return response;
        }
        tokio::select! {
            () = arrived => {}
            () = &mut waited => return StatusCode::NO_CONTENT.into_response(),
        }
    }
}

/// The response to a program that requests an attempt; `None` if it has to wait.
fn try_next(shared: &Shared) -> Option<Response> {
    let mut current = shared.current();
    let Some(current) = current.as_mut() else {
        return (shared.mode == BridgeMode::Single).then(no_more_attempts);
    };
    if !current.is_taken() {
        current.take();
        let stream = if current.stream { "true" } else { "false" };
        let about = [
            (ATTEMPT, current.attempt.as_str()),
            (MODEL, current.model.as_str()),
            (STREAM, stream),
        ];
        return Some((about, current.input.bytes().to_vec()).into_response());
    }
    if shared.mode == BridgeMode::Single {
        return Some(no_more_attempts());
    }
    // Requesting another attempt declares this one done.
    if !current.is_answered() {
        if !current.finish_pieces() {
            let why =
                "the current attempt has no answer yet: send its result, output or failure first";
            return Some(error_response(StatusCode::CONFLICT, why).into_response());
        }
        shared.answered.notify_waiters();
    }
    None
}

fn no_more_attempts() -> Response {
    error_response(StatusCode::GONE, "there is no other attempt: exit").into_response()
}

fn answer(shared: &Shared, headers: &HeaderMap, answer: ProgramAnswer) -> StatusResult {
    with_unanswered(shared, headers, |current| {
        current.answer(answer);
        Ok(())
    })?;
    shared.answered.notify_waiters();
    Ok(StatusCode::NO_CONTENT)
}

/// Applies a function to the current attempt, if it has no answer yet. A process of one attempt may change
/// its answer: it counts when the process ends.
fn with_unanswered<T>(
    shared: &Shared,
    headers: &HeaderMap,
    then: impl FnOnce(&mut CurrentAttempt) -> Result<T, ErrorResponse>,
) -> Result<T, ErrorResponse> {
    with_current(shared, headers, |current| {
        if current.is_answered() && shared.mode == BridgeMode::Sequential {
            return Err(error_response(StatusCode::CONFLICT, "this attempt was already answered"));
        }
        then(current)
    })
}

fn with_current<T>(
    shared: &Shared,
    headers: &HeaderMap,
    then: impl FnOnce(&mut CurrentAttempt) -> Result<T, ErrorResponse>,
) -> Result<T, ErrorResponse> {
    let mut current = shared.current();
    // A warm program cannot act on an attempt that it has not fetched: it may still be answering the one
    // before.
    let taken =
        |current: &&mut CurrentAttempt| shared.mode == BridgeMode::Single || current.is_taken();
    let Some(current) = current.as_mut().filter(taken) else {
        return Err(error_response(
            StatusCode::CONFLICT,
            "there is no current attempt: request one from /v1/next",
        ));
    };
    match headers.get(ATTEMPT) {
        Some(attempt) if attempt.as_bytes() != current.attempt.as_bytes() => {
            Err(error_response(StatusCode::CONFLICT, "another attempt is current"))
        }
        _ => then(current),
    }
}

/// The body of a request. A body that is too large is refused with our own message.
struct Body(Bytes);

impl FromRequest<Arc<Shared>> for Body {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Body, ErrorResponse> {
        Bytes::from_request(request, shared).await.map(Body).map_err(|problem| {
            let why = match problem.status() {
                StatusCode::PAYLOAD_TOO_LARGE => {
                    let most = shared.result_bytes;
                    format!(
                        "a result is at most {most} bytes, and so is everything that is sent here"
                    )
                }
                _ => problem.body_text(),
            };
            error_response(problem.status(), &why)
        })
    }
}

fn error_response(status: StatusCode, why: &str) -> ErrorResponse {
    (status, Json(json!({ "error": why })))
}
