//! Routes for machines: `/healthz`, `/readyz`, `/metrics` and `/openapi.json`.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::HeaderValue;
use axum::response::Response;
use axum::routing::get;
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};

use crate::app_state::AppState;
use crate::caller::Caller;
use crate::response;

/// The routes.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi_json))
}

/// The schemas of the routes.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    #[derive(OpenApi)]
    #[openapi(
        paths(healthz, readyz, metrics, openapi_json),
        tags((name = "health", description = "For monitoring"))
    )]
    struct Document;
    Document::openapi()
}

/// The state of the scheduler.
#[derive(Serialize, ToSchema)]
#[schema(as = Health)]
pub(crate) struct ReadinessBody {
    /// `ok` or `not ready`.
    status: &'static str,
    /// Why it should get no requests at present.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// Whether the process responds.
#[utoipa::path(
    get, path = "/healthz", tag = "health",
    responses((status = 200, description = "The process responds", body = ReadinessBody))
)]
async fn healthz() -> Response {
    response::json(StatusCode::OK, &ReadinessBody { status: "ok", problems: Vec::new() })
}

/// Whether the scheduler should get requests.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses(
        (status = 200, description = "The scheduler is ready", body = ReadinessBody),
        (status = 503, description = "The scheduler is not ready", body = ReadinessBody),
    )
)]
async fn readyz(State(app): State<AppState>) -> Response {
    let problems = app.service.problems();
    let (status, word) = match problems.is_empty() {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    };
    response::json(status, &ReadinessBody { status: word, problems })
}

/// Metrics in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, description = "The metrics", content_type = "text/plain", body = String))
)]
async fn metrics(State(app): State<AppState>, _: Caller) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response::with_type(StatusCode::OK, kind, Body::from(app.service.metrics()))
}

/// The OpenAPI document of all routes.
#[utoipa::path(
    get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "An OpenAPI document", content_type = "application/json"))
)]
async fn openapi_json(State(app): State<AppState>) -> Response {
    let document = app.document.get_or_init(|| {
        let document = crate::document::openapi_document(app.settings.version);
        serde_json::to_vec(&document).unwrap_or_default().into()
    });
    response::raw_json(StatusCode::OK, document.clone())
}
