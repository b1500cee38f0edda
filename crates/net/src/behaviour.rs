//! The protocols of a node, combined.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use hypha_model::NodeRole;
use hypha_wire::Message;
use hypha_wire::record::SignedRecord;
use hypha_wire::record_set::RecordSet;
use hypha_wire::request::MAX_DEADLINE_MS;
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::identity::Keypair;
use libp2p::request_response;
use libp2p::request_response::ProtocolSupport;
use libp2p::swarm::NetworkBehaviour;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{PeerId, StreamProtocol, autonat, dcutr, gossipsub, identify, kad, ping, relay};

use crate::codec::{self, Codec};
use crate::driver::agent;
use crate::gatekeeper::Gatekeeper;
use crate::peers;
use crate::record_sets::RecordSets;
use crate::settings::{RelayLimits, Settings};

pub(crate) const KAD_PROTOCOL: StreamProtocol = StreamProtocol::new("/hypha/kad/1");
pub(crate) const TOPIC: &str = "hypha/worker";

/// Servers that a record is put to and queried from, besides the node's own gateways. Records are refreshed every few
/// seconds, so few suffice where twenty are usual, and each costs a connection.
const REPLICATION: usize = 3;

/// How long a query of the directory may take in all; its responses are used as they arrive.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the response to a ping may take. Two in a row without one end the connection: the bytes queued before them
/// on a slow link are some megabytes.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Neighbours in the gossip mesh that a node keeps: the protocol's own recommendation.
const MESH: usize = 6;
/// How long a message is remembered, so that it is not forwarded again: longer than an advert or the end of one may be
/// valid, so that no neighbour can replay one in its author's name.
const DUPLICATE_CACHE_TIME: Duration = Duration::from_secs(200);
/// A gateway forwards to all its peers: most nodes have no other neighbours.
const GATEWAY_MESH: usize = 4_096;

#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    // First, so that connections over a limit are denied before other behaviours see them.
    limits: connection_limits::Behaviour,
    pub(crate) peers: peers::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    pub(crate) kad: kad::Behaviour<RecordSets>,
    pub(crate) gossip: gossipsub::Behaviour,
    pub(crate) requests: request_response::Behaviour<Codec>,
    pub(crate) streams: libp2p_stream::Behaviour,
    relay_client: relay::client::Behaviour,
    relay_server: Toggle<relay::Behaviour>,
    autonat_client: Toggle<autonat::v2::client::Behaviour>,
    autonat_server: Toggle<autonat::v2::server::Behaviour>,
    dcutr: Toggle<dcutr::Behaviour>,
}

impl Behaviour {
    pub(crate) fn new(
        settings: &Settings,
        gatekeeper: Arc<Gatekeeper>,
        keypair: &Keypair,
        relay_client: relay::client::Behaviour,
    ) -> Result<Behaviour, String> {
        let own = keypair.public().to_peer_id();
        let is_gateway = settings.role == NodeRole::Gateway;
        Ok(Behaviour {
            limits: connection_limits::Behaviour::new(connection_limits_of(settings)),
            peers: peers::Behaviour::new(gatekeeper),
            identify: identify::Behaviour::new(
                identify::Config::new("hypha/1".into(), keypair.public())
                    .with_agent_version(agent(&settings.agent, settings.incarnation))
                    .with_push_listen_addr_updates(true),
            ),
            ping: ping::Behaviour::new(
                ping::Config::new()
                    .with_interval(settings.limits.ping_interval)
                    .with_timeout(PING_TIMEOUT),
            ),
            kad: kad(own),
            gossip: gossip(is_gateway)?,
            requests: request_response::Behaviour::with_codec(
                Codec,
                [(codec::PROTOCOL, ProtocolSupport::Full)],
                request_response::Config::default()
                    .with_request_timeout(Duration::from_millis(MAX_DEADLINE_MS.into()))
                    .with_max_concurrent_streams(settings.limits.requests_per_peer * 2),
            ),
            streams: libp2p_stream::Behaviour::new(),
            relay_client,
            relay_server: settings.relay.map(|limits| relay_server(own, limits)).into(),
            autonat_client: (!is_gateway).then(autonat::v2::client::Behaviour::default).into(),
            autonat_server: is_gateway.then(autonat::v2::server::Behaviour::default).into(),
            dcutr: (!is_gateway).then(|| dcutr::Behaviour::new(own)).into(),
        })
    }
}

fn connection_limits_of(settings: &Settings) -> ConnectionLimits {
    let limits = settings.limits;
    ConnectionLimits::default()
        .with_max_pending_incoming(Some(limits.handshakes))
        .with_max_pending_outgoing(Some(limits.handshakes))
        .with_max_established(Some(limits.connections))
        .with_max_established_per_peer(Some(limits.connections_per_peer))
}

fn kad(own: PeerId) -> kad::Behaviour<RecordSets> {
    let mut config = kad::Config::new(KAD_PROTOCOL);
    config
        .set_replication_factor(NonZeroUsize::new(REPLICATION).unwrap_or(kad::K_VALUE))
        .set_query_timeout(QUERY_TIMEOUT)
        .set_record_filtering(kad::StoreInserts::FilterBoth)
        // Authors refresh their records; holders do not replicate them.
        .set_publication_interval(None)
        .set_replication_interval(None)
        .set_provider_publication_interval(None)
        .set_caching(kad::Caching::Disabled)
        // The largest response is a record set; the rest of a message is keys and addresses.
        .set_max_packet_size(RecordSet::MAX_BYTES + (64 << 10))
        .set_kbucket_inserts(kad::BucketInserts::Manual);
    let mut kad = kad::Behaviour::with_config(own, RecordSets::new(), config);
    // Serving is decided by reachability, and a relayed address does not count as reachable.
    kad.set_mode(Some(kad::Mode::Client));
    kad
}

fn gossip(is_gateway: bool) -> Result<gossipsub::Behaviour, String> {
    let mesh = if is_gateway { GATEWAY_MESH } else { MESH };
    let config = gossipsub::ConfigBuilder::default()
        .validate_messages()
        // The record itself is signed, with its author's certificates: see `statement`.
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        .message_id_fn(|message| {
            gossipsub::MessageId::from(blake3::hash(&message.data).as_bytes().as_slice())
        })
        .duplicate_cache_time(DUPLICATE_CACHE_TIME)
        .max_transmit_size(SignedRecord::MAX_BYTES + 1_024)
        .mesh_n(mesh)
        .mesh_n_low(if is_gateway { mesh / 2 } else { 4 })
        .mesh_n_high(mesh * 2)
        .mesh_outbound_min(0)
        .build()
        .map_err(|error| error.to_string())?;
    let mut gossip = gossipsub::Behaviour::new(gossipsub::MessageAuthenticity::Anonymous, config)
        .map_err(str::to_owned)?;
    gossip.subscribe(&topic()).map_err(|error| error.to_string())?;
    Ok(gossip)
}

pub(crate) fn topic() -> gossipsub::IdentTopic {
    gossipsub::IdentTopic::new(TOPIC)
}

fn relay_server(own: PeerId, limits: RelayLimits) -> relay::Behaviour {
    let config = relay::Config {
        max_reservations: limits.max_reservations as usize,
        max_reservations_per_peer: limits.max_reservations_per_peer as usize,
        reservation_duration: limits.reservation_duration,
        max_circuits: limits.max_circuits as usize,
        max_circuits_per_peer: limits.max_circuits_per_peer as usize,
        max_circuit_duration: limits.max_circuit_duration,
        max_circuit_bytes: limits.max_circuit_bytes,
        // The default rates are per address and meant for untrusted peers: a site behind one NAT would lock itself out.
        // Every peer here has a certificate, and the numbers above are bounds for each peer.
        reservation_rate_limiters: Vec::new(),
        circuit_src_rate_limiters: Vec::new(),
    };
    relay::Behaviour::new(own, config)
}
