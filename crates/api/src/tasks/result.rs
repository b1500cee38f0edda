//! `GET /api/v1/tasks/{id}/result`: the bytes of a result, however many.

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::HeaderValue;
use axum::response::Response;
use hypha_model::TaskResult;

use super::lookup;
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::Error;
use crate::json::PortableJson;
use crate::params::TaskPath;
use crate::{object, response};

/// The result of a task, unchanged: JSON, text or any bytes.
#[utoipa::path(
    get, path = "/api/v1/tasks/{id}/result", tag = "tasks",
    params(("id" = String, Path, description = "The task", pattern = "^task-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    responses(
        (
            status = 200, description = "The result",
            content(("application/json"), ("text/plain"), ("application/octet-stream"))
        ),
        (status = 404, description = "There is no such task, or it has no result", body = crate::error::ErrorBody),
        (status = 409, description = "The task has not ended", body = crate::error::ErrorBody),
        (status = 500, description = "The result has changed on the disk", body = crate::error::ErrorBody),
    )
)]
pub(crate) async fn result(
    State(app): State<AppState>,
    caller: Caller,
    TaskPath(id): TaskPath,
) -> Result<Response, Error> {
    let snapshot = lookup::find(&*app.service, &caller, id).await?;
    let Some(finished) = snapshot.finished() else {
        let message = format!("{id} has not ended; wait for it with /api/v1/tasks/{id}?wait=60");
        return Err(Error::conflict(message));
    };
    let Some(result) = &finished.result else {
        let error = finished.error.as_ref().map(ToString::to_string);
        let error = error.as_deref().unwrap_or("no reason is known");
        let state = finished.state;
        return Err(Error::not_found(format!("{id} has no result, it is {state}: {error}")));
    };
    match result {
        TaskResult::Inline { payload, .. } => {
            let kind = HeaderValue::from_static(kind_of(payload.bytes()));
            Ok(response::with_type(StatusCode::OK, kind, Body::from(payload.bytes().to_vec())))
        }
        TaskResult::Object(object) => {
            let kind = "application/octet-stream";
            object::respond(&*app.service, &caller, snapshot.accepted(), *object, kind).await
        }
    }
}

fn kind_of(bytes: &[u8]) -> &'static str {
    if serde_json::from_slice::<PortableJson>(bytes).is_ok() {
        "application/json"
    } else if std::str::from_utf8(bytes).is_ok() {
        "text/plain; charset=utf-8"
    } else {
        "application/octet-stream"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_their_content_type() {
        assert_eq!(kind_of(b"{\"a\": 1}"), "application/json");
        assert_eq!(kind_of(b"hello"), "text/plain; charset=utf-8");
        assert_eq!(kind_of(b"\xff\xd8"), "application/octet-stream");
    }
}
