//! Questions: deadlines, bounds, and bytes that are none.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hypha_model::NodeRole;
use hypha_net::{AskError, Limits, Multiaddr, PeerId, Question};
use hypha_wire::Message;
use hypha_wire::request::{RefusalKind, Request, RequestBody, Response, ResponseBody};

use crate::lab::{Lab, Node, answer_health, eventually, settings};
use crate::rogue::{Rogue, member};

const SHORT: Duration = Duration::from_millis(300);
/// Longer than any test waits for something.
const LONG: Duration = Duration::from_secs(300);

/// Questions of one peer that [`Desk`] takes at once.
const AT_ONCE: usize = 2;

/// A node that answers some and keeps others waiting for good.
struct Desk {
    lab: Lab,
    node: Node,
    address: Multiaddr,
    waiting: Arc<Mutex<Vec<Question>>>,
    /// Whose questions wait.
    ignored: Arc<Mutex<Vec<PeerId>>>,
}

impl Desk {
    async fn new() -> Desk {
        let lab = Lab::new();
        let mut settings = settings(NodeRole::Scheduler, &[]);
        settings.limits = Limits { requests_per_peer: AT_ONCE, ..Limits::of_node() };
        let waiting: Arc<Mutex<Vec<Question>>> = Arc::default();
        let ignored: Arc<Mutex<Vec<PeerId>>> = Arc::default();
        let (kept, whose) = (waiting.clone(), ignored.clone());
        let answer = move |question: Question| {
            if whose.lock().unwrap().contains(&question.peer.id) {
                kept.lock().unwrap().push(question);
            } else {
                answer_health(question);
            }
        };
        let pki = lab.pki(NodeRole::Scheduler);
        let node = Node::try_start(settings, pki, None, answer).unwrap();
        let address = node.listening().await;
        Desk { lab, node, address, waiting, ignored }
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

    fn attend(&self) {
        self.ignored.lock().unwrap().clear();
    }

    async fn ask(&self, worker: &Node, deadline: Duration) -> Result<ResponseBody, AskError> {
        worker.net.ask(self.node.id(), RequestBody::Health, deadline, None).await
    }

    /// `worker` asks as much as it may, and will not be answered.
    async fn besiege(&self, worker: &Node) {
        self.ignore(worker.id());
        for _ in 0..AT_ONCE {
            let (net, desk) = (worker.net.clone(), self.node.id());
            tokio::spawn(async move { net.ask(desk, RequestBody::Health, LONG, None).await });
        }
        eventually("the questions wait", || async {
            self.waiting.lock().unwrap().len() == AT_ONCE
        })
        .await;
    }
}

fn kind(answer: Result<ResponseBody, AskError>) -> RefusalKind {
    match answer {
        Err(AskError::Refused(refusal)) => refusal.kind,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_passes_on_both_sides_and_nothing_is_left_of_the_question() {
    let desk = Desk::new().await;
    let worker = desk.worker().await;
    desk.ignore(worker.id());
    // One after the other, more than may be under way at once: each must have been let go.
    for round in 1..=2 * AT_ONCE {
        let answer = desk.ask(&worker, SHORT).await;
        assert!(matches!(answer, Err(AskError::TimedOut(SHORT))), "{answer:?}");
        eventually("the other side gave it up too", || async {
            let waiting = desk.waiting.lock().unwrap();
            waiting.len() == round && waiting.iter().all(|question| question.answer.is_closed())
        })
        .await;
    }
    desk.attend();
    assert!(worker.healthy(desk.node.id()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_who_is_kept_waiting_keeps_nobody_else_waiting() {
    let desk = Desk::new().await;
    let (slow, quick) = (desk.worker().await, desk.worker().await);
    desk.besiege(&slow).await;
    for _ in 0..20 {
        assert!(quick.healthy(desk.node.id()).await);
    }
    // And the one who waits is told to ask later.
    assert_eq!(kind(desk.ask(&slow, LONG).await), RefusalKind::Busy);
    // What is answered makes room.
    let waiting = std::mem::take(&mut *desk.waiting.lock().unwrap());
    desk.attend();
    waiting.into_iter().for_each(answer_health);
    eventually("there is room again", || slow.healthy(desk.node.id())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_who_left_is_not_worked_for_and_comes_back_to_a_clean_desk() {
    let desk = Desk::new().await;
    let issued = desk.lab.issue(NodeRole::Worker);
    let worker = Node::start(settings(NodeRole::Worker, &[]), desk.lab.pki_of(&issued));
    worker.net.dial(desk.address.clone()).await.unwrap();
    desk.besiege(&worker).await;
    worker.net.stop().await;
    desk.node.left(worker.id()).await;
    eventually("its questions are given up", || async {
        desk.waiting.lock().unwrap().iter().all(|question| question.answer.is_closed())
    })
    .await;

    let again = Node::start(settings(NodeRole::Worker, &[]), desk.lab.pki_of(&issued));
    again.net.dial(desk.address.clone()).await.unwrap();
    desk.waiting.lock().unwrap().clear();
    desk.besiege(&again).await;
    assert_eq!(kind(desk.ask(&again, LONG).await), RefusalKind::Busy);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_drops_the_question_is_a_fault_of_this_side() {
    let lab = Lab::new();
    let pki = lab.pki(NodeRole::Scheduler);
    let dropped = Node::try_start(settings(NodeRole::Scheduler, &[]), pki, None, drop).unwrap();
    let worker = lab.node(NodeRole::Worker, &[]).await;
    let id = worker.net.dial(dropped.listening().await).await.unwrap();
    let answer = worker.net.ask(id, RequestBody::Health, LONG, None).await;
    assert_eq!(kind(answer), RefusalKind::Internal);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there() {
    let lab = Lab::new();
    let worker = lab.node(NodeRole::Worker, &[]).await;
    let nobody = PeerId::random();
    let answer = worker.net.ask(nobody, RequestBody::Health, LONG, None).await;
    assert!(matches!(answer, Err(AskError::Unreachable { peer, .. }) if peer == nobody));
    // Somebody who was there and has gone.
    let other = lab.node(NodeRole::Worker, &[]).await;
    let id = worker.net.dial(other.listening().await).await.unwrap();
    assert!(worker.healthy(id).await);
    other.net.stop().await;
    worker.left(id).await;
    let answer = worker.net.ask(id, RequestBody::Health, LONG, None).await;
    assert!(matches!(answer, Err(AskError::Unreachable { .. })), "{answer:?}");
    // And once the network has stopped there is nobody to ask through.
    worker.net.stop().await;
    let answer = worker.net.ask(id, RequestBody::Health, LONG, None).await;
    assert!(matches!(answer, Err(AskError::Stopped)), "{answer:?}");
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
async fn bytes_that_are_no_question_get_an_answer_that_says_so() {
    let desk = Desk::new().await;
    let (rogue, _) = member(&desk.lab, NodeRole::Worker);
    let rogue = Arc::new(rogue);
    let id = rogue.dial(desk.address.clone()).await.unwrap();
    let answer = rogue.request(id, &request(1_000)).await.unwrap();
    assert_eq!(answer.id, 7);
    assert!(matches!(answer.body, ResponseBody::Health(_)), "the rogue can speak: {answer:?}");

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
    let refusals = || desk.node.figure("hypha_net_questions_total{result=\"refused\"}");
    assert_eq!(refusals(), 6);

    // More than is ever read, and no end: the node does not wait for it, and lets go of the stream.
    let endless = rogue.clone();
    let endless = tokio::spawn(async move { endless.endless_request(id, &[1; 256 << 10]).await });
    eventually("it is refused without its end", || async { refusals() == 7 }).await;
    endless.abort();
    assert!(rogue.request(id, &request(1_000)).await.is_ok());
    assert!(desk.worker().await.healthy(id).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_questions_by_one_peer_is_bounded_and_hurts_nobody_else() {
    let desk = Desk::new().await;
    let (rogue, pki) = member(&desk.lab, NodeRole::Worker);
    let id = rogue.dial(desk.address.clone()).await.unwrap();
    desk.ignore(pki.own().peer_id);
    let rogue: Arc<Rogue> = Arc::new(rogue);
    let mut storm = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let rogue = rogue.clone();
        storm.spawn(async move { rogue.request(id, &request(2_000)).await });
    }
    let other = desk.worker().await;
    assert!(other.healthy(id).await);
    let open = desk.waiting.lock().unwrap().iter().filter(|one| !one.answer.is_closed()).count();
    assert!(open <= AT_ONCE, "{open} are being answered");
    // Those that were let in are given up at their deadline; the rest are refused or cut off.
    for answer in storm.join_all().await.into_iter().flatten() {
        let (_, kind) = refused(answer);
        assert!(matches!(kind, RefusalKind::Busy | RefusalKind::DeadlinePassed), "{kind:?}");
    }
    assert!(!desk.waiting.lock().unwrap().is_empty());
    desk.attend();
    assert!(rogue.request(id, &request(5_000)).await.is_ok());
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}
