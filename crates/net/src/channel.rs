//! A stream between two peers that stays open: frames of messages in both directions. A [`ChannelProtocol`] defines
//! which roles may open one, and its messages.
//!
//! The peer that accepts a channel greets first. An opened stream without a greeting was dropped (several opened at
//! once may be), and is opened again.

use std::collections::HashMap;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hypha_model::NodeRole;
use hypha_wire::{ChannelProtocol, FrameReader, Message, put_frame};
use libp2p::{PeerId, Stream, StreamProtocol};
use libp2p_stream::OpenStreamError;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

use crate::gatekeeper::Gatekeeper;
use crate::handle::Net;
use crate::rate::RateLimiter;

/// How long a peer may take to greet.
const GREETING_TIMEOUT: Duration = Duration::from_secs(3);

/// How often a stream is opened before the peer counts as unreachable. A stream is dropped when another peer's arrives
/// at the same moment, so it takes that many such moments in a row to fail.
const MAX_OPEN_ATTEMPTS: u32 = 6;

/// How long after a dropped stream the next is opened, times the number of attempts: longer than a peer needs to accept
/// the streams that arrived together.
const REOPEN_BACKOFF: Duration = Duration::from_millis(20);

/// Channels that wait to be accepted: a node serves a few others.
const ACCEPT_QUEUE: usize = 16;

/// Channels of one peer and protocol at once: one in use, and some whose end this side has not noticed yet. Each may hold
/// a frame, so this bounds what one peer can make a node hold.
const CHANNELS_PER_PEER: usize = 4;

/// Lines about refused channels per second: a peer may open streams as fast as it likes.
const REFUSAL_LOGS_PER_SECOND: u32 = 1;

/// Bytes that are read at a time: the multiplexer sends no larger pieces.
const READ_BYTES: usize = 16 << 10;

/// Room that a writer keeps from one frame to the next; see [`FrameReader`].
const RETAINED_BYTES: usize = 128 << 10;

/// The sending half of a channel.
pub struct ChannelWriter<M> {
    stream: WriteHalf<Compat<Stream>>,
    buffer: Vec<u8>,
    /// Whether a frame was begun and not finished: then nothing can follow it.
    broken: bool,
    messages: PhantomData<fn(M)>,
}

/// The receiving half of a channel.
pub struct ChannelReader<M> {
    peer: PeerId,
    stream: ReadHalf<Compat<Stream>>,
    frames: FrameReader<M>,
    /// Bytes that were read and not yet put into frames are `buffer[at..end]`.
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    warned: bool,
    /// The permit of an accepted channel, returned when it is dropped.
    _permit: Option<ChannelPermit>,
}

/// One end of a channel: `W` is sent, `R` is received.
pub struct Channel<W, R> {
    /// The other end.
    pub peer: PeerId,
    /// Its organisation, by its certificate.
    pub organisation: String,
    /// Sends to it.
    pub writer: ChannelWriter<W>,
    /// Receives from it.
    pub reader: ChannelReader<R>,
}

/// The end of the peer that opened a channel.
pub type OpenedChannel<P> =
    Channel<<P as ChannelProtocol>::FromOpener, <P as ChannelProtocol>::FromAcceptor>;

/// The end of the peer that accepted it.
pub type AcceptedChannel<P> =
    Channel<<P as ChannelProtocol>::FromAcceptor, <P as ChannelProtocol>::FromOpener>;

impl Net {
    /// Opens a channel to a peer.
    pub async fn open_channel<P: ChannelProtocol>(
        &self,
        peer: PeerId,
    ) -> io::Result<OpenedChannel<P>> {
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        for number in 1..=MAX_OPEN_ATTEMPTS {
            match tokio::time::timeout(GREETING_TIMEOUT, self.open_channel_once::<P>(peer)).await {
                Ok(Ok(channel)) => return Ok(channel),
                Ok(Err(error)) if is_permanent(&error) => return Err(error),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, "no greeting in time"),
            }
            tokio::time::sleep(REOPEN_BACKOFF * number).await;
        }
        Err(last)
    }

    /// Accepts channels that peers open to this node, until the receiver is dropped. There can be only one receiver.
    pub fn accept_channels<P: ChannelProtocol>(
        &self,
    ) -> io::Result<mpsc::Receiver<AcceptedChannel<P>>> {
        let mut control = self.shared.streams.clone();
        let mut streams = control.accept(StreamProtocol::new(P::NAME)).map_err(|_| {
            io::Error::other("channels of this protocol are already being accepted")
        })?;
        let (channels, taken) = mpsc::channel(ACCEPT_QUEUE);
        // Not the whole shared context: that would keep the streams from ever ending.
        let gatekeeper = self.shared.gatekeeper.clone();
        let quota = ChannelQuota::default();
        let mut logged = RateLimiter::new(REFUSAL_LOGS_PER_SECOND, 10, 1);
        tokio::spawn(async move {
            loop {
                let (peer, stream) = tokio::select! {
                    next = streams.next() => match next {
                        Some(next) => next,
                        None => return,
                    },
                    () = channels.closed() => return,
                };
                match admit::<P>(&gatekeeper, &quota, peer) {
                    // Outside the loop: the next stream would be dropped if it had to wait for this greeting.
                    Ok((permit, organisation)) => {
                        let peer = (peer, organisation);
                        drop(tokio::spawn(greet::<P>(peer, stream, permit, channels.clone())));
                    }
                    Err(reason) if logged.take((), Instant::now()) => {
                        tracing::warn!(%peer, protocol = P::NAME, "refused a channel: {reason}");
                    }
                    Err(_) => {}
                }
            }
        });
        Ok(taken)
    }

    async fn open_channel_once<P: ChannelProtocol>(
        &self,
        peer: PeerId,
    ) -> io::Result<OpenedChannel<P>> {
        let mut control = self.shared.streams.clone();
        let opened = control.open_stream(peer, StreamProtocol::new(P::NAME)).await;
        let stream = opened.map_err(|error| match error {
            OpenStreamError::UnsupportedProtocol(_) => {
                let problem =
                    format!("it does not accept such channels: it is not a {}", P::ACCEPTOR);
                io::Error::new(io::ErrorKind::Unsupported, problem)
            }
            error => io::Error::other(error),
        })?;
        let Some(organisation) = organisation_in(P::ACCEPTOR, &self.shared.gatekeeper, &peer)
        else {
            let problem = format!("its certificate is not that of a {}", P::ACCEPTOR);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        };
        let mut channel: OpenedChannel<P> = split((peer, organisation), stream, None);
        match channel.reader.next().await? {
            Some(_) => Ok(channel),
            None => {
                let problem = "it closed the stream without a greeting";
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem))
            }
        }
    }
}

impl<M: Message> ChannelWriter<M> {
    /// Writes a message, and returns when it is sent. If it is dropped before, or fails in the middle, the
    /// channel accepts no more messages: the next would be read as the rest of this one.
    pub async fn send(&mut self, message: &M) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
        self.buffer.clear();
        put_frame(&mut self.buffer, message).map_err(io::Error::other)?;
        self.broken = true;
        self.stream.write_all(&self.buffer).await?;
        self.stream.flush().await?;
        self.broken = false;
        self.buffer.clear();
        self.buffer.shrink_to(RETAINED_BYTES);
        Ok(())
    }
}

impl<M: Message> ChannelReader<M> {
    /// The next message; `None` at the end of the stream. Cancel safe: nothing is lost when it is dropped before.
    pub async fn next(&mut self) -> io::Result<Option<M>> {
        loop {
            if let Some(message) = self.frames.pop().map_err(io::Error::other)? {
                self.warn_skipped(message.skipped());
                return Ok(Some(message));
            }
            if self.at == self.end {
                let read = self.stream.read(&mut self.buffer).await?;
                (self.at, self.end) = (0, read);
                if read == 0 {
                    return match self.frames.buffered_bytes() {
                        0 => Ok(None),
                        _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                    };
                }
            }
            self.at += self.frames.push(&self.buffer[self.at..self.end]);
        }
    }

    /// Once for each channel: a peer that sends such parts once keeps sending them.
    fn warn_skipped(&mut self, skipped: usize) {
        if skipped > 0 && !self.warned {
            self.warned = true;
            let (peer, name) = (self.peer, M::NAME);
            tracing::warn!(%peer, "skipped a part of a {name} that this release does not support");
        }
    }
}

/// Whether another attempt would end the same way.
fn is_permanent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

fn admit<P: ChannelProtocol>(
    gatekeeper: &Gatekeeper,
    quota: &ChannelQuota,
    peer: PeerId,
) -> Result<(ChannelPermit, String), &'static str> {
    let organisation = organisation_in(P::OPENER, gatekeeper, &peer)
        .ok_or("its role may not open such channels")?;
    let permit = quota.acquire(peer);
    let permit = permit.ok_or("this peer has too many channels; close those that are not used")?;
    Ok((permit, organisation))
}

/// The organisation of a peer, if it has this role.
fn organisation_in(role: NodeRole, gatekeeper: &Gatekeeper, peer: &PeerId) -> Option<String> {
    let certificate = &gatekeeper.admitted(peer)?.certificate;
    (certificate.role == role).then(|| certificate.organisation.clone())
}

async fn greet<P: ChannelProtocol>(
    peer: (PeerId, String),
    stream: Stream,
    permit: ChannelPermit,
    channels: mpsc::Sender<AcceptedChannel<P>>,
) {
    let mut channel: AcceptedChannel<P> = split(peer, stream, Some(permit));
    let greeting = P::FromAcceptor::default();
    let greeted = tokio::time::timeout(GREETING_TIMEOUT, channel.writer.send(&greeting));
    if let Ok(Ok(())) = greeted.await {
        let _ = channels.send(channel).await;
    }
}

fn split<W: Message, R: Message>(
    (peer, organisation): (PeerId, String),
    stream: Stream,
    permit: Option<ChannelPermit>,
) -> Channel<W, R> {
    let (read, write) = tokio::io::split(stream.compat());
    let writer =
        ChannelWriter { stream: write, buffer: Vec::new(), broken: false, messages: PhantomData };
    let reader = ChannelReader {
        peer,
        stream: read,
        frames: FrameReader::new(),
        buffer: vec![0; READ_BYTES].into(),
        at: 0,
        end: 0,
        warned: false,
        _permit: permit,
    };
    Channel { peer, organisation, writer, reader }
}

/// How many channels each peer has.
#[derive(Clone, Default)]
struct ChannelQuota(Arc<Mutex<HashMap<PeerId, usize>>>);

impl ChannelQuota {
    fn acquire(&self, peer: PeerId) -> Option<ChannelPermit> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(peer).or_default();
        if *count == CHANNELS_PER_PEER {
            return None;
        }
        *count += 1;
        Some(ChannelPermit { quota: self.clone(), peer })
    }
}

/// A permit for one channel.
struct ChannelPermit {
    quota: ChannelQuota,
    peer: PeerId,
}

impl Drop for ChannelPermit {
    fn drop(&mut self) {
        let mut taken = self.quota.0.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.peer) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.peer)),
        }
    }
}

#[cfg(test)]
mod tests;
