//! A scheduler: accepts tasks over HTTP, places them on workers of the swarm and on HTTP servers, and answers.

mod alarm;
mod backend;
mod carrier;
mod core;
mod figures;
mod links;
mod names;
mod objects;
mod search;
mod store;
mod watchers;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use hypha_backends::{HttpWorkers, NewServer, RegisterError, SchedulerSide};
use hypha_config::SchedulerConfig;
use hypha_engine::store::AnyStore;
use hypha_engine::{Command, SchedulerEvent, SchedulerStep, ToWorker};
use hypha_machine::Machine;
use hypha_model::{Span, Time, Worker, WorkerId};
use hypha_net::{Incoming, Net, scheduler_id};
use hypha_predict::{LookupTable, Mode};
use hypha_telemetry::Metrics;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::{NodeError, settings};
use alarm::Alarm;
use backend::Service;
use carrier::{SchedulerCarrier, Transport};
use core::Core;
use figures::{Figures, Present};
use links::Links;
use names::Names;
use objects::Objects;
pub(crate) use search::Searching;

/// How often results that are older than `result_ttl` are forgotten, at the least.
const FORGET_EVERY: Duration = Duration::from_secs(600);

/// A running scheduler.
pub(crate) struct Scheduler {
    searching: Searching,
    service: Service,
    stop: CancellationToken,
    api: JoinHandle<()>,
    alarm_stop: CancellationToken,
    alarm: JoinHandle<()>,
}

impl Scheduler {
    pub(crate) async fn start(
        config: &SchedulerConfig,
        net: Net,
        metrics: &Metrics,
        offers: mpsc::Receiver<Incoming>,
        version: &'static str,
    ) -> Result<Scheduler, NodeError> {
        config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let api = settings::api(config, version)?;
        let listener = settings::listen(&config.api)?;
        let address = listener.local_addr().map_err(NodeError::failed)?;
        std::fs::create_dir_all(&config.data_dir).map_err(|error| {
            NodeError::failed(format!("cannot use data_dir {}: {error}", config.data_dir.display()))
        })?;
        let table = settings::lookup_table(config.lookup_table.as_deref())?;
        let objects = Objects::open(&config.object_store)?;
        let data_dir = config.data_dir.clone();
        let opened = tokio::task::spawn_blocking(move || store::open(&data_dir)).await;
        let (store, image) = opened.map_err(NodeError::failed)?.map_err(NodeError::failed)?;

        // The machine sends to HTTP workers, and they answer it: whichever is first knows the other later.
        let heard_by = Arc::new(OnceLock::<Weak<Core>>::new());
        let hears = heard_by.clone();
        let hear = Arc::new(move |worker, message| {
            if let Some(core) = hears.get().and_then(Weak::upgrade) {
                core.worker_said(worker, std::iter::once(message));
            }
        });
        let clock = Clock::after(image.latest());
        let id = scheduler_id(&net.own());
        let side = SchedulerSide { id, now: Arc::new(move || clock.now()), hear };
        let http = HttpWorkers::open(settings::http_workers(config, address), side)
            .map_err(NodeError::failed)?;
        let links = Arc::new(Links::new(objects.clone()));
        let names = Arc::new(Names::default());
        let transport =
            Transports { links: links.clone(), http: http.clone(), names: names.clone() };
        let figures = metrics.with(Figures::new);
        let mut step = SchedulerStep::default();
        let mode = image.mode;
        let open = image.tasks.values().filter(|task| task.finished.is_none()).count();
        let mut machine = hypha_engine::Scheduler::recover(
            id,
            config.settings.clone(),
            image,
            rand::random(),
            clock.now(),
            &mut step,
        );
        give_table(&mut machine, &table, mode, clock.now(), &mut step);
        for removed in introduce_removed(&mut machine, http.all(), clock.now(), &mut step) {
            http.retire(removed);
        }
        let carrier = SchedulerCarrier::new(clock, figures, Box::new(transport));
        let core = Arc::new(Core::new(machine, step, store.clone(), carrier));
        let _ = heard_by.set(Arc::downgrade(&core));
        metrics.with(|registry| {
            registry.register_collector(Box::new(Present::of(Arc::downgrade(&core))));
        });

        let stop = CancellationToken::new();
        let alarm = Alarm { core: core.clone(), id, settings: config.settings.clone(), table };
        // It stops last: what the others still want durable is committed.
        let alarm_stop = CancellationToken::new();
        let alarm = tokio::spawn(alarm.run(alarm_stop.clone()));
        tokio::spawn(objects.clone().receive(net.clone(), offers));
        tokio::spawn(forget(store.clone(), objects.clone(), clock, config.result_ttl));
        let searching =
            Searching::start(net, config.discovery_interval, Arc::downgrade(&core), links, &names);
        let service = Service { core, store, http, names, objects, metrics: metrics.clone() };
        for server in &config.backends {
            tokio::spawn(register(service.clone(), settings::server(server)?));
        }
        let backend: Arc<dyn hypha_api::Backend> = Arc::new(service.clone());
        let stopped = stop.clone();
        let scheme = if config.api.tls.is_some() { "https" } else { "http" };
        tracing::info!(tasks = open, "serving the API at {scheme}://{address}");
        let api = tokio::spawn(async move {
            let stopped = async move { stopped.cancelled().await };
            if let Err(error) = hypha_api::serve(api, listener, backend, stopped).await {
                tracing::error!("the API is no longer served: {error}");
            }
        });
        Ok(Scheduler { searching, service, stop, api, alarm_stop, alarm })
    }

    pub(crate) fn searching(&self) -> &Searching {
        &self.searching
    }

    /// Why this scheduler should get no requests at present.
    pub(crate) fn problems(&self) -> impl Fn() -> Vec<String> + Send + Sync + 'static {
        let service = self.service.clone();
        move || hypha_api::Backend::problems(&service)
    }

    /// Stops taking requests, commits what was taken, and returns.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let _ = self.api.await;
        self.alarm_stop.cancel();
        let _ = self.alarm.await;
    }
}

/// A worker is reached over HTTP, or over its stream.
struct Transports {
    links: Arc<Links>,
    http: HttpWorkers,
    names: Arc<Names>,
}

impl Transport for Transports {
    fn send(&self, worker: WorkerId, message: ToWorker) {
        match self.http.knows(worker) {
            true => self.http.send(worker, message),
            false => self.links.send(worker, message),
        }
    }

    fn forget(&self, worker: WorkerId) {
        self.http.forget(worker);
        self.names.forget(worker);
    }

    fn retire(&self, worker: WorkerId) {
        self.http.retire(worker);
    }

    fn known(&self) -> Vec<Arc<Worker>> {
        self.http.all()
    }

    fn connected(&self) -> Vec<Arc<Worker>> {
        self.links.workers()
    }
}

/// Tells a new machine of those of `workers` that were removed, so that they can be taken again although nobody finds
/// them. Returns which they are.
fn introduce_removed(
    machine: &mut hypha_engine::Scheduler,
    workers: Vec<Arc<Worker>>,
    now: Time,
    step: &mut SchedulerStep,
) -> Vec<WorkerId> {
    let mut removed = Vec::new();
    for worker in workers {
        if machine.is_removed(worker.id) {
            removed.push(worker.id);
            machine.step(now, SchedulerEvent::WorkerFound(worker), step);
        }
    }
    removed
}

/// Takes the table for the mode `lookup_table` into use, and the mode if it was chosen before.
fn give_table(
    machine: &mut hypha_engine::Scheduler,
    table: &LookupTable,
    mode: Option<Mode>,
    now: Time,
    step: &mut SchedulerStep,
) {
    let ask = SchedulerEvent::Asked;
    machine.step(now, ask(Command::SetTable(table.clone())), step);
    if let Some(mode) = mode {
        machine.step(now, ask(Command::SetMode(mode)), step);
    }
}

/// Registers a configured server, as soon as it is there.
async fn register(service: Service, server: NewServer) {
    let url = server.config.url.clone();
    loop {
        match service.http.register_server(server.clone()).await {
            Ok(worker) if service.core.read(|scheduler, _| scheduler.is_removed(worker.id)) => {
                return stays_away(&service, &url, worker);
            }
            Ok(worker) => {
                let models = worker.executors.iter().flat_map(|executor| &executor.models).count();
                tracing::info!(url, worker = %worker.id, models, "using an HTTP server");
                if service.enter(worker).await.is_ok() {
                    return;
                }
            }
            Err(error @ RegisterError::Unhealthy(_)) => {
                tracing::warn!(url, "an HTTP server is not used yet: {error}");
            }
            Err(error) => return tracing::error!(url, "an HTTP server is not used: {error}"),
        }
        tokio::time::sleep(REGISTER_AGAIN).await;
    }
}

/// An operator removed a configured server: it is told of, so that it can be taken again, and not used.
fn stays_away(service: &Service, url: &str, worker: Arc<Worker>) {
    let id = worker.id;
    tracing::warn!(
        url,
        worker = %id,
        "an HTTP server of the configuration is not used, since it was removed: \
         `hypha readmit {id}` takes it again"
    );
    service.core.tell(SchedulerEvent::WorkerFound(worker));
    service.http.retire(id);
}

/// How long after a failure a configured server is tried again.
const REGISTER_AGAIN: Duration = Duration::from_secs(10);

/// Forgets results whose time is over.
async fn forget(store: AnyStore, objects: Objects, clock: Clock, ttl: Duration) {
    loop {
        tokio::time::sleep(FORGET_EVERY.min(ttl)).await;
        let age = Span::from_micros(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX));
        let before = Time::ZERO + clock.now().since(Time::ZERO + age);
        match store.forget_finished_before(before).await {
            Ok(0) => {}
            Ok(tasks) => {
                tracing::info!(tasks, "forgot tasks that ended longer ago than result_ttl")
            }
            Err(error) => tracing::warn!("cannot forget old tasks: {error}"),
        }
        let objects = objects.clone();
        let forgotten = tokio::task::spawn_blocking(move || objects.forget_older_than(ttl)).await;
        if let Ok(Err(error)) = forgotten {
            tracing::warn!("cannot forget old large results: {error}");
        }
    }
}
