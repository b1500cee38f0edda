//! Faults that can be planted into the machines, to show that the simulator's checkers notice them.
//! Without the `mutants` feature they are compiled away.

use serde::{Deserialize, Serialize};

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mutant {
    /// Some accepted tasks are not made durable.
    LostAccept,
    /// The end of some tasks is not made durable.
    LostResult,
    /// A result is recorded although its attempt is void.
    UnfencedResult,
    /// A finished task stays in its worker's backlog.
    LeakedBacklog,
    /// A waiting task has no reason.
    UnexplainedWait,
    /// A worker grants its capacity to two schedulers at once.
    DoubleGrant,
    /// A worker runs more at once than it has room for.
    OverbookedWorker,
    /// A worker goes on after its lease has ended.
    RunWithoutLease,
    /// Requests that are not to be stored are made durable.
    StoredInteractive,
    /// A failed attempt is not tried again and not ended.
    DroppedRetry,
    /// An attempt that the scheduler itself interrupted is used up.
    CountedInterruption,
    /// A connection that is replaced by another counts as lost.
    LostReplacedLink,
    /// After a restart, what a back end has is handed over again without asking for it.
    BlindRedispatch,
    /// A run that was stopped keeps its room.
    StuckSlot,
    /// No room is kept for what has waited longest.
    NoReservations,
    /// Interactive requests wait their turn behind batches.
    QueuedInteractive,
}
