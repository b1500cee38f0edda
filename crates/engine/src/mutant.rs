//! Faults that can be planted into the machines, to show that the simulator's checkers notice them.
//! Without the `mutants` feature they are compiled away.

use hypha_market::GangMutant;
use hypha_placement::PlacementMutant;
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
    /// Interactive tasks, which must not be stored, are made durable.
    StoredInteractive,
    /// A task whose attempt failed is neither retried nor ended.
    DroppedRetry,
    /// An interruption by the scheduler itself uses up an attempt.
    CountedInterruption,
    /// A back end that has too much to do uses up an attempt.
    CountedBusy,
    /// A connection that is replaced by another counts as lost.
    LostReplacedLink,
    /// After a restart, a run that a back end still has is dispatched again without its handle.
    BlindRedispatch,
    /// A run that was stopped keeps its slot.
    StuckSlot,
    /// No room is reserved for the task that has waited longest.
    NoReservations,
    /// Tasks that are bound to a worker wait for it when it is lost.
    StuckBound,
    /// However long a task waits, those with a higher priority go first.
    UnagedPriorities,
    /// Interactive tasks queue behind batch tasks.
    QueuedInteractive,
    /// A gang that is not formed keeps the members that it has.
    KeptMembers,
    /// A scheduler pays more than its highest price.
    IgnoredMax,
    /// A gang that got too few offers gives up.
    ForgottenGang,
    /// A worker offers itself below its owner's floor.
    IgnoredFloor,
    /// A receipt is countersigned, and that is not made durable.
    LostReceipt,
    /// A worker signs no receipts while a lease is held.
    SilentRenewals,
    /// A gang that has lost a member waits behind newcomers.
    NewcomersFirst,
    /// Leases are taken back for work of the same priority.
    PreemptedByEquals,
    /// A worker offers and does not grant.
    NeverGrants,
    /// A scheduler takes workers and does not use them.
    NeverUses,
}

impl Mutant {
    /// The fault that is planted into gangs.
    pub(crate) fn of_gang(self) -> Option<GangMutant> {
        match self {
            Mutant::KeptMembers => Some(GangMutant::KeepsMembers),
            Mutant::IgnoredMax => Some(GangMutant::IgnoresMax),
            Mutant::ForgottenGang => Some(GangMutant::GivesUp),
            _ => None,
        }
    }

    /// The fault that is planted into placement.
    pub(crate) fn of_placement(self) -> Option<PlacementMutant> {
        match self {
            Mutant::UnexplainedWait => Some(PlacementMutant::SilentRefusals),
            Mutant::NoReservations => Some(PlacementMutant::NoReservations),
            Mutant::UnagedPriorities => Some(PlacementMutant::UnagedPriorities),
            _ => None,
        }
    }
}
