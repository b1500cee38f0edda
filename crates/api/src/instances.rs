//! The task instance API: strategy, predictor, registration, queue and task queries.
//!
//! Every response has the fields that a client of this API expects, even an error, whose HTTP status says
//! more.

mod configure;
pub(crate) mod envelope;
mod metadata;
mod notify;
mod queue;
mod task;
mod workers;

use axum::Router;
use axum::http::Method;
use axum::response::Response;
use axum::routing::{get, post};
use utoipa::OpenApi;

use crate::app_state::AppState;
use crate::error::Error;

pub(crate) use metadata::predictor_metadata;

/// The routes.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/scheduler/set", post(configure::set_strategy))
        .route("/scheduler/predict_mode", post(configure::set_mode))
        .route("/ti/register", post(workers::register))
        .route("/ti/remove", post(workers::remove))
        .route("/queue/submit", post(queue::submit))
        .route("/queue/info", get(queue::info).post(queue::info_from_body))
        .route("/task/query", get(task::query).post(task::query_from_body))
        .route("/notify/task_complete", post(notify::task_complete))
        .route("/notify/task_complete/{secret}", post(notify::task_complete_with_secret))
        .route("/result/submit", post(notify::result_submitted))
        .method_not_allowed_fallback(wrong_method)
}

/// The schemas of the routes.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

#[derive(OpenApi)]
#[openapi(
    paths(
        configure::set_strategy,
        configure::set_mode,
        workers::register,
        workers::remove,
        queue::submit,
        queue::info,
        queue::info_from_body,
        task::query,
        task::query_from_body,
        notify::task_complete,
        notify::task_complete_with_secret,
        notify::result_submitted,
    ),
    tags((name = "task instances", description = "Queues of task instances, with predicted waiting times"))
)]
struct Document;

async fn wrong_method(method: Method) -> Response {
    envelope::error_envelope(&Error::wrong_method(&method))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Every schema that `value` refers to.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(|to| to.as_str().map(str::to_owned)));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_route_is_described_with_schemas_that_exist() {
        let document = serde_json::to_value(openapi()).unwrap();
        let described: Vec<String> = (document["paths"].as_object().unwrap().iter())
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(move |method| format!("{method} {path}"))
            })
            .collect();
        let expected = [
            "post /notify/task_complete",
            "post /notify/task_complete/{secret}",
            "get /queue/info",
            "post /queue/info",
            "post /queue/submit",
            "post /result/submit",
            "post /scheduler/predict_mode",
            "post /scheduler/set",
            "get /task/query",
            "post /task/query",
            "post /ti/register",
            "post /ti/remove",
        ];
        assert_eq!(described, expected);
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let path = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(path).is_some(), "{reference}");
        }
    }
}
