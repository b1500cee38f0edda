//! Attempts that gave no result: what the failure counts against, and whether the task is retried.

use std::sync::Arc;

use hypha_model::{FailureKind, Refusal, Span, TaskError, TaskState, Time};
use hypha_placement::{AttemptEnd, TaskRef, WorkerSlot};

use super::quarantine::FaultOrigin;
use super::{Effect, Notice, Scheduler, SchedulerStep};
use crate::message::ToWorker;
use crate::mutant::Mutant;
use crate::record::{FailedAttempt, NO_WORKER_LEFT, Record};

/// Refusals reveal more about our view of the worker than about the task, so they do not use up its
/// attempts. A stored task waits; but an interactive one that all workers refuse must end soon.
const MAX_REFUSALS: u32 = 100;
/// A back end's own `Retry-After` is believed up to here: one that is wrong must not delay a task by days.
const MAX_RETRY_AFTER: Span = Span::from_secs(3_600);

/// Why an attempt gave no result.
#[derive(Clone)]
pub(super) enum Failure {
    /// The worker died, lost its lease, or did not acknowledge or start the attempt.
    WorkerLost(String),
    /// The same, if the loss has already been counted against the worker.
    WorkerLostCounted(String),
    /// It exceeded its timeout.
    Timeout(Span),
    /// The worker reports that the run failed.
    RunFailed(TaskError),
    /// The result does not match its digest.
    Corrupt,
    /// The worker does not take it now.
    Refused(Refusal),
    /// The worker's back end was unreachable: nothing ran.
    Unreachable(String),
    /// The worker returned it, or the scheduler withdrew it, without a fault.
    Returned(&'static str),
    /// The scheduler itself was down or stalled: no worker is at fault, and the outcome cannot be known.
    Interrupted(&'static str),
    /// The worker is unresponsive and has not acknowledged it, and another could run it.
    Unacknowledged,
}

impl Failure {
    /// The same for another attempt of the same worker: a lost worker fails once, however many attempts it had.
    pub(super) fn already_counted(self) -> Failure {
        match self {
            Failure::WorkerLost(reason) => Failure::WorkerLostCounted(reason),
            other => other,
        }
    }
}

/// What a failure means for its task.
struct Consequence {
    /// Whether another attempt is made, if the task has one left.
    retry: bool,
    /// Whether it uses up an attempt.
    uses_attempt: bool,
    /// Whether it counts against the worker or its executor.
    counts_against_worker: bool,
    error: TaskError,
}

impl Scheduler {
    /// An attempt gave no result: retries the task, or ends it.
    pub(super) fn attempt_failed(
        &mut self,
        now: Time,
        reference: TaskRef,
        failure: Failure,
        step: &mut SchedulerStep,
    ) {
        let policy = self.settings.retry;
        let jitter = self.rng.unit();
        let Some((attempt, current)) = self.take_attempt(reference) else { return };
        let returned = matches!(
            failure,
            Failure::Returned(_) | Failure::Interrupted(_) | Failure::Unacknowledged
        );
        let is_refusal = !matches!(failure, Failure::Returned(_));
        let origin = match failure {
            Failure::WorkerLost(_) | Failure::WorkerLostCounted(_) | Failure::Unacknowledged => {
                Some(FaultOrigin::Worker)
            }
            Failure::RunFailed(TaskError { kind: FailureKind::BackendError, .. }) => {
                self.placement.executor_of(reference).map(FaultOrigin::BackEnd)
            }
            Failure::Timeout(_) | Failure::RunFailed(_) | Failure::Corrupt => {
                self.placement.executor_of(reference).map(FaultOrigin::Executor)
            }
            Failure::Refused(_)
            | Failure::Unreachable(_)
            | Failure::Returned(_)
            | Failure::Interrupted(_) => None,
        };
        let Consequence { mut retry, uses_attempt, counts_against_worker, error } =
            self.consequence(reference, current.slot, failure);
        let reason = error.to_string();
        self.counts.failures.add(error.kind);
        let Some(task) = self.tasks.get_mut(reference.0 as usize) else { return };
        task.failures += u32::from(uses_attempt);
        if !uses_attempt && is_refusal {
            task.refusals = task.refusals.saturating_add(1);
            retry &= task.stored || task.refusals < MAX_REFUSALS;
        }
        if !task.failed_on.contains(&current.worker) {
            task.failed_on.push(current.worker);
        }
        let stored = task.stored;
        // A client waits for an interactive task, and a returned task has no fault.
        let backoff = match stored && !returned {
            true => {
                let retry_after = Span::from_secs(error.retry_after_s.unwrap_or(0).into());
                let own = policy.backoff(task.failures.max(task.refusals), jitter);
                own.max(retry_after.min(MAX_RETRY_AFTER))
            }
            false => self.settings.min_plan_interval,
        };
        let failed = FailedAttempt {
            number: attempt.number,
            worker: current.worker,
            at: now,
            kind: error.kind,
            reason: Arc::from(reason.as_str()),
        };
        task.failed = task.failed.with(failed);
        task.state = TaskState::Queued;
        task.progress_permille = 0;
        let cannot_be_taken_back = task.has_output && !stored;
        let gives_up = !retry || cannot_be_taken_back || task.failures >= policy.max_attempts;
        let ending = match (counts_against_worker, origin) {
            (false, _) => AttemptEnd::Withdrawn,
            (true, Some(FaultOrigin::Worker)) => AttemptEnd::Lost,
            (true, _) => AttemptEnd::Failed,
        };
        self.placement.finish(reference, ending, now);
        // The attempt is void: a worker that still runs it has to stop.
        let message = ToWorker::Cancel { attempt, fence: current.fence };
        Effect::ToWorker { worker: current.worker, message }.send_for_task(stored, step);
        // A single error is no evidence against a back end, but a streak of them is.
        let is_recorded = counts_against_worker || matches!(origin, Some(FaultOrigin::BackEnd(_)));
        if let (Some(slot), Some(origin), true) = (current.slot, origin, is_recorded) {
            self.record_failure(now, slot, origin, (attempt.task, &reason));
        }
        if gives_up {
            let error = self.most_significant(reference, error);
            return self.end(now, reference, TaskState::Failed, (None, Some(error)), step);
        }
        self.counts.retried += 1;
        if self.is(Mutant::DroppedRetry) {
            return;
        }
        let not_before = now + backoff;
        let Some(task) = self.task_mut(reference) else { return };
        task.not_before = not_before;
        let (failures, failed) = (task.failures, task.failed.clone());
        let (task, notice) = (task.accepted.id, Notice::Delayed { until: not_before, reason });
        if stored {
            step.persist(Record::Requeued { task, failures, not_before, failed });
        }
        Effect::Notice { task, notice }.send_for_task(stored, step);
        self.arm_task(reference);
    }

    fn consequence(
        &mut self,
        reference: TaskRef,
        slot: Option<WorkerSlot>,
        failure: Failure,
    ) -> Consequence {
        let policy = self.settings.retry;
        let failed = |retry, counts_against_worker, kind: FailureKind, message: String| {
            let error = TaskError::new(kind, message);
            Consequence { retry, uses_attempt: kind.uses_attempt(), counts_against_worker, error }
        };
        match failure {
            Failure::WorkerLost(reason) => {
                let (retry, counts_against_worker) =
                    (policy.retry_on_worker_failure, self.count_loss(slot));
                failed(retry, counts_against_worker, FailureKind::WorkerLost, reason)
            }
            Failure::WorkerLostCounted(reason) => {
                failed(policy.retry_on_worker_failure, false, FailureKind::WorkerLost, reason)
            }
            Failure::Timeout(timeout) => {
                let reason = format!("it took longer than {timeout}");
                failed(policy.retry_on_timeout, true, FailureKind::TimedOut, reason)
            }
            Failure::RunFailed(error) => self.run_consequence(reference, slot, error),
            Failure::Corrupt => {
                let reason = "the result does not match its digest".to_owned();
                failed(policy.retry_on_worker_failure, true, FailureKind::CorruptResult, reason)
            }
            Failure::Refused(refusal) => {
                let reason = format!("refused by the worker: {refusal}");
                failed(true, false, FailureKind::Refused, reason)
            }
            Failure::Unreachable(error) => {
                let kind = FailureKind::BackendUnreachable;
                match self.is_unschedulable(reference) {
                    true => failed(false, false, kind, format!("{NO_WORKER_LEFT}: {error}")),
                    false => failed(true, false, kind, error),
                }
            }
            Failure::Returned(reason) => {
                failed(true, false, FailureKind::Returned, reason.to_owned())
            }
            Failure::Interrupted(reason) if self.is(Mutant::CountedInterruption) => {
                let failed = failed(true, false, FailureKind::Interrupted, reason.to_owned());
                Consequence { uses_attempt: true, ..failed }
            }
            // It may have run, and a client that allows one attempt wants no second run.
            Failure::Interrupted(reason) if policy.max_attempts <= 1 => {
                let reason = format!("lost: {reason}, and only one attempt is allowed");
                let failed = failed(false, false, FailureKind::Interrupted, reason);
                Consequence { uses_attempt: true, ..failed }
            }
            Failure::Interrupted(reason) => {
                failed(true, false, FailureKind::Interrupted, reason.to_owned())
            }
            Failure::Unacknowledged => {
                let reason = "the worker did not answer in time".to_owned();
                failed(true, self.count_loss(slot), FailureKind::Refused, reason)
            }
        }
    }

    /// What it means that a run has failed.
    fn run_consequence(
        &self,
        reference: TaskRef,
        slot: Option<WorkerSlot>,
        mut error: TaskError,
    ) -> Consequence {
        let policy = self.settings.retry;
        if !error.kind.is_run_outcome() {
            error.kind = FailureKind::WorkerFailed;
        }
        let task = self.task(reference);
        let is_stored = task.is_some_and(|task| task.stored);
        let earlier = task.map_or(&[][..], |task| &task.failed);
        let times = |kind| earlier.iter().filter(|failed| failed.kind == kind).count();
        let allowed = match error.kind {
            FailureKind::TimedOut => policy.retry_on_timeout,
            // A stored task waits. An interactive one is tried elsewhere; then its client gets the answer of the back
            // end, which says when to try again.
            FailureKind::BackendBusy => {
                let could_be_free = |slot| self.placement.can_run_elsewhere(reference, slot);
                is_stored
                    || (times(FailureKind::BackendBusy) + 1 < policy.max_attempts as usize
                        && slot.is_some_and(could_be_free))
            }
            // Most often it is the request that the back end cannot handle: a second answer decides.
            FailureKind::BackendError => {
                policy.retry_on_worker_failure && times(FailureKind::BackendError) == 0
            }
            _ => policy.retry_on_worker_failure,
        };
        Consequence {
            retry: error.kind.is_retryable() && allowed,
            uses_attempt: error.kind.uses_attempt() || self.is(Mutant::CountedBusy),
            counts_against_worker: error.kind.counts_against_executor(),
            error,
        }
    }

    /// The failure that reveals most of why a task has no result: `last`, or an earlier one.
    fn most_significant(&self, reference: TaskRef, last: TaskError) -> TaskError {
        let failed = self.task(reference).map(|task| task.failed.clone()).unwrap_or_default();
        let earlier = failed.iter().max_by_key(|failed| failed.kind.significance());
        match earlier.filter(|it| it.kind.significance() > last.kind.significance()) {
            Some(earlier) => TaskError::new(earlier.kind, &*earlier.reason),
            None => last,
        }
    }

    /// Whether this is an interactive task that no worker would take at present.
    fn is_unschedulable(&self, reference: TaskRef) -> bool {
        self.task(reference).is_some_and(|task| {
            !task.stored && !self.placement.is_schedulable(&task.accepted.spec.requirement)
        })
    }

    /// All attempts of a worker fail for this reason: their tasks are retried, elsewhere if possible.
    pub(super) fn fail_all_of(
        &mut self,
        now: Time,
        slot: WorkerSlot,
        failure: Failure,
        step: &mut SchedulerStep,
    ) {
        self.fail_attempts(now, self.placement.dispatched_to(slot), failure, step);
        self.release_bound(now, slot);
    }
}
