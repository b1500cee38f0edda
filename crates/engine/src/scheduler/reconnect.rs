//! A worker's connection that another replaces, as a direct one does a relayed one: the worker and its runs continue.

use hypha_market::HeldLease;
use hypha_model::{Time, WorkerId};

use super::failure::Failure;
use super::{Scheduler, SchedulerStep};
use crate::mutant::Mutant;

/// Why streamed output starts over.
const PIECES_LOST: &str = "the connection to the worker was replaced, and output may be missing";

impl Scheduler {
    /// The stream to a worker ended and was opened again at once, over another connection. Lost messages are detected
    /// as usual, except for pieces of output, which are sent once. The worker names the attempts it still has in its
    /// answer to a heartbeat; another incarnation of the worker answers that it does not know the lease.
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
