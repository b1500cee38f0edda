//! Bulk transfers between nodes, on each carrier, on a calm network and on one that stalls and breaks.
//!
//! `HYPHA_BULK_BYTES=268435456 HYPHA_BULK_ROUNDS=20` makes the transfers as large and as many as a training job's.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use hypha_bulk::DiscardSink;
use hypha_model::NodeRole;
use hypha_net::{Bulk, BulkCarrier, BulkLimits, Header, Incoming, Outgoing, PeerId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::lab::{Lab, Node, loopback, settings};
use crate::proxy::Proxy;

/// Transfers at once in each direction.
const AT_ONCE: usize = 4;

/// How long nothing moves when a connection stalls: longer than the watchdog waits.
const STALL: Duration = Duration::from_millis(1_500);

/// More tags than are in use at once.
const TAGS: usize = 1 << 16;

fn from_environment(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn bytes() -> usize {
    from_environment("HYPHA_BULK_BYTES", 3 << 20)
}

fn rounds() -> usize {
    from_environment("HYPHA_BULK_ROUNDS", 20)
}

/// Faults are noticed soon, so that a test does not take long; the defaults suit slow links.
fn limits() -> BulkLimits {
    BulkLimits {
        open_timeout: Duration::from_secs(2),
        stall_timeout: Duration::from_millis(700),
        backoff_max: Duration::from_millis(500),
        max_attempts: 60,
        ..BulkLimits::default()
    }
}

struct Side {
    node: Node,
    bulk: Bulk,
    incoming: mpsc::Receiver<Incoming>,
}

impl Side {
    async fn new(lab: &Lab, role: NodeRole, ping: Duration, proxied: bool) -> Side {
        let mut settings = settings(role, &[]);
        settings.bulk_listen = vec![loopback()];
        if proxied {
            // No route around the proxy: the other learns no address to dial, and this one may not dial any it learns.
            settings.listen.clear();
            settings.excluded = vec!["127.0.0.1/32".parse().unwrap()];
        }
        settings.limits.ping_interval = ping;
        let node = Node::start(settings, lab.pki(role));
        let (bulk, incoming) = node.net.bulk(limits()).await.unwrap();
        Side { node, bulk, incoming }
    }
}

/// Two connected nodes; the second reaches the first through `proxy`, if there is one.
async fn pair(ping: Duration, proxied: bool) -> (Side, Side, Option<Proxy>) {
    let lab = Lab::new();
    let first = Side::new(&lab, NodeRole::Worker, ping, false).await;
    let second = Side::new(&lab, NodeRole::Scheduler, ping, proxied).await;
    let address = first.node.listening().await;
    let proxy =
        if proxied { Some(Proxy::start(&address, bytes() as u64 * 2, STALL).await) } else { None };
    let address = proxy.as_ref().map_or(address, |proxy| proxy.address());
    second.node.net.add_persistent_peer(first.node.id(), vec![address]).await;
    second.node.joined(first.node.id()).await;
    first.node.joined(second.node.id()).await;
    (first, second, proxy)
}

/// Sends several at once in both directions, and checks that each arrives intact.
async fn exchange(first: &mut Side, second: &mut Side, carrier: BulkCarrier, round: usize) {
    let mut sending = JoinSet::new();
    let directions =
        [(first.bulk.clone(), second.node.id()), (second.bulk.clone(), first.node.id())];
    for (bulk, to) in directions {
        for index in 0..AT_ONCE {
            sending.spawn(send(bulk.clone().only(carrier), to, round * 100 + index));
        }
    }
    let mut receiving = JoinSet::new();
    let mut received = 0;
    while received < 2 * AT_ONCE || !sending.is_empty() {
        tokio::select! {
            Some(offer) = first.incoming.recv() => drop(receiving.spawn(accept(offer))),
            Some(offer) = second.incoming.recv() => drop(receiving.spawn(accept(offer))),
            Some(done) = receiving.join_next() => {
                done.unwrap();
                received += 1;
            }
            Some(sent) = sending.join_next() => sent.unwrap(),
        }
    }
}

/// Bytes that differ for each tag, sliced from one random buffer so that large ones cost no memory.
fn content(tag: usize) -> Bytes {
    static STRETCH: OnceLock<Bytes> = OnceLock::new();
    let stretch = STRETCH.get_or_init(|| {
        let mut stretch = vec![0; bytes() + TAGS];
        blake3::Hasher::new().update(b"hypha").finalize_xof().fill(&mut stretch);
        Bytes::from(stretch)
    });
    stretch.slice(tag % TAGS..tag % TAGS + bytes())
}

async fn send(bulk: Bulk, to: PeerId, tag: usize) {
    let content = content(tag);
    let header = Header {
        job: None,
        round: Some(tag as u64),
        kind: "delta".into(),
        name: format!("tensor-{tag}"),
        length: content.len() as u64,
        digest: None,
    };
    bulk.send(to, Outgoing::new(header), content).await.unwrap();
}

async fn accept(offer: Incoming) {
    let tag = offer.header().round.unwrap() as usize;
    let received = offer.accept(DiscardSink).await.unwrap();
    let sent = blake3::hash(&content(tag));
    assert_eq!(received.digest.0, *sent.as_bytes(), "transfer {tag} arrived damaged");
}

async fn many_rounds(carrier: BulkCarrier, ping: Duration) {
    let (mut first, mut second, _) = pair(ping, false).await;
    for round in 0..rounds() {
        exchange(&mut first, &mut second, carrier, round).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_at_once_both_ways_on_connections_of_their_own() {
    many_rounds(BulkCarrier::Dedicated, Duration::from_secs(15)).await;
}

/// Frequent pings provoke stalls of yamux: transfers must complete all the same.
#[tokio::test(flavor = "multi_thread")]
async fn several_at_once_both_ways_on_streams_with_frequent_pings() {
    many_rounds(BulkCarrier::Stream, Duration::from_millis(20)).await;
}

/// The peer connection stalls, and breaks, in the middle of transfers; they resume after the last verified chunk.
#[tokio::test(flavor = "multi_thread")]
async fn transfers_survive_stalls_and_lost_connections() {
    let (mut first, mut second, proxy) = pair(Duration::from_secs(15), true).await;
    for round in 0..rounds().min(2) {
        exchange(&mut first, &mut second, BulkCarrier::Stream, round).await;
    }
    let faults = proxy.unwrap().faults();
    assert!(faults >= 4, "{faults} faults show too little");
}
