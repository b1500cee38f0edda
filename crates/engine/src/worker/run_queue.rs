//! The order in which waiting runs begin on a worker: those of each lease in order of arrival, but interactive runs
//! go first, up to a share of the starts (`hypha_placement::FairQueue`), and no run is overtaken forever.
//!
//! A run that does not fit yet may be overtaken by as many runs as its lease runs at once. After that, only runs that
//! fit beside it may overtake (backfill): both fit once all other runs of that lease have ended. So it begins at
//! the latest when the runs before it have ended. Of the runs whose executor has a free slot, only the first few are looked
//! at. The scheduler relies on the same rules when it predicts start times.

use std::collections::{BTreeMap, BTreeSet};

use hypha_market::Holder;
use hypha_model::{Fence, Fit, SchedulerId, Time};
use hypha_placement::{FairQueue, MAX_BACKFILL_CANDIDATES};

use super::{RunId, WorkerMachine, WorkerStep};
use crate::mutant::Mutant;

/// The key of a booking that only tests whether a run fits.
const PROBE: RunId = RunId { scheduler: SchedulerId::LOCAL, fence: Fence(u64::MAX) };

/// The waiting runs of a lease, and the runs that have overtaken the first of them.
#[derive(Default)]
pub(super) struct RunQueue {
    waiting: FairQueue<RunId>,
    /// How many of them wait for each executor.
    by_executor: BTreeMap<usize, usize>,
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

    fn update_head(&mut self) {
        let first = self.waiting.front();
        if first.is_some() && self.head != first {
            (self.head, self.overtaken) = (first, 0);
            self.backfilled.clear();
        }
    }

    /// A run for this executor no longer waits.
    fn left(&mut self, executor: usize) {
        if let Some(waiting) = self.by_executor.get_mut(&executor) {
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// A run has ended.
    pub(super) fn ended(&mut self, id: RunId) {
        self.backfilled.remove(&id);
    }
}

impl WorkerMachine {
    /// Queues a run. Returns whether it may begin at once.
    pub(super) fn enqueue(&mut self, id: RunId, executor: usize, interactive: bool) -> bool {
        let Some(holder) = self.runs.get(&id).map(|run| run.holder) else { return false };
        let queue = self.queues.entry(holder).or_default();
        queue.waiting.push(id, interactive);
        *queue.by_executor.entry(executor).or_default() += 1;
        self.may_begin(id)
    }

    /// Removes a run from its queue.
    pub(super) fn dequeue(&mut self, id: RunId, executor: usize) {
        let holder = self.runs.get(&id).map(|run| run.holder);
        if let Some(queue) = holder.and_then(|holder| self.queues.get_mut(&holder))
            && queue.waiting.remove(id)
        {
            queue.left(executor);
        }
    }

    /// The waiting runs of a lease.
    pub(super) fn waiting_of(&self, holder: Holder) -> Vec<RunId> {
        let queue = self.queues.get(&holder);
        queue.map(|queue| queue.waiting.iter().collect()).unwrap_or_default()
    }

    pub(super) fn begin_fitting(&mut self, now: Time, step: &mut WorkerStep) {
        let with_waiting = self.queues.iter().filter(|(_, queue)| queue.len() > 0);
        let holders: Vec<Holder> = with_waiting.map(|(holder, _)| *holder).collect();
        for holder in holders {
            self.begin_fitting_of(now, holder, step);
        }
    }

    /// Begins the runs of a lease that fit. Of a long queue, all of whose executors are in use, nothing is looked at.
    fn begin_fitting_of(&mut self, now: Time, holder: Holder, step: &mut WorkerStep) {
        let (mut at, mut refused) = (0, 0);
        if let Some(queue) = self.queues.get_mut(&holder) {
            queue.update_head();
        }
        while self.has_free_executor(holder)
            && refused < MAX_BACKFILL_CANDIDATES
            && let Some(id) = self.queues.get(&holder).and_then(|queue| queue.waiting.get(at))
            && let Some(executor) = self.runs.get(&id).map(|run| run.executor)
        {
            if !self.may_begin(id) && !self.is(Mutant::OverbookedWorker) {
                at += 1;
                refused += usize::from(self.book.has_slot(holder, executor));
                continue;
            }
            let beside = at > 0 && self.fits_beside_head(id);
            let Some(queue) = self.queues.get_mut(&holder) else { return };
            let first = queue.waiting.front();
            queue.waiting.take(id);
            queue.left(executor);
            match (at > 0, beside) {
                (true, true) => drop(queue.backfilled.insert(id)),
                (true, false) => queue.overtaken += 1,
                (false, _) => {}
            }
            if queue.waiting.front() != first {
                queue.update_head();
                at = 0;
            }
            self.begin(now, id, step);
        }
    }

    /// Whether an executor that runs wait for has a free slot.
    fn has_free_executor(&self, holder: Holder) -> bool {
        let Some(queue) = self.queues.get(&holder) else { return false };
        let mut wanted = queue.by_executor.iter().filter(|(_, waiting)| **waiting > 0);
        self.is(Mutant::OverbookedWorker)
            || wanted.any(|(executor, _)| self.book.has_slot(holder, *executor))
    }

    /// Whether a waiting run may begin now.
    fn may_begin(&self, id: RunId) -> bool {
        let Some(holder) = self.runs.get(&id).map(|run| run.holder) else { return false };
        let Some(queue) = self.queues.get(&holder) else { return false };
        let may_overtake =
            || queue.overtaken < self.concurrency_for(holder) || self.fits_beside_head(id);
        self.fits(id) && (queue.waiting.front() == Some(id) || may_overtake())
    }

    /// Whether a run and the head of its queue would both fit beside the backfilled runs, once all other runs of their
    /// lease have ended.
    fn fits_beside_head(&self, id: RunId) -> bool {
        let Some(run) = self.runs.get(&id) else { return false };
        let Some(queue) = self.queues.get(&run.holder) else { return false };
        let Some(first) = queue.head else { return false };
        let Some(first) = self.runs.get(&first) else { return false };
        let beside = || queue.backfilled.iter().filter_map(|id| self.runs.get(id));
        let in_use = beside().filter(|run| run.executor == first.executor).count();
        let same = usize::from(run.executor == first.executor);
        let at_once = self.book.slots_of(run.holder, first.executor) as usize;
        if in_use + 1 + same > at_once {
            return false;
        }
        let mut idle = self.book.ledger_of(run.holder).clone();
        let others: Vec<RunId> =
            idle.keys().filter(|key| !queue.backfilled.contains(key)).collect();
        for other in others {
            let _ = idle.release(other);
        }
        idle.allocate(PROBE, &run.dispatch.spec.requirement, Fit::First).is_ok()
            && idle.fits(&first.dispatch.spec.requirement).is_ok()
    }
}
