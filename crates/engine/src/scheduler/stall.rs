//! Time in which the scheduler itself did not run: its process was stopped, or starved. Messages that it could not
//! receive meanwhile are no fault of its workers, so their time to answer is extended.

use hypha_model::Time;

use super::{Scheduler, SchedulerStep};

/// Why attempts are void whose leases expired meanwhile.
pub(super) const STALLED: &str = "the scheduler stalled and the lease expired";

impl Scheduler {
    /// Detects whether this step comes much later than requested. If so, due work is done first, so that no lease that
    /// expired meanwhile is relied on.
    pub(super) fn notice_stall(&mut self, now: Time, step: &mut SchedulerStep) {
        if self.is_stalled(now) {
            self.resumed = now;
            self.wake(now, step);
        }
    }

    /// Whether something has been due for longer than an answer may take.
    pub(super) fn is_stalled(&self, now: Time) -> bool {
        let due = self.agenda.first().map(|(at, _)| *at);
        due.is_some_and(|due| due + self.settings.health_check_timeout < now)
    }

    /// When the answer to a message sent at `sent` is due.
    pub(super) fn answer_due(&self, sent: Time) -> Time {
        sent.max(self.resumed) + self.settings.health_check_timeout
    }

    /// Whether a lease expired because the stall kept heartbeats from renewing it.
    pub(super) fn ran_out_in_stall(&self, until: Time) -> bool {
        until <= self.answer_due(self.resumed)
    }
}
