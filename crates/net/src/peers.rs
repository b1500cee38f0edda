//! Which peers are connected, over which kind of link, and which connections must stay.
//!
//! A behaviour of its own, because only a behaviour may deny a connection and keep one alive. A connection counts
//! once the peer's certificate is known here; the upgrade ensures that this is before any protocol starts.

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::DeniedUpgrade;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::behaviour::{ConnectionClosed, ConnectionEstablished};
use libp2p::swarm::handler::ConnectionEvent;
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId,
    FromSwarm, NetworkBehaviour, NotifyHandler, SubstreamProtocol, ToSwarm,
};
use libp2p::{PeerId, core::upgrade};
use thiserror::Error;

use crate::gatekeeper::Gatekeeper;
use crate::guard::ip_of;
use crate::rate::RateLimiter;

/// Handshakes that one address may start in a second, and at once: a site with a hundred nodes behind one NAT
/// reconnects after a power cut within seconds, and a flood from one machine costs little.
const HANDSHAKES_PER_SECOND: u32 = 50;
const HANDSHAKE_BURST: u32 = 400;
/// Addresses whose rate is remembered.
const MAX_RATED_ADDRESSES: usize = 4_096;

/// How long a relayed connection outlives the direct one that replaced it, so that streams in flight can end.
const SUPERSEDED_GRACE: Duration = Duration::from_secs(5);

/// The kind of connection to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// Without a relay, possibly hole-punched.
    Direct,
    /// Through a gateway.
    Relayed,
}

#[derive(Debug)]
pub(crate) enum Event {
    Connected(PeerId, Link),
    LinkChanged(PeerId, Link),
    Disconnected(PeerId),
}

pub(crate) struct Behaviour {
    gatekeeper: Arc<Gatekeeper>,
    connections: HashMap<PeerId, Vec<Connection>>,
    keep_alive: HashSet<PeerId>,
    handshakes: RateLimiter<IpAddr>,
    actions: VecDeque<ToSwarm<Event, KeepAlive>>,
}

struct Connection {
    id: ConnectionId,
    link: Link,
    since: Instant,
    address: Multiaddr,
    keep_alive: bool,
}

#[derive(Debug, Error)]
enum Denied {
    #[error("the peer was not admitted")]
    NotAdmitted,
    #[error("too many handshakes from this address")]
    TooManyHandshakes,
}

impl Behaviour {
    pub(crate) fn new(gatekeeper: Arc<Gatekeeper>) -> Behaviour {
        Behaviour {
            gatekeeper,
            connections: HashMap::new(),
            keep_alive: HashSet::new(),
            handshakes: RateLimiter::new(
                HANDSHAKES_PER_SECOND,
                HANDSHAKE_BURST,
                MAX_RATED_ADDRESSES,
            ),
            actions: VecDeque::new(),
        }
    }

    /// Keeps the connection to `peer` open even if idle, over the best link there is.
    pub(crate) fn keep_alive(&mut self, peer: PeerId) {
        self.keep_alive.insert(peer);
        self.update_keep_alive(peer);
    }

    /// Lets the connection to `peer` close when it is idle.
    pub(crate) fn stop_keep_alive(&mut self, peer: PeerId) {
        self.keep_alive.remove(&peer);
        self.update_keep_alive(peer);
    }

    pub(crate) fn link(&self, peer: &PeerId) -> Option<Link> {
        best_link(self.connections.get(peer)?)
    }

    /// The remote address of the best connection.
    pub(crate) fn address(&self, peer: &PeerId) -> Option<&Multiaddr> {
        let connections = self.connections.get(peer)?;
        let link = best_link(connections)?;
        connections.iter().find(|one| one.link == link).map(|one| &one.address)
    }

    /// The remote addresses of all connections.
    pub(crate) fn addresses(&self, peer: &PeerId) -> Vec<String> {
        let connections = self.connections.get(peer).into_iter().flatten();
        connections.map(|one| one.address.to_string()).collect()
    }

    pub(crate) fn connected(&self) -> impl Iterator<Item = &PeerId> {
        self.connections.keys()
    }

    /// Ends every connection to `peer`.
    pub(crate) fn disconnect(&mut self, peer: PeerId) {
        let connection = CloseConnection::All;
        self.actions.push_back(ToSwarm::CloseConnection { peer_id: peer, connection });
    }

    /// Closes relayed connections that a direct one has replaced for a while: they should not be used again.
    pub(crate) fn close_superseded(&mut self, now: Instant) {
        for (peer, connections) in &self.connections {
            let direct_since = connections
                .iter()
                .filter(|one| one.link == Link::Direct)
                .map(|one| one.since)
                .min();
            let Some(since) = direct_since else { continue };
            if now.saturating_duration_since(since) < SUPERSEDED_GRACE {
                continue;
            }
            for relayed in connections.iter().filter(|one| one.link == Link::Relayed) {
                let connection = CloseConnection::One(relayed.id);
                self.actions.push_back(ToSwarm::CloseConnection { peer_id: *peer, connection });
            }
        }
    }

    fn admit(&self, peer: PeerId) -> Result<Handler, ConnectionDenied> {
        match self.gatekeeper.admitted(&peer) {
            Some(_) => Ok(Handler { keep_alive: self.keep_alive.contains(&peer) }),
            None => Err(ConnectionDenied::new(Denied::NotAdmitted)),
        }
    }

    fn opened(&mut self, event: ConnectionEstablished<'_>) {
        let (peer, link) =
            (event.peer_id, if event.endpoint.is_relayed() { Link::Relayed } else { Link::Direct });
        let connections = self.connections.entry(peer).or_default();
        let before = best_link(connections);
        connections.push(Connection {
            id: event.connection_id,
            link,
            since: Instant::now(),
            address: event.endpoint.get_remote_address().clone(),
            keep_alive: self.keep_alive.contains(&peer),
        });
        let after = best_link(connections);
        self.report(peer, before, after);
        self.update_keep_alive(peer);
    }

    fn closed(&mut self, event: ConnectionClosed<'_>) {
        let peer = event.peer_id;
        let Some(connections) = self.connections.get_mut(&peer) else { return };
        let before = best_link(connections);
        connections.retain(|one| one.id != event.connection_id);
        let after = best_link(connections);
        if connections.is_empty() {
            self.connections.remove(&peer);
        }
        self.report(peer, before, after);
        self.update_keep_alive(peer);
    }

    fn report(&mut self, peer: PeerId, before: Option<Link>, after: Option<Link>) {
        let event = match (before, after) {
            (None, Some(link)) => Event::Connected(peer, link),
            (Some(_), None) => Event::Disconnected(peer),
            (Some(before), Some(after)) if before != after => Event::LinkChanged(peer, after),
            _ => return,
        };
        self.actions.push_back(ToSwarm::GenerateEvent(event));
    }

    fn update_keep_alive(&mut self, peer: PeerId) {
        let keep_alive = self.keep_alive.contains(&peer);
        let Some(connections) = self.connections.get_mut(&peer) else { return };
        let best = best_link(connections);
        for connection in connections {
            let keep = keep_alive && Some(connection.link) == best;
            if keep != connection.keep_alive {
                connection.keep_alive = keep;
                self.actions.push_back(ToSwarm::NotifyHandler {
                    peer_id: peer,
                    handler: NotifyHandler::One(connection.id),
                    event: KeepAlive(keep),
                });
            }
        }
    }
}

fn best_link(connections: &[Connection]) -> Option<Link> {
    let direct = connections.iter().any(|one| one.link == Link::Direct);
    connections.first().map(|first| if direct { Link::Direct } else { first.link })
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

    fn handle_pending_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        match ip_of(remote) {
            Some(ip) if !self.handshakes.take(ip, Instant::now()) => {
                Err(ConnectionDenied::new(Denied::TooManyHandshakes))
            }
            _ => Ok(()),
        }
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<Handler, ConnectionDenied> {
        self.admit(peer)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<Handler, ConnectionDenied> {
        self.admit(peer)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(event) => self.opened(event),
            FromSwarm::ConnectionClosed(event) => self.closed(event),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: Infallible) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Event, KeepAlive>> {
        self.actions.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Whether a connection stays open while idle.
#[derive(Debug)]
pub(crate) struct KeepAlive(bool);

/// Has no protocol: it only keeps its connection alive, or not.
pub(crate) struct Handler {
    keep_alive: bool,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = KeepAlive;
    type ToBehaviour = Infallible;
    type InboundProtocol = DeniedUpgrade;
    type OutboundProtocol = DeniedUpgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<DeniedUpgrade> {
        SubstreamProtocol::new(upgrade::DeniedUpgrade, ())
    }

    fn connection_keep_alive(&self) -> bool {
        self.keep_alive
    }

    fn on_behaviour_event(&mut self, KeepAlive(keep_alive): KeepAlive) {
        self.keep_alive = keep_alive;
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<DeniedUpgrade, (), Infallible>> {
        Poll::Pending
    }

    fn on_connection_event(&mut self, _: ConnectionEvent<'_, DeniedUpgrade, DeniedUpgrade>) {}
}
