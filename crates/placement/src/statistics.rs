//! What a strategy has done since it was chosen.

use serde::Serialize;

use crate::AttemptEnd;
use crate::explain::RefusalCounts;

/// Counts over all decisions of the strategy in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Statistics {
    /// Tasks that were given or bound to a worker.
    pub assigned: u64,
    /// Attempts that ended well.
    pub completed: u64,
    /// Attempts that the worker failed.
    pub failed: u64,
    /// Times that a task found no worker and had to wait.
    pub waited: u64,
    /// Times that tasks were put aside because no worker could run them, not even when idle. Not shown: one for each
    /// kind of task.
    #[serde(skip)]
    pub parked: u64,
    /// Times that a task waited although a worker was free, because another is expected to finish it first.
    pub held_back: u64,
    /// Tasks that were given to a worker to learn about it.
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
