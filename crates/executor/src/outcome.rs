//! How an attempt ended.

use hypha_model::{FailureKind, Payload, TaskError};
use thiserror::Error;

/// How an attempt ended. All of its processes are gone by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// With a result.
    Completed {
        /// The result.
        payload: Payload,
    },
    /// Without one.
    Failed(RunFailure),
    /// It was cancelled.
    Cancelled,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// The error.
    pub error: RunError,
    /// The end of its output, bounded; empty if it wrote nothing.
    pub output: String,
}

/// The error of an attempt.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// No builtin model has this name.
    #[error("there is no builtin model `{0}`: use `echo`, `sleep` or `burn`")]
    UnknownModel(String),
    /// The model refuses the input.
    #[error("the model does not accept this input: {0}")]
    Input(String),
    /// The program ended with an exit code other than zero.
    #[error("the program ended with exit code {0}")]
    Exit(i32),
    /// A signal that we did not send killed the program.
    #[error("the program was ended by signal {0}")]
    Signal(i32),
    /// It used more memory than allowed.
    #[error(
        "the program used {used_bytes} bytes of memory and may use {limit_bytes}: \
         request more memory or reduce its use"
    )]
    Memory {
        /// The memory that it and its children used together.
        used_bytes: u64,
        /// Their limit.
        limit_bytes: u64,
    },
    /// It started more processes than allowed.
    #[error("the program started {count} processes and may start {limit}")]
    Processes {
        /// How many there were at once.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// The program reported an error over the bridge.
    #[error("the program failed: {0}")]
    Reported(String),
    /// A warm program exited without an error in the middle of an attempt.
    #[error(
        "the program ended without a result: a warm program must request the next attempt instead of exiting"
    )]
    NoResult,
    /// The result exceeds its limit.
    #[error("the result is larger than the limit of {limit_bytes} bytes")]
    ResultTooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// The worker could not run it.
    #[error("the worker could not run the program: {0}")]
    Worker(String),
}

impl RunFailure {
    pub(crate) fn without_output(error: RunError) -> RunFailure {
        RunFailure { error, output: String::new() }
    }
}

impl RunError {
    /// Its kind, for programs. The only place where errors of executors become failures of tasks.
    pub fn kind(&self) -> FailureKind {
        match self {
            RunError::UnknownModel(_) | RunError::Input(_) => FailureKind::InvalidInput,
            RunError::Exit(_)
            | RunError::Signal(_)
            | RunError::Reported(_)
            | RunError::NoResult => FailureKind::ProgramFailed,
            RunError::Memory { .. }
            | RunError::Processes { .. }
            | RunError::ResultTooLarge { .. } => FailureKind::LimitExceeded,
            RunError::Worker(_) => FailureKind::WorkerFailed,
        }
    }
}

impl From<RunFailure> for TaskError {
    fn from(failure: RunFailure) -> TaskError {
        let kind = failure.error.kind();
        TaskError::new(
            kind,
            match failure.output.is_empty() {
                true => failure.error.to_string(),
                false => format!("{}: {}", failure.error, failure.output.trim_end()),
            },
        )
    }
}

impl From<RunError> for RunOutcome {
    fn from(error: RunError) -> RunOutcome {
        RunOutcome::Failed(RunFailure::without_output(error))
    }
}
