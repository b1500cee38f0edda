//! Folds a group of records into one change per task and per worker.
//!
//! A task that is accepted, attempted and ended between two transactions costs one written row, not four.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_engine::record::{AcceptedTask, FailedAttempts, FinishedTask, Record, StoredAttempt};
use hypha_machine::{RowChange, RowRecord};
use hypha_model::{Epoch, Fence, TaskId, Time, Worker, WorkerId};
use hypha_placement::{Health, Strategy};
use hypha_predict::{Mode, Snapshot};

/// See the module documentation. Ordered by id, so that neighbours in the tables are written together.
#[derive(Default)]
pub(crate) struct RecordGroup {
    pub(crate) tasks: BTreeMap<TaskId, TaskChange>,
    /// `None` for a worker that was forgotten.
    pub(crate) workers: BTreeMap<WorkerId, Option<(Arc<Worker>, Health)>>,
    /// When a worker was removed; `None` for one that was readmitted.
    pub(crate) removed: BTreeMap<WorkerId, Option<Time>>,
    pub(crate) epoch: Option<Epoch>,
    pub(crate) strategy: Option<Strategy>,
    pub(crate) mode: Option<Mode>,
    pub(crate) predictor: Option<Box<Snapshot>>,
    /// Changes of the rows of jobs, in order.
    pub(crate) jobs: Vec<RowChange>,
}

/// The changes to one task.
#[derive(Default)]
pub(crate) struct TaskChange {
    pub(crate) accepted: Option<Arc<AcceptedTask>>,
    pub(crate) attempts: Option<u32>,
    pub(crate) failures: Option<u32>,
    pub(crate) not_before: Option<Time>,
    pub(crate) failed: Option<FailedAttempts>,
    /// Every change except the acceptance sets it, so for a new task `None` means that it has no attempt.
    pub(crate) current: Option<StoredAttempt>,
    /// Updates of an attempt that was dispatched in an earlier transaction.
    pub(crate) began: Vec<(Fence, Option<Time>, Option<Arc<str>>)>,
    pub(crate) finished: Option<Arc<FinishedTask>>,
}

impl RecordGroup {
    /// Whether `record` may be added. Not if it accepts a task that has earlier changes in this group: whether those
    /// count depends on rows that are unknown here.
    pub(crate) fn accepts(&self, record: &Record) -> bool {
        match record {
            Record::Accepted(task) => {
                self.tasks.get(&task.id).is_none_or(|change| change.accepted.is_some())
            }
            _ => true,
        }
    }

    /// Adds a record that [`RecordGroup::accepts`].
    pub(crate) fn add(&mut self, record: Record) {
        match record {
            Record::Started { epoch } => self.epoch = Some(epoch),
            Record::Accepted(task) => {
                self.tasks.entry(task.id).or_default().accepted.get_or_insert(task);
            }
            Record::AttemptDispatched { attempt, fence, worker, at } => {
                let change = self.tasks.entry(attempt.task).or_default();
                change.attempts = Some(attempt.number);
                change.current = Some(StoredAttempt::new(fence, worker, at));
                change.began.clear();
            }
            Record::AttemptUpdated { task, fence, started, handle } => {
                let change = self.tasks.entry(task).or_default();
                let has_progress = change.has_progress();
                match &mut change.current {
                    Some(current) => current.update(fence, started, handle.as_ref()),
                    // An update of an attempt that was abandoned since, or of an earlier one.
                    None if has_progress => {}
                    None => change.began.push((fence, started, handle)),
                }
            }
            Record::Requeued { task, failures, not_before, failed } => {
                let change = self.tasks.entry(task).or_default();
                change.failures = Some(failures);
                change.not_before = Some(not_before);
                change.failed = Some(failed);
                change.current = None;
            }
            Record::Finished(finished) => {
                let change = self.tasks.entry(finished.task).or_default();
                change.finished.get_or_insert(finished);
            }
            Record::Worker { worker, health } => {
                self.workers.insert(worker.id, Some((worker, health)));
            }
            Record::WorkerForgotten(id) => {
                self.workers.insert(id, None);
            }
            Record::WorkerRemoved { worker, at } => {
                self.removed.insert(worker, Some(at));
            }
            Record::WorkerReadmitted(id) => {
                self.removed.insert(id, None);
            }
            Record::Strategy(strategy) => self.strategy = Some(strategy),
            Record::Mode(mode) => self.mode = Some(mode),
            Record::Predictor(snapshot) => self.predictor = Some(snapshot),
            Record::Job(record) => record.add_changes(&mut self.jobs),
        }
    }
}

impl TaskChange {
    /// Whether there is a change besides the acceptance.
    pub(crate) fn has_progress(&self) -> bool {
        self.attempts.is_some() || self.failures.is_some() || self.finished.is_some()
    }
}
