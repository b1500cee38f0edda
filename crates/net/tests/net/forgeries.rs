//! Forged records and gossip: dropped where they arrive, and not forwarded.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hypha_model::capability::listings_of;
use hypha_model::{CapabilityQuery, Listing, NodeRole};
use hypha_net::{NetEvent, PeerId};
use hypha_pki::Pki;
use hypha_wire::record::{DatasetRecord, Farewell, SignedKind, SignedRecord, WorkerRecord};
use hypha_wire::record_set::{RecordSet, RecordSetEntry};
use hypha_wire::worker::Worker as WireWorker;
use hypha_wire::{Message, encode};

use crate::lab::{Lab, Node, eventually, plain_worker, settings};
use crate::rogue::{Rogue, list_key, member, part_of};

const MINUTE_MS: u32 = 60_000;

/// A gateway, a scheduler that receives what it forwards, and a rogue with a worker's certificate.
struct Stage {
    lab: Lab,
    gateway: Node,
    scheduler: Node,
    rogue: Rogue,
    pki: Arc<Pki>,
}

impl Stage {
    async fn new() -> Stage {
        let lab = Lab::new();
        let gateway = lab.gateway().await;
        let scheduler = lab.node(NodeRole::Scheduler, &[&gateway]).await;
        scheduler.has_gateway(1).await;
        let (rogue, pki) = member(&lab, NodeRole::Worker);
        rogue.dial(gateway.listening().await).await.unwrap();
        Stage { lab, gateway, scheduler, rogue, pki }
    }

    fn refused(&self, source: &str) -> u64 {
        self.gateway.metric(&format!("hypha_net_records_refused_total{{source=\"{source}\"}}"))
    }

    async fn found(&self) -> Vec<(PeerId, u64)> {
        let found = self.scheduler.net.get_records_matching(CapabilityQuery::default()).await;
        found.into_iter().map(|found| (found.peer, found.sequence)).collect()
    }

    /// Puts a record where the rogue's own record belongs.
    async fn put(&self, signed: Vec<u8>) {
        let key = list_key(&Listing::All, part_of(&self.pki.own().peer_id));
        self.rogue.put(self.gateway.id(), key, signed).await;
    }

    /// Statements that a worker of this organisation cannot have made, and what is wrong with them.
    fn forgeries(&self) -> Vec<(&'static str, Vec<u8>)> {
        let pki = &self.pki;
        let good = record(pki, 1);
        let other = self.lab.pki(NodeRole::Worker);
        let scheduler = self.lab.pki(NodeRole::Scheduler);
        let stranger = Lab::new().pki(NodeRole::Worker);
        let mut unsigned = sign(pki, SignedKind::Worker, &good);
        unsigned.signature[0] ^= 1;
        let mut changed = sign(pki, SignedKind::Worker, &good);
        *changed.payload.last_mut().unwrap() ^= 1;
        let mut borrowed = sign(pki, SignedKind::Worker, &good);
        borrowed.chain = other.own_chain().iter().map(|one| one.to_vec()).collect();
        let mut relabelled = sign(pki, SignedKind::Farewell, &farewell(pki, u64::MAX));
        relabelled.kind = SignedKind::Worker;
        let with = |change: fn(&mut WorkerRecord)| {
            let mut record = record(pki, 1);
            change(&mut record);
            encode(&sign(pki, SignedKind::Worker, &record)).unwrap()
        };
        let of = |pki: &Pki| encode(&sign(pki, SignedKind::Worker, &record(pki, 1))).unwrap();
        let mut of_other = record(&other, 1);
        of_other.organisation = good.organisation.clone();
        vec![
            ("another organisation", with(|record| record.organisation = "beta".into())),
            ("another peer", encode(&sign(pki, SignedKind::Worker, &of_other)).unwrap()),
            ("a scheduler as a worker", of(&scheduler)),
            ("another authority", of(&stranger)),
            ("a changed signature", encode(&unsigned).unwrap()),
            ("a changed payload", encode(&changed).unwrap()),
            ("the chain of another node", encode(&borrowed).unwrap()),
            ("a farewell as a record", encode(&relabelled).unwrap()),
            ("one that has ended", with(|record| record.issued_unix_ms -= 300_000)),
            ("one from the future", with(|record| record.issued_unix_ms += 300_000)),
            (
                "a data set of a worker",
                encode(&sign(pki, SignedKind::Dataset, &dataset(pki))).unwrap(),
            ),
            ("garbage", vec![0xc1; 300]),
            ("nothing", vec![1]),
            ("a newer version", [&[9], &of(pki)[1..]].concat()),
            ("too many bytes", [of(pki).as_slice(), &vec![0; SignedRecord::MAX_BYTES]].concat()),
        ]
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn record(pki: &Pki, sequence: u64) -> WorkerRecord {
    let own = pki.own();
    WorkerRecord {
        peer: own.peer_id.to_bytes(),
        organisation: own.organisation.clone(),
        sequence,
        issued_unix_ms: now_ms(),
        ttl_ms: MINUTE_MS,
        worker: WireWorker::from_model(&plain_worker(own.peer_id)),
        addresses: Vec::new(),
        bulk_addresses: Vec::new(),
    }
}

fn farewell(pki: &Pki, sequence: u64) -> Farewell {
    Farewell { peer: pki.own().peer_id.to_bytes(), sequence, issued_unix_ms: now_ms() }
}

fn dataset(pki: &Pki) -> DatasetRecord {
    DatasetRecord {
        peer: pki.own().peer_id.to_bytes(),
        organisation: pki.own().organisation.clone(),
        sequence: 1,
        issued_unix_ms: now_ms(),
        ttl_ms: MINUTE_MS,
        name: "wiki".into(),
        slices: None,
        bytes: None,
        addresses: Vec::new(),
        bulk_addresses: Vec::new(),
    }
}

fn sign<M: Message>(pki: &Pki, kind: SignedKind, message: &M) -> SignedRecord {
    let payload = encode(message).unwrap();
    SignedRecord {
        kind,
        signature: pki.sign(kind.context(), &payload),
        chain: pki.own_chain().iter().map(|one| one.to_vec()).collect(),
        payload,
    }
}

fn signed(pki: &Pki, sequence: u64) -> Vec<u8> {
    encode(&sign(pki, SignedKind::Worker, &record(pki, sequence))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_gossip_is_not_forwarded_and_genuine_gossip_of_the_same_peer_is() {
    let stage = Stage::new().await;
    let mut believed = Vec::new();
    for (what, bytes) in stage.forgeries() {
        // Bytes beyond a message's bound are never even validated.
        let judged = bytes.len() <= SignedRecord::MAX_BYTES;
        let before = stage.refused("gossip");
        stage.rogue.gossip(bytes).await;
        if judged {
            let counted = || async { stage.refused("gossip") == before + 1 };
            eventually(&format!("{what} is refused"), counted).await;
        }
        // Each time another author, whose first message it is: authors have rate limits of their own.
        let honest = stage.lab.pki(NodeRole::Worker);
        let author = honest.own().peer_id;
        believed.push(author);
        let arrived = || {
            stage.scheduler.count(
                |event| matches!(event, NetEvent::WorkerAnnounced(found) if found.peer == author),
            ) > 0
        };
        // Sending too much breaks the sender's own stream: nothing more arrives on its connection.
        let (other, _) = member(&stage.lab, NodeRole::Worker);
        if !judged {
            other.dial(stage.gateway.listening().await).await.unwrap();
        }
        let carrier = if judged { &stage.rogue } else { &other };
        carrier.gossip(signed(&honest, 1)).await;
        eventually(&format!("genuine gossip after {what} is received"), || async { arrived() })
            .await;
        let forged = |event: &NetEvent| match event {
            NetEvent::WorkerAnnounced(found) => !believed.contains(&found.peer),
            _ => false,
        };
        assert_eq!(stage.scheduler.count(forged), 0, "{what} was forwarded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_records_are_not_stored_and_do_not_affect_genuine_ones() {
    let stage = Stage::new().await;
    let own = stage.pki.own().peer_id;
    stage.put(signed(&stage.pki, 100)).await;
    eventually("the genuine record is found", || async { stage.found().await == [(own, 100)] })
        .await;

    for (what, bytes) in stage.forgeries() {
        let before = stage.refused("directory");
        stage.put(bytes).await;
        let counted = || async { stage.refused("directory") == before + 1 };
        eventually(&format!("{what} is refused"), counted).await;
    }
    // Genuine, but under the wrong key.
    let listings = listings_of(&plain_worker(own));
    let elsewhere = Listing::Model("unheard-of".parse().unwrap());
    assert!(!listings.contains(&elsewhere));
    let other_part = (part_of(&own) + 1) % 4;
    let farewell = encode(&sign(&stage.pki, SignedKind::Farewell, &farewell(&stage.pki, 200)));
    let right = list_key(&Listing::All, part_of(&own));
    for (key, bytes) in [
        (list_key(&elsewhere, part_of(&own)), signed(&stage.pki, 101)),
        (list_key(&Listing::All, other_part), signed(&stage.pki, 101)),
        (right, farewell.unwrap()),
    ] {
        let before = stage.refused("directory");
        stage.rogue.put(stage.gateway.id(), key, bytes).await;
        eventually("it is refused", || async { stage.refused("directory") == before + 1 }).await;
    }
    assert_eq!(stage.found().await, [(own, 100)]);
    assert_eq!(stage.gateway.metric("hypha_net_records "), 1);

    // An older one changes nothing, a newer one replaces it.
    stage.put(signed(&stage.pki, 99)).await;
    stage.put(signed(&stage.pki, 102)).await;
    eventually("the newest is found", || async { stage.found().await == [(own, 102)] }).await;
    stage.put(signed(&stage.pki, 101)).await;
    let before = stage.refused("directory");
    stage.put(vec![0xc1]).await;
    eventually("all were checked", || async { stage.refused("directory") > before }).await;
    assert_eq!(stage.found().await, [(own, 102)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lying_server_can_return_only_genuine_records() {
    let lab = Lab::new();
    let (liar, _) = member(&lab, NodeRole::Gateway);
    let honest = lab.pki(NodeRole::Worker);
    let worker = sign(&honest, SignedKind::Worker, &record(&honest, 7));
    let scheduler = lab.pki(NodeRole::Scheduler);
    let mut unsigned = worker.clone();
    unsigned.signature[9] ^= 1;
    let mut old = record(&honest, 8);
    old.issued_unix_ms -= 300_000;
    let forged = [
        sign(&scheduler, SignedKind::Worker, &record(&scheduler, 9)),
        unsigned,
        sign(&honest, SignedKind::Worker, &old),
    ];
    let entries = forged.into_iter().chain([worker]);
    let entries =
        entries.map(|signed| RecordSetEntry { remaining_ms: MINUTE_MS, signed }).collect();
    liar.serve(list_key(&Listing::All, 0), encode(&RecordSet { entries }).unwrap()).await;
    liar.serve(list_key(&Listing::All, 1), vec![0xc1; 50]).await;

    let settings = settings(NodeRole::Scheduler, &[liar.listening().await]);
    let seeker = Node::start(settings, lab.pki(NodeRole::Scheduler));
    seeker.has_gateway(1).await;
    eventually("the genuine records are found", || async {
        let found = seeker.net.get_records_matching(CapabilityQuery::default()).await;
        assert!(
            found.iter().all(|found| found.peer == honest.own().peer_id && found.sequence == 7)
        );
        found.len() == 1
    })
    .await;
    assert!(seeker.metric("hypha_net_records_refused") >= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_farewell_counts_only_from_its_author_and_while_it_is_fresh() {
    let stage = Stage::new().await;
    let victim = stage.lab.node(NodeRole::Worker, &[&stage.gateway]).await;
    let publication = hypha_net::Publication::Worker {
        worker: plain_worker(victim.id()),
        ttl: Duration::from_secs(60),
    };
    victim.net.publish(publication).await;
    eventually("the victim is found", || async {
        stage.found().await.iter().any(|(peer, _)| *peer == victim.id())
    })
    .await;
    let of_victim =
        Farewell { peer: victim.id().to_bytes(), sequence: u64::MAX, issued_unix_ms: now_ms() };
    let mut replayed = farewell(&stage.pki, u64::MAX);
    replayed.issued_unix_ms -= 600_000;
    for forged in [&of_victim, &replayed] {
        let before = stage.refused("gossip");
        let forged = encode(&sign(&stage.pki, SignedKind::Farewell, forged)).unwrap();
        stage.rogue.gossip(forged).await;
        eventually("it is refused", || async { stage.refused("gossip") == before + 1 }).await;
    }
    assert!(stage.found().await.iter().any(|(peer, _)| *peer == victim.id()));

    // Its own farewell counts.
    let own = stage.pki.own().peer_id;
    stage.put(signed(&stage.pki, 100)).await;
    eventually("the rogue is found", || async { stage.found().await.contains(&(own, 100)) }).await;
    let own_farewell = sign(&stage.pki, SignedKind::Farewell, &farewell(&stage.pki, 101));
    stage.rogue.gossip(encode(&own_farewell).unwrap()).await;
    let left =
        |event: &NetEvent| matches!(event, NetEvent::NodeLeft(id) if *id == own).then_some(());
    stage.scheduler.wait_for_event("the farewell", left).await;
    eventually("the rogue is gone", || async {
        stage.found().await.iter().all(|(peer, _)| *peer != own)
    })
    .await;
    let others = |event: &NetEvent| matches!(event, NetEvent::NodeLeft(id) if *id != own);
    assert_eq!(stage.scheduler.count(others), 0, "no forged farewell was forwarded");
}
