//! The three forms of a request, which differ in nothing but what the model's server makes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use hypha_model::Form;
use utoipa::openapi::schema::{AnyOfBuilder, SchemaType};
use utoipa::openapi::{self, Content, Object, Ref, RefOr, ResponseBuilder, Schema};
use utoipa::{IntoResponses, ToSchema};

use super::relay::{Desk, answer};
use crate::caller::Caller;
use crate::surface::Surface;

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
struct Answers;

impl IntoResponses for Answers {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        let anything = || RefOr::T(Schema::Object(Object::with_type(SchemaType::AnyValue)));
        let ours = || Ref::from_schema_name("OpenAiError");
        let ours_or_the_server_s =
            || RefOr::T(Schema::AnyOf(AnyOfBuilder::new().item(ours()).item(anything()).build()));
        let passed = ResponseBuilder::new()
            .description("The answer of the model's server, as it came")
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
                    .content("application/json", Content::new(Some(ours_or_the_server_s())))
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
    ("400", "The body is not JSON, or names no model; or the model's server finds a fault with it"),
    ("401", "No token that is known"),
    ("404", "No worker serves the model"),
    ("408", "The body did not arrive in time"),
    ("410", "Somebody cancelled the request at the scheduler"),
    ("413", "The body is too large"),
    ("415", "The body is said not to be JSON"),
    ("429", "The queue is full, or the quota used up: `Retry-After` says when to try again"),
    ("4XX", "The model's server finds a fault with the request: its answer, as it came"),
    ("500", "The model's program failed, or its result cannot be given"),
    ("502", "The workers that tried it failed"),
    ("503", "No worker was free in time, or the scheduler cannot take anything at present"),
    ("504", "It took too long"),
];

/// Continues a conversation.
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "openai",
    request_body = OpenAiRequest, responses(Answers)
)]
pub(super) async fn chat_completions(
    desk: Arc<Desk>,
    surface: Surface,
    caller: Caller,
    request: Request,
) -> Response {
    answer(&desk, &surface, &caller, Form::Chat, request).await
}

/// Continues a text.
#[utoipa::path(
    post, path = "/v1/completions", tag = "openai",
    request_body = OpenAiRequest, responses(Answers)
)]
pub(super) async fn completions(
    desk: Arc<Desk>,
    surface: Surface,
    caller: Caller,
    request: Request,
) -> Response {
    answer(&desk, &surface, &caller, Form::Completion, request).await
}

/// Embeds texts as vectors. `stream` has no effect here.
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "openai",
    request_body = OpenAiRequest, responses(Answers)
)]
pub(super) async fn embeddings(
    desk: Arc<Desk>,
    surface: Surface,
    caller: Caller,
    request: Request,
) -> Response {
    answer(&desk, &surface, &caller, Form::Embedding, request).await
}
