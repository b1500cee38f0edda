//! `/ti/register` and `/ti/remove`: which task instances get tasks.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::{Command, Reply};
use hypha_model::WorkerId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer::{self, Status};
use crate::backend::RegisterError;
use crate::caller::Caller;
use crate::error::{Error, ErrorBody};
use crate::json::Json;
use crate::reply;
use crate::surface::Surface;

/// A domain name has at most 253 characters, an address fewer.
const MAX_HOST_BYTES: usize = 255;

/// Where a task instance is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = InstancesRegistration)]
pub(crate) struct RegisterBody {
    /// Its address, or its domain name.
    #[schema(example = "127.0.0.1", min_length = 1, max_length = 255)]
    host: String,
    /// The port of its HTTP service.
    #[schema(example = 8100, minimum = 1, maximum = 65535)]
    port: u16,
}

/// Which task instance.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = InstancesRemoval)]
pub(crate) struct RemoveBody {
    /// As `/ti/register` answered.
    #[schema(example = "6f2c5f0e-4c52-4d0e-9f1b-5c1f1c8d2a11")]
    ti_uuid: String,
}

/// What became of a task instance.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesInstance)]
pub(crate) struct InstanceAnswer {
    status: Status,
    message: String,
    /// The task instance. If it was not registered, empty; if it was not removed, what was given.
    ti_uuid: String,
}

/// Takes a task instance that is there and healthy. The same host and port have the same uuid again.
#[utoipa::path(
    post, path = "/ti/register", tag = "task instances", request_body = RegisterBody,
    responses(
        (status = 200, description = "It may be given tasks", body = InstanceAnswer),
        (status = 401, description = "Without a token that the scheduler knows", body = ErrorBody),
        (
            status = "4XX",
            description = "It is not taken; 403 outside of allowed_networks, 422 if nobody healthy is there",
            body = InstanceAnswer
        ),
        (status = 503, description = "The scheduler cannot acknowledge anything at present", body = InstanceAnswer),
    )
)]
pub(crate) async fn register(
    State(surface): State<Surface>,
    caller: Result<Caller, Error>,
    body: Result<Json<RegisterBody>, Error>,
) -> Response {
    let registered = async {
        caller?.require_admin()?;
        let RegisterBody { host, port } = body?.0;
        if host.is_empty() || host.len() > MAX_HOST_BYTES || port == 0 {
            let message = "give an address or a domain name as host, and a port from 1 to 65535";
            return Err(Error::unprocessable(message));
        }
        surface.backend.register_instance(host, port).await.map_err(not_registered)
    };
    match registered.await {
        Ok(worker) => done("TaskInstance registered successfully", worker),
        Err(error) => not_done(&error, String::new()),
    }
}

/// Gives a task instance nothing more, and forgets it when it has finished what it has.
#[utoipa::path(
    post, path = "/ti/remove", tag = "task instances", request_body = RemoveBody,
    responses(
        (status = 200, description = "It gets nothing more", body = InstanceAnswer),
        (status = 401, description = "Without a token that the scheduler knows", body = ErrorBody),
        (
            status = "4XX",
            description = "It is not removed; 400 if that is no uuid, 404 if nobody has it",
            body = InstanceAnswer
        ),
        (status = 503, description = "The scheduler cannot acknowledge anything at present", body = InstanceAnswer),
    )
)]
pub(crate) async fn remove(
    State(surface): State<Surface>,
    caller: Result<Caller, Error>,
    body: Result<Json<RemoveBody>, Error>,
) -> Response {
    let given = match &body {
        Ok(body) => answer::repeated(&body.0.ti_uuid),
        Err(_) => String::new(),
    };
    let removed = async {
        caller?.require_admin()?;
        let worker: WorkerId = body?
            .0
            .ti_uuid
            .parse()
            .map_err(|error| Error::bad_request(format!("Invalid UUID format: {error}")))?;
        match surface.backend.ask(Command::RemoveWorker(worker)).await? {
            Reply::WorkerRemoved(true) => Ok(worker),
            Reply::WorkerRemoved(false) => Err(Error::not_found("TaskInstance not found")),
            _ => Err(Error::internal()),
        }
    };
    match removed.await {
        Ok(worker) => done("TaskInstance removed successfully", worker),
        Err(error) => not_done(&error, given),
    }
}

fn done(message: &str, worker: WorkerId) -> Response {
    let body = InstanceAnswer {
        status: Status::Success,
        message: message.to_owned(),
        ti_uuid: worker.to_string(),
    };
    reply::json(StatusCode::OK, &body)
}

fn not_done(error: &Error, ti_uuid: String) -> Response {
    let body = InstanceAnswer { status: Status::Error, message: error.message.clone(), ti_uuid };
    answer::refusal(error, &body)
}

/// Nobody healthy there is no fault of this scheduler, hence no status of 500 or more.
fn not_registered(error: RegisterError) -> Error {
    match error {
        RegisterError::NotAllowed(_) => Error::forbidden(error.to_string()),
        RegisterError::Invalid(message) => Error::unprocessable(message),
        RegisterError::Unhealthy(message) => Error::unprocessable(message),
        RegisterError::Unavailable(unavailable) => unavailable.into(),
    }
}
