//! The three forms of a request, which differ in nothing but what the model's server makes of them.

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

/// A request. Whatever else it holds goes to the model's server as it is.
#[derive(ToSchema)]
#[expect(dead_code, reason = "for the document only: a request is not taken apart")]
struct OpenAiRequest {
    /// A model from `/v1/models`.
    #[schema(min_length = 1)]
    model: String,
    /// Whether the answer is wanted piece by piece, as server-sent events.
    stream: Option<bool>,
}

/// What these routes answer.
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
                // Refused before it is known which surface is meant.
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
    ("401", "No token that is known"),
    ("404", "No worker serves the model"),
    ("408", "The body did not arrive in time"),
    ("410", "The request was cancelled at the scheduler"),
    ("413", "The body is too large"),
    ("415", "The body is said not to be JSON"),
    ("429", "The queue is full, or the quota used up: `Retry-After` says when to try again"),
    ("4XX", "The back end refuses the request: its response, unchanged"),
    ("500", "The model's program failed, or its result cannot be given"),
    ("502", "Every attempt failed"),
    ("503", "No worker was free in time, or the scheduler cannot take anything at present"),
    ("504", "It took too long"),
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
