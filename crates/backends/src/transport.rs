//! How servers are reached: names looked up and checked, connections made, kept and used again.

mod connection;
mod origin;

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hypha_model::{FailureKind, TaskError};
use thiserror::Error;

pub(crate) use connection::Exchange;
pub(crate) use origin::{Origin, Target};

/// A server that does not accept a connection for this long is not there, or cannot be used.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there was no answer, or not all of it.
#[derive(Debug, Error)]
pub enum HttpError {
    /// The address makes no sense.
    #[error("{0}")]
    Address(String),
    /// The name of the host is not known.
    #[error("the host {host} could not be found ({reason}): check its name")]
    Lookup {
        /// The host.
        host: String,
        /// What the system said.
        reason: String,
    },
    /// The host is not one that may be called.
    #[error("{0} is outside of the allowed networks")]
    NotAllowed(IpAddr),
    /// Nobody accepts the connection.
    #[error("no connection to {server}: {reason}")]
    Connect {
        /// The server.
        server: String,
        /// What the system said.
        reason: String,
    },
    /// The connection ended early, or what came over it is not HTTP.
    #[error("the connection to the back end failed: {0}")]
    Broken(String),
    /// It took too long.
    #[error("the back end did not answer within {0:?}")]
    TimedOut(Duration),
    /// The answer is larger than what is taken.
    #[error("the response is larger than the limit of {limit_bytes} bytes")]
    TooLarge {
        /// What is taken.
        limit_bytes: usize,
    },
    /// It says itself that it cannot work.
    #[error("{0}")]
    Unhealthy(String),
    /// The server answered, with something else than success.
    #[error("the back end answered {status}: {body}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// What it said.
        body: String,
    },
}

/// Locks what no panic can leave half done: nothing in this crate panics while it holds a lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpError {
    pub(crate) fn broken(error: &hyper::Error) -> HttpError {
        // The cause says what happened ("connection reset by peer"), the error itself only where.
        let cause = std::error::Error::source(error);
        HttpError::Broken(
            cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")),
        )
    }

    /// Whether nothing came to the server: nobody was found there.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, HttpError::Lookup { .. } | HttpError::Connect { .. })
    }

    /// What it is for programs. The one place where errors of back ends become failures of tasks.
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

/// Whether a status says that the server will not, because of the request, or that it could not. 408 and 429 pass;
/// 401, 403 and 407 are about the key that we gave it.
fn failure_kind(status: u16) -> FailureKind {
    match status {
        401 | 403 | 407 | 408 | 429 | 500.. => FailureKind::BackendFailed,
        400..500 => FailureKind::InvalidInput,
        _ => FailureKind::BackendFailed,
    }
}
