//! Errors between a client and a scheduler.

use std::time::Duration;

use thiserror::Error;

/// Why a call failed. Remote messages are cut short and on one line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ClientError {
    /// The scheduler's address is invalid.
    #[error("`{given}` is not the address of a scheduler: {problem}")]
    Address {
        /// The given address.
        given: String,
        /// What is wrong with it, and what to write instead.
        problem: &'static str,
    },
    /// The token contains invalid characters. The token itself is not repeated.
    #[error("the token has characters that no token has; is it cut off, or the wrong file?")]
    Token,
    /// The TLS client could not be created, mostly because root certificates are missing.
    #[error("cannot prepare TLS ({0}); are the certificates right?")]
    Tls(String),
    /// No server answers. Nothing was sent.
    #[error("no scheduler answers at {address} ({reason}); is one running?")]
    Unreachable {
        /// The address.
        address: String,
        /// The system's error.
        reason: String,
    },
    /// The connection was lost after the request had been sent: whether it was carried out is not known.
    #[error("the connection to {address} was lost before the answer came ({reason}); {advice}", advice = after_loss(*.safe_to_retry))]
    Lost {
        /// The address.
        address: String,
        /// The system's error.
        reason: String,
        /// Whether repeating the request does no harm.
        safe_to_retry: bool,
    },
    /// No answer in time.
    #[error("{address} did not answer within {} s; it may be overloaded: try again", after.as_secs_f64())]
    TimedOut {
        /// The address.
        address: String,
        /// How long the client waited.
        after: Duration,
    },
    /// The scheduler accepts no requests at present.
    #[error("the scheduler accepts no requests at present ({message}); try again in {} s", retry_after.as_secs_f64())]
    Busy {
        /// When to retry.
        retry_after: Duration,
        /// Why.
        message: String,
    },
    /// The scheduler refuses the request.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// A code for programs; empty if the response had none.
        code: String,
        /// A message for people.
        message: String,
    },
    /// The response is not a scheduler's.
    #[error("the server at {address} is not a scheduler that this client understands ({reason})")]
    Malformed {
        /// The address.
        address: String,
        /// The part that could not be read.
        reason: String,
    },
    /// The response is larger than [`crate::MAX_RESPONSE_BYTES`], or than the caller allowed.
    #[error("the answer is larger than {limit} bytes; ask for less at once, or take it in pieces")]
    TooLarge {
        /// The bound.
        limit: usize,
    },
}

impl ClientError {
    /// Whether the requested task or worker does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ClientError::Refused { status: 404, .. })
    }

    /// Whether the token is missing, unknown or not permitted to do this.
    pub fn is_auth_error(&self) -> bool {
        matches!(self, ClientError::Refused { status: 401 | 403, .. })
    }

    /// Whether the same call may succeed later, unchanged.
    pub fn is_transient(&self) -> bool {
        match self {
            ClientError::Lost { safe_to_retry, .. } => *safe_to_retry,
            ClientError::Unreachable { .. }
            | ClientError::TimedOut { .. }
            | ClientError::Busy { .. } => true,
            ClientError::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }
}

fn after_loss(safe_to_retry: bool) -> &'static str {
    match safe_to_retry {
        true => "try again",
        false => "its outcome is unknown: check it before you repeat it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_errors_are_distinguished_from_permanent_ones() {
        let refused =
            |status| ClientError::Refused { status, code: String::new(), message: "no".to_owned() };
        assert!(refused(404).is_not_found() && !refused(404).is_transient());
        assert!(refused(401).is_auth_error() && !refused(400).is_auth_error());
        assert!(refused(502).is_transient());
        let lost = |safe_to_retry| ClientError::Lost {
            address: "http://x".to_owned(),
            reason: "reset".to_owned(),
            safe_to_retry,
        };
        assert!(lost(true).is_transient() && !lost(false).is_transient());
        assert!(lost(false).to_string().ends_with("check it before you repeat it"));
    }
}
