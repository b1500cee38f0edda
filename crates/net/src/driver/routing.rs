//! Where a query of the directory begins.
//!
//! Every reachable node serves the directory, but while there are gateways it lives on those: routing tables hold only
//! gateways, so records go to them and queries are answered by them. Were other servers in the tables too, each record
//! would travel to some of hundreds of workers that come and go, over connections made for nothing else. A node that
//! has lost all gateways begins with the servers that it has met.

use std::collections::HashMap;

use hypha_model::NodeRole;
use libp2p::{Multiaddr, PeerId};

use super::Driver;

/// Servers that are remembered: more than a query ever asks.
const MAX_SERVERS: usize = 512;

#[derive(Default)]
pub(super) struct Servers {
    met: HashMap<PeerId, Vec<Multiaddr>>,
}

impl Driver {
    /// `peer` serves the directory at these addresses; none means that it does not.
    pub(super) fn on_server(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        if addresses.is_empty() {
            self.servers.met.remove(&peer);
            self.swarm.behaviour_mut().kad.remove_peer(&peer);
            return;
        }
        if self.servers.met.len() < MAX_SERVERS || self.servers.met.contains_key(&peer) {
            self.servers.met.insert(peer, addresses.clone());
        }
        let is_gateway = self.role_of(&peer) == Some(NodeRole::Gateway);
        if is_gateway || self.routes_by_itself() {
            let kad = &mut self.swarm.behaviour_mut().kad;
            for address in addresses {
                kad.add_address(&peer, address);
            }
        }
    }

    /// A gateway came or went: queries begin there, or with whom this node has met.
    pub(super) fn update_routes(&mut self) {
        let alone = self.routes_by_itself();
        for (peer, addresses) in &self.servers.met {
            if self.role_of(peer) == Some(NodeRole::Gateway) {
                continue;
            }
            let kad = &mut self.swarm.behaviour_mut().kad;
            if !alone {
                kad.remove_peer(peer);
                continue;
            }
            for address in addresses {
                kad.add_address(peer, address.clone());
            }
        }
    }

    fn routes_by_itself(&self) -> bool {
        self.settings.role != NodeRole::Gateway && self.connected_gateways().is_empty()
    }

    fn role_of(&self, peer: &PeerId) -> Option<NodeRole> {
        self.gatekeeper.met(peer).map(|met| met.certificate.role)
    }
}
