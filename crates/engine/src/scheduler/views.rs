//! Views of a scheduler. All but `continue_counts` are read-only.

use std::sync::Arc;

use hypha_model::{FailureKind, Name, Span, TaskId, TaskState, Time, Worker, WorkerId};
use hypha_placement::{
    DeadlineOutlook, Explanation, Statistics, Strategy, TaskRef, TenantView, WaitingReasons,
    WorkerSlot, WorkerView,
};
use hypha_predict::Mode;
use serde::Serialize;

use super::leave::RemovedWorker;
use super::{LeaseView, Scheduler};
use crate::record::{AcceptedTask, FailedAttempts};

/// Counts since the scheduler was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Tasks that were accepted.
    pub submitted: u64,
    /// Tasks that were rejected.
    pub rejected: u64,
    /// Adverts that were sent.
    pub adverts: u64,
    /// Offers that arrived for them.
    pub offers: u64,
    /// Receipts of workers that were not countersigned, because they were not what was agreed.
    pub receipts_refused: u64,
    /// Tasks that ended with a result.
    pub completed: u64,
    /// Tasks of which no attempt succeeded.
    pub failed: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
    /// Tasks whose deadline passed.
    pub expired: u64,
    /// Retries.
    pub retried: u64,
    /// Results that arrived too late, twice, or with a wrong token, and were dropped.
    pub late_results: u64,
    /// Leases that ended without being released.
    pub leases_lost: u64,
    /// How often a worker or one of its executors was quarantined for failing.
    pub quarantines: u64,
    /// Tasks that an idle worker took from another's queue.
    pub stolen: u64,
    /// Sum of the times from submission to end, in microseconds.
    pub latency_sum_us: u64,
    /// Attempts that gave no result, by kind.
    #[serde(skip)]
    pub failures: FailureCounts,
    #[serde(skip)]
    pub(super) learned_since_save: u64,
}

/// How many failures there were of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureCounts([u64; FailureKind::ALL.len()]);

impl FailureCounts {
    pub(super) fn add(&mut self, kind: FailureKind) {
        self.0[kind as usize] += 1;
    }

    /// Each kind with its number.
    pub fn iter(&self) -> impl Iterator<Item = (FailureKind, u64)> {
        FailureKind::ALL.into_iter().zip(self.0)
    }
}

/// A view of a task that has not ended. Ended tasks are in the store.
#[derive(Clone, Debug)]
pub struct TaskView {
    /// As it was accepted.
    pub accepted: Arc<AcceptedTask>,
    /// Its state.
    pub state: TaskState,
    /// The worker that it is bound to.
    pub worker: Option<WorkerId>,
    /// Attempts begun.
    pub attempts: u32,
    /// When the present attempt began to run.
    pub started: Option<Time>,
    /// The GPUs that the present attempt has, by their numbers on its worker.
    pub devices: Vec<u32>,
    /// How far it is, in thousandths.
    pub progress_permille: u16,
    /// Until when it is not retried, after a failure.
    pub not_before: Option<Time>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// The last attempts that gave no result.
    pub failed: FailedAttempts,
    /// Why it has this worker, or none.
    pub explanation: Option<Explanation>,
    /// Whether it is expected to end before its deadline, if it has one and a worker could run it.
    pub deadline: Option<DeadlineOutlook>,
}

impl Counts {
    pub(super) fn ended(&mut self, state: TaskState, latency: Span) {
        self.latency_sum_us = self.latency_sum_us.saturating_add(latency.as_micros());
        match state {
            TaskState::Completed => self.completed += 1,
            TaskState::Failed => self.failed += 1,
            TaskState::Cancelled => self.cancelled += 1,
            TaskState::Expired => self.expired += 1,
            TaskState::Queued | TaskState::Scheduled | TaskState::Running => {}
        }
    }
}

/// A view of a worker that was removed and has no attempts left.
#[derive(Clone, Debug)]
pub struct RemovedWorkerView {
    /// The worker.
    pub id: WorkerId,
    /// When it was removed.
    pub at: Time,
    /// Its description; not known if it has not been found since the scheduler started.
    pub worker: Option<Arc<Worker>>,
}

impl Scheduler {
    /// The scheduler's id.
    pub fn id(&self) -> hypha_model::SchedulerId {
        self.id
    }

    /// The scheduler's incarnation.
    pub fn epoch(&self) -> hypha_model::Epoch {
        self.epoch
    }

    /// A view of a task that has not ended.
    pub fn task_view(&self, id: TaskId, now: Time) -> Option<TaskView> {
        self.view_of(id, &mut self.placement.waiting_reasons(), now)
    }

    pub(super) fn view_of(
        &self,
        id: TaskId,
        reasons: &mut WaitingReasons<'_>,
        now: Time,
    ) -> Option<TaskView> {
        let reference = *self.by_id.get(&id)?;
        let task = self.task(reference)?;
        let bound = self.placement.worker_of(reference);
        Some(TaskView {
            accepted: Arc::clone(&task.accepted),
            state: task.state,
            worker: bound
                .and_then(|slot| self.placement.worker_id(slot))
                .or(task.current.map(|current| current.worker)),
            attempts: task.attempts,
            started: task.current.and_then(|current| current.started),
            devices: match task.current {
                Some(_) => task.devices.clone(),
                None => Vec::new(),
            },
            progress_permille: task.progress_permille,
            not_before: (task.not_before > Time::ZERO).then_some(task.not_before),
            last_error: task.failed.last().map(|last| last.reason.to_string()),
            failed: task.failed.clone(),
            explanation: self
                .placement
                .explanation(reference)
                .cloned()
                .or_else(|| reasons.of(reference, now)),
            deadline: self.deadline_outlook(reference, now),
        })
    }

    /// Whether this worker is known.
    pub fn knows_worker(&self, worker: WorkerId) -> bool {
        self.slot_of.contains(&worker)
    }

    /// Whether this worker was removed, and has not been registered or readmitted since.
    pub fn is_removed(&self, worker: WorkerId) -> bool {
        self.removed.contains_key(&worker)
    }

    /// When this worker was removed, if it was and has not been readmitted. It may have attempts to finish.
    pub fn removed_at(&self, worker: WorkerId) -> Option<Time> {
        self.removed.get(&worker).map(|it| it.at)
    }

    /// How many tasks have not ended.
    pub fn open_tasks(&self) -> usize {
        self.by_id.len()
    }

    /// How many tasks of a tenant have not ended.
    pub fn open_tasks_of(&self, tenant: &Name) -> u32 {
        self.by_tenant.get(tenant).copied().unwrap_or(0)
    }

    /// The tenants that have tasks, with their shares.
    pub fn tenants(&self) -> Vec<TenantView> {
        self.placement.tenants()
    }

    /// A stored task and its worker and state, if it has a worker.
    pub fn placed(&self, task: TaskRef) -> Option<(&AcceptedTask, WorkerId, TaskState)> {
        let worker = self.placement.worker_id(self.placement.worker_of(task)?)?;
        let task = self.task(task).filter(|task| task.stored)?;
        Some((&task.accepted, worker, task.state))
    }

    /// How many tasks have not started, wherever they wait: in the scheduler's queue, for a worker, or on one. `running`
    /// is how many have, over all workers ([`WorkerView::running`]).
    pub fn queued_tasks(&self, running: usize) -> usize {
        self.open_tasks().saturating_sub(running)
    }

    /// How many tasks are queued without a worker.
    pub fn waiting_tasks(&self) -> usize {
        self.placement.waiting()
    }

    /// The workers that were removed and have no attempts left, the latest first.
    pub fn removed_workers(&self) -> Vec<RemovedWorkerView> {
        let gone = self.removed.iter().filter(|(id, _)| !self.slot_of.contains(id));
        let view = |(id, it): (&WorkerId, &RemovedWorker)| RemovedWorkerView {
            id: *id,
            at: it.at,
            worker: it.description.clone(),
        };
        let mut views: Vec<_> = gone.map(view).collect();
        views.sort_by_key(|view| std::cmp::Reverse(view.at));
        views
    }

    /// All workers, with their leases. Where other work waits for the scheduler, read them in parts
    /// ([`Scheduler::workers_part`]).
    pub fn workers(&self, now: Time) -> Vec<(WorkerView, Option<LeaseView>)> {
        let (mut all, mut next) = (Vec::new(), Some(WorkerSlot(0)));
        while let Some(from) = next {
            let part = self.workers_part(from, now);
            all.extend(part.items);
            next = part.next;
        }
        all
    }

    /// The lease on a worker that the scheduler relies on.
    pub fn lease_of(&self, worker: WorkerId) -> Option<LeaseView> {
        let slot = self.slot_of.get(&worker)?;
        self.workers.get(slot.0 as usize)?.as_ref()?.lease_view()
    }

    /// A task that waits although a worker would take it, or without a reason; for the simulator.
    pub fn unexplained(&self, now: Time) -> Option<String> {
        self.placement.unexplained(&self.predictor, now)
    }

    /// The strategy in use and what it has done.
    pub fn strategy(&self) -> (&Strategy, &Statistics) {
        (self.placement.strategy(), self.placement.statistics())
    }

    /// The predictor's mode.
    pub fn mode(&self) -> Mode {
        self.predictor.mode()
    }

    /// Counts since the start.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Continues the counts of an earlier machine of the same process.
    pub fn continue_counts(&mut self, earlier: &Counts) {
        self.counts = *earlier;
    }

    /// How many tasks memory is allocated for. It follows the number of tasks, also when that shrinks.
    pub fn task_capacity(&self) -> usize {
        let own = self.tasks.capacity().max(self.by_id.capacity());
        own.max(self.placement.task_capacity())
    }

    /// Recomputes the state that is kept incrementally and compares; the simulator calls it after every step.
    pub fn check(&self, now: Time) -> Result<(), String> {
        self.placement.check(now)?;
        let open = self.tasks.iter().count();
        if open != self.by_id.len() {
            return Err(format!("{open} tasks are open and {} are known by id", self.by_id.len()));
        }
        let mut by_tenant = std::collections::BTreeMap::new();
        for tenant in self.tasks.iter().filter_map(|it| it.accepted.spec.tenant.clone()) {
            *by_tenant.entry(tenant).or_insert(0_u32) += 1;
        }
        if by_tenant != self.by_tenant {
            return Err(format!(
                "tenants have {by_tenant:?} open tasks and {:?} are counted",
                self.by_tenant
            ));
        }
        for (slot, state) in self.workers.iter().enumerate() {
            if let Some(state) = state {
                self.check_suspensions(WorkerSlot(slot as u32), state)?;
            }
        }
        if open == 0 && self.placement.waiting() != 0 {
            return Err("no task is open and some are queued".to_owned());
        }
        for (at, due) in &self.agenda {
            let known = match due {
                super::Due::Task(task) => self.task(*task).and_then(|task| task.due),
                super::Due::Worker(slot) => self
                    .workers
                    .get(slot.0 as usize)
                    .and_then(Option::as_ref)
                    .and_then(|worker| worker.due),
                super::Due::Save | super::Due::Flush => Some(*at),
            };
            if known != Some(*at) {
                return Err(format!("{due:?} at {at} is on the agenda and is not due then"));
            }
        }
        let tasks = self.tasks.iter().filter(|task| task.due.is_some()).count();
        let workers = self.workers.iter().flatten().filter(|worker| worker.due.is_some()).count();
        if tasks + workers + 1 + usize::from(self.flushes) != self.agenda.len() {
            return Err(format!(
                "{tasks} tasks, {workers} workers and one save are due, and {} times are on the agenda",
                self.agenda.len()
            ));
        }
        Ok(())
    }
}
