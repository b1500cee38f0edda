//! Which starts of calls to back ends are still to be reported. The start of a call that ends soon never is: it would
//! cost a frame each way and a step of the scheduler, and the report of the end has the run time.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use hypha_engine::{FromWorker, OutgoingMessage, RunCommand, RunId, WorkerEffect};
use hypha_model::AttemptId;

/// A call that ends sooner is short, as in a scheduler's own calls.
const START_REPORT_DELAY: Duration = Duration::from_millis(5);

/// See the module documentation.
#[derive(Default)]
pub(super) struct StartReports {
    /// Calls that have not ended and whose start has not been reported.
    unreported: HashMap<RunId, AttemptId>,
    /// All calls, in the order in which they began, until their start is due.
    begun: VecDeque<(Instant, RunId)>,
    /// Whether [`StartReports::take_due`] is scheduled. One timer serves all calls: one for each would cost as much as the
    /// message.
    is_timed: bool,
}

impl StartReports {
    /// Whether this message reports the start of a run, and the run, which is started by the next effect, is a call.
    pub(super) fn is_deferred(
        sent: &OutgoingMessage,
        next: Option<&WorkerEffect>,
        is_call: impl FnOnce(usize) -> bool,
    ) -> bool {
        match (&sent.message, next) {
            (
                FromWorker::Started { fence, .. },
                Some(WorkerEffect::Run(RunCommand::Start { id, executor, .. })),
            ) => (id.scheduler, id.fence) == (sent.to, *fence) && is_call(*executor),
            _ => false,
        }
    }

    /// A call begins. Returns when to call [`StartReports::take_due`], unless that is scheduled already.
    pub(super) fn add(&mut self, id: RunId, attempt: AttemptId, now: Instant) -> Option<Duration> {
        self.unreported.insert(id, attempt);
        self.begun.push_back((now, id));
        (!std::mem::replace(&mut self.is_timed, true)).then_some(START_REPORT_DELAY)
    }

    /// The report of the start of a run, if it is still to be sent. It is not returned again.
    pub(super) fn take(&mut self, id: RunId) -> Option<FromWorker> {
        let attempt = self.unreported.remove(&id)?;
        Some(FromWorker::Started { attempt, fence: id.fence })
    }

    /// The runs whose start is to be reported now ([`StartReports::take`]), and when to call this again.
    pub(super) fn take_due(&mut self, now: Instant) -> (Vec<RunId>, Option<Duration>) {
        let mut due = Vec::new();
        while let Some((since, id)) = self.begun.front().copied() {
            let left = START_REPORT_DELAY.saturating_sub(now.duration_since(since));
            if !left.is_zero() {
                return (due, Some(left));
            }
            self.begun.pop_front();
            due.extend(self.unreported.contains_key(&id).then_some(id));
        }
        self.is_timed = false;
        (due, None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hypha_engine::Dispatch;
    use hypha_model::{Epoch, Fence, LeaseId, Rng, SchedulerId, Span, TaskId, TaskSpec, Time};

    use super::*;

    fn run(fence: u64) -> (RunId, AttemptId) {
        let task = TaskId::new(Time::ZERO, &mut Rng::new(fence));
        let id = RunId { scheduler: SchedulerId::LOCAL, fence: Fence(fence) };
        (id, AttemptId { task, number: 1 })
    }

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn start_of_a_short_call_is_not_reported() {
        let (mut reports, began, (id, attempt)) = (StartReports::default(), Instant::now(), run(1));
        assert_eq!(reports.add(id, attempt, began), Some(START_REPORT_DELAY));
        // It ends.
        reports.take(id);
        assert_eq!(reports.take_due(began + START_REPORT_DELAY), (vec![], None));
    }

    #[test]
    fn start_of_a_long_call_is_reported_once_when_the_delay_is_over() {
        let (mut reports, began, (id, attempt)) = (StartReports::default(), Instant::now(), run(1));
        reports.add(id, attempt, began);
        let early = began + START_REPORT_DELAY - milliseconds(1);
        assert_eq!(reports.take_due(early), (vec![], Some(milliseconds(1))));
        assert_eq!(reports.take_due(began + START_REPORT_DELAY), (vec![id], None));
        assert_eq!(reports.take(id), Some(FromWorker::Started { attempt, fence: id.fence }));
        assert_eq!(reports.take(id), None);
    }

    /// The first piece of a stream reports the start at once.
    #[test]
    fn start_that_was_reported_early_is_not_reported_again() {
        let (mut reports, began, (id, attempt)) = (StartReports::default(), Instant::now(), run(1));
        reports.add(id, attempt, began);
        assert!(reports.take(id).is_some());
        assert_eq!(reports.take_due(began + START_REPORT_DELAY), (vec![], None));
    }

    #[test]
    fn one_timer_serves_all_calls() {
        let (mut reports, began) = (StartReports::default(), Instant::now());
        let [(first, one), (second, two), (third, three)] = [1, 2, 3].map(run);
        assert!(reports.add(first, one, began).is_some());
        let later = began + milliseconds(2);
        assert_eq!(reports.add(second, two, later), None, "a second timer");
        // The timer is set again for the calls that began later, and no other beside it.
        let due = began + START_REPORT_DELAY;
        assert_eq!(reports.take_due(due), (vec![first], Some(milliseconds(2))));
        assert_eq!(reports.add(third, three, due), None, "a second timer");
        let all = (vec![second, third], None);
        assert_eq!(reports.take_due(due + START_REPORT_DELAY), all);
        let (fourth, four) = run(4);
        assert!(reports.add(fourth, four, due).is_some(), "no timer for a call after all others");
    }

    #[test]
    fn only_the_start_of_the_call_that_begins_next_is_deferred() {
        let ((id, attempt), (other, _)) = (run(1), run(2));
        let lease = LeaseId::new(Time::ZERO, &mut Rng::new(1));
        let dispatch = Arc::new(Dispatch {
            lease,
            epoch: Epoch(1),
            attempt,
            fence: id.fence,
            spec: Arc::new(TaskSpec::default()),
            timeout: Span::from_secs(1),
            interactive: false,
            resume: None,
        });
        let starts = |id, executor| {
            let (dispatch, devices) = (Arc::clone(&dispatch), Vec::new());
            WorkerEffect::Run(RunCommand::Start { id, dispatch, executor, devices })
        };
        let started = FromWorker::Started { attempt, fence: id.fence };
        let accepted = FromWorker::Accepted { attempt, fence: id.fence };
        let cases = [
            (&started, Some(starts(id, 0)), true),
            (&started, Some(starts(id, 1)), false),
            (&started, Some(starts(other, 0)), false),
            (&started, Some(WorkerEffect::Run(RunCommand::Stop(id))), false),
            (&started, None, false),
            (&accepted, Some(starts(id, 0)), false),
        ];
        for (message, next, expected) in cases {
            let sent = OutgoingMessage { to: id.scheduler, message: message.clone() };
            let is_deferred = StartReports::is_deferred(&sent, next.as_ref(), |at| at == 0);
            assert_eq!(is_deferred, expected, "{message:?} before {next:?}");
        }
    }
}
