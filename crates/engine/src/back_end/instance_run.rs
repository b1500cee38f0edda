//! A run at a task instance: enqueued there, and then awaited until the instance notifies or a poll finds its result.
//!
//! An instance cannot cancel: a run that was stopped keeps its place in the instance's queue until it is over.
//!
//! A run that was enqueued before a restart of the scheduler is looked up by its id, and is never enqueued a second
//! time: nothing runs twice at once under one attempt. An instance may not know a task that it still runs (many report
//! only finished tasks), so a task that is not found is awaited. It is returned, for another attempt, if the instance
//! has been restarted since, or at the end of its timeout.

use std::sync::Arc;

use hypha_model::{FailureKind, Span, TaskError, Time};

use super::RunEnd;
use crate::message::Outcome;

/// A running task is polled for after a quarter of its run time so far: its end is noticed that much late at most.
const POLL_SHARE: f64 = 0.25;
/// Polls are never closer together than this, whatever is configured.
const MIN_POLL_INTERVAL: Span = Span::from_millis(10);
/// Polls are never further apart than this, unless a longer interval is configured.
const MAX_POLL_INTERVAL: Span = Span::from_secs(30);
/// Notifications without a valid secret trigger polls for a task no more often than this.
const HINT_INTERVAL: Span = Span::from_millis(100);
/// Separates the parts of a handle. An id that contains it is kept without the instance's name.
const SEPARATOR: char = '\u{1f}';

/// The id under which an instance has a task, and the incarnation of that instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceHandle {
    /// The id.
    pub id: Arc<str>,
    /// The instance's own name at that time.
    pub instance: Option<Arc<str>>,
}

impl InstanceHandle {
    /// The handle as text, as a scheduler keeps it.
    pub fn to_text(&self) -> Arc<str> {
        match &self.instance {
            Some(instance) if !self.id.contains(SEPARATOR) => {
                Arc::from(format!("{}{SEPARATOR}{instance}", self.id))
            }
            _ => Arc::clone(&self.id),
        }
    }

    /// The handle of this text.
    pub fn from_text(text: &str) -> InstanceHandle {
        match text.split_once(SEPARATOR) {
            Some((id, instance)) => {
                InstanceHandle { id: id.into(), instance: Some(instance.into()) }
            }
            None => InstanceHandle { id: text.into(), instance: None },
        }
    }
}

/// The settings of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSettings {
    /// How long it may take.
    pub timeout: Span,
    /// How long to wait before the first poll, and between polls at first.
    pub poll_interval: Span,
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq)]
pub enum NextAction {
    /// Enqueue the task, and report the outcome with [`InstanceRun::enqueued`].
    HandOver,
    /// Request the result under this id, and report the outcome with [`InstanceRun::fetched`].
    Fetch(Arc<str>),
    /// Wait for a notification until then, and report the timeout with [`InstanceRun::woke`].
    Wait(Time),
    /// The run is over.
    End(RunEnd),
}

/// What is reported to the scheduler meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunUpdate {
    /// It runs.
    Started,
    /// It runs, and the instance has it under this id.
    Delegated(InstanceHandle),
}

/// The outcome of enqueuing a task.
#[derive(Clone, Debug, PartialEq)]
pub enum EnqueueOutcome {
    /// The instance has it, under an id of its own if it returned one.
    Accepted(Option<Arc<str>>),
    /// The instance has not accepted it, or did not confirm it.
    Failed(Outcome),
}

/// What an instance reports of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum InstanceReport {
    /// It has ended, after the run time that the instance reports, if any.
    Ended(Outcome, Option<Span>),
    /// It has ended, but the report has no result.
    NoResult,
    /// It has not ended.
    Pending,
}

/// The outcome of requesting a result.
#[derive(Clone, Debug, PartialEq)]
pub enum FetchOutcome {
    /// The instance knows the task.
    Report(InstanceReport),
    /// The instance does not know it, at least not yet.
    Unknown,
    /// The instance did not answer.
    NoAnswer,
    /// The response cannot be used, and a retry would not help.
    Unusable(Outcome),
}

/// A run at a task instance. See the module documentation.
#[derive(Clone, Debug)]
pub struct InstanceRun {
    /// The id that the instance has for the task.
    id: Arc<str>,
    /// The instance's own name: an instance with another name does not have this one's tasks.
    instance: Option<Arc<str>>,
    phase: Phase,
    since: Time,
    ends: Time,
    interval: Span,
    poll_at: Time,
    polled: Option<Time>,
    has_begun: bool,
    progress: Option<RunUpdate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    HandingOver,
    /// The instance has accepted it, or knows it.
    Waiting,
    /// It was enqueued before a restart, and the instance has not reported it since.
    Resumed,
}

impl InstanceRun {
    /// The run of the task with this id at the instance of this name. The instance has it already under the handle
    /// `resume`, if there is one.
    pub fn new(
        task: Arc<str>,
        resume: Option<InstanceHandle>,
        instance: Option<Arc<str>>,
        settings: RunSettings,
        now: Time,
    ) -> (InstanceRun, NextAction) {
        let interval = settings.poll_interval.max(MIN_POLL_INTERVAL);
        let mut run = InstanceRun {
            id: task,
            instance: None,
            phase: Phase::HandingOver,
            since: now,
            ends: now + settings.timeout,
            interval,
            poll_at: now + interval,
            polled: None,
            has_begun: false,
            progress: None,
        };
        let mut next = NextAction::HandOver;
        if let Some(handle) = resume {
            next = NextAction::Fetch(Arc::clone(&handle.id));
            (run.id, run.instance, run.phase) = (handle.id, handle.instance, Phase::Resumed);
        }
        let next = instance.and_then(|instance| run.instance_seen(&instance)).unwrap_or(next);
        (run, next)
    }

    /// The id that the instance has for the task.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// When the run times out.
    pub fn ends(&self) -> Time {
        self.ends
    }

    /// What is to be reported to the scheduler now. Returns each update once.
    pub fn take_update(&mut self) -> Option<RunUpdate> {
        self.progress.take()
    }

    /// The task was enqueued, or was not.
    pub fn enqueued(&mut self, now: Time, enqueued: EnqueueOutcome) -> NextAction {
        match enqueued {
            EnqueueOutcome::Accepted(own) => {
                self.id = own.unwrap_or_else(|| Arc::clone(&self.id));
                self.phase = Phase::Waiting;
                self.delegated();
                self.wait(now)
            }
            EnqueueOutcome::Failed(outcome) => NextAction::End(RunEnd::Outcome(outcome, None)),
        }
    }

    /// The result was requested.
    pub fn fetched(&mut self, now: Time, fetched: FetchOutcome) -> NextAction {
        if self.polled.is_none() && self.phase == Phase::Resumed {
            self.delegated();
        }
        self.polled = Some(now);
        let pause = now.since(self.since).mul_f64(POLL_SHARE);
        let most = MAX_POLL_INTERVAL.max(self.interval);
        self.poll_at = now + pause.max(self.interval).min(most);
        match fetched {
            FetchOutcome::Report(InstanceReport::Ended(outcome, run)) => {
                return self.end(outcome, run);
            }
            FetchOutcome::Report(InstanceReport::NoResult | InstanceReport::Pending) => {
                self.phase = Phase::Waiting
            }
            FetchOutcome::Unusable(outcome) => return self.end(outcome, None),
            // The health checks find out whether the instance is still there.
            FetchOutcome::Unknown | FetchOutcome::NoAnswer => {}
        }
        self.wait(now)
    }

    /// A notification about the task came in, with its report if the secret proves that the instance sent it. Returns
    /// `None` if the current action continues.
    pub fn notified(&mut self, now: Time, report: Option<InstanceReport>) -> Option<NextAction> {
        match report {
            Some(InstanceReport::Ended(outcome, run)) => return Some(self.end(outcome, run)),
            Some(InstanceReport::NoResult) => self.poll_at = now,
            Some(InstanceReport::Pending) | None => {
                let soonest = self.polled.map_or(now, |last| last + HINT_INTERVAL);
                self.poll_at = self.poll_at.min(soonest);
            }
        }
        (self.phase != Phase::HandingOver).then(|| self.wait(now))
    }

    /// The instance has reported its name. Returns `None` if the current action continues.
    pub fn instance_seen(&mut self, instance: &Arc<str>) -> Option<NextAction> {
        let known = self.instance.get_or_insert_with(|| Arc::clone(instance));
        if known == instance {
            return None;
        }
        match self.phase {
            Phase::HandingOver => {
                self.instance = Some(Arc::clone(instance));
                None
            }
            // The task was lost while the scheduler was down: that is no failure of the instance.
            Phase::Resumed => Some(NextAction::End(RunEnd::Declined)),
            Phase::Waiting => {
                let error = "the task instance was restarted and has lost the task";
                let outcome = Outcome::Failed(TaskError::new(FailureKind::BackendFailed, error));
                Some(NextAction::End(RunEnd::Outcome(outcome, None)))
            }
        }
    }

    /// The time of [`NextAction::Wait`] has come, or the run's timeout.
    pub fn woke(&mut self, now: Time) -> NextAction {
        self.wait(now)
    }

    fn wait(&self, now: Time) -> NextAction {
        match (now >= self.ends, self.phase) {
            (true, Phase::Resumed) => NextAction::End(RunEnd::Declined),
            (true, _) => NextAction::End(RunEnd::Outcome(Outcome::TimedOut, None)),
            (false, _) if now >= self.poll_at => NextAction::Fetch(Arc::clone(&self.id)),
            (false, _) => NextAction::Wait(self.poll_at.min(self.ends)),
        }
    }

    fn end(&mut self, outcome: Outcome, run: Option<Span>) -> NextAction {
        if !self.has_begun {
            self.has_begun = true;
            self.progress = Some(RunUpdate::Started);
        }
        NextAction::End(RunEnd::Outcome(outcome, run))
    }

    fn delegated(&mut self) {
        self.has_begun = true;
        let (id, instance) = (Arc::clone(&self.id), self.instance.clone());
        self.progress = Some(RunUpdate::Delegated(InstanceHandle { id, instance }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_micros(1_000_000);
    const SETTINGS: RunSettings =
        RunSettings { timeout: Span::from_secs(60), poll_interval: Span::from_secs(1) };

    fn at(seconds: u64) -> Time {
        START + Span::from_secs(seconds)
    }

    fn resumed(instance: Option<&str>) -> (InstanceRun, NextAction) {
        let handle = InstanceHandle { id: "own/7".into(), instance: Some("one".into()) };
        let handle = InstanceHandle::from_text(&handle.to_text());
        InstanceRun::new("task".into(), Some(handle), instance.map(Arc::from), SETTINGS, START)
    }

    fn declined() -> NextAction {
        NextAction::End(RunEnd::Declined)
    }

    #[test]
    fn a_handle_keeps_the_id_and_the_name_of_the_instance() {
        for (id, instance) in [("own/7", None), ("own/7", Some("one")), ("", Some(""))] {
            let handle = InstanceHandle { id: id.into(), instance: instance.map(Arc::from) };
            assert_eq!(InstanceHandle::from_text(&handle.to_text()), handle);
        }
        let odd = InstanceHandle { id: "a\u{1f}b".into(), instance: Some("one".into()) };
        assert_eq!(&*odd.to_text(), "a\u{1f}b");
    }

    #[test]
    fn a_task_that_the_instance_does_not_know_is_awaited_and_never_enqueued_again() {
        let (mut run, mut next) = resumed(None);
        assert_eq!(next, NextAction::Fetch("own/7".into()));
        assert_eq!(run.instance_seen(&"one".into()), None, "it is the same");
        let mut now = START;
        while next != declined() {
            next = match next {
                NextAction::Fetch(_) => run.fetched(now, FetchOutcome::Unknown),
                NextAction::Wait(until) => {
                    now = until;
                    run.woke(now)
                }
                other => panic!("{other:?}"),
            };
        }
        assert_eq!(now, at(60), "declined, and not before the timeout");
        let (mut run, _) = resumed(None);
        run.fetched(at(1), FetchOutcome::Report(InstanceReport::Pending));
        let timed_out = NextAction::End(RunEnd::Outcome(Outcome::TimedOut, None));
        assert_eq!(run.woke(at(60)), timed_out, "the instance had it");
    }

    #[test]
    fn a_task_that_the_instance_lost_while_the_scheduler_was_down_is_returned() {
        let (_, next) = resumed(Some("two"));
        assert_eq!(next, declined());
        let (mut run, _) = resumed(None);
        run.fetched(at(1), FetchOutcome::NoAnswer);
        assert_eq!(run.instance_seen(&"two".into()), Some(declined()));
        let (mut run, _) = resumed(None);
        run.fetched(at(1), FetchOutcome::Report(InstanceReport::Pending));
        let next = run.instance_seen(&"two".into());
        assert!(
            matches!(next, Some(NextAction::End(RunEnd::Outcome(Outcome::Failed(_), None)))),
            "it was lost while we waited: {next:?}"
        );
    }

    #[test]
    fn an_unproven_notification_polls_soon_and_not_too_often() {
        let (mut run, next) = InstanceRun::new("task".into(), None, None, SETTINGS, START);
        assert_eq!(next, NextAction::HandOver);
        assert_eq!(run.notified(START, None), None, "it is being enqueued");
        assert_eq!(
            run.enqueued(START, EnqueueOutcome::Accepted(None)),
            NextAction::Fetch("task".into())
        );
        let handle = InstanceHandle { id: "task".into(), instance: None };
        assert_eq!(run.take_update(), Some(RunUpdate::Delegated(handle)));
        assert_eq!(run.fetched(START, FetchOutcome::Unknown), NextAction::Wait(at(1)));
        let soon = START + HINT_INTERVAL;
        assert_eq!(run.notified(START, None), Some(NextAction::Wait(soon)));
        assert_eq!(
            run.notified(START, Some(InstanceReport::NoResult)),
            Some(NextAction::Fetch("task".into()))
        );
    }
}
