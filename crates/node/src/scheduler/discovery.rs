//! Finds workers of the swarm, and stays connected to them. The machine chooses which of them are used.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hypha_model::{CapabilityQuery, NodeRole, Worker};
use hypha_net::{FoundWorker, Multiaddr, Net, Peer, PeerId};
use hypha_wire::request::{RequestBody, ResponseBody};
use tokio::sync::mpsc;
use tracing::Instrument;

use super::core::SchedulerCore;
use super::names::WorkerNames;
use super::worker_channels::{WorkerChannel, WorkerChannels};

/// Events queued for the discovery loop, which takes the next one within the time of a search.
const MAX_QUEUED_EVENTS: usize = 1_024;

/// How soon the next search comes while a known worker is not connected: it is back by then, or its record has expired.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(10);

/// How soon the next search comes until a worker is found: the first may come before the directory has any records.
const FIRST_SEARCH_INTERVAL: Duration = Duration::from_secs(2);

/// How long a worker that was not found, but made an offer, may be disconnected before it counts as gone: longer than
/// its network needs to recover from most faults, and than most leases last.
const OFFERED_GONE_AFTER: Duration = Duration::from_secs(120);

/// How long a worker may take to respond to the first health request.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);

/// A handle to the discovery loop.
pub(crate) struct DiscoveryHandle {
    events: mpsc::Sender<DiscoveryEvent>,
}

enum DiscoveryEvent {
    Refresh,
    Announced(Box<FoundWorker>),
    Offered(Box<FoundWorker>),
    Joined(PeerId),
    Left(PeerId),
}

impl DiscoveryHandle {
    pub(super) fn start(
        net: Net,
        interval: Duration,
        core: Weak<SchedulerCore>,
        channels: Arc<WorkerChannels>,
        names: &Arc<WorkerNames>,
    ) -> DiscoveryHandle {
        let (events, received) = mpsc::channel(MAX_QUEUED_EVENTS);
        let names = names.clone();
        let search = Discovery { net, interval, core, channels, names, known: HashMap::new() };
        tokio::spawn(search.run(received));
        DiscoveryHandle { events }
    }

    /// Searches again: the directory may have more records now.
    pub(crate) fn refresh(&self) {
        self.send(DiscoveryEvent::Refresh);
    }

    pub(crate) fn announced(&self, found: FoundWorker) {
        self.send(DiscoveryEvent::Announced(Box::new(found)));
    }

    /// A worker made an offer. It may be in no list of the directory.
    pub(super) fn offered(&self, peer: &Peer, worker: &Worker, addresses: &[Vec<u8>]) {
        let address = |bytes: &Vec<u8>| Multiaddr::try_from(bytes.clone()).ok();
        let found = FoundWorker {
            peer: peer.id,
            name: None,
            organisation: peer.organisation.clone(),
            worker: worker.clone(),
            addresses: addresses.iter().filter_map(address).collect(),
            bulk_addresses: Vec::new(),
            // Every record of the worker is newer.
            sequence: 0,
        };
        self.send(DiscoveryEvent::Offered(Box::new(found)));
    }

    pub(crate) fn joined(&self, peer: PeerId) {
        self.send(DiscoveryEvent::Joined(peer));
    }

    pub(crate) fn left(&self, peer: PeerId) {
        self.send(DiscoveryEvent::Left(peer));
    }

    fn send(&self, event: DiscoveryEvent) {
        // If the queue is full, the next search finds the change.
        let _ = self.events.try_send(event);
    }
}

struct Discovery {
    net: Net,
    interval: Duration,
    core: Weak<SchedulerCore>,
    channels: Arc<WorkerChannels>,
    names: Arc<WorkerNames>,
    known: HashMap<PeerId, KnownWorker>,
}

struct KnownWorker {
    found: FoundWorker,
    channel: WorkerChannel,
    /// When it was last seen to be connected.
    last_connected: Instant,
}

/// What a search has brought.
struct SearchResult {
    found: Vec<FoundWorker>,
    peers: Vec<Peer>,
}

async fn search(net: Net) -> SearchResult {
    let found = net.get_records_matching(CapabilityQuery::default()).await;
    SearchResult { found, peers: net.peers().await }
}

impl Discovery {
    async fn run(mut self, mut received: mpsc::Receiver<DiscoveryEvent>) {
        loop {
            let search = search(self.net.clone());
            tokio::pin!(search);
            // Offers and announcements do not wait for the search.
            let result = loop {
                tokio::select! {
                    result = &mut search => break result,
                    event = received.recv() => match event {
                        Some(event) => drop(self.handle(event).await),
                        None => return,
                    },
                }
            };
            let all_connected = self.refresh(result).await;
            let pause = match (self.known.is_empty(), all_connected) {
                (true, _) => FIRST_SEARCH_INTERVAL.min(self.interval),
                (false, false) => RECONNECT_INTERVAL.min(self.interval),
                (false, true) => self.interval,
            };
            let due = tokio::time::sleep(pause);
            tokio::pin!(due);
            loop {
                tokio::select! {
                    () = &mut due => break,
                    event = received.recv() => match event {
                        Some(event) => if self.handle(event).await { break },
                        None => return,
                    },
                }
            }
        }
    }

    /// Handles an event. Returns whether to search at once.
    async fn handle(&mut self, event: DiscoveryEvent) -> bool {
        match event {
            DiscoveryEvent::Refresh => return true,
            DiscoveryEvent::Announced(found) => self.found(*found).await,
            DiscoveryEvent::Offered(found) => match self.known.get(&found.peer) {
                // It is connected, since it has made an offer.
                Some(known) => known.channel.connected(),
                None => self.found(*found).await,
            },
            DiscoveryEvent::Joined(peer) => self.joined(peer),
            DiscoveryEvent::Left(peer) => self.lost(peer, "it sent a farewell").await,
        }
        false
    }

    /// Takes the result of a search. Returns whether all known workers are connected.
    async fn refresh(&mut self, SearchResult { found, peers }: SearchResult) -> bool {
        let now = Instant::now();
        let found_peers: HashSet<_> = found.iter().map(|found| found.peer).collect();
        for found in found {
            self.found(found).await;
        }
        // Without a gateway no directory was searched: a worker that was not found may still exist.
        let searched = peers.iter().any(|peer| peer.role == NodeRole::Gateway);
        let connected: HashSet<_> = peers.iter().map(|peer| peer.id).collect();
        let disconnected: Vec<_> =
            self.known.keys().filter(|peer| !connected.contains(peer)).copied().collect();
        for (_, known) in self.known.iter_mut().filter(|(peer, _)| connected.contains(peer)) {
            known.last_connected = now;
        }
        // A list does not hold all workers of a large network, and those that it lacks may return.
        let is_gone = |peer: &PeerId| {
            self.known.get(peer).is_none_or(|known| {
                known.found.sequence > 0
                    || now.duration_since(known.last_connected) > OFFERED_GONE_AFTER
            })
        };
        let is_lost = |peer: &&PeerId| searched && !found_peers.contains(peer) && is_gone(peer);
        let lost: Vec<_> = disconnected.iter().filter(is_lost).copied().collect();
        for peer in lost {
            self.lost(peer, "its record has expired").await;
        }
        disconnected.is_empty()
    }

    async fn found(&mut self, found: FoundWorker) {
        let peer = found.peer;
        if let Some(name) = &found.name {
            self.names.put(found.worker.id, name);
        }
        if let Some(known) = self.known.get_mut(&peer) {
            if known.found.sequence > found.sequence {
                return;
            }
            if known.found.worker != found.worker {
                known.channel.set_worker(&found.worker);
                if let Some(core) = self.core.upgrade() {
                    let worker = Arc::new(found.worker.clone());
                    core.handle_event(hypha_engine::SchedulerEvent::WorkerFound(worker));
                }
            }
            if known.found.addresses != found.addresses {
                self.net.add_persistent_peer(peer, found.addresses.clone()).await;
            }
            known.found = found;
            return;
        }
        let (worker, organisation) = (&found.worker, &found.organisation);
        let name = found.name.as_deref().unwrap_or_default();
        tracing::info!(%peer, name, worker = %worker.id, organisation, "found a worker");
        self.net.add_persistent_peer(peer, found.addresses.clone()).await;
        let (net, core, channels) = (self.net.clone(), self.core.clone(), self.channels.clone());
        let channel = WorkerChannel::new(net, core, channels, peer, found.worker.clone());
        let last_connected = Instant::now();
        self.known.insert(peer, KnownWorker { found, channel, last_connected });
    }

    /// Opens the channel of a worker that has just connected, and requests its health: a connection that carries no
    /// responses is noticed at once.
    fn joined(&self, peer: PeerId) {
        let Some(known) = self.known.get(&peer) else { return };
        known.channel.connected();
        let net = self.net.clone();
        let check = async move {
            let response = net.request(
                peer,
                RequestBody::Health,
                HEALTH_TIMEOUT,
                hypha_telemetry::traceparent(),
            );
            match response.await {
                Ok(ResponseBody::Health(health)) => {
                    tracing::info!(%peer, version = health.version, ready = health.ready, "a worker answers");
                }
                Ok(_) => {
                    tracing::warn!(%peer, "a worker sent an unexpected response to a health request")
                }
                Err(error) => {
                    tracing::warn!(%peer, "a connected worker does not respond to a health request: {error}")
                }
            }
        };
        tokio::spawn(check.instrument(tracing::info_span!("check worker health", %peer)));
    }

    async fn lost(&mut self, peer: PeerId, why: &str) {
        if let Some(known) = self.known.remove(&peer) {
            tracing::info!(%peer, worker = %known.found.worker.id, "a worker left the network: {why}");
            self.net.remove_persistent_peer(peer).await;
        }
    }
}
