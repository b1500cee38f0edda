//! Hosts on a small internet of their own: network namespaces joined by bridges, some behind NAT.
//!
//! Nothing here is reachable from outside or reaches out: every link joins two namespaces of the
//! test, and the machine's own namespace gets neither a link nor an address. All of it goes away
//! with the values, also when a test fails.

pub mod actor;
mod namespace;
mod proofs;

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use namespace::Namespace;

/// The bridge of a network, inside its namespace.
const BRIDGE: &str = "bridge";
/// A host's only link, and a router's to the internet.
const UPLINK: &str = "uplink";

/// Prints that `test` is skipped where namespaces cannot be created. Uses the same probe as `cargo xtask
/// test`, which accepts no other excuse.
pub fn can_make_namespaces(test: &str) -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["--net", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let can = probe.status().is_ok_and(|status| status.success());
    if !can {
        eprintln!("SKIPPED: {test}: no network namespace can be made here [needs: netns]");
    }
    can
}

/// An internet: 198.18.0.0/15, which is set aside for tests of networks and routed nowhere.
#[derive(Debug)]
pub struct Topology {
    internet: Network,
    nats: AtomicU8,
}

/// How a router maps the source ports of the connections that leave through it. Either way it silently drops
/// packets that no inside host has asked for, as home routers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// The port outside is the port inside, for every destination: it can be announced to peers.
    EndpointIndependent,
    /// Every destination sees another random port: the port that one peer sees is of no use to another.
    Symmetric,
}

impl Topology {
    /// `None` where namespaces cannot be created: the skip of `test` is then recorded; return.
    pub fn new(test: &str) -> Option<Topology> {
        can_make_namespaces(test).then(|| Topology {
            internet: Network::new(Arc::new(Namespace::new()), [198, 18, 0], 15),
            nats: AtomicU8::new(0),
        })
    }

    /// A host with a public address and no firewall.
    pub fn public_host(&self) -> Host {
        self.internet.attach(None)
    }

    /// A router with a public address and, behind it, a network 192.168.N.0/24 of its own.
    pub fn nat(&self, mapping: Mapping) -> Nat {
        let outside = self.internet.attach(None);
        let number = 1 + self.nats.fetch_add(1, Ordering::Relaxed);
        let router = outside.namespace.clone();
        router.set("net/ipv4/ip_forward", "1");
        let inside = Network::new(router.clone(), [192, 168, number], 24);
        let gateway = inside.address(1);
        router.ip(&format!("address add {gateway}/24 dev {BRIDGE}"));
        router.nft(&rules(mapping));
        Nat { outside, inside, gateway }
    }
}

/// The filter sees a packet after its address was translated back, so replies to a connection from inside are
/// established. Dropped before the kernel would remember it, a stray SYN takes no port away from the mapping
/// that a host inside makes a moment later: hole punching depends on it. (On some kernels the filter also
/// sees traffic between hosts behind the router: both its ends are the bridge.)
fn rules(mapping: Mapping) -> String {
    let ports = match mapping {
        Mapping::EndpointIndependent => "",
        Mapping::Symmetric => "random,fully-random",
    };
    format!(
        "table ip nat {{
            chain leaving {{
                type nat hook postrouting priority srcnat; policy accept;
                oifname \"{UPLINK}\" masquerade {ports}
            }}
        }}
        table ip filter {{
            chain to_router {{
                type filter hook input priority filter; policy drop;
                iifname \"{BRIDGE}\" accept
                ct state established,related accept
            }}
            chain through {{
                type filter hook forward priority filter; policy drop;
                iifname \"{BRIDGE}\" accept
                ct state established,related accept
            }}
        }}"
    )
}

/// A router and the network behind it.
#[derive(Debug)]
pub struct Nat {
    outside: Host,
    inside: Network,
    gateway: Ipv4Addr,
}

impl Nat {
    /// A host behind the router.
    pub fn host(&self) -> Host {
        self.inside.attach(Some(self.gateway))
    }

    /// The address under which its hosts are seen.
    pub fn outer_address(&self) -> Ipv4Addr {
        self.outside.address
    }

    /// From now on no packet from behind it reaches `other`, and no error is sent.
    pub fn block(&self, other: &Nat) {
        self.outside.namespace.nft(&format!(
            "table ip blocked {{
                chain through {{
                    type filter hook forward priority filter - 1; policy accept;
                    ip daddr {} drop
                }}
            }}",
            other.outer_address()
        ));
    }

    /// Ends the effect of `block`.
    pub fn unblock(&self) {
        self.outside.namespace.nft("delete table ip blocked");
    }

    /// Cuts the whole network off the internet. Its hosts still reach each other.
    pub fn partition(&self) {
        self.outside.partition();
    }

    /// Ends the effect of `partition`.
    pub fn heal(&self) {
        self.outside.heal();
    }
}

/// A machine with one link, to a network.
#[derive(Debug)]
pub struct Host {
    namespace: Arc<Namespace>,
    address: Ipv4Addr,
    /// Where its link ends; keeps that network alive too.
    switch: Arc<Namespace>,
    port: String,
}

impl Host {
    /// The address on its own network.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A program on this host. The file system is the machine's.
    pub fn command(&self, program: &str) -> Command {
        self.namespace.command(program)
    }

    /// From now on no packet reaches or leaves the host, and no error is sent: connections see silence.
    /// (Address resolution still works, or the kernel would report the neighbour as unreachable after some
    /// seconds.)
    pub fn partition(&self) {
        self.switch.nft(&format!("add element bridge partition cut {{ {} }}", self.port));
    }

    /// Ends the effect of `partition`.
    pub fn heal(&self) {
        self.switch.nft(&format!("delete element bridge partition cut {{ {} }}", self.port));
    }
}

/// A bridge that hosts hang on.
#[derive(Debug)]
struct Network {
    switch: Arc<Namespace>,
    prefix: [u8; 3],
    prefix_bits: u8,
    /// The last byte of the newest address; 1 is left to a router.
    newest: AtomicU8,
}

impl Network {
    fn new(switch: Arc<Namespace>, prefix: [u8; 3], prefix_bits: u8) -> Network {
        switch.ip(&format!("link add {BRIDGE} type bridge\nlink set {BRIDGE} up"));
        switch.nft(
            "table bridge partition {
                set cut { type ifname; }
                chain from { type filter hook prerouting priority 0; policy accept;
                    iifname @cut ether type ip drop
                }
                chain to { type filter hook postrouting priority 0; policy accept;
                    oifname @cut ether type ip drop
                }
            }",
        );
        Network { switch, prefix, prefix_bits, newest: AtomicU8::new(1) }
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        let [a, b, c] = self.prefix;
        Ipv4Addr::new(a, b, c, host)
    }

    /// A new host on this network. Without a gateway it knows this network alone.
    fn attach(&self, gateway: Option<Ipv4Addr>) -> Host {
        let newest = self.newest.fetch_add(1, Ordering::Relaxed);
        assert!(newest < 254, "a network has room for 253 hosts");
        let address = self.address(newest + 1);
        let (namespace, port) = (Namespace::new(), format!("port{}", newest + 1));
        let (name, bits) = (namespace.name(), self.prefix_bits);
        self.switch.ip(&format!(
            "link add {port} type veth peer name {UPLINK} netns {name}\n\
             link set {port} master {BRIDGE} up"
        ));
        namespace.ip(&format!("address add {address}/{bits} dev {UPLINK}\nlink set {UPLINK} up"));
        if let Some(gateway) = gateway {
            namespace.ip(&format!("route add default via {gateway}"));
        }
        Host { namespace: Arc::new(namespace), address, switch: self.switch.clone(), port }
    }
}
