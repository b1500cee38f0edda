//! `/task/query`: where a task is, and what came of it.

use std::borrow::Cow;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::record::FinishedTask;
use hypha_model::{TaskId, TaskState};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::answer::{self, Status};
use crate::caller::Caller;
use crate::error::{Error, ErrorBody};
use crate::json::Json;
use crate::params::{Parameters, Params};
use crate::reply;
use crate::surface::Surface;
use crate::tasks::look::{self, Seen};
use crate::tasks::view;

/// Which task.
#[derive(Debug, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[schema(as = InstancesTaskQuery)]
#[into_params(parameter_in = Query)]
pub(crate) struct TaskQuery {
    /// As `/queue/submit` answered.
    #[schema(example = "task-01966f6e-8a40-7cc3-98c4-dc0c0c07398f")]
    #[param(example = "task-01966f6e-8a40-7cc3-98c4-dc0c0c07398f")]
    task_id: String,
}

impl Parameters for TaskQuery {
    const EXPECTED: &'static [(&'static str, &'static str)] =
        &[("task_id", "the id that /queue/submit answered")];
}

/// A task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesTaskAnswer)]
pub(crate) struct TaskAnswer<'a> {
    task_id: String,
    task_status: Stage,
    /// The task instance that it was given to; empty if there is none.
    scheduled_ti: String,
    /// When it was submitted, in seconds since 1970 with milliseconds.
    submit_time: f64,
    /// The result, or `{"status": "failed" | "cancelled" | "expired", "error": …}`; `null` until it is completed.
    #[schema(value_type = Value, nullable)]
    result: Option<Outcome<'a>>,
}

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = InstancesTaskStatus)]
pub(crate) enum Stage {
    /// No task instance has it (any more).
    Queued,
    /// A task instance has it; it waits there, or runs.
    Scheduled,
    /// It has ended, one way or another.
    Completed,
}

/// What came of a task.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Outcome<'a> {
    Result(Cow<'a, RawValue>),
    Error { status: TaskState, error: String },
}

/// A task that cannot be shown.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesTaskError)]
pub(crate) struct TaskRefusal {
    status: Status,
    message: String,
    /// What was asked for.
    task_id: String,
    /// Empty.
    task_status: &'static str,
    /// Empty.
    scheduled_ti: &'static str,
    /// Zero.
    submit_time: f64,
    /// Nothing.
    #[schema(value_type = Value, nullable)]
    result: (),
}

/// Where a task is, and what came of it.
#[utoipa::path(
    get, path = "/task/query", tag = "task instances", params(TaskQuery),
    responses(
        (status = 200, description = "The task", body = TaskAnswer),
        (status = 401, description = "Without a token that the scheduler knows", body = ErrorBody),
        (status = "4XX", description = "404 if there is no such task (any more)", body = TaskRefusal),
        (status = 503, description = "The store cannot be read at present", body = TaskRefusal),
    )
)]
pub(crate) async fn query(
    State(surface): State<Surface>,
    caller: Result<Caller, Error>,
    query: Result<Params<TaskQuery>, Error>,
) -> Response {
    let query = query.map(|query| query.0);
    task_answer(&surface, caller, query).await
}

/// Where a task is, and what came of it.
#[utoipa::path(
    post, path = "/task/query", tag = "task instances", request_body = TaskQuery,
    responses(
        (status = 200, description = "The task", body = TaskAnswer),
        (status = 401, description = "Without a token that the scheduler knows", body = ErrorBody),
        (status = "4XX", description = "404 if there is no such task (any more)", body = TaskRefusal),
        (status = 503, description = "The store cannot be read at present", body = TaskRefusal),
    )
)]
pub(crate) async fn query_of_body(
    State(surface): State<Surface>,
    caller: Result<Caller, Error>,
    body: Result<Json<TaskQuery>, Error>,
) -> Response {
    task_answer(&surface, caller, body.map(|body| body.0)).await
}

async fn task_answer(
    surface: &Surface,
    caller: Result<Caller, Error>,
    query: Result<TaskQuery, Error>,
) -> Response {
    let given = match &query {
        Ok(query) => answer::repeated(&query.task_id),
        Err(_) => String::new(),
    };
    let found = async {
        let caller = caller?;
        let task: TaskId =
            query?.task_id.parse().map_err(|error| Error::bad_request(format!("{error}")))?;
        // Of another tenant's task not even this is told: that there is one.
        look::find(&*surface.backend, &caller, task).await
    };
    match found.await {
        Ok(seen) => reply::json(StatusCode::OK, &shown(&seen)),
        Err(error) => {
            let body = TaskRefusal {
                status: Status::Error,
                message: error.message.clone(),
                task_id: given,
                task_status: "",
                scheduled_ti: "",
                submit_time: 0.0,
                result: (),
            };
            answer::refusal(&error, &body)
        }
    }
}

fn shown(seen: &Seen) -> TaskAnswer<'_> {
    let (accepted, body) = (seen.accepted(), seen.body());
    TaskAnswer {
        task_id: accepted.id.to_string(),
        task_status: match body.status {
            TaskState::Queued => Stage::Queued,
            TaskState::Scheduled | TaskState::Running => Stage::Scheduled,
            TaskState::Completed
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Expired => Stage::Completed,
        },
        scheduled_ti: body.worker.map(|worker| worker.to_string()).unwrap_or_default(),
        submit_time: accepted.submitted.as_millis() as f64 / 1_000.0,
        result: seen.finished().and_then(outcome),
    }
}

fn outcome(end: &FinishedTask) -> Option<Outcome<'_>> {
    match end.state {
        TaskState::Completed => {
            end.result.as_ref().map(|result| Outcome::Result(view::shown_result(result)))
        }
        status => {
            let error = end.error.as_ref();
            let error = error.map_or_else(|| "no reason is known".to_owned(), ToString::to_string);
            Some(Outcome::Error { status, error })
        }
    }
}
