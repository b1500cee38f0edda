//! What a scheduler and a worker say to each other. Times are durations: clocks are never compared.

use std::sync::Arc;

use hypha_market::{LeaseRequest, Portion};
use hypha_model::{
    AttemptId, Epoch, Fence, LeaseId, Name, Payload, Refusal, Requirement, Span, TaskError,
    TaskResult, TaskSpec,
};
use serde::{Deserialize, Serialize};

/// From a scheduler to a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum ToWorker {
    /// Asks for a lease. A new request replaces the sender's earlier lease; attempts under it go on under the new
    /// one.
    RequestLease(LeaseRequest),
    /// Are you there? Renews the lease.
    Heartbeat {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
        /// Repeated in the answer.
        nonce: u64,
        /// What a task needs that waits although the worker could run it.
        demand: Option<Arc<Requirement>>,
    },
    /// Run this.
    Dispatch(Arc<Dispatch>),
    /// Stop this; no answer is wanted.
    Cancel {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
    },
    /// The end of the attempt has been recorded (or does not matter any more): forget it.
    Recorded {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
    },
    /// The lease is given back.
    ReleaseLease {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
    },
}

/// One attempt, handed over.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// The lease that pays for it.
    pub lease: LeaseId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The attempt.
    pub attempt: AttemptId,
    /// The token that its result must carry.
    pub fence: Fence,
    /// What to run.
    pub spec: Arc<TaskSpec>,
    /// How long it may run.
    pub timeout: Span,
    /// Somebody waits for it: it goes before others that wait on the worker, up to a share of the turns.
    pub interactive: bool,
    /// It was handed over before, and the worker's back end has it under this id: it is taken up again, if it is there.
    pub resume: Option<Arc<str>>,
}

/// From a worker to a scheduler.
#[derive(Clone, Debug, PartialEq)]
pub enum FromWorker {
    /// The lease is granted.
    LeaseGranted {
        /// The request.
        request: u64,
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
        /// For how long, from when the request arrived.
        ttl: Span,
        /// What it covers; all of the worker if it does not say.
        portion: Option<Portion>,
        /// Attempts of this scheduler that the worker still has.
        holding: Vec<(AttemptId, Fence)>,
    },
    /// The lease is not granted.
    LeaseRefused {
        /// The request.
        request: u64,
        /// Why.
        refusal: Refusal,
    },
    /// I am here; the lease is renewed.
    Alive {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
        /// From the heartbeat.
        nonce: u64,
        /// What it covers from now on; all of the worker if it does not say.
        portion: Option<Portion>,
        /// Attempts of this scheduler that the worker has.
        holding: Vec<(AttemptId, Fence)>,
    },
    /// The lease would cover something else if it were renewed now.
    RenewEarly {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// There is no such lease (any more).
    LeaseUnknown {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// The attempt is in my hands.
    Accepted {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
    },
    /// The back end that runs the attempt has it under this id.
    Delegated {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
        /// The id.
        handle: Arc<str>,
    },
    /// The attempt is not taken.
    Refused {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
        /// Why.
        refusal: Refusal,
    },
    /// The attempt has begun.
    Started {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
    },
    /// The attempt has been running for a while: said with a new lease to a scheduler that may not know.
    Running {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
        /// For how long.
        elapsed: Span,
    },
    /// The attempt is on its way.
    Progress {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
        /// How far, in thousandths.
        permille: u16,
    },
    /// A piece of the result, of an attempt that gives it as it comes. Only the end is repeated.
    Output {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
        /// The piece.
        piece: Payload,
    },
    /// The attempt has ended. Repeated until it is recorded.
    Finished {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
        /// How long it ran.
        run: Span,
        /// With what.
        outcome: Outcome,
    },
    /// What these executors forward to is away: they should be given nothing, and the others are well. Said when one
    /// goes or comes back, and as long as one is away before each answer that says that the worker is there: without it,
    /// all are well.
    Unreachable {
        /// Their names.
        executors: Vec<Name>,
    },
    /// This life of the worker ends, or has ended, in order: what it was given and has not finished is given
    /// back.
    Left {
        /// The life.
        epoch: Epoch,
        /// The lease that ends with it, while the worker waits to hear [`ToWorker::ReleaseLease`].
        lease: Option<LeaseId>,
    },
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// With a result.
    Completed {
        /// The result, with what the worker says its digest is.
        result: TaskResult,
    },
    /// Without one.
    Failed(TaskError),
    /// It took longer than it may, and was stopped.
    TimedOut,
    /// The server that should have run it could not be reached, and has not seen it.
    Unreachable {
        /// What went wrong.
        error: String,
    },
}
