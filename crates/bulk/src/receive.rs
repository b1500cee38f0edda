//! The receiving side: streams in, verified bytes out.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use hypha_wire::Message;
use hypha_wire::bulk::{
    ChunkHead, ControlMessage, Digest, Header, MAX_REASON, Open, OpenResponse, Receipt, Refusal,
    RefusalKind, TransferId,
};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::digest::{ChunkDigests, chunk_len, hash_chunk, is_boundary};
use crate::io::{
    BoxedStream, CountedStream, Progress, Stream, drain, invalid, read_message, write_message,
};
use crate::limits::Limits;
use crate::registry::{OpenOutcome, PeerKey, Registration, Registry, StreamSlot, busy, refusal};
use crate::sink::Sink;

/// Receives the streams of all peers. Clones are the same receiver.
#[derive(Clone)]
pub struct Receiver {
    registry: Arc<Registry>,
    openings: Arc<Semaphore>,
    undecided: mpsc::Sender<Incoming>,
}

impl Receiver {
    /// A receiver, and the channel of its new transfers.
    pub fn new(limits: Limits) -> (Receiver, mpsc::Receiver<Incoming>) {
        let (undecided, incoming) = mpsc::channel(limits.undecided.max(1));
        let openings = Arc::new(Semaphore::new(limits.openings));
        (Receiver { registry: Registry::new(limits), openings, undecided }, incoming)
    }

    /// Serves a stream that an admitted peer has opened, and returns when its transfer is identified. Run each in
    /// its own task: a peer may be slow to identify it.
    pub async fn serve(&self, peer: PeerKey, stream: impl Stream + 'static) {
        // Dropping the stream is a response as well: the sender retries.
        let Ok(_permit) = self.openings.try_acquire() else { return };
        let within = self.registry.limits().open_timeout;
        match timeout(within, self.open(&peer, Box::new(stream))).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%peer, %error, "a bulk stream did not open"),
            Err(_) => tracing::debug!(%peer, "a bulk stream did not open in time"),
        }
    }

    async fn open(&self, peer: &PeerKey, mut stream: BoxedStream) -> io::Result<()> {
        let open: Open = read_message(&mut stream).await?;
        let header = open.header.clone();
        match self.registry.open(peer, open) {
            OpenOutcome::Answered(answer) => reply(&mut stream, &answer).await,
            OpenOutcome::Resumed(slot) => {
                write_message(&mut stream, &OpenResponse::Acknowledged).await?;
                match slot.put(stream) {
                    Ok(()) => Ok(()),
                    Err((mut stream, answer)) => send_last(&mut stream, &answer).await,
                }
            }
            OpenOutcome::New(mut registration) => {
                let Ok(permit) = self.undecided.try_reserve() else {
                    registration.discard();
                    return reply(&mut stream, &busy(self.registry.limits())).await;
                };
                if let Err(error) = write_message(&mut stream, &OpenResponse::Acknowledged).await {
                    registration.discard();
                    return Err(error);
                }
                if registration.slot.put(stream).is_ok() {
                    permit.send(Incoming { header, registration });
                }
                Ok(())
            }
        }
    }
}

async fn reply(stream: &mut BoxedStream, answer: &OpenResponse) -> io::Result<()> {
    write_message(stream, &OpenResponse::Acknowledged).await?;
    send_last(stream, answer).await
}

async fn send_last<M: Message>(stream: &mut impl Stream, message: &M) -> io::Result<()> {
    write_message(stream, message).await?;
    stream.shutdown().await
}

/// A transfer that a peer offers. Dropping it refuses it.
pub struct Incoming {
    header: Header,
    registration: Registration,
}

/// A transfer that is complete.
#[derive(Debug)]
pub struct Received<S> {
    /// The sender's header.
    pub header: Header,
    /// The digest of all bytes, verified.
    pub digest: Digest,
    /// How many streams it took.
    pub streams: u32,
    /// The sink, which has all bytes.
    pub sink: S,
}

/// Why a transfer did not complete.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// The sender ended it.
    #[error("the sender stopped: {0}")]
    Stopped(String),
    /// The sender did not reconnect after its stream broke.
    #[error("the sender did not reconnect after its stream broke ({0}); it can send again")]
    Lost(String),
    /// This side ended it.
    #[error("cancelled by the receiver")]
    Cancelled,
    /// The sink failed.
    #[error("cannot store the bytes: {0}")]
    Sink(#[source] io::Error),
    /// The bytes do not match the promised digest.
    #[error("the bytes have the digest {got}, but {promised} was promised; nothing was stored")]
    Digest {
        /// By the header or at the end.
        promised: Digest,
        /// Of the received bytes.
        got: Digest,
    },
    /// The bytes held before do not fit the header.
    #[error(
        "{held} bytes are held of a transfer of {length}; a transfer resumes only from whole chunks"
    )]
    Held {
        /// By the application.
        held: u64,
        /// By the header.
        length: u64,
    },
}

/// Why a stream was given up.
enum InboundFailure {
    /// The transfer resumes on another.
    Stream(io::Error),
    /// The transfer is over.
    Final(ReceiveError),
}

impl From<io::Error> for InboundFailure {
    fn from(error: io::Error) -> InboundFailure {
        InboundFailure::Stream(error)
    }
}

impl Incoming {
    /// The sender's header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The sender.
    pub fn peer(&self) -> &PeerKey {
        self.registration.peer()
    }

    /// The id of the transfer.
    pub fn transfer(&self) -> TransferId {
        self.registration.transfer()
    }

    /// Refuses it, with a reason.
    pub async fn refuse(mut self, reason: &str) {
        let answer = refusal(RefusalKind::Unwanted, &cut(reason));
        let waiting = self.registration.finish(answer.clone());
        answer_waiting(waiting, &answer, self.registration.limits()).await;
    }

    /// Receives all bytes into `sink`. Dropping the future ends the transfer.
    pub async fn accept<S: Sink>(self, sink: S) -> Result<Received<S>, ReceiveError> {
        self.accept_from(sink, ChunkDigests::new(), CancellationToken::new()).await
    }

    /// Receives the bytes after those that `held` covers, which the sink has already. Ends early, and notifies the
    /// sender, when `cancel` is cancelled.
    pub async fn accept_from<S: Sink>(
        self,
        mut sink: S,
        held: ChunkDigests,
        cancel: CancellationToken,
    ) -> Result<Received<S>, ReceiveError> {
        let length = self.header.length;
        if !is_boundary(held.bytes(), length) {
            let error = ReceiveError::Held { held: held.bytes(), length };
            self.refuse("the receiver cannot resume from what it holds").await;
            return Err(error);
        }
        let buffer = vec![0; chunk_len(0, length)];
        let Incoming { header, registration } = self;
        let mut transfer =
            InboundTransfer { header, registration, digests: held, buffer, streams: 0, cancel };
        match transfer.run(&mut sink).await {
            Ok(digest) => {
                let InboundTransfer { header, streams, .. } = transfer;
                Ok(Received { header, digest, streams, sink })
            }
            Err(error) => {
                sink.abandon(matches!(error, ReceiveError::Lost(_))).await;
                Err(error)
            }
        }
    }
}

/// A transfer that was accepted.
struct InboundTransfer {
    header: Header,
    registration: Registration,
    digests: ChunkDigests,
    buffer: Vec<u8>,
    streams: u32,
    cancel: CancellationToken,
}

impl InboundTransfer {
    async fn run(&mut self, sink: &mut impl Sink) -> Result<Digest, ReceiveError> {
        let slot = Arc::clone(&self.registration.slot);
        let cancel = self.cancel.clone();
        let limits = self.registration.limits().clone();
        let mut idle = 0;
        let mut last = "none came".to_owned();
        loop {
            let stream = tokio::select! {
                biased;
                () = cancel.cancelled() => Err(ReceiveError::Cancelled),
                stream = timeout(limits.resume_timeout, slot.take()) => {
                    stream.map_err(|_| ReceiveError::Lost(last.clone()))
                }
            };
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => return Err(self.fail(error, None).await),
            };
            self.streams = self.streams.saturating_add(1);
            let before = self.digests.bytes();
            let (counted, progress) = CountedStream::new(stream);
            let mut wire =
                InboundStream { stream: counted, progress, limits: &limits, slot: &slot };
            let ended = tokio::select! {
                biased;
                () = cancel.cancelled() => Err(InboundFailure::Final(ReceiveError::Cancelled)),
                done = self.on_stream(&mut wire, sink) => done,
            };
            match ended {
                Ok(digest) => return Ok(digest),
                Err(InboundFailure::Final(error)) => {
                    return Err(self.fail(error, Some(wire.stream)).await);
                }
                Err(InboundFailure::Stream(error)) => {
                    idle = if self.digests.bytes() > before { 0 } else { idle + 1 };
                    let (peer, transfer) = (self.registration.peer(), self.registration.transfer());
                    tracing::debug!(%peer, %transfer, %error, "a bulk stream broke");
                    last = error.to_string();
                }
            }
            // A sender gives up sooner. One that does not must not occupy the transfer forever.
            if idle > 2 * limits.max_attempts {
                return Err(self.fail(ReceiveError::Lost(last), None).await);
            }
        }
    }

    async fn on_stream(
        &mut self,
        wire: &mut InboundStream<'_>,
        sink: &mut impl Sink,
    ) -> Result<Digest, InboundFailure> {
        let accept = OpenResponse::Accept { offset: self.digests.bytes() };
        wire.run_unless_replaced(async |stream| write_message(stream, &accept).await).await?;
        loop {
            let offset = self.digests.bytes();
            let want = chunk_len(offset, self.header.length);
            match wire.run_unless_replaced(read_item).await? {
                StreamItem::Control(ControlMessage::Alive) => {}
                StreamItem::Control(ControlMessage::Stop { reason }) => {
                    return Err(InboundFailure::Final(ReceiveError::Stopped(reason)));
                }
                StreamItem::Control(ControlMessage::End { digest }) if want == 0 => {
                    return self.end(digest, wire, sink).await;
                }
                StreamItem::Control(ControlMessage::End { .. }) => {
                    return Err(invalid(format!("the end came after {offset} bytes")).into());
                }
                StreamItem::Chunk(head) if want == 0 || head.length as usize != want => {
                    let got = head.length;
                    let what = format!("{got} bytes came at {offset}, where {want} were expected");
                    return Err(invalid(what).into());
                }
                StreamItem::Chunk(head) => self.chunk(head, wire, sink).await?,
            }
        }
    }

    async fn chunk(
        &mut self,
        head: ChunkHead,
        wire: &mut InboundStream<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), InboundFailure> {
        let offset = self.digests.bytes();
        let chunk = &mut self.buffer[..head.length as usize];
        wire.run_unless_replaced(async |stream| stream.read_exact(chunk).await).await?;
        let hashed = hash_chunk(offset, chunk);
        if hashed.digest != head.digest {
            let again = Receipt::Resend { offset };
            wire.run_unless_replaced(async |stream| write_message(stream, &again).await).await?;
            drain(&mut wire.stream, wire.limits.close_timeout).await;
            return Err(invalid(format!("the chunk at {offset} arrived damaged")).into());
        }
        let still_there = wire.keep_alive_while(sink.write(chunk)).await?;
        // Before the next read of the stream: a sink never gets a chunk twice.
        self.digests.push(hashed);
        Ok(still_there?)
    }

    async fn end(
        &mut self,
        promised: Digest,
        wire: &mut InboundStream<'_>,
        sink: &mut impl Sink,
    ) -> Result<Digest, InboundFailure> {
        let got = self.digests.root();
        for promised in [self.header.digest.unwrap_or(promised), promised] {
            if got != promised {
                return Err(InboundFailure::Final(ReceiveError::Digest { promised, got }));
            }
        }
        // Even if the sender is gone: it opens another stream and gets the response there.
        let _ = wire.keep_alive_while(sink.finish()).await?;
        let answer = OpenResponse::Have { digest: got };
        let waiting = self.registration.finish(answer.clone());
        let done = Receipt::Done { digest: got };
        let _ = timeout(wire.limits.close_timeout, send_last(&mut wire.stream, &done)).await;
        answer_waiting(waiting, &answer, wire.limits).await;
        Ok(got)
    }

    /// Ends the transfer: the sender is notified on the current stream, or when it opens another.
    async fn fail(&mut self, error: ReceiveError, stream: Option<CountedStream>) -> ReceiveError {
        let limits = self.registration.limits().clone();
        let refusal = refusal_for(&error);
        let answer = OpenResponse::Refuse(refusal.clone());
        let waiting = match error {
            // A sender that reconnects after all may start again.
            ReceiveError::Lost(_) => self.registration.discard(),
            _ => self.registration.finish(answer.clone()),
        };
        if let Some(mut stream) = stream {
            let failed = Receipt::Failed(refusal);
            let sent = timeout(limits.close_timeout, send_last(&mut stream, &failed)).await;
            if let Ok(Ok(())) = sent {
                drain(&mut stream, limits.close_timeout).await;
            }
        }
        answer_waiting(waiting, &answer, &limits).await;
        error
    }
}

/// A stream of a transfer, with a watchdog.
struct InboundStream<'a> {
    stream: CountedStream,
    progress: Progress,
    limits: &'a Limits,
    slot: &'a StreamSlot,
}

impl InboundStream<'_> {
    /// Reads or writes while bytes move, and until the sender opens another stream: it may notice first that this
    /// one is dead. Nothing else is interrupted by that.
    async fn run_unless_replaced<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut CountedStream) -> io::Result<T>,
    ) -> io::Result<T> {
        tokio::select! {
            biased;
            done = self.progress.run_unless_stalled(self.limits.stall_timeout, work(&mut self.stream)) => done,
            () = self.slot.wait() => Err(io::Error::other("the sender opened another stream")),
        }
    }

    /// Waits for the sink, and meanwhile sends keep-alives to the sender. Returns whether they could be
    /// sent; a sink is never interrupted half-way because they could not.
    async fn keep_alive_while(
        &mut self,
        work: impl Future<Output = io::Result<()>>,
    ) -> Result<io::Result<()>, InboundFailure> {
        let mut work = pin!(timeout(self.limits.io_timeout, work));
        let mut sent = Ok(());
        loop {
            tokio::select! {
                biased;
                done = &mut work => {
                    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it takes too long");
                    let done = done.map_err(late).flatten();
                    return done.map(|()| sent).map_err(|error| InboundFailure::Final(ReceiveError::Sink(error)));
                }
                () = tokio::time::sleep(self.limits.keep_alive_interval()), if sent.is_ok() => {
                    let alive = write_message(&mut self.stream, &Receipt::Alive);
                    sent = self.progress.run_unless_stalled(self.limits.stall_timeout, alive).await;
                }
            }
        }
    }
}

/// The next item on a stream.
enum StreamItem {
    Chunk(ChunkHead),
    Control(ControlMessage),
}

async fn read_item(stream: &mut CountedStream) -> io::Result<StreamItem> {
    match stream.read_u32().await? {
        0 => Ok(StreamItem::Control(read_message(stream).await?)),
        length => {
            let mut digest = [0; 32];
            stream.read_exact(&mut digest).await?;
            Ok(StreamItem::Chunk(ChunkHead { length, digest: Digest(digest) }))
        }
    }
}

/// Sends the response to a stream whose transfer has ended, if it is still open.
async fn answer_waiting(waiting: Option<BoxedStream>, answer: &OpenResponse, limits: &Limits) {
    if let Some(mut stream) = waiting {
        // If it does not arrive, the sender gets it when it opens another stream.
        let _ = timeout(limits.close_timeout, send_last(&mut stream, answer)).await;
    }
}

fn refusal_for(error: &ReceiveError) -> Refusal {
    let kind = match error {
        ReceiveError::Stopped(_) | ReceiveError::Cancelled => RefusalKind::Cancelled,
        ReceiveError::Lost(_) => RefusalKind::Busy,
        ReceiveError::Sink(_) => RefusalKind::Sink,
        ReceiveError::Digest { .. } => RefusalKind::Digest,
        ReceiveError::Held { .. } => RefusalKind::Protocol,
    };
    Refusal { kind, message: cut(&error.to_string()), retry_after_ms: None }
}

/// Cuts a text to the length that the peer accepts.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_REASON)].to_owned()
}
