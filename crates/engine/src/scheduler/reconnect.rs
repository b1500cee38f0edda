//! A worker's connection that gives way to another, as a relayed one does to a direct one: the worker is still there, and
//! so is what it runs.

use hypha_market::HeldLease;
use hypha_model::{Time, WorkerId};

use super::failure::Failure;
use super::{Scheduler, SchedulerStep};
use crate::mutant::Mutant;

/// Why streamed output starts over.
const PIECES_LOST: &str = "the connection to the worker was replaced, and output may be missing";

impl Scheduler {
    /// The stream to a worker ended and was opened again at once, over another connection. Messages may have been lost,
    /// which is noticed as ever, but pieces of output are said once. What the worker still has it says in answer to a
    /// heartbeat; if it is another life of the worker, it says that it does not know the lease.
    pub(super) fn worker_reconnected(
        &mut self,
        now: Time,
        worker: WorkerId,
        step: &mut SchedulerStep,
    ) {
        if self.is(Mutant::LostReplacedLink) {
            return self.worker_lost(now, worker, "the connection to the worker was lost", step);
        }
        let Some((slot, state)) = self.state_of(worker) else { return };
        match &mut state.lease {
            HeldLease::Requested { retry_at, .. } => *retry_at = now,
            HeldLease::Held { unanswered, next, .. } => (*unanswered, *next) = (None, now),
        }
        for reference in self.placement.dispatched_to(slot) {
            if self.task(reference).is_some_and(|task| task.has_output) {
                self.attempt_failed(now, reference, Failure::Returned(PIECES_LOST), step);
            }
        }
        self.worker_due(now, slot, step);
    }
}
