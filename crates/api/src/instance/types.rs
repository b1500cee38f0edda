//! What a task instance says of itself and of its tasks, and the JSON of it.

use hypha_model::{Metadata, Payload, Span};
use serde::Serialize;
use thiserror::Error;
use utoipa::ToSchema;

/// How a task instance is; the body of `/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct InstanceStatus {
    /// Tells this instance from others.
    pub instance_id: String,
    /// The model that it serves.
    pub model_type: String,
    /// How many tasks it runs at once.
    pub replicas_running: u32,
    /// How many tasks it has that are not done.
    pub queue_size: u32,
    /// Whether it takes tasks.
    pub status: InstanceHealth,
}

/// Whether an instance takes tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum InstanceHealth {
    /// It does.
    Running,
    /// It finishes what it has.
    Stopping,
    /// Nothing that it could run tasks with works.
    Failed,
}

/// A task to be taken into the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct EnqueueRequest {
    /// The JSON that the executor is given.
    pub input: Payload,
    /// What is said about its run time.
    pub metadata: Metadata,
    /// The name of the task; the instance chooses one if there is none.
    pub task_id: Option<String>,
    /// Where to say that it is done. Not checked but for its form: whoever calls it must look whether the
    /// address is allowed.
    pub callback_url: Option<String>,
}

/// A task was taken; the answer of `/queue/enqueue`.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EnqueueResponse {
    /// The name by which its result is found.
    pub task_id: String,
    /// How many tasks are not done, with this one.
    pub queue_size: u32,
    /// When, in seconds since 1970.
    pub enqueue_time: f64,
}

/// Why a task was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnqueueError {
    /// There is no room.
    #[error("the queue is full; try again later, or elsewhere")]
    QueueFull {
        /// When to try again, in seconds.
        retry_after_s: u32,
    },
    /// It cannot be run here.
    #[error("{0}")]
    Invalid(String),
    /// Nothing can be run here at present.
    #[error("{0}")]
    Unavailable(String),
}

/// What came of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceResult {
    /// Its name.
    pub task_id: String,
    /// Where it is.
    pub stage: InstanceTaskState,
}

/// Where a task of an instance is.
#[derive(Clone, Debug, PartialEq)]
pub enum InstanceTaskState {
    /// It waits.
    Queued,
    /// It runs.
    Running,
    /// There is a result.
    Completed {
        /// The result; shown as `{"base64": …}` if it is not JSON.
        result: Payload,
        /// How long it ran.
        run: Span,
    },
    /// There is none, and will be none.
    Failed {
        /// What went wrong.
        error: String,
        /// How long it ran.
        run: Span,
    },
}
