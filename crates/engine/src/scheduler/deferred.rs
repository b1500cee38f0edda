//! Work that is too much for one step: a lost worker may have thousands of attempts, and a strategy switch has to
//! reorder up to a million queued tasks, while all other events wait for the machine.
//!
//! A step handles at most `Settings::items_per_step` of such items. The rest is deferred here, and the machine asks to
//! be woken at once until nothing is left. A deferred item keeps its state:
//!
//! - An attempt is valid until the step that gives it up. A result that arrives before that counts; a worker that gets
//!   a new lease gets an order to stop the attempt. The worker itself is unavailable from the first step on.
//! - A task that is bound to an unavailable worker stays bound, and is not dispatched.
//! - After a switch of the strategy, a queued task keeps its position in the old order, and a bound task stays bound;
//!   both may be dispatched.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::vec::IntoIter;

use hypha_model::{Fence, Time, Worker, WorkerId};
use hypha_placement::{TaskRef, WorkerSlot};

use super::failure::Failure;
use super::{Scheduler, SchedulerStep};
use crate::mutant::Mutant;
use crate::record::Record;

/// Deferred work. Each part has at most one entry for a worker, except `attempts`, which has one for each time that a
/// worker lost its attempts.
#[derive(Default)]
pub(super) struct Deferred {
    /// Attempts that give no result, each with its token.
    attempts: VecDeque<(IntoIter<(TaskRef, Fence)>, Failure)>,
    /// Unavailable workers to which tasks are bound.
    bound: BTreeSet<WorkerSlot>,
    /// Tasks that are bound to a worker some of whose executors are suspended.
    unschedulable: BTreeMap<WorkerSlot, IntoIter<TaskRef>>,
    /// Workers with a new description that still have tasks of the old one.
    described: BTreeMap<WorkerId, Arc<Worker>>,
    /// How far the tasks have been reordered for a new strategy.
    reordered: Option<usize>,
    /// How far the records of workers have been saved.
    saved: Option<usize>,
    /// Whether there are more keys to forget.
    keys: bool,
}

impl Deferred {
    pub(super) fn is_empty(&self) -> bool {
        let Deferred { attempts, bound, unschedulable, described, reordered, saved, keys } = self;
        let no_tasks = attempts.is_empty() && bound.is_empty() && unschedulable.is_empty();
        no_tasks && described.is_empty() && reordered.is_none() && saved.is_none() && !keys
    }
}

impl Scheduler {
    /// Continues with the work that earlier steps deferred.
    pub(super) fn continue_deferred(&mut self, now: Time, step: &mut SchedulerStep) {
        // At least one item, so that deferred work ends whatever else the steps have to do.
        self.budget = self.budget.max(1);
        while self.budget > 0
            && let Some((attempts, failure)) = self.deferred.attempts.pop_front()
        {
            self.fail_some(now, attempts, failure, step);
        }
        while self.budget > 0
            && let Some(slot) = self.deferred.bound.pop_first()
        {
            if self.workers.get(slot.0 as usize).is_some_and(|state| {
                state.as_ref().is_some_and(|state| state.unavailability().is_some())
            }) {
                self.release_bound(now, slot);
            }
        }
        while self.budget > 0
            && let Some((slot, tasks)) = self.deferred.unschedulable.pop_first()
        {
            self.release_unschedulable(now, slot, tasks);
        }
        if self.budget > 0
            && let Some((_, worker)) = self.deferred.described.pop_first()
        {
            self.budget -= 1;
            self.worker_found(now, worker, step);
        }
        if self.budget > 0
            && let Some(from) = self.deferred.reordered.take()
        {
            self.reorder(now, from);
        }
        if self.budget > 0
            && let Some(from) = self.deferred.saved.take()
        {
            self.save_workers(from, step);
        }
        if std::mem::take(&mut self.deferred.keys) {
            self.forget_old_keys(now);
        }
    }

    /// These attempts give no result: handles them now, or in later steps.
    pub(super) fn fail_attempts(
        &mut self,
        now: Time,
        tasks: impl IntoIterator<Item = TaskRef>,
        failure: Failure,
        step: &mut SchedulerStep,
    ) {
        let token = |task: TaskRef| Some((task, self.task(task)?.current?.fence));
        let attempts: Vec<_> = tasks.into_iter().filter_map(token).collect();
        self.fail_some(now, attempts.into_iter(), failure, step);
    }

    fn fail_some(
        &mut self,
        now: Time,
        mut attempts: IntoIter<(TaskRef, Fence)>,
        mut failure: Failure,
        step: &mut SchedulerStep,
    ) {
        while self.budget > 0
            && let Some((reference, fence)) = attempts.next()
        {
            self.budget -= 1;
            let current = self.task(reference).and_then(|task| task.current);
            // It may have ended meanwhile, and its reference may be another task's.
            let Some(current) = current.filter(|current| current.fence == fence) else { continue };
            if matches!(failure, Failure::Unacknowledged)
                && !self.is_reassignable(reference, &current)
            {
                continue;
            }
            self.attempt_failed(now, reference, failure.clone(), step);
            failure = failure.already_counted();
        }
        if !attempts.as_slice().is_empty() {
            self.deferred.attempts.push_back((attempts, failure));
        }
    }

    /// Unbinds the tasks that are bound to a worker and not dispatched, to be placed again.
    pub(super) fn release_bound(&mut self, now: Time, slot: WorkerSlot) {
        if self.is(Mutant::StuckBound) {
            return;
        }
        let released = self.placement.release_bound(slot, self.budget, now);
        self.released(&released);
        if self.placement.has_bound(slot) {
            self.deferred.bound.insert(slot);
        }
    }

    /// Unbinds the tasks of a worker that has no usable executor for them.
    pub(super) fn release_unschedulable(
        &mut self,
        now: Time,
        slot: WorkerSlot,
        mut tasks: IntoIter<TaskRef>,
    ) {
        let part: Vec<TaskRef> = tasks.by_ref().take(self.budget).collect();
        self.budget -= part.len();
        for task in part {
            if self.placement.release_unschedulable(task, slot, now)
                && let Some(task) = self.task_mut(task)
            {
                task.unbind();
            }
        }
        if !tasks.as_slice().is_empty() {
            self.deferred.unschedulable.insert(slot, tasks);
        }
    }

    /// A worker has a new description, which replaces the old one as soon as no task of the old one is left.
    pub(super) fn defer_replacement(&mut self, worker: Arc<Worker>) {
        self.deferred.described.insert(worker.id, worker);
    }

    /// A worker has its old description again.
    pub(super) fn cancel_replacement(&mut self, worker: WorkerId) {
        self.deferred.described.remove(&worker);
    }

    /// Reorders tasks for the strategy that was chosen, from the number `from` on.
    pub(super) fn reorder(&mut self, now: Time, from: usize) {
        let (released, next) = self.placement.reorder(from, self.budget, now);
        self.budget = 0;
        // Tasks that were bound and not dispatched are placed again.
        self.released(&released);
        self.deferred.reordered = next;
    }

    fn released(&mut self, tasks: &[TaskRef]) {
        self.budget = self.budget.saturating_sub(tasks.len());
        for task in tasks {
            if let Some(task) = self.task_mut(*task) {
                task.unbind();
            }
        }
    }

    /// Saves the records of workers that have changed since they were last saved, from the slot `from` on.
    pub(super) fn save_workers(&mut self, from: usize, step: &mut SchedulerStep) {
        for slot in from..self.workers.len() {
            if self.budget == 0 {
                self.deferred.saved = Some(slot);
                return;
            }
            let Some(worker) = &mut self.workers[slot] else { continue };
            if std::mem::take(&mut worker.is_unsaved)
                && let Some(health) = self.placement.health(WorkerSlot(slot as u32))
            {
                self.budget -= 1;
                let worker = Arc::clone(&worker.worker);
                step.persist(Record::Worker { worker, health });
            }
        }
    }

    /// Forgets keys of tasks that ended long ago.
    pub(super) fn forget_old_keys(&mut self, now: Time) {
        for _ in 0..self.settings.items_per_step {
            let is_old = |at: Time, keys: usize| at <= now || keys > MAX_OLD_KEYS;
            let keys = self.old_keys.len();
            // A later task may have the key by now.
            match self.old_keys.pop_front_if(|(at, ..)| is_old(*at, keys)) {
                Some((_, key, task)) if self.by_key.get(&key) == Some(&task) => {
                    self.by_key.remove(&key);
                }
                Some(_) => {}
                None => return,
            }
        }
        self.deferred.keys = true;
    }
}

/// Keys of ended tasks that are kept, at about 150 bytes each; the oldest are forgotten first.
const MAX_OLD_KEYS: usize = 1_000_000;
