//! How an attempt ended.

use hypha_model::{FailureKind, Payload, TaskError};
use thiserror::Error;

/// How an attempt ended. Whatever it started is gone by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// With a result.
    Completed {
        /// The result.
        payload: Payload,
    },
    /// Without one.
    Failed(RunFailure),
    /// It was told to stop.
    Cancelled,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// What went wrong.
    pub error: RunError,
    /// The last that the attempt wrote, bounded; empty if it wrote nothing.
    pub output: String,
}

/// What went wrong with an attempt.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// No builtin has this name.
    #[error("there is no builtin model `{0}`: use `echo`, `sleep` or `burn`")]
    UnknownModel(String),
    /// The input is not what the model takes.
    #[error("the input is not what the model takes: {0}")]
    Input(String),
    /// The program said that it failed.
    #[error("the program ended with exit code {0}")]
    Exit(i32),
    /// The program was ended by a signal that we did not send.
    #[error("the program was ended by signal {0}")]
    Signal(i32),
    /// It took more memory than it may.
    #[error(
        "the program used {used_bytes} bytes of memory and may use {limit_bytes}: \
         ask for more memory or make it smaller"
    )]
    Memory {
        /// What it and its children used together.
        used_bytes: u64,
        /// What they may.
        limit_bytes: u64,
    },
    /// It started more processes than it may.
    #[error("the program started {count} processes and may start {limit}")]
    Processes {
        /// How many there were at once.
        count: u64,
        /// How many there may be.
        limit: u64,
    },
    /// The program said over the bridge what went wrong.
    #[error("the program failed: {0}")]
    Reported(String),
    /// A program that is kept warm ended well in the middle of an attempt.
    #[error(
        "the program ended without a result: one that is kept warm asks for the next attempt and goes on"
    )]
    NoResult,
    /// The result does not fit.
    #[error("the result is larger than the limit of {limit_bytes} bytes")]
    ResultTooLarge {
        /// What is taken.
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
    /// What it is for programs. The one place where errors of executors become failures of tasks.
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
