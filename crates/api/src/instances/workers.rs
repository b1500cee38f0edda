//! `/ti/register` and `/ti/remove`: registers and removes task instances.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::{Command, Reply};
use hypha_model::WorkerId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::envelope::{self, Status};
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::{Error, ErrorBody};
use crate::json::Json;
use crate::response;
use crate::service::RegisterError;

/// A domain name has at most 253 characters, an address fewer.
const MAX_HOST_BYTES: usize = 255;

/// The address of a task instance.
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
    /// The model that it serves; refused if it reports another.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    model_name: Option<String>,
}

/// The task instance to remove, by its uuid or by its address.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = InstancesRemoval)]
pub(crate) struct RemoveBody {
    /// As returned by `/ti/register`.
    #[serde(default)]
    #[schema(example = "6f2c5f0e-4c52-4d0e-9f1b-5c1f1c8d2a11")]
    ti_uuid: Option<String>,
    /// The host that it was registered with, instead of the uuid.
    #[serde(default)]
    #[schema(max_length = 255)]
    host: Option<String>,
    /// Its port.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 65535)]
    port: Option<u16>,
}

/// The outcome for a task instance.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesInstance)]
pub(crate) struct InstanceResponse {
    status: Status,
    message: String,
    /// The task instance. If it was not registered, empty; if it was not removed, the given value.
    ti_uuid: String,
}

/// Registers a task instance that answers and is healthy. The same host and port always get the same uuid.
#[utoipa::path(
    post, path = "/ti/register", tag = "task instances", request_body = RegisterBody,
    responses(
        (status = 200, description = "It is registered, and may get tasks", body = InstanceResponse),
        (status = 401, description = "The token is missing or unknown", body = ErrorBody),
        (
            status = "4XX",
            description = "It is refused; 403 outside of allowed_networks, 422 if no healthy task instance answers",
            body = InstanceResponse
        ),
        (status = 503, description = "The scheduler cannot acknowledge anything at present", body = InstanceResponse),
    )
)]
pub(crate) async fn register(
    State(app): State<AppState>,
    caller: Result<Caller, Error>,
    body: Result<Json<RegisterBody>, Error>,
) -> Response {
    let registered = async {
        caller?.require_admin()?;
        let RegisterBody { host, port, model_name } = body?.0;
        if host.is_empty() || host.len() > MAX_HOST_BYTES || port == 0 {
            let message = "give an address or a domain name as host, and a port from 1 to 65535";
            return Err(Error::unprocessable(message));
        }
        let invalid = |error| Error::unprocessable(format!("model_name: {error}"));
        let model = model_name.map(|name| name.parse().map_err(invalid)).transpose()?;
        app.service.register_instance(host, port, model).await.map_err(register_error)
    };
    match registered.await {
        Ok(worker) => success("TaskInstance registered successfully", worker),
        Err(error) => failure(&error, String::new()),
    }
}

/// Drains a task instance: it gets no new tasks, and is removed when its tasks have ended.
#[utoipa::path(
    post, path = "/ti/remove", tag = "task instances", request_body = RemoveBody,
    responses(
        (status = 200, description = "It is draining", body = InstanceResponse),
        (status = 401, description = "The token is missing or unknown", body = ErrorBody),
        (
            status = "4XX",
            description = "It is not removed; 400 if the uuid is invalid, 404 if no worker has it",
            body = InstanceResponse
        ),
        (status = 503, description = "The scheduler cannot acknowledge anything at present", body = InstanceResponse),
    )
)]
pub(crate) async fn remove(
    State(app): State<AppState>,
    caller: Result<Caller, Error>,
    body: Result<Json<RemoveBody>, Error>,
) -> Response {
    let given = match &body {
        Ok(body) => envelope::truncated_echo(body.0.ti_uuid.as_deref().unwrap_or_default()),
        Err(_) => String::new(),
    };
    let removed = async {
        caller?.require_admin()?;
        let worker = named_worker(&app, body?.0)?;
        match app.service.execute(Command::RemoveWorker(worker)).await? {
            Reply::WorkerRemoved(true) => Ok(worker),
            Reply::WorkerRemoved(false) => Err(Error::not_found("TaskInstance not found")),
            _ => Err(Error::internal()),
        }
    };
    match removed.await {
        Ok(worker) => success("TaskInstance removed successfully", worker),
        Err(error) => failure(&error, given),
    }
}

/// The worker that a removal names.
fn named_worker(app: &AppState, body: RemoveBody) -> Result<WorkerId, Error> {
    let not_found = || Error::not_found("TaskInstance not found");
    match body {
        RemoveBody { ti_uuid: Some(uuid), host: None, port: None } => uuid
            .parse()
            .map_err(|error| Error::bad_request(format!("Invalid UUID format: {error}"))),
        RemoveBody { ti_uuid: None, host: Some(host), port: Some(port) } => {
            app.service.instance_at(&host, port).ok_or_else(not_found)
        }
        _ => Err(Error::unprocessable("give either ti_uuid, or host and port")),
    }
}

fn success(message: &str, worker: WorkerId) -> Response {
    let body = InstanceResponse {
        status: Status::Success,
        message: message.to_owned(),
        ti_uuid: worker.to_string(),
    };
    response::json(StatusCode::OK, &body)
}

fn failure(error: &Error, ti_uuid: String) -> Response {
    let body = InstanceResponse { status: Status::Error, message: error.message.clone(), ti_uuid };
    envelope::error_response(error, &body)
}

/// An unhealthy or missing instance is not a fault of this scheduler, hence no status of 500 or more.
fn register_error(error: RegisterError) -> Error {
    match error {
        RegisterError::NotAllowed(_) => Error::forbidden(error.to_string()),
        RegisterError::Invalid(message) => Error::unprocessable(message),
        RegisterError::Unhealthy(message) => Error::unprocessable(message),
        RegisterError::Unavailable(unavailable) => unavailable.into(),
    }
}
