//! Whether the addresses to listen on are free.
//!
//! The network shares its ports, which hole punching needs: a second node on the same port would start without a
//! word, and each would get a part of the connections. So they are tried beforehand without sharing.

use std::net::{SocketAddr, TcpListener};

use hypha_net::Multiaddr;
use hypha_net::multiaddr::Protocol;

use crate::NodeError;

pub(crate) fn refuse_taken(addresses: &[Multiaddr]) -> Result<(), NodeError> {
    for address in addresses {
        if let Some(socket) = socket_address(address)
            && let Err(error) = TcpListener::bind(socket)
        {
            let problem = format!("cannot listen on {address}: {error}");
            return Err(NodeError::failed(problem));
        }
    }
    Ok(())
}

fn socket_address(address: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = address.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some(SocketAddr::new(ip, port)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_refused_and_any_port_is_not() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = |port: u16| -> Multiaddr { format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap() };
        let port = taken.local_addr().unwrap().port();
        let error = refuse_taken(&[at(0), at(port)]).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot listen on /ip4/127.0.0.1/tcp/{port}: ")),
            "{error}"
        );
        drop(taken);
        refuse_taken(&[at(0), at(port)]).unwrap();
    }
}
