//! `GET` and `DELETE /api/v1/tasks/{id}`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::{Command, Reply};
use hypha_model::TaskState;

use super::look;
use super::submit::WaitParams;
use super::view::TaskBody;
use crate::caller::Caller;
use crate::error::Error;
use crate::params::{self, Params, TaskPath};
use crate::reply;
use crate::surface::Surface;

/// A task.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task", pattern = "^task-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"), WaitParams),
    responses(
        (status = 200, description = "The task", body = TaskBody),
        (status = 404, description = "It is not known", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn get(
    State(surface): State<Surface>,
    caller: Caller,
    TaskPath(id): TaskPath,
    Params(params): Params<WaitParams>,
) -> Result<Response, Error> {
    let wait = params::wait(params.wait)?;
    let seen = look::find_ended(&*surface.backend, &caller, id, wait).await?;
    Ok(reply::json(StatusCode::OK, &seen.body().with_input(seen.spec())))
}

/// Cancels a task. One that has ended stays as it is.
#[utoipa::path(
    delete, path = "/api/v1/tasks/{id}", tag = "tasks",
    params(("id" = String, Path, description = "The task", pattern = "^task-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    responses(
        (status = 200, description = "The task, cancelled or as it ended before", body = TaskBody),
        (status = 404, description = "It is not known", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn cancel(
    State(surface): State<Surface>,
    caller: Caller,
    TaskPath(id): TaskPath,
) -> Result<Response, Error> {
    let backend = &*surface.backend;
    let before = look::find(backend, &caller, id).await?;
    if before.finished().is_some() {
        return Ok(reply::json(StatusCode::OK, &before.body()));
    }
    let Reply::Cancelled(state) = backend.ask(Command::CancelTask(id)).await? else {
        return Err(Error::internal());
    };
    match look::look(backend, id).await? {
        Some(after) => Ok(reply::json(StatusCode::OK, &after.body())),
        // A request that is not stored leaves nothing behind.
        None => {
            let status = state.unwrap_or(TaskState::Cancelled);
            Ok(reply::json(StatusCode::OK, &TaskBody { status, ..before.body() }))
        }
    }
}
