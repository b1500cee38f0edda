//! `/v1/models`: the models of the workers that the scheduler knows.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hypha_model::Name;
use serde::Serialize;
use utoipa::ToSchema;

use super::catalogue::Catalogue;
use super::error::{OpenAiError, OpenAiErrorBody};
use crate::app_state::AppState;
use crate::response;

/// All models.
#[derive(Serialize, ToSchema)]
#[schema(as = OpenAiModelList)]
struct ModelList {
    /// Always `list`.
    object: &'static str,
    /// In the order of their names.
    data: Vec<Model>,
}

/// A model that some worker serves.
#[derive(Serialize, ToSchema)]
#[schema(as = OpenAiModel)]
struct Model {
    /// Its name, for the field `model` of a request.
    #[schema(value_type = String)]
    id: Name,
    /// Always `model`.
    object: &'static str,
    /// When this scheduler first saw a worker that serves it, in seconds since 1970.
    created: u64,
    /// Always `hypha`.
    owned_by: &'static str,
}

impl Model {
    fn new((id, created): (Name, u64)) -> Model {
        Model { id, object: "model", created, owned_by: "hypha" }
    }
}

/// Lists the models that are served.
///
/// Workers that accept any model add none to the list.
#[utoipa::path(
    get, path = "/v1/models", tag = "openai", operation_id = "list_models",
    responses(
        (status = 200, description = "The models", body = ModelList),
        (status = 401, description = "The token is missing or unknown", body = crate::error::ErrorBody),
    )
)]
pub(super) async fn list(catalogue: &Catalogue, app: AppState) -> Response {
    let models = catalogue.list(&*app.service).await;
    let data = models.into_iter().map(Model::new).collect();
    response::json(StatusCode::OK, &ModelList { object: "list", data })
}

/// Shows one model.
#[utoipa::path(
    get, path = "/v1/models/{id}", tag = "openai", operation_id = "show_model",
    params(("id" = String, Path, description = "The name of the model; slashes need not be escaped")),
    responses(
        (status = 200, description = "The model", body = Model),
        (status = 401, description = "The token is missing or unknown", body = crate::error::ErrorBody),
        (status = 404, description = "No worker serves it", body = OpenAiErrorBody),
    )
)]
pub(super) async fn show(catalogue: &Catalogue, app: AppState, id: Option<String>) -> Response {
    // A name that is not UTF-8 is unknown.
    let Some(id) = id else { return OpenAiError::unknown_model("?").into_response() };
    match catalogue.find_with_created(&*app.service, &id).await {
        Some(model) => response::json(StatusCode::OK, &Model::new(model)),
        None => OpenAiError::unknown_model(&id).into_response(),
    }
}
