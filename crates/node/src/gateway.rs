//! A gateway has no work of its own: its network does it all. It is told of everyone who comes.

use hypha_model::NodeRole;
use hypha_net::Peer;

/// At a gateway who comes is news; elsewhere it is detail.
pub(crate) fn log_peer(role: NodeRole, peer: &Peer) {
    let (id, organisation) = (&peer.id, &peer.organisation);
    if role == NodeRole::Gateway {
        tracing::info!(peer = %id, role = %peer.role, organisation, link = %peer.link, "peer connected");
    } else {
        tracing::debug!(peer = %id, role = %peer.role, organisation, link = %peer.link, "peer connected");
    }
}
