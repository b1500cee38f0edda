//! A scheduler in memory that accepts at once, and says so when it is let.

use std::sync::Arc;

use futures::FutureExt;
use hypha_api::{Accepted, Answer, Backend, NewServer, ReadingObject, Registering, Watch};
use hypha_engine::record::StoredTask;
use hypha_engine::store::{Filter, Page};
use hypha_engine::{Command, NewTask, Notification, Reply, Scheduler};
use hypha_model::{ObjectRef, TaskId, Time};
use tokio::sync::Semaphore;

use crate::memory::Memory;

/// See the head of this file.
pub(crate) struct Gated {
    pub(crate) memory: Arc<Memory>,
    pub(crate) gate: Arc<Semaphore>,
}

impl Backend for Gated {
    fn submit(&self, tasks: Vec<NewTask>, watch: bool) -> Answer<Vec<Accepted>> {
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
    fn ask(&self, command: Command) -> Answer<Reply> {
        self.memory.ask(command)
    }
    fn watch(&self, task: TaskId) -> Watch {
        Backend::watch(&*self.memory, task)
    }
    fn read(&self, look: &mut dyn FnMut(&Scheduler, Time)) {
        self.memory.read(look);
    }
    fn stored(&self, task: TaskId) -> Answer<Option<StoredTask>> {
        self.memory.stored(task)
    }
    fn list(&self, filter: Filter, behind: Option<TaskId>, limit: usize) -> Answer<Page> {
        self.memory.list(filter, behind, limit)
    }
    fn object(&self, task: TaskId, object: ObjectRef) -> ReadingObject {
        self.memory.object(task, object)
    }
    fn register_instance(&self, host: String, port: u16) -> Registering {
        self.memory.register_instance(host, port)
    }
    fn register_server(&self, server: NewServer) -> Registering {
        self.memory.register_server(server)
    }
    fn notified(&self, notification: Notification) {
        self.memory.notified(notification);
    }
    fn problems(&self) -> Vec<String> {
        self.memory.problems()
    }
    fn metrics(&self) -> String {
        self.memory.metrics()
    }
}
