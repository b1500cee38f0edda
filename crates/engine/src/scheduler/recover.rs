//! A new incarnation of a scheduler, from what the earlier ones made durable.

use hypha_model::{
    AttemptId, Fence, Map, PagedSlab, Rng, SchedulerId, ShardedMap, TaskState, Time, WorkerId,
};
use hypha_placement::{Placement, WorkerSlot};
use hypha_predict::Predictor;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::deferred::Deferred;
use super::failure::Failure;
use super::leave::RemovedWorker;
use super::{Attempt, Counts, Due, Scheduler, SchedulerStep, Settings, TaskRef};
use crate::mutant::Mutant;
use crate::record::{FailedAttempt, Image, Record};

/// Why an attempt of an earlier incarnation is void: its worker lost the lease meanwhile, never got it, or died.
const NOT_HELD: &str = "the scheduler was restarted and the worker no longer has the attempt";
/// The same, if the worker's back end had it.
pub(super) const NOT_FOUND: &str =
    "the scheduler was restarted and the back end no longer has the attempt";
/// The same, if the worker grants no lease for as long as one holds.
pub(super) const NOT_RECONNECTED: &str =
    "the scheduler was restarted and the worker did not reconnect";

impl Scheduler {
    /// A scheduler that continues where `image` ends. Attempts that were in flight are kept until their
    /// workers report whether they still have them.
    pub fn recover(
        id: SchedulerId,
        settings: Settings,
        image: Image,
        seed: u64,
        now: Time,
        step: &mut SchedulerStep,
    ) -> Scheduler {
        let settings = settings.bounded();
        let epoch = image.epoch.next();
        step.persist(Record::Started { epoch });
        // Each incarnation draws different ids, even with the same seed.
        let mut rng = Rng::new(seed ^ epoch.0.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let strategy = image.strategy.unwrap_or(settings.strategy);
        let preferences = settings.preferences.clone();
        let predictor = match image.predictor {
            Some(snapshot) => Predictor::restore(Default::default(), snapshot),
            None => Predictor::new(Default::default()),
        };
        let mut scheduler = Scheduler {
            id,
            epoch,
            predictor,
            placement: Placement::new(strategy, preferences, rng.next_u64()),
            rng,
            last_id: image.last_id,
            tasks: PagedSlab::default(),
            by_id: ShardedMap::default(),
            by_tenant: BTreeMap::new(),
            by_key: BTreeMap::new(),
            old_keys: VecDeque::new(),
            workers: Vec::new(),
            slot_of: Map::default(),
            unreconciled: BTreeMap::new(),
            draining: BTreeSet::new(),
            removed: image
                .removed
                .into_iter()
                .map(|(id, at)| (id, RemovedWorker::at(at)))
                .collect(),
            agenda: BTreeSet::new(),
            fences: 0,
            requests: 0,
            resumed: now,
            flushes: false,
            counts: Counts::default(),
            actions: Vec::new(),
            next_factor: 0,
            plan_wanted: false,
            deferred: Deferred::default(),
            jobs: super::jobs::Jobs::default(),
            notary: None,
            pool: super::pool::Pool::default(),
            registered: BTreeSet::new(),
            budget: 0,
            settings,
        };
        if let Some(mutant) = scheduler.settings.mutant.and_then(Mutant::of_placement) {
            scheduler.placement.mutate(mutant);
        }
        if let Some(mode) = image.mode {
            // Without its table the mode cannot be used; the driver loads the table and sets the mode again.
            let _ = scheduler.predictor.set_mode(mode);
        }
        for (worker, health) in image.workers.into_values() {
            let removed = scheduler.removed.contains_key(&worker.id);
            let slot = scheduler.add_worker(now, worker, health, step);
            if removed {
                scheduler.drain(slot);
            }
        }
        // Factors are relative to the averages of all workers, so they are set when all have been added.
        for slot in 0..scheduler.workers.len() {
            scheduler.update_factor(now, WorkerSlot(slot as u32));
        }
        for task in image.tasks.into_values() {
            scheduler.recover_task(now, task);
        }
        scheduler.recover_jobs(now, &image.jobs);
        // The tasks came in the order of their ids, not of their ends.
        scheduler.old_keys.make_contiguous().sort_by_key(|(at, ..)| *at);
        scheduler.forget_old_keys(now);
        scheduler.agenda.insert((now + scheduler.settings.save_interval, Due::Save));
        scheduler
    }

    fn recover_task(&mut self, now: Time, stored: crate::record::StoredTask) {
        let id = stored.accepted.id;
        let tenant = stored.accepted.spec.tenant.clone();
        let key = stored.accepted.idempotency_key.clone().map(|key| (tenant, key));
        if let Some(key) = key.clone() {
            self.by_key.insert(key, id);
        }
        if let Some(finished) = stored.finished {
            if let Some(key) = key {
                self.old_keys.push_back((finished.finished + self.settings.key_ttl, key, id));
            }
            return;
        }
        // The clock may have been set back since: no backoff exceeds the longest.
        let not_before = stored.not_before.min(now + self.settings.retry.backoff_max);
        // The predictor sees all tasks in the order of their ids, also those that are not queued yet.
        self.predictor.query(&stored.accepted.spec);
        let reference = self.add_task(stored.accepted, true);
        let Some(task) = self.task_mut(reference) else { return };
        if stored.attempts > 0 {
            task.attempts = stored.attempts;
            task.failures = stored.failures;
            for FailedAttempt { worker, .. } in &*stored.failed {
                if !task.failed_on.contains(worker) {
                    task.failed_on.push(*worker);
                }
            }
            task.failed = stored.failed;
            task.handle = stored.current.as_ref().and_then(|current| current.handle.clone());
            task.current = stored.current.map(|current| Attempt {
                fence: current.fence,
                worker: current.worker,
                slot: None,
                dispatched_at: current.dispatched_at.min(now),
                sent: now,
                started: current.started.map(|started| started.min(now)),
                run_started: current.started.map(|started| started.min(now)),
                acknowledged: Some(now),
                resends: 0,
            });
        }
        match task.current {
            Some(Attempt { worker, .. }) => {
                task.state = match task.current.and_then(|current| current.started) {
                    Some(_) => TaskState::Running,
                    None => TaskState::Scheduled,
                };
                self.unreconciled.entry(worker).or_default().insert(reference);
            }
            None if not_before > now => task.not_before = not_before,
            None => self.enqueue(reference),
        }
        self.arm_task(reference);
    }

    /// A worker has granted a lease and names the attempts it still has. Those that are current continue, and those
    /// that are void are cancelled. Attempts that an earlier incarnation dispatched and the worker no longer has are
    /// retried, and use up no attempt.
    pub(super) fn reconcile_after_grant(
        &mut self,
        now: Time,
        worker: WorkerId,
        slot: WorkerSlot,
        holding: &[(AttemptId, Fence)],
        step: &mut SchedulerStep,
    ) {
        let mut void = Vec::new();
        for (attempt, fence) in holding {
            let ours = self.by_id.get(&attempt.task).copied().filter(|reference| {
                self.task(*reference).is_some_and(|task| {
                    task.current.is_some_and(|current| {
                        current.fence == *fence
                            && current.worker == worker
                            && current.slot.is_none()
                    })
                })
            });
            match ours {
                Some(reference) => self.resume_attempt(now, reference, slot),
                None => void.push((*attempt, *fence)),
            }
        }
        self.cancel_all(worker, &void, step);
        let mut lost = Vec::new();
        for reference in self.unreconciled.remove(&worker).unwrap_or_default() {
            let current = self.task(reference).and_then(|task| task.current);
            if current.is_none_or(|current| current.slot.is_some()) {
                continue;
            }
            if self.task(reference).is_some_and(|task| task.handle.is_some()) {
                // The worker has forgotten it, but its back end may not have.
                self.resume_attempt(now, reference, slot);
                self.redispatch(now, reference, step);
            } else {
                lost.push(reference);
            }
        }
        self.fail_attempts(now, lost, Failure::Interrupted(NOT_HELD), step);
    }

    /// An attempt of an earlier incarnation continues at its worker.
    fn resume_attempt(&mut self, now: Time, reference: TaskRef, slot: WorkerSlot) {
        self.enqueue(reference);
        self.placement.adopt(reference, slot, &self.predictor, now);
        let Some(task) = self.task_mut(reference) else { return };
        let Some(current) = &mut task.current else { return };
        current.slot = Some(slot);
        if current.started.is_some() {
            task.state = TaskState::Running;
            self.placement.mark_started(reference, now);
        }
    }

    /// The attempt of a task is void before its worker was reconciled.
    pub(super) fn remove_unreconciled(&mut self, worker: WorkerId, reference: TaskRef) {
        if let Some(tasks) = self.unreconciled.get_mut(&worker) {
            tasks.remove(&reference);
            if tasks.is_empty() {
                self.unreconciled.remove(&worker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hypha_machine::{Apply, Batch};
    use hypha_model::{TaskId, TaskSpec};

    use super::*;
    use crate::{Command, NewTask, SchedulerEvent};

    #[test]
    fn tasks_without_attempts_take_no_memory_for_history() {
        let now = Time::from_micros(1_000_000);
        let mut step = SchedulerStep::default();
        let id = SchedulerId::new(now, &mut Rng::new(1));
        let life = |image: Image, step: &mut SchedulerStep| {
            Scheduler::recover(id, Settings::default(), image, 1, now, step)
        };
        let untried = |scheduler: &Scheduler| {
            scheduler.tasks.iter().filter(|task| task.history.is_none()).count()
        };
        let mut scheduler = life(Image::default(), &mut step);
        let spec = Arc::new(TaskSpec::default());
        let new = NewTask {
            spec,
            idempotency_key: None,
            bind_at_once: false,
            stored: true,
            quota: None,
            weight: None,
        };
        let command = Command::SubmitTasks(vec![new; 10]);
        let mut batch: Batch<Scheduler, ()> = Batch::from(step);
        batch.step_event(&mut scheduler, now, SchedulerEvent::CommandReceived(command));
        let ids: Vec<TaskId> = scheduler.tasks.iter().map(|task| task.accepted.id).collect();
        for id in &ids {
            assert!(scheduler.task_view(*id, now).is_some());
        }
        batch.step_event(&mut scheduler, now, SchedulerEvent::Woke);
        let command = Command::SetStrategy(hypha_placement::Strategy::Fifo);
        batch.step_event(&mut scheduler, now, SchedulerEvent::CommandReceived(command));
        assert_eq!(untried(&scheduler), 10);

        let mut image = Image::default();
        batch.seal().records().iter().for_each(|record| image.apply(record));
        assert_eq!(untried(&life(image, &mut SchedulerStep::default())), 10);
    }
}
