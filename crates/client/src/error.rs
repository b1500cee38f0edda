//! What can go wrong between a client and a scheduler.

use std::time::Duration;

use thiserror::Error;

/// Why a call did not do what was asked. Others' words are cut short and on one line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ClientError {
    /// The scheduler's address cannot be one.
    #[error("`{given}` is not the address of a scheduler: {problem}")]
    Address {
        /// What was given.
        given: String,
        /// What is wrong with it, and what to write instead.
        problem: &'static str,
    },
    /// The token has characters that no token has. The token itself is not repeated.
    #[error("the token has characters that no token has; is it cut off, or the wrong file?")]
    Token,
    /// No client, mostly for want of root certificates.
    #[error("cannot prepare TLS ({0}); are the certificates right?")]
    Tls(String),
    /// Nobody is there. Nothing was sent.
    #[error("no scheduler answers at {address} ({reason}); is one running?")]
    Unreachable {
        /// The address that was tried.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// The connection was lost after the request had been sent: whether it was carried out is not known.
    #[error("the connection to {address} was lost before the answer came ({reason}); {advice}", advice = after_loss(*.known))]
    Lost {
        /// The address.
        address: String,
        /// What the system said.
        reason: String,
        /// Whether repeating the request does no harm.
        known: bool,
    },
    /// No answer in time.
    #[error("{address} did not answer within {} s; it may be overloaded: try again", after.as_secs_f64())]
    TimedOut {
        /// The address.
        address: String,
        /// How long was waited.
        after: Duration,
    },
    /// The scheduler takes nothing at present.
    #[error("the scheduler takes nothing at present ({message}); try again in {} s", retry_after.as_secs_f64())]
    Busy {
        /// When to try again.
        retry_after: Duration,
        /// Why.
        message: String,
    },
    /// The scheduler refuses.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// A word for programs; empty if what answered gave none.
        code: String,
        /// What is wrong, for people.
        message: String,
    },
    /// What answered does not speak as a scheduler does.
    #[error("what answers at {address} is no scheduler that this client understands ({reason})")]
    Malformed {
        /// The address.
        address: String,
        /// What could not be read.
        reason: String,
    },
    /// The answer is larger than [`crate::MAX_ANSWER_BYTES`], or than the caller allowed.
    #[error("the answer is larger than {limit} bytes; ask for less at once, or take it in pieces")]
    TooLarge {
        /// The bound.
        limit: usize,
    },
}

impl ClientError {
    /// Whether the thing that was asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ClientError::Refused { status: 404, .. })
    }

    /// Whether a token is missing, unknown or may not do this.
    pub fn is_about_the_token(&self) -> bool {
        matches!(self, ClientError::Refused { status: 401 | 403, .. })
    }

    /// Whether the same call may succeed later although nothing about it is changed.
    pub fn may_pass(&self) -> bool {
        match self {
            ClientError::Lost { known, .. } => *known,
            ClientError::Unreachable { .. }
            | ClientError::TimedOut { .. }
            | ClientError::Busy { .. } => true,
            ClientError::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }
}

fn after_loss(known: bool) -> &'static str {
    match known {
        true => "try again",
        false => "whether it was done is not known: look before you repeat it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_told_from_what_will_not() {
        let refused =
            |status| ClientError::Refused { status, code: String::new(), message: "no".to_owned() };
        assert!(refused(404).is_not_found() && !refused(404).may_pass());
        assert!(refused(401).is_about_the_token() && !refused(400).is_about_the_token());
        assert!(refused(502).may_pass());
        let lost = |known| ClientError::Lost {
            address: "http://x".to_owned(),
            reason: "reset".to_owned(),
            known,
        };
        assert!(lost(true).may_pass() && !lost(false).may_pass());
        assert!(lost(false).to_string().ends_with("look before you repeat it"));
    }
}
