//! `/task/query`: the state of a task, and its result.

use std::borrow::Cow;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::record::FinishedTask;
use hypha_model::{TaskId, TaskState};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::envelope::{self, Status};
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::{Error, ErrorBody};
use crate::json::Json;
use crate::params::{QueryFields, QueryParams};
use crate::response;
use crate::tasks::lookup::{self, TaskSnapshot};
use crate::tasks::view;

/// The task to query.
#[derive(Debug, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[schema(as = InstancesTaskQuery)]
#[into_params(parameter_in = Query)]
pub(crate) struct TaskQuery {
    /// As returned by `/queue/submit`.
    #[schema(example = "task-01966f6e-8a40-7cc3-98c4-dc0c0c07398f")]
    #[param(example = "task-01966f6e-8a40-7cc3-98c4-dc0c0c07398f")]
    task_id: String,
}

impl QueryFields for TaskQuery {
    const EXPECTED: &'static [(&'static str, &'static str)] =
        &[("task_id", "the id that /queue/submit returned")];
}

/// A task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesTaskResponse)]
pub(crate) struct TaskQueryResponse<'a> {
    task_id: String,
    task_status: TaskQueryStatus,
    /// The task instance that it is bound to; empty if there is none.
    scheduled_ti: String,
    /// When it was submitted, in seconds since 1970 with milliseconds.
    submit_time: f64,
    /// The result, or `{"status": "failed" | "cancelled" | "expired", "error": …}`; `null` until it is completed.
    #[schema(value_type = Value, nullable)]
    result: Option<TaskQueryResult<'a>>,
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = InstancesTaskStatus)]
pub(crate) enum TaskQueryStatus {
    /// No task instance has it, or no longer.
    Queued,
    /// A task instance has it, queued or running.
    Scheduled,
    /// It has ended, with or without a result.
    Completed,
}

/// The result of a task.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum TaskQueryResult<'a> {
    Result(Cow<'a, RawValue>),
    Error { status: TaskState, error: String },
}

/// A task that cannot be shown.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesTaskError)]
pub(crate) struct TaskQueryError {
    status: Status,
    message: String,
    /// The requested id.
    task_id: String,
    /// Empty.
    task_status: &'static str,
    /// Empty.
    scheduled_ti: &'static str,
    /// Zero.
    submit_time: f64,
    /// `null`.
    #[schema(value_type = Value, nullable)]
    result: (),
}

/// The state of a task, and its result.
#[utoipa::path(
    get, path = "/task/query", tag = "task instances", params(TaskQuery),
    responses(
        (status = 200, description = "The task", body = TaskQueryResponse),
        (status = 401, description = "The token is missing or unknown", body = ErrorBody),
        (status = "4XX", description = "404 if the task is unknown or no longer kept", body = TaskQueryError),
        (status = 503, description = "The store cannot be read at present", body = TaskQueryError),
    )
)]
pub(crate) async fn query(
    State(app): State<AppState>,
    caller: Result<Caller, Error>,
    query: Result<QueryParams<TaskQuery>, Error>,
) -> Response {
    let query = query.map(|query| query.0);
    task_query_response(&app, caller, query).await
}

/// The state of a task, and its result.
#[utoipa::path(
    post, path = "/task/query", tag = "task instances", request_body = TaskQuery,
    responses(
        (status = 200, description = "The task", body = TaskQueryResponse),
        (status = 401, description = "The token is missing or unknown", body = ErrorBody),
        (status = "4XX", description = "404 if the task is unknown or no longer kept", body = TaskQueryError),
        (status = 503, description = "The store cannot be read at present", body = TaskQueryError),
    )
)]
pub(crate) async fn query_from_body(
    State(app): State<AppState>,
    caller: Result<Caller, Error>,
    body: Result<Json<TaskQuery>, Error>,
) -> Response {
    task_query_response(&app, caller, body.map(|body| body.0)).await
}

async fn task_query_response(
    app: &AppState,
    caller: Result<Caller, Error>,
    query: Result<TaskQuery, Error>,
) -> Response {
    let given = match &query {
        Ok(query) => envelope::truncated_echo(&query.task_id),
        Err(_) => String::new(),
    };
    let found = async {
        let caller = caller?;
        let task: TaskId =
            query?.task_id.parse().map_err(|error| Error::bad_request(format!("{error}")))?;
        // Not even the existence of another tenant's task is revealed.
        lookup::find(&*app.service, &caller, task).await
    };
    match found.await {
        Ok(snapshot) => response::json(StatusCode::OK, &found_response(&snapshot)),
        Err(error) => {
            let body = TaskQueryError {
                status: Status::Error,
                message: error.message.clone(),
                task_id: given,
                task_status: "",
                scheduled_ti: "",
                submit_time: 0.0,
                result: (),
            };
            envelope::error_response(&error, &body)
        }
    }
}

fn found_response(snapshot: &TaskSnapshot) -> TaskQueryResponse<'_> {
    let (accepted, body) = (snapshot.accepted(), snapshot.body());
    TaskQueryResponse {
        task_id: accepted.id.to_string(),
        task_status: match body.status {
            TaskState::Queued => TaskQueryStatus::Queued,
            TaskState::Scheduled | TaskState::Running => TaskQueryStatus::Scheduled,
            TaskState::Completed
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Expired => TaskQueryStatus::Completed,
        },
        scheduled_ti: body.worker.map(|worker| worker.to_string()).unwrap_or_default(),
        submit_time: accepted.submitted.as_millis() as f64 / 1_000.0,
        result: snapshot.finished().and_then(outcome),
    }
}

fn outcome(end: &FinishedTask) -> Option<TaskQueryResult<'_>> {
    match end.state {
        TaskState::Completed => {
            end.result.as_ref().map(|result| TaskQueryResult::Result(view::result_json(result)))
        }
        status => {
            let error = end.error.as_ref();
            let error = error.map_or_else(|| "no reason is known".to_owned(), ToString::to_string);
            Some(TaskQueryResult::Error { status, error })
        }
    }
}
