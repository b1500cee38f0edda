//! The HTTP API of a scheduler, from Rust.
//!
//! ```no_run
//! use hypha_client::{Requirements, Scheduler, Task, TaskInput, TaskKey};
//!
//! # async fn example(prompt: String) -> Result<(), hypha_client::ClientError> {
//! let scheduler = Scheduler::connect("http://127.0.0.1:8080", None)?;
//!
//! let task = Task {
//!     key: TaskKey::new(),
//!     model: "llama-2-7b".into(),
//!     input: TaskInput::Text(prompt),
//!     requirements: Requirements {
//!         min_memory: 16_000_000_000, // 16 GB
//!         gpu_required: true,
//!         cpu_cores: 4,
//!         ..Requirements::default()
//!     },
//!     ..Task::default()
//! };
//!
//! let submitted = scheduler.submit_task(task).await?;
//! println!("{} is {}", submitted.id, submitted.status);
//! # Ok(())
//! # }
//! ```
//!
//! The scheduler assigns each task its id. The key identifies the client's submission: after a lost
//! connection the same submission is retried and cannot become a second task.

mod download;
mod error;
mod events;
mod http;
mod jobs;
mod json;
mod requirements;
mod scheduler;
mod sse;
mod status;
mod task;
mod task_status;
mod timestamp;
mod workers;

pub use download::Download;
pub use error::ClientError;
pub use events::{Event, EventKind, Events};
pub use http::{MAX_RESPONSE_BYTES, Options};
pub use hypha_model::{FailureKind, JobId, TaskId, TaskState, WorkerId};
pub use jobs::{
    JobEvents, JobMember, JobPage, JobRole, JobState, JobStatus, Ledger, LedgerEntry, Market,
    MarketEvent,
};
pub use json::Json;
pub use requirements::Requirements;
pub use scheduler::{MAX_WAIT, Scheduler, TaskPages};
pub use status::{Explanation, SchedulerStatus, TaskFilter, TaskPage, Verdict};
pub use task::{Task, TaskError, TaskInput, TaskKey};
pub use task_status::{FailedAttempt, TaskStatus};
pub use timestamp::Timestamp;
pub use workers::{
    DrainingWorker, ReadmittedWorker, RemovedWorker, WorkerHealth, WorkerList, WorkerStatus,
};
