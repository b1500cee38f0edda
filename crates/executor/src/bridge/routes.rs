//! What the bridge answers.

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

use super::current::{Answer, Current, TooLarge};
use super::{Jobs, Shared, openapi};
use crate::running::MAX_PERMILLE;

/// Names the job: in the answer of `/v1/next`, and in requests that must not be taken for another job's.
const JOB: HeaderName = HeaderName::from_static("hypha-job");
/// The model of the job that `/v1/next` hands over.
const MODEL: HeaderName = HeaderName::from_static("hypha-model");
/// Whether somebody listens to the output of that job.
const STREAM: HeaderName = HeaderName::from_static("hypha-stream");
/// How long `/v1/next` waits. Less than the minute after which many clients give up by themselves.
const NEXT_WITHIN: Duration = Duration::from_secs(25);
/// A message for a person, not a log.
const MAX_FAILURE_BYTES: usize = 16 * 1024;
/// One piece of output travels to the scheduler as a whole. Half of what a message to it holds (16 MiB), so that what
/// waited before it fits beside it.
const MAX_PIECE_BYTES: usize = 8 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    permille: u16,
}

type Refused = (StatusCode, Json<serde_json::Value>);
type Answered = Result<StatusCode, Refused>;

pub(super) fn all(shared: Arc<Shared>) -> Router {
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
        .fallback(|| async { refused(StatusCode::NOT_FOUND, "no such route: see /openapi.json") })
        .method_not_allowed_fallback(|| async {
            refused(StatusCode::METHOD_NOT_ALLOWED, "not with this method: see /openapi.json")
        })
        .layer(DefaultBodyLimit::max(shared.result_bytes))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), authorised))
        .with_state(shared)
}

async fn authorised(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given.and_then(|value| value.strip_prefix("Bearer "));
    // Comparing two of these digests takes the same time whatever they hold.
    match token {
        Some(token) if blake3::hash(token.as_bytes()) == shared.token => next.run(request).await,
        _ => refused(
            StatusCode::UNAUTHORIZED,
            "send `Authorization: Bearer` with the secret in HYPHA_BRIDGE_TOKEN",
        )
        .into_response(),
    }
}

async fn input(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Result<Vec<u8>, Refused> {
    at_hand(&shared, &headers, |current| Ok(current.input.bytes().to_vec()))
}

async fn status(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
) -> Result<Json<serde_json::Value>, Refused> {
    at_hand(&shared, &headers, |current| {
        Ok(Json(json!({
            "job": current.job,
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
) -> Answered {
    match serde_json::from_slice(&body) {
        Ok(Progress { permille: permille @ 0..=MAX_PERMILLE }) => {
            at_hand(&shared, &headers, |current| {
                current.progress(permille);
                Ok(StatusCode::NO_CONTENT)
            })
        }
        Ok(_) => Err(refused(StatusCode::UNPROCESSABLE_ENTITY, "`permille` is at most 1000")),
        Err(error) => Err(refused(StatusCode::BAD_REQUEST, &error.to_string())),
    }
}

async fn output(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Body(piece): Body,
) -> Answered {
    if piece.len() > MAX_PIECE_BYTES {
        let why = format!(
            "a piece is at most {MAX_PIECE_BYTES} bytes: post several, or send all of it to PUT /v1/result"
        );
        return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, &why));
    }
    let listener = unanswered(&shared, &headers, |current| {
        current.append(&piece, shared.result_bytes).map_err(|TooLarge| {
            refused(StatusCode::PAYLOAD_TOO_LARGE, "all pieces together are larger than a result")
        })
    })?;
    if let Some(listener) = listener {
        // The program waits here for a slow reader. One that has gone needs nothing.
        let _ = listener.send(piece).await;
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn result(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Body(body): Body,
) -> Answered {
    answer(&shared, &headers, Answer::Result(Payload::from(&body[..])))
}

async fn failure(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Body(body): Body,
) -> Answered {
    answer(&shared, &headers, Answer::Failure(reason(&body)?))
}

async fn refusal(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Body(body): Body,
) -> Answered {
    answer(&shared, &headers, Answer::Refusal(reason(&body)?))
}

fn reason(body: &Bytes) -> Result<String, Refused> {
    if body.len() > MAX_FAILURE_BYTES {
        return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, "say it shorter, in 16 KiB"));
    }
    Ok(String::from_utf8_lossy(body).into_owned())
}

async fn next(State(shared): State<Arc<Shared>>) -> Response {
    let waited = tokio::time::sleep(NEXT_WITHIN);
    tokio::pin!(waited);
    loop {
        let arrived = shared.arrived.notified();
        tokio::pin!(arrived);
        // Listening begins before the look, so that no job falls between the two.
        arrived.as_mut().enable();
        if let Some(response) = next_now(&shared) {
            return response;
        }
        tokio::select! {
            () = arrived => {}
            () = &mut waited => return StatusCode::NO_CONTENT.into_response(),
        }
    }
}

/// What there is to say to a program that asks for a job; none if it has to wait.
fn next_now(shared: &Shared) -> Option<Response> {
    let mut current = shared.current();
    let Some(current) = current.as_mut() else {
        return (shared.jobs == Jobs::One).then(over);
    };
    if !current.is_taken() {
        current.take();
        let stream = if current.stream { "true" } else { "false" };
        let about =
            [(JOB, current.job.as_str()), (MODEL, current.model.as_str()), (STREAM, stream)];
        return Some((about, current.input.bytes().to_vec()).into_response());
    }
    if shared.jobs == Jobs::One {
        return Some(over());
    }
    // Asking for another job says that this one is done.
    if !current.is_answered() {
        if !current.finish_pieces() {
            let why = "the job at hand has no answer yet: send its result, output or failure first";
            return Some(refused(StatusCode::CONFLICT, why).into_response());
        }
        shared.answered.notify_waiters();
    }
    None
}

fn over() -> Response {
    refused(StatusCode::GONE, "there is no other job: end yourself").into_response()
}

fn answer(shared: &Shared, headers: &HeaderMap, answer: Answer) -> Answered {
    unanswered(shared, headers, |current| {
        current.answer(answer);
        Ok(())
    })?;
    shared.answered.notify_waiters();
    Ok(StatusCode::NO_CONTENT)
}

/// Does something with the job at hand that has no answer yet. A process of one job may change its mind: the
/// answer counts when the process ends.
fn unanswered<T>(
    shared: &Shared,
    headers: &HeaderMap,
    then: impl FnOnce(&mut Current) -> Result<T, Refused>,
) -> Result<T, Refused> {
    at_hand(shared, headers, |current| {
        if current.is_answered() && shared.jobs == Jobs::OneAfterAnother {
            return Err(refused(StatusCode::CONFLICT, "this job was answered already"));
        }
        then(current)
    })
}

fn at_hand<T>(
    shared: &Shared,
    headers: &HeaderMap,
    then: impl FnOnce(&mut Current) -> Result<T, Refused>,
) -> Result<T, Refused> {
    let mut current = shared.current();
    // What a warm program has not asked for yet is not its business: it may still be answering the one before.
    let taken = |current: &&mut Current| shared.jobs == Jobs::One || current.is_taken();
    let Some(current) = current.as_mut().filter(taken) else {
        return Err(refused(StatusCode::CONFLICT, "there is no job at hand: ask /v1/next for one"));
    };
    match headers.get(JOB) {
        Some(job) if job.as_bytes() != current.job.as_bytes() => {
            Err(refused(StatusCode::CONFLICT, "another job is at hand"))
        }
        _ => then(current),
    }
}

/// The body of a request. One that is too large is refused in our own words.
struct Body(Bytes);

impl FromRequest<Arc<Shared>> for Body {
    type Rejection = Refused;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Body, Refused> {
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
            refused(problem.status(), &why)
        })
    }
}

fn refused(status: StatusCode, why: &str) -> Refused {
    (status, Json(json!({ "error": why })))
}
