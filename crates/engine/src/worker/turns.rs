//! In which order the runs that wait on a worker begin: as they came, but interactive ones go first, up to a share of the
//! turns (`hypha_placement::Turns`), and nothing is overtaken for ever.
//!
//! A run that does not fit yet may be overtaken by as many as the worker runs at once. After that only by what fits beside
//! it: with everything else gone, both fit. So it begins at the latest when what ran before has ended. The scheduler counts
//! on the same rule when it predicts what begins when.

use std::collections::BTreeSet;

use hypha_model::{Fence, Fit, SchedulerId, Time};

use super::{RunId, WorkerMachine, WorkerStep};
use crate::mutant::Mutant;

/// The key of a booking that is only tried.
const TRIED: RunId = RunId { scheduler: SchedulerId::LOCAL, fence: Fence(u64::MAX) };

/// What has overtaken the first of those that wait.
#[derive(Default)]
pub(super) struct Overtaken {
    first: Option<RunId>,
    /// How many have without fitting beside it.
    count: u32,
    /// Those that run beside it.
    beside: BTreeSet<RunId>,
}

impl Overtaken {
    fn begin_with(&mut self, first: RunId) {
        if self.first != Some(first) {
            *self = Overtaken { first: Some(first), ..Overtaken::default() };
        }
    }

    /// A run has ended.
    pub(super) fn ended(&mut self, id: RunId) {
        self.beside.remove(&id);
    }
}

impl WorkerMachine {
    pub(super) fn begin_what_fits(&mut self, now: Time, step: &mut WorkerStep) {
        let mut at = 0;
        while let Some(id) = self.queue.get(at) {
            if at == 0 {
                self.overtaken.begin_with(id);
            }
            if !self.may_begin(id) && !self.is(Mutant::Overbook) {
                at += 1;
                continue;
            }
            let first = self.queue.front();
            self.queue.take(id);
            if at > 0 {
                match self.fits_beside_the_first(id) {
                    true => drop(self.overtaken.beside.insert(id)),
                    false => self.overtaken.count += 1,
                }
            }
            self.begin(now, id, step);
            if self.queue.front() != first {
                // Now it is the turn of another.
                at = 0;
            }
        }
    }

    /// Whether one of the runs that wait may begin now.
    pub(super) fn may_begin(&self, id: RunId) -> bool {
        let may_overtake =
            || self.overtaken.count < self.worker.concurrency() || self.fits_beside_the_first(id);
        self.fits(id) && (self.queue.front() == Some(id) || may_overtake())
    }

    /// Whether a run and the first of those that wait would both fit with everything gone that did not begin beside it.
    fn fits_beside_the_first(&self, id: RunId) -> bool {
        let (Some(first), Some(run)) = (self.overtaken.first, self.runs.get(&id)) else {
            return false;
        };
        let Some(first) = self.runs.get(&first) else { return false };
        let beside = || self.overtaken.beside.iter().filter_map(|id| self.runs.get(id));
        let in_use = beside().filter(|run| run.executor == first.executor).count();
        let same = usize::from(run.executor == first.executor);
        let at_once = self.worker.executors[first.executor].concurrency as usize;
        if in_use + 1 + same > at_once {
            return false;
        }
        let mut idle = self.ledger.clone();
        for other in self.ledger.keys().filter(|key| !self.overtaken.beside.contains(key)) {
            let _ = idle.release(other);
        }
        idle.allocate(TRIED, &run.dispatch.spec.requirement, Fit::First).is_ok()
            && idle.fits(&first.dispatch.spec.requirement).is_ok()
    }
}
