//! The scheduler, as the HTTP API uses it.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hypha_api::{
    JobChanges, NewBackEnd, ObjectFuture, RegisterError, RegisterFuture, SchedulerApi,
    ServiceFuture, ServiceUnavailable, SubmitResult, Watch,
};
use hypha_backends::{BackEndSettings, Format, HttpWorkers};
use hypha_engine::record::StoredTask;
use hypha_engine::store::{AnyStore, Filter, Page, StoreFailure};
use hypha_engine::{Command, InstanceNotification, NewTask, Reply, Scheduler};
use hypha_model::{Name, ObjectRef, TaskId, Time, Worker, WorkerId};
use hypha_telemetry::Metrics;

use super::core::SchedulerCore;
use super::names::WorkerNames;
use super::objects::Objects;

/// How long a worker that has just passed its health check may take to grant a lease; it is registered in any case.
const LEASE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct SchedulerService {
    pub(super) core: Arc<SchedulerCore>,
    pub(super) store: AnyStore,
    pub(super) http: HttpWorkers,
    pub(super) names: Arc<WorkerNames>,
    pub(super) objects: Objects,
    pub(super) metrics: Metrics,
}

impl SchedulerApi for SchedulerService {
    fn now(&self) -> Time {
        self.core.now()
    }

    fn execute(&self, command: Command) -> ServiceFuture<Reply> {
        self.core.execute(command)
    }

    fn submit(&self, tasks: Vec<NewTask>, watch: bool) -> ServiceFuture<Vec<SubmitResult>> {
        self.core.submit(tasks, watch)
    }

    fn watch(&self, task: TaskId) -> Watch {
        self.core.watch(task)
    }

    fn job_changes(&self) -> JobChanges {
        self.core.job_changes()
    }

    fn read(&self, look: &mut dyn FnMut(&Scheduler, Time)) {
        self.core.read(look);
    }

    fn stored(&self, task: TaskId) -> ServiceFuture<Option<StoredTask>> {
        let store = self.store.clone();
        async move { store.task(task).await.map_err(unavailable) }.boxed()
    }

    fn list(&self, filter: Filter, behind: Option<TaskId>, limit: usize) -> ServiceFuture<Page> {
        let store = self.store.clone();
        async move { store.list(filter, behind, limit).await.map_err(unavailable) }.boxed()
    }

    fn object(&self, task: TaskId, object: ObjectRef) -> ObjectFuture {
        let objects = self.objects.clone();
        async move { objects.read(task, object).await }.boxed()
    }

    fn register_instance(&self, host: String, port: u16, model: Option<Name>) -> RegisterFuture {
        let service = self.clone();
        async move {
            let registered = service.http.register_instance(&host, port, model.as_ref()).await;
            let worker = registered.map_err(register_error)?;
            service.register_worker(worker).await
        }
        .boxed()
    }

    fn instance_at(&self, host: &str, port: u16) -> Option<WorkerId> {
        self.http.instance_at(host, port)
    }

    fn register_back_end(&self, server: NewBackEnd) -> RegisterFuture {
        let service = self.clone();
        async move {
            let format = match server.openai {
                true => Format::Openai,
                false => Format::Json,
            };
            let server = hypha_backends::NewBackEnd {
                config: BackEndSettings {
                    api_key: server.api_key,
                    ..BackEndSettings::new(server.url, format)
                },
                models: server.models,
                concurrency: server.concurrency,
                trusted: false,
            };
            let worker = service.http.register_back_end(server).await.map_err(register_error)?;
            service.register_worker(worker).await
        }
        .boxed()
    }

    fn knows_secret(&self, secret: &str) -> bool {
        self.http.knows_secret(secret)
    }

    fn deliver_notification(&self, notification: InstanceNotification) {
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

impl SchedulerService {
    /// Adds a worker that has passed its health check, and waits for its lease.
    pub(super) fn register_worker(
        &self,
        worker: Arc<Worker>,
    ) -> BoxFuture<'static, Result<WorkerId, RegisterError>> {
        let id = worker.id;
        let registered = self.execute(Command::RegisterWorker(worker));
        let core = self.core.clone();
        async move {
            registered.await?;
            // A task that is submitted right after this response must find the worker available.
            let _ = tokio::time::timeout(LEASE_TIMEOUT, core.wait_for_lease(id)).await;
            Ok(id)
        }
        .boxed()
    }
}

fn register_error(error: hypha_backends::RegisterError) -> RegisterError {
    use hypha_backends::RegisterError as HttpRegisterError;
    match error {
        HttpRegisterError::NotAllowed(address) => RegisterError::NotAllowed(address),
        HttpRegisterError::Invalid(problem) => RegisterError::Invalid(problem),
        HttpRegisterError::Unhealthy(problem) => RegisterError::Unhealthy(problem),
        error @ (HttpRegisterError::TooMany | HttpRegisterError::NotSaved(_)) => {
            RegisterError::Unavailable(ServiceUnavailable(error.to_string()))
        }
    }
}

fn unavailable(error: StoreFailure) -> ServiceUnavailable {
    ServiceUnavailable(format!("the scheduler cannot read its store: {error}"))
}
