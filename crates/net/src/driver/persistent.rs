//! Peers that this node stays connected to.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId};

use super::Driver;

/// The backoff after the first failed dial, doubled with each, up to the longest.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Dials begun in one tick: a scheduler that finds a thousand workers takes a few seconds, not all ports at once.
const DIALS_PER_TICK: usize = 64;

#[derive(Default)]
pub(super) struct PersistentPeers {
    peers: HashMap<PeerId, PersistentPeer>,
}

struct PersistentPeer {
    addresses: Vec<Multiaddr>,
    failures: u32,
    next_dial: Instant,
}

impl PersistentPeers {
    pub(super) fn connected(&mut self, peer: &PeerId) {
        if let Some(peer_state) = self.peers.get_mut(peer) {
            peer_state.failures = 0;
        }
    }

    pub(super) fn failed(&mut self, peer: &PeerId, now: Instant) {
        if let Some(peer_state) = self.peers.get_mut(peer) {
            peer_state.next_dial = now + backoff(peer_state.failures);
            peer_state.failures = peer_state.failures.saturating_add(1);
        }
    }
}

/// The backoff after so many failures in a row.
pub(super) fn backoff(failures: u32) -> Duration {
    INITIAL_BACKOFF.saturating_mul(1 << failures.min(16)).min(MAX_BACKOFF)
}

impl Driver {
    pub(super) fn add_persistent_peer(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        self.swarm.behaviour_mut().peers.keep_alive(peer);
        let now = Instant::now();
        let peer_state = self.persistent.peers.entry(peer).or_insert(PersistentPeer {
            addresses: Vec::new(),
            failures: 0,
            next_dial: now,
        });
        if peer_state.addresses != addresses {
            peer_state.addresses = addresses;
            peer_state.next_dial = now;
            peer_state.failures = 0;
        }
        self.dial_persistent_peers(now);
    }

    pub(super) fn remove_persistent_peer(&mut self, peer: PeerId) {
        self.persistent.peers.remove(&peer);
        self.swarm.behaviour_mut().peers.stop_keep_alive(peer);
    }

    pub(super) fn dial_persistent_peers(&mut self, now: Instant) {
        let own = self.own();
        let peers = &self.swarm.behaviour().peers;
        let due: Vec<_> = self
            .persistent
            .peers
            .iter()
            .filter(|(peer, peer_state)| {
                peer_state.next_dial <= now && peers.link(peer).is_none() && **peer != own
            })
            .take(DIALS_PER_TICK)
            .map(|(peer, peer_state)| (*peer, peer_state.addresses.clone()))
            .collect();
        for (peer, addresses) in due {
            let addresses: Vec<_> =
                addresses.into_iter().filter(|one| self.guard.allows_address(one)).collect();
            let options = DialOpts::peer_id(peer)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .addresses(addresses)
                .extend_addresses_through_behaviour()
                .build();
            if let Err(error) = self.swarm.dial(options) {
                tracing::debug!(%peer, "cannot dial: {error}");
            }
            // Until the dial has succeeded or failed; a success shows as a link.
            self.persistent.failed(&peer, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_and_is_bounded() {
        assert_eq!(backoff(0), INITIAL_BACKOFF);
        assert_eq!(backoff(2), INITIAL_BACKOFF * 4);
        assert_eq!(backoff(u32::MAX), MAX_BACKOFF);
    }
}
