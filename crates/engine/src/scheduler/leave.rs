//! Workers that leave: stopped gracefully, or removed by an operator.

use std::sync::Arc;

use hypha_market::HeldLease;
use hypha_model::{Epoch, LeaseId, Time, Worker, WorkerId};
use hypha_placement::WorkerSlot;

use super::failure::Failure;
use super::{Effect, Scheduler, SchedulerStep};
use crate::message::ToWorker;
use crate::record::Record;

/// Removed workers that are remembered, at some hundred bytes each, with their descriptions; past this the one that was
/// removed first may be found again. To remove more, stop them or revoke their certificates.
const MAX_REMOVED: usize = 10_000;
/// Why attempts of a worker that leaves gracefully are retried elsewhere.
const RETURNED_BY_WORKER: &str = "the worker stopped and returned the attempt";

/// A worker that was removed.
pub(super) struct RemovedWorker {
    pub(super) at: Time,
    /// Its description: a search does not find it again while it stays connected. Not known after a restart, until the
    /// worker is found.
    pub(super) description: Option<Arc<Worker>>,
}

impl RemovedWorker {
    pub(super) fn at(at: Time) -> RemovedWorker {
        RemovedWorker { at, description: None }
    }
}

impl Scheduler {
    /// An incarnation of a worker stops, or has stopped, gracefully. The attempts that it returns are retried
    /// elsewhere, and do not count against the worker or the task.
    pub(super) fn worker_left(
        &mut self,
        now: Time,
        worker: WorkerId,
        epoch: Epoch,
        waits_for: Option<LeaseId>,
        step: &mut SchedulerStep,
    ) {
        let retry_at = now + self.settings.health_check_interval;
        if let Some(lease) = waits_for {
            let message = ToWorker::ReleaseLease { lease, epoch };
            step.send(Effect::ToWorker { worker, message });
        }
        let Some((slot, state)) = self.state_of(worker) else { return };
        let held = state.lease().map(|(_, epoch)| epoch);
        if held.is_some_and(|held| held > epoch) {
            // A late message of an earlier incarnation.
            return;
        }
        if held.is_some() {
            state.mark_lost(now, "it was stopped");
            // It is found again when it is back; until then a request would not be answered.
            state.lease = HeldLease::request_at(now, retry_at);
            self.placement.set_available(slot, false, now);
        } else if waits_for.is_some() {
            // Its answer to our request may still arrive, and grant a lease that has ended.
            state.lease = HeldLease::request_at(now, retry_at);
        }
        self.fail_all_of(now, slot, Failure::Returned(RETURNED_BY_WORKER), step);
        let unreconciled = self.unreconciled.remove(&worker).unwrap_or_default();
        self.fail_attempts(now, unreconciled, Failure::Returned(RETURNED_BY_WORKER), step);
        self.arm_worker(slot);
    }

    /// Drains a worker, which gets no new tasks; false if it is not known.
    pub(super) fn drain_worker(
        &mut self,
        now: Time,
        worker: WorkerId,
        step: &mut SchedulerStep,
    ) -> bool {
        let Some((slot, state)) = self.state_of(worker) else { return false };
        let (has_lease, description) = (state.lease().is_some(), Some(Arc::clone(&state.worker)));
        match self.removed.get_mut(&worker) {
            // The command is repeated while it drains: that does not change when it was removed.
            Some(removed) => removed.description = description,
            None => {
                self.make_room_for_removed(step);
                self.removed.insert(worker, RemovedWorker { at: now, description });
                step.persist(Record::WorkerRemoved { worker, at: now });
            }
        }
        self.drain(slot);
        self.update_availability(now, slot);
        if !has_lease {
            self.release_bound(now, slot);
        }
        true
    }

    /// Readmits the worker that was removed first, if too many are remembered.
    fn make_room_for_removed(&mut self, step: &mut SchedulerStep) {
        if self.removed.len() >= MAX_REMOVED
            && let Some(first) = self.removed.iter().min_by_key(|(_, it)| it.at).map(|(id, _)| *id)
        {
            self.readmit(first, step);
        }
    }

    /// A worker that was removed is used again: now if its description is known, or when it is found. False if it was
    /// not removed.
    pub(super) fn readmit_worker(
        &mut self,
        now: Time,
        worker: WorkerId,
        step: &mut SchedulerStep,
    ) -> bool {
        let Some(removed) = self.readmit(worker, step) else { return false };
        let known = self.state_of(worker).map(|(_, state)| Arc::clone(&state.worker));
        if let Some(worker) = removed.description.or(known) {
            self.worker_found(now, worker, step);
        }
        true
    }

    /// A worker that was removed may be used again.
    pub(super) fn readmit(
        &mut self,
        worker: WorkerId,
        step: &mut SchedulerStep,
    ) -> Option<RemovedWorker> {
        let removed = self.removed.remove(&worker)?;
        step.persist(Record::WorkerReadmitted(worker));
        Some(removed)
    }

    /// The worker finishes its attempts, and is forgotten then.
    pub(super) fn drain(&mut self, slot: WorkerSlot) {
        if let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) {
            state.draining = true;
            self.draining.insert(slot);
        }
    }

    /// Forgets the draining workers that are idle.
    pub(super) fn forget_drained(&mut self, now: Time, step: &mut SchedulerStep) {
        if self.draining.is_empty() {
            return;
        }
        let idle = |slot: &&WorkerSlot| {
            // After a restart, its attempts are not known to placement before it is reconciled.
            let worker = self.placement.worker_id(**slot);
            let is_unreconciled =
                worker.is_some_and(|worker| self.unreconciled.contains_key(&worker));
            self.placement.is_idle(**slot) && !is_unreconciled
        };
        let drained: Vec<WorkerSlot> = self.draining.iter().filter(idle).copied().collect();
        for slot in drained {
            if let Some(Some(state)) = self.workers.get(slot.0 as usize)
                && let Some((lease, epoch)) = state.lease()
            {
                let message = ToWorker::ReleaseLease { lease, epoch };
                step.send(Effect::ToWorker { worker: state.worker.id, message });
            }
            let worker = self.placement.worker_id(slot);
            self.forget_worker(now, slot, step);
            if let Some(worker) = worker {
                step.send(Effect::WorkerForgotten(worker));
            }
        }
    }
}
