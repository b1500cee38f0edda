//! The three forms of a request. Only the back end treats them differently.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use hypha_model::InputKind;
use utoipa::openapi::schema::{AnyOfBuilder, SchemaType};
use utoipa::openapi::{self, Content, Object, Ref, RefOr, ResponseBuilder, Schema};
use utoipa::{IntoResponses, ToSchema};

use super::relay::{RelayState, respond};
use crate::app_state::AppState;
use crate::caller::Caller;

/// A request. All other fields go to the back end unchanged.
#[derive(ToSchema)]
#[expect(dead_code, reason = "for the OpenAPI document only: requests are not parsed into it")]
struct OpenAiRequest {
    /// A model from `/v1/models`.
    #[schema(min_length = 1)]
    model: String,
    /// Whether to stream the response as server-sent events.
    stream: Option<bool>,
}

/// The responses of these routes.
struct RelayResponses;

impl IntoResponses for RelayResponses {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let anything = || RefOr::T(Schema::Object(Object::with_type(SchemaType::AnyValue)));
        let ours = || Ref::from_schema_name("OpenAiError");
        let ours_or_forwarded =
            || RefOr::T(Schema::AnyOf(AnyOfBuilder::new().item(ours()).item(anything()).build()));
        let passed = ResponseBuilder::new()
            .description("The response of the back end, unchanged")
            .content("application/json", Content::new(Some(anything())))
            .content("text/event-stream", Content::new(Some(anything())))
            .content("application/octet-stream", Content::new(Some(anything())))
            .build();
        let refused = |(status, description): (&str, &str)| {
            let response = ResponseBuilder::new().description(description);
            let response = match status {
                // Refused before the request is routed.
                "401" => {
                    let schema = Ref::from_schema_name("Error");
                    response.content("application/json", Content::new(Some(schema)))
                }
                _ if status.starts_with('4') => response
                    .content("application/json", Content::new(Some(ours_or_forwarded())))
                    .content("text/plain", Content::new(Some(anything()))),
                _ => response.content("application/json", Content::new(Some(ours()))),
            };
            (status.to_owned(), response.build().into())
        };
        let mut responses: BTreeMap<_, _> = REFUSALS.into_iter().map(refused).collect();
        responses.insert("200".to_owned(), passed.into());
        responses
    }
}

const REFUSALS: [(&str, &str); 13] = [
    ("400", "The body is not JSON, or names no model; or the back end refuses it"),
    ("401", "The token is missing or unknown"),
    ("404", "No worker serves the model"),
    ("408", "The body did not arrive in time"),
    ("410", "The request was cancelled at the scheduler"),
    ("413", "The body is too large"),
    ("415", "The content type is not JSON"),
    ("429", "The queue is full, or the quota is used up; retry after `Retry-After` seconds"),
    ("4XX", "The back end refuses the request: its response, unchanged"),
    ("500", "The model's program failed, or its result cannot be returned"),
    ("502", "Every attempt failed"),
    ("503", "No worker was free in time, or the scheduler accepts no requests at present"),
    ("504", "The request timed out"),
];

/// Continues a conversation.
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "openai",
    request_body = OpenAiRequest, responses(RelayResponses)
)]
pub(super) async fn chat_completions(
    relay_state: Arc<RelayState>,
    app: AppState,
    caller: Caller,
    request: Request,
) -> Response {
    respond(&relay_state, &app, &caller, InputKind::Chat, request).await
}

/// Continues a text.
#[utoipa::path(
    post, path = "/v1/completions", tag = "openai",
    request_body = OpenAiRequest, responses(RelayResponses)
)]
pub(super) async fn completions(
    relay_state: Arc<RelayState>,
    app: AppState,
    caller: Caller,
    request: Request,
) -> Response {
    respond(&relay_state, &app, &caller, InputKind::Completion, request).await
}

/// Embeds texts as vectors. `stream` has no effect here.
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "openai",
    request_body = OpenAiRequest, responses(RelayResponses)
)]
pub(super) async fn embeddings(
    relay_state: Arc<RelayState>,
    app: AppState,
    caller: Caller,
    request: Request,
) -> Response {
    respond(&relay_state, &app, &caller, InputKind::Embedding, request).await
}
