//! A stream between a scheduler and a worker that stays open: frames of messages, both ways.
//!
//! The worker greets first. A stream that was opened and is not greeted has been dropped on the way (several
//! opened at once may be), and is opened again.

use std::collections::HashMap;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hypha_model::NodeRole;
use hypha_wire::dispatch::{Orders, Reports};
use hypha_wire::{FrameReader, Message, put_frame};
use libp2p::{PeerId, Stream, StreamProtocol};
use libp2p_stream::OpenStreamError;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

use crate::gatekeeper::Gatekeeper;
use crate::handle::Net;
use crate::rate::Buckets;

const PROTOCOL: StreamProtocol = StreamProtocol::new("/hypha/tasks/1");

/// How long a worker may take to greet.
const GREETING_WITHIN: Duration = Duration::from_secs(3);

/// How often a stream is opened before the worker counts as not there. A stream is dropped when another peer's comes
/// in the same moment, so it takes that many such moments in a row to fail.
const TRIES: u32 = 6;

/// How long after a dropped stream the next is opened, times the number of tries: longer than a worker needs to take
/// the streams that came together.
const PAUSE: Duration = Duration::from_millis(20);

/// Channels that wait to be taken: a worker is used by a few schedulers.
const CHANNELS: usize = 16;

/// Channels of one scheduler at once: one in use, and some whose end this side has not noticed yet. Each may hold a
/// frame, so this bounds what one scheduler can make a worker hold.
const CHANNELS_PER_PEER: usize = 4;

/// Lines about refused channels per second: a peer may open streams as fast as it likes.
const REFUSALS_LOGGED: u32 = 1;

/// Bytes that are read at a time: the multiplexer sends no larger pieces.
const READ_BYTES: usize = 16 << 10;

/// Room that a writer keeps from one frame to the next; see [`FrameReader`].
const KEPT_BYTES: usize = 128 << 10;

/// Where messages are written.
pub struct ChannelWriter<M> {
    stream: WriteHalf<Compat<Stream>>,
    buffer: Vec<u8>,
    /// Whether a frame was begun and not finished: then nothing can follow it.
    broken: bool,
    messages: PhantomData<fn(M)>,
}

/// Where messages are read.
pub struct ChannelReader<M> {
    peer: PeerId,
    stream: ReadHalf<Compat<Stream>>,
    frames: FrameReader<M>,
    /// What was read and not yet put into frames is `buffer[at..end]`.
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    told: bool,
    /// That of a worker's end, given back when it is dropped.
    _place: Option<Place>,
}

/// A worker's end: reports go out, orders come in.
pub struct WorkerChannel {
    /// The scheduler.
    pub peer: PeerId,
    /// To it.
    pub reports: ChannelWriter<Reports>,
    /// From it.
    pub orders: ChannelReader<Orders>,
}

impl Net {
    /// Opens a channel to a worker.
    pub async fn open_channel(
        &self,
        worker: PeerId,
    ) -> io::Result<(ChannelWriter<Orders>, ChannelReader<Reports>)> {
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        for number in 1..=TRIES {
            match tokio::time::timeout(GREETING_WITHIN, self.try_channel(worker)).await {
                Ok(Ok(channel)) => return Ok(channel),
                Ok(Err(error)) if is_lasting(&error) => return Err(error),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, "it does not greet"),
            }
            tokio::time::sleep(PAUSE * number).await;
        }
        Err(last)
    }

    /// Takes channels that schedulers open to this worker, until the receiver is dropped. One at a time may.
    pub fn channels(&self) -> io::Result<mpsc::Receiver<WorkerChannel>> {
        let mut control = self.shared.streams.clone();
        let mut streams = control
            .accept(PROTOCOL)
            .map_err(|_| io::Error::other("channels were asked for before"))?;
        let (channels, taken) = mpsc::channel(CHANNELS);
        // Not the whole of what is shared: that would keep the streams from ever ending.
        let gatekeeper = self.shared.gatekeeper.clone();
        let places = Places::default();
        let mut logged = Buckets::new(REFUSALS_LOGGED, 10, 1);
        tokio::spawn(async move {
            loop {
                let (peer, stream) = tokio::select! {
                    next = streams.next() => match next {
                        Some(next) => next,
                        None => return,
                    },
                    () = channels.closed() => return,
                };
                match admit(&gatekeeper, &places, peer) {
                    // Beside the loop: the next stream would be dropped if it had to wait for this greeting.
                    Ok(place) => drop(tokio::spawn(greet(peer, stream, place, channels.clone()))),
                    Err(reason) if logged.take((), Instant::now()) => {
                        tracing::warn!(%peer, "refused a channel: {reason}");
                    }
                    Err(_) => {}
                }
            }
        });
        Ok(taken)
    }

    async fn try_channel(
        &self,
        worker: PeerId,
    ) -> io::Result<(ChannelWriter<Orders>, ChannelReader<Reports>)> {
        let mut control = self.shared.streams.clone();
        let stream = control.open_stream(worker, PROTOCOL).await.map_err(|error| match error {
            OpenStreamError::UnsupportedProtocol(_) => {
                io::Error::new(io::ErrorKind::Unsupported, "it takes no tasks: it is no worker")
            }
            error => io::Error::other(error),
        })?;
        if role_of(&self.shared.gatekeeper, &worker) != Some(NodeRole::Worker) {
            let problem = "its certificate is not that of a worker";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        }
        let (writer, mut reader) = split::<Orders, Reports>(worker, stream, None);
        match reader.next().await? {
            Some(_) => Ok((writer, reader)),
            None => {
                let problem = "it closed the stream without a greeting";
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem))
            }
        }
    }
}

impl<M: Message> ChannelWriter<M> {
    /// Writes a message, and returns when it is on its way. When it is dropped before, or fails in the middle, the
    /// channel takes no more messages: what came next would be read as the rest of this one.
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
        self.buffer.shrink_to(KEPT_BYTES);
        Ok(())
    }
}

impl<M: Message> ChannelReader<M> {
    /// The next message; `None` at the end of the stream. Nothing is lost when it is dropped before.
    pub async fn next(&mut self) -> io::Result<Option<M>> {
        loop {
            if let Some(message) = self.frames.pop().map_err(io::Error::other)? {
                self.tell(message.skipped());
                return Ok(Some(message));
            }
            if self.at == self.end {
                let read = self.stream.read(&mut self.buffer).await?;
                (self.at, self.end) = (0, read);
                if read == 0 {
                    return match self.frames.held() {
                        0 => Ok(None),
                        _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                    };
                }
            }
            self.at += self.frames.push(&self.buffer[self.at..self.end]);
        }
    }

    /// Once for each channel: whoever says such things once says them again and again.
    fn tell(&mut self, skipped: usize) {
        if skipped > 0 && !self.told {
            self.told = true;
            let (peer, name) = (self.peer, M::NAME);
            tracing::warn!(%peer, "skipped a part of a {name} that this release does not know");
        }
    }
}

/// Whether another try would end the same way.
fn is_lasting(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

fn admit(gatekeeper: &Gatekeeper, places: &Places, peer: PeerId) -> Result<Place, &'static str> {
    match role_of(gatekeeper, &peer) {
        Some(NodeRole::Scheduler) => {
            places.take(peer).ok_or("this scheduler has too many; close those that are not used")
        }
        _ => Err("only schedulers lease and dispatch"),
    }
}

fn role_of(gatekeeper: &Gatekeeper, peer: &PeerId) -> Option<NodeRole> {
    gatekeeper.met(peer).map(|met| met.certificate.role)
}

async fn greet(peer: PeerId, stream: Stream, place: Place, channels: mpsc::Sender<WorkerChannel>) {
    let (mut reports, orders) = split::<Reports, Orders>(peer, stream, Some(place));
    let greeting = Reports::default();
    let greeted = tokio::time::timeout(GREETING_WITHIN, reports.send(&greeting));
    if let Ok(Ok(())) = greeted.await {
        let _ = channels.send(WorkerChannel { peer, reports, orders }).await;
    }
}

fn split<W: Message, R: Message>(
    peer: PeerId,
    stream: Stream,
    place: Option<Place>,
) -> (ChannelWriter<W>, ChannelReader<R>) {
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
        told: false,
        _place: place,
    };
    (writer, reader)
}

/// How many channels each scheduler has.
#[derive(Clone, Default)]
struct Places(Arc<Mutex<HashMap<PeerId, usize>>>);

impl Places {
    fn take(&self, peer: PeerId) -> Option<Place> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(peer).or_default();
        if *count == CHANNELS_PER_PEER {
            return None;
        }
        *count += 1;
        Some(Place { places: self.clone(), peer })
    }
}

/// One of them.
struct Place {
    places: Places,
    peer: PeerId,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.peer) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.peer)),
        }
    }
}

#[cfg(test)]
mod tests;
