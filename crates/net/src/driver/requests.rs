//! Requests to peers and by peers, with ids, deadlines and bounds.
//!
//! A request by a peer waits for its response outside of the loop, so a slow one delays no other; and one peer may
//! have only so many in flight.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hypha_wire::request::{
    MAX_DEADLINE_MS, Refusal, RefusalKind, Request, RequestBody, Response, ResponseBody,
};
use hypha_wire::{DecodeError, decode, encode};
use libp2p::request_response::{self, OutboundRequestId, ResponseChannel};
use libp2p::{Multiaddr, PeerId};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Driver;
use super::directory::MAX_ADDRESSES;
use crate::handle::{NetEvent, Peer, PeerRequest, RequestError};
use crate::metrics::RequestLabels;

pub(super) struct RequestTracker {
    next_id: u64,
    pending: HashMap<OutboundRequestId, PendingRequest>,
    responding: FuturesUnordered<Pin<Box<dyn Future<Output = Option<OutgoingResponse>> + Send>>>,
    per_peer: HashMap<PeerId, InFlight>,
    max_per_peer: usize,
}

struct PendingRequest {
    id: u64,
    reply: oneshot::Sender<Result<ResponseBody, RequestError>>,
}

/// The requests of one peer that are being answered.
#[derive(Default)]
struct InFlight {
    count: usize,
    /// Ends them all.
    left: CancellationToken,
}

/// A response to be sent.
pub(super) struct OutgoingResponse {
    peer: PeerId,
    id: u64,
    body: ResponseBody,
    channel: ResponseChannel<Vec<u8>>,
}

impl RequestTracker {
    pub(super) fn new(max_per_peer: usize) -> RequestTracker {
        RequestTracker {
            next_id: 1,
            pending: HashMap::new(),
            responding: FuturesUnordered::new(),
            per_peer: HashMap::new(),
            max_per_peer,
        }
    }

    /// The next response that is ready; waits forever when no request is pending.
    pub(super) async fn next_response(&mut self) -> OutgoingResponse {
        loop {
            match self.responding.next().await {
                Some(Some(response)) => return response,
                Some(None) => {}
                None => return std::future::pending().await,
            }
        }
    }

    /// Drops the requests of `peer`: it can no longer receive responses. Until their deadlines they would either count
    /// against the peer when it reconnects, or let a peer that reconnects repeatedly send requests without bound.
    pub(super) fn peer_disconnected(&mut self, peer: &PeerId) {
        if let Some(in_flight) = self.per_peer.remove(peer) {
            in_flight.left.cancel();
        }
    }
}

impl Driver {
    pub(super) fn request(
        &mut self,
        (peer, addresses): (PeerId, Vec<Multiaddr>),
        body: RequestBody,
        deadline: Duration,
        traceparent: Option<String>,
        reply: oneshot::Sender<Result<ResponseBody, RequestError>>,
    ) {
        // Those whose requesters have given up are dropped here; libp2p drops them at its own, longer timeout.
        self.requests.pending.retain(|_, pending| !pending.reply.is_closed());
        let id = self.requests.next_id;
        self.requests.next_id += 1;
        let deadline_ms = u32::try_from(deadline.as_millis())
            .map_or(MAX_DEADLINE_MS, |ms| ms.min(MAX_DEADLINE_MS));
        match encode(&Request { id, deadline_ms, traceparent, body }) {
            Ok(bytes) => {
                let addresses =
                    addresses.into_iter().filter(|one| self.guard.allows_address(one)).collect();
                let requests = &mut self.swarm.behaviour_mut().requests;
                let sent = requests.send_request_with_addresses(&peer, bytes, addresses);
                self.requests.pending.insert(sent, PendingRequest { id, reply });
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
                    self.on_request(peer, &request, channel);
                }
                request_response::Message::Response { request_id, response } => {
                    if let Some(pending) = self.requests.pending.remove(&request_id) {
                        let _ = pending.reply.send(read_response(pending.id, &response));
                    }
                }
            },
            request_response::Event::OutboundFailure { peer, request_id, error, .. } => {
                if let Some(pending) = self.requests.pending.remove(&request_id) {
                    let problem = super::root_cause(&error);
                    let _ = pending.reply.send(Err(RequestError::Unreachable { peer, problem }));
                }
            }
            request_response::Event::InboundFailure { peer, error, .. } => {
                tracing::debug!(%peer, "a request or its response was cut off: {error}");
            }
            request_response::Event::ResponseSent { .. } => {}
        }
    }

    fn on_request(&mut self, peer: PeerId, bytes: &[u8], channel: ResponseChannel<Vec<u8>>) {
        let (requester, request, left) = match self.admit_request(peer, bytes) {
            Ok(admitted) => admitted,
            Err((id, refusal)) => {
                let body = ResponseBody::Refused(refusal);
                return self.respond(OutgoingResponse { peer, id, body, channel });
            }
        };
        if request.body == RequestBody::BulkAddresses {
            let addresses = self.bulk_addresses().into_iter().take(MAX_ADDRESSES);
            let body = ResponseBody::BulkAddresses(addresses.map(|one| one.to_vec()).collect());
            return self.send_response(OutgoingResponse { peer, id: request.id, body, channel });
        }
        let deadline = Duration::from_millis(request.deadline_ms.into());
        match request.body {
            RequestBody::RevocationLists(query) => {
                let index = self.revocation.index(query, deadline);
                self.requests.responding.push(Box::pin(async move {
                    let body = left.run_until_cancelled(index).await?;
                    Some(OutgoingResponse { peer, id: request.id, body, channel })
                }));
                return;
            }
            RequestBody::RevocationPart(query) => {
                let body = self.revocation.part(&query);
                return self.send_response(OutgoingResponse {
                    peer,
                    id: request.id,
                    body,
                    channel,
                });
            }
            _ => {}
        }
        let (responder, response) = oneshot::channel();
        self.outbox.push(NetEvent::RequestReceived(PeerRequest {
            peer: requester,
            body: request.body,
            traceparent: request.traceparent,
            deadline: Instant::now() + deadline,
            responder,
        }));
        self.requests.responding.push(Box::pin(async move {
            let response = tokio::time::timeout(deadline, response);
            let body = match left.run_until_cancelled(response).await? {
                Ok(Ok(body)) => body,
                Ok(Err(_)) => ResponseBody::Refused(Refusal::new(
                    RefusalKind::Internal,
                    "this node failed to handle the request",
                )),
                Err(_) => ResponseBody::Refused(Refusal::new(
                    RefusalKind::DeadlinePassed,
                    "no response before the deadline",
                )),
            };
            Some(OutgoingResponse { peer, id: request.id, body, channel })
        }));
    }

    /// Decodes a request and counts it as in flight, or returns the refusal.
    fn admit_request(
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
            let message = "this node is older and does not support that request";
            return refused(request.id, RefusalKind::UnknownRequest, message);
        }
        let Some(requester) = self.peer(&peer) else {
            return refused(request.id, RefusalKind::NotAllowed, "not connected");
        };
        let in_flight = self.requests.per_peer.entry(peer).or_default();
        if in_flight.count >= self.requests.max_per_peer {
            let message =
                format!("{} of your requests are in flight; retry later", in_flight.count);
            return refused(request.id, RefusalKind::Busy, &message);
        }
        in_flight.count += 1;
        Ok((requester, request, in_flight.left.clone()))
    }

    pub(super) fn send_response(&mut self, response: OutgoingResponse) {
        if let Some(in_flight) = self.requests.per_peer.get_mut(&response.peer) {
            in_flight.count = in_flight.count.saturating_sub(1);
            if in_flight.count == 0 {
                self.requests.per_peer.remove(&response.peer);
            }
        }
        self.respond(response);
    }

    fn respond(&mut self, response: OutgoingResponse) {
        let result = match response.body {
            ResponseBody::Refused(_) => "refused",
            _ => "answered",
        };
        self.metrics.requests.get_or_create(&RequestLabels { result }).inc();
        let bytes = encode(&Response { id: response.id, body: response.body }).or_else(|error| {
            let refusal = Refusal::new(RefusalKind::Internal, error.to_string());
            encode(&Response { id: response.id, body: ResponseBody::Refused(refusal) })
        });
        match bytes {
            // A peer that disconnected meanwhile does not matter.
            Ok(bytes) => {
                drop(self.swarm.behaviour_mut().requests.send_response(response.channel, bytes))
            }
            Err(error) => tracing::warn!("cannot send the response: {error}"),
        }
    }
}

fn read_response(id: u64, bytes: &[u8]) -> Result<ResponseBody, RequestError> {
    let response: Response =
        decode(bytes).map_err(|error| RequestError::InvalidResponse(error.to_string()))?;
    match response {
        // A peer that could not read the request does not know its id.
        Response { body: body @ ResponseBody::Refused(_), .. } => Ok(body),
        Response { id: theirs, .. } if theirs != id => Err(RequestError::InvalidResponse(format!(
            "it is for request {theirs}, not for request {id}"
        ))),
        Response { body: ResponseBody::Unknown, .. } => Err(RequestError::InvalidResponse(
            "this node is older and does not support that response".into(),
        )),
        Response { body, .. } => Ok(body),
    }
}
