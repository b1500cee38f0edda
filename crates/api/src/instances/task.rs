//! `/task/query`: where a task is, and what came of it.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::record::{FinishedTask, StoredTask};
use hypha_engine::scheduler::TaskView;
use hypha_model::{TaskId, TaskState, Time, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{self, Shown, Status};
use crate::caller::Caller;
use crate::error::{Error, ErrorBody};
use crate::json::Json;
use crate::reply;
use crate::surface::Surface;

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
    Result(Shown<'a>),
    Error { status: TaskState, error: &'a str },
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
    query: Result<Query<TaskQuery>, QueryRejection>,
) -> Response {
    let query = query.map(|query| query.0).map_err(|error| Error::bad_request(error.body_text()));
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
        find(surface, &caller, task).await
    };
    match found.await {
        Ok(Found::Open(view)) => reply::json(StatusCode::OK, &open(&view)),
        Ok(Found::Stored(task)) => reply::json(StatusCode::OK, &stored(&task)),
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

enum Found {
    Open(Box<TaskView>),
    Stored(StoredTask),
}

async fn find(surface: &Surface, caller: &Caller, task: TaskId) -> Result<Found, Error> {
    let mut open = None;
    surface.backend.read(&mut |scheduler, now| open = scheduler.task_view(task, now));
    let found = match open {
        Some(view) => Some(Found::Open(Box::new(view))),
        None => surface.backend.stored(task).await?.map(Found::Stored),
    };
    let spec = |found: &Found| match found {
        Found::Open(view) => view.accepted.spec.clone(),
        Found::Stored(task) => task.accepted.spec.clone(),
    };
    // Of another tenant's task not even this is told: that there is one.
    found
        .filter(|found| caller.may_see(&spec(found)))
        .ok_or_else(|| Error::not_found(format!("there is no task `{task}` (any more)")))
}

/// A task that has not ended, as the machine knows it.
fn open(view: &TaskView) -> TaskAnswer<'static> {
    shown(view.accepted.id, view.accepted.submitted, view.state, view.worker, None)
}

/// A task as the disk knows it: it has ended, or is about to (its end is not durable yet).
fn stored(task: &StoredTask) -> TaskAnswer<'_> {
    let (id, submitted) = (task.accepted.id, task.accepted.submitted);
    match &task.finished {
        Some(end) => shown(id, submitted, end.state, end.worker, outcome(end)),
        None => {
            let worker = task.current.map(|(_, worker, _)| worker);
            let state = worker.map_or(TaskState::Queued, |_| TaskState::Scheduled);
            shown(id, submitted, state, worker, None)
        }
    }
}

fn shown(
    id: TaskId,
    submitted: Time,
    state: TaskState,
    worker: Option<WorkerId>,
    result: Option<Outcome<'_>>,
) -> TaskAnswer<'_> {
    TaskAnswer {
        task_id: id.to_string(),
        task_status: match state {
            TaskState::Queued => Stage::Queued,
            TaskState::Scheduled | TaskState::Running => Stage::Scheduled,
            TaskState::Completed
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Expired => Stage::Completed,
        },
        scheduled_ti: worker.map(|worker| worker.to_string()).unwrap_or_default(),
        submit_time: submitted.as_millis() as f64 / 1_000.0,
        result,
    }
}

fn outcome(end: &FinishedTask) -> Option<Outcome<'_>> {
    match end.state {
        TaskState::Completed => {
            end.result.as_ref().map(|(payload, _)| Outcome::Result(Shown::of(payload)))
        }
        status => {
            let error = end.error.as_deref().unwrap_or("no reason is known");
            Some(Outcome::Error { status, error })
        }
    }
}
