//! Tasks, decisions and the scheduler itself, as the API shows them.

use hypha_model::{SchedulerId, TaskId, TaskState, Time, WorkerId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::task_status::{FailedAttempt, TaskStatus, failures};

/// Which tasks to list; a field that is `None` does not matter.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// Tasks in this state.
    pub status: Option<TaskState>,
    /// Tasks for this model.
    pub model: Option<String>,
    /// Tasks on this worker, at present or at the end.
    pub worker: Option<WorkerId>,
    /// Tasks submitted at this time or later.
    pub since: Option<Time>,
    /// How many at once, up to 1,000; by default the scheduler chooses.
    pub limit: Option<usize>,
}

/// Some tasks, the latest first.
#[derive(Clone, Debug, Deserialize)]
pub struct TaskPage {
    /// The tasks, without their inputs.
    pub tasks: Vec<TaskStatus>,
    /// The start of the next page; `None` if this was the last.
    #[serde(default)]
    pub next: Option<String>,
}

/// Why this worker, and why not the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The task.
    pub id: TaskId,
    /// Its state.
    pub status: TaskState,
    /// The worker that has it, or had it last.
    #[serde(default)]
    pub worker: Option<WorkerId>,
    /// How many attempts have begun.
    #[serde(default)]
    pub attempts: u32,
    /// A summary in one sentence.
    #[serde(default)]
    pub summary: String,
    /// Every worker's score or refusals, the best first, those that refuse last; none for a task that has
    /// ended.
    #[serde(default)]
    pub workers: Vec<Verdict>,
    /// How many workers are omitted.
    #[serde(default)]
    pub left_off: u64,
    /// Further fields, among them the `decision`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Explanation {
    /// The failed attempts that the scheduler still reports.
    pub fn failures(&self) -> Vec<FailedAttempt> {
        failures(&self.more)
    }
}

/// One worker's score or refusals for one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The worker.
    pub worker: WorkerId,
    /// What the strategy minimises, if the worker does not refuse: seconds for those that predict, otherwise
    /// their own unit.
    #[serde(default)]
    pub score: Option<f64>,
    /// Why it cannot take the task.
    #[serde(default)]
    pub refusals: Vec<String>,
    /// Further fields, among them the parts of the score.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The scheduler's settings and statistics.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SchedulerStatus {
    /// Its id.
    #[serde(default)]
    pub id: Option<SchedulerId>,
    /// The strategy with its parameters.
    #[serde(default)]
    pub strategy: Value,
    /// How run times are predicted: `default` or `lookup_table`.
    #[serde(default)]
    pub predictor_mode: Option<String>,
    /// Further fields, among them the `statistics`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}
