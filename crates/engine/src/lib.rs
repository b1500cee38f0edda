//! The roles of Hypha as pure state machines.
//!
//! Each is a [`hypha_machine::Machine`]: stepped with the time and one event, it returns what to make durable, what to
//! send and what to run. The node and the simulator drive the same machines.

pub mod back_end;
pub mod instance_notification;
pub mod job;
pub mod message;
pub mod mutant;
pub mod record;
pub mod scheduler;
pub mod store;
pub mod worker;

pub use hypha_market::{
    Advert, Advertiser, DevicePart, LeaseRequest, Notary, Offer, OfferedRole, OwnerReason,
    OwnerState, Portion, Receipt, Signature, SignedReceipt, Signer, Terms, WantedRole,
};
pub use instance_notification::InstanceNotification;
pub use message::{CheckedMessage, Dispatch, FromWorker, Outcome, ToWorker};
pub use mutant::Mutant;
pub use record::{Image, Record};
pub use scheduler::{
    Command, Effect, NewTask, Notice, Reply, RetryPolicy, Scheduler, SchedulerEvent, SchedulerStep,
    Settings, SubmitRejection, Submitted,
};
pub use store::SchedulerStore;
pub use worker::{
    Leaving, OutgoingMessage, RunCommand, RunId, StoredReceipts, WorkerEffect, WorkerEvent,
    WorkerImage, WorkerMachine, WorkerRecord, WorkerStep,
};
