//! A node's identity and addresses: what all roles share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use multiaddr::{Multiaddr, Protocol};

use crate::diagnostic::Diagnostic;
use crate::parse::{self, AddressUse};
use crate::reader::Reader;

/// Certificates and addresses of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// The node's certificate and its chain.
    pub cert_pem: PathBuf,
    /// Its private key.
    pub key_pem: PathBuf,
    /// The authorities whose nodes are admitted.
    pub trust_pem: PathBuf,
    /// Revocation lists.
    pub crls_pem: Option<PathBuf>,
    /// Whether an issuer without a revocation list is refused, rather than assumed to have revoked no
    /// certificate.
    pub require_crl: bool,
    /// The gateways to join through; each may end in `/p2p/PEER`.
    pub gateway_addresses: Vec<Multiaddr>,
    /// The addresses to bind.
    pub listen_addresses: Vec<Multiaddr>,
    /// Addresses to publish.
    pub external_addresses: Vec<Multiaddr>,
    /// The addresses to bind for bulk transfers.
    pub bulk_listen_addresses: Vec<Multiaddr>,
    /// Addresses to publish for bulk transfers.
    pub bulk_external_addresses: Vec<Multiaddr>,
    /// The ranges to exclude, if given; [`excluded`] computes the default.
    pub exclude_cidr: Option<Vec<IpNet>>,
    /// Whether to be reachable through gateways.
    pub relay_circuit: bool,
}

impl NetworkConfig {
    pub(crate) fn read(reader: &Reader<'_>) -> Result<NetworkConfig, Diagnostic> {
        let addresses = |name, purpose| reader.get(name, |given| parse::addresses(given, purpose));
        let listen_addresses = addresses("listen_addresses", AddressUse::Listen)?;
        let bulk_listen_addresses = match reader.given("bulk_listen_addresses") {
            Some(_) => addresses("bulk_listen_addresses", AddressUse::Listen)?,
            None => bulk_default(&listen_addresses),
        };
        let crls_pem = reader.path("crls_pem")?;
        let require_crl = reader.get("require_crl", parse::switch)?;
        if require_crl && crls_pem.is_none() {
            let message = "without `crls_pem` every node would be refused: give `crls_pem` too";
            return Err(reader.fault("require_crl", message));
        }
        Ok(NetworkConfig {
            cert_pem: reader.required_path("cert_pem")?,
            key_pem: reader.required_path("key_pem")?,
            trust_pem: reader.required_path("trust_pem")?,
            crls_pem,
            require_crl,
            gateway_addresses: addresses("gateway_addresses", AddressUse::Gateway)?,
            listen_addresses,
            external_addresses: addresses("external_addresses", AddressUse::External)?,
            bulk_listen_addresses,
            bulk_external_addresses: addresses("bulk_external_addresses", AddressUse::External)?,
            exclude_cidr: reader.optional("exclude_cidr", parse::networks)?,
            relay_circuit: reader.get("relay_circuit", parse::switch)?,
        })
    }
}

/// The listen addresses for bulk transfers unless configured: the IP addresses of `listen`, each once, so
/// that a node confined to loopback does not open a port to the world.
pub(crate) fn bulk_default(listen: &[Multiaddr]) -> Vec<Multiaddr> {
    let mut found: Vec<Multiaddr> = Vec::new();
    for address in listen {
        let Some(ip) = ip_of(address) else { continue };
        let bulk = Multiaddr::from(ip).with(Protocol::Tcp(0));
        if !found.contains(&bulk) {
            found.push(bulk);
        }
    }
    found
}

/// The ranges in which no learned address is dialled. They never apply to configured addresses.
///
/// A given list is taken literally. The default is [`RESERVED_RANGES`] without those that hold an IP address
/// of this configuration: a node with a gateway at 192.168.1.10 is meant to work in that network. The
/// unspecified address (`0.0.0.0`, `::`) names no network, and a host name (`/dns4/…`) no address: neither
/// lifts a range.
pub fn excluded(network: &NetworkConfig) -> Vec<IpNet> {
    if let Some(given) = &network.exclude_cidr {
        return given.clone();
    }
    let configured: Vec<IpAddr> = [
        &network.gateway_addresses,
        &network.listen_addresses,
        &network.external_addresses,
        &network.bulk_listen_addresses,
        &network.bulk_external_addresses,
    ]
    .into_iter()
    .flatten()
    .filter_map(ip_of)
    .filter(|ip| !ip.is_unspecified())
    .collect();
    let lifted = |range: &IpNet| configured.iter().any(|ip| range.contains(ip));
    RESERVED_RANGES.into_iter().filter(|range| !lifted(range)).collect()
}

fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => Some(ip.into()),
        Some(Protocol::Ip6(ip)) => Some(ip.into()),
        _ => None,
    }
}

/// The ranges that the registries of special-purpose addresses reserve. No host on the public internet can be
/// reached there, so such an address from a stranger is useless at best, and at worst makes this node probe
/// its operator's own machines.
pub const RESERVED_RANGES: [IpNet; 31] = [
    v4([0, 0, 0, 0], 8),              // "this network"
    v4([10, 0, 0, 0], 8),             // private
    v4([100, 64, 0, 0], 10),          // behind a provider's NAT
    v4([127, 0, 0, 0], 8),            // loopback
    v4([169, 254, 0, 0], 16),         // link-local; clouds serve their machines' credentials there
    v4([172, 16, 0, 0], 12),          // private
    v4([192, 0, 0, 0], 24),           // protocol assignments
    v4([192, 0, 2, 0], 24),           // documentation
    v4([192, 88, 99, 0], 24),         // 6to4 relays, withdrawn
    v4([192, 168, 0, 0], 16),         // private
    v4([198, 18, 0, 0], 15),          // benchmarks
    v4([198, 51, 100, 0], 24),        // documentation
    v4([203, 0, 113, 0], 24),         // documentation
    v4([224, 0, 0, 0], 4),            // multicast
    v4([240, 0, 0, 0], 4),            // future use, and broadcast
    v6([0, 0, 0, 0], 0, 128),         // unspecified
    v6([0, 0, 0, 0], 1, 128),         // loopback
    v6([0, 0, 0, 0], 0, 96),          // IPv4 in IPv6, withdrawn
    v6_mapped(),                      // IPv4 in IPv6: would go around the ranges above
    v6([0x64, 0xff9b, 0, 0], 0, 96),  // IPv4 behind NAT64: likewise
    v6([0x64, 0xff9b, 1, 0], 0, 48),  // local NAT64
    v6([0x100, 0, 0, 0], 0, 64),      // discard
    v6([0x2001, 0, 0, 0], 0, 23),     // protocol assignments, Teredo among them
    v6([0x2001, 0xdb8, 0, 0], 0, 32), // documentation
    v6([0x2002, 0, 0, 0], 0, 16),     // 6to4, withdrawn
    v6([0x3fff, 0, 0, 0], 0, 20),     // documentation
    v6([0x5f00, 0, 0, 0], 0, 16),     // segment routing
    v6([0xfc00, 0, 0, 0], 0, 7),      // private
    v6([0xfe80, 0, 0, 0], 0, 10),     // link-local
    v6([0xfec0, 0, 0, 0], 0, 10),     // site-local, withdrawn
    v6([0xff00, 0, 0, 0], 0, 8),      // multicast
];

const fn v4([a, b, c, d]: [u8; 4], bits: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits))
}

const fn v6([a, b, c, d]: [u16; 4], last: u16, bits: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, last), bits))
}

const fn v6_mapped() -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96))
}
