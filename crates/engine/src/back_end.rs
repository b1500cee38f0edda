//! What is decided about back ends: HTTP servers that do a worker's work, and task instances. The drivers make the
//! calls, in the node over HTTP and in the simulator to simulated back ends, and do here as they are told.

mod health;
mod instance_run;

use hypha_model::Span;

use crate::message::Outcome;
use crate::worker::{RunId, WorkerEvent};

pub use health::{BackEndHealth, HealthCheck};
pub use instance_run::{
    EnqueueOutcome, FetchOutcome, InstanceHandle, InstanceReport, InstanceRun, NextAction,
    RunSettings, RunUpdate,
};

/// How a run at a back end ended.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEnd {
    /// With this, after as long as the back end says, if it says so.
    Outcome(Outcome, Option<Span>),
    /// The back end has not taken it: it has too much to do.
    Declined,
}

impl RunEnd {
    /// What the worker's machine is told.
    pub fn event(self, id: RunId) -> WorkerEvent {
        match self {
            RunEnd::Outcome(outcome, run) => WorkerEvent::Ended { id, outcome, run },
            RunEnd::Declined => WorkerEvent::Declined { id },
        }
    }
}
