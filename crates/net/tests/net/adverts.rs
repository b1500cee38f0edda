//! Adverts by gossip: they reach workers through a gateway, and only schedulers may author them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hypha_model::{
    AdvertId, Epoch, Name, NodeRole, OfferId, Priority, Requirement, Rng, SchedulerId, Time,
};
use hypha_net::{NetEvent, PeerId, scheduler_id, worker_id};
use hypha_pki::Pki;
use hypha_wire::market::{Advert, Offer, OfferedRole, WantedRole};
use hypha_wire::record::{AdvertClosedRecord, AdvertRecord, SignedKind, SignedRecord};
use hypha_wire::request::{RequestBody, ResponseBody};
use hypha_wire::{Message, Worker, encode};

use crate::lab::{Lab, Node, eventually, plain_worker, settings};
use crate::rogue::member;

fn advert(number: u64) -> Advert {
    let role = WantedRole {
        name: Name::literal("worker"),
        requirement: Box::new(Requirement::default()),
        count: 2,
        minimum: 1,
        wants_all: false,
        bid_micros: 1_000_000,
    };
    Advert {
        id: AdvertId::new(Time::ZERO, &mut Rng::new(number)),
        roles: vec![role],
        priority: Priority::default(),
        is_preemptible: false,
        is_replacement: false,
        waited_us: 0,
        window_us: 500_000,
        offers_wanted: 10,
        lease_ttl_us: 10_000_000,
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn record(pki: &Pki, advert: Advert) -> AdvertRecord {
    AdvertRecord {
        peer: pki.own().peer_id.to_bytes(),
        organisation: pki.own().organisation.clone(),
        issued_unix_ms: now_ms(),
        advert,
        addresses: Vec::new(),
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

fn signed(pki: &Pki, advert: Advert) -> Vec<u8> {
    encode(&sign(pki, SignedKind::Advert, &record(pki, advert))).unwrap()
}

fn adverts_of(node: &Node) -> usize {
    node.count(|event| matches!(event, NetEvent::AdvertReceived { .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_advert_reaches_workers_through_a_gateway_and_an_offer_comes_back() {
    let lab = Lab::new();
    let gateway = lab.gateway().await;
    let scheduler = Node::try_start(
        settings(NodeRole::Scheduler, &[gateway.listening().await]),
        lab.pki(NodeRole::Scheduler),
        None,
        |request| {
            let is_offer = matches!(&request.body, RequestBody::Offer(offer)
                if offer.offer.worker_id == worker_id(&request.peer.id)
                    && request.peer.role == NodeRole::Worker
                    && !offer.addresses.is_empty());
            assert!(is_offer, "{:?}", request.body);
            let _ = request.responder.send(ResponseBody::OfferReceived);
        },
    );
    let scheduler = scheduler.unwrap();
    let workers = [
        lab.node(NodeRole::Worker, &[&gateway]).await,
        lab.node(NodeRole::Worker, &[&gateway]).await,
    ];
    scheduler.has_gateway(1).await;
    for worker in &workers {
        worker.has_gateway(1).await;
    }
    let (sent, wanted) = (advert(1), advert(1).id);
    let received = |event: &NetEvent| match event {
        NetEvent::AdvertReceived { from, organisation, addresses, advert } => {
            let author: (PeerId, SchedulerId) = (*from, scheduler_id(from));
            (advert.id == wanted)
                .then(|| (author, organisation.clone(), addresses.clone(), (**advert).clone()))
        }
        _ => None,
    };
    // Neighbours of a node are known a moment after it is connected.
    eventually("the advert arrives", || async {
        scheduler.net.publish_advert(sent.clone()).await;
        workers.iter().all(|worker| adverts_of(worker) > 0)
    })
    .await;
    for worker in &workers {
        let (from, organisation, addresses, got) =
            worker.wait_for_event("the advert", received).await;
        assert_eq!(from, (scheduler.id(), scheduler_id(&scheduler.id())));
        assert_eq!((organisation.as_str(), &got), ("acme", &sent));
        let offer = Offer {
            id: OfferId::new(Time::ZERO, &mut Rng::new(9)),
            advert: got.id,
            worker_id: worker_id(&worker.id()),
            worker: Worker::from_model(&plain_worker(worker.id())),
            epoch: Epoch(1).0,
            roles: vec![OfferedRole { role: 0, price_micros: 1, portion: Default::default() }],
            reserved_for_us: 1_000_000,
            speed_milli: None,
            backlog_us: 0,
            is_relayed: false,
        };
        // Only the gateway is connected: the scheduler is dialled at the advert's addresses.
        assert!(!addresses.is_empty());
        let deadline = Duration::from_secs(20);
        worker.net.send_offer(scheduler.id(), addresses, offer, deadline).await.unwrap();
    }
    scheduler.net.close_advert(wanted).await;
    for worker in &workers {
        let closed = |event: &NetEvent| {
            matches!(event, NetEvent::AdvertClosed { from, advert }
                if (*from, *advert) == (scheduler.id(), wanted))
            .then_some(())
        };
        worker.wait_for_event("the end of the advert", closed).await;
    }
    assert_eq!(adverts_of(&scheduler) + adverts_of(&gateway), 0, "only workers answer adverts");
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_adverts_are_not_forwarded() {
    let lab = Lab::new();
    let gateway = lab.gateway().await;
    let worker = lab.node(NodeRole::Worker, &[&gateway]).await;
    worker.has_gateway(1).await;
    let (rogue, pki) = member(&lab, NodeRole::Worker);
    rogue.dial(gateway.listening().await).await.unwrap();
    let honest = Arc::new(lab.pki(NodeRole::Scheduler));
    let refused = || gateway.metric("hypha_net_records_refused_total{source=\"gossip\"}");

    let mut unsigned = sign(&honest, SignedKind::Advert, &record(&honest, advert(1)));
    unsigned.signature[0] ^= 1;
    let mut other_price = sign(&honest, SignedKind::Advert, &record(&honest, advert(1)));
    let mut changed = record(&honest, advert(1));
    changed.advert.roles[0].bid_micros += 1;
    other_price.payload = encode(&changed).unwrap();
    let other_peer = record(&lab.pki(NodeRole::Scheduler), advert(1));
    let mut other_organisation = record(&honest, advert(1));
    other_organisation.organisation = "beta".into();
    let mut old = record(&honest, advert(1));
    old.issued_unix_ms -= 300_000;
    let stranger = Lab::new().pki(NodeRole::Scheduler);
    let ends = AdvertClosedRecord {
        peer: pki.own().peer_id.to_bytes(),
        issued_unix_ms: now_ms(),
        advert: advert(1).id,
    };
    let of = |record: &AdvertRecord| encode(&sign(&honest, SignedKind::Advert, record)).unwrap();
    let forgeries = [
        ("an advert of a worker", signed(&pki, advert(1))),
        (
            "the end of an advert of a worker",
            encode(&sign(&pki, SignedKind::AdvertClosed, &ends)).unwrap(),
        ),
        ("an advert of a gateway", signed(&lab.pki(NodeRole::Gateway), advert(1))),
        ("an advert under another root", signed(&stranger, advert(1))),
        ("a changed signature", encode(&unsigned).unwrap()),
        ("a changed bid", encode(&other_price).unwrap()),
        ("another peer", of(&other_peer)),
        ("another organisation", of(&other_organisation)),
        ("one that has ended", of(&old)),
    ];
    for (number, (what, bytes)) in (0..).zip(forgeries) {
        let before = refused();
        rogue.gossip(bytes).await;
        eventually(&format!("{what} is refused"), || async { refused() == before + 1 }).await;
        // What follows on the same connection is forwarded, so a forged one would have arrived before it.
        rogue.gossip(signed(&honest, advert(100 + number))).await;
        let expected = number as usize + 1;
        eventually("a genuine one", || async { adverts_of(&worker) >= expected }).await;
        assert_eq!(adverts_of(&worker), expected, "{what} was forwarded");
        assert_eq!(worker.count(|event| matches!(event, NetEvent::AdvertClosed { .. })), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_adverts_is_not_forwarded_and_a_busy_scheduler_is() {
    let lab = Lab::new();
    let gateway = lab.gateway().await;
    let worker = lab.node(NodeRole::Worker, &[&gateway]).await;
    worker.has_gateway(1).await;
    let (rogue, flooder) = member(&lab, NodeRole::Scheduler);
    rogue.dial(gateway.listening().await).await.unwrap();
    let refused = || gateway.metric("hypha_net_records_refused_total{source=\"gossip\"}");
    for number in 0..200 {
        rogue.gossip(signed(&flooder, advert(number))).await;
    }
    let judged = || async { refused() as usize + adverts_of(&worker) >= 200 };
    eventually("all were judged", judged).await;
    // A burst of 40, and ten a second while it lasted.
    let arrived = adverts_of(&worker);
    assert!((30..150).contains(&arrived), "{arrived} of a flood were forwarded");
    // Another scheduler is not affected.
    let other = lab.pki(NodeRole::Scheduler);
    let own = other.own().peer_id;
    for number in 0..20 {
        rogue.gossip(signed(&other, advert(1_000 + number))).await;
    }
    let of_other =
        |event: &NetEvent| matches!(event, NetEvent::AdvertReceived { from, .. } if *from == own);
    eventually("those of another arrive", || async { worker.count(of_other) == 20 }).await;
}
