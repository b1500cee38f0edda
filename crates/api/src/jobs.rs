//! Jobs: `/api/v1/jobs` and the routes below it.

mod events;
mod form;
mod list;
mod query;
mod reason;
mod view;

use axum::Router;
use axum::routing::get;
use utoipa::OpenApi;

use crate::app_state::AppState;

/// The routes.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/api/v1/jobs", get(list::list).post(query::submit))
        .route("/api/v1/jobs/{id}", get(query::get).delete(query::cancel))
        .route("/api/v1/jobs/{id}/events", get(events::events))
}

/// The schemas of the routes.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    #[derive(OpenApi)]
    #[openapi(
        paths(query::submit, list::list, query::get, query::cancel, events::events),
        tags((name = "jobs", description = "Work of several workers at once, all of them or none"))
    )]
    struct Document;
    Document::openapi()
}
