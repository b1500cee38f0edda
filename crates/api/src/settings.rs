//! The operator's settings of the HTTP APIs.

use std::path::PathBuf;

use hypha_model::Span;

use crate::serve::{self, ServeError};
use crate::tokens::Tokens;
use crate::web_access::WebAccess;

/// Settings of the HTTP APIs.
#[derive(Debug)]
pub struct Settings {
    /// The largest body of a request.
    pub max_request_bytes: usize,
    /// Bytes of all bodies together that have begun to arrive and have not ended.
    pub max_buffered_bytes: usize,
    /// The accepted tokens; with `None`, every caller is an administrator without a tenant.
    pub tokens: Option<Tokens>,
    /// The hosts and origins that requests may name.
    pub web: WebAccess,
    /// TLS, if connections are to be encrypted.
    pub tls: Option<TlsFiles>,
    /// Connections at a time; more wait to be accepted.
    pub max_connections: usize,
    /// How long one attempt of a task may take, unless the task sets its own timeout.
    pub task_timeout: Span,
    /// How long an interactive client waits while all back ends are unreachable before it gets an error.
    /// Clients of OpenAI's protocol do not expect minutes of silence, and retry by themselves.
    pub unschedulable_timeout: Span,
    /// The version that `/openapi.json` and `/api/v1/scheduler` show.
    pub version: &'static str,
}

/// Files for TLS, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate with the chain up to the root.
    pub certificates: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Checks that they can be used, before anything is served.
    pub fn check(&self) -> Result<(), ServeError> {
        serve::tls_acceptor(self).map(drop)
    }
}

impl Settings {
    /// The seed's `max_request_size = "10MB"`.
    pub const DEFAULT_MAX_REQUEST_BYTES: usize = 10_000_000;
    /// Some twenty-five of the largest bodies; most bodies are a few kilobytes, and arrive at once.
    pub const DEFAULT_MAX_BUFFERED_BYTES: usize = 256 << 20;
    /// Each holds a socket and some ten kilobytes of buffers, and no more than 64 KiB whatever is sent.
    pub const DEFAULT_MAX_CONNECTIONS: usize = 8_192;
    /// Two of the scheduler's health checks of an unreachable back end, at its usual `health_check_timeout`:
    /// enough for a server that is only restarted.
    pub const DEFAULT_UNSCHEDULABLE_TIMEOUT: Span = Span::from_secs(10);
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_request_bytes: Settings::DEFAULT_MAX_REQUEST_BYTES,
            max_buffered_bytes: Settings::DEFAULT_MAX_BUFFERED_BYTES,
            tokens: None,
            web: WebAccess::default(),
            tls: None,
            max_connections: Settings::DEFAULT_MAX_CONNECTIONS,
            task_timeout: Span::from_secs(300),
            unschedulable_timeout: Settings::DEFAULT_UNSCHEDULABLE_TIMEOUT,
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}
