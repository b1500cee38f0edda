//! A worker as the API shows it.

use hypha_model::WorkerId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::timestamp::Timestamp;

/// The workers of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct WorkerList {
    /// Those that it uses, or that finish what they have.
    pub workers: Vec<WorkerStatus>,
    /// Those that were removed and not taken again, the latest first.
    #[serde(default)]
    pub removed: Vec<RemovedWorker>,
}

/// A worker that was removed, as far as the scheduler knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemovedWorker {
    /// Its id.
    pub id: WorkerId,
    /// What its certificate calls it, if the scheduler knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `removed`.
    #[serde(default)]
    pub status: String,
    /// Since when.
    #[serde(default)]
    pub removed_at: Option<Timestamp>,
    /// The models that it serves, none if it takes any; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// What else the scheduler says.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A worker that gets nothing more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainingWorker {
    /// Its id.
    pub id: WorkerId,
    /// `draining`.
    #[serde(default)]
    pub status: String,
    /// What else the scheduler says.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A worker that is taken again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadmittedWorker {
    /// Its id.
    pub id: WorkerId,
    /// What else the scheduler says.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A worker that the scheduler knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its id.
    pub id: WorkerId,
    /// What its certificate calls it, if the scheduler knows. Several may have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `available`, `busy`, `unavailable` and the like.
    #[serde(default)]
    pub status: String,
    /// When it was removed, if it was and has something to finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Timestamp>,
    /// The models that it serves; none if it takes any.
    #[serde(default)]
    pub models: Vec<String>,
    /// How it has done.
    #[serde(default)]
    pub health: WorkerHealth,
    /// The measured round trip, in milliseconds.
    #[serde(default)]
    pub rtt_ms: Option<f64>,
    /// Tasks bound to it that it has not been given.
    #[serde(default)]
    pub queued: u64,
    /// Tasks that have begun.
    #[serde(default)]
    pub running: u64,
    /// How long a new task would wait, in milliseconds.
    #[serde(default)]
    pub waiting_ms: Option<f64>,
    /// What else the scheduler says.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl WorkerStatus {
    /// Why it is not available, if it is not.
    pub fn reason(&self) -> Option<&str> {
        self.more.get("reason")?.as_str()
    }

    /// The executors that are given nothing although the worker is available, by name, and why.
    pub fn suspended_executors(&self) -> Vec<(&str, &str)> {
        fn suspended(executor: &Value) -> Option<(&str, &str)> {
            Some((executor.get("name")?.as_str()?, executor.get("reason")?.as_str()?))
        }
        let executors = self.more.get("executors").and_then(Value::as_array);
        executors.into_iter().flatten().filter_map(suspended).collect()
    }
}

/// How a worker has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerHealth {
    /// The moving share of attempts that ended well, from 0 to 1.
    #[serde(default)]
    pub success_rate: Option<f64>,
    /// The moving average of run times, in seconds.
    #[serde(default)]
    pub avg_completion_time: Option<f64>,
    /// When it was last heard of.
    #[serde(default)]
    pub last_seen: Option<Timestamp>,
    /// Failures since the last success.
    #[serde(default)]
    pub consecutive_failures: u64,
    /// What else the scheduler says.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}
