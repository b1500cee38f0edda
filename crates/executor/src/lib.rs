//! Runs what a task asks for: programs in a sandbox, and a few models that are built in.
//!
//! [`Executor::start`] begins an [`Attempt`] and hands back a [`RunHandle`]: what it reports on its way, a way to cancel
//! it, and its [`RunOutcome`]. How many run at once, and on which devices, was decided before.

mod bridge;
mod builtin;
pub mod launcher;
mod outcome;
mod process;
mod running;

use hypha_model::{AttemptId, InputKind, Name, Payload};

pub use outcome::{RunError, RunFailure, RunOutcome};
pub use process::{Confinement, Launcher, Limits, OpenError, Process, ProcessConfig};
pub use running::{Canceller, RunEvent, RunHandle};

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The attempt that it is, for the program to know.
    pub id: AttemptId,
    /// The model that was asked for.
    pub model: Name,
    /// What it is given.
    pub input: Payload,
    /// How the input is to be read.
    pub form: InputKind,
    /// The GPUs it may use, as the ledger numbers them.
    pub devices: Vec<u32>,
    /// The CPUs it may use; empty means any.
    pub cpus: Vec<usize>,
    /// How much memory it and all that it starts may use together; none leaves it to the executor's own limit.
    pub memory_bytes: Option<u64>,
    /// Whether its output is wanted piece by piece, as [`RunEvent::Output`], besides the result at its end.
    pub stream: bool,
}

/// One way to run attempts.
#[derive(Clone, Debug)]
pub enum Executor {
    /// Part of the worker; the attempt's model says which.
    Builtin,
    /// A program: one process an attempt, or a few that are kept warm. Dropping the last handle ends all of its attempts.
    Process(Process),
}

impl Executor {
    /// Begins `attempt`. Must be called inside a tokio runtime. Dropping what is returned cancels the attempt.
    pub fn start(&self, attempt: Attempt) -> RunHandle {
        match self {
            Executor::Builtin => builtin::start(attempt),
            Executor::Process(process) => process.start(attempt),
        }
    }

    /// The outcome of an attempt that needs no waiting, without any of the machinery of [`Executor::start`]; none if
    /// it must be started.
    pub fn run_at_once(&self, attempt: &Attempt) -> Option<RunOutcome> {
        match self {
            Executor::Builtin => builtin::run_at_once(attempt),
            Executor::Process(_) => None,
        }
    }

    /// Cancels every attempt of a program, ends what is kept warm, and returns when all of it is gone. Attempts that are
    /// started later are cancelled at once. What is built in ends with its [`RunHandle`].
    pub async fn stop(&self) {
        match self {
            Executor::Builtin => {}
            Executor::Process(process) => process.stop().await,
        }
    }
}
