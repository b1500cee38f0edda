//! Tasks: `/api/v1/tasks` and the routes below it.

pub(crate) mod events;
mod explain;
pub(crate) mod form;
mod list;
pub(crate) mod lookup;
mod query;
mod reason;
mod result;
mod submit;
pub(crate) mod view;

use axum::Router;
use axum::routing::get;
use utoipa::OpenApi;

use crate::app_state::AppState;

/// The routes.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/api/v1/tasks", get(list::list).post(submit::submit))
        .route("/api/v1/tasks/{id}", get(query::get).delete(query::cancel))
        .route("/api/v1/tasks/{id}/events", get(events::events))
        .route("/api/v1/tasks/{id}/explain", get(explain::explain))
        .route("/api/v1/tasks/{id}/result", get(result::result))
}

/// The schemas of the routes.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    #[derive(OpenApi)]
    #[openapi(
        paths(
            submit::submit,
            list::list,
            query::get,
            query::cancel,
            events::events,
            explain::explain,
            result::result,
        ),
        components(schemas(events::EventBody)),
        tags((name = "tasks", description = "Requests to a model, each for one result"))
    )]
    struct Document;
    Document::openapi()
}
