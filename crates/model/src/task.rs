//! A request for one result, and the states that it goes through.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::metadata::Metadata;
use crate::name::Name;
use crate::payload::Payload;
use crate::requirement::Requirement;
use crate::time::Span;

/// What a client asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// What the worker must have, and the model.
    pub requirement: Requirement,
    /// What the executor is given.
    pub input: Payload,
    /// What the predictor is told.
    pub metadata: Metadata,
    /// On whose behalf.
    pub tenant: Option<Name>,
    /// How long one attempt may take; the scheduler's `task_timeout` if not said.
    pub timeout: Option<Span>,
}

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// Accepted, not bound to a worker.
    Queued,
    /// Bound to a worker.
    Scheduled,
    /// The worker has started it.
    Running,
    /// There is a result.
    Completed,
    /// No attempt succeeded.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
    /// The deadline passed first.
    Expired,
}

impl TaskState {
    /// Whether the task will not change any more.
    pub const fn is_final(self) -> bool {
        !matches!(self, TaskState::Queued | TaskState::Scheduled | TaskState::Running)
    }

    /// All states, in the order of a task's life.
    pub const ALL: [TaskState; 7] = [
        TaskState::Queued,
        TaskState::Scheduled,
        TaskState::Running,
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Cancelled,
        TaskState::Expired,
    ];

    /// The word that users see.
    pub const fn as_str(self) -> &'static str {
        match self {
            TaskState::Queued => "queued",
            TaskState::Scheduled => "scheduled",
            TaskState::Running => "running",
            TaskState::Completed => "completed",
            TaskState::Failed => "failed",
            TaskState::Cancelled => "cancelled",
            TaskState::Expired => "expired",
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TaskState {
    type Err = UnknownState;
    fn from_str(text: &str) -> Result<TaskState, UnknownState> {
        TaskState::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| UnknownState(text.chars().take(64).collect()))
    }
}

/// A state that does not exist.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a task state: use one of {known}", known = TaskState::ALL.map(TaskState::as_str).join(", "))]
pub struct UnknownState(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_one_word_everywhere() {
        for state in TaskState::ALL {
            assert_eq!(state.to_string().parse(), Ok(state));
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(json, format!("\"{state}\""));
        }
        let error = "done".parse::<TaskState>().unwrap_err();
        assert!(
            error.to_string().starts_with("`done` is not a task state: use one of queued,"),
            "{error}"
        );
    }

    #[test]
    fn four_states_are_final() {
        let open = TaskState::ALL.into_iter().filter(|state| !state.is_final());
        assert_eq!(
            open.collect::<Vec<_>>(),
            [TaskState::Queued, TaskState::Scheduled, TaskState::Running]
        );
    }
}
