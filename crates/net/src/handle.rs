//! The interface of the network to the rest of a node.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypha_model::{AdvertId, CapabilityQuery, Name, NodeRole, SchedulerId, Worker, WorkerId};
use hypha_pki::{Pki, Reloader};
use hypha_wire::EncodeError;
use hypha_wire::market::{Advert, Offer};
use hypha_wire::request::{OfferRequest, Refusal, RefusalKind, RequestBody, ResponseBody};
use libp2p::{Multiaddr, PeerId};
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use crate::bulk::SharedContext;
use crate::driver::{Command, Driver, write_addresses};
use crate::peers::Link;
use crate::settings::Settings;

/// Commands that wait for the driver. It takes one within microseconds; more waiting means that it is behind, and
/// then callers should wait too.
const COMMAND_QUEUE: usize = 256;

/// Events that wait for the node.
const EVENT_QUEUE: usize = 1_024;

/// A handle to the network; clones share it.
#[derive(Clone)]
pub struct Net {
    own: PeerId,
    commands: mpsc::Sender<Command>,
    pub(crate) shared: Arc<SharedContext>,
}

/// An event of the network.
#[derive(Debug)]
pub enum NetEvent {
    /// This node listens here.
    Listening(Multiaddr),
    /// The reachability of this node is now known, or has changed.
    ReachabilityChanged(Reachability),
    /// The connection to a gateway was established, or lost (`None`).
    GatewayChanged(Multiaddr, Option<PeerId>),
    /// A peer was admitted.
    PeerConnected(Peer),
    /// A peer's link became direct, or relayed.
    LinkChanged(Peer),
    /// The last connection to a peer has ended.
    PeerDisconnected(PeerId),
    /// A worker announced itself.
    WorkerAnnounced(FoundWorker),
    /// A node published its farewell.
    NodeLeft(PeerId),
    /// A scheduler advertises. Only workers receive this.
    AdvertReceived {
        /// The scheduler.
        from: PeerId,
        /// Its organisation, by its certificate.
        organisation: String,
        /// Where offers reach it.
        addresses: Vec<Multiaddr>,
        /// The advert.
        advert: Box<Advert>,
    },
    /// A scheduler wants no more offers for an advert. Only workers receive this.
    AdvertClosed {
        /// The scheduler.
        from: PeerId,
        /// The advert.
        advert: AdvertId,
    },
    /// A peer sent a request; to be answered before the deadline.
    RequestReceived(PeerRequest),
}

/// A request by a peer.
#[derive(Debug)]
pub struct PeerRequest {
    /// The requester.
    pub peer: Peer,
    /// The request.
    pub body: RequestBody,
    /// The trace that the request belongs to.
    pub traceparent: Option<String>,
    /// After this the peer no longer waits for the response.
    pub deadline: Instant,
    /// Sends the response; dropping it responds with an internal error.
    pub responder: oneshot::Sender<ResponseBody>,
}

/// A connected peer.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its peer id.
    pub id: PeerId,
    /// Its role, by its certificate.
    pub role: NodeRole,
    /// Its organisation, by its certificate.
    pub organisation: String,
    /// Direct or relayed.
    pub link: Link,
    /// The last measured round trip.
    pub rtt: Option<Duration>,
    /// Its address as seen from here.
    pub address: Multiaddr,
}

/// How this node can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// Directly, at these addresses.
    Public(Vec<Multiaddr>),
    /// It is a gateway that no peer has probed: it is assumed to be reachable where it listens.
    Assumed(Vec<Multiaddr>),
    /// Through gateways only, at these addresses.
    Relayed(Vec<Multiaddr>),
    /// Not at all.
    Private,
}

/// What this node publishes of itself, refreshed until it stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publication {
    /// A worker and what it offers.
    Worker {
        /// The offer.
        worker: Worker,
        /// How long a record is valid without being refreshed.
        ttl: Duration,
    },
    /// Data sets that it serves.
    Datasets {
        /// Their names.
        names: Vec<Name>,
        /// How long a record is valid without being refreshed.
        ttl: Duration,
    },
}

/// A worker as the directory knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundWorker {
    /// Its peer id.
    pub peer: PeerId,
    /// The name in its certificate.
    pub name: Option<String>,
    /// Its organisation, by its certificate.
    pub organisation: String,
    /// What it offers.
    pub worker: Worker,
    /// Its addresses.
    pub addresses: Vec<Multiaddr>,
    /// Where bulk transfers reach it.
    pub bulk_addresses: Vec<Multiaddr>,
    /// The sequence number of its record.
    pub sequence: u64,
}

/// A data set as the directory knows it, at one of its providers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDataset {
    /// The peer that serves it.
    pub peer: PeerId,
    /// The provider's organisation.
    pub organisation: String,
    /// Its name.
    pub name: Name,
    /// The provider's addresses.
    pub addresses: Vec<Multiaddr>,
    /// Where bulk transfers reach it.
    pub bulk_addresses: Vec<Multiaddr>,
}

/// Why the network did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address that cannot be listened on.
    #[error(
        "cannot listen on {address}: {problem}; stop the process that has this address, or change `listen_addresses`"
    )]
    Listen {
        /// The address.
        address: Multiaddr,
        /// The system's error.
        problem: String,
    },
    /// The certificate is for another role.
    #[error(
        "the certificate is for a {certificate}, and this node runs as a {wanted}; issue one with `hypha certutil node --role {wanted}`"
    )]
    Role {
        /// The role in the certificate.
        certificate: NodeRole,
        /// The role that was started.
        wanted: NodeRole,
    },
    /// A protocol refused its settings; a bug in this program.
    #[error("cannot set up the network: {0}")]
    Setup(String),
}

/// Why a request has no response.
#[derive(Debug, Error)]
pub enum RequestError {
    /// No connection, and none could be made.
    #[error("cannot reach {peer}: {problem}")]
    Unreachable {
        /// The peer.
        peer: PeerId,
        /// The error.
        problem: String,
    },
    /// No response within the deadline.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The peer refused.
    #[error("refused: {}", .0.message)]
    Refused(Refusal),
    /// The peer's response is invalid.
    #[error("invalid response: {0}")]
    InvalidResponse(String),
    /// The request cannot be sent.
    #[error(transparent)]
    Unsendable(#[from] EncodeError),
    /// The network has stopped.
    #[error("the network has stopped")]
    Stopped,
}

impl Net {
    /// Joins the network. Its events come through the receiver, which must be read.
    ///
    /// Needs a tokio runtime. With a reloader, changed certificate files take effect within seconds. The metrics of
    /// this crate are entered into `registry`.
    pub fn start(
        settings: Settings,
        pki: Pki,
        certificates: Option<Reloader>,
        registry: &mut Registry,
    ) -> Result<(Net, mpsc::Receiver<NetEvent>), StartError> {
        let (commands, command_queue) = mpsc::channel(COMMAND_QUEUE);
        let (events, event_queue) = mpsc::channel(EVENT_QUEUE);
        let own = commands.downgrade();
        let driver =
            Driver::new(settings, pki, certificates, registry, own, command_queue, events)?;
        let (own, shared) = (driver.own(), Arc::new(driver.shared()));
        tokio::spawn(driver.run());
        Ok((Net { own, commands, shared }, event_queue))
    }

    /// This node's peer id.
    pub fn own(&self) -> PeerId {
        self.own
    }

    /// Publishes from now on; replaces what was published before.
    pub async fn publish(&self, publication: Publication) {
        self.command(Command::Publish(publication)).await;
    }

    /// The workers that satisfy `query`, by the valid records.
    pub async fn get_records_matching(&self, query: CapabilityQuery) -> Vec<FoundWorker> {
        self.call(|reply| Command::FindWorkers { query, reply }).await.unwrap_or_default()
    }

    /// The providers of the data set `name`.
    pub async fn find_dataset(&self, name: Name) -> Vec<FoundDataset> {
        self.call(|reply| Command::FindDataset { name, reply }).await.unwrap_or_default()
    }

    /// Connects to `peer` and stays connected, over the best link there is, until [`Net::remove_persistent_peer`].
    pub async fn add_persistent_peer(&self, peer: PeerId, addresses: Vec<Multiaddr>) {
        self.command(Command::AddPersistentPeer { peer, addresses }).await;
    }

    /// Ends [`Net::add_persistent_peer`].
    pub async fn remove_persistent_peer(&self, peer: PeerId) {
        self.command(Command::RemovePersistentPeer(peer)).await;
    }

    /// Connects to the node at `address`, and returns its peer id.
    pub async fn dial(&self, address: Multiaddr) -> Result<PeerId, String> {
        let stopped = || "the network has stopped".to_owned();
        self.call(|reply| Command::Dial { address, reply }).await.ok_or_else(stopped)?
    }

    /// Advertises to all workers, by gossip. It may be lost, like every message.
    pub async fn publish_advert(&self, advert: Advert) {
        self.command(Command::PublishAdvert(Box::new(advert))).await;
    }

    /// Ends an advert that was published.
    pub async fn close_advert(&self, advert: AdvertId) {
        self.command(Command::CloseAdvert(advert)).await;
    }

    /// Sends an offer to a scheduler that has no channel to this node, and connects to it at one of `addresses` if it
    /// is not connected. Returns when the scheduler has received it.
    pub async fn send_offer(
        &self,
        scheduler: PeerId,
        addresses: Vec<Multiaddr>,
        offer: Offer,
        deadline: Duration,
    ) -> Result<(), RequestError> {
        let own = write_addresses(&self.addresses().await);
        let body = RequestBody::Offer(Box::new(OfferRequest { offer, addresses: own }));
        match self.request_at(scheduler, addresses, body, deadline, None).await? {
            ResponseBody::OfferReceived => Ok(()),
            _ => Err(RequestError::InvalidResponse("it does not acknowledge the offer".into())),
        }
    }

    /// Sends a request to `peer`, and waits for the response no longer than `deadline`.
    pub async fn request(
        &self,
        peer: PeerId,
        body: RequestBody,
        deadline: Duration,
        traceparent: Option<String>,
    ) -> Result<ResponseBody, RequestError> {
        self.request_at(peer, Vec::new(), body, deadline, traceparent).await
    }

    /// The same, and connects to one of `addresses` if `peer` is not connected.
    async fn request_at(
        &self,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        body: RequestBody,
        deadline: Duration,
        traceparent: Option<String>,
    ) -> Result<ResponseBody, RequestError> {
        let request = self.call(|reply| Command::Request {
            peer,
            addresses,
            body,
            deadline,
            traceparent,
            reply,
        });
        match tokio::time::timeout(deadline, request).await {
            // Both sides have a timer; the outcome is the same whichever fires first.
            Ok(Some(Ok(ResponseBody::Refused(refusal))))
                if refusal.kind == RefusalKind::DeadlinePassed =>
            {
                Err(RequestError::TimedOut(deadline))
            }
            Ok(Some(Ok(ResponseBody::Refused(refusal)))) => Err(RequestError::Refused(refusal)),
            Ok(Some(answer)) => answer,
            Ok(None) => Err(RequestError::Stopped),
            Err(_) => Err(RequestError::TimedOut(deadline)),
        }
    }

    /// The connected peers.
    pub async fn peers(&self) -> Vec<Peer> {
        self.call(Command::Peers).await.unwrap_or_default()
    }

    /// The addresses that this node listens on and is reached at.
    pub async fn addresses(&self) -> Vec<Multiaddr> {
        self.call(Command::Addresses).await.unwrap_or_default()
    }

    /// Leaves: publishes a farewell, and returns when it is sent or the time is up.
    pub async fn stop(&self) {
        self.call(Command::Stop).await;
    }

    pub(crate) async fn command(&self, command: Command) {
        // The caller of a stopped network notices by the end of its events.
        let _ = self.commands.send(command).await;
    }

    async fn call<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}

/// The id under which schedulers know the worker with this certificate: always the same.
pub fn worker_id(peer: &PeerId) -> WorkerId {
    WorkerId::from_uuid(uuid_of(peer))
}

/// The id under which workers know the scheduler with this certificate: always the same.
pub fn scheduler_id(peer: &PeerId) -> SchedulerId {
    SchedulerId::from_uuid(uuid_of(peer))
}

fn uuid_of(peer: &PeerId) -> uuid::Uuid {
    let digest = blake3::hash(&peer.to_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_bytes()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Link::Direct => "direct",
            Link::Relayed => "relayed",
        })
    }
}
