//! What a task instance says, unasked, at the end of a task.

use hypha_model::Payload;

/// See the head of this file. Whether it is believed is decided by its secret.
#[derive(Clone, Debug, Default)]
pub struct InstanceNotification {
    /// The id of the task: ours, or the instance's own.
    pub task: String,
    /// The secret of the attempt, if the address that was called had one.
    pub secret: Option<String>,
    /// `completed` or `failed`.
    pub status: Option<String>,
    /// The result as JSON, if it is there.
    pub result: Option<Payload>,
    /// What went wrong.
    pub error: Option<String>,
    /// How long it ran, in milliseconds.
    pub execution_time_ms: Option<f64>,
}
