//! Tasks, decisions and the scheduler itself, as the API shows them.

use hypha_model::{SchedulerId, TaskId, TaskState, Time, WorkerId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::task_status::{FailedAttempt, TaskStatus, failures};

/// Which tasks are wanted; what is `None` does not matter.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// In this state.
    pub status: Option<TaskState>,
    /// For this model.
    pub model: Option<String>,
    /// With this worker at present, or at the end.
    pub worker: Option<WorkerId>,
    /// Submitted then or later.
    pub since: Option<Time>,
    /// How many at once, up to 1,000; the scheduler's own choice if not said.
    pub limit: Option<usize>,
}

/// Some tasks, the latest first.
#[derive(Clone, Debug, Deserialize)]
pub struct TaskPage {
    /// The tasks, without their inputs.
    pub tasks: Vec<TaskStatus>,
    /// Where the next page begins; `None` if this was the last.
    #[serde(default)]
    pub next: Option<String>,
}

/// Why this worker, and why not the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The task.
    pub id: TaskId,
    /// Where it is in its life.
    pub status: TaskState,
    /// The worker that has it, or had it last.
    #[serde(default)]
    pub worker: Option<WorkerId>,
    /// How many attempts have begun.
    #[serde(default)]
    pub attempts: u32,
    /// All of it in one sentence.
    #[serde(default)]
    pub summary: String,
    /// Every worker's answer, the best first, those that refuse last; none of a task that has ended.
    #[serde(default)]
    pub workers: Vec<Verdict>,
    /// How many workers were left off.
    #[serde(default)]
    pub left_off: u64,
    /// What else the scheduler says, among it the `decision`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Explanation {
    /// The attempts that failed, as far as the scheduler still tells.
    pub fn failures(&self) -> Vec<FailedAttempt> {
        failures(&self.more)
    }
}

/// One worker's answer for one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The worker.
    pub worker: WorkerId,
    /// What the strategy minimises, if the worker does not refuse: seconds for those that predict, otherwise
    /// their own unit.
    #[serde(default)]
    pub score: Option<f64>,
    /// Why it refuses.
    #[serde(default)]
    pub refusals: Vec<String>,
    /// What else the scheduler says, among it the parts of the score.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// What the scheduler goes by, and what it has done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SchedulerStatus {
    /// Which scheduler it is.
    #[serde(default)]
    pub id: Option<SchedulerId>,
    /// The strategy with its parameters.
    #[serde(default)]
    pub strategy: Value,
    /// How run times are predicted: `default` or `lookup_table`.
    #[serde(default)]
    pub predictor_mode: Option<String>,
    /// What else the scheduler says, among it the `statistics`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}
