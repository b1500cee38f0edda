//! What the surfaces need of a scheduler. The node gives it; the tests have one in memory.

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

/// Something that is answered later, or not at all.
pub type ServiceFuture<T> = BoxFuture<'static, Result<T, ServiceUnavailable>>;

/// A scheduler, as the surfaces see it.
pub trait SchedulerApi: Send + Sync + 'static {
    /// The time that the scheduler goes by.
    fn now(&self) -> Time;

    /// Asks the scheduler. The answer comes when what it relies on is durable.
    fn execute(&self, command: Command) -> ServiceFuture<Reply>;

    /// Submits tasks, and watches each that is accepted if `watch`, without missing anything of it.
    fn submit(&self, tasks: Vec<NewTask>, watch: bool) -> ServiceFuture<Vec<SubmitResult>>;

    /// Watches a task from now on. Of one that has ended nothing will come: look first at [`SchedulerApi::stored`]
    /// *after* this call.
    fn watch(&self, task: TaskId) -> Watch;

    /// Reads the scheduler's machine as it is now, for as short as possible: everybody else waits.
    fn read(&self, look: &mut dyn FnMut(&Scheduler, Time));

    /// A task as it is on the disk. Of tasks that have not ended, the machine knows more.
    fn stored(&self, task: TaskId) -> ServiceFuture<Option<StoredTask>>;

    /// Tasks on the disk, the latest first, from behind `behind` on
    /// ([`list`](hypha_engine::SchedulerStore::list) of the store).
    fn list(&self, filter: Filter, behind: Option<TaskId>, limit: usize) -> ServiceFuture<Page>;

    /// The result of `task`, if it was too large to be kept with it, in pieces. Nothing is given whose bytes are not what
    /// the digest says. Whether somebody may read it is for the caller of this to know.
    fn object(&self, task: TaskId, object: ObjectRef) -> ObjectFuture;

    /// Looks whether there is a healthy task instance, and takes it as a worker.
    fn register_instance(&self, host: String, port: u16) -> RegisterFuture;

    /// Looks whether there is a healthy HTTP server that does the work of a model, and takes it as a worker.
    fn register_back_end(&self, server: NewBackEnd) -> RegisterFuture;

    /// A task instance says that it is done with a task. What this does not prove is looked up there.
    fn deliver_notification(&self, notification: InstanceNotification);

    /// What the worker's certificate calls it, if that is known.
    fn worker_name(&self, _worker: WorkerId) -> Option<String> {
        None
    }

    /// Why this scheduler should get no requests at present; nothing if it should.
    fn problems(&self) -> Vec<String>;

    /// The metrics in the text format of Prometheus.
    fn metrics(&self) -> String;
}

/// A worker is being looked at.
pub type RegisterFuture = BoxFuture<'static, Result<WorkerId, RegisterError>>;

/// What became of a submitted task.
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

/// An object is being looked at.
pub type ObjectFuture = BoxFuture<'static, Result<Option<Object>, ObjectError>>;

/// Why an object cannot be given.
#[derive(Clone, Debug, Error)]
pub enum ObjectError {
    /// What is on the disk is not what was put there.
    #[error(
        "the bytes of this result have changed on the scheduler's disk, and are not given; submit the task again"
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
    /// The models that it serves; none to ask the server.
    pub models: Vec<Name>,
    /// Whether it speaks OpenAI's protocol, or takes any JSON.
    pub openai: bool,
    /// How many requests it gets at once.
    pub concurrency: u32,
    /// What it wants as a bearer token.
    pub api_key: Option<String>,
}

/// Why a worker was not registered.
#[derive(Clone, Debug, Error)]
pub enum RegisterError {
    /// It is not to be looked at.
    #[error(
        "{0} is outside of the allowed networks; an operator may add it to allowed_networks in [scheduler.api]"
    )]
    NotAllowed(IpAddr),
    /// What was given makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Nobody is there, or nobody healthy.
    #[error("{0}")]
    Unhealthy(String),
    /// It was taken, and could not be recorded.
    #[error(transparent)]
    Unavailable(#[from] ServiceUnavailable),
}
