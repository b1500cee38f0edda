//! The commands of clients, and the scheduler's replies.

use std::sync::Arc;

use hypha_model::{
    DeadlinePolicy, FailureKind, GpuIds, JobId, Requirement, Span, TaskError, TaskId, TaskResult,
    TaskSpec, TaskState, Time, Worker, WorkerId,
};
use hypha_placement::{
    AttemptEnd, DeadlineOutlook, NamedGpus, PlacementRequest, Strategy, StrategyError, TaskRef,
};
use hypha_predict::{LookupTable, Mode, NoLookupTable};

use super::{Effect, Notice, Scheduler, SchedulerStep, Task};
use crate::job::{JobPlan, JobState};
use crate::message::ToWorker;
use crate::mutant::Mutant;
use crate::record::{AcceptedTask, FinishedTask, Record};

/// A command of a client.
#[derive(Clone, Debug)]
pub enum Command {
    /// Accept these tasks; the reply has a result for each.
    SubmitTasks(Vec<NewTask>),
    /// Stop this task.
    CancelTask(TaskId),
    /// Place by this strategy from now on.
    SetStrategy(Strategy),
    /// Predict in this mode from now on.
    SetMode(Mode),
    /// Use this table for `lookup_table`.
    SetTable(LookupTable),
    /// Add this worker, even if it was removed before.
    RegisterWorker(Arc<Worker>),
    /// Drain this worker: give it no new tasks, and forget it when it has finished its attempts. It is not used again
    /// until it is registered or readmitted.
    RemoveWorker(WorkerId),
    /// Use this worker again, which was removed before.
    ReadmitWorker(WorkerId),
    /// Run this job.
    SubmitJob(Arc<JobPlan>),
    /// Stop this job.
    CancelJob(JobId),
}

/// A task to be accepted.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// What is requested.
    pub spec: Arc<TaskSpec>,
    /// A repeat with the same key returns the first task.
    pub idempotency_key: Option<Arc<str>>,
    /// Bind it to a worker at once, or reject it.
    pub bind_at_once: bool,
    /// Whether it survives this incarnation of the scheduler. An interactive task is not stored: its messages are
    /// sent at once.
    pub stored: bool,
    /// How many tasks its tenant may have that have not ended, this one included.
    pub quota: Option<u32>,
    /// How much its tenant may have, relative to the others; unchanged if `None`.
    pub weight: Option<f64>,
}

/// The reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The result for each task, in the order of the request.
    Submitted(Vec<Result<Submitted, SubmitRejection>>),
    /// The state of the task after the request; `None` if there is no such task that has not ended.
    Cancelled(Option<TaskState>),
    /// The strategy is in use.
    StrategySet(Result<(), StrategyError>),
    /// The mode is in use.
    ModeSet(Result<(), NoLookupTable>),
    /// The table is in use.
    TableSet,
    /// The worker is known.
    WorkerRegistered,
    /// Whether there was such a worker.
    WorkerRemoved(bool),
    /// Whether it had been removed.
    WorkerReadmitted(bool),
    /// The job; `None` if there are too many.
    JobSubmitted(Option<JobId>),
    /// The state of the job after the request; `None` if there is no such job.
    JobCancelled(Option<JobState>),
}

/// An accepted task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its id.
    pub task: TaskId,
    /// The worker that it is bound to already, if it is.
    pub worker: Option<WorkerId>,
    /// Whether it is the earlier task of a repeated key.
    pub repeated: bool,
    /// Whether it is expected to end before its deadline, if it has one and a worker could run it.
    pub deadline: Option<DeadlineOutlook>,
}

/// Why a task was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitRejection {
    /// There are `max_queue` tasks already.
    QueueFull {
        /// When to retry, in seconds.
        retry_after_s: u32,
    },
    /// The tenant has as many tasks as it may have.
    OverQuota {
        /// How many have not ended.
        open: u32,
        /// How many it may have.
        quota: u32,
    },
    /// It was to be bound at once, and no worker can run it.
    NoWorker,
    /// No available worker that could run it has these GPUs, which it names.
    GpusUnknown(GpuIds),
    /// These GPUs, which it names, are in use on every worker that has them.
    GpusTaken(GpuIds),
    /// No worker can meet its deadline, and it was to be refused in that case.
    DeadlineUnreachable {
        /// What the fastest worker is expected to take at least.
        least: Span,
        /// The time until the deadline.
        left: Span,
    },
}

impl Scheduler {
    pub(super) fn handle_command(&mut self, now: Time, command: Command, step: &mut SchedulerStep) {
        let mut stored = true;
        let reply = match command {
            Command::SubmitTasks(tasks) => {
                stored = tasks.iter().any(|task| task.stored);
                let answers = tasks.into_iter().map(|task| self.submit(now, task, step)).collect();
                Reply::Submitted(answers)
            }
            Command::CancelTask(task) => Reply::Cancelled(self.cancel(now, task, step)),
            Command::SetStrategy(strategy) => Reply::StrategySet(strategy.validate().map(|()| {
                self.placement.begin_switch(strategy, now);
                self.reorder(now, 0);
                step.persist(Record::Strategy(strategy));
            })),
            Command::SetMode(mode) => Reply::ModeSet(
                self.predictor.set_mode(mode).map(|()| step.persist(Record::Mode(mode))),
            ),
            Command::SetTable(table) => {
                self.predictor.set_table(table);
                Reply::TableSet
            }
            Command::RegisterWorker(worker) => {
                self.readmit(worker.id, step);
                self.registered.insert(worker.id);
                self.worker_found(now, worker, step);
                Reply::WorkerRegistered
            }
            Command::RemoveWorker(worker) => {
                Reply::WorkerRemoved(self.drain_worker(now, worker, step))
            }
            Command::ReadmitWorker(worker) => {
                Reply::WorkerReadmitted(self.readmit_worker(now, worker, step))
            }
            Command::SubmitJob(plan) => Reply::JobSubmitted(self.submit_job(now, plan, step)),
            Command::CancelJob(job) => Reply::JobCancelled(self.cancel_job(now, job, step)),
        };
        match stored {
            true => step.reply(reply),
            false => step.reply_at_once(reply),
        }
    }

    fn submit(
        &mut self,
        now: Time,
        task: NewTask,
        step: &mut SchedulerStep,
    ) -> Result<Submitted, SubmitRejection> {
        let key = task.idempotency_key.clone().map(|key| (task.spec.tenant.clone(), key));
        if let Some(key) = &key {
            self.forget_old_keys(now);
            if let Some(first) = self.by_key.get(key) {
                let known = self.by_id.get(first).copied();
                let worker = known.and_then(|task| self.worker_of(task));
                let deadline = known.and_then(|task| self.deadline_outlook(task, now));
                return Ok(Submitted { task: *first, worker, repeated: true, deadline });
            }
        }
        if self.by_id.len() >= self.settings.max_queue {
            self.counts.rejected += 1;
            return Err(SubmitRejection::QueueFull { retry_after_s: self.retry_after_s() });
        }
        if let (Some(tenant), Some(quota)) = (&task.spec.tenant, task.quota) {
            let open = self.open_tasks_of(tenant);
            if open >= quota {
                self.counts.rejected += 1;
                return Err(SubmitRejection::OverQuota { open, quota });
            }
        }
        self.check_named_gpus(&task.spec.requirement)?;
        self.check_deadline(&task.spec)?;
        let accepted = Arc::new(AcceptedTask {
            id: self.next_id(now),
            deadline: task.spec.requirement.deadline.map(|span| now + span),
            spec: task.spec,
            submitted: now,
            idempotency_key: task.idempotency_key,
            bind_at_once: task.bind_at_once,
        });
        let id = accepted.id;
        let reference = self.add_task(Arc::clone(&accepted), task.stored);
        self.enqueue(reference);
        if let (Some(tenant), Some(weight)) = (&accepted.spec.tenant, task.weight) {
            self.placement.set_weight(tenant, weight);
        }
        let before_plan = step.mark();
        let mut worker = None;
        if task.bind_at_once {
            self.execute_plan(now, step);
            worker = self.worker_of(reference);
            if worker.is_none() {
                self.remove(reference);
                self.placement.finish(reference, AttemptEnd::Withdrawn, now);
                self.counts.rejected += 1;
                return Err(SubmitRejection::NoWorker);
            }
        }
        let lost = self.is(Mutant::LostAccept) && id.uuid().as_bytes()[15] < 16;
        if (task.stored || self.is(Mutant::StoredInteractive)) && !lost {
            // Before the records of the plan: a store applies records in order.
            step.persist_before(before_plan, Record::Accepted(accepted));
        }
        if let Some(key) = key {
            self.by_key.insert(key, id);
        }
        self.counts.submitted += 1;
        self.arm_task(reference);
        let deadline = self.deadline_outlook(reference, now);
        Ok(Submitted { task: id, worker, repeated: false, deadline })
    }

    /// A client may prefer a refusal to a task that is expected to expire. A prediction may be wrong, so it must be
    /// too long even without its error. Where no worker could run the task at all, nothing is known: it waits for one.
    fn check_deadline(&mut self, spec: &TaskSpec) -> Result<(), SubmitRejection> {
        let requirement = &spec.requirement;
        let Some(left) = requirement.deadline else { return Ok(()) };
        if requirement.deadline_policy == DeadlinePolicy::Accept {
            return Ok(());
        }
        let query = self.predictor.query(spec);
        let least_s = self.placement.least_run_s(requirement, &query, &self.predictor);
        let least = Span::from_secs_f64(least_s.unwrap_or(0.0));
        if least <= left {
            return Ok(());
        }
        self.counts.rejected += 1;
        Err(SubmitRejection::DeadlineUnreachable { least, left })
    }

    /// Whether a task is expected to end before its deadline.
    pub(super) fn deadline_outlook(
        &self,
        reference: TaskRef,
        now: Time,
    ) -> Option<DeadlineOutlook> {
        self.task(reference)?.accepted.deadline?;
        self.placement.deadline_outlook(reference, &self.predictor, now)
    }

    /// A task that names GPUs is accepted only if a worker has them free now: a client that pins its tasks keeps the
    /// account of the GPUs itself, and a mistake in it should not become a wait.
    fn check_named_gpus(&mut self, requirement: &Requirement) -> Result<(), SubmitRejection> {
        let ids = requirement.gpu_ids;
        if ids.is_empty() {
            return Ok(());
        }
        let rejection = match self.placement.named_gpus(requirement) {
            NamedGpus::Free => return Ok(()),
            NamedGpus::Taken => SubmitRejection::GpusTaken(ids),
            NamedGpus::Unknown => SubmitRejection::GpusUnknown(ids),
        };
        self.counts.rejected += 1;
        Err(rejection)
    }

    /// No two ids have the same time: the store orders tasks by it.
    fn next_id(&mut self, now: Time) -> TaskId {
        let id = TaskId::after(self.last_id, now, &mut self.rng);
        self.last_id = Some(id);
        id
    }

    /// Adds a task to those that have not ended.
    pub(super) fn add_task(&mut self, accepted: Arc<AcceptedTask>, stored: bool) -> TaskRef {
        let id = accepted.id;
        if let Some(tenant) = &accepted.spec.tenant {
            *self.by_tenant.entry(tenant.clone()).or_default() += 1;
        }
        let task = Task { accepted, stored, state: TaskState::Queued, due: None, history: None };
        let at = self.tasks.vacant();
        self.tasks.insert(at, task);
        let reference = TaskRef(at as u32);
        self.by_id.insert(id, reference);
        reference
    }

    /// Passes a task to placement.
    pub(super) fn enqueue(&mut self, reference: TaskRef) {
        let Some(task) = self.tasks.get(reference.0 as usize) else { return };
        let request = PlacementRequest {
            spec: Arc::clone(&task.accepted.spec),
            query: self.predictor.query(&task.accepted.spec),
            submitted: task.accepted.submitted,
            bind_at_once: task.accepted.bind_at_once,
            interactive: !task.stored && !self.is(Mutant::QueuedInteractive),
            failed_on: task
                .failed_on
                .iter()
                .filter_map(|id| self.slot_of.get(id).copied())
                .collect(),
        };
        self.placement.arrive(reference, request, &self.predictor);
    }

    /// Removes a task from those that have not ended.
    pub(super) fn remove(&mut self, reference: TaskRef) -> Option<Task> {
        self.set_task_due(reference, None);
        let task = self.tasks.remove(reference.0 as usize)?;
        self.by_id.remove(&task.accepted.id);
        if let Some(tenant) = &task.accepted.spec.tenant
            && let Some(open) = self.by_tenant.get_mut(tenant)
        {
            *open = open.saturating_sub(1);
            if *open == 0 {
                self.by_tenant.remove(tenant);
            }
        }
        Some(task)
    }

    fn cancel(&mut self, now: Time, id: TaskId, step: &mut SchedulerStep) -> Option<TaskState> {
        let reference = *self.by_id.get(&id)?;
        self.stop_attempt(now, reference, step);
        self.end(now, reference, TaskState::Cancelled, (None, None), step);
        Some(TaskState::Cancelled)
    }

    /// Cancels the attempt of a task in flight, and takes the task from its worker.
    pub(super) fn stop_attempt(&mut self, now: Time, reference: TaskRef, step: &mut SchedulerStep) {
        self.placement.finish(reference, AttemptEnd::Withdrawn, now);
        let stored = self.task(reference).is_none_or(|task| task.stored);
        if let Some((attempt, current)) = self.take_attempt(reference) {
            let message = ToWorker::Cancel { attempt, fence: current.fence };
            Effect::ToWorker { worker: current.worker, message }.send_for_task(stored, step);
        }
    }

    /// Ends a task permanently, with a result, or with an error where the state alone does not explain it.
    pub(super) fn end(
        &mut self,
        now: Time,
        reference: TaskRef,
        state: TaskState,
        (result, error): (Option<TaskResult>, Option<TaskError>),
        step: &mut SchedulerStep,
    ) {
        let Some(task) = self.remove(reference) else { return };
        let id = task.accepted.id;
        if let Some(key) = task.accepted.idempotency_key.clone() {
            let key = (task.accepted.spec.tenant.clone(), key);
            self.old_keys.push_back((now + self.settings.key_ttl, key, id));
            self.forget_old_keys(now);
        }
        self.counts.ended(state, now.since(task.accepted.submitted));
        if self.is(Mutant::LostResult) && id.uuid().as_bytes()[15] < 16 {
            return;
        }
        let finished = Arc::new(FinishedTask {
            task: id,
            state,
            attempts: task.attempts,
            worker: task.last.map(|attempt| attempt.worker),
            started: task.last.and_then(|attempt| attempt.started),
            finished: now,
            result,
            error: match state {
                TaskState::Completed => None,
                TaskState::Cancelled => Some(TaskError::new(FailureKind::Cancelled, "cancelled")),
                TaskState::Expired => {
                    let passed = match task.failed.last() {
                        Some(last) => {
                            format!("the deadline passed; the last attempt: {}", last.reason)
                        }
                        None => "the deadline passed".to_owned(),
                    };
                    Some(TaskError::new(FailureKind::Expired, passed))
                }
                _ => error,
            },
            failed: task.failed.clone(),
        });
        if task.stored {
            step.persist(Record::Finished(Arc::clone(&finished)));
        }
        let notice = Notice::Ended { accepted: task.accepted, finished };
        Effect::Notice { task: id, notice }.send_for_task(task.stored, step);
    }

    fn worker_of(&self, reference: TaskRef) -> Option<WorkerId> {
        self.placement.worker_id(self.placement.worker_of(reference)?)
    }

    /// About how long until there is room again: the time to work off a tenth of the queue.
    fn retry_after_s(&self) -> u32 {
        let workers = self.placement.workers().max(1) as f64;
        let queue_s = self.by_id.len() as f64 * self.predictor.typical_s() / workers;
        (queue_s / 10.0).clamp(1.0, 60.0) as u32
    }
}
