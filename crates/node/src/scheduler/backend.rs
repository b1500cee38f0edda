//! What the HTTP surfaces get of this scheduler.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hypha_api::{
    Accepted, Answer, Backend, NewServer, ReadingObject, RegisterError, Registering, Unavailable,
    Watch,
};
use hypha_backends::{Format, HttpWorkers, ServerConfig};
use hypha_engine::record::StoredTask;
use hypha_engine::store::{AnyStore, Filter, Page, StoreFailure};
use hypha_engine::{Command, NewTask, Notification, Reply, Scheduler};
use hypha_model::{ObjectRef, TaskId, Time, Worker, WorkerId};
use hypha_telemetry::Metrics;

use super::core::Core;
use super::names::Names;
use super::objects::Objects;

/// A worker that was found well a moment ago grants its lease within this; if not, it is registered all the same.
const LEASED_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct Service {
    pub(super) core: Arc<Core>,
    pub(super) store: AnyStore,
    pub(super) http: HttpWorkers,
    pub(super) names: Arc<Names>,
    pub(super) objects: Objects,
    pub(super) metrics: Metrics,
}

impl Backend for Service {
    fn now(&self) -> Time {
        self.core.now()
    }

    fn ask(&self, command: Command) -> Answer<Reply> {
        self.core.ask(command)
    }

    fn submit(&self, tasks: Vec<NewTask>, watch: bool) -> Answer<Vec<Accepted>> {
        self.core.submit(tasks, watch)
    }

    fn watch(&self, task: TaskId) -> Watch {
        self.core.watch(task)
    }

    fn read(&self, look: &mut dyn FnMut(&Scheduler, Time)) {
        self.core.read(look);
    }

    fn stored(&self, task: TaskId) -> Answer<Option<StoredTask>> {
        let store = self.store.clone();
        async move { store.task(task).await.map_err(unavailable) }.boxed()
    }

    fn list(&self, filter: Filter, behind: Option<TaskId>, limit: usize) -> Answer<Page> {
        let store = self.store.clone();
        async move { store.list(filter, behind, limit).await.map_err(unavailable) }.boxed()
    }

    fn object(&self, task: TaskId, object: ObjectRef) -> ReadingObject {
        let objects = self.objects.clone();
        async move { objects.read(task, object).await }.boxed()
    }

    fn register_instance(&self, host: String, port: u16) -> Registering {
        let service = self.clone();
        async move {
            let worker = service.http.register_instance(&host, port).await.map_err(refused)?;
            service.enter(worker).await
        }
        .boxed()
    }

    fn register_server(&self, server: NewServer) -> Registering {
        let service = self.clone();
        async move {
            let format = match server.openai {
                true => Format::Openai,
                false => Format::Json,
            };
            let server = hypha_backends::NewServer {
                config: ServerConfig {
                    api_key: server.api_key,
                    ..ServerConfig::new(server.url, format)
                },
                models: server.models,
                concurrency: server.concurrency,
                trusted: false,
            };
            let worker = service.http.register_server(server).await.map_err(refused)?;
            service.enter(worker).await
        }
        .boxed()
    }

    fn notified(&self, notification: Notification) {
        self.http.notified(notification);
    }

    fn worker_name(&self, worker: WorkerId) -> Option<String> {
        self.names.of(worker).or_else(|| self.http.authority(worker))
    }

    fn problems(&self) -> Vec<String> {
        self.core.stopped().into_iter().collect()
    }

    fn metrics(&self) -> String {
        self.metrics.encode()
    }
}

impl Service {
    /// Makes a worker that was looked at one of the scheduler's.
    pub(super) fn enter(
        &self,
        worker: Arc<Worker>,
    ) -> BoxFuture<'static, Result<WorkerId, RegisterError>> {
        let id = worker.id;
        let asked = self.ask(Command::RegisterWorker(worker));
        let core = self.core.clone();
        async move {
            asked.await?;
            // A task that is submitted right after this answer must find the worker there.
            let _ = tokio::time::timeout(LEASED_WITHIN, core.leased(id)).await;
            Ok(id)
        }
        .boxed()
    }
}

fn refused(error: hypha_backends::RegisterError) -> RegisterError {
    use hypha_backends::RegisterError as Given;
    match error {
        Given::NotAllowed(address) => RegisterError::NotAllowed(address),
        Given::Invalid(problem) => RegisterError::Invalid(problem),
        Given::Unhealthy(problem) => RegisterError::Unhealthy(problem),
        error @ (Given::TooMany | Given::NotNoted(_)) => {
            RegisterError::Unavailable(Unavailable(error.to_string()))
        }
    }
}

fn unavailable(error: StoreFailure) -> Unavailable {
    Unavailable(format!("the scheduler cannot read its store: {error}"))
}
