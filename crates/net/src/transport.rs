//! TCP and relayed connections, both behind the same upgrade.

use std::sync::Arc;

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::Transport as _;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, OrTransport};
use libp2p::core::upgrade::Version;
use libp2p::identity::PeerId;
use libp2p::{dns, relay, tcp, yamux};

use crate::gatekeeper::Gatekeeper;
use crate::guard::{Guard, GuardedTransport};
use crate::muxer::EndingMuxer;
use crate::settings::Settings;
use crate::upgrade::Upgrade;

/// The transport, and the part of the relay client that the swarm has to drive.
pub(crate) fn transport(
    settings: &Settings,
    own: PeerId,
    gatekeeper: Arc<Gatekeeper>,
    guard: Guard,
) -> (Boxed<(PeerId, StreamMuxerBox)>, relay::client::Behaviour) {
    let upgrade = Upgrade::new(gatekeeper);
    let muxer = || {
        let mut config = yamux::Config::default();
        config.set_max_num_streams(settings.limits.streams);
        config
    };
    let tcp = || tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    // The guard sits below name resolution, so it sees the resolved addresses.
    let guarded = || GuardedTransport { inner: tcp(), guard: guard.clone() };
    let named = dns::tokio::Transport::system(guarded()).unwrap_or_else(|error| {
        tracing::warn!(
            "cannot read the system's resolver configuration, names may not resolve: {error}"
        );
        let (servers, options) = (dns::ResolverConfig::default(), dns::ResolverOpts::default());
        dns::tokio::Transport::custom(guarded(), servers, options)
    });
    let direct = named
        .upgrade(Version::V1)
        .authenticate(upgrade.clone())
        .multiplex(muxer())
        .timeout(settings.limits.handshake_timeout)
        .map(|connected, _| ending(connected))
        .boxed();
    let (circuits, relay_client) = relay::client::new(own);
    let relayed = circuits
        .upgrade(Version::V1)
        .authenticate(upgrade)
        .multiplex(muxer())
        .timeout(settings.limits.handshake_timeout)
        .map(|connected, _| ending(connected))
        .boxed();
    // The relay goes first: it accepts only circuit addresses, and TCP would misinterpret those.
    let both = OrTransport::new(relayed, direct).map(|either, _| either.into_inner()).boxed();
    (both, relay_client)
}

fn ending<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    (peer, connection): (PeerId, yamux::Muxer<C>),
) -> (PeerId, StreamMuxerBox) {
    (peer, StreamMuxerBox::new(EndingMuxer::new(connection)))
}
