//! Tasks, decisions and the scheduler itself, as the API shows them.

use hypha_model::{SchedulerId, TaskId, TaskState, Time, WorkerId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::timestamp::Timestamp;

/// A task as it is. What the scheduler says and this client does not know is kept in `more`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// The id that the scheduler gave it.
    pub id: TaskId,
    /// Where it is in its life.
    pub status: TaskState,
    /// The model that is asked.
    #[serde(default)]
    pub model: Option<String>,
    /// The worker that has it, or had it last.
    #[serde(default)]
    pub worker: Option<WorkerId>,
    /// When it was submitted.
    #[serde(default)]
    pub submitted_at: Option<Timestamp>,
    /// When its last attempt began.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
    /// How many attempts have begun.
    #[serde(default)]
    pub attempts: u32,
    /// How far it is, from 0 to 1.
    #[serde(default)]
    pub progress: Option<f64>,
    /// The result, once it has completed.
    #[serde(default)]
    pub result: Value,
    /// What went wrong, if it ended otherwise.
    #[serde(default)]
    pub error: Option<String>,
    /// What else the scheduler says.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl TaskStatus {
    /// Whether it will not change any more.
    pub fn has_ended(&self) -> bool {
        self.status.is_final()
    }

    /// Why it waits, in a few words.
    pub fn reason(&self) -> Option<&str> {
        self.more.get("reason")?.as_str()
    }

    /// Why its last attempt failed, while the next is waited for.
    pub fn last_error(&self) -> Option<&str> {
        self.more.get("last_error")?.as_str()
    }

    /// Until when it is left alone after a failed attempt.
    pub fn delayed_until(&self) -> Option<Timestamp> {
        self.more.get("delayed_until")?.as_str()?.parse().ok()
    }

    /// The attempts that failed, as far as the scheduler still tells.
    pub fn failures(&self) -> Vec<FailedTry> {
        failures(&self.more)
    }
}

/// An attempt that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailedTry {
    /// Which attempt, from 1.
    #[serde(default)]
    pub attempt: u32,
    /// The worker that had it.
    #[serde(default)]
    pub worker: Option<WorkerId>,
    /// Why it failed.
    #[serde(default)]
    pub reason: String,
    /// When.
    #[serde(default)]
    pub at: Option<Timestamp>,
}

/// What cannot be read is left out: the rest is worth showing without it.
fn failures(more: &Map<String, Value>) -> Vec<FailedTry> {
    let Some(Value::Array(all)) = more.get("failures") else { return Vec::new() };
    all.iter().filter_map(|one| serde_json::from_value(one.clone()).ok()).collect()
}

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
    pub fn failures(&self) -> Vec<FailedTry> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn failed_attempts_are_read_as_far_as_they_can_be() {
        let task = |failures: Value| -> TaskStatus {
            let id = "task-01890000-0000-7000-8000-000000000001";
            serde_json::from_value(json!({"id": id, "status": "queued", "failures": failures}))
                .unwrap()
        };
        for none in [json!(null), json!([]), json!("many"), json!([1, "two"])] {
            assert_eq!(task(none).failures(), []);
        }
        let worker = "01890000-0000-7000-8000-000000000002";
        let told = json!([
            {"attempt": 1, "worker": worker, "reason": "it was lost", "at": "2026-01-01T00:00:00.000Z"},
            {"attempt": 2, "worker": null, "reason": "no", "more": 1},
        ]);
        let read = task(told).failures();
        assert_eq!((read.len(), read[0].attempt, read[1].attempt), (2, 1, 2));
        assert_eq!(read[0].worker, worker.parse().ok());
        assert_eq!((read[1].worker, &read[1].at, read[1].reason.as_str()), (None, &None, "no"));
    }
}
