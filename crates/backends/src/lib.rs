//! HTTP servers that do work: OpenAI-compatible and JSON back ends, and task instances.
//!
//! [`Server`] is one back end, and [`Call`] one request to it. [`HttpWorkers`] lets a scheduler treat back ends and
//! task instances as workers: each is a worker machine whose runs are HTTP calls.
//!
//! Redirects are not followed: a server that was allowed must not send us to one that is not. Only plain
//! HTTP is spoken.

mod call;
mod question;
mod server;
mod transport;
mod workers;

pub use call::{Answer, Call};
pub use server::{Format, Server, ServerConfig, ServerConfigError};
pub use transport::HttpError;
pub use workers::{
    Hear, HttpSettings, HttpWorkers, NewServer, OpenError, RegisterError, SchedulerSide,
    default_networks,
};
