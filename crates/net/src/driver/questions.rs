//! Questions to peers and by peers, with ids, deadlines and bounds.
//!
//! A question by a peer waits for its answer outside of the loop, so a slow one holds up nobody; and one peer may
//! have only so many under way.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hypha_wire::request::{
    MAX_DEADLINE_MS, Refusal, RefusalKind, Request, RequestBody, Response, ResponseBody,
};
use hypha_wire::{DecodeError, decode, encode};
use libp2p::PeerId;
use libp2p::request_response::{self, OutboundRequestId, ResponseChannel};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Driver;
use super::directory::MAX_ADDRESSES;
use crate::figures::QuestionLabels;
use crate::handle::{AskError, NetEvent, Peer, Question};

pub(super) struct Questions {
    next_id: u64,
    asked: HashMap<OutboundRequestId, Asked>,
    answering: FuturesUnordered<Pin<Box<dyn Future<Output = Option<Answer>> + Send>>>,
    per_peer: HashMap<PeerId, UnderWay>,
    max_per_peer: usize,
}

struct Asked {
    id: u64,
    reply: oneshot::Sender<Result<ResponseBody, AskError>>,
}

/// The questions of one peer that are being answered.
#[derive(Default)]
struct UnderWay {
    count: usize,
    /// Ends them all.
    left: CancellationToken,
}

/// An answer on its way out.
pub(super) struct Answer {
    peer: PeerId,
    id: u64,
    body: ResponseBody,
    channel: ResponseChannel<Vec<u8>>,
}

impl Questions {
    pub(super) fn new(max_per_peer: usize) -> Questions {
        Questions {
            next_id: 1,
            asked: HashMap::new(),
            answering: FuturesUnordered::new(),
            per_peer: HashMap::new(),
            max_per_peer,
        }
    }

    /// The next answer that is ready; waits forever when nothing was asked.
    pub(super) async fn next_answer(&mut self) -> Answer {
        loop {
            match self.answering.next().await {
                Some(Some(answer)) => return answer,
                Some(None) => {}
                None => return std::future::pending().await,
            }
        }
    }

    /// Gives up what `peer` asked: nobody can be answered any more. Left to its deadline it would either count
    /// against the peer when it comes back, or let one that comes and goes ask without bound.
    pub(super) fn peer_left(&mut self, peer: &PeerId) {
        if let Some(under_way) = self.per_peer.remove(peer) {
            under_way.left.cancel();
        }
    }
}

impl Driver {
    pub(super) fn ask(
        &mut self,
        peer: PeerId,
        body: RequestBody,
        deadline: Duration,
        traceparent: Option<String>,
        reply: oneshot::Sender<Result<ResponseBody, AskError>>,
    ) {
        // Those whose askers have given up are dropped here; libp2p lets go of them at its own, longer time-out.
        self.questions.asked.retain(|_, asked| !asked.reply.is_closed());
        let id = self.questions.next_id;
        self.questions.next_id += 1;
        let deadline_ms = u32::try_from(deadline.as_millis())
            .map_or(MAX_DEADLINE_MS, |ms| ms.min(MAX_DEADLINE_MS));
        match encode(&Request { id, deadline_ms, traceparent, body }) {
            Ok(bytes) => {
                let sent = self.swarm.behaviour_mut().requests.send_request(&peer, bytes);
                self.questions.asked.insert(sent, Asked { id, reply });
            }
            Err(error) => {
                let _ = reply.send(Err(error.into()));
            }
        }
    }

    pub(super) fn on_requests(&mut self, event: request_response::Event<Vec<u8>, Vec<u8>>) {
        match event {
            request_response::Event::Message { peer, message, .. } => match message {
                request_response::Message::Request { request, channel, .. } => {
                    self.on_question(peer, &request, channel);
                }
                request_response::Message::Response { request_id, response } => {
                    if let Some(asked) = self.questions.asked.remove(&request_id) {
                        let _ = asked.reply.send(read_answer(asked.id, &response));
                    }
                }
            },
            request_response::Event::OutboundFailure { peer, request_id, error, .. } => {
                if let Some(asked) = self.questions.asked.remove(&request_id) {
                    let problem = super::with_causes(&error);
                    let _ = asked.reply.send(Err(AskError::Unreachable { peer, problem }));
                }
            }
            request_response::Event::InboundFailure { peer, error, .. } => {
                tracing::debug!(%peer, "a question or its answer was cut off: {error}");
            }
            request_response::Event::ResponseSent { .. } => {}
        }
    }

    fn on_question(&mut self, peer: PeerId, bytes: &[u8], channel: ResponseChannel<Vec<u8>>) {
        let (asker, request, left) = match self.admit_question(peer, bytes) {
            Ok(admitted) => admitted,
            Err((id, refusal)) => {
                let body = ResponseBody::Refused(refusal);
                return self.respond(Answer { peer, id, body, channel });
            }
        };
        if request.body == RequestBody::BulkAddresses {
            let addresses = self.bulk_addresses().into_iter().take(MAX_ADDRESSES);
            let body = ResponseBody::BulkAddresses(addresses.map(|one| one.to_vec()).collect());
            return self.send_answer(Answer { peer, id: request.id, body, channel });
        }
        let deadline = Duration::from_millis(request.deadline_ms.into());
        let (answer, answered) = oneshot::channel();
        self.outbox.push(NetEvent::Asked(Question {
            peer: asker,
            body: request.body,
            traceparent: request.traceparent,
            until: Instant::now() + deadline,
            answer,
        }));
        self.questions.answering.push(Box::pin(async move {
            let answered = tokio::time::timeout(deadline, answered);
            let body = match left.run_until_cancelled(answered).await? {
                Ok(Ok(body)) => body,
                Ok(Err(_)) => ResponseBody::Refused(Refusal::new(
                    RefusalKind::Internal,
                    "this node could not answer",
                )),
                Err(_) => ResponseBody::Refused(Refusal::new(
                    RefusalKind::DeadlinePassed,
                    "no answer before the deadline",
                )),
            };
            Some(Answer { peer, id: request.id, body, channel })
        }));
    }

    /// Reads a question and counts it as under way, or says why it is not answered.
    fn admit_question(
        &mut self,
        peer: PeerId,
        bytes: &[u8],
    ) -> Result<(Peer, Request, CancellationToken), (u64, Refusal)> {
        let refused = |id, kind, message: &str| Err((id, Refusal::new(kind, message)));
        let request: Request = match decode(bytes) {
            Ok(request) => request,
            Err(error @ DecodeError::Version { .. }) => {
                return refused(0, RefusalKind::UnknownVersion, &error.to_string());
            }
            Err(error) => return refused(0, RefusalKind::Malformed, &error.to_string()),
        };
        if request.body == RequestBody::Unknown {
            let message = "this node is older and does not know that question";
            return refused(request.id, RefusalKind::UnknownRequest, message);
        }
        let Some(asker) = self.peer(&peer) else {
            return refused(request.id, RefusalKind::NotAllowed, "not connected");
        };
        let under_way = self.questions.per_peer.entry(peer).or_default();
        if under_way.count >= self.questions.max_per_peer {
            let message =
                format!("{} questions of yours are being answered; ask later", under_way.count);
            return refused(request.id, RefusalKind::Busy, &message);
        }
        under_way.count += 1;
        Ok((asker, request, under_way.left.clone()))
    }

    pub(super) fn send_answer(&mut self, answer: Answer) {
        if let Some(under_way) = self.questions.per_peer.get_mut(&answer.peer) {
            under_way.count = under_way.count.saturating_sub(1);
            if under_way.count == 0 {
                self.questions.per_peer.remove(&answer.peer);
            }
        }
        self.respond(answer);
    }

    fn respond(&mut self, answer: Answer) {
        let result = match answer.body {
            ResponseBody::Refused(_) => "refused",
            _ => "answered",
        };
        self.figures.questions.get_or_create(&QuestionLabels { result }).inc();
        let bytes = encode(&Response { id: answer.id, body: answer.body }).or_else(|error| {
            let refusal = Refusal::new(RefusalKind::Internal, error.to_string());
            encode(&Response { id: answer.id, body: ResponseBody::Refused(refusal) })
        });
        match bytes {
            // A peer that hung up meanwhile is no concern of ours.
            Ok(bytes) => {
                drop(self.swarm.behaviour_mut().requests.send_response(answer.channel, bytes))
            }
            Err(error) => tracing::warn!("cannot answer: {error}"),
        }
    }
}

fn read_answer(id: u64, bytes: &[u8]) -> Result<ResponseBody, AskError> {
    let response: Response = decode(bytes).map_err(|error| AskError::Wrong(error.to_string()))?;
    match response {
        // A peer that could not read the question does not know its id.
        Response { body: body @ ResponseBody::Refused(_), .. } => Ok(body),
        Response { id: theirs, .. } if theirs != id => {
            Err(AskError::Wrong(format!("it is for question {theirs}, and {id} was asked")))
        }
        Response { body: ResponseBody::Unknown, .. } => {
            Err(AskError::Wrong("this node is older and does not know that answer".into()))
        }
        Response { body, .. } => Ok(body),
    }
}
