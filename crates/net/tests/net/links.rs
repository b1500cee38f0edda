//! Relayed links, and addresses that are not dialled.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use hypha_model::{CapabilityQuery, NodeRole};
use hypha_net::{Link, Multiaddr, NetEvent, PeerId, Publication, Settings, multiaddr::Protocol};

use crate::lab::{Lab, Node, addresses, eventually, loopback_at, plain_worker, settings};

/// Addresses of this machine; each side of a link considers those of the other unreachable.
const NEAR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const FAR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn excluding(settings: Settings, excluded: &[Ipv4Addr]) -> Settings {
    let excluded =
        excluded.iter().map(|ip| ipnet::IpNet::from(std::net::IpAddr::V4(*ip))).collect();
    Settings { excluded, ..settings }
}

fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_be_dialled_is_reached_through_the_gateway() {
    let lab = Lab::new();
    let gateway = Node::start(
        excluding(settings(NodeRole::Gateway, &[]), &[NEAR, FAR]),
        lab.pki(NodeRole::Gateway),
    );
    let gateways = addresses(&[&gateway]).await;
    let start = |role, own, other| {
        let mut settings = excluding(settings(role, &gateways), &[other]);
        settings.listen = vec![loopback_at(own)];
        Node::start(settings, lab.pki(role))
    };
    let worker = start(NodeRole::Worker, FAR, NEAR);
    let scheduler = start(NodeRole::Scheduler, NEAR, FAR);
    let publication =
        Publication::Worker { worker: plain_worker(worker.id()), ttl: Duration::from_secs(60) };
    worker.net.publish(publication).await;

    let addresses_of_worker = || async {
        let found = scheduler.net.get_records_matching(CapabilityQuery::default()).await;
        found.into_iter().flat_map(|found| found.addresses).collect::<Vec<_>>()
    };
    eventually("the record names the route through the gateway", || async {
        addresses_of_worker().await.iter().any(is_circuit)
    })
    .await;
    let found = addresses_of_worker().await;
    assert!(found.iter().any(|address| !is_circuit(address)), "the direct one is known too");
    scheduler.net.add_persistent_peer(worker.id(), found).await;
    for (node, other) in [(&scheduler, &worker), (&worker, &scheduler)] {
        let link = |event: &NetEvent| match event {
            NetEvent::PeerConnected(peer) if peer.id == other.id() => Some(peer.link),
            _ => None,
        };
        assert_eq!(node.wait_for_event("the other", link).await, Link::Relayed);
        assert!(node.healthy(other.id()).await);
    }
    let of_worker = |node: &Node| node.metric("hypha_net_peers{role=\"worker\",link=\"relayed\"}");
    assert_eq!(of_worker(&scheduler), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn learned_addresses_are_filtered_and_configured_ones_are_not() {
    let lab = Lab::new();
    let node = Node::start(
        excluding(settings(NodeRole::Scheduler, &[]), &[FAR]),
        lab.pki(NodeRole::Scheduler),
    );
    let trap = TcpListener::bind((FAR, 0)).unwrap();
    trap.set_nonblocking(true).unwrap();
    let port = trap.local_addr().unwrap().port();
    let excluded = Multiaddr::from(FAR).with(Protocol::Tcp(port));
    let other = lab.node(NodeRole::Worker, &[]).await;
    let reachable = other.listening().await;

    // A peer's addresses are dialled at once, so when one has succeeded the other was left out.
    node.net.add_persistent_peer(other.id(), vec![excluded.clone(), reachable]).await;
    node.joined(other.id()).await;
    assert!(trap.accept().is_err(), "an excluded address was dialled");
    node.net.add_persistent_peer(PeerId::random(), vec![excluded.clone()]).await;
    assert!(node.healthy(other.id()).await);
    assert!(trap.accept().is_err(), "an excluded address was dialled");

    // An address that the operator configures is dialled.
    let dialled = tokio::spawn({
        let net = node.net.clone();
        async move { net.dial(excluded).await }
    });
    eventually("a configured address is dialled", || async { trap.accept().is_ok() }).await;
    assert!(dialled.await.unwrap().is_err(), "there is no node at this address");

    // Another port there is not: it belongs to another server.
    let neighbour = TcpListener::bind((FAR, 0)).unwrap();
    neighbour.set_nonblocking(true).unwrap();
    let port = neighbour.local_addr().unwrap().port();
    let advertised = Multiaddr::from(FAR).with(Protocol::Tcp(port));
    let another = lab.node(NodeRole::Worker, &[]).await;
    let reachable = another.listening().await;
    node.net.add_persistent_peer(another.id(), vec![advertised, reachable]).await;
    node.joined(another.id()).await;
    assert!(neighbour.accept().is_err(), "another port of a configured address was dialled");

    // So is a gateway in an excluded range.
    let gateway = lab.gateway().await;
    let gateways = addresses(&[&gateway]).await;
    let behind = Node::start(
        excluding(settings(NodeRole::Worker, &gateways), &[Ipv4Addr::LOCALHOST]),
        lab.pki(NodeRole::Worker),
    );
    behind.has_gateway(1).await;
}

/// Two machines that were copied, key included.
#[tokio::test]
async fn a_key_that_two_nodes_use_is_noticed() {
    let lab = Lab::new();
    let mut of_gateway = settings(NodeRole::Gateway, &[]);
    of_gateway.limits.ping_interval = Duration::from_millis(200);
    let gateway = Node::start(of_gateway, lab.pki(NodeRole::Gateway));
    let gateways = addresses(&[&gateway]).await;
    let issued = lab.issue(NodeRole::Worker);
    let start = || Node::start(settings(NodeRole::Worker, &gateways), lab.pki_of(&issued));
    let honest = lab.node(NodeRole::Worker, &[&gateway]).await;
    let (first, second) = (start(), start());
    for node in [&honest, &first, &second] {
        node.has_gateway(1).await;
    }
    let shared = || gateway.metric("hypha_net_shared_keys ");
    eventually("the key is noticed", || async { shared() == 1 }).await;
    second.net.stop().await;
    eventually("the other has left", || async { shared() == 0 }).await;
}
