//! The status of a task instance and of its tasks, and their JSON.

use hypha_model::{Metadata, Payload, Span};
use serde::Serialize;
use thiserror::Error;
use utoipa::ToSchema;

/// The status of a task instance; the body of `/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct InstanceStatus {
    /// Distinguishes this instance from others.
    pub instance_id: String,
    /// The model that it serves.
    pub model_type: String,
    /// How many tasks it runs at once.
    pub replicas_running: u32,
    /// How many tasks it has that have not ended.
    pub queue_size: u32,
    /// Whether it accepts tasks.
    pub status: InstanceHealth,
}

/// Whether an instance accepts tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum InstanceHealth {
    /// It accepts tasks.
    Running,
    /// It finishes its tasks and accepts no new ones.
    Stopping,
    /// None of its executors works.
    Failed,
}

/// A task for the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct EnqueueRequest {
    /// The input of the executor, as JSON.
    pub input: Payload,
    /// Features for predicting its run time.
    pub metadata: Metadata,
    /// The name of the task; the instance chooses one if there is none.
    pub task_id: Option<String>,
    /// The address to notify at its end. Only its form is checked: the code that calls it must check that the
    /// address is allowed.
    pub callback_url: Option<String>,
}

/// A task was queued; the response of `/queue/enqueue`.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EnqueueResponse {
    /// The name under which its result is found.
    pub task_id: String,
    /// How many tasks have not ended, including this one.
    pub queue_size: u32,
    /// When, in seconds since 1970.
    pub enqueue_time: f64,
}

/// Why a task was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnqueueError {
    /// The queue is full.
    #[error("the queue is full; try again later, or elsewhere")]
    QueueFull {
        /// When to retry, in seconds.
        retry_after_s: u32,
    },
    /// It cannot run here.
    #[error("{0}")]
    Invalid(String),
    /// Nothing can be run here at present.
    #[error("{0}")]
    Unavailable(String),
}

/// The result of a task, or its state.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceResult {
    /// Its name.
    pub task_id: String,
    /// Its state.
    pub stage: InstanceTaskState,
}

/// The state of a task of an instance.
#[derive(Clone, Debug, PartialEq)]
pub enum InstanceTaskState {
    /// It waits.
    Queued,
    /// It runs.
    Running,
    /// It has completed.
    Completed {
        /// The result; shown as `{"base64": …}` if it is not JSON.
        result: Payload,
        /// How long it ran.
        run: Span,
    },
    /// It has failed.
    Failed {
        /// The error.
        error: String,
        /// How long it ran.
        run: Span,
    },
}
