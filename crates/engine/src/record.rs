//! What a scheduler makes durable, and recovers after a restart.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use hypha_machine::{Apply, Rows};
use hypha_model::{
    AttemptId, Epoch, FailureKind, Fence, TaskError, TaskId, TaskResult, TaskSpec, TaskState, Time,
    Worker, WorkerId,
};
use hypha_placement::{Health, Strategy};
use hypha_predict::{Mode, Snapshot};
use serde::{Deserialize, Serialize};

use crate::job::JobRecord;

/// One change. A store applies it to its rows; [`Image`] defines what that means.
#[derive(Clone, Debug)]
pub enum Record {
    /// The scheduler's next incarnation begins.
    Started {
        /// The incarnation.
        epoch: Epoch,
    },
    /// A task was accepted.
    Accepted(Arc<AcceptedTask>),
    /// An attempt is about to be dispatched to a worker.
    AttemptDispatched {
        /// The attempt.
        attempt: AttemptId,
        /// Its token.
        fence: Fence,
        /// The worker.
        worker: WorkerId,
        /// When.
        at: Time,
    },
    /// The attempt in flight is void, and the task waits for the next.
    Requeued {
        /// The task.
        task: TaskId,
        /// Attempts that count against `max_attempts` so far.
        failures: u32,
        /// The next attempt is not made before this.
        not_before: Time,
        /// The attempts that gave no result; this one, with its reason, is the last.
        failed: FailedAttempts,
    },
    /// The task has ended permanently.
    Finished(Arc<FinishedTask>),
    /// A worker's record.
    Worker {
        /// Its description of itself.
        worker: Arc<Worker>,
        /// Its statistics.
        health: Health,
    },
    /// A worker was forgotten.
    WorkerForgotten(WorkerId),
    /// A worker gets no new tasks, and is not taken back when a search finds it.
    WorkerRemoved {
        /// Which.
        worker: WorkerId,
        /// When.
        at: Time,
    },
    /// More is known of an attempt that is in flight. Applies to no other attempt.
    AttemptUpdated {
        /// The task.
        task: TaskId,
        /// The attempt's token.
        fence: Fence,
        /// When it began to run.
        started: Option<Time>,
        /// The id under which a back end has it.
        handle: Option<Arc<str>>,
    },
    /// A worker that was removed may be used again.
    WorkerReadmitted(WorkerId),
    /// Another strategy was chosen.
    Strategy(Strategy),
    /// Another predictor mode was chosen.
    Mode(Mode),
    /// What the predictor has learned.
    Predictor(Box<Snapshot>),
    /// A job has changed.
    Job(JobRecord),
}

/// A task as it was accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AcceptedTask {
    /// Its id.
    pub id: TaskId,
    /// What is requested.
    pub spec: Arc<TaskSpec>,
    /// When.
    pub submitted: Time,
    /// When it expires.
    pub deadline: Option<Time>,
    /// The key under which a repeat returns this task.
    pub idempotency_key: Option<Arc<str>>,
    /// Bind it at submission under every strategy.
    pub bind_at_once: bool,
}

/// A long queue costs this times its length: what grows here must be worth it.
const _: () = assert!(size_of::<AcceptedTask>() <= 72);

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishedTask {
    /// The task.
    pub task: TaskId,
    /// Completed, failed, cancelled or expired.
    pub state: TaskState,
    /// How many attempts there were.
    pub attempts: u32,
    /// The worker of the last one.
    pub worker: Option<WorkerId>,
    /// When the last one began.
    pub started: Option<Time>,
    /// When the task ended.
    pub finished: Time,
    /// The result, if it completed.
    pub result: Option<TaskResult>,
    /// What went wrong, if it did not.
    pub error: Option<TaskError>,
    /// The last attempts that gave no result.
    pub failed: FailedAttempts,
}

/// An attempt that gave no result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// Its number.
    pub number: u32,
    /// Where it was made.
    pub worker: WorkerId,
    /// When it was given up.
    pub at: Time,
    /// What kind of failure it is; earlier versions did not record it.
    #[serde(default)]
    pub kind: FailureKind,
    /// Why, for people.
    pub reason: Arc<str>,
}

/// The last attempts of a task that gave no result, the oldest first: at most [`MAX_FAILED_ATTEMPTS`]. Takes no memory
/// of its own while there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailedAttempts(Option<Arc<[FailedAttempt]>>);

/// How the error of an interactive task begins when no worker is left for it. For people: programs go by the kind.
pub const NO_WORKER_LEFT: &str = "no worker is available for it";

/// Enough for more than twice the usual number of attempts; a task that is refused repeatedly has more.
pub const MAX_FAILED_ATTEMPTS: usize = 8;
/// The longest part of a reason that is kept of each: the first lines of a program's last output.
pub const MAX_REASON_CHARS: usize = 500;

impl FailedAttempts {
    pub(crate) const NONE: FailedAttempts = FailedAttempts(None);

    /// These and one more. The oldest that used up no attempt makes room for it, or the oldest: a task that waits for a
    /// busy back end has many of those, and they reveal least.
    pub fn with(&self, mut last: FailedAttempt) -> FailedAttempts {
        if let Some((end, _)) = last.reason.char_indices().nth(MAX_REASON_CHARS) {
            last.reason = Arc::from(&last.reason[..end]);
        }
        let is_full = self.len() >= MAX_FAILED_ATTEMPTS;
        let removed = is_full.then(|| {
            self.iter().position(|failed| !failed.kind.uses_attempt()).unwrap_or_default()
        });
        let (before, after) =
            removed.map_or((&self[..], &[][..]), |at| (&self[..at], &self[at + 1..]));
        FailedAttempts(Some(before.iter().chain(after).cloned().chain([last]).collect()))
    }
}

impl Deref for FailedAttempts {
    type Target = [FailedAttempt];
    fn deref(&self) -> &[FailedAttempt] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// What is durable, as a whole.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The scheduler's present incarnation.
    pub epoch: Epoch,
    /// The last task that was accepted: ids of new ones are greater, whatever the clock says.
    pub last_id: Option<TaskId>,
    /// Tasks that have not ended, and those that have.
    pub tasks: BTreeMap<TaskId, StoredTask>,
    /// Workers with their records.
    pub workers: BTreeMap<WorkerId, (Arc<Worker>, Health)>,
    /// Workers that were removed, and when.
    pub removed: BTreeMap<WorkerId, Time>,
    /// The strategy, if one was chosen at run time.
    pub strategy: Option<Strategy>,
    /// The predictor mode, if one was chosen at run time.
    pub mode: Option<Mode>,
    /// What the predictor had learned.
    pub predictor: Option<Snapshot>,
    /// The rows of jobs.
    pub jobs: Rows,
}

/// A task with all that is durable of it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTask {
    /// As it was accepted.
    pub accepted: Arc<AcceptedTask>,
    /// Attempts begun so far.
    pub attempts: u32,
    /// Attempts that count against `max_attempts`.
    pub failures: u32,
    /// The attempt that may still be in flight.
    pub current: Option<StoredAttempt>,
    /// The next attempt is not made before this.
    pub not_before: Time,
    /// The last attempts that gave no result, while it has not ended.
    pub failed: FailedAttempts,
    /// How it ended.
    pub finished: Option<Arc<FinishedTask>>,
}

/// What is durable of an attempt that may still be in flight.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAttempt {
    /// Its token.
    pub fence: Fence,
    /// Where it is made.
    pub worker: WorkerId,
    /// When it was dispatched.
    pub dispatched_at: Time,
    /// When it began to run.
    pub started: Option<Time>,
    /// The id under which a back end has it.
    pub handle: Option<Arc<str>>,
}

impl StoredAttempt {
    /// An attempt of which nothing more is known.
    pub fn new(fence: Fence, worker: WorkerId, dispatched_at: Time) -> StoredAttempt {
        StoredAttempt { fence, worker, dispatched_at, started: None, handle: None }
    }

    /// Adds an update, unless it is about another attempt.
    pub fn update(&mut self, fence: Fence, started: Option<Time>, handle: Option<&Arc<str>>) {
        if self.fence == fence {
            self.started = self.started.or(started);
            self.handle = self.handle.take().or_else(|| handle.cloned());
        }
    }
}

impl Image {
    /// The latest time in the image: the clock has been there before.
    pub fn latest(&self) -> Time {
        let of_task = |task: &StoredTask| {
            let current = task.current.as_ref();
            let attempt = current.map(|attempt| attempt.started.unwrap_or(attempt.dispatched_at));
            let finished = task.finished.as_ref().map(|finished| finished.finished);
            task.accepted.submitted.max(attempt.max(finished).unwrap_or(Time::ZERO))
        };
        let tasks = self.tasks.values().map(of_task);
        let accepted = self.last_id.map(TaskId::created_at);
        tasks.chain(accepted).chain(self.removed.values().copied()).max().unwrap_or(Time::ZERO)
    }
}

impl Apply<Record> for Image {
    fn apply(&mut self, record: &Record) {
        match record {
            Record::Started { epoch } => self.epoch = *epoch,
            Record::Accepted(accepted) => {
                self.last_id = self.last_id.max(Some(accepted.id));
                self.tasks.entry(accepted.id).or_insert_with(|| StoredTask {
                    accepted: Arc::clone(accepted),
                    attempts: 0,
                    failures: 0,
                    current: None,
                    not_before: Time::ZERO,
                    failed: FailedAttempts::default(),
                    finished: None,
                });
            }
            Record::AttemptDispatched { attempt, fence, worker, at } => {
                if let Some(task) = self.tasks.get_mut(&attempt.task) {
                    task.attempts = attempt.number;
                    task.current = Some(StoredAttempt::new(*fence, *worker, *at));
                }
            }
            Record::AttemptUpdated { task, fence, started, handle } => {
                if let Some(current) =
                    self.tasks.get_mut(task).and_then(|task| task.current.as_mut())
                {
                    current.update(*fence, *started, handle.as_ref());
                }
            }
            Record::Requeued { task, failures, not_before, failed } => {
                if let Some(task) = self.tasks.get_mut(task) {
                    task.failures = *failures;
                    task.not_before = *not_before;
                    task.failed = failed.clone();
                    task.current = None;
                }
            }
            Record::Finished(finished) => {
                if let Some(task) = self.tasks.get_mut(&finished.task) {
                    task.current = None;
                    task.finished.get_or_insert_with(|| Arc::clone(finished));
                }
            }
            Record::Worker { worker, health } => {
                self.workers.insert(worker.id, (Arc::clone(worker), health.clone()));
            }
            Record::WorkerForgotten(id) => {
                self.workers.remove(id);
            }
            Record::WorkerRemoved { worker, at } => {
                self.removed.insert(*worker, *at);
            }
            Record::WorkerReadmitted(id) => {
                self.removed.remove(id);
            }
            Record::Strategy(strategy) => self.strategy = Some(*strategy),
            Record::Mode(mode) => self.mode = Some(*mode),
            Record::Predictor(snapshot) => self.predictor = Some((**snapshot).clone()),
            Record::Job(record) => self.jobs.apply(record),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(number: u32, reason: &str) -> FailedAttempt {
        let worker = WorkerId::new(Time::ZERO, &mut hypha_model::Rng::new(1));
        FailedAttempt {
            number,
            worker,
            at: Time::ZERO,
            kind: FailureKind::default(),
            reason: Arc::from(reason),
        }
    }

    #[test]
    fn the_last_failed_attempts_are_kept_with_the_beginning_of_their_reasons() {
        let mut all = FailedAttempts::default();
        for number in 1..=20 {
            all = all.with(failed(number, "it broke"));
            assert!(all.len() <= MAX_FAILED_ATTEMPTS);
        }
        let numbers: Vec<u32> = all.iter().map(|one| one.number).collect();
        assert_eq!(numbers, (13..=20).collect::<Vec<_>>());
        for number in 21..=30 {
            all = all
                .with(FailedAttempt { kind: FailureKind::BackendBusy, ..failed(number, "busy") });
        }
        let numbers: Vec<u32> = all.iter().map(|one| one.number).collect();
        assert_eq!(numbers, [14, 15, 16, 17, 18, 19, 20, 30]);
        let all = all.with(failed(31, &"€".repeat(MAX_REASON_CHARS + 1)));
        assert_eq!(all.last().unwrap().reason.chars().count(), MAX_REASON_CHARS);
    }
}
