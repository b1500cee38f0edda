//! HTTP connections to back ends: resolves and checks addresses, and makes, keeps and reuses connections.

mod connection;
mod origin;

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hypha_engine::back_end::HealthCheck;
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
    /// The connection was not accepted in time: the back end is unreachable, or busy.
    #[error("no connection to {server}: it was not accepted within {within:?}")]
    NotAccepted {
        /// The back end.
        server: String,
        /// How long was waited.
        within: Duration,
    },
    /// The connection ended early, or the response is not HTTP.
    #[error("the connection to the back end failed: {0}")]
    Broken(String),
    /// The response is not whole, although the connection was closed in order.
    #[error("the response broke off: the back end closed the connection before the end")]
    Truncated,
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
        /// Its `Retry-After` in seconds.
        retry_after_s: Option<u32>,
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
        matches!(
            self,
            HttpError::Lookup { .. } | HttpError::Connect { .. } | HttpError::NotAccepted { .. }
        )
    }

    /// What it means as the result of a health check.
    pub fn health_check(&self) -> HealthCheck {
        match self {
            HttpError::TimedOut(_) | HttpError::NotAccepted { .. } => {
                HealthCheck::TimedOut(self.to_string())
            }
            _ => HealthCheck::Failed(self.to_string()),
        }
    }

    /// The failure kind for clients. The one place where errors of back ends become failures of tasks.
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            HttpError::TooLarge { .. } => FailureKind::LimitExceeded,
            HttpError::Status { status, .. } => FailureKind::of_http_status(*status),
            HttpError::Lookup { .. }
            | HttpError::Connect { .. }
            | HttpError::NotAccepted { .. } => FailureKind::BackendUnreachable,
            HttpError::TimedOut(_) => FailureKind::TimedOut,
            HttpError::Address(_)
            | HttpError::NotAllowed(_)
            | HttpError::Broken(_)
            | HttpError::Truncated
            | HttpError::Unhealthy(_) => FailureKind::BackendFailed,
        }
    }
}

impl From<HttpError> for TaskError {
    fn from(error: HttpError) -> TaskError {
        let kind = error.kind();
        match error {
            HttpError::Status { status, body, retry_after_s } => {
                TaskError { kind, message: body, status: Some(status), retry_after_s }
            }
            error => TaskError::new(kind, error.to_string()),
        }
    }
}
