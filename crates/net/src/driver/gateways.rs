//! Connections to the gateways, relay reservations there, and the resulting reachability of this node.

use std::time::{Duration, Instant};

use hypha_model::NodeRole;
use libp2p::core::ConnectedPoint;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::{Multiaddr, PeerId};

use super::persistent::backoff;
use super::{Driver, NetEvent};
use crate::handle::Reachability;

/// The longest backoff between two dials of a gateway: after it restarts, all nodes are back well within 30 s.
const MAX_BACKOFF: Duration = Duration::from_secs(8);

/// How long a dial may take before it counts as failed, whatever the transport reports.
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);

/// After the first gateway connected, how long to wait for probes and reservations before the reachability of this
/// node is reported. Probes run every five seconds.
const REACHABILITY_SETTLE_TIME: Duration = Duration::from_secs(12);

pub(super) struct Gateways {
    gateways: Vec<Gateway>,
    first_connected: Option<Instant>,
    reported: Option<Reachability>,
}

struct Gateway {
    address: Multiaddr,
    state: GatewayState,
    failures: u32,
    /// The listener of the relay reservation at this gateway, and when to request the next.
    reservation: Option<ListenerId>,
    next_reservation: Instant,
}

enum GatewayState {
    Waiting { until: Instant },
    Dialling { connection: ConnectionId, since: Instant },
    Connected { peer: PeerId },
}

impl Gateways {
    pub(super) fn new(addresses: &[Multiaddr]) -> Gateways {
        let now = Instant::now();
        let gateway = |address: &Multiaddr| Gateway {
            address: address.clone(),
            state: GatewayState::Waiting { until: now },
            failures: 0,
            reservation: None,
            next_reservation: now,
        };
        Gateways {
            gateways: addresses.iter().map(gateway).collect(),
            first_connected: None,
            reported: None,
        }
    }
}

impl Gateways {
    /// The gateways that are connected.
    pub(super) fn connected(&self) -> impl Iterator<Item = PeerId> {
        self.gateways.iter().filter_map(|gateway| match gateway.state {
            GatewayState::Connected { peer } => Some(peer),
            _ => None,
        })
    }
}

impl Driver {
    /// Dials the gateways that are due, and requests reservations from those that are connected.
    pub(super) fn dial_gateways(&mut self, now: Instant) {
        for index in 0..self.gateways.gateways.len() {
            match self.gateways.gateways[index].state {
                GatewayState::Waiting { until } if until <= now => self.dial_gateway(index, now),
                GatewayState::Dialling { since, .. } if since + DIAL_TIMEOUT <= now => {
                    self.gateway_failed(index, "no answer");
                }
                GatewayState::Connected { peer } => self.update_reservation(index, peer, now),
                _ => {}
            }
        }
    }

    fn dial_gateway(&mut self, index: usize, now: Instant) {
        let address = self.gateways.gateways[index].address.clone();
        self.allow_resolved_addresses(&address);
        let options = DialOpts::from(address);
        let connection = options.connection_id();
        let known = options.get_peer_id();
        if let Some(peer) = known
            && self.swarm.behaviour().peers.link(&peer).is_some()
        {
            return self.confirm_gateway(index, peer);
        }
        self.gateways.gateways[index].state = GatewayState::Dialling { connection, since: now };
        if let Err(error) = self.swarm.dial(options) {
            self.gateway_failed(index, &super::root_cause(&error));
        }
    }

    /// The addresses of a configured name are always dialled. It is resolved at each dial, since it may change.
    fn allow_resolved_addresses(&self, address: &Multiaddr) {
        let mut parts = address.iter();
        let host = match parts.next() {
            Some(Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name)) => {
                Some(name.into_owned())
            }
            _ => None,
        };
        if let (Some(host), Some(Protocol::Tcp(port))) = (host, parts.next()) {
            let guard = self.guard.clone();
            tokio::spawn(async move {
                if let Ok(found) = tokio::net::lookup_host((host.as_str(), port)).await {
                    found.for_each(|address| guard.allow_configured(address));
                }
            });
        }
    }

    pub(super) fn on_gateway_connected(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        endpoint: &ConnectedPoint,
    ) {
        let dialled = self.gateways.gateways.iter().position(|gateway| {
            matches!(gateway.state, GatewayState::Dialling { connection: ours, .. } if ours == connection)
        });
        if let (Some(index), ConnectedPoint::Dialer { .. }) = (dialled, endpoint) {
            self.confirm_gateway(index, peer);
        }
    }

    fn confirm_gateway(&mut self, index: usize, peer: PeerId) {
        let address = self.gateways.gateways[index].address.clone();
        let role = self.gatekeeper.admitted(&peer).map(|admitted| admitted.certificate.role);
        if role != Some(NodeRole::Gateway) {
            let role = role.map_or("node of unknown role", NodeRole::as_str);
            self.gateway_failed(index, &format!("the node there is a {role}, not a gateway"));
            return;
        }
        let now = Instant::now();
        let gateway = &mut self.gateways.gateways[index];
        gateway.state = GatewayState::Connected { peer };
        gateway.failures = 0;
        gateway.next_reservation = now;
        self.gateways.first_connected.get_or_insert(now);
        let plain: Multiaddr =
            address.iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect();
        self.update_routing_table();
        let behaviour = self.swarm.behaviour_mut();
        behaviour.peers.keep_alive(peer);
        behaviour.kad.add_address(&peer, plain);
        if let Err(error) = behaviour.kad.bootstrap() {
            tracing::debug!("cannot bootstrap the directory yet: {error}");
        }
        self.directory.addresses_changed();
        self.outbox.push(NetEvent::GatewayChanged(address, Some(peer)));
        self.update_reservation(index, peer, now);
    }

    pub(super) fn on_gateway_failed(&mut self, connection: ConnectionId, problem: &str) {
        let dialled = self.gateways.gateways.iter().position(|gateway| {
            matches!(gateway.state, GatewayState::Dialling { connection: ours, .. } if ours == connection)
        });
        if let Some(index) = dialled {
            self.gateway_failed(index, problem);
        }
    }

    fn gateway_failed(&mut self, index: usize, problem: &str) {
        let gateway = &mut self.gateways.gateways[index];
        let backoff = backoff(gateway.failures).min(MAX_BACKOFF);
        // The first failure and then each doubling: enough to notice, too few to fill a log.
        if gateway.failures == 0 || gateway.failures.is_power_of_two() {
            tracing::warn!(gateway = %gateway.address, "the gateway is unreachable, retrying: {problem}");
        }
        gateway.failures = gateway.failures.saturating_add(1);
        gateway.state = GatewayState::Waiting { until: Instant::now() + backoff };
    }

    pub(super) fn on_gateway_disconnected(&mut self, peer: &PeerId) {
        let now = Instant::now();
        for gateway in &mut self.gateways.gateways {
            if matches!(gateway.state, GatewayState::Connected { peer: ours } if ours == *peer) {
                tracing::warn!(gateway = %gateway.address, "lost the gateway, reconnecting");
                gateway.state = GatewayState::Waiting { until: now };
                self.outbox.push(NetEvent::GatewayChanged(gateway.address.clone(), None));
            }
        }
        self.update_routing_table();
    }

    /// Holds a reservation at a gateway while this node cannot be reached directly, and releases it when it can.
    fn update_reservation(&mut self, index: usize, peer: PeerId, now: Instant) {
        let wanted = self.settings.relay_circuit
            && self.settings.role != NodeRole::Gateway
            && !self.settings.listen.is_empty()
            && self.public_addresses().is_empty();
        let gateway = &mut self.gateways.gateways[index];
        match gateway.reservation {
            Some(listener) if !wanted => {
                gateway.reservation = None;
                self.swarm.remove_listener(listener);
            }
            None if wanted && gateway.next_reservation <= now => {
                gateway.next_reservation = now + MAX_BACKOFF;
                let circuit = gateway
                    .address
                    .iter()
                    .filter(|part| !matches!(part, Protocol::P2p(_)))
                    .chain([Protocol::P2p(peer), Protocol::P2pCircuit])
                    .collect();
                match self.swarm.listen_on(circuit) {
                    Ok(listener) => gateway.reservation = Some(listener),
                    Err(error) => {
                        tracing::warn!("cannot make a relay reservation at the gateway: {error}")
                    }
                }
            }
            _ => {}
        }
    }

    pub(super) fn on_listener_closed(
        &mut self,
        listener: ListenerId,
        error: Option<std::io::Error>,
    ) {
        let gateways = &mut self.gateways.gateways;
        match gateways.iter_mut().find(|gateway| gateway.reservation == Some(listener)) {
            Some(gateway) => {
                gateway.reservation = None;
                if let Some(error) = error {
                    tracing::info!(gateway = %gateway.address, "lost the relay reservation at the gateway, requesting another: {error}");
                }
            }
            None => {
                if let Some(error) = error {
                    tracing::warn!("stopped listening: {error}");
                }
            }
        }
        self.on_addresses_changed();
    }

    /// Reports the reachability of this node, once it is known and whenever it changes.
    pub(super) fn report_reachability(&mut self, now: Instant) {
        let public = self.public_addresses();
        let is_gateway = self.settings.role == NodeRole::Gateway;
        let relayed: Vec<_> = self
            .swarm
            .listeners()
            .filter(|address| address.iter().any(|part| part == Protocol::P2pCircuit))
            .cloned()
            .collect();
        let since = self.gateways.first_connected;
        let settled = since.is_some_and(|since| now >= since + REACHABILITY_SETTLE_TIME);
        let reached = match (public.is_empty(), relayed.is_empty()) {
            (false, _) if is_gateway && self.settings.external.is_empty() => {
                Reachability::Assumed(public)
            }
            (false, _) => Reachability::Public(public),
            // A reservation takes a moment, a probe takes longer: wait before reporting this node as private.
            (true, false) if settled => Reachability::Relayed(relayed),
            (true, true) if settled && self.has_gateway() => Reachability::Private,
            _ => return,
        };
        let known = &mut self.gateways.reported;
        let same_kind = known
            .as_ref()
            .is_some_and(|known| std::mem::discriminant(known) == std::mem::discriminant(&reached));
        if !same_kind {
            *known = Some(reached.clone());
            self.outbox.push(NetEvent::ReachabilityChanged(reached));
        }
    }

    /// Whether at least one gateway is connected, or none is configured.
    pub(super) fn has_gateway(&self) -> bool {
        self.gateways.gateways.is_empty() || !self.connected_gateways().is_empty()
    }

    pub(super) fn connected_gateways(&self) -> Vec<PeerId> {
        let connected = |gateway: &Gateway| match gateway.state {
            GatewayState::Connected { peer } => Some(peer),
            _ => None,
        };
        self.gateways.gateways.iter().filter_map(connected).collect()
    }
}
