//! How servers are reached: names looked up and checked, connections made, kept and used again.

mod link;
mod origin;

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hypha_model::ServerError;
use thiserror::Error;

pub(crate) use link::Exchange;
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
    #[error("the connection to the server failed: {0}")]
    Broken(String),
    /// It took too long.
    #[error("the server did not answer within {0:?}")]
    Late(Duration),
    /// The answer is larger than what is taken.
    #[error("the answer is larger than the {limit_bytes} bytes that are taken")]
    TooLarge {
        /// What is taken.
        limit_bytes: usize,
    },
    /// It says itself that it cannot work.
    #[error("{0}")]
    Unhealthy(String),
    /// The server answered, with something else than success.
    #[error("{0}")]
    Status(ServerError),
}

/// Locks what no panic can leave half done: nothing in this crate panics while it holds a lock.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
    pub(crate) fn is_unreached(&self) -> bool {
        matches!(self, HttpError::Lookup { .. } | HttpError::Connect { .. })
    }

    /// Whether another server may do better, or this one later.
    pub(crate) fn retry(&self) -> bool {
        match self {
            HttpError::TooLarge { .. } | HttpError::Address(_) => false,
            HttpError::Status(answer) => is_passing(answer.status),
            HttpError::Lookup { .. }
            | HttpError::NotAllowed(_)
            | HttpError::Connect { .. }
            | HttpError::Broken(_)
            | HttpError::Unhealthy(_)
            | HttpError::Late(_) => true,
        }
    }
}

/// Whether a status says that the server could not, rather than that it will not.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..)
}
