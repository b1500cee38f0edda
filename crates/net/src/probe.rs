//! Requests the health of a node without joining the network.
//!
//! It uses only the transport: the same handshake, one stream, one request.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use hypha_pki::{Certificate, Pki};
use hypha_wire::request::{Health, Request, RequestBody, Response, ResponseBody};
use hypha_wire::{Message, decode, encode};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerBox, SubstreamBox};
use libp2p::core::transport::{DialOpts, PortUse};
use libp2p::core::{Endpoint, Transport};
use libp2p::{Multiaddr, multiaddr::Protocol};
use multistream_select::{Version, dialer_select_proto};
use thiserror::Error;

use crate::codec;
use crate::driver::root_cause;
use crate::gatekeeper::Gatekeeper;
use crate::guard::Guard;
use crate::settings::Settings;
use crate::transport::transport;

/// Why a probe failed.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// No connection, or one that ended too soon.
    #[error("cannot reach {address}: {problem}")]
    Unreachable {
        /// The address.
        address: Multiaddr,
        /// The error.
        problem: String,
    },
    /// Another node than the address names.
    #[error("the node there is {found}, not the one that the address names")]
    WrongPeer {
        /// Its peer id.
        found: libp2p::PeerId,
    },
    /// The response is invalid.
    #[error("invalid response: {0}")]
    InvalidResponse(String),
    /// No response in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
}

/// Requests the health of the node at `address`; returns also its identity.
pub async fn probe(
    settings: &Settings,
    pki: Pki,
    address: Multiaddr,
    timeout: Duration,
) -> Result<(Certificate, Health), ProbeError> {
    let response = request_health(settings, pki, address, timeout);
    tokio::time::timeout(timeout, response).await.unwrap_or(Err(ProbeError::TimedOut(timeout)))
}

async fn request_health(
    settings: &Settings,
    pki: Pki,
    address: Multiaddr,
    timeout: Duration,
) -> Result<(Certificate, Health), ProbeError> {
    let unreachable =
        |problem: String| ProbeError::Unreachable { address: address.clone(), problem };
    let own = pki.own().peer_id;
    let gatekeeper = Arc::new(Gatekeeper::new(pki));
    let (mut transport, _relay) = transport(settings, own, gatekeeper.clone(), Guard::default());
    let named = address.iter().find_map(|part| match part {
        Protocol::P2p(peer) => Some(peer),
        _ => None,
    });
    let plain = address.iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect();
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let dial = transport.dial(plain, options).map_err(|error| unreachable(root_cause(&error)))?;
    let (peer, mut muxer) = dial.await.map_err(|error| unreachable(root_cause(&error)))?;
    if named.is_some_and(|named| named != peer) {
        return Err(ProbeError::WrongPeer { found: peer });
    }
    let admitted =
        gatekeeper.admitted(&peer).ok_or_else(|| unreachable("it showed no certificate".into()))?;
    if peer == own {
        // It closes a connection to itself at once. That it showed the same certificate, and admitted this one, is
        // all that can be learned.
        let health = Health {
            role: admitted.certificate.role.to_string(),
            ready: true,
            ..Health::default()
        };
        return Ok((admitted.certificate.clone(), health));
    }
    let stream = open(&mut muxer).await.map_err(|error| unreachable(error.to_string()))?;
    let exchange = exchange(stream, timeout);
    futures::pin_mut!(exchange);
    // A stream moves only while its connection is driven.
    let health = poll_fn(|context| {
        let _ = StreamMuxer::poll(std::pin::Pin::new(&mut muxer), context);
        exchange.as_mut().poll(context)
    })
    .await?;
    Ok((admitted.certificate.clone(), health))
}

async fn open(muxer: &mut StreamMuxerBox) -> std::io::Result<SubstreamBox> {
    poll_fn(|context| {
        if let Poll::Ready(stream) = std::pin::Pin::new(&mut *muxer).poll_outbound(context) {
            return Poll::Ready(stream);
        }
        match std::pin::Pin::new(&mut *muxer).poll(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    })
    .await
}

async fn exchange(stream: SubstreamBox, timeout: Duration) -> Result<Health, ProbeError> {
    let wrong = |problem: String| ProbeError::InvalidResponse(problem);
    let protocols = [codec::PROTOCOL];
    let (_, mut stream) = dialer_select_proto(stream, protocols, Version::V1)
        .await
        .map_err(|error| wrong(format!("it does not answer requests: {error}")))?;
    let deadline_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    let deadline_ms = deadline_ms.min(hypha_wire::request::MAX_DEADLINE_MS);
    let request = Request { id: 1, deadline_ms, traceparent: None, body: RequestBody::Health };
    let bytes = encode(&request).map_err(|error| wrong(error.to_string()))?;
    let io = |error: std::io::Error| wrong(error.to_string());
    stream.write_all(&bytes).await.map_err(io)?;
    stream.close().await.map_err(io)?;
    let mut answer = Vec::new();
    let mut limited = stream.take(Response::MAX_BYTES as u64 + 1);
    limited.read_to_end(&mut answer).await.map_err(io)?;
    let response: Response = decode(&answer).map_err(|error| wrong(error.to_string()))?;
    match response.body {
        ResponseBody::Health(health) => Ok(health),
        ResponseBody::Refused(refusal) => Err(wrong(refusal.message)),
        _ => Err(wrong("it is not a health response".into())),
    }
}
