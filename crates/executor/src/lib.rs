//! Runs tasks: programs in a sandbox, and a few builtin models.
//!
//! [`Executor::start`] starts an [`Attempt`] and returns a [`RunHandle`]: its events, a way to cancel it, and
//! its [`RunOutcome`]. How many run at once, and on which devices, was decided before.

mod bridge;
mod builtin;
pub mod launcher;
mod outcome;
mod process;
mod running;

use hypha_model::{AttemptId, InputKind, Name, Payload};

pub use outcome::{RunError, RunFailure, RunOutcome};
pub use process::{
    Confinement, Launcher, Limits, OpenError, Process, ProcessConfig, Sandbox, SandboxError,
};
pub use running::{Canceller, RunEvent, RunHandle};

/// An attempt to run.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Its id, which the program is given.
    pub id: AttemptId,
    /// The requested model.
    pub model: Name,
    /// Its input.
    pub input: Payload,
    /// The format of the input.
    pub form: InputKind,
    /// The GPUs it may use, as the ledger numbers them.
    pub devices: Vec<u32>,
    /// The CPUs it may use; empty means any.
    pub cpus: Vec<usize>,
    /// How much memory it and its children may use together; `None` applies the executor's own limit.
    pub memory_bytes: Option<u64>,
    /// Whether its output is sent piece by piece, as [`RunEvent::Output`], besides the result at its end.
    pub stream: bool,
}

/// A way to run attempts.
#[derive(Clone, Debug)]
pub enum Executor {
    /// Part of the worker; the attempt's model selects which.
    Builtin,
    /// A program: one process per attempt, or a few that are kept warm. Dropping the last handle cancels all
    /// of its attempts.
    Process(Process),
}

impl Executor {
    /// Starts `attempt`. Must be called inside a tokio runtime. Dropping the handle cancels the attempt.
    pub fn start(&self, attempt: Attempt) -> RunHandle {
        match self {
            Executor::Builtin => builtin::start(attempt),
            Executor::Process(process) => process.start(attempt),
        }
    }

    /// The outcome of an attempt that needs no waiting, without the machinery of [`Executor::start`]; `None`
    /// if it must be started.
    pub fn run_at_once(&self, attempt: &Attempt) -> Option<RunOutcome> {
        match self {
            Executor::Builtin => builtin::run_at_once(attempt),
            Executor::Process(_) => None,
        }
    }

    /// Cancels every attempt of a program, stops its warm processes, and returns when all of them are gone.
    /// Attempts that are started later are cancelled at once. Builtin models end with their [`RunHandle`].
    pub async fn stop(&self) {
        match self {
            Executor::Builtin => {}
            Executor::Process(process) => process.stop().await,
        }
    }
}
