//! A scheduler in memory that accepts at once, and replies when the gate opens.

use std::sync::Arc;

use futures::FutureExt;
use hypha_api::{
    NewBackEnd, ObjectFuture, RegisterFuture, SchedulerApi, ServiceFuture, SubmitResult, Watch,
};
use hypha_engine::record::StoredTask;
use hypha_engine::store::{Filter, Page};
use hypha_engine::{Command, InstanceNotification, NewTask, Reply, Scheduler};
use hypha_model::{Name, ObjectRef, TaskId, Time, WorkerId};
use tokio::sync::Semaphore;

use crate::memory::Memory;

/// See the module documentation.
pub(crate) struct GatedScheduler {
    pub(crate) memory: Arc<Memory>,
    pub(crate) gate: Arc<Semaphore>,
}

impl SchedulerApi for GatedScheduler {
    fn submit(&self, tasks: Vec<NewTask>, watch: bool) -> ServiceFuture<Vec<SubmitResult>> {
        let accepted = self.memory.submit(tasks, watch);
        let gate = Arc::clone(&self.gate);
        async move {
            drop(gate.acquire().await);
            accepted.await
        }
        .boxed()
    }
    fn now(&self) -> Time {
        self.memory.now()
    }
    fn execute(&self, command: Command) -> ServiceFuture<Reply> {
        self.memory.execute(command)
    }
    fn watch(&self, task: TaskId) -> Watch {
        SchedulerApi::watch(&*self.memory, task)
    }
    fn job_changes(&self) -> hypha_api::JobChanges {
        self.memory.job_changes()
    }

    fn read(&self, look: &mut dyn FnMut(&Scheduler, Time)) {
        self.memory.read(look);
    }
    fn stored(&self, task: TaskId) -> ServiceFuture<Option<StoredTask>> {
        self.memory.stored(task)
    }
    fn list(&self, filter: Filter, behind: Option<TaskId>, limit: usize) -> ServiceFuture<Page> {
        self.memory.list(filter, behind, limit)
    }
    fn object(&self, task: TaskId, object: ObjectRef) -> ObjectFuture {
        self.memory.object(task, object)
    }
    fn register_instance(&self, host: String, port: u16, model: Option<Name>) -> RegisterFuture {
        self.memory.register_instance(host, port, model)
    }
    fn instance_at(&self, host: &str, port: u16) -> Option<WorkerId> {
        self.memory.instance_at(host, port)
    }
    fn register_back_end(&self, server: NewBackEnd) -> RegisterFuture {
        self.memory.register_back_end(server)
    }
    fn knows_secret(&self, secret: &str) -> bool {
        self.memory.knows_secret(secret)
    }
    fn deliver_notification(&self, notification: InstanceNotification) {
        self.memory.deliver_notification(notification);
    }
    fn problems(&self) -> Vec<String> {
        self.memory.problems()
    }
    fn metrics(&self) -> String {
        self.memory.metrics()
    }
}
