//! A scheduler: accepts tasks over HTTP, places them on workers of the swarm and on back ends, and returns results.

mod advert_gossip;
mod core;
mod discovery;
mod effects;
mod metrics;
mod names;
mod objects;
mod service;
mod store;
mod wake_timer;
mod watchers;
mod worker_channels;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use hypha_api::ServingThreads;
use hypha_backends::{HttpWorkers, NewBackEnd, RegisterError, SchedulerHandle};
use hypha_config::SchedulerConfig;
use hypha_engine::store::AnyStore;
use hypha_engine::{
    Advert, Command, FromWorker, Notary, Offer, SchedulerEvent, SchedulerStep, ToWorker,
};
use hypha_machine::Machine;
use hypha_model::{AdvertId, NodeRole, Span, Time, Worker, WorkerId};
use hypha_net::{Incoming, Net, Peer, scheduler_id, worker_id};
use hypha_predict::{LookupTable, Mode};
use hypha_telemetry::Metrics;
use hypha_wire::request::{OfferRequest, Refusal, RefusalKind};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::{NodeError, settings};
use advert_gossip::AdvertGossip;
use core::SchedulerCore;
pub(crate) use discovery::DiscoveryHandle;
use effects::{SchedulerEffectHandler, Transport};
use metrics::{SchedulerMetrics, StateCollector};
use names::WorkerNames;
use objects::Objects;
use service::SchedulerService;
use wake_timer::WakeTimer;
use worker_channels::WorkerChannels;

/// The longest time between two deletions of results that are older than `result_ttl`.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(600);

/// A running scheduler.
pub(crate) struct Scheduler {
    /// The first field, and so the first to be dropped, also if a stop is cut short.
    _halt: HaltOnDrop,
    discovery: DiscoveryHandle,
    service: SchedulerService,
    stop: CancellationToken,
    api: JoinHandle<Option<ServingThreads>>,
    wake_timer_stop: CancellationToken,
    wake_timer: JoinHandle<()>,
}

impl Scheduler {
    pub(crate) async fn start(
        config: &SchedulerConfig,
        net: Net,
        metrics: &Metrics,
        offers: mpsc::Receiver<Incoming>,
        (organisation, notary): (&str, Arc<dyn Notary>),
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

        // The machine and the HTTP workers send to each other: the workers are opened first and get the machine later.
        let core_cell = Arc::new(OnceLock::<Weak<SchedulerCore>>::new());
        let weak_core = core_cell.clone();
        let on_message = Arc::new(move |worker, message| {
            if let Some(core) = weak_core.get().and_then(Weak::upgrade) {
                core.handle_worker_messages(worker, std::iter::once(message));
            }
        });
        let clock = Clock::after(image.latest());
        let id = scheduler_id(&net.own());
        let organisation = organisation.parse().ok();
        let machine_settings = hypha_engine::Settings { organisation, ..config.settings.clone() };
        let handle = SchedulerHandle { id, now: Arc::new(move || clock.now()), on_message };
        let http = HttpWorkers::open(settings::http_workers(config, address), handle)
            .map_err(NodeError::failed)?;
        let channels = Arc::new(WorkerChannels::new(objects.clone()));
        let names = Arc::new(WorkerNames::default());
        let transport = WorkerTransport {
            channels: channels.clone(),
            http: http.clone(),
            names: names.clone(),
            adverts: AdvertGossip::start(net.clone()),
        };
        let scheduler_metrics = metrics.with(SchedulerMetrics::new);
        let mut step = SchedulerStep::default();
        let mode = image.mode;
        let open = image.tasks.values().filter(|task| task.finished.is_none()).count();
        let mut machine = hypha_engine::Scheduler::recover(
            id,
            machine_settings.clone(),
            image,
            rand::random(),
            clock.now(),
            &mut step,
        );
        machine.set_notary(Arc::clone(&notary));
        apply_lookup_table(&mut machine, &table, mode, clock.now(), &mut step);
        for removed in add_removed_workers(&mut machine, http.all(), clock.now(), &mut step) {
            http.mark_removed(removed);
        }
        let handler = SchedulerEffectHandler::new(clock, scheduler_metrics, Box::new(transport));
        let core = Arc::new(SchedulerCore::new(machine, step, store.clone(), handler));
        let _ = core_cell.set(Arc::downgrade(&core));
        metrics.with(|registry| {
            registry.register_collector(Box::new(StateCollector::of(Arc::downgrade(&core))));
        });

        let halt = HaltOnDrop(core.clone());
        let stop = CancellationToken::new();
        let wake_timer =
            WakeTimer { core: core.clone(), id, settings: machine_settings, notary, table };
        // It stops last, so that the records of the other parts are still committed.
        let wake_timer_stop = CancellationToken::new();
        let wake_timer = tokio::spawn(wake_timer.run(wake_timer_stop.clone()));
        tokio::spawn(objects.clone().receive(net.clone(), offers));
        tokio::spawn(expire_results(store.clone(), objects.clone(), clock, config.result_ttl));
        let discovery = DiscoveryHandle::start(
            net,
            config.discovery_interval,
            Arc::downgrade(&core),
            channels,
            &names,
        );
        let service =
            SchedulerService { core, store, http, names, objects, metrics: metrics.clone() };
        for server in &config.backends {
            tokio::spawn(register_configured(service.clone(), settings::back_end(server)?));
        }
        let backend: Arc<dyn hypha_api::SchedulerApi> = Arc::new(service.clone());
        let stopped = stop.clone();
        let scheme = if config.api.tls.is_some() { "https" } else { "http" };
        tracing::info!(tasks = open, "serving the API at {scheme}://{address}");
        let api = tokio::spawn(async move {
            let stopped = async move { stopped.cancelled().await };
            let served = hypha_api::serve(api, listener, backend, stopped).await;
            served.inspect_err(|error| tracing::error!("the API is no longer served: {error}")).ok()
        });
        Ok(Scheduler { _halt: halt, discovery, service, stop, api, wake_timer_stop, wake_timer })
    }

    pub(crate) fn discovery(&self) -> &DiscoveryHandle {
        &self.discovery
    }

    /// Takes the offer of a worker that has no channel to this scheduler, and opens one to it: over that the offer is
    /// accepted or declined.
    pub(crate) fn receive_offer(&self, peer: &Peer, request: OfferRequest) -> Result<(), Refusal> {
        let worker = worker_id(&peer.id);
        if peer.role != NodeRole::Worker || request.offer.worker_id != worker {
            let problem = "only a worker may offer, and only itself";
            return Err(Refusal::new(RefusalKind::NotAllowed, problem));
        }
        let offer = Offer::try_from(request.offer)
            .map_err(|error| Refusal::new(RefusalKind::Malformed, error.to_string()))?;
        self.discovery.offered(peer, &offer.worker, &request.addresses);
        let message = FromWorker::Offered(Arc::new(offer));
        self.service.core.handle_worker_messages(worker, std::iter::once(message));
        Ok(())
    }

    /// Why this scheduler is not ready at present.
    pub(crate) fn problems(&self) -> impl Fn() -> Vec<String> + Send + Sync + 'static {
        let service = self.service.clone();
        move || hypha_api::SchedulerApi::problems(&service)
    }

    /// Stops taking requests, commits those that were taken, and returns.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let threads = self.api.await;
        self.wake_timer_stop.cancel();
        let _ = self.wake_timer.await;
        // Connections to back ends break with their threads: no call may take that for a failure, or send its request
        // again.
        self.service.http.close();
        drop(threads);
    }
}

#[cfg(test)]
impl Scheduler {
    pub(crate) async fn execute(&self, command: Command) -> hypha_engine::Reply {
        self.service.core.execute(command).await.unwrap()
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&hypha_engine::Scheduler) -> T) -> T {
        self.service.core.read(|scheduler, _| look(scheduler))
    }

    pub(crate) fn read_at<T>(&self, look: impl FnOnce(&hypha_engine::Scheduler, Time) -> T) -> T {
        self.service.core.read(look)
    }

    pub(crate) fn job_changed(&self) -> tokio::sync::watch::Receiver<u64> {
        self.service.core.job_changes()
    }
}

/// Halts the machine when it is dropped: channels to workers and calls to back ends end with the process, and the
/// machine must not take that for failures of the workers.
struct HaltOnDrop(Arc<SchedulerCore>);

impl Drop for HaltOnDrop {
    fn drop(&mut self) {
        self.0.machine.halt("the scheduler is stopping");
    }
}

/// Sends to workers over HTTP or over their channels.
struct WorkerTransport {
    channels: Arc<WorkerChannels>,
    http: HttpWorkers,
    names: Arc<WorkerNames>,
    adverts: AdvertGossip,
}

impl Transport for WorkerTransport {
    fn send(&self, worker: WorkerId, message: ToWorker) {
        match self.http.knows(worker) {
            true => self.http.send(worker, message),
            false => self.channels.send(worker, message),
        }
    }

    fn advertise(&self, advert: Arc<Advert>) {
        self.adverts.advertise(advert);
    }

    fn close_advert(&self, advert: AdvertId) {
        self.adverts.close(advert);
    }

    fn forget(&self, worker: WorkerId) {
        self.http.forget(worker);
        self.names.forget(worker);
    }

    fn mark_removed(&self, worker: WorkerId) {
        self.http.mark_removed(worker);
    }

    fn registered_workers(&self) -> Vec<Arc<Worker>> {
        self.http.all()
    }

    fn connected_workers(&self) -> Vec<Arc<Worker>> {
        self.channels.workers()
    }
}

/// Adds those of `workers` that were removed to a new machine, so that they can be readmitted although discovery does
/// not find them. Returns their ids.
fn add_removed_workers(
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

/// Sets the table for the mode `lookup_table`, and the mode if one was chosen before.
fn apply_lookup_table(
    machine: &mut hypha_engine::Scheduler,
    table: &LookupTable,
    mode: Option<Mode>,
    now: Time,
    step: &mut SchedulerStep,
) {
    let event = SchedulerEvent::CommandReceived;
    machine.step(now, event(Command::SetTable(table.clone())), step);
    if let Some(mode) = mode {
        machine.step(now, event(Command::SetMode(mode)), step);
    }
}

/// Registers a configured back end as soon as it can be.
async fn register_configured(service: SchedulerService, server: NewBackEnd) {
    let url = server.config.url.clone();
    loop {
        match service.http.register_back_end(server.clone()).await {
            Ok(worker) if service.core.read(|scheduler, _| scheduler.is_removed(worker.id)) => {
                return report_removed(&service, &url, worker);
            }
            Ok(worker) => {
                let models = worker.executors.iter().flat_map(|executor| &executor.models).count();
                tracing::info!(url, worker = %worker.id, models, "registered a back end");
                if service.register_worker(worker).await.is_ok() {
                    return;
                }
            }
            Err(error @ RegisterError::Unhealthy(_)) => {
                tracing::warn!(url, "a back end is not registered yet: {error}");
            }
            Err(error) => return tracing::error!(url, "a back end cannot be registered: {error}"),
        }
        tokio::time::sleep(REGISTER_RETRY_DELAY).await;
    }
}

/// Adds a configured back end that an operator has removed: it is not used, and can be readmitted.
fn report_removed(service: &SchedulerService, url: &str, worker: Arc<Worker>) {
    let id = worker.id;
    tracing::warn!(
        url,
        worker = %id,
        "a configured back end is not used, since it was removed: \
         `hypha readmit {id}` readmits it"
    );
    service.core.handle_event(SchedulerEvent::WorkerFound(worker));
    service.http.mark_removed(id);
}

/// How long after a failure the registration of a configured back end is retried.
const REGISTER_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Deletes results that are older than `ttl`.
async fn expire_results(store: AnyStore, objects: Objects, clock: Clock, ttl: Duration) {
    loop {
        tokio::time::sleep(EXPIRY_INTERVAL.min(ttl)).await;
        let age = Span::from_micros(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX));
        let before = Time::ZERO + clock.now().since(Time::ZERO + age);
        match store.forget_finished_before(before).await {
            Ok(0) => {}
            Ok(tasks) => {
                tracing::info!(tasks, "deleted tasks that ended longer ago than result_ttl")
            }
            Err(error) => tracing::warn!("cannot delete old tasks: {error}"),
        }
        let is_stored = |task| {
            let store = store.clone();
            async move { store.task(task).await.map(|found| found.is_some()) }
        };
        if let Err(error) = objects.forget_expired((before, ttl), is_stored).await {
            tracing::warn!("cannot delete old large results: {error}");
        }
    }
}
