//! `/notify/task_complete` and `/result/submit`: task instances report the end of a task here.
//!
//! No token is required: the secret in the address is the proof. It is checked before the body is read: without it only
//! a small body is accepted, and the scheduler fetches the result from the instance itself.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::InstanceNotification;
use hypha_model::Payload;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::envelope::{self, Envelope, Status};
use crate::app_state::AppState;
use crate::body::BodyError;
use crate::error::Error;
use crate::{json, response};

/// Enough for ids and an error message. What a notification without a proof says is not used.
const MAX_UNPROVEN_BYTES: usize = 16 << 10;

/// The end of a task, as a task instance reports it. Further fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = InstancesNotification)]
pub(crate) struct NotifyBody {
    /// The id under which the instance knows the task.
    task_id: String,
    /// The instance's own id; ignored.
    #[serde(default, rename = "instance_id")]
    #[schema(value_type = Option<String>)]
    _instance: Option<serde::de::IgnoredAny>,
    /// How long it ran, in milliseconds.
    #[serde(default)]
    execution_time: Option<f64>,
    /// `completed` or `failed`.
    #[serde(default)]
    status: Option<String>,
    /// The result, kept as it is; fetched from the instance if it is left out.
    #[serde(default)]
    #[schema(value_type = Value, nullable)]
    result: Option<Box<RawValue>>,
    /// The error.
    #[serde(default)]
    #[schema(value_type = Value, nullable)]
    error: Option<serde_json::Value>,
}

/// The proof.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct NotifyParams {
    /// The secret of the attempt.
    #[serde(default)]
    secret: Option<String>,
}

/// The notification has arrived.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstancesNotified)]
pub(crate) struct NotifyResponse {
    status: Status,
}

/// A task instance reports the end of a task.
#[utoipa::path(
    post, path = "/notify/task_complete", tag = "task instances", params(NotifyParams), request_body = NotifyBody,
    responses(
        (status = 200, description = "The notification has arrived; it may still be ignored", body = NotifyResponse),
        (status = "4XX", description = "The body cannot be read", body = Envelope),
    )
)]
pub(crate) async fn task_complete(
    State(app): State<AppState>,
    proof: Result<Query<NotifyParams>, QueryRejection>,
    request: Request,
) -> Response {
    respond(&app, proof.ok().and_then(|proof| proof.0.secret), request).await
}

/// A task instance reports the end of a task.
#[utoipa::path(
    post, path = "/notify/task_complete/{secret}", tag = "task instances",
    params(("secret" = String, Path, description = "The secret of the attempt")), request_body = NotifyBody,
    responses(
        (status = 200, description = "The notification has arrived; it may still be ignored", body = NotifyResponse),
        (status = "4XX", description = "The body cannot be read", body = Envelope),
    )
)]
pub(crate) async fn task_complete_with_secret(
    State(app): State<AppState>,
    secret: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    respond(&app, secret.ok().map(|secret| secret.0), request).await
}

/// A task instance of SwarmPilot reports the end of a task. It has no secret, so its report is verified by asking the
/// instance for the result.
#[utoipa::path(
    post, path = "/result/submit", tag = "task instances", request_body = NotifyBody,
    responses(
        (status = 200, description = "The report has arrived; it may still be ignored", body = Envelope),
        (status = "4XX", description = "The body cannot be read", body = Envelope),
    )
)]
pub(crate) async fn result_submitted(State(app): State<AppState>, request: Request) -> Response {
    envelope::respond(read(&app, None, request).await.map(|body| deliver(&app, None, body)))
}

async fn respond(app: &AppState, secret: Option<String>, request: Request) -> Response {
    match read(app, secret.as_deref(), request).await {
        Ok(body) => {
            deliver(app, secret, body);
            response::json(StatusCode::OK, &NotifyResponse { status: Status::Success })
        }
        Err(error) => envelope::error_envelope(&error),
    }
}

fn deliver(app: &AppState, secret: Option<String>, body: NotifyBody) {
    app.service.deliver_notification(InstanceNotification {
        task: body.task_id,
        secret,
        status: body.status,
        result: body.result.map(|result| Payload::from(result.get().as_bytes())),
        error: body.error.map(text),
        execution_time_ms: body.execution_time,
    });
}

async fn read(app: &AppState, secret: Option<&str>, request: Request) -> Result<NotifyBody, Error> {
    json::check_type(request.headers())?;
    let (parts, body) = request.into_parts();
    if secret.is_some_and(|secret| app.service.knows_secret(secret)) {
        return json::parse_object(&app.bodies.read(&parts.headers, body).await?);
    }
    let read = app.bodies.read_up_to(MAX_UNPROVEN_BYTES, &parts.headers, body).await;
    json::parse_object(&read.map_err(|error| match error {
        BodyError::TooLarge(most) => {
            let message = format!(
                "a body of more than {most} bytes needs the secret of an attempt that has not ended; \
                 notify without the result, and it is fetched"
            );
            Error { message, ..Error::from(error) }
        }
        other => Error::from(other),
    })?)
}

/// An error is a string; any other value is shown as JSON.
fn text(error: serde_json::Value) -> String {
    match error {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    }
}
