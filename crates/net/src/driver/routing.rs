//! Where a query of the directory begins.
//!
//! Every reachable node serves the directory, but while there are gateways it is kept on those: routing tables hold
//! only gateways, so records go to them and they respond to queries. With other servers in the tables too, each record
//! would travel to some of hundreds of workers that come and go, over connections made for nothing else. A node that
//! has lost all gateways begins with the servers that it has connected to before.

use std::collections::HashMap;

use hypha_model::NodeRole;
use libp2p::{Multiaddr, PeerId};

use super::Driver;

/// Servers that are remembered: more than a query ever contacts.
const MAX_SERVERS: usize = 512;

#[derive(Default)]
pub(super) struct DirectoryServers {
    known: HashMap<PeerId, Vec<Multiaddr>>,
}

impl Driver {
    /// `peer` serves the directory at these addresses; none means that it does not.
    pub(super) fn on_directory_server(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        if addresses.is_empty() {
            self.servers.known.remove(&peer);
            self.swarm.behaviour_mut().kad.remove_peer(&peer);
            return;
        }
        if self.servers.known.len() < MAX_SERVERS || self.servers.known.contains_key(&peer) {
            self.servers.known.insert(peer, addresses.clone());
        }
        let is_gateway = self.role_of(&peer) == Some(NodeRole::Gateway);
        if is_gateway || self.has_lost_all_gateways() {
            let kad = &mut self.swarm.behaviour_mut().kad;
            for address in addresses {
                kad.add_address(&peer, address);
            }
        }
    }

    /// A gateway connected or disconnected: queries begin there, or with the servers that this node knows.
    pub(super) fn update_routing_table(&mut self) {
        let alone = self.has_lost_all_gateways();
        for (peer, addresses) in &self.servers.known {
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

    fn has_lost_all_gateways(&self) -> bool {
        self.settings.role != NodeRole::Gateway && self.connected_gateways().is_empty()
    }

    fn role_of(&self, peer: &PeerId) -> Option<NodeRole> {
        self.gatekeeper.admitted(peer).map(|admitted| admitted.certificate.role)
    }
}
