//! HTTP connections to back ends: resolves and checks addresses, and makes, keeps and reuses connections.

mod connection;
mod origin;

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hypha_model::{FailureKind, TaskError};
use thiserror::Error;

pub(crate) use connection::Exchange;
pub(crate) use origin::{Origin, Target};

/// A back end that does not accept a connection for this long is unreachable.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there was no response, or not all of it.
#[derive(Debug, Error)]
pub enum HttpError {
    /// The address is invalid.
    #[error("{0}")]
    Address(String),
    /// The name of the host cannot be resolved.
    #[error("the host {host} could not be found ({reason}): check its name")]
    Lookup {
        /// The host.
        host: String,
        /// The system's error.
        reason: String,
    },
    /// The host is not one that may be called.
    #[error("{0} is outside of the allowed networks")]
    NotAllowed(IpAddr),
    /// The connection was not accepted.
    #[error("no connection to {server}: {reason}")]
    Connect {
        /// The back end.
        server: String,
        /// The system's error.
        reason: String,
    },
    /// The connection ended early, or the response is not HTTP.
    #[error("the connection to the back end failed: {0}")]
    Broken(String),
    /// It took too long.
    #[error("the back end did not answer within {0:?}")]
    TimedOut(Duration),
    /// The response is larger than the limit.
    #[error("the response is larger than the limit of {limit_bytes} bytes")]
    TooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// The back end reports that it cannot work.
    #[error("{0}")]
    Unhealthy(String),
    /// The back end responded with a status other than success.
    #[error("the back end answered {status}: {body}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The body of the response.
        body: String,
    },
}

/// Locks, and ignores poisoning: nothing in this crate panics while it holds a lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpError {
    pub(crate) fn broken(error: &hyper::Error) -> HttpError {
        // The cause has what happened ("connection reset by peer"), the error itself only where.
        let cause = std::error::Error::source(error);
        HttpError::Broken(
            cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")),
        )
    }

    /// Whether no connection was made, so that the back end has not received the request.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, HttpError::Lookup { .. } | HttpError::Connect { .. })
    }

    /// The failure kind for clients. The one place where errors of back ends become failures of tasks.
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            HttpError::TooLarge { .. } => FailureKind::LimitExceeded,
            HttpError::Status { status, .. } => failure_kind(*status),
            HttpError::Lookup { .. } | HttpError::Connect { .. } => FailureKind::BackendUnreachable,
            HttpError::TimedOut(_) => FailureKind::TimedOut,
            HttpError::Address(_)
            | HttpError::NotAllowed(_)
            | HttpError::Broken(_)
            | HttpError::Unhealthy(_) => FailureKind::BackendFailed,
        }
    }
}

impl From<HttpError> for TaskError {
    fn from(error: HttpError) -> TaskError {
        let kind = error.kind();
        match error {
            HttpError::Status { status, body } => {
                TaskError { kind, message: body, status: Some(status) }
            }
            error => TaskError::new(kind, error.to_string()),
        }
    }
}

/// Whether a status means that the request is at fault, or the back end. 408 and 429 are temporary; 401, 403 and 407
/// are about the key that the operator gave for the back end.
fn failure_kind(status: u16) -> FailureKind {
    match status {
        401 | 403 | 407 | 408 | 429 | 500.. => FailureKind::BackendFailed,
        400..500 => FailureKind::InvalidInput,
        _ => FailureKind::BackendFailed,
    }
}
