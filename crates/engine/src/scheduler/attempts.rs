//! The life cycle of an attempt: dispatched, acknowledged, started, ended.

use std::sync::Arc;

use hypha_model::{
    AttemptId, Fence, Payload, Refusal, Set, Span, TaskSpec, TaskState, Time, WorkerId,
};
use hypha_placement::{AttemptEnd, MAX_PREFETCH_PER_SLOT, TaskRef, WorkerSlot};

use super::failure::Failure;
use super::recover::{NOT_FOUND, NOT_RECONNECTED};
use super::workers::WorkerState;
use super::{Attempt, Effect, Notice, Scheduler, SchedulerStep, Task};
use crate::message::{Dispatch, Outcome, ToWorker};
use crate::mutant::Mutant;
use crate::record::Record;

/// A dispatch that is not acknowledged is repeated this often before the worker counts as failed.
const MAX_RESENDS: u32 = 3;
/// Void attempts of a worker that are cancelled in one step. It names the others again in its next answer to a
/// heartbeat, and a worker that names absurdly many must not make us send as many messages.
const MAX_CANCELS: usize = 1_000;
/// Workers whose factor is updated when another's task has completed, in turn: in a small pool all are up to date, and
/// in a large one the averages change slowly.
const FACTORS_A_COMPLETION: usize = 4;
/// The longest part of an executor's message that is kept.
const MAX_ERROR_CHARS: usize = 2_000;

impl Task {
    pub(super) fn attempt_id(&self) -> AttemptId {
        AttemptId { task: self.accepted.id, number: self.attempts }
    }

    /// The task is not bound to a worker any more.
    pub(super) fn unbind(&mut self) {
        self.state = TaskState::Queued;
    }

    fn timeout(&self, usual: Span) -> Span {
        self.accepted.spec.timeout.unwrap_or(usual)
    }

    /// When an attempt that was acknowledged and has not started is given up. The attempts queued before it on
    /// the worker may each take this task's timeout or the usual one.
    fn must_begin_by(&self, acknowledged: Time, usual: Span) -> Time {
        let turns = 1 + MAX_PREFETCH_PER_SLOT as u64;
        acknowledged + self.timeout(usual).max(usual).times(turns)
    }
}

impl Attempt {
    /// When it began if it has run for `elapsed`: not before its dispatch, whatever the worker reports.
    fn started_before(&self, now: Time, elapsed: Span) -> Time {
        self.dispatched_at.max(now - elapsed)
    }
}

impl Scheduler {
    /// Placement has bound the task to a worker; it is not dispatched yet.
    pub(super) fn bind(&mut self, task: TaskRef, slot: WorkerSlot, step: &mut SchedulerStep) {
        let Some(worker) = self.placement.worker_id(slot) else { return };
        let Some(entry) = self.task_mut(task) else { return };
        entry.state = TaskState::Scheduled;
        let (task, stored) = (entry.accepted.id, entry.stored);
        Effect::Notice { task, notice: Notice::Scheduled(worker) }.send_for_task(stored, step);
    }

    /// Dispatches the task to a worker.
    pub(super) fn dispatch(
        &mut self,
        now: Time,
        task: TaskRef,
        slot: WorkerSlot,
        step: &mut SchedulerStep,
    ) {
        let fence = self.next_fence();
        let Some(worker) = self.placement.worker_id(slot) else { return };
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        let newly_bound = entry.state != TaskState::Scheduled;
        entry.state = TaskState::Scheduled;
        entry.attempts += 1;
        entry.handle = None;
        entry.devices = Vec::new();
        entry.current = Some(Attempt {
            fence,
            worker,
            slot: Some(slot),
            dispatched_at: now,
            sent: now,
            started: None,
            run_started: None,
            acknowledged: None,
            resends: 0,
        });
        let (attempt, stored) = (entry.attempt_id(), entry.stored);
        if stored {
            step.persist(Record::AttemptDispatched { attempt, fence, worker, at: now });
        }
        if newly_bound {
            let notice = Notice::Scheduled(worker);
            Effect::Notice { task: attempt.task, notice }.send_for_task(stored, step);
        }
        self.send_dispatch(task, step);
        self.arm_task(task);
    }

    fn send_dispatch(&mut self, task: TaskRef, step: &mut SchedulerStep) {
        let Some(entry) = self.task(task) else { return };
        let Some(current) = entry.current else { return };
        let Some(slot) = current.slot else { return };
        let Some(Some(worker)) = self.workers.get(slot.0 as usize) else { return };
        let Some((lease, epoch)) = worker.lease() else { return };
        let message = ToWorker::Dispatch(Arc::new(Dispatch {
            lease,
            epoch,
            attempt: entry.attempt_id(),
            fence: current.fence,
            spec: self.spec_for(task, entry, worker),
            timeout: entry.timeout(self.settings.task_timeout),
            interactive: !entry.stored && !self.is(Mutant::QueuedInteractive),
            resume: entry.handle.clone().filter(|_| !self.is(Mutant::BlindRedispatch)),
        }));
        Effect::ToWorker { worker: current.worker, message }.send_for_task(entry.stored, step);
    }

    /// The spec that is sent to the worker. The worker takes the first of its executors that can run it, so if that one
    /// is suspended and another is used, the spec names the other.
    fn spec_for(&self, task: TaskRef, entry: &Task, worker: &WorkerState) -> Arc<TaskSpec> {
        let spec = &entry.accepted.spec;
        let first = spec.requirement.executors_of(&worker.worker).next();
        let is_suspended = first.is_some_and(|first| worker.streaks.is_suspended(first));
        let used =
            self.placement.executor_of(task).filter(|used| is_suspended && Some(*used) != first);
        match used.and_then(|used| worker.worker.executors.get(used)) {
            Some(executor) => {
                let mut spec = TaskSpec::clone(spec);
                spec.requirement.executor = Some(executor.name.clone());
                Arc::new(spec)
            }
            None => Arc::clone(spec),
        }
    }

    /// Sets the time at which a task is due if nothing else happens.
    pub(super) fn arm_task(&mut self, task: TaskRef) {
        let Some(entry) = self.task(task) else { return };
        let attempt = match entry.current {
            // The worker enforces the timeout of an attempt itself; this covers the case that it does not.
            Some(current) if current.slot.is_none() => Some(current.sent + self.settings.lease_ttl),
            Some(current) => Some(match (current.acknowledged, current.run_started) {
                (None, _) => self.answer_due(current.sent),
                (Some(_), Some(begun)) => {
                    self.answer_due(begun + entry.timeout(self.settings.task_timeout))
                }
                (Some(at), None) => {
                    let turn = entry.must_begin_by(at, self.settings.task_timeout);
                    turn.max(self.answer_due(Time::ZERO))
                }
            }),
            None if entry.state == TaskState::Queued && entry.not_before > Time::ZERO => {
                Some(entry.not_before)
            }
            None => None,
        };
        let at = match (attempt, entry.accepted.deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.set_task_due(task, at);
    }

    /// A task is due. The time may have been set for a state that has passed since: handle what is due now, and set
    /// the next time.
    pub(super) fn task_due(&mut self, now: Time, task: TaskRef, step: &mut SchedulerStep) {
        let Some(entry) = self.tasks.get_mut(task.0 as usize) else { return };
        entry.due = None;
        if entry.accepted.deadline.is_some_and(|deadline| deadline <= now) {
            self.stop_attempt(now, task, step);
            return self.end(now, task, TaskState::Expired, (None, None), step);
        }
        let lease_ttl = self.settings.lease_ttl;
        let usual = self.settings.task_timeout;
        let timeout = entry.timeout(usual);
        let Some(current) = entry.current else {
            if entry.not_before > Time::ZERO && entry.not_before <= now {
                entry.not_before = Time::ZERO;
                self.enqueue(task);
            }
            return self.arm_task(task);
        };
        let must_begin_by =
            current.acknowledged.map(|at| entry.must_begin_by(at, usual)).unwrap_or(Time::MAX);
        let is_due = |at: Time| self.answer_due(at) <= now;
        let lost = |reason: &str| Some(Failure::WorkerLost(reason.to_owned()));
        let failure = match (current.slot, current.acknowledged, current.run_started) {
            (None, ..) if current.sent + lease_ttl <= now => {
                Some(Failure::Interrupted(NOT_RECONNECTED))
            }
            (Some(slot), None, _) if is_due(current.sent) => {
                let silent = self.check_silent_since(now, slot, current.sent, step);
                let reassigns = silent && self.can_reassign(task, slot);
                let Some(entry) = self.task_mut(task) else { return };
                if entry.current.is_none_or(|it| it.fence != current.fence) {
                    return;
                }
                if reassigns {
                    Some(Failure::Unacknowledged)
                } else if current.resends < MAX_RESENDS {
                    entry.current =
                        Some(Attempt { resends: current.resends + 1, sent: now, ..current });
                    self.send_dispatch(task, step);
                    None
                } else {
                    lost("the worker does not acknowledge the attempt")
                }
            }
            (Some(_), Some(_), Some(begun)) if is_due(begun + timeout) => {
                Some(Failure::Timeout(timeout))
            }
            (Some(_), Some(_), None) if must_begin_by <= now && is_due(Time::ZERO) => {
                lost("the worker acknowledged the attempt and did not start it")
            }
            _ => None,
        };
        match failure {
            Some(failure) => self.attempt_failed(now, task, failure, step),
            None => self.arm_task(task),
        }
    }

    /// Takes back the attempts that an unresponsive worker has not acknowledged, if other workers could run them.
    pub(super) fn reassign_unacknowledged(
        &mut self,
        now: Time,
        slot: WorkerSlot,
        step: &mut SchedulerStep,
    ) {
        self.fail_attempts(now, self.placement.dispatched_to(slot), Failure::Unacknowledged, step);
    }

    /// Whether an attempt may still be given up because its worker is unresponsive.
    pub(super) fn is_reassignable(&self, reference: TaskRef, current: &Attempt) -> bool {
        current.slot.is_some_and(|slot| {
            let state = self.workers.get(slot.0 as usize).and_then(Option::as_ref);
            state.is_some_and(|state| state.is_unresponsive) && self.can_reassign(reference, slot)
        })
    }

    /// Whether a task that was dispatched to a worker may be dispatched to another instead: as far as we know it has
    /// not started, and the retry policy allows it.
    fn can_reassign(&self, reference: TaskRef, slot: WorkerSlot) -> bool {
        let not_begun = |task: &Task| {
            !task.has_output && task.current.is_some_and(|current| current.acknowledged.is_none())
        };
        self.settings.retry.retry_on_worker_failure
            && self.task(reference).is_some_and(not_begun)
            && self.placement.can_run_elsewhere(reference, slot)
    }

    /// The task of a live attempt: its worker, its number and its token are those of the task's current attempt.
    fn live_attempt(
        &mut self,
        worker: WorkerId,
        attempt: AttemptId,
        fence: Fence,
    ) -> Option<(TaskRef, &mut Task)> {
        let unfenced = self.is(Mutant::UnfencedResult);
        let reference = *self.by_id.get(&attempt.task)?;
        let entry = self.task_mut(reference)?;
        let current = entry.current?;
        let fenced =
            current.fence == fence && current.worker == worker && entry.attempts == attempt.number;
        (fenced || unfenced).then_some((reference, entry))
    }

    /// Takes the attempt in flight from its task: later reports of it are void.
    pub(super) fn take_attempt(&mut self, reference: TaskRef) -> Option<(AttemptId, Attempt)> {
        let task = self.task_mut(reference)?;
        let current = task.current?;
        (task.current, task.last) = (None, Some(current));
        let attempt = task.attempt_id();
        if current.slot.is_none() {
            self.remove_unreconciled(current.worker, reference);
        }
        Some((attempt, current))
    }

    pub(super) fn acknowledged(
        &mut self,
        now: Time,
        worker: WorkerId,
        attempt: AttemptId,
        fence: Fence,
    ) {
        self.plan_wanted = false;
        if let Some((_, task)) = self.live_attempt(worker, attempt, fence)
            && let Some(current) = &mut task.current
        {
            current.acknowledged.get_or_insert(now);
        }
    }

    /// A back end has the attempt under this id.
    pub(super) fn delegated(
        &mut self,
        now: Time,
        worker: WorkerId,
        (attempt, fence): (AttemptId, Fence),
        handle: Arc<str>,
        step: &mut SchedulerStep,
    ) {
        self.plan_wanted = false;
        let Some((_, task)) = self.live_attempt(worker, attempt, fence) else { return };
        task.handle = Some(Arc::clone(&handle));
        if let Some(current) = &mut task.current {
            current.acknowledged.get_or_insert(now);
        }
        if task.stored {
            self.note_attempt(now, (attempt.task, fence), (None, Some(handle)), step);
        }
    }

    /// An attempt has these GPUs of its worker.
    pub(super) fn devices_assigned(
        &mut self,
        worker: WorkerId,
        (attempt, fence): (AttemptId, Fence),
        devices: Vec<u32>,
    ) {
        self.plan_wanted = false;
        if let Some((_, task)) = self.live_attempt(worker, attempt, fence) {
            task.devices = devices;
        }
    }

    /// Dispatches an attempt again that its worker has forgotten.
    pub(super) fn redispatch(&mut self, now: Time, reference: TaskRef, step: &mut SchedulerStep) {
        let Some(task) = self.task_mut(reference) else { return };
        if let Some(current) = &mut task.current {
            (current.sent, current.acknowledged, current.resends) = (now, None, 0);
            current.run_started = None;
        }
        self.send_dispatch(reference, step);
        self.arm_task(reference);
    }

    /// An attempt has been running for `elapsed`.
    pub(super) fn started(
        &mut self,
        now: Time,
        worker: WorkerId,
        (attempt, fence): (AttemptId, Fence),
        elapsed: Span,
        step: &mut SchedulerStep,
    ) {
        self.plan_wanted = false;
        let grace = self.settings.health_check_timeout;
        let usual = self.settings.task_timeout;
        let Some((reference, task)) = self.live_attempt(worker, attempt, fence) else { return };
        let Some(current) = &mut task.current else { return };
        current.acknowledged.get_or_insert(now);
        let since = current.started_before(now, elapsed);
        current.run_started.get_or_insert(since);
        if current.started.is_some() {
            return;
        }
        current.started = Some(since);
        task.state = TaskState::Running;
        // If the task is due earlier, that call also sets the end of this attempt.
        let ends_by = since + task.timeout(usual) + grace;
        let due_too_late = task.due.is_none_or(|due| due > ends_by);
        let stored = task.stored;
        // Nothing relies on its record, and its first piece may follow immediately.
        step.send_at_once(Effect::Notice { task: attempt.task, notice: Notice::Running });
        if stored {
            self.note_attempt(now, (attempt.task, fence), (Some(since), None), step);
        }
        self.placement.mark_started(reference, now);
        if due_too_late {
            self.arm_task(reference);
        }
    }

    pub(super) fn progressed(
        &mut self,
        worker: WorkerId,
        (attempt, fence): (AttemptId, Fence),
        permille: u16,
        step: &mut SchedulerStep,
    ) {
        self.plan_wanted = false;
        let permille = permille.min(1_000);
        if let Some((_, task)) = self.live_attempt(worker, attempt, fence)
            && permille > task.progress_permille
        {
            task.progress_permille = permille;
            let notice = Notice::Progress(permille);
            Effect::Notice { task: attempt.task, notice }.send_for_task(task.stored, step);
        }
    }

    /// The first piece of a result has arrived: it is forwarded, and not kept. Later pieces bypass the machine.
    pub(super) fn output_received(
        &mut self,
        worker: WorkerId,
        (attempt, fence): (AttemptId, Fence),
        piece: Payload,
        step: &mut SchedulerStep,
    ) {
        self.plan_wanted = false;
        if let Some((_, task)) = self.live_attempt(worker, attempt, fence) {
            task.has_output = true;
            let (task, notice) = (attempt.task, Notice::Output(piece));
            step.send_at_once(Effect::ForwardOutput { task, worker, fence });
            step.send_at_once(Effect::Notice { task, notice });
        }
    }

    pub(super) fn refused(
        &mut self,
        now: Time,
        worker: WorkerId,
        (attempt, fence): (AttemptId, Fence),
        refusal: Refusal,
        step: &mut SchedulerStep,
    ) {
        if let Some((reference, task)) = self.live_attempt(worker, attempt, fence) {
            let failure = match task.handle {
                // It was to be resumed after a restart.
                Some(_) => Failure::Interrupted(NOT_FOUND),
                None => Failure::Refused(refusal),
            };
            self.attempt_failed(now, reference, failure, step);
        }
    }

    /// An attempt has ended on its worker. Whatever the scheduler decides, the worker may forget it afterwards.
    pub(super) fn finished(
        &mut self,
        now: Time,
        worker: WorkerId,
        (attempt, fence): (AttemptId, Fence),
        run: Span,
        (outcome, digest_matches): (Outcome, bool),
        step: &mut SchedulerStep,
    ) {
        let message = ToWorker::Recorded { attempt, fence };
        let live = self.live_attempt(worker, attempt, fence);
        let stored = live.as_ref().is_none_or(|(_, task)| task.stored);
        Effect::ToWorker { worker, message }.send_for_task(stored, step);
        let Some((reference, task)) = live else {
            self.counts.late_results += 1;
            self.plan_wanted = false;
            return;
        };
        // It cannot have run for longer than since its dispatch, whatever the worker reports.
        let run = task.current.map_or(run, |current| run.min(now.since(current.dispatched_at)));
        if let Some(current) = &mut task.current {
            // The report of its start may have been lost, sent to an earlier incarnation, or omitted.
            current.started.get_or_insert(now - run);
        }
        match outcome {
            Outcome::Completed { result } if digest_matches => {
                self.learn(now, reference, run);
                if !self.is(Mutant::LeakedBacklog) {
                    self.placement.finish(reference, AttemptEnd::Completed(run), now);
                }
                self.take_attempt(reference);
                let end = (Some(result), None);
                self.end(now, reference, TaskState::Completed, end, step);
            }
            Outcome::Completed { .. } => {
                self.attempt_failed(now, reference, Failure::Corrupt, step);
            }
            Outcome::TimedOut => {
                let usual = self.settings.task_timeout;
                let timeout = self.task(reference).map_or(usual, |task| task.timeout(usual));
                self.attempt_failed(now, reference, Failure::Timeout(timeout), step);
            }
            Outcome::Unreachable { error } => {
                let error = error.chars().take(MAX_ERROR_CHARS).collect();
                let slot = self.task(reference).and_then(|task| task.current?.slot);
                let executor = self.placement.executor_of(reference);
                // First, so that the executor does not count as one that could run the task.
                if let (Some(slot), Some(executor)) = (slot, executor) {
                    self.mark_unreachable(now, slot, executor);
                }
                self.attempt_failed(now, reference, Failure::Unreachable(error), step);
            }
            Outcome::Failed(error) => {
                let failure = Failure::RunFailed(error.truncated(MAX_ERROR_CHARS));
                self.attempt_failed(now, reference, failure, step);
            }
        }
    }

    /// The predictor learns from a completion, and placement gets the worker's new factor.
    fn learn(&mut self, now: Time, reference: TaskRef, run: Span) {
        let Some(task) = self.task(reference) else { return };
        let Some(slot) = task.current.and_then(|current| current.slot) else { return };
        let Some(mut query) = self.placement.query(reference).copied() else { return };
        if !self.predictor.knows_model(&query) {
            // Many others were named since this task was submitted.
            let accepted = Arc::clone(&task.accepted);
            query = self.predictor.query(&accepted.spec);
        }
        let Some(Some(worker)) = self.workers.get_mut(slot.0 as usize) else { return };
        worker.is_unsaved = true;
        let key = worker.predictor_key;
        self.predictor.observe(&query, key, run);
        self.counts.learned_since_save += 1;
        self.update_factor(now, slot);
        // The averages have changed a little, and with them the factors of other workers.
        for _ in 0..FACTORS_A_COMPLETION.min(self.workers.len()) {
            self.next_factor = (self.next_factor + 1) % self.workers.len();
            self.update_factor(now, WorkerSlot(self.next_factor as u32));
        }
        self.clear_failures(now, slot, self.placement.executor_of(reference));
    }

    /// A worker names the attempts it holds, in answer to a heartbeat sent at `sent`. Messages that cancelled an
    /// attempt may have been lost, and the worker may have lost attempts that it had acknowledged.
    pub(super) fn reconcile(
        &mut self,
        now: Time,
        worker: WorkerId,
        slot: WorkerSlot,
        (sent, holding): (Time, &[(AttemptId, Fence)]),
        step: &mut SchedulerStep,
    ) {
        let mut held = Set::default();
        let mut void = Vec::new();
        for (attempt, fence) in holding.iter().copied() {
            if self.live_attempt(worker, attempt, fence).is_some() {
                held.insert(fence);
            } else {
                void.push((attempt, fence));
            }
        }
        self.cancel_all(worker, &void, step);
        let is_lost = |reference: &TaskRef| {
            let current = self.task(*reference).and_then(|task| task.current);
            current.is_some_and(|Attempt { fence, acknowledged, .. }| {
                acknowledged.is_some_and(|at| at < sent) && !held.contains(&fence)
            })
        };
        let lost: Vec<TaskRef> =
            self.placement.dispatched_to(slot).into_iter().filter(is_lost).collect();
        let failure = Failure::WorkerLost("the worker no longer has the attempt".to_owned());
        self.fail_attempts(now, lost, failure, step);
    }

    /// Cancels void attempts of a worker.
    pub(super) fn cancel_all(
        &mut self,
        worker: WorkerId,
        void: &[(AttemptId, Fence)],
        step: &mut SchedulerStep,
    ) {
        for (attempt, fence) in void.iter().take(MAX_CANCELS).copied() {
            let message = ToWorker::Cancel { attempt, fence };
            step.send(Effect::ToWorker { worker, message });
        }
    }
}
