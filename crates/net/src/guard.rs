//! Keeps this node from dialling addresses that are valid only in other networks.
//!
//! Peers send each other every address they have, private ones included. An address in an excluded range is not
//! dialled, no matter which peer sent it, unless the operator configured that very address and port: other servers on
//! the same machine stay excluded.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use ipnet::IpNet;
use libp2p::Multiaddr;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::core::{Transport, multiaddr::Protocol};

/// Which addresses may be dialled; shared by all diallers.
#[derive(Clone, Default)]
pub struct Guard {
    excluded: Arc<RwLock<Vec<IpNet>>>,
    configured: Arc<RwLock<HashSet<SocketAddr>>>,
}

impl Guard {
    /// Nothing in `excluded` is dialled, except addresses that are configured later.
    pub fn new(excluded: Vec<IpNet>) -> Guard {
        Guard { excluded: Arc::new(RwLock::new(excluded)), ..Guard::default() }
    }

    /// The operator named this address: it is always dialled.
    pub fn allow_configured(&self, address: SocketAddr) {
        self.configured.write().unwrap_or_else(PoisonError::into_inner).insert(address);
    }

    /// This node is itself in the ranges that `address` lies in: they are no longer excluded.
    pub fn include_ranges_of(&self, address: IpAddr) {
        let mut excluded = self.excluded.write().unwrap_or_else(PoisonError::into_inner);
        excluded.retain(|range| !range.contains(&address));
    }

    /// Whether `address` may be dialled.
    pub fn allows(&self, address: SocketAddr) -> bool {
        let excluded = self.excluded.read().unwrap_or_else(PoisonError::into_inner);
        let configured = self.configured.read().unwrap_or_else(PoisonError::into_inner);
        configured.contains(&address) || !excluded.iter().any(|range| range.contains(&address.ip()))
    }

    /// Whether any dial of `address` could be allowed: a name is decided on when it is resolved, and a relay when it is
    /// dialled itself.
    pub fn allows_address(&self, address: &Multiaddr) -> bool {
        let is_relayed = address.iter().any(|part| part == Protocol::P2pCircuit);
        is_relayed || socket_of(address).is_none_or(|socket| self.allows(socket))
    }
}

/// The IP address that a multiaddress begins with.
pub fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => Some(IpAddr::V4(ip)),
        Some(Protocol::Ip6(ip)) => Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)),
        _ => None,
    }
}

/// The IP address and the port that a multiaddress begins with; port 0 if it has none.
pub(crate) fn socket_of(address: &Multiaddr) -> Option<SocketAddr> {
    let port = match address.iter().nth(1) {
        Some(Protocol::Tcp(port)) => port,
        _ => 0,
    };
    Some(SocketAddr::new(ip_of(address)?, port))
}

/// A transport behind a guard. Listening is not restricted.
pub(crate) struct GuardedTransport<T> {
    pub(crate) inner: T,
    pub(crate) guard: Guard,
}

impl<T: Transport + Unpin> Transport for GuardedTransport<T> {
    type Output = T::Output;
    type Error = T::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = T::Dial;

    fn listen_on(
        &mut self,
        id: ListenerId,
        address: Multiaddr,
    ) -> Result<(), TransportError<T::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<T::Dial, TransportError<T::Error>> {
        if !self.guard.allows_address(&address) {
            return Err(TransportError::MultiaddrNotSupported(address));
        }
        self.inner.dial(address, options)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<T::ListenerUpgrade, T::Error>> {
        Pin::new(&mut self.inner).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learned_addresses_are_filtered_and_configured_ones_are_not() {
        let guard = Guard::new(vec!["10.0.0.0/8".parse().unwrap(), "127.0.0.0/8".parse().unwrap()]);
        let allowed = |text: &str| guard.allows_address(&text.parse().unwrap());
        assert!(allowed("/ip4/203.0.113.9/tcp/1"));
        assert!(allowed("/dns4/node.example/tcp/1"));
        assert!(!allowed("/ip4/10.1.2.3/tcp/1"));
        assert!(!allowed("/ip6/::ffff:10.1.2.3/tcp/1"));
        guard.allow_configured("10.1.2.3:7".parse().unwrap());
        assert!(allowed("/ip4/10.1.2.3/tcp/7"));
        assert!(allowed("/ip6/::ffff:10.1.2.3/tcp/7"));
        assert!(!allowed("/ip4/10.1.2.3/tcp/8"), "another server there");
        assert!(!allowed("/ip4/10.1.2.4/tcp/7"));
        assert!(
            allowed("/ip4/10.1.2.3/tcp/8/p2p-circuit"),
            "the relay itself is checked when it is dialled"
        );
        guard.include_ranges_of("127.0.0.1".parse().unwrap());
        assert!(allowed("/ip4/127.0.0.99/tcp/7"));
        assert!(!allowed("/ip4/10.1.2.4/tcp/7"));
    }
}
