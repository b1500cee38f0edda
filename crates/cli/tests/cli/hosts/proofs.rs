//! Checks the assumptions that other tests make about the topology. No `hypha` in here.

use std::net::SocketAddr;
use std::process::Command;

use super::actor::{Dialler, Echo};
use super::{Host, Mapping, Nat, Topology};
use crate::process::{Node, WAIT_TIMEOUT};

/// A port without a listener.
const CLOSED_PORT: u16 = 9;

const MAPPINGS: [Mapping; 2] = [Mapping::EndpointIndependent, Mapping::Symmetric];

fn at(host: &Host, port: u16) -> SocketAddr {
    SocketAddr::from((host.address(), port))
}

#[test]
fn programs_run_on_their_host() {
    let Some(internet) = Topology::new("hosts::proofs::programs_run_on_their_host") else {
        return;
    };
    let nat = internet.nat(Mapping::Symmetric);
    let host = nat.host();
    let mut version = Node::hypha_on(&host, "version", &["--version"]);
    assert!(version.wait(WAIT_TIMEOUT).success());
    version.wait_for_line("hypha ", WAIT_TIMEOUT);

    let links = host.command("ip").args(["-brief", "address"]).output().unwrap();
    let links = String::from_utf8(links.stdout).unwrap();
    assert_eq!(links.lines().count(), 2, "loopback and one link: {links}");
    assert!(links.contains(&format!("{}/24", host.address())), "{links}");
    let machine = Command::new("ip").args(["-brief", "address"]).output().unwrap();
    let machine = String::from_utf8(machine.stdout).unwrap();
    assert!(!machine.contains("198.18.") && !machine.contains("uplink"), "{machine}");
}

/// Out, and back in from elsewhere: no reply at all, so that not even the host's absence shows.
fn check_nat(test: &str, mapping: Mapping) {
    let Some(internet) = Topology::new(test) else { return };
    let (server, stranger) = (internet.public_host(), internet.public_host());
    let echo = Echo::start(&server);
    let mut stranger_dials = Dialler::start(&stranger);
    assert_eq!(stranger_dials.dial(at(&server, CLOSED_PORT)), "refused", "without a NAT");

    let nat = internet.nat(mapping);
    let inside = nat.host();
    let mut dialler = Dialler::start(&inside);
    let seen = dialler.seen_by(&echo);
    assert_eq!(seen.ip(), nat.outer_address());

    for port in [seen.port(), CLOSED_PORT] {
        let outer = SocketAddr::from((nat.outer_address(), port));
        assert_eq!(stranger_dials.dial(outer), "timed out", "{outer}");
    }
    let inner = stranger_dials.dial(dialler.address);
    assert!(inner.contains("unreachable"), "{inner}");
    let output = dialler.node.output();
    assert!(!output.contains("accepted"), "{output}");
}

#[test]
fn unsolicited_packets_do_not_pass_an_endpoint_independent_mapping() {
    check_nat(
        "hosts::proofs::unsolicited_packets_do_not_pass_an_endpoint_independent_mapping",
        Mapping::EndpointIndependent,
    );
}

#[test]
fn unsolicited_packets_do_not_pass_a_symmetric_mapping() {
    check_nat(
        "hosts::proofs::unsolicited_packets_do_not_pass_a_symmetric_mapping",
        Mapping::Symmetric,
    );
}

#[test]
fn neighbours_reach_each_other_while_their_nat_is_cut_off() {
    let Some(internet) =
        Topology::new("hosts::proofs::neighbours_reach_each_other_while_their_nat_is_cut_off")
    else {
        return;
    };
    let nat = internet.nat(Mapping::EndpointIndependent);
    let (one, other) = (nat.host(), nat.host());
    nat.partition();
    let echo = Echo::start(&one);
    let mut dialler = Dialler::start(&other);
    assert_eq!(dialler.seen_by(&echo), dialler.address, "no router in between");

    let server = internet.public_host();
    let echo = Echo::start(&server);
    assert_eq!(dialler.dial(echo.address), "timed out");
    nat.heal();
    assert_eq!(dialler.seen_by(&echo).ip(), nat.outer_address());
}

#[test]
fn the_mapping_decides_whether_all_see_the_same_port() {
    let Some(internet) =
        Topology::new("hosts::proofs::the_mapping_decides_whether_all_see_the_same_port")
    else {
        return;
    };
    // Three: that two random ports are the same happens once in a month of test runs.
    let servers = [internet.public_host(), internet.public_host(), internet.public_host()];
    let echoes = servers.each_ref().map(Echo::start);
    for mapping in MAPPINGS {
        let nat = internet.nat(mapping);
        let host = nat.host();
        let mut dialler = Dialler::start(&host);
        let ports = echoes.each_ref().map(|echo| dialler.seen_by(echo).port());
        match mapping {
            Mapping::EndpointIndependent => assert_eq!(ports, [dialler.address.port(); 3]),
            Mapping::Symmetric => {
                assert!(ports.iter().any(|port| *port != ports[0]), "{ports:?}");
                assert!(ports.iter().any(|port| *port != dialler.address.port()), "{ports:?}");
            }
        }
    }
}

/// Two hosts learn from a third how they are seen, and dial each other at about the same time.
fn can_punch(internet: &Topology, mappings: [Mapping; 2]) -> bool {
    let server = internet.public_host();
    let rendezvous = Echo::start(&server);
    let nats = mappings.map(|mapping| internet.nat(mapping));
    let hosts = nats.each_ref().map(Nat::host);
    let [mut left, mut right] = hosts.each_ref().map(Dialler::start);
    let (left_seen, right_seen) = (left.seen_by(&rendezvous), right.seen_by(&rendezvous));
    left.punch(right_seen);
    right.punch(left_seen);
    let (left, right) = (left.has_punched(), right.has_punched());
    assert_eq!(left, right, "both or none");
    left
}

#[test]
fn holes_can_be_punched_through_endpoint_independent_mappings() {
    let Some(internet) =
        Topology::new("hosts::proofs::holes_can_be_punched_through_endpoint_independent_mappings")
    else {
        return;
    };
    assert!(can_punch(&internet, [Mapping::EndpointIndependent; 2]));
}

#[test]
fn no_hole_can_be_punched_through_two_symmetric_mappings() {
    let Some(internet) =
        Topology::new("hosts::proofs::no_hole_can_be_punched_through_two_symmetric_mappings")
    else {
        return;
    };
    assert!(!can_punch(&internet, [Mapping::Symmetric; 2]));
}

#[test]
fn one_symmetric_mapping_is_enough_to_prevent_a_hole() {
    let Some(internet) =
        Topology::new("hosts::proofs::one_symmetric_mapping_is_enough_to_prevent_a_hole")
    else {
        return;
    };
    assert!(!can_punch(&internet, MAPPINGS));
}

/// A cut off host, behind a NAT and in public; and a whole network.
#[test]
fn a_partition_is_silent_and_heals() {
    let Some(internet) = Topology::new("hosts::proofs::a_partition_is_silent_and_heals") else {
        return;
    };
    let (server, witness) = (internet.public_host(), internet.public_host());
    let nat = internet.nat(Mapping::EndpointIndependent);
    let inside = nat.host();
    let (echo, second) = (Echo::start(&server), Echo::start(&server));

    for (cut, host, others_are_well) in
        [("inside", &inside, true), ("nat", &nat.outside, true), ("server", &server, false)]
    {
        let sent = |when: &str| format!("{cut}-{when}");
        let came_back = |when: &str| format!("came back: {cut}-{when}");
        let [mut dialler, mut witness] = [&inside, &witness].map(Dialler::start);
        dialler.seen_by(&echo);
        dialler.send(&sent("before"));
        dialler.node.wait_for_line(&came_back("before"), WAIT_TIMEOUT);

        host.partition();
        dialler.send(&sent("meanwhile"));
        assert_eq!(dialler.dial(second.address), "timed out", "{cut}");
        assert_eq!(witness.dial(echo.address).starts_with("seen as"), others_are_well, "{cut}");
        let heard = format!("heard: {cut}-meanwhile");
        assert!(!echo.node.output().contains(&heard), "{cut}: neither way is open");

        host.heal();
        dialler.node.wait_for_line(&came_back("meanwhile"), WAIT_TIMEOUT);
        let output = dialler.node.output();
        assert!(!output.contains("broken"), "the connection has survived: {output}");
    }
}
