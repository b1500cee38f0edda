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

use super::types::{Enqueue, Enqueued, InstanceStage, InstanceStatus, Refused};
use super::{Instance, InstanceSettings};
use crate::admission::bearer;
use crate::body::{self, BodyError};
use crate::error::{Error, UNAVAILABLE_RETRY_S};
use crate::instances::answer::{Plain, plain_refusal};
use crate::instances::known;
use crate::json::{self, Readable};
use crate::reply;
use crate::tasks::view;

/// A task's name goes into an address, and is kept with its result.
const MAX_ID_BYTES: usize = 256;
/// Longer than any address that a scheduler gives.
const MAX_URL_BYTES: usize = 2_048;

#[derive(Clone)]
struct Shared {
    instance: Arc<dyn Instance>,
    settings: Arc<InstanceSettings>,
}

pub(super) fn router(instance: Arc<dyn Instance>, settings: InstanceSettings) -> Router {
    let shared = Shared { instance, settings: Arc::new(settings) };
    Router::new()
        .route("/status", get(status))
        .route("/info", get(info))
        .route("/queue/enqueue", post(enqueue))
        .route("/results/{id}", get(result))
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(shared.clone(), admit))
        // Behind the layer: open to everybody.
        .route("/healthz", get(healthz).fallback(wrong_method))
        .route("/openapi.json", get(openapi).fallback(wrong_method))
        .with_state(shared)
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Hypha task instance", description = "Runs tasks for one model"),
    paths(status, info, enqueue, result, healthz)
)]
struct Document;

/// A task for this instance. Further fields are passed over.
#[derive(Debug, Deserialize, ToSchema)]
struct EnqueueBody {
    /// What the executor is given, unchanged.
    #[schema(value_type = Value)]
    input_data: Box<RawValue>,
    /// What is said about its run time.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    metadata: Option<BTreeMap<String, serde_json::Value>>,
    /// The name of the task.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    task_id: Option<String>,
    /// Where to say that it is done.
    #[serde(default)]
    callback_url: Option<String>,
}

/// The end of a task, or where it is.
#[derive(Debug, Serialize, ToSchema)]
struct ResultAnswer<'a> {
    task_id: &'a str,
    /// `queued`, `running`, `completed` or `failed`.
    status: &'static str,
    /// `null` unless it is completed.
    #[schema(value_type = Value, nullable)]
    result: Option<Cow<'a, RawValue>>,
    /// `null` unless it has failed.
    error: Option<&'a str>,
    /// How long it ran, in milliseconds; `null` until it has.
    execution_time: Option<f64>,
}

/// What is served, for who looks here first.
#[derive(Debug, Serialize, ToSchema)]
struct InstanceInfo {
    deployed_model: DeployedModel,
}

/// The model that is served.
#[derive(Debug, Serialize, ToSchema)]
struct DeployedModel {
    model_name: String,
}

/// Refuses whoever has no token, if tokens are asked for.
async fn admit(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    if let Some(tokens) = &shared.settings.tokens
        && bearer(request.headers()).and_then(|token| tokens.caller(token)).is_none()
    {
        let message = "give a token that this task instance knows: `Authorization: Bearer …`";
        return plain_refusal(&Error { message: message.to_owned(), ..Error::unauthorized() });
    }
    next.run(request).await
}

/// Is it there, is it well, which model does it serve?
#[utoipa::path(
    get, path = "/status",
    responses(
        (status = 200, description = "How it is", body = InstanceStatus),
        (status = 401, description = "Without a token that it knows", body = Plain),
    )
)]
async fn status(State(shared): State<Shared>) -> Response {
    reply::json(StatusCode::OK, &shared.instance.status())
}

/// Which model does it serve?
#[utoipa::path(
    get, path = "/info",
    responses(
        (status = 200, description = "The model", body = InstanceInfo),
        (status = 401, description = "Without a token that it knows", body = Plain),
    )
)]
async fn info(State(shared): State<Shared>) -> Response {
    let model_name = shared.instance.status().model_type;
    let info = InstanceInfo { deployed_model: DeployedModel { model_name } };
    reply::json(StatusCode::OK, &info)
}

/// Here is a task.
#[utoipa::path(
    post, path = "/queue/enqueue", request_body = EnqueueBody,
    responses(
        (status = 200, description = "It is in the queue", body = Enqueued),
        (status = "4XX", description = "It is not; 429 if there is no room", body = Plain),
        (status = 503, description = "Nothing can be run here at present", body = Plain),
    )
)]
async fn enqueue(State(shared): State<Shared>, request: Request) -> Response {
    let taken = async {
        let task = task(request, shared.settings.max_request_bytes).await?;
        shared.instance.enqueue(task).await.map_err(not_taken)
    };
    match taken.await {
        Ok(enqueued) => reply::json(StatusCode::OK, &enqueued),
        Err(error) => plain_refusal(&error),
    }
}

async fn task(request: Request, limit: usize) -> Result<Enqueue, Error> {
    json::check_type(request.headers())?;
    let bytes = body::read(request, limit).await.map_err(|error| {
        let message = match &error {
            BodyError::TooLarge(most) => format!("the body is larger than {most} bytes"),
            other => other.to_string(),
        };
        Error::new(error.status(), error.code(), message)
    })?;
    let body: EnqueueBody = json::parse_object(&bytes)?;
    let input = body.input_data.get().as_bytes();
    json::parse::<Readable>(input)?;
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
    Ok(Enqueue {
        input: Payload::from(input),
        metadata: known(&body.metadata.unwrap_or_default())?,
        task_id: body.task_id,
        callback_url: body.callback_url,
    })
}

fn not_taken(refused: Refused) -> Error {
    let message = refused.to_string();
    match refused {
        Refused::QueueFull { retry_after_s } => Error::too_many(message, retry_after_s),
        Refused::Invalid(_) => Error::unprocessable(message),
        Refused::Unavailable(_) => {
            let error = Error::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message);
            Error { retry_after_s: Some(UNAVAILABLE_RETRY_S), ..error }
        }
    }
}

/// Is it done?
#[utoipa::path(
    get, path = "/results/{id}",
    params(("id" = String, Path, description = "The name that `/queue/enqueue` answered")),
    responses(
        (status = 200, description = "What came of it, or where it is", body = ResultAnswer),
        (status = "4XX", description = "404 if it is not known (any more)", body = Plain),
    )
)]
async fn result(State(shared): State<Shared>, id: Result<Path<String>, PathRejection>) -> Response {
    // What is too long or not UTF-8 is no task's name.
    let found = match id {
        Ok(Path(id)) if id.len() <= MAX_ID_BYTES => shared.instance.result(&id).await,
        _ => None,
    };
    let Some(found) = found else {
        return plain_refusal(&Error::not_found("there is no such task (any more)"));
    };
    let (status, result, error, run) = match &found.stage {
        InstanceStage::Queued => ("queued", None, None, None),
        InstanceStage::Running => ("running", None, None, None),
        InstanceStage::Completed { result, run } => {
            ("completed", Some(view::shown(result)), None, Some(run))
        }
        InstanceStage::Failed { error, run } => ("failed", None, Some(error.as_str()), Some(run)),
    };
    let execution_time = run.map(|run| run.as_millis_f64());
    let body = ResultAnswer { task_id: &found.task_id, status, result, error, execution_time };
    reply::json(StatusCode::OK, &body)
}

/// Is it alive?
#[utoipa::path(
    get, path = "/healthz", responses((status = 200, description = "It is", body = String))
)]
async fn healthz() -> &'static str {
    "ok"
}

async fn openapi() -> Response {
    reply::json(StatusCode::OK, &Document::openapi())
}

async fn no_such_route() -> Response {
    plain_refusal(&Error::not_found("there is nothing here; /openapi.json lists what there is"))
}

async fn wrong_method(method: Method) -> Response {
    plain_refusal(&Error::wrong_method(&method))
}
