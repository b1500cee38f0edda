//! Whether an address to listen on is free.
//!
//! The transport shares its port (`SO_REUSEPORT`), so that dials come from the port that it listens on, as
//! hole punching needs. So a second node on the same port would start without an error and get half the connections.

use std::io;
use std::net::TcpListener;

use libp2p::Multiaddr;

use crate::bulk::socket_address;

/// Binds the port without sharing it.
pub(crate) fn check_port_free(address: &Multiaddr) -> io::Result<()> {
    match socket_address(address) {
        Some(address) if address.port() != 0 => TcpListener::bind(address).map(drop),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_not_free_and_any_port_is() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let at = |port: u16| format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap();
        assert!(check_port_free(&at(port)).is_err());
        assert!(check_port_free(&at(0)).is_ok());
        drop(taken);
        assert!(check_port_free(&at(port)).is_ok());
    }
}
