//! Workers that go: stopped in order, or removed by an operator.

use std::sync::Arc;

use hypha_market::HeldLease;
use hypha_model::{Epoch, LeaseId, Time, Worker, WorkerId};
use hypha_placement::WorkerSlot;

use super::failure::Failure;
use super::{Effect, Scheduler, SchedulerStep};
use crate::message::ToWorker;
use crate::record::Record;

/// Removed workers that are remembered, at some hundred bytes each, with what they say of themselves; past this the
/// one that was removed first may be found again. More are removed by stopping them, or by revoking their certificates.
const MAX_REMOVED: usize = 10_000;
/// Why attempts of a worker that leaves in order are tried elsewhere.
const GAVE_BACK: &str = "the worker stopped and returned the attempt";

/// A worker that was removed.
pub(super) struct RemovedWorker {
    pub(super) at: Time,
    /// What it says of itself: nobody finds it again while it stays connected. Not known after a restart, until it is
    /// found.
    pub(super) description: Option<Arc<Worker>>,
}

impl RemovedWorker {
    pub(super) fn at(at: Time) -> RemovedWorker {
        RemovedWorker { at, description: None }
    }
}

impl Scheduler {
    /// A life of a worker ends, or has ended, in order. What it gives back is tried elsewhere, and counts against
    /// nobody.
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
            // A word of an earlier life, come late.
            return;
        }
        if held.is_some() {
            state.mark_lost(now, "it was stopped");
            // It says when it is back; until then there is nobody to ask.
            state.lease = HeldLease::request_at(now, retry_at);
            self.placement.set_available(slot, false, now);
        } else if waits_for.is_some() {
            // Its answer to our request may still come, and grants what has ended.
            state.lease = HeldLease::request_at(now, retry_at);
        }
        self.fail_all_of(now, slot, Failure::Returned(GAVE_BACK), step);
        let unreconciled = self.unreconciled.remove(&worker).unwrap_or_default();
        self.fail_attempts(now, unreconciled, Failure::Returned(GAVE_BACK), step);
        self.arm_worker(slot);
    }

    /// Gives a worker nothing more; false if it is not known.
    pub(super) fn drain_worker(
        &mut self,
        now: Time,
        worker: WorkerId,
        step: &mut SchedulerStep,
    ) -> bool {
        let Some((slot, state)) = self.state_of(worker) else { return false };
        let (has_lease, description) = (state.lease().is_some(), Some(Arc::clone(&state.worker)));
        match self.removed.get_mut(&worker) {
            // Somebody asks again while it finishes: that does not remove it later than it was.
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

    /// Lets the one go that was removed first, if too many are remembered.
    fn make_room_for_removed(&mut self, step: &mut SchedulerStep) {
        if self.removed.len() >= MAX_REMOVED
            && let Some(first) = self.removed.iter().min_by_key(|(_, it)| it.at).map(|(id, _)| *id)
        {
            self.readmit(first, step);
        }
    }

    /// A worker that was removed is taken again, now if it is known what it is, or when it is found; false if it was
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

    /// A worker that was removed may be taken again.
    pub(super) fn readmit(
        &mut self,
        worker: WorkerId,
        step: &mut SchedulerStep,
    ) -> Option<RemovedWorker> {
        let removed = self.removed.remove(&worker)?;
        step.persist(Record::WorkerReadmitted(worker));
        Some(removed)
    }

    /// The worker finishes what it has, and is forgotten then.
    pub(super) fn drain(&mut self, slot: WorkerSlot) {
        if let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) {
            state.draining = true;
            self.draining.insert(slot);
        }
    }

    /// Forgets the workers that are to be removed and have nothing left.
    pub(super) fn forget_drained(&mut self, now: Time, step: &mut SchedulerStep) {
        if self.draining.is_empty() {
            return;
        }
        let idle = |slot: &&WorkerSlot| {
            // After a restart, what it was given is not known to be with it before it says so.
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
