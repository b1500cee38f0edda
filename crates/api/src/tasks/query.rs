//! `GET` and `DELETE /api/v1/tasks/{id}`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::{Command, Reply};
use hypha_model::TaskState;

use super::lookup;
use super::submit::WaitParams;
use super::view::TaskBody;
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::params::{self, QueryParams, TaskPath};
use crate::response;

/// A task.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task", pattern = "^task-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"), WaitParams),
    responses(
        (status = 200, description = "The task", body = TaskBody),
        (status = 404, description = "The task is unknown", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn get(
    State(app): State<AppState>,
    caller: Caller,
    TaskPath(id): TaskPath,
    QueryParams(params): QueryParams<WaitParams>,
) -> Result<Response, Error> {
    let wait = params::parse_wait(params.wait)?;
    let until = wait.map(|wait| tokio::time::Instant::now() + wait);
    let snapshot = lookup::find_and_wait(&*app.service, &caller, id, until).await?;
    Ok(response::json(StatusCode::OK, &snapshot.body().with_input(snapshot.spec())))
}

/// Cancels a task. A task that has ended stays as it is.
#[utoipa::path(
    delete, path = "/api/v1/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task", pattern = "^task-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    responses(
        (status = 200, description = "The task, cancelled, or as it had ended before", body = TaskBody),
        (status = 404, description = "The task is unknown", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn cancel(
    State(app): State<AppState>,
    caller: Caller,
    TaskPath(id): TaskPath,
) -> Result<Response, Error> {
    let service = &*app.service;
    let before = lookup::find(service, &caller, id).await?;
    if before.finished().is_some() {
        return Ok(response::json(StatusCode::OK, &before.body()));
    }
    let Reply::Cancelled(state) = service.execute(Command::CancelTask(id)).await? else {
        return Err(Error::internal());
    };
    match lookup::fetch(service, id).await? {
        Some(after) => Ok(response::json(StatusCode::OK, &after.body())),
        // A request that is not stored leaves nothing behind.
        None => {
            let status = state.unwrap_or(TaskState::Cancelled);
            Ok(response::json(StatusCode::OK, &TaskBody { status, ..before.body() }))
        }
    }
}
