//! Time in which the scheduler itself did not run: its process was stopped, or starved. What it could not hear
//! meanwhile is no fault of its workers, so they get the time that they would have had.

use hypha_model::Time;

use super::{Scheduler, SchedulerStep};

/// Why attempts are void whose leases ran out meanwhile.
pub(super) const STALLED: &str = "the scheduler stalled and the lease expired";

impl Scheduler {
    /// Looks whether this step comes much later than it was wanted. If so, what is due is done first: no lease that
    /// has run out meanwhile is relied on.
    pub(super) fn notice_stall(&mut self, now: Time, step: &mut SchedulerStep) {
        if self.is_stalled(now) {
            self.resumed = now;
            self.wake(now, step);
        }
    }

    /// Whether something should have been done long ago.
    pub(super) fn is_stalled(&self, now: Time) -> bool {
        let due = self.agenda.first().map(|(at, _)| *at);
        due.is_some_and(|due| due + self.settings.health_check_timeout < now)
    }

    /// By when an answer to what was sent then is there.
    pub(super) fn answer_due(&self, sent: Time) -> Time {
        sent.max(self.resumed) + self.settings.health_check_timeout
    }

    /// Whether a lease ran out because no heartbeat could renew it.
    pub(super) fn ran_out_in_stall(&self, until: Time) -> bool {
        until <= self.answer_due(self.resumed)
    }
}
