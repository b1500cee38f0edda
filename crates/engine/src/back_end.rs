//! Decisions about back ends: HTTP servers that do a worker's work, and task instances. The drivers only make the
//! calls that are decided here, in the node over HTTP and in the simulator to simulated back ends.

mod health;
mod instance_run;
mod response_protocol;

use hypha_model::Span;

use crate::message::Outcome;
use crate::worker::{RunId, WorkerEvent};

pub use health::{BackEndHealth, HealthCheck};
pub use instance_run::{
    EnqueueOutcome, FetchOutcome, InstanceHandle, InstanceReport, InstanceRun, NextAction,
    RunSettings, RunUpdate,
};
pub use response_protocol::ResponseProtocol;

/// How a run at a back end ended.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEnd {
    /// With this outcome, after the run time that the back end reports, if it reports one.
    Outcome(Outcome, Option<Span>),
    /// The back end does not have it: it was not enqueued, or was lost while the scheduler was down.
    Declined,
}

impl RunEnd {
    /// The event for the worker's machine.
    pub fn event(self, id: RunId) -> WorkerEvent {
        match self {
            RunEnd::Outcome(outcome, run) => WorkerEvent::Ended { id, outcome, run },
            RunEnd::Declined => WorkerEvent::Declined { id },
        }
    }
}
