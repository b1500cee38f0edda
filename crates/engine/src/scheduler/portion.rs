//! How much of a worker is leased: placement sees only that portion, and heartbeats carry the demand of queued tasks
//! that the worker could run if more of it were leased.

use std::sync::Arc;

use hypha_market::{Portion, heartbeat_interval};
use hypha_model::{Epoch, LeaseId, Requirement, Span, Time, Worker, WorkerId};
use hypha_placement::{TaskRef, WorkerSlot};

use super::failure::Failure;
use super::{Scheduler, SchedulerStep, Settings, Task, WorkerState};

impl Scheduler {
    /// The lease of a worker covers this portion from now on; `None` is all of the worker.
    pub(super) fn set_portion(
        &mut self,
        now: Time,
        slot: WorkerSlot,
        portion: Option<Portion>,
        step: &mut SchedulerStep,
    ) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let portion = portion.map(|portion| Arc::new(portion.clamped_to(&state.worker)));
        if state.portion == portion {
            return;
        }
        let worker = match &portion {
            Some(portion) => {
                let capacity = portion.capacity(&state.worker);
                Arc::new(Worker { capacity, ..Worker::clone(&state.worker) })
            }
            None => Arc::clone(&state.worker),
        };
        let whole = || Portion::whole(&state.worker).slots;
        let slots = portion.as_ref().map_or_else(whole, |portion| portion.slots.clone());
        state.portion = portion;
        self.placement.resize(slot, worker, &slots, now);
        self.update_availability(now, slot);
        // Tasks that were bound to it are placed again: they may no longer fit.
        self.release_bound(now, slot);
        for reference in self.placement.dispatched_to(slot) {
            if self.exceeds_portion(slot, reference) {
                let returned = Failure::Returned("other schedulers hold too much of the worker");
                self.attempt_failed(now, reference, returned, step);
            }
        }
    }

    /// Whether a task waits on a worker and needs more than is leased of it.
    fn exceeds_portion(&self, slot: WorkerSlot, reference: TaskRef) -> bool {
        let state = self.workers.get(slot.0 as usize).and_then(Option::as_ref);
        let refuses = |(state, task): (&WorkerState, &Task)| {
            let needs = &task.accepted.spec.requirement;
            let portion = state.portion.as_ref();
            portion.is_some_and(|portion| portion.refusal_for(&state.worker, needs).is_some())
        };
        let waits = |task: &&Task| task.current.is_some_and(|current| current.started.is_none());
        state.zip(self.task(reference).filter(waits)).is_some_and(refuses)
    }

    /// The worker would lease another portion now: renew at once. If a heartbeat is unanswered, its answer has the
    /// portion anyway.
    pub(super) fn renew_early(
        &mut self,
        now: Time,
        worker: WorkerId,
        named: (LeaseId, Epoch),
        step: &mut SchedulerStep,
    ) {
        let Some((slot, state)) = self.state_of(worker) else { return };
        if state.lease() != Some(named) {
            return;
        }
        state.lease.renew_by(now);
        self.worker_due(now, slot, step);
    }

    /// The requirement of the oldest queued task that the worker could run if all of it were leased, if it is not.
    pub(super) fn demand_on(&self, slot: WorkerSlot) -> Option<Arc<Requirement>> {
        let state = self.workers.get(slot.0 as usize)?.as_ref()?;
        state.portion.as_ref()?;
        let requirement = self.placement.oldest_requirement_for(slot, &state.worker)?;
        Some(Arc::new(requirement.clone()))
    }
}

impl Settings {
    /// How long after a heartbeat the next is sent. It is shorter for a worker of which only a part is leased, so that
    /// the demand of queued tasks reaches it soon.
    pub(super) fn renewal_interval(&self, ttl: Span, is_part: bool) -> Span {
        let (interval, soon) = (self.health_check_interval, self.health_check_timeout);
        heartbeat_interval(if is_part { interval.min(soon) } else { interval }, ttl)
    }
}
