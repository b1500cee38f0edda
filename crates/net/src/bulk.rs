//! Bulk transfer to and from peers, over the better of two carriers.
//!
//! Where a peer can be dialled, a transfer has a TCP connection of its own, with the same certificates and the same
//! rules. Otherwise, or when that fails, it takes a stream of the peer connection, be it relayed or hole-punched.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hypha_bulk::tcp::{self, TcpLimits};
use hypha_bulk::{
    BoxedStream, Incoming, Limits, Outgoing, PeerKey, Receiver, SendError, Sender, Sent, Source,
};
use hypha_pki::Pki;
use hypha_wire::request::{RequestBody, ResponseBody};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use libp2p_stream::Control;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::compat::FuturesAsyncReadCompatExt;

use crate::driver::Command;
use crate::gatekeeper::Gatekeeper;
use crate::guard::{Guard, ip_of};
use crate::handle::Net;

const PROTOCOL: StreamProtocol = StreamProtocol::new("/hypha/bulk/1");

/// How long a peer may take to return the addresses of its bulk listener.
const ADDRESS_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a dial of a bulk listener may take: unreachable addresses are dialled once and not for long.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);

/// How long it is cached whether and where a peer can be dialled.
const ROUTE_TTL: Duration = Duration::from_secs(120);

/// Peers whose routes are cached.
const MAX_ROUTES: usize = 4_096;

/// Incoming streams of peer connections that are served at once. The transfers themselves are bounded by
/// [`Limits`]; this bounds streams that have not identified their transfer yet.
const MAX_UNIDENTIFIED_STREAMS: usize = 512;

/// The parts of the network that are shared with code outside the swarm.
pub(crate) struct SharedContext {
    pub(crate) gatekeeper: Arc<Gatekeeper>,
    pub(crate) guard: Guard,
    pub(crate) streams: Control,
    pub(crate) bulk_listen: Vec<Multiaddr>,
}

/// The transport of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BulkCarrier {
    /// A TCP connection of its own.
    Dedicated,
    /// A stream of the peer connection.
    Stream,
}

/// Sends to peers; clones share the cached routes.
#[derive(Clone)]
pub struct Bulk {
    net: Net,
    sender: Sender,
    routes: Arc<Mutex<HashMap<PeerId, Route>>>,
    only: Option<BulkCarrier>,
}

/// Where a peer's bulk listener was reached, or that it cannot be.
struct Route {
    address: Option<SocketAddr>,
    until: Instant,
}

impl Net {
    /// Opens the bulk listeners. Transfers from peers come through the receiver, to be accepted or refused.
    pub async fn bulk(&self, limits: Limits) -> io::Result<(Bulk, mpsc::Receiver<Incoming>)> {
        let (receiver, incoming) = Receiver::new(limits.clone());
        let mut listeners = Vec::new();
        for address in self.shared.bulk_listen.iter().filter_map(socket_address) {
            let gatekeeper = self.shared.gatekeeper.clone();
            let tls = {
                let gatekeeper = gatekeeper.clone();
                move || gatekeeper.credentials().server.clone()
            };
            let admit = move |chain: &[CertificateDer<'_>]| admit(&gatekeeper, chain);
            let limits = TcpLimits::default();
            let bound = tcp::Listener::bind(address, limits, Arc::new(tls), Arc::new(admit)).await;
            let bound = bound
                .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?;
            listeners.push(bound.local_addr());
            tokio::spawn(serve_connections(bound, receiver.clone(), self.shared.clone()));
        }
        let mut control = self.shared.streams.clone();
        let streams = control
            .accept(PROTOCOL)
            .map_err(|_| io::Error::other("bulk transfer is already open"))?;
        tokio::spawn(serve_streams(streams, receiver));
        self.command(Command::BulkListening(listeners)).await;
        let bulk = Bulk {
            net: self.clone(),
            sender: Sender::new(limits),
            routes: Arc::default(),
            only: None,
        };
        Ok((bulk, incoming))
    }
}

impl Bulk {
    /// Sends only over `carrier` from now on: to measure it, or where a firewall drops the other.
    #[must_use]
    pub fn only(mut self, carrier: BulkCarrier) -> Bulk {
        self.only = Some(carrier);
        self
    }

    /// Sends all bytes of `source` to `peer`, and returns when it has confirmed them.
    pub async fn send<S: Source>(
        &self,
        peer: PeerId,
        outgoing: Outgoing,
        source: S,
    ) -> Result<Sent, SendError> {
        let bulk = self.clone();
        let connect = move || {
            let bulk = bulk.clone();
            async move { bulk.connect(peer).await }
        };
        let cancel = outgoing.cancel.clone();
        let no_longer_admitted = async {
            match self.net.shared.gatekeeper.admitted(&peer) {
                Some(admitted) => self.net.shared.gatekeeper.until_rejected(admitted.chain()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            sent = self.sender.send(connect, outgoing, source) => sent,
            rejected = no_longer_admitted => {
                cancel.cancel();
                Err(SendError::Ended(rejected.to_string()))
            }
        }
    }

    async fn connect(&self, peer: PeerId) -> io::Result<BoxedStream> {
        if self.only != Some(BulkCarrier::Stream)
            && let Some(stream) = self.dial(peer).await
        {
            return Ok(stream);
        }
        if self.only == Some(BulkCarrier::Dedicated) {
            return Err(io::Error::other("the peer's bulk listener is unreachable"));
        }
        let mut control = self.net.shared.streams.clone();
        let stream = control.open_stream(peer, PROTOCOL).await.map_err(io::Error::other)?;
        Ok(Box::new(stream.compat()))
    }

    /// A connection of its own, if the peer has a listener that can be reached.
    async fn dial(&self, peer: PeerId) -> Option<BoxedStream> {
        let candidates = match self.cached_route(peer) {
            Some(None) => return None,
            Some(Some(address)) => vec![address],
            None => self.request_addresses(peer).await,
        };
        for address in candidates {
            match self.dial_at(peer, address).await {
                Ok(stream) => {
                    self.cache_route(peer, Some(address));
                    return Some(stream);
                }
                Err(problem) => tracing::debug!(%peer, "no bulk connection: {problem}"),
            }
        }
        self.cache_route(peer, None);
        None
    }

    async fn dial_at(&self, peer: PeerId, address: SocketAddr) -> Result<BoxedStream, String> {
        let gatekeeper = self.net.shared.gatekeeper.clone();
        let client = gatekeeper.credentials().client.clone();
        let admit = move |chain: &[CertificateDer<'_>]| {
            let found = gatekeeper.verify(chain).map_err(|rejected| rejected.to_string())?;
            match found == peer {
                true => Ok(PeerKey::new(found.to_string())),
                false => Err(format!("the node there is {found}, not {peer}")),
            }
        };
        let dialled = tcp::dial(address, client, Pki::server_name(), &admit, DIAL_TIMEOUT).await;
        dialled
            .map(|connection| Box::new(connection.stream) as BoxedStream)
            .map_err(|e| e.to_string())
    }

    async fn request_addresses(&self, peer: PeerId) -> Vec<SocketAddr> {
        match self
            .net
            .request(peer, RequestBody::BulkAddresses, ADDRESS_REQUEST_TIMEOUT, None)
            .await
        {
            Ok(ResponseBody::BulkAddresses(addresses)) => addresses
                .into_iter()
                .filter_map(|bytes| Multiaddr::try_from(bytes).ok())
                .filter_map(|address| socket_address(&address))
                .filter(|address| self.net.shared.guard.allows(*address))
                .collect(),
            Ok(_) => Vec::new(),
            Err(error) => {
                tracing::debug!(%peer, "cannot request its bulk addresses: {error}");
                Vec::new()
            }
        }
    }

    fn cached_route(&self, peer: PeerId) -> Option<Option<SocketAddr>> {
        let routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let route = routes.get(&peer).filter(|route| route.until > Instant::now())?;
        Some(route.address)
    }

    fn cache_route(&self, peer: PeerId, address: Option<SocketAddr>) {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if routes.len() >= MAX_ROUTES {
            routes.clear();
        }
        routes.insert(peer, Route { address, until: Instant::now() + ROUTE_TTL });
    }
}

fn admit(gatekeeper: &Gatekeeper, chain: &[CertificateDer<'_>]) -> Result<PeerKey, String> {
    match gatekeeper.verify(chain) {
        Ok(peer) => Ok(PeerKey::new(peer.to_string())),
        Err(rejected) => Err(rejected.to_string()),
    }
}

/// Serves connections to the listener, for as long as each peer is admitted.
async fn serve_connections(
    mut listener: tcp::Listener,
    receiver: Receiver,
    shared: Arc<SharedContext>,
) {
    while let Ok(connection) = listener.accept().await {
        let (receiver, shared) = (receiver.clone(), shared.clone());
        tokio::spawn(async move {
            let gatekeeper = &shared.gatekeeper;
            tokio::select! {
                () = receiver.serve(connection.peer, connection.stream) => {}
                rejected = gatekeeper.until_rejected(&connection.certificates) => {
                    tracing::warn!("ended a bulk transfer: {rejected}");
                }
            }
        });
    }
}

/// Serves streams of peer connections. They end with their connection, so they need no other check.
async fn serve_streams(mut streams: libp2p_stream::IncomingStreams, receiver: Receiver) {
    let permits = Arc::new(Semaphore::new(MAX_UNIDENTIFIED_STREAMS));
    while let Some((peer, stream)) = streams.next().await {
        // A stream that is not served at once would be dropped by the next; the sender opens another.
        let Ok(permit) = permits.clone().try_acquire_owned() else { continue };
        let receiver = receiver.clone();
        tokio::spawn(async move {
            receiver.serve(PeerKey::new(peer.to_string()), stream.compat()).await;
            drop(permit);
        });
    }
}

pub(crate) fn socket_address(address: &Multiaddr) -> Option<SocketAddr> {
    let port = address.iter().find_map(|part| match part {
        Protocol::Tcp(port) => Some(port),
        _ => None,
    })?;
    Some(SocketAddr::new(ip_of(address)?, port))
}
