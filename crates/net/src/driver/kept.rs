//! Peers that this node stays connected to.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId};

use super::Driver;

/// The first pause after a failed dial, doubled with each, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Dials begun in one tick: a scheduler that finds a thousand workers takes a few seconds, not all ports at once.
const DIALS_PER_TICK: usize = 64;

#[derive(Default)]
pub(super) struct KeptPeers {
    peers: HashMap<PeerId, Kept>,
}

struct Kept {
    addresses: Vec<Multiaddr>,
    failures: u32,
    next_dial: Instant,
}

impl KeptPeers {
    pub(super) fn connected(&mut self, peer: &PeerId) {
        if let Some(kept) = self.peers.get_mut(peer) {
            kept.failures = 0;
        }
    }

    pub(super) fn failed(&mut self, peer: &PeerId, now: Instant) {
        if let Some(kept) = self.peers.get_mut(peer) {
            kept.next_dial = now + pause(kept.failures);
            kept.failures = kept.failures.saturating_add(1);
        }
    }
}

/// How long to wait after so many failures in a row.
pub(super) fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE)
}

impl Driver {
    pub(super) fn keep(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        self.swarm.behaviour_mut().peers.keep(peer);
        let now = Instant::now();
        let kept = self.kept.peers.entry(peer).or_insert(Kept {
            addresses: Vec::new(),
            failures: 0,
            next_dial: now,
        });
        if kept.addresses != addresses {
            kept.addresses = addresses;
            kept.next_dial = now;
            kept.failures = 0;
        }
        self.dial_kept(now);
    }

    pub(super) fn let_go(&mut self, peer: PeerId) {
        self.kept.peers.remove(&peer);
        self.swarm.behaviour_mut().peers.let_go(peer);
    }

    pub(super) fn dial_kept(&mut self, now: Instant) {
        let own = self.own();
        let peers = &self.swarm.behaviour().peers;
        let due: Vec<_> = self
            .kept
            .peers
            .iter()
            .filter(|(peer, kept)| {
                kept.next_dial <= now && peers.link(peer).is_none() && **peer != own
            })
            .take(DIALS_PER_TICK)
            .map(|(peer, kept)| (*peer, kept.addresses.clone()))
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
            // Until the dial has ended one way or the other; a success is seen by the link.
            self.kept.failed(&peer, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        assert_eq!(pause(0), FIRST_PAUSE);
        assert_eq!(pause(2), FIRST_PAUSE * 4);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
