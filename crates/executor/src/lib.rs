//! Runs what a task asks for: programs in a sandbox, and a few models that are built in.
//!
//! [`Executor::start`] begins a [`Job`] and hands back a [`Running`]: what it reports on its way, a way to cancel
//! it, and its [`Outcome`]. How many run at once, and on which devices, was decided before.

mod bridge;
mod builtin;
pub mod launcher;
mod outcome;
mod process;
mod running;

use hypha_model::{AttemptId, Form, Name, Payload};

pub use outcome::{Failure, JobError, Outcome};
pub use process::{Confinement, Launcher, Limits, OpenError, Process, ProcessConfig};
pub use running::{Canceller, Event, Running};

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The attempt that it is, for the program to know.
    pub id: AttemptId,
    /// The model that was asked for.
    pub model: Name,
    /// What it is given.
    pub input: Payload,
    /// How the input is to be read.
    pub form: Form,
    /// The GPUs it may use, as the ledger numbers them.
    pub devices: Vec<u32>,
    /// The CPUs it may use; empty means any.
    pub cpus: Vec<usize>,
    /// How much memory it and all that it starts may use together; none leaves it to the executor's own limit.
    pub memory_bytes: Option<u64>,
    /// Whether its output is wanted piece by piece, as [`Event::Output`], besides the result at its end.
    pub stream: bool,
}

/// One way to run jobs.
#[derive(Clone, Debug)]
pub enum Executor {
    /// Part of the worker; the job's model says which.
    Builtin,
    /// A program: one process a job, or a few that are kept warm. Dropping the last handle ends all of its jobs.
    Process(Process),
}

impl Executor {
    /// Begins `job`. Must be called inside a tokio runtime. Dropping what is returned cancels the job.
    pub fn start(&self, job: Job) -> Running {
        match self {
            Executor::Builtin => builtin::start(job),
            Executor::Process(process) => process.start(job),
        }
    }

    /// The outcome of a job that needs no waiting, without any of the machinery of [`Executor::start`]; none if
    /// it must be started.
    pub fn run_at_once(&self, job: &Job) -> Option<Outcome> {
        match self {
            Executor::Builtin => builtin::run_at_once(job),
            Executor::Process(_) => None,
        }
    }

    /// Cancels every job of a program, ends what is kept warm, and returns when all of it is gone. Jobs that are
    /// started later are cancelled at once. What is built in ends with its [`Running`].
    pub async fn stop(&self) {
        match self {
            Executor::Builtin => {}
            Executor::Process(process) => process.stop().await,
        }
    }
}
