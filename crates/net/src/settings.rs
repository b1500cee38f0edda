//! The settings of a node's network, and the limits that hold whatever peers do.

use std::time::Duration;

use hypha_model::NodeRole;
use ipnet::IpNet;
use libp2p::Multiaddr;

/// How this node takes part.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its role, as in its certificate.
    pub role: NodeRole,
    /// The agent string that it sends to peers: name and version of the program.
    pub agent: String,
    /// A random number of this process, by which peers notice that two nodes use one key; `None` for a client that uses
    /// a node's key for a short time.
    pub incarnation: Option<u64>,
    /// The addresses it listens on.
    pub listen: Vec<Multiaddr>,
    /// Its external addresses, if they are configured.
    pub external: Vec<Multiaddr>,
    /// The gateways that it connects through.
    pub gateways: Vec<Multiaddr>,
    /// Ranges whose addresses are not dialled when peers send them.
    pub excluded: Vec<IpNet>,
    /// Whether the operator configured that list: then it is taken literally.
    pub excluded_is_configured: bool,
    /// Whether it may be reached through gateways when it cannot be reached directly.
    pub relay_circuit: bool,
    /// The limits of its relay, if it is a gateway.
    pub relay: Option<RelayLimits>,
    /// The addresses it listens on for bulk transfers; empty means none.
    pub bulk_listen: Vec<Multiaddr>,
    /// The external addresses of that listener, if they are configured.
    pub bulk_external: Vec<Multiaddr>,
    /// Bounds on the resources that peers may use.
    pub limits: Limits,
}

/// How much a gateway relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayLimits {
    /// Nodes that may be reached through this gateway at once.
    pub max_reservations: u32,
    /// Of these, by one node.
    pub max_reservations_per_peer: u32,
    /// Connections that are relayed at once.
    pub max_circuits: u32,
    /// Of these, opened by one node, so that one cannot take them all.
    pub max_circuits_per_peer: u32,
    /// How long a reservation holds before it is renewed.
    pub reservation_duration: Duration,
    /// How long one relayed connection may last.
    pub max_circuit_duration: Duration,
    /// How many bytes one relayed connection may carry each way.
    pub max_circuit_bytes: u64,
}

/// Bounds on the resources that peers may use. The defaults suit a node; a gateway has [`Limits::for_gateway`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all.
    pub connections: u32,
    /// Connections with one peer: relayed, direct, one each way, and a probe.
    pub connections_per_peer: u32,
    /// Handshakes in progress, in each direction.
    pub handshakes: u32,
    /// Streams within one connection: bulk transfers, requests and queries together.
    pub streams: usize,
    /// Requests of one peer that are being answered at once.
    pub requests_per_peer: usize,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long an unused connection stays open.
    pub idle_timeout: Duration,
    /// How often each connection is pinged, which measures the round trip and detects dead peers.
    pub ping_interval: Duration,
}

impl Limits {
    /// For a node that holds a connection to every worker of a large pool.
    pub const fn for_node() -> Limits {
        Limits {
            connections: 2_048,
            connections_per_peer: 8,
            handshakes: 256,
            streams: 512,
            requests_per_peer: 32,
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            ping_interval: Duration::from_secs(15),
        }
    }

    /// For a gateway: every node is connected to it, and all reconnect at once after it restarts.
    pub const fn for_gateway() -> Limits {
        Limits { connections: 16_384, handshakes: 1_024, ..Limits::for_node() }
    }
}
