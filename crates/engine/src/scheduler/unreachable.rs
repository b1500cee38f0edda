//! Unreachable executors: their back ends do not answer, or the owner of the worker lets nothing new begin. They get no
//! tasks until the worker reports otherwise, and it does not count as a failure.

use hypha_market::{HeldLease, OwnerReason};
use hypha_model::{Name, Time, WorkerId};
use hypha_placement::WorkerSlot;

use super::Scheduler;

/// That an executor is unreachable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unreachable {
    pub(super) since: Time,
    /// When that was last noticed.
    last_noticed: Time,
    /// The owner's reason, if the worker's owner lets nothing new begin.
    pub(super) owner: Option<OwnerReason>,
}

impl Scheduler {
    /// An executor is unreachable. It may still finish the attempts that it has.
    pub(super) fn mark_unreachable(&mut self, now: Time, slot: WorkerSlot, executor: usize) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let Some(unreachable) = state.streaks.unreachable_mut(executor) else { return };
        let (since, owner) = unreachable.map_or((now, None), |known| (known.since, known.owner));
        *unreachable = Some(Unreachable { since, last_noticed: now, owner });
        self.update_suspension(now, slot, executor);
        self.check_soon(now, slot);
        self.arm_worker(slot);
    }

    /// A worker reports which of its executors are unreachable; the others are reachable. A name that two executors
    /// share means both. `owner` is why the worker's owner lets nothing new begin, if that is so.
    pub(super) fn executors_unreachable(
        &mut self,
        now: Time,
        worker: WorkerId,
        (names, owner): (&[Name], Option<OwnerReason>),
    ) {
        self.plan_wanted = false;
        let Some((slot, state)) = self.state_of(worker) else { return };
        let executors = state.worker.executors.iter();
        let unreachable: Vec<bool> =
            executors.map(|executor| names.contains(&executor.name)).collect();
        for (executor, unreachable) in unreachable.into_iter().enumerate() {
            let was_suspended = self.placement.is_suspended(slot, executor);
            if unreachable {
                self.mark_unreachable(now, slot, executor);
                self.set_owner_reason(slot, executor, owner);
            } else if let Some(Some(state)) = self.workers.get_mut(slot.0 as usize)
                && state
                    .streaks
                    .unreachable_mut(executor)
                    .is_some_and(|unreachable| unreachable.take().is_some())
            {
                self.update_suspension(now, slot, executor);
            }
            // Tasks that were bound to it or waited for it are placed again.
            self.plan_wanted |= was_suspended != self.placement.is_suspended(slot, executor);
        }
    }

    fn set_owner_reason(&mut self, slot: WorkerSlot, executor: usize, owner: Option<OwnerReason>) {
        if let Some(Some(state)) = self.workers.get_mut(slot.0 as usize)
            && let Some(Some(unreachable)) = state.streaks.unreachable_mut(executor)
        {
            unreachable.owner = owner;
        }
    }

    /// A worker has answered a request sent at `sent`: executors that were not reported as unreachable since then are
    /// reachable. The answer to an earlier request proves nothing about an executor that became unreachable later.
    pub(super) fn mark_reachable(&mut self, now: Time, slot: WorkerSlot, sent: Time) {
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let is_well = |at: &usize| {
            let unreachable = state.streaks.unreachable_mut(*at);
            unreachable.is_some_and(|unreachable| {
                unreachable.take_if(|unreachable| unreachable.last_noticed < sent).is_some()
            })
        };
        let well: Vec<usize> = (0..state.worker.executors.len()).filter(is_well).collect();
        for executor in well {
            self.update_suspension(now, slot, executor);
        }
        self.check_soon(now, slot);
    }

    /// While an executor is unreachable, its worker gets heartbeats more often. Not at once: the answer would most
    /// likely be the same, and an executor that passes health checks and fails calls must not cause an endless loop.
    fn check_soon(&mut self, now: Time, slot: WorkerSlot) {
        let look_at = now + self.settings.health_check_timeout;
        let Some(Some(state)) = self.workers.get_mut(slot.0 as usize) else { return };
        let any = (0..state.worker.executors.len())
            .any(|at| state.streaks.unreachable_since(at).is_some());
        if let HeldLease::Held { next, .. } = &mut state.lease
            && any
        {
            *next = (*next).min(look_at);
        }
    }
}
