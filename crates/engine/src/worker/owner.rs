//! The owner of the machine: while the worker is paused, outside its hours or in use by its owner, nothing new begins.
//! What runs goes on, and leases are kept. Schedulers that the owner's terms do not serve get no lease.

use hypha_market::{Advertiser, OwnerReason, OwnerState};
use hypha_model::{Refusal, RefusalKind, SchedulerId, Time};

use super::{RunPhase, WorkerMachine, WorkerStep, send_message_at_once};
use crate::message::FromWorker;

impl WorkerMachine {
    /// An incarnation that starts with these schedulers connected.
    pub fn with_schedulers(
        mut self,
        connected: impl IntoIterator<Item = Advertiser>,
    ) -> WorkerMachine {
        connected.into_iter().for_each(|scheduler| self.scheduler_connected(scheduler));
        self
    }

    /// An incarnation that starts in this state of its owner.
    pub fn with_owner(mut self, state: OwnerState) -> WorkerMachine {
        self.owner = state;
        self
    }

    /// Whether new leases, dispatches and runs may begin.
    pub fn takes_new_work(&self) -> bool {
        self.owner.refusal().is_none()
    }

    pub(super) fn owner_changed(&mut self, now: Time, state: OwnerState, step: &mut WorkerStep) {
        let before = std::mem::replace(&mut self.owner, state).refusal();
        if before == state.refusal() {
            return;
        }
        // Before runs are returned: otherwise their holders might dispatch them here again.
        for holder in self.lease_holders() {
            self.send_unreachable(holder, step);
        }
        if !self.takes_new_work() {
            self.return_waiting(step);
        }
        // A paused worker finishes what it has; one whose owner needs it, or whose hours are over, does not for long.
        if matches!(state.refusal(), Some(OwnerReason::InUse | OwnerReason::OffHours)) {
            self.preempt_for_owner(now, step);
        }
    }

    /// Why a scheduler gets no shared lease because of the owner; it learns the reason. The holder of a lease keeps it.
    pub(super) fn owner_refusal(
        &self,
        from: SchedulerId,
        step: &mut WorkerStep,
    ) -> Option<RefusalKind> {
        if self.lease_of(from).is_some() {
            return None;
        }
        let by_terms = self.terms().shared_lease_refusal(self.organisation_of(from));
        by_terms.or_else(|| {
            if self.takes_new_work() {
                return None;
            }
            self.send_unreachable(from, step);
            Some(RefusalKind::Unavailable)
        })
    }

    /// Whether some executors, or all because of the owner, should get no tasks.
    pub(super) fn has_unreachable(&self) -> bool {
        !self.unreachable.is_empty() || !self.takes_new_work()
    }

    /// Returns the waiting runs to the holders of their leases. The worker's own task instance has no other place for
    /// those that it has accepted: they wait.
    fn return_waiting(&mut self, step: &mut WorkerStep) {
        let is_returned = |(id, run): (&_, &super::RunState)| {
            let id: super::RunId = *id;
            let is_waiting = matches!(run.phase, RunPhase::Waiting);
            (is_waiting && id.scheduler != SchedulerId::LOCAL).then_some((id, run.dispatch.attempt))
        };
        let returned: Vec<_> = self.runs.iter().filter_map(is_returned).collect();
        for (id, attempt) in returned {
            self.stop(id, false, step);
            let refusal = Refusal::without_amount(RefusalKind::Unavailable);
            let message = FromWorker::Refused { attempt, fence: id.fence, refusal };
            send_message_at_once(step, id.scheduler, message);
        }
    }
}
