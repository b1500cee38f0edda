//! The promises that are checked.

use thiserror::Error;

/// A promise that was broken.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{promise}: {what}")]
pub struct Violation {
    /// Which promise.
    pub promise: Promise,
    /// How it was broken.
    pub what: String,
}

/// The promises that are checked.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// An acknowledged task is durable and ends.
    #[error("an accepted task was lost")]
    NothingLost,
    /// A task has one recorded end, and a repeated key one task.
    #[error("a task has more than one result")]
    OneResult,
    /// The runs of a worker fit its capacity; a lease has one holder.
    #[error("capacity was booked twice")]
    NotBookedTwice,
    /// Nothing runs without a lease, or long after its attempt is void.
    #[error("an attempt ran without a valid lease")]
    NoStrayRuns,
    /// Running sums agree with what they sum up, and are zero when nothing is left.
    #[error("a queue or an estimate did not return to zero")]
    BackToZero,
    /// An interactive request leaves no trace in the store, and ends with its scheduler.
    #[error("an interactive request was stored")]
    NotStored,
    /// A task that waits has a reason.
    #[error("a refusal has no reason")]
    EveryRefusalExplained,
    /// A task instance runs an attempt once at a time.
    #[error("an attempt ran twice at once")]
    NotRunTwice,
    /// A task that a live worker could run begins within a bound.
    #[error("a task starved")]
    NothingStarves,
    /// A gang has all its members, or gives up those that it has.
    #[error("a gang that is not formed kept members")]
    AllOrNone,
    /// No lease costs less than its owner's floor, or more than its holder's highest price.
    #[error("a lease had a price outside its bounds")]
    PriceInBounds,
    /// Scheduler and worker countersign the same sums, and what is not countersigned is little.
    #[error("receipts do not agree")]
    ReceiptsAgree,
    /// Every job that fits ends.
    #[error("a job made no progress")]
    JobsProgress,
    /// What a gang waits for that has lost a member is not offered to newcomers of its priority.
    #[error("a newcomer was served before a gang that has lost a member")]
    ReplacementFirst,
    /// Leases are only taken back for work of a higher priority.
    #[error("a lease was taken back without a higher priority")]
    NoPreemptionLoops,
    /// Only genuine failures of attempts use up attempts.
    #[error("an attempt was used up without a failure")]
    NoWrongfulFailure,
}
