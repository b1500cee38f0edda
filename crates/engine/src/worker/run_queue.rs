//! The order in which waiting runs begin on a worker: those of each scheduler in order of arrival, but interactive runs
//! go first, up to a share of the starts (`hypha_placement::FairQueue`), and no run is overtaken forever.
//!
//! A run that does not fit yet may be overtaken by as many runs as its lease runs at once. After that, only runs that
//! fit beside it may overtake (backfill): both fit once all other runs of that scheduler have ended. So it begins at
//! the latest when the runs before it have ended. The scheduler relies on the same rule when it predicts start times.

use std::collections::BTreeSet;

use hypha_model::{Fence, Fit, SchedulerId, Time};
use hypha_placement::FairQueue;

use super::{RunId, WorkerMachine, WorkerStep};
use crate::mutant::Mutant;

/// The key of a booking that only tests whether a run fits.
const PROBE: RunId = RunId { scheduler: SchedulerId::LOCAL, fence: Fence(u64::MAX) };

/// The waiting runs of a scheduler, and the runs that have overtaken the first of them.
#[derive(Default)]
pub(super) struct RunQueue {
    waiting: FairQueue<RunId>,
    head: Option<RunId>,
    /// How many runs have overtaken it without fitting beside it.
    overtaken: u32,
    /// The runs that overtook it and fit beside it.
    backfilled: BTreeSet<RunId>,
}

impl RunQueue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn set_head(&mut self, first: RunId) {
        if self.head != Some(first) {
            (self.head, self.overtaken) = (Some(first), 0);
            self.backfilled.clear();
        }
    }

    /// A run has ended.
    pub(super) fn ended(&mut self, id: RunId) {
        self.backfilled.remove(&id);
    }
}

impl WorkerMachine {
    /// Queues a run. Returns whether it may begin at once.
    pub(super) fn enqueue(&mut self, id: RunId, interactive: bool) -> bool {
        self.queues.entry(id.scheduler).or_default().waiting.push(id, interactive);
        self.may_begin(id)
    }

    /// Removes a run from its queue.
    pub(super) fn dequeue(&mut self, id: RunId) {
        if let Some(queue) = self.queues.get_mut(&id.scheduler) {
            queue.waiting.remove(id);
        }
    }

    /// The waiting runs of a scheduler.
    pub(super) fn waiting_of(&self, scheduler: SchedulerId) -> Vec<RunId> {
        let queue = self.queues.get(&scheduler);
        queue.map(|queue| queue.waiting.iter().collect()).unwrap_or_default()
    }

    pub(super) fn begin_fitting(&mut self, now: Time, step: &mut WorkerStep) {
        let with_waiting = self.queues.iter().filter(|(_, queue)| queue.len() > 0);
        let schedulers: Vec<SchedulerId> = with_waiting.map(|(scheduler, _)| *scheduler).collect();
        for scheduler in schedulers {
            self.begin_fitting_of(now, scheduler, step);
        }
    }

    fn begin_fitting_of(&mut self, now: Time, scheduler: SchedulerId, step: &mut WorkerStep) {
        let mut at = 0;
        while let Some(queue) = self.queues.get_mut(&scheduler)
            && let Some(id) = queue.waiting.get(at)
        {
            if at == 0 {
                queue.set_head(id);
            }
            if !self.may_begin(id) && !self.is(Mutant::OverbookedWorker) {
                at += 1;
                continue;
            }
            let beside = at > 0 && self.fits_beside_head(id);
            let Some(queue) = self.queues.get_mut(&scheduler) else { return };
            let first = queue.waiting.front();
            queue.waiting.take(id);
            match (at > 0, beside) {
                (true, true) => drop(queue.backfilled.insert(id)),
                (true, false) => queue.overtaken += 1,
                (false, _) => {}
            }
            if queue.waiting.front() != first {
                // The queue has a new head.
                at = 0;
            }
            self.begin(now, id, step);
        }
    }

    /// Whether a waiting run may begin now.
    fn may_begin(&self, id: RunId) -> bool {
        let Some(queue) = self.queues.get(&id.scheduler) else { return false };
        let may_overtake =
            || queue.overtaken < self.concurrency_for(id.scheduler) || self.fits_beside_head(id);
        self.fits(id) && (queue.waiting.front() == Some(id) || may_overtake())
    }

    /// Whether a run and the head of its queue would both fit beside the backfilled runs, once all other runs of their
    /// scheduler have ended.
    fn fits_beside_head(&self, id: RunId) -> bool {
        let Some(queue) = self.queues.get(&id.scheduler) else { return false };
        let (Some(first), Some(run)) = (queue.head, self.runs.get(&id)) else { return false };
        let Some(first) = self.runs.get(&first) else { return false };
        let beside = || queue.backfilled.iter().filter_map(|id| self.runs.get(id));
        let in_use = beside().filter(|run| run.executor == first.executor).count();
        let same = usize::from(run.executor == first.executor);
        let at_once = self.book.slots_of(id.scheduler, first.executor) as usize;
        if in_use + 1 + same > at_once {
            return false;
        }
        let mut idle = self.book.ledger_of(id.scheduler).clone();
        let others: Vec<RunId> =
            idle.keys().filter(|key| !queue.backfilled.contains(key)).collect();
        for other in others {
            let _ = idle.release(other);
        }
        idle.allocate(PROBE, &run.dispatch.spec.requirement, Fit::First).is_ok()
            && idle.fits(&first.dispatch.spec.requirement).is_ok()
    }
}
