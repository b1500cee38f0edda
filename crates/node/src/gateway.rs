//! A gateway has no work besides its network layer; it only logs the peers that connect.

use hypha_model::NodeRole;
use hypha_net::Peer;

/// Logs a connected peer: at level info on a gateway, at level debug elsewhere.
pub(crate) fn log_peer(role: NodeRole, peer: &Peer) {
    let (id, organisation) = (&peer.id, &peer.organisation);
    if role == NodeRole::Gateway {
        tracing::info!(peer = %id, role = %peer.role, organisation, link = %peer.link, "peer connected");
    } else {
        tracing::debug!(peer = %id, role = %peer.role, organisation, link = %peer.link, "peer connected");
    }
}
