//! The notification that a task instance sends at the end of a task.

use hypha_model::Payload;

/// A notification as it was received. Its secret decides whether it is trusted.
#[derive(Clone, Debug, Default)]
pub struct InstanceNotification {
    /// The id of the task: ours, or the instance's own.
    pub task: String,
    /// The secret of the attempt, if the URL that was called had one.
    pub secret: Option<String>,
    /// `completed` or `failed`.
    pub status: Option<String>,
    /// The result as JSON, if it is included.
    pub result: Option<Payload>,
    /// What went wrong.
    pub error: Option<String>,
    /// How long it ran, in milliseconds.
    pub execution_time_ms: Option<f64>,
}
