//! A worker as the API shows it.

use hypha_model::WorkerId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::timestamp::Timestamp;

/// The workers of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct WorkerList {
    /// Workers in use, and draining workers.
    pub workers: Vec<WorkerStatus>,
    /// Workers that were removed and not readmitted, the latest first.
    #[serde(default)]
    pub removed: Vec<RemovedWorker>,
}

/// A removed worker, as far as the scheduler knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemovedWorker {
    /// Its id.
    pub id: WorkerId,
    /// The name in its certificate, if the scheduler knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `removed`.
    #[serde(default)]
    pub status: String,
    /// When it was removed.
    #[serde(default)]
    pub removed_at: Option<Timestamp>,
    /// The models that it serves, none if it accepts any; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Further fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A draining worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainingWorker {
    /// Its id.
    pub id: WorkerId,
    /// `draining`.
    #[serde(default)]
    pub status: String,
    /// Further fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A readmitted worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadmittedWorker {
    /// Its id.
    pub id: WorkerId,
    /// Further fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A worker that the scheduler knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its id.
    pub id: WorkerId,
    /// The name in its certificate, if the scheduler knows it. Several may have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `available`, `busy`, `unavailable` and the like.
    #[serde(default)]
    pub status: String,
    /// When it was removed, if it is draining.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at: Option<Timestamp>,
    /// The models that it serves; none if it accepts any.
    #[serde(default)]
    pub models: Vec<String>,
    /// Its statistics.
    #[serde(default)]
    pub health: WorkerHealth,
    /// The measured round trip, in milliseconds.
    #[serde(default)]
    pub rtt_ms: Option<f64>,
    /// Tasks bound to it that were not dispatched to it yet.
    #[serde(default)]
    pub queued: u64,
    /// Tasks that are running.
    #[serde(default)]
    pub running: u64,
    /// How long a new task would wait, in milliseconds.
    #[serde(default)]
    pub waiting_ms: Option<f64>,
    /// Further fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl WorkerStatus {
    /// Why it is not available, if it is not.
    pub fn reason(&self) -> Option<&str> {
        self.more.get("reason")?.as_str()
    }

    /// The executors that get no tasks although the worker is available, by name, and why.
    pub fn suspended_executors(&self) -> Vec<(&str, &str)> {
        fn suspended(executor: &Value) -> Option<(&str, &str)> {
            Some((executor.get("name")?.as_str()?, executor.get("reason")?.as_str()?))
        }
        self.executors().into_iter().flatten().filter_map(suspended).collect()
    }

    /// Whether it is configured without executors: then it can run nothing, although `models` is empty.
    pub fn has_no_executors(&self) -> bool {
        self.executors().is_some_and(Vec::is_empty)
    }

    /// None if the scheduler does not report them.
    fn executors(&self) -> Option<&Vec<Value>> {
        self.more.get("executors").and_then(Value::as_array)
    }
}

/// Statistics of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerHealth {
    /// The moving share of attempts that succeeded, from 0 to 1.
    #[serde(default)]
    pub success_rate: Option<f64>,
    /// The moving average of run times, in seconds.
    #[serde(default)]
    pub avg_completion_time: Option<f64>,
    /// When it was last heard from.
    #[serde(default)]
    pub last_seen: Option<Timestamp>,
    /// Failures since the last success.
    #[serde(default)]
    pub consecutive_failures: u64,
    /// Further fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}
