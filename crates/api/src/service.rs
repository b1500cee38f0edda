//! What the HTTP APIs need of a scheduler. The node implements it; the tests have an implementation in
//! memory.

use std::net::IpAddr;

use futures::future::BoxFuture;
use hypha_engine::record::StoredTask;
use hypha_engine::store::{Filter, Page};
use hypha_engine::{
    Command, InstanceNotification, NewTask, Reply, Scheduler, SubmitRejection, Submitted,
};
use hypha_model::{Name, ObjectRef, TaskId, Time, WorkerId};
use thiserror::Error;

use crate::watch::Watch;

/// A future that resolves later, or never.
pub type ServiceFuture<T> = BoxFuture<'static, Result<T, ServiceUnavailable>>;

/// A scheduler, as the HTTP APIs see it.
pub trait SchedulerApi: Send + Sync + 'static {
    /// The scheduler's clock.
    fn now(&self) -> Time;

    /// Sends a command to the scheduler. The reply comes when what it relies on is durable.
    fn execute(&self, command: Command) -> ServiceFuture<Reply>;

    /// Submits tasks, and watches each accepted one if `watch`, without missing any notice about it.
    fn submit(&self, tasks: Vec<NewTask>, watch: bool) -> ServiceFuture<Vec<SubmitResult>>;

    /// Watches a task from now on. A task that has ended sends no notices: look at [`SchedulerApi::stored`]
    /// *after* this call.
    fn watch(&self, task: TaskId) -> Watch;

    /// Changes whenever a job does: its state, its members or their progress.
    fn job_changes(&self) -> JobChanges;

    /// Reads the scheduler's machine in its present state. Keep it short: all other requests wait.
    fn read(&self, look: &mut dyn FnMut(&Scheduler, Time));

    /// A task as it is on the disk. The machine knows more about tasks that have not ended.
    fn stored(&self, task: TaskId) -> ServiceFuture<Option<StoredTask>>;

    /// Tasks on the disk, the latest first, starting after `behind`
    /// ([`list`](hypha_engine::SchedulerStore::list) of the store).
    fn list(&self, filter: Filter, behind: Option<TaskId>, limit: usize) -> ServiceFuture<Page>;

    /// The result of `task`, if it was too large to be kept with it, in pieces. Bytes that do not match the
    /// digest are never returned. The caller checks whether the client may read it.
    fn object(&self, task: TaskId, object: ObjectRef) -> ObjectFuture;

    /// Checks that a healthy task instance answers, and registers it as a worker. It must serve `model`, if that is
    /// given.
    fn register_instance(&self, host: String, port: u16, model: Option<Name>) -> RegisterFuture;

    /// The task instance that was registered at this address.
    fn instance_at(&self, host: &str, port: u16) -> Option<WorkerId>;

    /// Checks that a healthy back end answers, and registers it as a worker.
    fn register_back_end(&self, server: NewBackEnd) -> RegisterFuture;

    /// Whether this is the secret of an attempt at a task instance that has not ended.
    fn knows_secret(&self, secret: &str) -> bool;

    /// A task instance reports the end of a task. Claims that this does not prove are verified at the
    /// instance.
    fn deliver_notification(&self, notification: InstanceNotification);

    /// The name in the worker's certificate, if it is known.
    fn worker_name(&self, _worker: WorkerId) -> Option<String> {
        None
    }

    /// Why this scheduler should get no requests at present; empty if it should.
    fn problems(&self) -> Vec<String>;

    /// The metrics in the text format of Prometheus.
    fn metrics(&self) -> String;
}

/// Counts the changes of all jobs.
pub type JobChanges = tokio::sync::watch::Receiver<u64>;

/// A registration in progress.
pub type RegisterFuture = BoxFuture<'static, Result<WorkerId, RegisterError>>;

/// The outcome of a submitted task.
pub type SubmitResult = Result<(Submitted, Option<Watch>), SubmitRejection>;

/// The scheduler cannot acknowledge anything at present: its store fails, or it stops.
#[derive(Clone, Debug, Error)]
#[error("{0}")]
pub struct ServiceUnavailable(pub String);

/// A large result.
pub struct Object {
    /// Its size.
    pub bytes: u64,
    /// Its pieces, in order.
    pub pieces: futures::stream::BoxStream<'static, std::io::Result<bytes::Bytes>>,
}

/// A read of an object in progress.
pub type ObjectFuture = BoxFuture<'static, Result<Option<Object>, ObjectError>>;

/// Why an object cannot be returned.
#[derive(Clone, Debug, Error)]
pub enum ObjectError {
    /// The bytes on the disk are not those that were stored.
    #[error(
        "the bytes of this result have changed on the scheduler's disk, and are not returned; submit the task again"
    )]
    Corrupt,
    /// The disk cannot be read at present.
    #[error(transparent)]
    Unavailable(#[from] ServiceUnavailable),
}

/// An HTTP server to be registered.
#[derive(Clone, Debug)]
pub struct NewBackEnd {
    /// Its base address, such as `http://127.0.0.1:8000`.
    pub url: String,
    /// The models that it serves; if empty, the server is queried for them.
    pub models: Vec<Name>,
    /// Whether it speaks OpenAI's protocol, or accepts any JSON.
    pub openai: bool,
    /// How many requests it gets at once.
    pub concurrency: u32,
    /// The bearer token that it requires.
    pub api_key: Option<String>,
}

/// Why a worker was not registered.
#[derive(Clone, Debug, Error)]
pub enum RegisterError {
    /// Its address is not allowed.
    #[error(
        "{0} is outside of the allowed networks; an operator may add it to allowed_networks in [scheduler.api]"
    )]
    NotAllowed(IpAddr),
    /// The registration is invalid.
    #[error("{0}")]
    Invalid(String),
    /// No server answers there, or it is unhealthy.
    #[error("{0}")]
    Unhealthy(String),
    /// It was accepted, and could not be recorded.
    #[error(transparent)]
    Unavailable(#[from] ServiceUnavailable),
}
