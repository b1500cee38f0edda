//! HTTP servers that do work: OpenAI-compatible and JSON back ends, and task instances.
//!
//! [`BackEnd`] is one back end, and [`Call`] one request to it. [`HttpWorkers`] lets a scheduler treat back ends and
//! task instances as workers: each is a worker machine whose runs are HTTP calls.
//!
//! Redirects are not followed: an allowed back end must not lead to one that is not allowed. Only plain HTTP is
//! supported.

mod back_end;
mod call;
mod request;
mod transport;
mod workers;

pub use back_end::{BackEnd, BackEndSettings, BackEndSettingsError, Format};
pub use call::{Call, CallOutcome};
pub use transport::HttpError;
pub use workers::{
    HttpSettings, HttpWorkers, MessageHandler, NewBackEnd, OpenError, RegisterError,
    SchedulerHandle, default_networks,
};
