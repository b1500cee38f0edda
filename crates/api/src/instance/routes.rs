//! The routes of a task instance.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use hypha_model::Payload;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{OpenApi, ToSchema};

use super::types::{
    EnqueueError, EnqueueRequest, EnqueueResponse, InstanceStatus, InstanceTaskState,
};
use super::{Instance, InstanceSettings};
use crate::admission::bearer_token;
use crate::body::{BodyError, BodyReader};
use crate::error::{Error, UNAVAILABLE_RETRY_S};
use crate::instances::envelope::{Envelope, error_envelope};
use crate::instances::predictor_metadata;
use crate::json::{self, PortableJson};
use crate::response;
use crate::tasks::view;
use crate::web_access::WebAccess;

/// A task's name goes into a URL, and is kept with its result.
const MAX_ID_BYTES: usize = 256;
/// Longer than any address that a scheduler sends.
const MAX_URL_BYTES: usize = 2_048;

#[derive(Clone)]
struct InstanceState {
    instance: Arc<dyn Instance>,
    settings: Arc<InstanceSettings>,
    bodies: Arc<BodyReader>,
}

pub(super) fn router(instance: Arc<dyn Instance>, settings: InstanceSettings) -> Router {
    let bodies = BodyReader::new(settings.max_request_bytes, settings.max_buffered_bytes);
    let (settings, bodies) = (Arc::new(settings), Arc::new(bodies));
    let state = InstanceState { instance, settings, bodies };
    Router::new()
        .route("/status", get(status))
        .route("/info", get(info))
        .route("/queue/enqueue", post(enqueue))
        .route("/results/{id}", get(result))
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(state.clone(), admit))
        // Outside of the layer: no token required.
        .route("/healthz", get(healthz).fallback(wrong_method))
        .route("/openapi.json", get(openapi).fallback(wrong_method))
        .with_state(state)
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Hypha task instance", description = "Runs tasks for one model"),
    paths(status, info, enqueue, result, healthz)
)]
struct Document;

/// A task for this instance. Further fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
struct EnqueueBody {
    /// The input of the executor, unchanged.
    #[schema(value_type = Value)]
    input_data: Box<RawValue>,
    /// Features for predicting its run time.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    metadata: Option<BTreeMap<String, serde_json::Value>>,
    /// The name of the task.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    task_id: Option<String>,
    /// The address to notify at its end.
    #[serde(default)]
    callback_url: Option<String>,
}

/// The result of a task, or its state.
#[derive(Debug, Serialize, ToSchema)]
struct ResultResponse<'a> {
    task_id: &'a str,
    /// `queued`, `running`, `completed` or `failed`.
    status: &'static str,
    /// `null` unless it has completed.
    #[schema(value_type = Value, nullable)]
    result: Option<Cow<'a, RawValue>>,
    /// `null` unless it has failed.
    error: Option<&'a str>,
    /// How long it ran, in milliseconds; `null` until it has.
    execution_time: Option<f64>,
}

/// What is served at the root.
#[derive(Debug, Serialize, ToSchema)]
struct InstanceInfo {
    deployed_model: DeployedModel,
}

/// The model that is served.
#[derive(Debug, Serialize, ToSchema)]
struct DeployedModel {
    model_name: String,
}

/// Refuses requests without a valid token, if tokens are configured, and requests of web pages if none are: then the
/// address is a loopback one.
async fn admit(State(state): State<InstanceState>, request: Request, next: Next) -> Response {
    let refused = match &state.settings.tokens {
        None => WebAccess::default().check(&request).err().map(|error| {
            let message = "without a token only requests to a loopback name are served, and none of another \
                           site's web page: give `tokens_file` in [task_instance]";
            Error { message: message.to_owned(), ..error }
        }),
        Some(tokens) => {
            let caller = bearer_token(request.headers()).and_then(|token| tokens.caller(token));
            let message = "give a valid token of this task instance: `Authorization: Bearer …`";
            let missing = || Error { message: message.to_owned(), ..Error::unauthorized() };
            caller.is_none().then(missing)
        }
    };
    match refused {
        Some(error) => error_envelope(&error),
        None => next.run(request).await,
    }
}

/// The status of the instance and its model.
#[utoipa::path(
    get, path = "/status",
    responses(
        (status = 200, description = "The status", body = InstanceStatus),
        (status = 401, description = "The token is missing or unknown", body = Envelope),
    )
)]
async fn status(State(state): State<InstanceState>) -> Response {
    response::json(StatusCode::OK, &state.instance.status())
}

/// The model that the instance serves.
#[utoipa::path(
    get, path = "/info",
    responses(
        (status = 200, description = "The model", body = InstanceInfo),
        (status = 401, description = "The token is missing or unknown", body = Envelope),
    )
)]
async fn info(State(state): State<InstanceState>) -> Response {
    let model_name = state.instance.status().model_type;
    let info = InstanceInfo { deployed_model: DeployedModel { model_name } };
    response::json(StatusCode::OK, &info)
}

/// Adds a task to the queue.
#[utoipa::path(
    post, path = "/queue/enqueue", request_body = EnqueueBody,
    responses(
        (status = 200, description = "The task is queued", body = EnqueueResponse),
        (status = "4XX", description = "The task is refused; 429 if the queue is full", body = Envelope),
        (status = 503, description = "Nothing can be run here at present", body = Envelope),
    )
)]
async fn enqueue(State(state): State<InstanceState>, request: Request) -> Response {
    let taken = async {
        let task = parse_enqueue(request, &state.bodies).await?;
        state.instance.enqueue(task).await.map_err(enqueue_error)
    };
    match taken.await {
        Ok(enqueued) => response::json(StatusCode::OK, &enqueued),
        Err(error) => error_envelope(&error),
    }
}

async fn parse_enqueue(request: Request, bodies: &BodyReader) -> Result<EnqueueRequest, Error> {
    json::check_type(request.headers())?;
    let (parts, body) = request.into_parts();
    let bytes = bodies.read(&parts.headers, body).await.map_err(|error| match error {
        BodyError::TooLarge(most) => {
            let message = format!("the body is larger than {most} bytes");
            Error { message, ..Error::from(error) }
        }
        other => Error::from(other),
    })?;
    let body: EnqueueBody = json::parse_object(&bytes)?;
    let input = body.input_data.get().as_bytes();
    json::parse::<PortableJson>(input)?;
    if let Some(id) = &body.task_id
        && (id.is_empty() || id.len() > MAX_ID_BYTES || id.chars().any(char::is_control))
    {
        let message = format!("task_id must have 1 to {MAX_ID_BYTES} printable bytes");
        return Err(Error::unprocessable(message));
    }
    if let Some(url) = &body.callback_url
        && (!(url.starts_with("http://") || url.starts_with("https://"))
            || url.len() > MAX_URL_BYTES)
    {
        let message =
            format!("callback_url must be an http address of at most {MAX_URL_BYTES} bytes");
        return Err(Error::unprocessable(message));
    }
    Ok(EnqueueRequest {
        input: Payload::from(input),
        metadata: predictor_metadata(&body.metadata.unwrap_or_default())?,
        task_id: body.task_id,
        callback_url: body.callback_url,
    })
}

fn enqueue_error(refused: EnqueueError) -> Error {
    let message = refused.to_string();
    match refused {
        EnqueueError::QueueFull { retry_after_s } => Error::too_many(message, retry_after_s),
        EnqueueError::Invalid(_) => Error::unprocessable(message),
        EnqueueError::Unavailable(_) => {
            let error = Error::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
            Error { retry_after_s: Some(UNAVAILABLE_RETRY_S), ..error }
        }
    }
}

/// The result of a task, or its state.
#[utoipa::path(
    get, path = "/results/{id}",
    params(("id" = String, Path, description = "The name that `/queue/enqueue` returned")),
    responses(
        (status = 200, description = "The result, or the state", body = ResultResponse),
        (status = "4XX", description = "404 if the task is unknown or no longer kept", body = Envelope),
    )
)]
async fn result(
    State(state): State<InstanceState>,
    id: Result<Path<String>, PathRejection>,
) -> Response {
    // An id that is too long or not UTF-8 is no task's name.
    let found = match id {
        Ok(Path(id)) if id.len() <= MAX_ID_BYTES => state.instance.result(&id).await,
        _ => None,
    };
    let Some(found) = found else {
        return error_envelope(&Error::not_found("the task is unknown or no longer kept"));
    };
    let (status, result, error, run) = match &found.stage {
        InstanceTaskState::Queued => ("queued", None, None, None),
        InstanceTaskState::Running => ("running", None, None, None),
        InstanceTaskState::Completed { result, run } => {
            ("completed", Some(view::payload_json(result)), None, Some(run))
        }
        InstanceTaskState::Failed { error, run } => {
            ("failed", None, Some(error.as_str()), Some(run))
        }
    };
    let execution_time = run.map(|run| run.as_millis_f64());
    let body = ResultResponse { task_id: &found.task_id, status, result, error, execution_time };
    response::json(StatusCode::OK, &body)
}

/// Whether the process responds.
#[utoipa::path(
    get, path = "/healthz", responses((status = 200, description = "It responds", body = String))
)]
async fn healthz() -> &'static str {
    "ok"
}

async fn openapi() -> Response {
    response::json(StatusCode::OK, &Document::openapi())
}

async fn no_such_route() -> Response {
    error_envelope(&Error::not_found("no such route; /openapi.json lists all routes"))
}

async fn wrong_method(method: Method) -> Response {
    error_envelope(&Error::wrong_method(&method))
}
