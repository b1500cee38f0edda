//! Workers and data sets are found by their capabilities, by all nodes, and only while they are up.

use std::time::Duration;

use hypha_model::{CapabilityQuery, Name, NodeRole, Worker};
use hypha_net::{NetEvent, PeerId, Publication};

use crate::lab::{Lab, Node, eventually, worker};

const TTL: Duration = Duration::from_secs(60);
const SHORT_TTL: Duration = Duration::from_secs(10);
const WORKERS: u64 = 99;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Five kinds of workers, in turn.
fn some_worker(index: u64, peer: PeerId) -> Worker {
    let gpu = 8 << (index % 4);
    match index % 5 {
        0 => worker(peer, "vllm", &["llama", "mistral"], &[gpu], 32),
        1 => worker(peer, "vllm", &["llama"], &[], 16),
        2 => worker(peer, "anything", &[], &[gpu, gpu], 64),
        3 => worker(peer, "diffusers", &["sdxl"], &[80], 128),
        _ => worker(peer, "plain", &["small"], &[], 8),
    }
}

fn queries() -> Vec<CapabilityQuery> {
    let any = CapabilityQuery::default;
    vec![
        any(),
        CapabilityQuery { models: vec![name("llama")], ..any() },
        CapabilityQuery { models: vec![name("llama"), name("mistral")], ..any() },
        CapabilityQuery { models: vec![name("unheard-of")], ..any() },
        CapabilityQuery { executor: Some(name("plain")), ..any() },
        CapabilityQuery { executor: Some(name("nothing")), ..any() },
        CapabilityQuery { gpu_required: true, ..any() },
        CapabilityQuery { min_gpu_memory_bytes: 20 << 30, ..any() },
        CapabilityQuery { min_memory_bytes: 60 << 30, cpu_milli: 4_000, ..any() },
        CapabilityQuery { models: vec![name("sdxl")], min_gpu_memory_bytes: 24 << 30, ..any() },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_workers_are_found_by_what_they_offer() {
    let lab = Lab::new();
    let gateway = lab.gateway().await;
    let mut workers: Vec<(Node, Worker)> = Vec::new();
    for index in 0..WORKERS {
        let node = lab.node(NodeRole::Worker, &[&gateway]).await;
        let worker = some_worker(index, node.id());
        node.net.publish(Publication::Worker { worker: worker.clone(), ttl: TTL }).await;
        workers.push((node, worker));
    }
    // This one runs in a runtime of its own, which will end without a farewell.
    let vanishing = tokio::runtime::Runtime::new().unwrap();
    let rude = {
        let _inside = vanishing.enter();
        let node = lab.node(NodeRole::Worker, &[&gateway]).await;
        let worker = some_worker(0, node.id());
        node.net.publish(Publication::Worker { worker: worker.clone(), ttl: SHORT_TTL }).await;
        workers.push((node, worker));
        workers.last().unwrap().0.id()
    };
    let schedulers = [
        lab.node(NodeRole::Scheduler, &[&gateway]).await,
        lab.node(NodeRole::Scheduler, &[&gateway]).await,
    ];
    for query in queries() {
        let mut expected: Vec<_> = workers
            .iter()
            .filter(|(_, worker)| query.satisfied_by(worker))
            .map(|(node, _)| node.id())
            .collect();
        expected.sort();
        for scheduler in &schedulers {
            eventually(&format!("{query:?} finds {} workers", expected.len()), || async {
                let found = scheduler.net.get_records_matching(query.clone()).await;
                found.iter().map(|found| found.peer).collect::<Vec<_>>() == expected
            })
            .await;
        }
    }

    // One leaves with a farewell, one vanishes without.
    let (polite, _) = workers.remove(7);
    polite.net.stop().await;
    schedulers[0]
        .wait_for_event("the farewell", |event| {
            matches!(event, NetEvent::NodeLeft(id) if *id == polite.id()).then_some(())
        })
        .await;
    let gone = [polite.id(), rude];
    vanishing.shutdown_background();
    eventually("nodes that left are no longer found", || async {
        let found = schedulers[1].net.get_records_matching(CapabilityQuery::default()).await;
        found.len() == workers.len() - 1 && found.iter().all(|found| !gone.contains(&found.peer))
    })
    .await;
}
