//! The lifecycle of a node: starts its parts, handles the events of the network, and stops.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypha_config::{
    DataConfig, GatewayConfig, NetworkConfig, ObserveConfig, SchedulerConfig, WorkerConfig,
};
use hypha_model::NodeRole;
use hypha_net::{Incoming, Net, NetEvent, PeerRequest, Reachability, StartError};
use hypha_pki::Reloader;
use hypha_telemetry::Metrics;
use hypha_wire::request::{Refusal, RefusalKind, RequestBody, ResponseBody};
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::data_dir::{self, DataDirLock};
use crate::notary::KeyNotary;
use crate::scheduler::{DiscoveryHandle, Scheduler};
use crate::signals::Signals;
use crate::status::{self, Status};
use crate::{NodeError, data, gateway, settings, worker};

/// How long a graceful stop may take in all; then the process ends anyway.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The file of revocation lists from gateways.
const LEARNED_CRLS: &str = "learned-crls.pem";

/// A node of any role.
pub enum NodeConfig {
    /// Connects the other nodes.
    Gateway(GatewayConfig),
    /// Accepts tasks and places them on workers.
    Scheduler(Box<SchedulerConfig>),
    /// Offers capacity.
    Worker(Box<WorkerConfig>),
    /// Offers data sets.
    Data(DataConfig),
}

impl NodeConfig {
    /// Its role.
    pub fn role(&self) -> NodeRole {
        match self {
            NodeConfig::Gateway(_) => NodeRole::Gateway,
            NodeConfig::Scheduler(_) => NodeRole::Scheduler,
            NodeConfig::Worker(_) => NodeRole::Worker,
            NodeConfig::Data(_) => NodeRole::Data,
        }
    }

    fn network(&self) -> &NetworkConfig {
        match self {
            NodeConfig::Gateway(config) => &config.network,
            NodeConfig::Scheduler(config) => &config.network,
            NodeConfig::Worker(config) => &config.network,
            NodeConfig::Data(config) => &config.network,
        }
    }

    /// The directory that only one process may use.
    fn data_dir(&self) -> Option<&Path> {
        match self {
            NodeConfig::Scheduler(config) => Some(&config.data_dir),
            NodeConfig::Worker(config) => Some(&config.data_dir),
            NodeConfig::Gateway(_) | NodeConfig::Data(_) => None,
        }
    }

    /// Where the revocation lists are kept that this node gets from gateways. A node without a directory of its
    /// own keeps them beside its certificate.
    fn learned_crls(&self) -> PathBuf {
        match self {
            NodeConfig::Scheduler(config) => config.data_dir.join(LEARNED_CRLS),
            NodeConfig::Worker(config) => config.data_dir.join(LEARNED_CRLS),
            NodeConfig::Gateway(_) | NodeConfig::Data(_) => {
                self.network().cert_pem.with_extension(LEARNED_CRLS)
            }
        }
    }

    fn observe(&self) -> &ObserveConfig {
        match self {
            NodeConfig::Gateway(config) => &config.observe,
            NodeConfig::Scheduler(config) => &config.observe,
            NodeConfig::Worker(config) => &config.observe,
            NodeConfig::Data(config) => &config.observe,
        }
    }
}

/// Runs a node until a signal stops it.
pub fn run(config: NodeConfig, version: &'static str) -> Result<(), NodeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| NodeError::failed(format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(serve(config, version));
    // Tasks that still run have had their time to stop.
    runtime.shutdown_background();
    outcome
}

async fn serve(config: NodeConfig, version: &'static str) -> Result<(), NodeError> {
    let signals = Signals::new()?;
    let mut telemetry = hypha_telemetry::start(&settings::telemetry(config.observe()))
        .map_err(NodeError::configuration)?;
    let metrics = Metrics::new(version, config.role().as_str());
    telemetry.export_metrics(&metrics);
    let outcome = match start(&config, version, &metrics).await {
        Ok(node) => node.run_until_signal(signals).await,
        Err(error) => {
            signals.exit_on_next_signal();
            Err(error)
        }
    };
    telemetry.stop().await;
    outcome
}

async fn start(
    config: &NodeConfig,
    version: &'static str,
    metrics: &Metrics,
) -> Result<Node, NodeError> {
    let (role, network) = (config.role(), config.network());
    // Before anything else: a second process must not join the network under the same key.
    let data_dir = match config.data_dir() {
        Some(directory) => Some(data_dir::lock(directory).await?),
        None => None,
    };
    let (pki, reloader) = Reloader::load(settings::files(network, Some(config.learned_crls())))
        .map_err(NodeError::configuration)?;
    let own = pki.own().clone();
    let notary = Arc::new(KeyNotary::new(pki.signing_key()));
    let relay = match config {
        NodeConfig::Gateway(config) => Some(&config.relay),
        _ => None,
    };
    let net_settings = settings::network(role, network, relay, version);
    let (net, events) = metrics
        .with(|registry| Net::start(net_settings, pki, Some(reloader), registry))
        .map_err(|error| match error {
            StartError::Role { .. } => NodeError::configuration(error),
            _ => NodeError::failed(error),
        })?;
    tracing::info!(peer = %own.peer_id, organisation = own.organisation, version, "starting a {role} node");
    if role != NodeRole::Gateway && network.gateway_addresses.is_empty() {
        tracing::warn!(
            "no gateway is configured, so no peer will be found: set gateway_addresses, or pass --gateway"
        );
    }
    let needs_gateway = role != NodeRole::Gateway && !network.gateway_addresses.is_empty();
    let status = Arc::new(Status::new(role, version, net.clone(), metrics.clone(), needs_gateway));
    status::serve(status.clone(), config.observe()).await?;
    let (bulk, offers) = net.bulk(hypha_net::BulkLimits::default()).await.map_err(|error| {
        NodeError::failed(format!("cannot listen for bulk transfers on {error}"))
    })?;
    let running_role = match config {
        NodeConfig::Gateway(_) => {
            tokio::spawn(refuse_transfers(offers));
            RunningRole::Passive
        }
        NodeConfig::Scheduler(config) => {
            let identity = (own.organisation.as_str(), notary as Arc<_>);
            let scheduler =
                Scheduler::start(config, net.clone(), metrics, offers, identity, version).await?;
            status.set_extra_problems(scheduler.problems());
            RunningRole::Scheduler(Box::new(scheduler))
        }
        NodeConfig::Worker(config) => {
            tokio::spawn(refuse_transfers(offers));
            let worker = worker::start(config, &net, bulk, notary).await?;
            status.set_notes(worker.notes());
            RunningRole::Worker(worker)
        }
        NodeConfig::Data(config) => {
            tokio::spawn(refuse_transfers(offers));
            data::start(config, &net).await?;
            RunningRole::Passive
        }
    };
    Ok(Node { role, net, events, status, running_role, _data_dir: data_dir })
}

struct Node {
    role: NodeRole,
    net: Net,
    events: mpsc::Receiver<NetEvent>,
    status: Arc<Status>,
    running_role: RunningRole,
    _data_dir: Option<DataDirLock>,
}

/// The running part of a role.
enum RunningRole {
    Scheduler(Box<Scheduler>),
    Worker(worker::RunningWorker),
    Passive,
}

impl Node {
    /// Handles events until a signal arrives, then leaves the network.
    async fn run_until_signal(mut self, mut signals: Signals) -> Result<(), NodeError> {
        loop {
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(event) => self.on_event(event),
                    None => return Err(NodeError::failed("the network has stopped, so this node stops too")),
                },
                signal = signals.next() => {
                    tracing::info!("{signal}: stopping");
                    signals.coalesce().await;
                    break;
                }
            }
        }
        signals.exit_on_next_signal();
        let net = self.net.clone();
        let stop = async {
            match self.running_role {
                RunningRole::Scheduler(scheduler) => scheduler.stop().await,
                RunningRole::Worker(worker) => worker.stop().await,
                RunningRole::Passive => {}
            }
            net.stop().await;
        };
        match tokio::time::timeout(STOP_TIMEOUT, stop).await {
            Ok(()) => tracing::info!("stopped"),
            Err(_) => tracing::warn!("the node did not stop in time; exiting anyway"),
        }
        Ok(())
    }

    fn on_event(&self, event: NetEvent) {
        match event {
            NetEvent::Listening(address) => tracing::info!(%address, "listening"),
            NetEvent::ReachabilityChanged(reached) => {
                self.log_reachability(&reached);
                if let RunningRole::Worker(worker) = &self.running_role {
                    worker.reachability_changed(matches!(reached, Reachability::Relayed(_)));
                }
            }
            NetEvent::GatewayChanged(address, peer) => {
                match peer {
                    Some(peer) => tracing::info!(%address, %peer, "connected to a gateway"),
                    None => tracing::debug!(%address, "no longer connected to a gateway"),
                }
                self.status.set_gateway_connected(address, peer.is_some());
                self.notify_discovery(DiscoveryHandle::refresh);
            }
            NetEvent::PeerConnected(peer) => {
                gateway::log_peer(self.role, &peer);
                self.notify_discovery(|discovery| discovery.joined(peer.id));
            }
            NetEvent::LinkChanged(peer) => {
                tracing::info!(peer = %peer.id, role = %peer.role, link = %peer.link, "link changed");
            }
            NetEvent::PeerDisconnected(peer) if self.role == NodeRole::Gateway => {
                tracing::info!(%peer, "peer disconnected");
            }
            NetEvent::PeerDisconnected(peer) => tracing::debug!(%peer, "peer disconnected"),
            NetEvent::WorkerAnnounced(found) => {
                self.notify_discovery(|discovery| discovery.announced(found));
            }
            NetEvent::NodeLeft(peer) => self.notify_discovery(|discovery| discovery.left(peer)),
            NetEvent::AdvertReceived { from, organisation, addresses, advert } => {
                if let RunningRole::Worker(worker) = &self.running_role {
                    worker.advert_received((from, organisation), addresses, *advert);
                }
            }
            NetEvent::AdvertClosed { from, advert } => {
                if let RunningRole::Worker(worker) = &self.running_role {
                    worker.advert_closed(from, advert);
                }
            }
            NetEvent::RequestReceived(request) => self.respond(request),
        }
    }

    fn notify_discovery(&self, notify: impl FnOnce(&DiscoveryHandle)) {
        if let RunningRole::Scheduler(scheduler) = &self.running_role {
            notify(scheduler.discovery());
        }
    }

    /// Logs how other nodes reach this one, and what the operator can do about it.
    fn log_reachability(&self, reached: &Reachability) {
        match reached {
            Reachability::Public(addresses) => {
                tracing::info!(addresses = %comma_separated(addresses), "reachability: public; others connect directly");
            }
            Reachability::Assumed(addresses) => {
                tracing::info!(addresses = %comma_separated(addresses), "reachability: assumed where it listens; if other machines cannot connect, forward the port and set external_addresses");
            }
            Reachability::Relayed(addresses) => {
                tracing::info!(addresses = %comma_separated(addresses), "reachability: relayed through gateways; to be reached directly, forward a port and set external_addresses");
            }
            Reachability::Private => {
                tracing::warn!(
                    "reachability: private, and no gateway relays for this node; set relay_circuit = true, or forward a port and set external_addresses"
                );
            }
        }
    }

    /// Responds in a task of its own, so that a slow response does not delay the event loop. Offers are taken at once:
    /// the scheduler's machine is stepped within microseconds.
    fn respond(&self, request: PeerRequest) {
        if let (RequestBody::Offer(_), RunningRole::Scheduler(scheduler)) =
            (&request.body, &self.running_role)
        {
            return respond_to_offer(scheduler, request);
        }
        let status = self.status.clone();
        let span = tracing::info_span!("request", peer = %request.peer.id, body = ?request.body);
        if let Some(traceparent) = &request.traceparent {
            hypha_telemetry::continue_trace(&span, traceparent);
        }
        let response = async move {
            if request.deadline <= Instant::now() {
                return;
            }
            let body = match request.body {
                RequestBody::Health => ResponseBody::Health(status.health().await),
                // Those that the network itself does not answer.
                _ => ResponseBody::Refused(Refusal::new(
                    RefusalKind::UnknownRequest,
                    "this node does not support this request",
                )),
            };
            let _ = request.responder.send(body);
        };
        tokio::spawn(response.instrument(span));
    }
}

fn respond_to_offer(scheduler: &Scheduler, PeerRequest { peer, body, responder, .. }: PeerRequest) {
    let RequestBody::Offer(offer) = body else { return };
    let body = match scheduler.receive_offer(&peer, *offer) {
        Ok(()) => ResponseBody::OfferReceived,
        Err(refusal) => ResponseBody::Refused(refusal),
    };
    let _ = responder.send(body);
}

/// Refuses every transfer: these roles do not accept tensors or files yet.
async fn refuse_transfers(mut offers: mpsc::Receiver<Incoming>) {
    while let Some(offer) = offers.recv().await {
        tracing::debug!(
            peer = offer.peer().as_str(),
            name = offer.header().name,
            "refused a transfer"
        );
        offer.refuse("this node expects no transfers").await;
    }
}

fn comma_separated<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
