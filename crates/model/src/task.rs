//! A request for one result, and its states.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::metadata::Metadata;
use crate::name::Name;
use crate::payload::Payload;
use crate::requirement::{Requirement, is_default};
use crate::time::Span;

/// What a client requests. Serialised, it holds only what differs from the default: it is stored, and sent to workers,
/// many times a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskSpec {
    /// The requirements on the worker, and the model.
    #[serde(skip_serializing_if = "is_default")]
    pub requirement: Requirement,
    /// The input of the executor.
    #[serde(skip_serializing_if = "is_default")]
    pub input: Payload,
    /// Metadata for the predictor.
    #[serde(skip_serializing_if = "is_default")]
    pub metadata: Metadata,
    /// On whose behalf.
    #[serde(skip_serializing_if = "is_default")]
    pub tenant: Option<Name>,
    /// How long one attempt may take; the scheduler's `task_timeout` if `None`.
    #[serde(skip_serializing_if = "is_default")]
    pub timeout: Option<Span>,
    /// How to read the input.
    #[serde(skip_serializing_if = "is_default")]
    pub form: InputKind,
    /// Whether the result is delivered piece by piece, as it is produced.
    #[serde(skip_serializing_if = "is_default")]
    pub stream: bool,
}

/// Multiplied by the waiting tasks, this is part of the memory of a long queue: an addition here must be worth it.
const _: () = assert!(size_of::<TaskSpec>() <= 200);

/// How to read an input, and so which request an executor sends to its back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputKind {
    /// Any JSON; its meaning is up to the executor.
    #[default]
    Task,
    /// The body of `/v1/chat/completions`.
    Chat,
    /// The body of `/v1/completions`.
    Completion,
    /// The body of `/v1/embeddings`.
    Embedding,
}

/// The state of a task.
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
    /// A client or an operator cancelled it.
    Cancelled,
    /// The deadline passed first.
    Expired,
}

impl TaskState {
    /// Whether the task will not change any more.
    pub const fn is_final(self) -> bool {
        !matches!(self, TaskState::Queued | TaskState::Scheduled | TaskState::Running)
    }

    /// All states, in the order of a task's life cycle.
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
    type Err = UnknownTaskState;
    fn from_str(text: &str) -> Result<TaskState, UnknownTaskState> {
        TaskState::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| UnknownTaskState(text.chars().take(64).collect()))
    }
}

/// A state that does not exist.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a task state: use one of {known}", known = TaskState::ALL.map(TaskState::as_str).join(", "))]
pub struct UnknownTaskState(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_one_word_everywhere() {
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

    /// Each field, with its default and with another value.
    #[test]
    fn defaults_are_not_written_and_read_as_defaults() {
        let unusual = TaskSpec {
            requirement: Requirement {
                model: "llama".parse().ok(),
                class: crate::ExecutorClass::Train,
                executor: "fast".parse().ok(),
                cpu_milli: 1,
                memory_bytes: 2,
                storage_bytes: 3,
                min_gpus: 4,
                gpu_memory_bytes: 5,
                milli_gpu: 0,
                gpu_ids: crate::GpuIds::default().with(9).unwrap(),
                estimated_time: Some(Span::ZERO),
                priority: crate::Priority::from_milli(-1),
                deadline: Some(Span::from_secs(6)),
                deadline_policy: crate::DeadlinePolicy::Refuse,
                maximise: Some(crate::Maximise::Speed),
            },
            input: Payload::from(&b"in"[..]),
            metadata: Metadata::of_numbers(&[("tokens", 7.0)]),
            tenant: "acme".parse().ok(),
            timeout: Some(Span::from_secs(8)),
            form: InputKind::Chat,
            stream: true,
        };
        let written = serde_json::to_value(&unusual).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().len();
        assert_eq!((keys(&written), keys(&written["requirement"])), (7, 15));
        assert_eq!(serde_json::from_value::<TaskSpec>(written).unwrap(), unusual);
        let usual = serde_json::to_string(&TaskSpec::default()).unwrap();
        assert_eq!(usual, "{}");
        assert_eq!(serde_json::from_str::<TaskSpec>(&usual).unwrap(), TaskSpec::default());
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
