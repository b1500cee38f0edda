//! Results that are too large to be kept with their task. Their bytes are only served through the task, for
//! callers who may see it.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, HeaderValue};
use axum::response::Response;
use hypha_engine::record::AcceptedTask;
use hypha_model::ObjectRef;

use crate::caller::Caller;
use crate::error::Error;
use crate::response;
use crate::service::{ObjectError, SchedulerApi};
use crate::tasks::lookup;

/// A response with the bytes of the object that is the result of `task`.
pub(crate) async fn respond(
    service: &dyn SchedulerApi,
    caller: &Caller,
    task: &AcceptedTask,
    object: ObjectRef,
    kind: &'static str,
) -> Result<Response, Error> {
    if !caller.may_see(&task.spec) {
        return Err(lookup::not_found(task.id));
    }
    let Some(object) = service.object(task.id, object).await? else {
        return Err(Error::not_found(format!("the result of {} is no longer kept", task.id)));
    };
    let kind = HeaderValue::from_static(kind);
    let mut response = response::with_type(StatusCode::OK, kind, Body::from_stream(object.pieces));
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(object.bytes));
    Ok(response)
}

impl From<ObjectError> for Error {
    fn from(error: ObjectError) -> Error {
        match error {
            ObjectError::Corrupt => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Error::new(status, "corrupt_object", error.to_string())
            }
            ObjectError::Unavailable(unavailable) => unavailable.into(),
        }
    }
}
