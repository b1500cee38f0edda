//! The one task that drives libp2p: commands in, events out, and a tick for timers.

mod directory;
mod gateways;
mod gossip;
mod outbox;
mod persistent;
mod requests;
mod revocation;
mod routing;
mod shared_keys;

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use hypha_model::{AdvertId, CapabilityQuery, Name, NodeRole};
use hypha_pki::{LoadError, Pki, Reloader};
use hypha_wire::market::Advert;
use hypha_wire::request::{RequestBody, ResponseBody};
use libp2p::core::ConnectedPoint;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, ListenError, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, identify, kad, multiaddr::Protocol, ping};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, oneshot};

use self::directory::Directory;
pub(crate) use self::directory::write_addresses;
use self::gateways::Gateways;
use self::gossip::Gossip;
use self::outbox::Outbox;
use self::persistent::PersistentPeers;
use self::requests::RequestTracker;
use self::revocation::Revocation;
pub(crate) use self::revocation::numbers_in_use;
use self::routing::DirectoryServers;
use self::shared_keys::SharedKeys;
pub(crate) use self::shared_keys::agent;
use crate::behaviour::{Behaviour, BehaviourEvent, KAD_PROTOCOL};
use crate::bulk::SharedContext;
use crate::gatekeeper::{Gatekeeper, RECHECK_INTERVAL};
use crate::guard::{Guard, ip_of, socket_of};
use crate::handle::{
    FoundDataset, FoundWorker, NetEvent, Peer, Publication, RequestError, StartError,
};
use crate::metrics::{Metrics, PeerLabels};
use crate::peers::{self, Link};
use crate::port::check_port_free;
use crate::rate::RateLimiter;
use crate::settings::Settings;
use crate::statement::Verifier;
use crate::transport::transport;
use crate::upgrade::UpgradeError;

/// How often timers are checked.
const TICK: Duration = Duration::from_millis(500);
/// How often certificate files are checked: a revocation takes effect within a few seconds.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// How long leaving may take: long enough for a farewell to be written to the gateways.
const FAREWELL_TIMEOUT: Duration = Duration::from_millis(400);
/// Lines about refused connections per second; the others are only counted.
const REFUSAL_LOGS_PER_SECOND: u32 = 2;

pub(crate) enum Command {
    Publish(Publication),
    FindWorkers {
        query: CapabilityQuery,
        reply: oneshot::Sender<Vec<FoundWorker>>,
    },
    FindDataset {
        name: Name,
        reply: oneshot::Sender<Vec<FoundDataset>>,
    },
    AddPersistentPeer {
        peer: PeerId,
        addresses: Vec<Multiaddr>,
    },
    RemovePersistentPeer(PeerId),
    Dial {
        address: Multiaddr,
        reply: oneshot::Sender<Result<PeerId, String>>,
    },
    Request {
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        body: RequestBody,
        deadline: Duration,
        traceparent: Option<String>,
        reply: oneshot::Sender<Result<ResponseBody, RequestError>>,
    },
    PublishAdvert(Box<Advert>),
    CloseAdvert(AdvertId),
    Peers(oneshot::Sender<Vec<Peer>>),
    Addresses(oneshot::Sender<Vec<Multiaddr>>),
    BulkListening(Vec<SocketAddr>),
    Stop(oneshot::Sender<()>),
}

pub(crate) struct Driver {
    swarm: Swarm<Behaviour>,
    settings: Settings,
    gatekeeper: Arc<Gatekeeper>,
    guard: Guard,
    metrics: Metrics,
    commands: mpsc::Receiver<Command>,
    outbox: Outbox,
    reloader: Option<Reloader>,
    verifier: Verifier,
    gateways: Gateways,
    servers: DirectoryServers,
    directory: Directory,
    gossip: Gossip,
    requests: RequestTracker,
    persistent: PersistentPeers,
    revocation: Revocation,
    bulk_listeners: Vec<SocketAddr>,
    dials: HashMap<ConnectionId, oneshot::Sender<Result<PeerId, String>>>,
    round_trips: HashMap<PeerId, Duration>,
    shared_keys: SharedKeys,
    refusal_log: RateLimiter<()>,
    next_recheck: Instant,
}

impl Driver {
    pub(crate) fn new(
        settings: Settings,
        pki: Pki,
        reloader: Option<Reloader>,
        registry: &mut Registry,
        own_commands: mpsc::WeakSender<Command>,
        commands: mpsc::Receiver<Command>,
        events: mpsc::Sender<NetEvent>,
    ) -> Result<Driver, StartError> {
        let role = pki.own().role;
        if role != settings.role {
            return Err(StartError::Role { certificate: role, wanted: settings.role });
        }
        let keypair = pki.keypair().clone();
        let own = keypair.public().to_peer_id();
        let gatekeeper = Arc::new(Gatekeeper::new(pki));
        let guard = Guard::new(settings.excluded.clone());
        for address in settings.gateways.iter().chain(&settings.external) {
            socket_of(address).into_iter().for_each(|socket| guard.allow_configured(socket));
        }
        let (transport, relay_client) =
            transport(&settings, own, gatekeeper.clone(), guard.clone());
        let behaviour = Behaviour::new(&settings, gatekeeper.clone(), &keypair, relay_client)
            .map_err(StartError::Setup)?;
        let config = libp2p::swarm::Config::with_tokio_executor()
            .with_idle_connection_timeout(settings.limits.idle_timeout);
        let mut swarm = Swarm::new(transport, behaviour, own, config);
        for address in &settings.listen {
            let failed = |problem| StartError::Listen { address: address.clone(), problem };
            check_port_free(address).map_err(|error| failed(error.to_string()))?;
            swarm.listen_on(address.clone()).map_err(|error| failed(root_cause(&error)))?;
        }
        for address in &settings.external {
            swarm.add_external_address(address.clone());
        }
        let metrics = Metrics::register(registry);
        let learned = reloader.as_ref().map(|reloader| reloader.learned().clone());
        Ok(Driver {
            revocation: Revocation::new(learned, own_commands),
            gateways: Gateways::new(&settings.gateways),
            outbox: Outbox::new(events, metrics.clone()),
            requests: RequestTracker::new(settings.limits.requests_per_peer),
            swarm,
            settings,
            gatekeeper,
            guard,
            metrics,
            commands,
            reloader,
            verifier: Verifier::new(),
            servers: DirectoryServers::default(),
            directory: Directory::new(),
            gossip: Gossip::new(),
            persistent: PersistentPeers::default(),
            bulk_listeners: Vec::new(),
            dials: HashMap::new(),
            round_trips: HashMap::new(),
            shared_keys: SharedKeys::default(),
            refusal_log: RateLimiter::new(REFUSAL_LOGS_PER_SECOND, 10, 1),
            next_recheck: Instant::now() + RECHECK_INTERVAL,
        })
    }

    pub(crate) fn own(&self) -> PeerId {
        *self.swarm.local_peer_id()
    }

    /// Runs until it is asked to stop, or until all handles are dropped.
    pub(crate) async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut reloads = watch_certificate_files(self.reloader.take());
        self.update_mode();
        self.offer_crls();
        loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_swarm(event),
                command = self.commands.recv() => match command {
                    Some(Command::Stop(reply)) => {
                        self.leave().await;
                        let _ = reply.send(());
                        return;
                    }
                    Some(command) => self.on_command(command),
                    None => return self.leave().await,
                },
                response = self.requests.next_response() => self.send_response(response),
                () = self.outbox.flush() => {}
                _ = tick.tick() => self.on_tick(Instant::now()),
                Some(reloaded) = reloads.recv() => self.on_reloaded(reloaded),
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Publish(publication) => self.publish(publication),
            Command::FindWorkers { query, reply } => self.find_workers(query, reply),
            Command::FindDataset { name, reply } => self.find_dataset(name, reply),
            Command::AddPersistentPeer { peer, addresses } => {
                self.add_persistent_peer(peer, addresses)
            }
            Command::RemovePersistentPeer(peer) => self.remove_persistent_peer(peer),
            Command::Dial { address, reply } => self.dial(address, reply),
            Command::Request { peer, addresses, body, deadline, traceparent, reply } => {
                self.request((peer, addresses), body, deadline, traceparent, reply);
            }
            Command::PublishAdvert(advert) => self.publish_advert(*advert),
            Command::CloseAdvert(advert) => self.close_advert(advert),
            Command::Peers(reply) => {
                let connected: Vec<_> = self.swarm.behaviour().peers.connected().copied().collect();
                let peers = connected.iter().filter_map(|peer| self.peer(peer)).collect();
                let _ = reply.send(peers);
            }
            Command::Addresses(reply) => {
                let _ = reply.send(self.own_addresses());
            }
            Command::BulkListening(listeners) => {
                self.bulk_listeners = listeners;
                self.directory.addresses_changed();
            }
            Command::Stop(reply) => {
                let _ = reply.send(());
            }
        }
    }

    fn on_tick(&mut self, now: Instant) {
        self.dial_gateways(now);
        self.dial_persistent_peers(now);
        self.follow_gateways();
        self.refresh_publication(now);
        self.finish_expired_searches(now);
        self.swarm.behaviour_mut().peers.close_superseded(now);
        self.swarm.behaviour_mut().kad.store_mut().expire(now);
        let kept = self.swarm.behaviour_mut().kad.store_mut().len();
        self.metrics.records.set(i64::try_from(kept).unwrap_or(i64::MAX));
        self.report_reachability(now);
        if now >= self.next_recheck {
            self.next_recheck = now + RECHECK_INTERVAL;
            self.disconnect_rejected();
            let peers = &self.swarm.behaviour().peers;
            self.gatekeeper.sweep(|peer| peers.link(peer).is_some());
        }
    }

    fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour(event),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed { connection_id, .. } => {
                self.shared_keys.closed(connection_id);
                self.count_shared_keys();
            }
            SwarmEvent::NewListenAddr { address, .. } => self.on_listening(address),
            SwarmEvent::ExternalAddrConfirmed { .. } | SwarmEvent::ExternalAddrExpired { .. } => {
                self.on_addresses_changed();
            }
            SwarmEvent::ExpiredListenAddr { .. } => self.on_addresses_changed(),
            SwarmEvent::ListenerClosed { listener_id, reason, .. } => {
                self.on_listener_closed(listener_id, reason.err());
            }
            SwarmEvent::ListenerError { error, .. } => {
                tracing::warn!("a listener had an error and goes on: {error}");
            }
            SwarmEvent::IncomingConnectionError { error, send_back_addr, .. } => {
                self.on_refused(&send_back_addr, &error);
            }
            SwarmEvent::OutgoingConnectionError { connection_id, peer_id, error } => {
                self.on_dial_failed(connection_id, peer_id, &error);
            }
            _ => {}
        }
    }

    fn on_behaviour(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Peers(event) => self.on_peers(event),
            BehaviourEvent::Identify(identify::Event::Received {
                connection_id,
                peer_id,
                info,
            }) => {
                let now = Instant::now();
                self.shared_keys.identified(now, connection_id, peer_id, &info.agent_version);
                self.on_identified(peer_id, info);
            }
            BehaviourEvent::Ping(event) => self.on_ping(event),
            BehaviourEvent::Kad(event) => self.on_kad(event),
            BehaviourEvent::Gossip(event) => self.on_gossip(event),
            BehaviourEvent::Requests(event) => self.on_requests(event),
            BehaviourEvent::Dcutr(event) => match event.result {
                Ok(_) => {
                    tracing::info!(peer = %event.remote_peer_id, "hole punched: the link is direct")
                }
                Err(error) => {
                    tracing::info!(peer = %event.remote_peer_id, "hole punching failed, the link stays relayed: {error}")
                }
            },
            BehaviourEvent::RelayServer(event) => tracing::debug!(?event, "relay"),
            BehaviourEvent::RelayClient(event) => tracing::debug!(?event, "relay client"),
            BehaviourEvent::AutonatClient(event) => {
                tracing::debug!(address = %event.tested_addr, result = ?event.result, "reachability probe");
            }
            _ => {}
        }
    }

    /// Only this ends a connection that has fallen silent: the kernel keeps it for a quarter of an hour. A
    /// failure is reported from the second in a row on.
    fn on_ping(&mut self, event: ping::Event) {
        if event.result.is_ok()
            && let Some(peer) = self.shared_keys.responded(Instant::now(), event.connection)
        {
            let addresses = self.swarm.behaviour().peers.addresses(&peer);
            tracing::warn!(
                %peer, ?addresses,
                "several nodes use the key of this peer at once, and tasks and messages for one reach the other: stop one of \
                 them, and issue it a certificate of its own"
            );
            self.count_shared_keys();
        }
        match event.result {
            Ok(rtt) if self.swarm.behaviour().peers.link(&event.peer).is_some() => {
                self.round_trips.insert(event.peer, rtt);
            }
            Ok(_) | Err(ping::Failure::Unsupported) => {}
            Err(failure) => {
                tracing::info!(peer = %event.peer, "the peer is unresponsive, closing the connection: {failure}");
                self.swarm.close_connection(event.connection);
            }
        }
    }

    fn count_shared_keys(&self) {
        let count = i64::try_from(self.shared_keys.count()).unwrap_or(i64::MAX);
        self.metrics.shared_keys.set(count);
    }

    fn on_peers(&mut self, event: peers::Event) {
        match event {
            peers::Event::Connected(id, link) => {
                let Some(peer) = self.peer(&id) else { return };
                tracing::debug!(peer = %id, role = %peer.role, organisation = peer.organisation, %link, "peer connected");
                self.count_peer(&peer, 1);
                self.offer_remaining_crls();
                self.outbox.push(NetEvent::PeerConnected(peer));
            }
            peers::Event::LinkChanged(id, link) => {
                tracing::debug!(peer = %id, %link, "link changed");
                self.recount_peers();
                if let Some(peer) = self.peer(&id) {
                    self.outbox.push(NetEvent::LinkChanged(peer));
                }
            }
            peers::Event::Disconnected(id) => {
                tracing::debug!(peer = %id, "peer disconnected");
                self.round_trips.remove(&id);
                self.requests.peer_disconnected(&id);
                self.recount_peers();
                self.on_gateway_disconnected(&id);
                self.outbox.push(NetEvent::PeerDisconnected(id));
            }
        }
    }

    fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        if let Some(reply) = self.dials.remove(&connection) {
            let _ = reply.send(Ok(peer));
        }
        self.persistent.connected(&peer);
        self.on_gateway_connected(peer, connection, endpoint);
    }

    fn on_listening(&mut self, address: Multiaddr) {
        let is_circuit = address.iter().any(|part| part == Protocol::P2pCircuit);
        if !is_circuit {
            // A gateway is there to be reached: the addresses it listens on are its own unless others are configured.
            if self.settings.role == NodeRole::Gateway && self.settings.external.is_empty() {
                self.swarm.add_external_address(address.clone());
                if let Some(ip) = ip_of(&address)
                    && !self.settings.excluded_is_configured
                    && (!ip.is_loopback() || self.listens_on_loopback_only())
                {
                    self.guard.include_ranges_of(ip);
                }
            }
            let shown = address.clone().with(Protocol::P2p(self.own()));
            self.outbox.push(NetEvent::Listening(shown));
        }
        self.on_addresses_changed();
    }

    fn listens_on_loopback_only(&self) -> bool {
        self.settings.listen.iter().all(|address| ip_of(address).is_some_and(|ip| ip.is_loopback()))
    }

    fn on_addresses_changed(&mut self) {
        self.update_mode();
        self.directory.addresses_changed();
    }

    /// Serves the directory if others can reach this node directly.
    fn update_mode(&mut self) {
        let mode = match self.public_addresses().is_empty() {
            true => kad::Mode::Client,
            false => kad::Mode::Server,
        };
        if self.swarm.behaviour().kad.mode() != mode {
            self.swarm.behaviour_mut().kad.set_mode(Some(mode));
        }
    }

    fn on_identified(&mut self, peer: PeerId, info: identify::Info) {
        let serves = info.protocols.contains(&KAD_PROTOCOL);
        let addresses: Vec<_> = info
            .listen_addrs
            .into_iter()
            .filter(|one| !one.iter().any(|part| part == Protocol::P2pCircuit))
            .filter(|one| self.guard.allows_address(one))
            .collect();
        self.on_directory_server(peer, if serves { addresses } else { Vec::new() });
    }

    fn on_refused(&mut self, address: &Multiaddr, error: &ListenError) {
        // A relayed dial that lost a race against a direct one ends like this too, and so does a probe of this node with
        // its own certificate.
        let harmless = matches!(error, ListenError::LocalPeerId { .. });
        if ip_of(address).is_none() || harmless {
            return tracing::debug!(%address, "a connection failed: {}", root_cause(error));
        }
        self.metrics.refused_connections.inc();
        if self.refusal_log.take((), Instant::now()) {
            tracing::info!(%address, "refused a connection: {}", root_cause(error));
        }
    }

    fn on_dial_failed(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        error: &DialError,
    ) {
        let problem = root_cause(error);
        tracing::debug!(?peer, "cannot connect: {problem}");
        if let Some(reply) = self.dials.remove(&connection) {
            let _ = reply.send(Err(problem.clone()));
        }
        self.on_gateway_failed(connection, &problem);
        if let Some(peer) = peer {
            self.persistent.failed(&peer, Instant::now());
        }
    }

    fn dial(&mut self, address: Multiaddr, reply: oneshot::Sender<Result<PeerId, String>>) {
        socket_of(&address).into_iter().for_each(|socket| self.guard.allow_configured(socket));
        let named = DialOpts::from(address.clone()).get_peer_id();
        // From a port of its own: an earlier connection to the same address may still use the shared one.
        let options = match named {
            Some(peer) => {
                let always = PeerCondition::Always;
                let options = DialOpts::peer_id(peer).addresses(vec![address]).condition(always);
                options.allocate_new_port().build()
            }
            None => DialOpts::unknown_peer_id().address(address).allocate_new_port().build(),
        };
        let connection = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.dials.insert(connection, reply);
            }
            Err(error) => {
                let _ = reply.send(Err(root_cause(&error)));
            }
        }
    }

    fn on_reloaded(&mut self, reloaded: Result<Pki, LoadError>) {
        match reloaded {
            Ok(pki) => {
                tracing::info!("certificate files changed and are in use");
                self.gatekeeper.replace_credentials(pki);
                self.verifier.clear_cache();
                // Records of peers that are revoked now must no longer be served.
                let (credentials, verifier) = (self.gatekeeper.credentials(), &mut self.verifier);
                let record_sets = self.swarm.behaviour_mut().kad.store_mut();
                record_sets
                    .retain_verified(|signed| verifier.verify(&credentials.pki, signed).is_ok());
                self.directory.addresses_changed();
                self.disconnect_rejected();
                self.offer_crls();
            }
            Err(error) => {
                tracing::warn!(
                    "certificate files changed and cannot be used; the old ones stay: {error}"
                );
            }
        }
    }

    fn disconnect_rejected(&mut self) {
        for (peer, rejected) in self.gatekeeper.rejected_peers() {
            if self.swarm.behaviour().peers.link(&peer).is_some() {
                tracing::warn!(%peer, "disconnected: {rejected}");
                self.metrics.expelled.inc();
                self.swarm.behaviour_mut().peers.disconnect(peer);
            }
        }
    }

    fn peer(&self, id: &PeerId) -> Option<Peer> {
        let admitted = self.gatekeeper.admitted(id)?;
        let peers = &self.swarm.behaviour().peers;
        Some(Peer {
            id: *id,
            role: admitted.certificate.role,
            organisation: admitted.certificate.organisation.clone(),
            link: peers.link(id)?,
            rtt: self.round_trips.get(id).copied(),
            address: peers.address(id)?.clone(),
        })
    }

    fn count_peer(&self, peer: &Peer, change: i64) {
        self.metrics.peers.get_or_create(&peer_labels(peer)).inc_by(change);
    }

    fn recount_peers(&self) {
        self.metrics.peers.clear();
        let connected: Vec<_> = self.swarm.behaviour().peers.connected().copied().collect();
        for peer in connected.iter().filter_map(|peer| self.peer(peer)) {
            self.count_peer(&peer, 1);
        }
    }

    /// Confirmed or configured addresses that are not relayed.
    fn public_addresses(&self) -> Vec<Multiaddr> {
        let direct = |address: &&Multiaddr| !address.iter().any(|p| p == Protocol::P2pCircuit);
        self.swarm.external_addresses().filter(direct).cloned().collect()
    }

    /// Where others may try to reach this node, best first: confirmed addresses, then candidates, then relayed ones.
    fn own_addresses(&self) -> Vec<Multiaddr> {
        let mut addresses = self.public_addresses();
        let relayed = |address: &&Multiaddr| address.iter().any(|p| p == Protocol::P2pCircuit);
        let direct = self.swarm.listeners().filter(|address| !relayed(address));
        for address in direct.chain(self.swarm.listeners().filter(relayed)) {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        addresses
    }

    /// Where others may try to reach this node's bulk listeners: as configured, or at the addresses where this node
    /// listens, with the listeners' ports.
    fn bulk_addresses(&self) -> Vec<Multiaddr> {
        if !self.settings.bulk_external.is_empty() {
            return self.settings.bulk_external.clone();
        }
        let mut addresses: Vec<Multiaddr> = Vec::new();
        for listener in &self.bulk_listeners {
            let ips: Vec<_> = match listener.ip().is_unspecified() {
                true => self.own_addresses().iter().filter_map(direct_ip).collect(),
                false => vec![listener.ip()],
            };
            for ip in ips {
                let address = Multiaddr::from(ip).with(Protocol::Tcp(listener.port()));
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        addresses
    }

    /// The parts of the network that are shared with code outside the swarm.
    pub(crate) fn shared(&self) -> SharedContext {
        SharedContext {
            gatekeeper: self.gatekeeper.clone(),
            guard: self.guard.clone(),
            streams: self.swarm.behaviour().streams.new_control(),
            bulk_listen: self.settings.bulk_listen.clone(),
        }
    }

    async fn leave(&mut self) {
        self.publish_farewell();
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, async {
            loop {
                let event = self.swarm.select_next_some().await;
                if let SwarmEvent::Behaviour(BehaviourEvent::Requests(_)) = event {
                    continue;
                }
            }
        })
        .await;
    }
}

/// Checks the certificate files periodically, outside the loop: a file system that hangs must not stop the network.
fn watch_certificate_files(reloader: Option<Reloader>) -> mpsc::Receiver<Result<Pki, LoadError>> {
    let (changed, changes) = mpsc::channel(1);
    if let Some(mut reloader) = reloader {
        tokio::spawn(async move {
            while !changed.is_closed() {
                tokio::time::sleep(RELOAD_INTERVAL).await;
                let polled = tokio::task::spawn_blocking(move || {
                    let polled = reloader.poll();
                    (reloader, polled)
                });
                let Ok((same, polled)) = polled.await else { return };
                reloader = same;
                if let Some(polled) = polled
                    && changed.send(polled).await.is_err()
                {
                    return;
                }
            }
        });
    }
    changes
}

/// The IP of an address that is not relayed.
fn direct_ip(address: &Multiaddr) -> Option<std::net::IpAddr> {
    let relayed = address.iter().any(|part| part == Protocol::P2pCircuit);
    if relayed { None } else { ip_of(address) }
}

fn peer_labels(peer: &Peer) -> PeerLabels {
    let link = match peer.link {
        Link::Direct => "direct",
        Link::Relayed => "relayed",
    };
    PeerLabels { role: peer.role.as_str(), link }
}

/// The reason behind an error, in one line: libp2p wraps it in layers that add nothing.
pub(crate) fn root_cause(error: &(dyn Error + 'static)) -> String {
    if let Some(DialError::Transport(tried)) = error.downcast_ref::<DialError>() {
        let tried =
            tried.iter().map(|(address, error)| format!("{address}: {}", root_cause(error)));
        return tried.collect::<Vec<_>>().join("; ");
    }
    let mut reason = error;
    loop {
        if reason.is::<UpgradeError>() {
            return reason.to_string();
        }
        // An I/O error hides the error it was made from: its source is the source of that.
        let inner = reason.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        match inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| reason.source()) {
            Some(deeper) => reason = deeper,
            None => return one_line(&reason.to_string()),
        }
    }
}

/// libp2p lists the problems of several addresses one per line.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(|line| line.trim().trim_start_matches("- "));
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    lines.join(" ").replace("Multiple dial errors occurred: ", "")
}
