//! A worker: publishes what it offers, runs the attempts that the holders of its leases dispatch, and reports.

mod channels;
mod cores;
mod epoch;
mod host;
mod instance;
mod monitored;
mod objects;
mod offers;
mod owner;
mod piece_batcher;
mod receipts;
mod runners;
mod start_reports;

use std::collections::HashMap;
use std::sync::Arc;

use hypha_api::InstanceSettings;
use hypha_config::{TaskInstanceConfig, WorkerConfig};
use hypha_engine::{FromWorker, Notary};
use hypha_model::{AdvertId, Worker};
use hypha_net::{Bulk, Multiaddr, Net, PeerId, Publication, worker_id};
use hypha_wire::dispatch::TaskProtocol;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::hardware::UsageMeter;
use crate::machine_loop::MachineLoop;
use crate::{NodeError, hardware};
use host::{EpochFiles, MAX_EVENTS, ReceivedAdvert, WorkerHost, WorkerInput};
use instance::LocalInstance;
use objects::Uploads;
use offers::OfferSender;
use owner::OwnerWatch;
pub use owner::set_paused;
pub use receipts::worker_receipts;
pub use runners::LAUNCHER_SUBCOMMAND;
use runners::Runners;

/// Messages queued for the worker's own task instance.
const MAX_LOCAL_MESSAGES: usize = 4_096;

/// A running worker.
pub(crate) struct RunningWorker {
    stop: CancellationToken,
    events: mpsc::Sender<WorkerInput>,
    machine_loop: JoinHandle<()>,
    runners: Arc<Runners>,
}

pub(crate) async fn start(
    config: &WorkerConfig,
    net: &Net,
    bulk: Bulk,
    notary: Arc<dyn Notary>,
) -> Result<RunningWorker, NodeError> {
    let worker = Worker {
        id: worker_id(&net.own()),
        capacity: hardware::capacity(&config.resources),
        executors: config.executors.iter().map(|executor| executor.executor()).collect(),
        hardware: config.hardware.clone(),
        region: config.region.clone(),
        price: config.offer.terms.price,
    };
    if worker.executors.is_empty() {
        tracing::warn!(
            "no [[executors]] are configured: this worker is found, and can run nothing"
        );
    }
    let unusable = |error| {
        NodeError::failed(format!("cannot use data_dir {}: {error}", config.data_dir.display()))
    };
    std::fs::create_dir_all(&config.data_dir).map_err(unusable)?;
    let files = EpochFiles(config.data_dir.clone());
    files.probe().map_err(unusable)?;
    let shared = Arc::new(worker.clone());
    let (clock, stop) = (Clock::new(), CancellationToken::new());
    let watch = OwnerWatch::new(&config.data_dir, &config.offer, clock)?;
    let (owner, terms) = (watch.state(), config.offer.terms.clone());
    let (machine, step) = host::start(&shared, &files, owner, terms.clone()).map_err(unusable)?;
    let machine = files.with_receipts(machine, &notary).map_err(unusable)?;
    let uploads = Uploads::new(bulk, config.max_result_bytes);
    let (events, inputs) = mpsc::channel(MAX_EVENTS);
    let runners = Runners::open(&config.executors, &config.data_dir, uploads, &events)?;
    let runners = Arc::new(runners);
    let channels = net.accept_channels::<TaskProtocol>().map_err(NodeError::failed)?;
    tracing::info!(
        worker = %worker.id,
        cores = worker.capacity.cpu_milli / 1_000,
        memory_gb = worker.capacity.memory_bytes / 1_000_000_000,
        gpus = worker.capacity.devices.len(),
        executors = worker.executors.len(),
        "offering"
    );
    let (local, local_messages) = mpsc::channel(MAX_LOCAL_MESSAGES);
    if let Some(config) = &config.task_instance {
        let worker = Arc::new(worker.clone());
        serve_instance(config, worker, clock, events.clone(), local_messages, stop.clone()).await?;
    }
    let host = WorkerHost {
        worker: shared,
        files,
        owner,
        terms,
        runners: runners.clone(),
        events: events.clone(),
        local,
        outboxes: HashMap::new(),
        runs: HashMap::new(),
        starts: start_reports::StartReports::default(),
        offers: OfferSender::new(net.clone()),
        notary,
        is_relayed: false,
    };
    tokio::spawn(measure_usage(events.clone(), stop.clone()));
    tokio::spawn(watch.run(events.clone(), stop.clone()));
    let machine_loop = MachineLoop::new(machine, step, host, inputs, clock);
    tokio::spawn(channels::serve(channels, events.clone(), runners.clone()));
    let machine_loop = tokio::spawn(host::run(machine_loop, stop.clone()));
    net.publish(Publication::Worker { worker, ttl: config.record_ttl }).await;
    Ok(RunningWorker { stop, events, machine_loop, runners })
}

/// Measures how much of the machine is in use until `stop`; heartbeats report it.
async fn measure_usage(events: mpsc::Sender<WorkerInput>, stop: CancellationToken) {
    let Some(mut meter) = UsageMeter::new() else {
        return tracing::warn!("cannot measure how much of this machine is in use");
    };
    let measure = async {
        loop {
            tokio::time::sleep(UsageMeter::INTERVAL).await;
            // If the loop has more to do than it can, the last measurement stands.
            let _ = events.try_send(WorkerInput::UsageMeasured(meter.measure()));
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = measure => {}
    }
}

/// Serves this worker as a task instance.
async fn serve_instance(
    config: &TaskInstanceConfig,
    worker: Arc<Worker>,
    clock: Clock,
    events: mpsc::Sender<WorkerInput>,
    local_messages: mpsc::Receiver<FromWorker>,
    stop: CancellationToken,
) -> Result<(), NodeError> {
    let Some(model) = config.model.clone() else {
        let problem = "[task_instance] needs a model: set `model`, or name models in [[executors]]";
        return Err(NodeError::configuration(problem));
    };
    let listener = TcpListener::bind(config.bind).await.map_err(|error| {
        NodeError::failed(format!("cannot listen on {} for [task_instance]: {error}", config.bind))
    })?;
    let tokens = config.tokens_file.as_ref().map(hypha_api::Tokens::load).transpose();
    let settings = InstanceSettings {
        tokens: tokens.map_err(NodeError::configuration)?,
        ..InstanceSettings::default()
    };
    let address = listener.local_addr().map_err(NodeError::failed)?;
    tracing::info!(%model, "a task instance at http://{address}");
    let instance = Arc::new(LocalInstance::start(worker, model, clock, events, local_messages));
    tokio::spawn(async move {
        hypha_api::serve_instance(settings, listener, instance, async move {
            stop.cancelled().await;
        })
        .await;
    });
    Ok(())
}

impl RunningWorker {
    /// What the operator should know about this worker, although it is ready.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.runners.notes()
    }

    /// An advert arrived by gossip. If the loop has more to do than it can, it is dropped, as on a network.
    pub(crate) fn advert_received(
        &self,
        (from, organisation): (PeerId, String),
        addresses: Vec<Multiaddr>,
        advert: hypha_wire::Advert,
    ) {
        let received = ReceivedAdvert { from, organisation, addresses, advert };
        let _ = self.events.try_send(WorkerInput::AdvertReceived(Box::new(received)));
    }

    /// The end of an advert arrived by gossip.
    pub(crate) fn advert_closed(&self, from: PeerId, advert: AdvertId) {
        let _ = self.events.try_send(WorkerInput::AdvertClosed(from, advert));
    }

    /// Others reach this node through a relay, or no longer.
    pub(crate) fn reachability_changed(&self, is_relayed: bool) {
        let events = self.events.clone();
        tokio::spawn(async move {
            let _ = events.send(WorkerInput::ReachabilityChanged { is_relayed }).await;
        });
    }

    /// Returns unfinished attempts to their schedulers, stops all runs, and waits until they have ended.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let _ = self.machine_loop.await;
        self.runners.stop().await;
    }
}
