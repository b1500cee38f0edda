//! Counts of a strategy since it was chosen.

use serde::Serialize;

use crate::AttemptEnd;
use crate::explain::RefusalCounts;

/// Counts over all decisions of the strategy in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Statistics {
    /// Tasks that were dispatched or bound to a worker.
    pub assigned: u64,
    /// Attempts that succeeded.
    pub completed: u64,
    /// Attempts that the worker failed.
    pub failed: u64,
    /// Times that a task found no worker and had to wait.
    pub waited: u64,
    /// Times that a shape was parked because no worker could run it, not even when idle. Not shown: it counts shapes,
    /// not tasks.
    #[serde(skip)]
    pub parked: u64,
    /// Times that a task waited although a worker was free, because another is expected to finish it first.
    pub held_back: u64,
    /// Tasks that were dispatched to a worker for exploration.
    pub explored: u64,
    /// Tasks that an idle worker took from another's queue.
    pub steals: u64,
    /// Refusals by reason.
    pub refusals: RefusalCounts,
}

impl Statistics {
    pub(crate) fn ended(&mut self, ending: AttemptEnd) {
        match ending {
            AttemptEnd::Completed(_) => self.completed += 1,
            AttemptEnd::Failed | AttemptEnd::Lost => self.failed += 1,
            AttemptEnd::Withdrawn => {}
        }
    }
}
