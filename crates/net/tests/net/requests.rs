//! Requests: deadlines, bounds, and invalid bytes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hypha_model::NodeRole;
use hypha_net::{Limits, Multiaddr, PeerId, PeerRequest, RequestError};
use hypha_wire::Message;
use hypha_wire::request::{RefusalKind, Request, RequestBody, Response, ResponseBody};

use crate::lab::{Lab, Node, answer_health, eventually, settings};
use crate::rogue::{Rogue, member};

const SHORT: Duration = Duration::from_millis(300);
/// Longer than any test waits for something.
const LONG: Duration = Duration::from_secs(300);

/// Requests of one peer that [`Responder`] accepts at once.
const REQUEST_LIMIT: usize = 2;

/// A node that answers some requests and never answers others.
struct Responder {
    lab: Lab,
    node: Node,
    address: Multiaddr,
    waiting: Arc<Mutex<Vec<PeerRequest>>>,
    /// Peers whose requests are never answered.
    ignored: Arc<Mutex<Vec<PeerId>>>,
}

impl Responder {
    async fn new() -> Responder {
        let lab = Lab::new();
        let mut settings = settings(NodeRole::Scheduler, &[]);
        settings.limits = Limits { requests_per_peer: REQUEST_LIMIT, ..Limits::for_node() };
        let waiting: Arc<Mutex<Vec<PeerRequest>>> = Arc::default();
        let ignored: Arc<Mutex<Vec<PeerId>>> = Arc::default();
        let (kept, whose) = (waiting.clone(), ignored.clone());
        let answer = move |request: PeerRequest| {
            if whose.lock().unwrap().contains(&request.peer.id) {
                kept.lock().unwrap().push(request);
            } else {
                answer_health(request);
            }
        };
        let pki = lab.pki(NodeRole::Scheduler);
        let node = Node::try_start(settings, pki, None, answer).unwrap();
        let address = node.listening().await;
        Responder { lab, node, address, waiting, ignored }
    }

    /// A worker that is connected.
    async fn worker(&self) -> Node {
        let worker = self.lab.node(NodeRole::Worker, &[]).await;
        worker.net.dial(self.address.clone()).await.unwrap();
        worker
    }

    fn ignore(&self, peer: PeerId) {
        self.ignored.lock().unwrap().push(peer);
    }

    fn answer_all(&self) {
        self.ignored.lock().unwrap().clear();
    }

    async fn request_health(
        &self,
        worker: &Node,
        deadline: Duration,
    ) -> Result<ResponseBody, RequestError> {
        worker.net.request(self.node.id(), RequestBody::Health, deadline, None).await
    }

    /// `worker` sends as many requests as it may, and will not be answered.
    async fn fill_request_limit(&self, worker: &Node) {
        self.ignore(worker.id());
        for _ in 0..REQUEST_LIMIT {
            let (net, responder) = (worker.net.clone(), self.node.id());
            tokio::spawn(
                async move { net.request(responder, RequestBody::Health, LONG, None).await },
            );
        }
        eventually("the requests wait", || async {
            self.waiting.lock().unwrap().len() == REQUEST_LIMIT
        })
        .await;
    }
}

fn kind(answer: Result<ResponseBody, RequestError>) -> RefusalKind {
    match answer {
        Err(RequestError::Refused(refusal)) => refusal.kind,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_request_is_dropped_on_both_sides() {
    let responder = Responder::new().await;
    let worker = responder.worker().await;
    responder.ignore(worker.id());
    // One after the other, more than may be in flight at once: each must have been dropped.
    for round in 1..=2 * REQUEST_LIMIT {
        let answer = responder.request_health(&worker, SHORT).await;
        assert!(matches!(answer, Err(RequestError::TimedOut(SHORT))), "{answer:?}");
        eventually("the other side dropped it too", || async {
            let waiting = responder.waiting.lock().unwrap();
            waiting.len() == round && waiting.iter().all(|request| request.responder.is_closed())
        })
        .await;
    }
    responder.answer_all();
    assert!(worker.healthy(responder.node.id()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_response_does_not_block_other_peers() {
    let responder = Responder::new().await;
    let (slow, quick) = (responder.worker().await, responder.worker().await);
    responder.fill_request_limit(&slow).await;
    for _ in 0..20 {
        assert!(quick.healthy(responder.node.id()).await);
    }
    // And the peer that waits is refused until later.
    assert_eq!(kind(responder.request_health(&slow, LONG).await), RefusalKind::Busy);
    // A response makes room.
    let waiting = std::mem::take(&mut *responder.waiting.lock().unwrap());
    responder.answer_all();
    waiting.into_iter().for_each(answer_health);
    eventually("there is room again", || slow.healthy(responder.node.id())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_disconnected_peer_are_cancelled() {
    let responder = Responder::new().await;
    let issued = responder.lab.issue(NodeRole::Worker);
    let worker = Node::start(settings(NodeRole::Worker, &[]), responder.lab.pki_of(&issued));
    worker.net.dial(responder.address.clone()).await.unwrap();
    responder.fill_request_limit(&worker).await;
    worker.net.stop().await;
    responder.node.left(worker.id()).await;
    eventually("its requests are dropped", || async {
        responder.waiting.lock().unwrap().iter().all(|request| request.responder.is_closed())
    })
    .await;

    let again = Node::start(settings(NodeRole::Worker, &[]), responder.lab.pki_of(&issued));
    again.net.dial(responder.address.clone()).await.unwrap();
    responder.waiting.lock().unwrap().clear();
    responder.fill_request_limit(&again).await;
    assert_eq!(kind(responder.request_health(&again, LONG).await), RefusalKind::Busy);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_request_is_answered_with_an_internal_error() {
    let lab = Lab::new();
    let pki = lab.pki(NodeRole::Scheduler);
    let dropped = Node::try_start(settings(NodeRole::Scheduler, &[]), pki, None, drop).unwrap();
    let worker = lab.node(NodeRole::Worker, &[]).await;
    let id = worker.net.dial(dropped.listening().await).await.unwrap();
    let answer = worker.net.request(id, RequestBody::Health, LONG, None).await;
    assert_eq!(kind(answer), RefusalKind::Internal);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_an_unreachable_peer_fails() {
    let lab = Lab::new();
    let worker = lab.node(NodeRole::Worker, &[]).await;
    let unknown = PeerId::random();
    let answer = worker.net.request(unknown, RequestBody::Health, LONG, None).await;
    assert!(matches!(answer, Err(RequestError::Unreachable { peer, .. }) if peer == unknown));
    // A peer that was up and has stopped.
    let other = lab.node(NodeRole::Worker, &[]).await;
    let id = worker.net.dial(other.listening().await).await.unwrap();
    assert!(worker.healthy(id).await);
    other.net.stop().await;
    worker.left(id).await;
    let answer = worker.net.request(id, RequestBody::Health, LONG, None).await;
    assert!(matches!(answer, Err(RequestError::Unreachable { .. })), "{answer:?}");
    // Once the network has stopped, requests fail.
    worker.net.stop().await;
    let answer = worker.net.request(id, RequestBody::Health, LONG, None).await;
    assert!(matches!(answer, Err(RequestError::Stopped)), "{answer:?}");
}

fn request(deadline_ms: u32) -> Vec<u8> {
    let body = RequestBody::Health;
    hypha_wire::encode(&Request { id: 7, deadline_ms, traceparent: None, body }).unwrap()
}

fn refused(answer: Response) -> (u64, RefusalKind) {
    match answer.body {
        ResponseBody::Refused(refusal) => (answer.id, refusal.kind),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_refused_with_a_reason() {
    let responder = Responder::new().await;
    let (rogue, _) = member(&responder.lab, NodeRole::Worker);
    let rogue = Arc::new(rogue);
    let id = rogue.dial(responder.address.clone()).await.unwrap();
    let answer = rogue.request(id, &request(1_000)).await.unwrap();
    assert_eq!(answer.id, 7);
    assert!(
        matches!(answer.body, ResponseBody::Health(_)),
        "the rogue can send requests: {answer:?}"
    );

    let good = request(1_000);
    let newer = [&[9], &good[1..]].concat();
    let unknown = replaced(&good, b"health", b"wealth");
    let too_large = vec![1; Request::MAX_BYTES + 1];
    let followed = [good.as_slice(), &[0]].concat();
    let cases: [(&[u8], u64, RefusalKind); 6] = [
        (&newer, 0, RefusalKind::UnknownVersion),
        (&unknown, 7, RefusalKind::UnknownRequest),
        (b"", 0, RefusalKind::Malformed),
        (&good[..good.len() / 2], 0, RefusalKind::Malformed),
        (&followed, 0, RefusalKind::Malformed),
        (&too_large, 0, RefusalKind::Malformed),
    ];
    for (bytes, id_of_answer, kind) in cases {
        let answer = rogue.request(id, bytes).await.unwrap();
        assert_eq!(refused(answer), (id_of_answer, kind), "{} bytes", bytes.len());
    }
    let refusals = || responder.node.metric("hypha_net_requests_total{result=\"refused\"}");
    assert_eq!(refusals(), 6);

    // More than is ever read, and no end: the node does not wait for it, and drops the stream.
    let endless = rogue.clone();
    let endless = tokio::spawn(async move { endless.endless_request(id, &[1; 256 << 10]).await });
    eventually("it is refused without its end", || async { refusals() == 7 }).await;
    endless.abort();
    assert!(rogue.request(id, &request(1_000)).await.is_ok());
    assert!(responder.worker().await.healthy(id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_of_one_peer_are_limited() {
    let responder = Responder::new().await;
    let (rogue, pki) = member(&responder.lab, NodeRole::Worker);
    let id = rogue.dial(responder.address.clone()).await.unwrap();
    responder.ignore(pki.own().peer_id);
    let rogue: Arc<Rogue> = Arc::new(rogue);
    let mut storm = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let rogue = rogue.clone();
        storm.spawn(async move { rogue.request(id, &request(2_000)).await });
    }
    let other = responder.worker().await;
    assert!(other.healthy(id).await);
    let open =
        responder.waiting.lock().unwrap().iter().filter(|one| !one.responder.is_closed()).count();
    assert!(open <= REQUEST_LIMIT, "{open} are being answered");
    // Admitted requests are dropped at their deadline; the others are refused or cut off.
    for answer in storm.join_all().await.into_iter().flatten() {
        let (_, kind) = refused(answer);
        assert!(matches!(kind, RefusalKind::Busy | RefusalKind::DeadlinePassed), "{kind:?}");
    }
    assert!(!responder.waiting.lock().unwrap().is_empty());
    responder.answer_all();
    assert!(rogue.request(id, &request(5_000)).await.is_ok());
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}
