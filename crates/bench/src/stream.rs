//! The bulk carrier for peers that cannot be dialled: a stream of the peer connection, as in nodes.

use std::io;
use std::net::Ipv4Addr;

use hypha_bulk::DiscardSink;
use hypha_bulk::bench::{Carrier, CarrierFuture, Pattern};
use hypha_model::NodeRole;
use hypha_net::multiaddr::Protocol;
use hypha_net::{
    Bulk, BulkLimits, Header, Incoming, Limits, Multiaddr, Net, NetEvent, Outgoing, PeerId,
    Settings,
};
use hypha_pki::Pki;
use tokio::sync::mpsc;

pub(crate) struct Stream {
    net: Net,
    bulk: Bulk,
    pattern: Pattern,
    address: Multiaddr,
}

impl Stream {
    /// Starts a network node on loopback.
    pub(crate) async fn start(pki: Pki, pattern: Pattern) -> anyhow::Result<Stream> {
        let settings = Settings {
            role: NodeRole::Worker,
            agent: "hypha-bench".into(),
            incarnation: None,
            listen: vec![Multiaddr::from(Ipv4Addr::LOCALHOST).with(Protocol::Tcp(0))],
            external: Vec::new(),
            gateways: Vec::new(),
            excluded: Vec::new(),
            excluded_is_configured: false,
            relay_circuit: false,
            relay: None,
            bulk_listen: Vec::new(),
            bulk_external: Vec::new(),
            limits: Limits::for_node(),
        };
        let (net, mut events) = Net::start(settings, pki, None, &mut Default::default())?;
        let address = loop {
            match events.recv().await {
                Some(NetEvent::Listening(address)) => break address,
                Some(_) => {}
                None => anyhow::bail!("the network has stopped"),
            }
        };
        tokio::spawn(async move { while events.recv().await.is_some() {} });
        let (bulk, incoming) = net.bulk(BulkLimits::default()).await?;
        tokio::spawn(take_all(incoming));
        let bulk = bulk.only(hypha_net::BulkCarrier::Stream);
        Ok(Stream { net, bulk, pattern, address })
    }

    async fn send_to(&self, to: &str, bytes: u64) -> io::Result<()> {
        let address: Multiaddr = to.parse().map_err(io::Error::other)?;
        let peer =
            peer_of(&address).ok_or_else(|| io::Error::other("no peer id in the address"))?;
        // The first transfer adds the peer; later calls change nothing.
        self.net.add_persistent_peer(peer, vec![address]).await;
        let header = Header {
            job: None,
            round: None,
            kind: "bench".into(),
            name: "pattern".into(),
            length: bytes,
            digest: None,
        };
        let source = self.pattern.prefix(bytes);
        let sent = self.bulk.send(peer, Outgoing::new(header), source).await;
        sent.map(drop).map_err(io::Error::other)
    }
}

impl Carrier for Stream {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn send<'a>(&'a self, to: &'a str, bytes: u64) -> CarrierFuture<'a, ()> {
        Box::pin(self.send_to(to, bytes))
    }
}

async fn take_all(mut incoming: mpsc::Receiver<Incoming>) {
    while let Some(offer) = incoming.recv().await {
        tokio::spawn(offer.accept(DiscardSink));
    }
}

fn peer_of(address: &Multiaddr) -> Option<PeerId> {
    address.iter().find_map(|part| match part {
        Protocol::P2p(peer) => Some(peer),
        _ => None,
    })
}
