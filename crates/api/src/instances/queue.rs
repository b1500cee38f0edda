//! `/queue/submit` and `/queue/info`: submits a task to a task instance, and predicts waiting times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::{NewTask, SubmitRejection, Submitted};
use hypha_model::{Executor, ExecutorClass, Name, Payload, Requirement, TaskSpec, Worker};
use hypha_placement::WorkerView;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::envelope::{self, Status};
use super::metadata;
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::{Error, ErrorBody, UNAVAILABLE_RETRY_S};
use crate::json::{self, Json, PortableJson};
use crate::params::{QueryFields, QueryParams};
use crate::parts;
use crate::response;

/// The `model_name` of a worker that accepts tasks for any model.
const ANY_MODEL: &str = "*";

/// A task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = InstancesTask)]
pub(crate) struct SubmitBody {
    /// The model; only workers that serve it are considered.
    #[schema(example = "echo", min_length = 1, max_length = 256)]
    model_name: String,
    /// The input for the task instance, unchanged.
    #[schema(value_type = Object)]
    task_input: Box<RawValue>,
    /// Features for the predictor: numbers, short strings and booleans. Anything else is ignored.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    metadata: Option<BTreeMap<String, serde_json::Value>>,
}

/// The outcome of a submission.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesSubmitted)]
pub(crate) struct QueueSubmitResponse {
    status: Status,
    /// Why it was not accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// The task; empty if it was not accepted.
    task_id: String,
    /// The task instance that it is bound to; empty if it was not accepted.
    scheduled_ti: String,
}

/// Which queues to list.
#[derive(Debug, Default, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[schema(as = InstancesQueueFilter)]
#[into_params(parameter_in = Query)]
pub(crate) struct InfoQuery {
    /// Only queues of this model; all if it is left out or empty.
    #[serde(default)]
    model_name: Option<String>,
}

impl QueryFields for InfoQuery {
    const EXPECTED: &'static [(&'static str, &'static str)] =
        &[("model_name", "the name of a model")];
}

/// The queues.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesQueues)]
pub(crate) struct QueueInfoResponse {
    status: Status,
    /// Why the request failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    queues: Vec<QueueRow>,
}

/// The queue of one task instance for one model.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = InstancesQueue)]
pub(crate) struct QueueRow {
    /// The model; `*` for an instance that accepts any, unless a model was requested.
    model_name: String,
    ti_uuid: String,
    /// The expected waiting time of a new task before it starts, in milliseconds.
    waiting_time_expect: f64,
    /// The standard deviation of that, in milliseconds.
    waiting_time_error: f64,
}

/// Submits a task to the best task instance. It is bound immediately, under every strategy.
#[utoipa::path(
    post, path = "/queue/submit", tag = "task instances", request_body = SubmitBody,
    responses(
        (status = 200, description = "It is durable, and bound to a task instance", body = QueueSubmitResponse),
        (status = 401, description = "The token is missing or unknown", body = ErrorBody),
        (
            status = "4XX",
            description = "It was not accepted; 404 if no worker serves the model, 429 if the queue is full",
            body = QueueSubmitResponse
        ),
        (
            status = 503,
            description = "No task instance of the model can take it at present, or the scheduler cannot",
            body = QueueSubmitResponse
        ),
    )
)]
pub(crate) async fn submit(
    State(app): State<AppState>,
    caller: Result<Caller, Error>,
    body: Result<Json<SubmitBody>, Error>,
) -> Response {
    let accepted = async {
        let caller = caller?;
        let spec = spec(body?.0, &caller)?;
        accept(&app, &caller, spec).await
    };
    match accepted.await {
        Ok(submitted) => {
            let body = QueueSubmitResponse {
                status: Status::Success,
                message: None,
                task_id: submitted.task.to_string(),
                scheduled_ti: submitted.worker.map(|id| id.to_string()).unwrap_or_default(),
            };
            response::json(StatusCode::OK, &body)
        }
        Err(error) => {
            let body = QueueSubmitResponse {
                status: Status::Error,
                message: Some(error.message.clone()),
                task_id: String::new(),
                scheduled_ti: String::new(),
            };
            envelope::error_response(&error, &body)
        }
    }
}

fn spec(body: SubmitBody, caller: &Caller) -> Result<TaskSpec, Error> {
    let input = body.task_input.get();
    if !input.starts_with('{') {
        return Err(Error::unprocessable("task_input must be an object"));
    }
    json::parse::<PortableJson>(input.as_bytes())?;
    Ok(TaskSpec {
        requirement: Requirement { model: Some(model(&body.model_name)?), ..Default::default() },
        input: Payload::from(input.as_bytes()),
        metadata: metadata::predictor_metadata(&body.metadata.unwrap_or_default())?,
        tenant: caller.tenant.clone(),
        ..Default::default()
    })
}

async fn accept(app: &AppState, caller: &Caller, spec: TaskSpec) -> Result<Submitted, Error> {
    caller.check_priority(spec.requirement.priority)?;
    let model = spec.requirement.model.clone();
    let task = NewTask {
        spec: Arc::new(spec),
        idempotency_key: None,
        bind_at_once: true,
        stored: true,
        quota: caller.quota,
        weight: caller.weight,
    };
    match app.service.submit(vec![task], false).await?.pop() {
        Some(Ok((submitted, _))) => Ok(submitted),
        Some(Err(SubmitRejection::NoWorker)) => Err(no_worker_error(app, model.as_ref()).await),
        Some(Err(reject)) => Err(reject.into()),
        None => Err(Error::internal()),
    }
}

/// Distinguishes a model that no worker serves from one whose workers are all unavailable.
async fn no_worker_error(app: &AppState, model: Option<&Name>) -> Error {
    let shown = model.map_or("", Name::as_str);
    let (mut any, mut serving) = (false, false);
    for worker in parts::read_workers(&*app.service, |_, view, _| view.worker).await {
        any = true;
        serving |= model.is_some_and(|model| serves(&worker, model));
    }
    if serving {
        let message =
            format!("no TaskInstance for `{shown}` accepts tasks at present; try again later");
        let error = Error::new(StatusCode::SERVICE_UNAVAILABLE, "no_worker", message);
        return Error { retry_after_s: Some(UNAVAILABLE_RETRY_S), ..error };
    }
    Error::not_found(match any {
        true => format!("no TaskInstance serves `{shown}`; /queue/info lists what is served"),
        false => "no TaskInstance is registered; POST one to /ti/register".to_owned(),
    })
}

/// The expected waiting time of a new task at each task instance.
#[utoipa::path(
    get, path = "/queue/info", tag = "task instances", params(InfoQuery),
    responses(
        (status = 200, description = "A row for each model of each task instance", body = QueueInfoResponse),
        (status = 401, description = "The token is missing or unknown", body = ErrorBody),
        (status = "4XX", description = "The query is invalid", body = QueueInfoResponse),
    )
)]
pub(crate) async fn info(
    State(app): State<AppState>,
    caller: Result<Caller, Error>,
    query: Result<QueryParams<InfoQuery>, Error>,
) -> Response {
    let query = query.map(|query| query.0);
    queue_info_response(&app, caller.and(query)).await
}

/// The expected waiting time of a new task at each task instance.
#[utoipa::path(
    post, path = "/queue/info", tag = "task instances", request_body = InfoQuery,
    responses(
        (status = 200, description = "A row for each model of each task instance", body = QueueInfoResponse),
        (status = 401, description = "The token is missing or unknown", body = ErrorBody),
        (status = "4XX", description = "The query is invalid", body = QueueInfoResponse),
    )
)]
pub(crate) async fn info_from_body(
    State(app): State<AppState>,
    caller: Result<Caller, Error>,
    body: Result<json::JsonBytes, Error>,
) -> Response {
    let query = body.and_then(|body| match body.0.is_empty() {
        true => Ok(InfoQuery::default()),
        false => json::parse_object(&body.0),
    });
    queue_info_response(&app, caller.and(query)).await
}

async fn queue_info_response(app: &AppState, query: Result<InfoQuery, Error>) -> Response {
    let wanted = query.and_then(|query| {
        query.model_name.filter(|name| !name.is_empty()).map(|name| model(&name)).transpose()
    });
    match wanted {
        Ok(wanted) => {
            let views = parts::read_workers(&*app.service, |_, view, _| view).await;
            let queues = views.iter().flat_map(|view| rows(view, wanted.as_ref())).collect();
            response::json(
                StatusCode::OK,
                &QueueInfoResponse { status: Status::Success, message: None, queues },
            )
        }
        Err(error) => {
            let message = Some(error.message.clone());
            let body = QueueInfoResponse { status: Status::Error, message, queues: Vec::new() };
            envelope::error_response(&error, &body)
        }
    }
}

/// One row for each model of a worker, or one for the requested model if the worker serves it.
fn rows(view: &WorkerView, wanted: Option<&Name>) -> Vec<QueueRow> {
    // A worker that accepts no tasks has no queue to choose, unless it still has tasks to finish.
    if !view.available && view.queued + view.in_flight == 0 {
        return Vec::new();
    }
    let row = |model_name: &str| QueueRow {
        model_name: model_name.to_owned(),
        ti_uuid: view.worker.id.to_string(),
        waiting_time_expect: milliseconds(view.waiting_mean_s),
        waiting_time_error: milliseconds(view.waiting_error_s),
    };
    match wanted {
        Some(model) if serves(&view.worker, model) => vec![row(model.as_str())],
        Some(_) => Vec::new(),
        None => models(&view.worker).into_iter().map(row).collect(),
    }
}

/// The executors that run tasks of this API.
fn executors(worker: &Worker) -> impl Iterator<Item = &Executor> {
    worker.executors.iter().filter(|executor| executor.class == ExecutorClass::Inference)
}

fn serves(worker: &Worker, model: &Name) -> bool {
    executors(worker).any(|executor| executor.serves(model))
}

/// The models of a worker, each once, in order.
fn models(worker: &Worker) -> BTreeSet<&str> {
    let mut models = BTreeSet::new();
    for executor in executors(worker) {
        models.extend(executor.models.iter().map(Name::as_str));
        models.extend(executor.models.is_empty().then_some(ANY_MODEL));
    }
    models
}

/// JSON cannot express infinity; the largest number stands for it.
fn milliseconds(seconds: f64) -> f64 {
    let milliseconds = seconds * 1_000.0;
    if milliseconds.is_finite() { milliseconds } else { f64::MAX }
}

fn model(given: &str) -> Result<Name, Error> {
    given.parse().map_err(|error| Error::unprocessable(format!("model_name: {error}")))
}
