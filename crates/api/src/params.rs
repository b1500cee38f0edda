//! Path and query parameters of requests, with errors in our shape.

use std::time::Duration;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use hypha_model::{JobId, TaskId, WorkerId};
use serde::de::DeserializeOwned;

use crate::error::Error;

/// The task that a path names.
pub(crate) struct TaskPath(pub(crate) TaskId);

/// The job that a path names.
pub(crate) struct JobPath(pub(crate) JobId);

/// The worker that a path names.
pub(crate) struct WorkerPath(pub(crate) WorkerId);

/// A query string; unknown parameters are refused, so that a misspelt filter does not list everything.
pub(crate) struct QueryParams<T>(pub(crate) T);

/// The parameters of a query string.
pub(crate) trait QueryFields: DeserializeOwned {
    /// The name of each parameter, and what to give for it.
    const EXPECTED: &'static [(&'static str, &'static str)];
}

/// For a route without parameters.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParams {}

impl QueryFields for NoParams {
    const EXPECTED: &'static [(&'static str, &'static str)] = &[];
}

/// The parameters of a query string, or a message about its fault.
pub(crate) fn parse_query<T: QueryFields>(uri: &Uri) -> Result<T, Error> {
    match Query::<T>::try_from_uri(uri) {
        Ok(Query(params)) => Ok(params),
        Err(_) => Err(Error::bad_request(describe_query_error::<T>(uri))),
    }
}

/// The fault of a query string that cannot be read.
fn describe_query_error<T: QueryFields>(uri: &Uri) -> String {
    let names: Vec<String> = T::EXPECTED.iter().map(|(name, _)| format!("`{name}`")).collect();
    let mut seen = Vec::new();
    for part in uri.query().unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
        let alone = format!("/?{part}").parse::<Uri>().unwrap_or_default();
        let Ok(Query(pairs)) = Query::<Vec<(String, String)>>::try_from_uri(&alone) else {
            continue;
        };
        let Some((name, value)) = pairs.into_iter().next() else { continue };
        let Some((_, expected)) = T::EXPECTED.iter().find(|(known, _)| *known == name) else {
            let truncated = truncated(&name);
            return match names.as_slice() {
                [] => format!("`{truncated}` is not a parameter of this route; there are none"),
                [only] => {
                    format!(
                        "`{truncated}` is not a parameter of this route; the only one is {only}"
                    )
                }
                _ => format!(
                    "`{truncated}` is not a parameter of this route; there are {}",
                    names.join(", ")
                ),
            };
        };
        if seen.contains(&name) {
            return format!("`{name}` is given twice; give it once");
        }
        // Where another parameter is required, each fails alone, and the fault is that the other is missing.
        if Query::<T>::try_from_uri(&alone).is_err()
            && Query::<T>::try_from_uri(&Uri::default()).is_ok()
        {
            return format!("{name}: `{}` is refused: give {expected}", truncated(&value));
        }
        seen.push(name);
    }
    if Query::<T>::try_from_uri(&Uri::default()).is_ok() {
        return "the query cannot be read: write NAME=VALUE, with & between them".to_owned();
    }
    let missing: Vec<String> = T::EXPECTED
        .iter()
        .filter(|(name, _)| !seen.iter().any(|one| one == name))
        .map(|(name, expected)| format!("`{name}` is missing: give {expected}"))
        .collect();
    missing.join("; ")
}

/// The client's input, cut to what helps to find the fault.
fn truncated(given: &str) -> String {
    given.chars().take(MAX_SHOWN_CHARS).collect()
}

/// Longer than any valid name or value.
const MAX_SHOWN_CHARS: usize = 80;

/// The longest time that a request may wait for the end of a task, in seconds: proxies give up soon after.
pub(crate) const MAX_WAIT_S: f64 = 300.0;

/// The value of `wait`.
pub(crate) fn parse_wait(seconds: Option<f64>) -> Result<Option<Duration>, Error> {
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

async fn path_param<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, Error> {
    match Path::<String>::from_request_parts(parts, state).await {
        Ok(Path(text)) => Ok(text),
        Err(rejection) => Err(Error::bad_request(rejection.body_text())),
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TaskPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<TaskPath, Error> {
        let id = path_param(parts, state).await?.parse();
        id.map(TaskPath).map_err(|error| Error::bad_request(format!("{error}")))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for JobPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<JobPath, Error> {
        let id = path_param(parts, state).await?.parse();
        id.map(JobPath).map_err(|error| Error::bad_request(format!("{error}")))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for WorkerPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<WorkerPath, Error> {
        let id = path_param(parts, state).await?.parse();
        id.map(WorkerPath).map_err(|error| Error::bad_request(format!("{error}")))
    }
}

impl<T: QueryFields, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<QueryParams<T>, Error> {
        parse_query(&parts.uri).map(QueryParams)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_wait_times_are_accepted() {
        assert_eq!(parse_wait(None), Ok(None));
        assert_eq!(parse_wait(Some(0.0)), Ok(None));
        assert_eq!(parse_wait(Some(0.5)), Ok(Some(Duration::from_millis(500))));
        for odd in [-1.0, 300.1, f64::NAN, f64::INFINITY] {
            assert!(parse_wait(Some(odd)).is_err(), "{odd}");
        }
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Sample {
        limit: Option<u8>,
        name: Option<String>,
    }

    impl QueryFields for Sample {
        const EXPECTED: &'static [(&'static str, &'static str)] =
            &[("limit", "a number from 1 to 9"), ("name", "a name")];
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Needed {
        id: String,
    }

    impl QueryFields for Needed {
        const EXPECTED: &'static [(&'static str, &'static str)] = &[("id", "the id of a task")];
    }

    #[test]
    fn invalid_query_is_refused_with_a_helpful_message() {
        let of = |query: &str| format!("/x{query}").parse::<Uri>().unwrap();
        let said = |query: &str| parse_query::<Sample>(&of(query)).unwrap_err().message;
        assert!(parse_query::<Sample>(&of("?limit=7&name=a%20b&")).is_ok());
        let unknown = "`foo` is not a parameter of this route; there are `limit`, `name`";
        assert_eq!(said("?limit=7&foo=1"), unknown);
        assert_eq!(said("?fo%6F"), unknown);
        assert_eq!(said("?limit=1&limit=2"), "`limit` is given twice; give it once");
        let refused = "limit: `x y` is refused: give a number from 1 to 9";
        assert_eq!(said("?name=x&limit=x+y"), refused);
        assert!(said(&format!("?{}=1", "x".repeat(5_000))).len() < 300);

        let none = parse_query::<NoParams>(&of("?foo=1")).err().unwrap().message;
        assert_eq!(none, "`foo` is not a parameter of this route; there are none");
        assert!(parse_query::<NoParams>(&of("?")).is_ok());

        let said = |query: &str| parse_query::<Needed>(&of(query)).unwrap_err().message;
        assert_eq!(said(""), "`id` is missing: give the id of a task");
        assert_eq!(said("?x=1"), "`x` is not a parameter of this route; the only one is `id`");
        assert_eq!(said("?id=1&id=2"), "`id` is given twice; give it once");
    }
}
