//! `/notify/task_complete` and `/result/submit`: task instances report the end of a task here.
//!
//! No token is required: the secret in the address is the proof, and the scheduler verifies anything else at
//! the instance itself. The response does not reveal whether the secret was right.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use hypha_engine::InstanceNotification;
use hypha_model::Payload;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::envelope::{self, Envelope, Status};
use crate::app_state::AppState;
use crate::error::Error;
use crate::json::Json;
use crate::response;

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
    body: Result<Json<NotifyBody>, Error>,
) -> Response {
    accept_notification(&app, proof.ok().and_then(|proof| proof.0.secret), body)
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
    body: Result<Json<NotifyBody>, Error>,
) -> Response {
    accept_notification(&app, secret.ok().map(|secret| secret.0), body)
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
pub(crate) async fn result_submitted(
    State(app): State<AppState>,
    body: Result<Json<NotifyBody>, Error>,
) -> Response {
    envelope::respond(body.map(|Json(body)| deliver(&app, None, body)))
}

fn accept_notification(
    app: &AppState,
    secret: Option<String>,
    body: Result<Json<NotifyBody>, Error>,
) -> Response {
    match body {
        Ok(Json(body)) => {
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

/// An error is a string; any other value is shown as JSON.
fn text(error: serde_json::Value) -> String {
    match error {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    }
}
