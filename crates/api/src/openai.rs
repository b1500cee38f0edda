//! The OpenAI protocol: models, chat, completions, embeddings.
//!
//! A request is an interactive task: it is placed like any other and not stored. Its body goes to the back end
//! unchanged, and the response of the back end is returned unchanged, streamed or not.

mod call;
mod catalogue;
mod error;
mod forms;
mod models;
mod peek;
mod relay;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::Method;
use axum::response::Response;
use axum::routing::{MethodRouter, any, get, post};
use utoipa::OpenApi;

use crate::app_state::AppState;
use crate::caller::Caller;
use catalogue::Catalogue;
use relay::RelayState;

/// The routes.
pub(crate) fn routes() -> Router<AppState> {
    let catalogue = Arc::<Catalogue>::default();
    let relay_state = Arc::new(RelayState::new(Arc::clone(&catalogue)));
    let list = Arc::clone(&catalogue);
    Router::new()
        .route("/v1/chat/completions", relay_route(&relay_state, forms::chat_completions))
        .route("/v1/completions", relay_route(&relay_state, forms::completions))
        .route("/v1/embeddings", relay_route(&relay_state, forms::embeddings))
        .route(
            "/v1/models",
            get(async move |State(app), _: Caller| models::list(&list, app).await),
        )
        .route(
            // Names of models may contain slashes.
            "/v1/models/{*id}",
            get(async move |State(app), _: Caller, id: Result<Path<String>, PathRejection>| {
                models::show(&catalogue, app, id.map(|Path(id)| id).ok()).await
            }),
        )
        // Unknown routes of the protocol get an error in the protocol's format.
        .route("/v1/{*rest}", any(no_such_route))
        .method_not_allowed_fallback(wrong_method)
}

/// The state is captured rather than an extension, which would cost every request a lookup and an allocation.
fn relay_route<F: Future<Output = Response> + Send + 'static>(
    relay_state: &Arc<RelayState>,
    handler: fn(Arc<RelayState>, AppState, Caller, Request) -> F,
) -> MethodRouter<AppState> {
    let relay_state = Arc::clone(relay_state);
    post(move |State(app), caller, request| handler(relay_state, app, caller, request))
}

/// The OpenAPI document of the routes.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

#[derive(OpenApi)]
#[openapi(
    paths(
        forms::chat_completions,
        forms::completions,
        forms::embeddings,
        models::list,
        models::show,
    ),
    components(schemas(error::OpenAiErrorBody)),
    tags((name = "openai", description = "OpenAI's protocol, for the clients that speak it"))
)]
struct Document;

async fn no_such_route() -> error::OpenAiError {
    crate::error::no_such_route().await.into()
}

async fn wrong_method(method: Method) -> error::OpenAiError {
    error::OpenAiError::wrong_method(&method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_route_and_every_schema_that_it_names() {
        let document = serde_json::to_value(openapi()).unwrap();
        let routes: Vec<_> = document["paths"].as_object().unwrap().keys().collect();
        let expected = [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/embeddings",
            "/v1/models",
            "/v1/models/{id}",
        ];
        assert_eq!(routes, expected);
        let text = document.to_string();
        let named = text.split("#/components/schemas/").skip(1);
        let names: Vec<_> = named.filter_map(|rest| rest.split('"').next()).collect();
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            assert!(document["components"]["schemas"][name].is_object(), "{name} is missing");
        }
    }
}
