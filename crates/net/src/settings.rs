//! What a node tells its network at start, and the limits that hold whatever peers do.

use std::time::Duration;

use hypha_model::NodeRole;
use ipnet::IpNet;
use libp2p::Multiaddr;

/// How this node takes part.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its role, as its certificate says.
    pub role: NodeRole,
    /// What it calls itself to peers: name and version of the program.
    pub agent: String,
    /// Where it listens.
    pub listen: Vec<Multiaddr>,
    /// Where others reach it, if the operator knows.
    pub external: Vec<Multiaddr>,
    /// The gateways that it meets others through.
    pub gateways: Vec<Multiaddr>,
    /// Ranges that are not dialled on the word of others.
    pub excluded: Vec<IpNet>,
    /// Whether the operator gave that list: then it is taken literally.
    pub excluded_is_configured: bool,
    /// Whether it may be reached through gateways when it cannot be reached directly.
    pub relay_circuit: bool,
    /// What it relays for others; gateways do.
    pub relay: Option<RelayLimits>,
    /// Where it listens for bulk transfers; empty means none.
    pub bulk_listen: Vec<Multiaddr>,
    /// Where others reach that listener, if the operator knows.
    pub bulk_external: Vec<Multiaddr>,
    /// Bounds on what peers may take.
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

/// Bounds on what peers may take. The defaults suit a node; a gateway has [`Limits::for_gateway`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all.
    pub connections: u32,
    /// Connections with one peer: relayed, direct, one each way, and a probe.
    pub connections_per_peer: u32,
    /// Handshakes under way, each way.
    pub handshakes: u32,
    /// Streams within one connection: bulk transfers, requests and queries together.
    pub streams: usize,
    /// Requests of one peer that are being answered at once.
    pub requests_per_peer: usize,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long an unused connection stays open.
    pub idle_timeout: Duration,
    /// How often each connection is pinged, which measures the round trip and finds the dead.
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

    /// For a gateway: everyone is connected to it, and comes back at once after it restarts.
    pub const fn for_gateway() -> Limits {
        Limits { connections: 16_384, handshakes: 1_024, ..Limits::for_node() }
    }
}
