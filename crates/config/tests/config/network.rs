//! Which learned addresses are not dialled.

use std::net::IpAddr;

use hypha_config::{GatewayConfig, RESERVED_RANGES, WorkerConfig, excluded};

use crate::Home;

fn is_excluded(text: &str, ip: &str) -> bool {
    let config: WorkerConfig = Home::new().good(text);
    let ip: IpAddr = ip.parse().unwrap();
    excluded(&config.network).iter().any(|range| range.contains(&ip))
}

#[test]
fn reserved_ranges_are_excluded_unless_configured_addresses_are_in_them() {
    let lan = "gateway_addresses = ['/ip4/192.168.1.10/tcp/4001']";
    let cases = [
        ("", "127.0.0.1", true),
        ("", "10.1.2.3", true),
        ("", "172.31.255.255", true),
        ("", "172.32.0.0", false),
        ("", "100.64.0.1", true),
        ("", "169.254.169.254", true),
        ("", "192.168.1.11", true),
        ("", "203.0.113.1", true),
        ("", "239.1.1.1", true),
        ("", "255.255.255.255", true),
        ("", "8.8.8.8", false),
        ("", "::1", true),
        ("", "::ffff:127.0.0.1", true),
        ("", "fe80::1", true),
        ("", "fd00::1", true),
        ("", "2001:db8::1", true),
        ("", "ff02::1", true),
        ("", "2606:4700::1", false),
        (lan, "192.168.200.1", false),
        (lan, "10.1.2.3", true),
        ("listen_addresses = ['/ip4/127.0.0.1/tcp/0']", "127.0.0.2", false),
        ("listen_addresses = ['/ip6/::1/tcp/0']", "::1", false),
        ("external_addresses = ['/ip4/10.9.9.9/tcp/1']", "10.1.2.3", false),
        ("bulk_external_addresses = ['/ip4/10.9.9.9/tcp/1']", "10.1.2.3", false),
        // The unspecified address and a host name belong to no range.
        ("listen_addresses = ['/ip4/0.0.0.0/tcp/0', '/ip6/::/tcp/0']", "0.1.2.3", true),
        ("gateway_addresses = ['/dns4/localhost/tcp/4001']", "127.0.0.1", true),
        // A list is taken literally.
        ("exclude_cidr = []", "127.0.0.1", false),
        ("exclude_cidr = ['8.0.0.0/8']", "8.8.8.8", true),
        (
            "exclude_cidr = ['127.0.0.0/8']\nlisten_addresses = ['/ip4/127.0.0.1/tcp/0']",
            "127.0.0.1",
            true,
        ),
    ];
    for (text, ip, expected) in cases {
        assert_eq!(is_excluded(text, ip), expected, "{ip} with `{text}`");
    }
}

#[test]
fn reserved_ranges_start_at_their_network_address() {
    for range in RESERVED_RANGES {
        assert_eq!(range, range.trunc());
        assert_eq!(RESERVED_RANGES.iter().filter(|other| **other == range).count(), 1, "{range}");
    }
}

#[test]
fn bulk_transfers_listen_no_wider_than_the_node() {
    let home = Home::new();
    let bulk = |text: &str| {
        let config: GatewayConfig = home.good(text);
        format!("{:?}", config.network.bulk_listen_addresses)
    };
    assert_eq!(bulk(""), "[/ip4/0.0.0.0/tcp/0]");
    let listen =
        "listen_addresses = ['/ip4/127.0.0.1/tcp/1', '/ip4/127.0.0.1/tcp/2', '/ip6/::1/tcp/1']";
    assert_eq!(bulk(listen), "[/ip4/127.0.0.1/tcp/0, /ip6/::1/tcp/0]");
    let both = format!("{listen}\nbulk_listen_addresses = ['/ip4/10.0.0.1/tcp/7']");
    assert_eq!(bulk(&both), "[/ip4/10.0.0.1/tcp/7]");
}
