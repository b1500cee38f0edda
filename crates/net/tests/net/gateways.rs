//! Gateways that restart, die, or are not gateways.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hypha_model::{CapabilityQuery, NodeRole};
use hypha_net::{NetEvent, PeerId, Publication};
use tracing_subscriber::EnvFilter;

use crate::lab::{Lab, Node, answer_health, eventually, plain_worker, settings};

const TTL: Duration = Duration::from_secs(60);

/// The documented bound after a restart.
const BACK_WITHIN: Duration = Duration::from_secs(30);

async fn publish(node: &Node) {
    let worker = plain_worker(node.id());
    node.net.publish(Publication::Worker { worker, ttl: TTL }).await;
}

async fn found(node: &Node) -> Vec<PeerId> {
    let found = node.net.get_records_matching(CapabilityQuery::default()).await;
    found.into_iter().map(|found| found.peer).collect()
}

fn ids<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Vec<PeerId> {
    let mut ids: Vec<_> = nodes.into_iter().map(Node::id).collect();
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_reconnect_to_a_restarted_gateway() {
    let lab = Lab::new();
    let issued = lab.issue(NodeRole::Gateway);
    let first = Node::start(settings(NodeRole::Gateway, &[]), lab.pki_of(&issued));
    let address = first.listening().await;
    let mut workers = Vec::new();
    for _ in 0..9 {
        let worker = lab.node(NodeRole::Worker, &[&first]).await;
        publish(&worker).await;
        workers.push(worker);
    }
    let scheduler = lab.node(NodeRole::Scheduler, &[&first]).await;
    let everyone = ids(&workers);
    eventually("all are found", || async { found(&scheduler).await == everyone }).await;

    first.net.stop().await;
    let nodes = || workers.iter().chain([&scheduler]);
    for node in nodes() {
        let lost =
            |event: &NetEvent| matches!(event, NetEvent::GatewayChanged(_, None)).then_some(());
        node.wait_for_event("the loss of the gateway", lost).await;
    }
    let mut again = settings(NodeRole::Gateway, &[]);
    again.listen = vec![address];
    // The port is free once the first one's sockets are closed, a moment after it has stopped.
    let second = Mutex::new(None);
    eventually("the port is free", || async {
        let started = Node::try_start(again.clone(), lab.pki_of(&issued), None, answer_health);
        started.map(|node| second.lock().unwrap().replace(node)).is_ok()
    })
    .await;
    let back = async {
        for node in nodes() {
            node.has_gateway(2).await;
        }
    };
    assert!(tokio::time::timeout(BACK_WITHIN, back).await.is_ok(), "some are not back");
    // The new gateway has only records that it received since.
    eventually("all are found again", || async { found(&scheduler).await == everyone }).await;
    let second = second.into_inner().unwrap().unwrap();
    assert_eq!(second.id(), first.id());
    // Metrics are updated periodically.
    let counted = || async { second.metric("hypha_net_records ") >= 9 };
    eventually("the gateway counts its records", counted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_one_of_two_gateways_has_no_effect() {
    let lab = Lab::new();
    let survivor = lab.gateway().await;
    // The other runs in a runtime of its own, which ends without a farewell.
    let vanishing = tokio::runtime::Runtime::new().unwrap();
    let victim = {
        let _inside = vanishing.enter();
        Node::start(settings(NodeRole::Gateway, &[]), lab.pki(NodeRole::Gateway))
    };
    let both = [&victim, &survivor];
    let scheduler = lab.node(NodeRole::Scheduler, &both).await;
    let workers =
        [lab.node(NodeRole::Worker, &both).await, lab.node(NodeRole::Worker, &both).await];
    for worker in &workers {
        publish(worker).await;
        worker.has_gateway(2).await;
    }
    scheduler.has_gateway(2).await;
    let listings = hypha_model::capability::listings_of(&plain_worker(scheduler.id())).len() as u64;
    eventually("each gateway holds both workers, on all their lists", || async {
        both.iter().all(|gateway| gateway.metric("hypha_net_records ") >= 2 * listings)
    })
    .await;
    assert_eq!(found(&scheduler).await, ids(&workers));
    let records = CapabilityQuery::default();
    for record in scheduler.net.get_records_matching(records).await {
        scheduler.net.add_persistent_peer(record.peer, record.addresses).await;
        scheduler.joined(record.peer).await;
    }

    vanishing.shutdown_background();
    // At once, without a retry.
    assert_eq!(found(&scheduler).await, ids(&workers));
    for worker in &workers {
        assert!(scheduler.healthy(worker.id()).await);
    }
    let lost = |event: &NetEvent| matches!(event, NetEvent::GatewayChanged(_, None)).then_some(());
    scheduler.wait_for_event("the loss of the gateway", lost).await;
    // Records published now are found too, also by a node that joins now and knows both addresses.
    let newcomer = lab.node(NodeRole::Worker, &both).await;
    publish(&newcomer).await;
    let late = lab.node(NodeRole::Scheduler, &both).await;
    let everyone = ids(workers.iter().chain([&newcomer]));
    for node in [&scheduler, &late] {
        eventually("the newcomer is found", || async { found(node).await == everyone }).await;
    }
    for worker in &workers {
        assert!(scheduler.healthy(worker.id()).await);
        let left = |event: &NetEvent| matches!(event, NetEvent::PeerDisconnected(id) if *id == worker.id());
        assert_eq!(scheduler.count(left), 0, "links between nodes outlive a gateway");
    }
}

// One thread, because the subscriber that catches the warnings is that thread's.
#[tokio::test]
async fn a_worker_at_a_gateway_address_is_not_used_as_a_gateway() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("hypha_net=warn"))
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let lab = Lab::new();
    let _caught = tracing::subscriber::set_default(subscriber);
    let worker = lab.node(NodeRole::Worker, &[]).await;
    let address = worker.listening().await;
    let misled = Node::start(
        settings(NodeRole::Worker, std::slice::from_ref(&address)),
        lab.pki(NodeRole::Worker),
    );
    publish(&misled).await;
    let expected = "the node there is a worker, not a gateway";
    eventually("it logs the reason", || async { log.text().contains(expected) }).await;
    misled.joined(worker.id()).await;
    // A second look, some attempts later.
    eventually("it keeps retrying", || async { log.text().matches(expected).count() > 1 }).await;
    assert_eq!(misled.count(|event| matches!(event, NetEvent::GatewayChanged(..))), 0);
    assert_eq!(worker.metric("hypha_net_records "), 0, "nothing is put to it");
    assert!(misled.healthy(worker.id()).await, "it is a peer like any other");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
