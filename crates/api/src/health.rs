//! What machines look at: `/healthz`, `/readyz`, `/metrics` and `/openapi.json`.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::HeaderValue;
use axum::response::Response;
use axum::routing::get;
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};

use crate::caller::Caller;
use crate::reply;
use crate::surface::Surface;

/// The routes.
pub(crate) fn routes() -> Router<Surface> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi_json))
}

/// What the routes take and give.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    #[derive(OpenApi)]
    #[openapi(
        paths(healthz, readyz, metrics, openapi_json),
        tags((name = "health", description = "For those who watch over the scheduler"))
    )]
    struct Document;
    Document::openapi()
}

/// How it is.
#[derive(Serialize, ToSchema)]
#[schema(as = Health)]
pub(crate) struct HealthBody {
    /// `ok` or `not ready`.
    status: &'static str,
    /// Why it should get no requests at present.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// Whether the process answers.
#[utoipa::path(
    get, path = "/healthz", tag = "health",
    responses((status = 200, description = "It answers", body = HealthBody))
)]
async fn healthz() -> Response {
    reply::json(StatusCode::OK, &HealthBody { status: "ok", problems: Vec::new() })
}

/// Whether it should get requests.
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses(
        (status = 200, description = "It should get requests", body = HealthBody),
        (status = 503, description = "It should not", body = HealthBody),
    )
)]
async fn readyz(State(surface): State<Surface>) -> Response {
    let problems = surface.backend.problems();
    let (status, word) = match problems.is_empty() {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    };
    reply::json(status, &HealthBody { status: word, problems })
}

/// Figures in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, description = "The figures", content_type = "text/plain", body = String))
)]
async fn metrics(State(surface): State<Surface>, _: Caller) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    reply::with_type(StatusCode::OK, kind, Body::from(surface.backend.metrics()))
}

/// What all surfaces look like to a program.
#[utoipa::path(
    get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "An OpenAPI document", content_type = "application/json"))
)]
async fn openapi_json(State(surface): State<Surface>) -> Response {
    let document = surface.document.get_or_init(|| {
        let document = crate::document::whole(surface.settings.version);
        serde_json::to_vec(&document).unwrap_or_default().into()
    });
    reply::raw_json(StatusCode::OK, document.clone())
}
