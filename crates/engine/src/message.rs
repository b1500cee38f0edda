//! The messages between a scheduler and a worker. Times are durations: clocks are never compared.

use std::sync::Arc;

use hypha_market::{Advert, LeaseRequest, Offer, OwnerReason, Portion, SignedReceipt};
use hypha_model::{
    AdvertId, AttemptId, Epoch, Fence, LeaseId, Name, OfferId, Payload, Refusal, Requirement, Span,
    TaskError, TaskResult, TaskSpec, Usage,
};
use serde::{Deserialize, Serialize};

/// From a scheduler to a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum ToWorker {
    /// Requests a lease. A new request replaces the sender's earlier lease; attempts under it continue under the new
    /// one.
    RequestLease(LeaseRequest),
    /// Renews the lease, and asks which attempts the worker holds.
    Heartbeat {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
        /// Repeated in the answer.
        nonce: u64,
        /// The requirement of a queued task that the worker could run if more of it were leased.
        demand: Option<Arc<Requirement>>,
    },
    /// Run this attempt.
    Dispatch(Arc<Dispatch>),
    /// Stop this attempt; it is not answered.
    Cancel {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
    },
    /// The end of the attempt has been recorded (or no longer matters): forget it.
    Recorded {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
    },
    /// The lease is released.
    ReleaseLease {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// Workers are wanted. Answered with [`FromWorker::Offered`] or [`FromWorker::NotOffered`].
    Advertise(Arc<Advert>),
    /// No more offers are wanted for the advert.
    CloseAdvert(AdvertId),
    /// The offer is accepted for one of its roles. Answered with [`FromWorker::LeaseGranted`] or
    /// [`FromWorker::OfferUnknown`].
    AcceptOffer {
        /// The offer.
        offer: OfferId,
        /// The role, by its index in the advert.
        role: u16,
        /// Repeated in the answer.
        request: u64,
        /// For how long the lease is wanted, from when this arrives.
        ttl: Span,
    },
    /// The offer is not accepted, or the lease that it became is released.
    DeclineOffer(OfferId),
    /// A receipt of a lease, countersigned.
    ReceiptCountersigned(Arc<SignedReceipt>),
}

/// An attempt that is sent to its worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// The lease that it runs under.
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
    /// A client waits for it: it starts before others that are queued on the worker, up to a share of the starts.
    pub interactive: bool,
    /// It was dispatched before, and the worker's back end had it under this id: it is resumed if it is still there.
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
        /// What it covers; `None` is all of the worker.
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
    /// Answers a heartbeat: the lease is renewed.
    Alive {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
        /// From the heartbeat.
        nonce: u64,
        /// What it covers from now on; `None` is all of the worker.
        portion: Option<Portion>,
        /// How much of the worker's machine is in use; `None` if it was not measured.
        usage: Option<Usage>,
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
    /// There is no such lease, or no longer.
    LeaseUnknown {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// The worker has the attempt.
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
    /// The attempt has these GPUs of the worker. Sent before [`FromWorker::Started`] and [`FromWorker::Running`], if it
    /// has any.
    DevicesAssigned {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
        /// The GPUs, by their numbers on the worker.
        devices: Vec<u32>,
    },
    /// The worker does not take the attempt.
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
    /// The attempt has been running for a while. Sent with a new lease, to a scheduler that may not know.
    Running {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
        /// For how long.
        elapsed: Span,
    },
    /// The attempt has progressed.
    Progress {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
        /// How far, in thousandths.
        permille: u16,
    },
    /// A piece of the result of an attempt that streams it. Sent once: only the end is repeated.
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
    /// The back ends of these executors are unreachable: they should get no tasks, and the others are healthy. Sent
    /// when the set changes and, while it is not empty, before each grant and each answer to a heartbeat: without it,
    /// all are healthy.
    Unreachable {
        /// Their names.
        executors: Vec<Name>,
        /// Why the owner lets none of them take anything new; sent before the refusal of a lease too. `None` if the
        /// owner does not.
        owner: Option<OwnerReason>,
    },
    /// This incarnation of the worker stops, or has stopped, gracefully: it returns the attempts that it has not
    /// finished.
    Left {
        /// The incarnation.
        epoch: Epoch,
        /// The lease that ends with it, while the worker waits for [`ToWorker::ReleaseLease`].
        lease: Option<LeaseId>,
    },
    /// An offer for an advert.
    Offered(Arc<Offer>),
    /// There is no offer for an advert that came directly.
    NotOffered(AdvertId),
    /// There is no such offer, or no longer.
    OfferUnknown(OfferId),
    /// What a lease has cost so far, signed by the worker. The last one is repeated until it is countersigned.
    ReceiptIssued(Arc<SignedReceipt>),
    /// The worker takes a lease back: what runs under it may save its work, and ends by then.
    Preempted {
        /// The lease.
        lease: LeaseId,
        /// Its epoch.
        epoch: Epoch,
        /// After how long.
        grace: Span,
    },
}

/// A message of a worker with the verdict on the result that it may carry. Drivers make it before they lock the scheduler:
/// hashing a large result takes longer than many steps.
#[derive(Clone, Debug)]
pub struct CheckedMessage {
    message: FromWorker,
    digest_matches: bool,
}

impl CheckedMessage {
    /// Compares the result in the message, if there is one, with its digest.
    pub fn new(message: FromWorker) -> CheckedMessage {
        let digest_matches = match &message {
            FromWorker::Finished { outcome: Outcome::Completed { result }, .. } => {
                result.digest_matches()
            }
            _ => true,
        };
        CheckedMessage { message, digest_matches }
    }

    /// The message, and whether its result matches its digest.
    pub(crate) fn into_parts(self) -> (FromWorker, bool) {
        (self.message, self.digest_matches)
    }
}

impl From<FromWorker> for CheckedMessage {
    fn from(message: FromWorker) -> CheckedMessage {
        CheckedMessage::new(message)
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// With a result.
    Completed {
        /// The result, with its digest as the worker computed it.
        result: TaskResult,
    },
    /// Without one.
    Failed(TaskError),
    /// It exceeded its timeout, and was stopped.
    TimedOut,
    /// The back end that should have run it was unreachable, and has not received it.
    Unreachable {
        /// What went wrong.
        error: String,
    },
}
