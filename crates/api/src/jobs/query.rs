//! `POST /api/v1/jobs`, and `GET` and `DELETE /api/v1/jobs/{id}`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::job::JobView;
use hypha_engine::{Command, Reply};
use hypha_model::JobId;

use super::form::JobForm;
use super::view::JobBody;
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::json::{self, JsonBytes};
use crate::params::JobPath;
use crate::response;
use crate::service::SchedulerApi;

/// When a client should retry if there are too many jobs, in seconds.
const FULL_RETRY_S: u32 = 10;

/// Submits a job. The response comes when it is durable; its workers are advertised for at once.
#[utoipa::path(
    post, path = "/api/v1/jobs", tag = "jobs", request_body = JobForm,
    responses(
        (status = 202, description = "It is accepted", body = JobBody),
        (status = 413, description = "The body is too large", body = crate::error::ErrorBody),
        (status = 415, description = "The body is not JSON", body = crate::error::ErrorBody),
        (status = 422, description = "The body is invalid", body = crate::error::ErrorBody),
        (status = 429, description = "There are too many jobs", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn submit(
    State(app): State<AppState>,
    caller: Caller,
    JsonBytes(bytes): JsonBytes,
) -> Result<Response, Error> {
    let plan = json::parse_object::<JobForm>(&bytes)?.into_plan(&caller)?;
    drop(bytes);
    let service = &*app.service;
    match service.execute(Command::SubmitJob(Arc::new(plan))).await? {
        Reply::JobSubmitted(Some(id)) => {
            let view = find(service, &caller, id)?;
            Ok(response::json(StatusCode::ACCEPTED, &JobBody::whole(service, view)))
        }
        Reply::JobSubmitted(None) => {
            let most = hypha_engine::scheduler::MAX_JOBS;
            let message = format!("{most} jobs have not ended; wait for some to end");
            Err(Error::too_many(message, FULL_RETRY_S))
        }
        _ => Err(Error::internal()),
    }
}

/// A job, with its members.
#[utoipa::path(
    get, path = "/api/v1/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "The job", pattern = "^job-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    responses(
        (status = 200, description = "The job", body = JobBody),
        (status = 404, description = "The job is unknown", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn get(
    State(app): State<AppState>,
    caller: Caller,
    JobPath(id): JobPath,
) -> Result<Response, Error> {
    let view = find(&*app.service, &caller, id)?;
    Ok(response::json(StatusCode::OK, &JobBody::whole(&*app.service, view)))
}

/// Cancels a job: its runs are stopped, and its workers released. A job that has ended stays as it is.
#[utoipa::path(
    delete, path = "/api/v1/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "The job", pattern = "^job-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    responses(
        (status = 200, description = "The job, cancelled, or as it had ended before", body = JobBody),
        (status = 404, description = "The job is unknown", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn cancel(
    State(app): State<AppState>,
    caller: Caller,
    JobPath(id): JobPath,
) -> Result<Response, Error> {
    let service = &*app.service;
    find(service, &caller, id)?;
    let Reply::JobCancelled(_) = service.execute(Command::CancelJob(id)).await? else {
        return Err(Error::internal());
    };
    let view = find(service, &caller, id)?;
    Ok(response::json(StatusCode::OK, &JobBody::whole(service, view)))
}

/// The job, if the caller may see it.
pub(super) fn find(
    service: &dyn SchedulerApi,
    caller: &Caller,
    id: JobId,
) -> Result<JobView, Error> {
    let mut found = None;
    service.read(&mut |scheduler, _| found = scheduler.job(id));
    found
        .filter(|view| caller.may_see_tenant(view.tenant.as_ref()))
        .ok_or_else(|| Error::not_found(format!("there is no {id}, or it ended long ago")))
}
