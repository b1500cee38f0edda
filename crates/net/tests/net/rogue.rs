//! A peer that implements our protocols and follows none of our rules: written from the protocols alone,
//! so that it can send what no node of ours would.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, StreamExt};
use futures_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use hypha_model::Listing;
use hypha_net::{Multiaddr, PeerId};
use hypha_pki::Pki;
use hypha_pki::issue::Authority;
use hypha_wire::Verdict;
use hypha_wire::request::Response;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, Version};
use libp2p::core::{Transport, UpgradeInfo};
use libp2p::kad::store::{MemoryStore, MemoryStoreConfig};
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionId, NetworkBehaviour, SwarmEvent};
use libp2p::{StreamProtocol, Swarm, gossipsub, kad, tcp, yamux};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_ED25519, SanType,
};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::sync::{mpsc, oneshot};

use crate::lab::{Lab, eventually, loopback, validity};

/// A rogue sends messages that are larger than ours may be.
const LARGE: usize = 1 << 20;

/// An action on the swarm of a rogue, run by the task that owns it.
type SwarmAction = Box<dyn FnOnce(&mut Swarm<Behaviour>) + Send>;

pub(crate) struct Rogue {
    actions: mpsc::Sender<SwarmAction>,
    streams: libp2p_stream::Control,
    state: Arc<Mutex<RogueState>>,
}

/// The outcomes of its dials, and its listen address.
#[derive(Default)]
struct RogueState {
    dials: Vec<(ConnectionId, Result<PeerId, String>)>,
    listening: Option<Multiaddr>,
}

#[derive(NetworkBehaviour)]
struct Behaviour {
    gossip: gossipsub::Behaviour,
    kad: kad::Behaviour<MemoryStore>,
    streams: libp2p_stream::Behaviour,
}

impl Rogue {
    /// A rogue with a certificate that is accepted everywhere.
    pub(crate) fn start(pki: &Arc<Pki>) -> Rogue {
        Rogue::with_certificate(pki, None)
    }

    /// A rogue that presents `other` instead of its certificate when it dials.
    pub(crate) fn with_certificate(
        pki: &Arc<Pki>,
        other: Option<Arc<dyn ResolvesClientCert>>,
    ) -> Rogue {
        let own = pki.own().peer_id;
        let upgrade = Upgrade { pki: pki.clone(), other };
        let transport = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
            .upgrade(Version::V1)
            .authenticate(upgrade)
            .multiplex(yamux::Config::default())
            .boxed();
        let behaviour = behaviour(own);
        let streams = behaviour.streams.new_control();
        let config = libp2p::swarm::Config::with_tokio_executor()
            .with_idle_connection_timeout(Duration::from_secs(600));
        let mut swarm = Swarm::new(transport, behaviour, own, config);
        swarm.listen_on(loopback()).unwrap();
        let (actions, done) = mpsc::channel(64);
        let state = Arc::new(Mutex::new(RogueState::default()));
        tokio::spawn(run(swarm, done, state.clone()));
        Rogue { actions, streams, state }
    }

    /// Connects, or returns why it was refused.
    pub(crate) async fn dial(&self, address: Multiaddr) -> Result<PeerId, String> {
        let options = DialOpts::from(address);
        let id = options.connection_id();
        self.act(move |swarm| swarm.dial(options).unwrap()).await;
        let end = || {
            let state = self.state.lock().unwrap();
            state.dials.iter().find(|(dialled, _)| *dialled == id).map(|(_, end)| end.clone())
        };
        eventually("the rogue's dial ends", || async { end().is_some() }).await;
        end().unwrap()
    }

    pub(crate) async fn listening(&self) -> Multiaddr {
        let address = || self.state.lock().unwrap().listening.clone();
        eventually("the rogue listens", || async { address().is_some() }).await;
        address().unwrap()
    }

    /// Sends these bytes to all subscribers of `hypha/worker`.
    pub(crate) async fn gossip(&self, bytes: Vec<u8>) {
        eventually("the rogue has a peer to gossip to", || async {
            let bytes = bytes.clone();
            let publish = move |swarm: &mut Swarm<Behaviour>| {
                let published = swarm.behaviour_mut().gossip.publish(topic(), bytes);
                !matches!(published, Err(gossipsub::PublishError::NoPeersSubscribedToTopic))
            };
            self.act(publish).await
        })
        .await;
    }

    /// Puts these bytes into the directory at `server`.
    pub(crate) async fn put(&self, server: PeerId, key: kad::RecordKey, value: Vec<u8>) {
        let record = kad::Record::new(key, value);
        self.act(move |swarm| {
            let kad = &mut swarm.behaviour_mut().kad;
            kad.put_record_to(record, [server].into_iter(), kad::Quorum::One);
        })
        .await;
    }

    /// Answers queries for `key` with these bytes.
    pub(crate) async fn serve(&self, key: kad::RecordKey, value: Vec<u8>) {
        self.act(move |swarm| {
            use kad::store::RecordStore;
            let kad = &mut swarm.behaviour_mut().kad;
            kad.store_mut().put(kad::Record::new(key, value)).unwrap();
        })
        .await;
    }

    /// Sends these bytes as a request; returns the response, unless the stream broke.
    pub(crate) async fn request(&self, peer: PeerId, bytes: &[u8]) -> io::Result<Response> {
        let protocol = StreamProtocol::new("/hypha/request/1");
        let opened = self.streams.clone().open_stream(peer, protocol).await;
        let mut stream = opened.map_err(io::Error::other)?;
        stream.write_all(bytes).await?;
        stream.close().await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        hypha_wire::decode(&answer).map_err(io::Error::other)
    }

    /// Sends these bytes as a request that does not end, and keeps the stream open.
    pub(crate) async fn endless_request(&self, peer: PeerId, bytes: &[u8]) -> io::Result<()> {
        let protocol = StreamProtocol::new("/hypha/request/1");
        let opened = self.streams.clone().open_stream(peer, protocol).await;
        let mut stream = opened.map_err(io::Error::other)?;
        stream.write_all(bytes).await?;
        std::future::pending::<()>().await;
        stream.close().await
    }

    async fn act<T: Send + 'static>(
        &self,
        action: impl FnOnce(&mut Swarm<Behaviour>) -> T + Send + 'static,
    ) -> T {
        let (reply, done) = oneshot::channel();
        let action: SwarmAction = Box::new(move |swarm| drop(reply.send(action(swarm))));
        assert!(self.actions.send(action).await.is_ok(), "the rogue has stopped");
        done.await.unwrap()
    }
}

/// The key of a list in the directory, for authors in one of its four shards.
pub(crate) fn list_key(listing: &Listing, part: u8) -> kad::RecordKey {
    let name = format!("hypha/1/worker/{part}/{listing}");
    kad::RecordKey::new(blake3::hash(name.as_bytes()).as_bytes())
}

/// The shard of every list that `author` belongs to.
pub(crate) fn part_of(author: &PeerId) -> u8 {
    blake3::hash(&author.to_bytes()).as_bytes()[0] % 4
}

/// A certificate that the lab's organisation signed, valid except for the change of `spoil`.
pub(crate) fn odd_certificate(
    authority: &Authority,
    spoil: impl FnOnce(&mut CertificateParams),
) -> Arc<dyn ResolvesClientCert> {
    let mut leaf = CertificateParams::new(vec![hypha_pki::SHARED_NAME.to_owned()]).unwrap();
    leaf.not_before = validity().not_before.into();
    leaf.not_after = validity().not_after.into();
    leaf.distinguished_name = DistinguishedName::new();
    leaf.distinguished_name.push(DnType::OrganizationName, authority.organisation());
    leaf.is_ca = IsCa::ExplicitNoCa;
    leaf.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    leaf.subject_alt_names.push(role_name("worker"));
    spoil(&mut leaf);
    let pen = KeyPair::from_pem(&authority.key_pem()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&authority.cert_pem(), pen).unwrap();
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let certificate = leaf.signed_by(&key, &issuer).unwrap();
    let above = CertificateDer::from_pem_slice(authority.cert_pem().as_bytes()).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let key = rustls::crypto::ring::sign::any_eddsa_type(&match key {
        PrivateKeyDer::Pkcs8(key) => key,
        _ => unreachable!("keys are written as PKCS#8"),
    });
    let chain = vec![certificate.der().clone(), above];
    Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key.unwrap())))
}

pub(crate) fn role_name(name: &str) -> SanType {
    SanType::URI(format!("hypha:role:{name}").try_into().unwrap())
}

/// No certificate at all.
#[derive(Debug)]
pub(crate) struct Nothing;

impl ResolvesClientCert for Nothing {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

fn behaviour(own: PeerId) -> Behaviour {
    let config = gossipsub::ConfigBuilder::default()
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        .message_id_fn(|message| {
            gossipsub::MessageId::from(blake3::hash(&message.data).as_bytes().as_slice())
        })
        .max_transmit_size(LARGE)
        .build()
        .unwrap();
    let anonymous = gossipsub::MessageAuthenticity::Anonymous;
    let mut gossip = gossipsub::Behaviour::new(anonymous, config).unwrap();
    gossip.subscribe(&topic()).unwrap();
    let mut config = kad::Config::new(StreamProtocol::new("/hypha/kad/1"));
    config.set_max_packet_size(2 * LARGE);
    let room = MemoryStoreConfig { max_value_bytes: LARGE, ..MemoryStoreConfig::default() };
    let mut kad = kad::Behaviour::with_config(own, MemoryStore::with_config(own, room), config);
    kad.set_mode(Some(kad::Mode::Server));
    Behaviour { gossip, kad, streams: libp2p_stream::Behaviour::new() }
}

fn topic() -> gossipsub::IdentTopic {
    gossipsub::IdentTopic::new("hypha/worker")
}

async fn run(
    mut swarm: Swarm<Behaviour>,
    mut actions: mpsc::Receiver<SwarmAction>,
    state: Arc<Mutex<RogueState>>,
) {
    loop {
        let event = tokio::select! {
            action = actions.recv() => match action {
                Some(action) => {
                    action(&mut swarm);
                    continue;
                }
                None => return,
            },
            event = swarm.select_next_some() => event,
        };
        let mut state = state.lock().unwrap();
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } => {
                state.dials.push((connection_id, Ok(peer_id)));
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                state.dials.push((connection_id, Err(format!("{error:?} {error}"))));
            }
            SwarmEvent::NewListenAddr { address, .. } => state.listening = Some(address),
            _ => {}
        }
    }
}

/// TLS that admits every peer, and reads the verdict of the other.
#[derive(Clone)]
struct Upgrade {
    pki: Arc<Pki>,
    other: Option<Arc<dyn ResolvesClientCert>>,
}

impl Upgrade {
    async fn talk<C>(self, mut stream: TlsStream<C>) -> io::Result<(PeerId, TlsStream<C>)>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let verdict = hypha_wire::encode(&Verdict::admitted()).unwrap();
        let length = u16::try_from(verdict.len()).unwrap().to_be_bytes();
        stream.write_all(&[&length, verdict.as_slice()].concat()).await?;
        stream.flush().await?;
        let mut length = [0; 2];
        stream.read_exact(&mut length).await?;
        let mut bytes = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut bytes).await?;
        let verdict: Verdict = hypha_wire::decode(&bytes).map_err(io::Error::other)?;
        if !verdict.admitted {
            return Err(io::Error::other(verdict.reason.unwrap_or_default()));
        }
        let chain = stream.get_ref().1.peer_certificates().unwrap().to_vec();
        let peer = self.pki.verify(&chain, std::time::SystemTime::now());
        Ok((peer.map_err(io::Error::other)?.peer_id, stream))
    }
}

impl UpgradeInfo for Upgrade {
    type Info = &'static str;
    type InfoIter = std::iter::Once<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once("/hypha/tls/1")
    }
}

type Upgraded<C> = Pin<Box<dyn Future<Output = io::Result<(PeerId, TlsStream<C>)>> + Send>>;

impl<C> InboundConnectionUpgrade<C> for Upgrade
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = (PeerId, TlsStream<C>);
    type Error = io::Error;
    type Future = Upgraded<C>;

    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        Box::pin(async move {
            let config = self.pki.server_config(&[b"hypha/1"]);
            let stream = TlsAcceptor::from(config).accept(socket).await?;
            self.talk(TlsStream::Server(stream)).await
        })
    }
}

impl<C> OutboundConnectionUpgrade<C> for Upgrade
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = (PeerId, TlsStream<C>);
    type Error = io::Error;
    type Future = Upgraded<C>;

    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        Box::pin(async move {
            let mut config = (*self.pki.client_config(&[b"hypha/1"])).clone();
            if let Some(other) = &self.other {
                config.client_auth_cert_resolver = other.clone();
            }
            let connector = TlsConnector::from(Arc::new(config));
            let stream = connector.connect(Pki::server_name(), socket).await?;
            self.talk(TlsStream::Client(stream)).await
        })
    }
}

/// A rogue of the lab's own organisation.
pub(crate) fn member(lab: &Lab, role: hypha_model::NodeRole) -> (Rogue, Arc<Pki>) {
    let pki = Arc::new(lab.pki(role));
    (Rogue::start(&pki), pki)
}
