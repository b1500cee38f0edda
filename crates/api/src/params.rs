//! What requests say in their paths and queries, with errors in our shape.

use std::time::Duration;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use hypha_model::{TaskId, WorkerId};
use serde::de::DeserializeOwned;

use crate::error::Error;

/// The task that a path names.
pub(crate) struct TaskPath(pub(crate) TaskId);

/// The worker that a path names.
pub(crate) struct WorkerPath(pub(crate) WorkerId);

/// A query string; what is not known is refused, so that a misspelt filter does not list everything.
pub(crate) struct Params<T>(pub(crate) T);

/// The longest that a request may wait for the end of a task, in seconds: proxies give up soon after.
pub(crate) const MAX_WAIT_S: f64 = 300.0;

/// How long `wait` says.
pub(crate) fn wait(seconds: Option<f64>) -> Result<Option<Duration>, Error> {
    match seconds {
        None => Ok(None),
        Some(seconds) if (0.0..=MAX_WAIT_S).contains(&seconds) => {
            Ok((seconds > 0.0).then(|| Duration::from_secs_f64(seconds)))
        }
        Some(_) => Err(Error::bad_request(format!(
            "wait: give the seconds to wait, from 0 to {MAX_WAIT_S}"
        ))),
    }
}

async fn path<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, Error> {
    match Path::<String>::from_request_parts(parts, state).await {
        Ok(Path(text)) => Ok(text),
        Err(rejection) => Err(Error::bad_request(rejection.body_text())),
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TaskPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<TaskPath, Error> {
        let id = path(parts, state).await?.parse();
        id.map(TaskPath).map_err(|error| Error::bad_request(format!("{error}")))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for WorkerPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<WorkerPath, Error> {
        let id = path(parts, state).await?.parse();
        id.map(WorkerPath).map_err(|error| Error::bad_request(format!("{error}")))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Params<T>, Error> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(params)) => Ok(Params(params)),
            Err(rejection) => Err(Error::bad_request(rejection.body_text())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sensible_times_are_waited() {
        assert_eq!(wait(None), Ok(None));
        assert_eq!(wait(Some(0.0)), Ok(None));
        assert_eq!(wait(Some(0.5)), Ok(Some(Duration::from_millis(500))));
        for odd in [-1.0, 300.1, f64::NAN, f64::INFINITY] {
            assert!(wait(Some(odd)).is_err(), "{odd}");
        }
    }
}
