//! The receiving side: streams in, verified bytes out.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use hypha_wire::Message;
use hypha_wire::bulk::{
    Answer, ChunkHead, Digest, Header, MAX_REASON, Note, Open, Receipt, Refusal, RefusalKind,
    TransferId,
};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::digest::{Chain, chunk_len, hash_chunk, is_boundary};
use crate::io::{
    BoxedStream, Counted, Progress, Stream, drain, invalid, read_message, write_message,
};
use crate::limits::Limits;
use crate::registry::{Opened, PeerKey, Place, Registry, Slot, busy, refusal};
use crate::sink::Sink;

/// Takes the streams of all peers. Clones are the same receiver.
#[derive(Clone)]
pub struct Receiver {
    registry: Arc<Registry>,
    openings: Arc<Semaphore>,
    undecided: mpsc::Sender<Incoming>,
}

impl Receiver {
    /// A receiver, and where its new transfers come out.
    pub fn new(limits: Limits) -> (Receiver, mpsc::Receiver<Incoming>) {
        let (undecided, incoming) = mpsc::channel(limits.undecided.max(1));
        let openings = Arc::new(Semaphore::new(limits.openings));
        (Receiver { registry: Registry::new(limits), openings, undecided }, incoming)
    }

    /// Takes a stream that an admitted peer has opened, and returns when it is known what it carries. Run each in
    /// its own task: a peer may be slow to say it.
    pub async fn serve(&self, peer: PeerKey, stream: impl Stream + 'static) {
        // Dropping the stream is an answer as well: the sender tries again.
        let Ok(_permit) = self.openings.try_acquire() else { return };
        let within = self.registry.limits().open_within;
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
            Opened::Settled(answer) => reply(&mut stream, &answer).await,
            Opened::Resumed(slot) => {
                write_message(&mut stream, &Answer::Heard).await?;
                match slot.put(stream) {
                    Ok(()) => Ok(()),
                    Err((mut stream, answer)) => say_last(&mut stream, &answer).await,
                }
            }
            Opened::New(mut place) => {
                let Ok(permit) = self.undecided.try_reserve() else {
                    place.forget();
                    return reply(&mut stream, &busy(self.registry.limits())).await;
                };
                if let Err(error) = write_message(&mut stream, &Answer::Heard).await {
                    place.forget();
                    return Err(error);
                }
                if place.slot.put(stream).is_ok() {
                    permit.send(Incoming { header, place });
                }
                Ok(())
            }
        }
    }
}

async fn reply(stream: &mut BoxedStream, answer: &Answer) -> io::Result<()> {
    write_message(stream, &Answer::Heard).await?;
    say_last(stream, answer).await
}

async fn say_last<M: Message>(stream: &mut impl Stream, message: &M) -> io::Result<()> {
    write_message(stream, message).await?;
    stream.shutdown().await
}

/// A transfer that a peer wants to make. Dropping it refuses it.
pub struct Incoming {
    header: Header,
    place: Place,
}

/// A transfer that is complete.
#[derive(Debug)]
pub struct Received<S> {
    /// What the header said.
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
    /// The sender did not come back after its stream broke.
    #[error("the sender did not come back after its stream broke ({0}); it may send again")]
    Lost(String),
    /// This side ended it.
    #[error("cancelled by the receiver")]
    Cancelled,
    /// The sink failed.
    #[error("cannot keep the bytes: {0}")]
    Sink(#[source] io::Error),
    /// The bytes are not those that the header promised.
    #[error("the bytes have the digest {got}, but {promised} was promised; nothing was kept")]
    Digest {
        /// By the header or at the end.
        promised: Digest,
        /// Of what came.
        got: Digest,
    },
    /// What was held before does not fit the header.
    #[error(
        "{held} bytes are held of a transfer of {length}; only whole chunks can be gone on from"
    )]
    Held {
        /// By the application.
        held: u64,
        /// By the header.
        length: u64,
    },
}

/// Why a stream was left.
enum Left {
    /// The transfer goes on with another.
    Stream(io::Error),
    /// The transfer is over.
    Over(ReceiveError),
}

impl From<io::Error> for Left {
    fn from(error: io::Error) -> Left {
        Left::Stream(error)
    }
}

impl Incoming {
    /// What the sender says it is.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Who sends.
    pub fn peer(&self) -> &PeerKey {
        self.place.peer()
    }

    /// Which transfer.
    pub fn transfer(&self) -> TransferId {
        self.place.transfer()
    }

    /// Does not take it, and says why.
    pub async fn refuse(mut self, reason: &str) {
        let answer = refusal(RefusalKind::Unwanted, &cut(reason));
        let waiting = self.place.settle(answer.clone());
        tell(waiting, &answer, self.place.limits()).await;
    }

    /// Takes all bytes into `sink`. Dropping the future ends the transfer.
    pub async fn accept<S: Sink>(self, sink: S) -> Result<Received<S>, ReceiveError> {
        self.accept_from(sink, Chain::new(), CancellationToken::new()).await
    }

    /// Takes the bytes behind those that `held` covers, which the sink has already. Ends early, and tells the
    /// sender so, when `cancel` is cancelled.
    pub async fn accept_from<S: Sink>(
        self,
        mut sink: S,
        held: Chain,
        cancel: CancellationToken,
    ) -> Result<Received<S>, ReceiveError> {
        let length = self.header.length;
        if !is_boundary(held.bytes(), length) {
            let error = ReceiveError::Held { held: held.bytes(), length };
            self.refuse("the receiver could not go on from what it holds").await;
            return Err(error);
        }
        let buffer = vec![0; chunk_len(0, length)];
        let Incoming { header, place } = self;
        let mut transfer = Transfer { header, place, chain: held, buffer, streams: 0, cancel };
        match transfer.run(&mut sink).await {
            Ok(digest) => {
                let Transfer { header, streams, .. } = transfer;
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
struct Transfer {
    header: Header,
    place: Place,
    chain: Chain,
    buffer: Vec<u8>,
    streams: u32,
    cancel: CancellationToken,
}

impl Transfer {
    async fn run(&mut self, sink: &mut impl Sink) -> Result<Digest, ReceiveError> {
        let slot = Arc::clone(&self.place.slot);
        let cancel = self.cancel.clone();
        let limits = self.place.limits().clone();
        let mut idle = 0;
        let mut last = "none came".to_owned();
        loop {
            let stream = tokio::select! {
                biased;
                () = cancel.cancelled() => Err(ReceiveError::Cancelled),
                stream = timeout(limits.resume_within, slot.take()) => {
                    stream.map_err(|_| ReceiveError::Lost(last.clone()))
                }
            };
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => return Err(self.over(error, None).await),
            };
            self.streams = self.streams.saturating_add(1);
            let before = self.chain.bytes();
            let (counted, progress) = Counted::new(stream);
            let mut wire = Wire { stream: counted, progress, limits: &limits, slot: &slot };
            let left = tokio::select! {
                biased;
                () = cancel.cancelled() => Err(Left::Over(ReceiveError::Cancelled)),
                done = self.on_stream(&mut wire, sink) => done,
            };
            match left {
                Ok(digest) => return Ok(digest),
                Err(Left::Over(error)) => return Err(self.over(error, Some(wire.stream)).await),
                Err(Left::Stream(error)) => {
                    idle = if self.chain.bytes() > before { 0 } else { idle + 1 };
                    let (peer, transfer) = (self.place.peer(), self.place.transfer());
                    tracing::debug!(%peer, %transfer, %error, "a bulk stream broke");
                    last = error.to_string();
                }
            }
            // A sender gives up sooner. One that does not must not hold the place for ever.
            if idle > 2 * limits.tries {
                return Err(self.over(ReceiveError::Lost(last), None).await);
            }
        }
    }

    async fn on_stream(
        &mut self,
        wire: &mut Wire<'_>,
        sink: &mut impl Sink,
    ) -> Result<Digest, Left> {
        let accept = Answer::Accept { offset: self.chain.bytes() };
        wire.guard(async |stream| write_message(stream, &accept).await).await?;
        loop {
            let offset = self.chain.bytes();
            let want = chunk_len(offset, self.header.length);
            match wire.guard(read_head).await? {
                Head::Note(Note::Alive) => {}
                Head::Note(Note::Stop { reason }) => {
                    return Err(Left::Over(ReceiveError::Stopped(reason)));
                }
                Head::Note(Note::End { digest }) if want == 0 => {
                    return self.end(digest, wire, sink).await;
                }
                Head::Note(Note::End { .. }) => {
                    return Err(invalid(format!("the end came after {offset} bytes")).into());
                }
                Head::Chunk(head) if want == 0 || head.length as usize != want => {
                    let got = head.length;
                    let what = format!("{got} bytes came at {offset}, where {want} were due");
                    return Err(invalid(what).into());
                }
                Head::Chunk(head) => self.chunk(head, wire, sink).await?,
            }
        }
    }

    async fn chunk(
        &mut self,
        head: ChunkHead,
        wire: &mut Wire<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), Left> {
        let offset = self.chain.bytes();
        let chunk = &mut self.buffer[..head.length as usize];
        wire.guard(async |stream| stream.read_exact(chunk).await).await?;
        let hashed = hash_chunk(offset, chunk);
        if hashed.digest != head.digest {
            let again = Receipt::Again { offset };
            wire.guard(async |stream| write_message(stream, &again).await).await?;
            drain(&mut wire.stream, wire.limits.last_word).await;
            return Err(invalid(format!("the chunk at {offset} came damaged")).into());
        }
        let still_there = wire.alive_while(sink.write(chunk)).await?;
        // Before the stream is looked at again: a sink never gets a chunk twice.
        self.chain.push(hashed);
        Ok(still_there?)
    }

    async fn end(
        &mut self,
        promised: Digest,
        wire: &mut Wire<'_>,
        sink: &mut impl Sink,
    ) -> Result<Digest, Left> {
        let got = self.chain.root();
        for promised in [self.header.digest.unwrap_or(promised), promised] {
            if got != promised {
                return Err(Left::Over(ReceiveError::Digest { promised, got }));
            }
        }
        // Whether or not the sender is still there: if it is not, it opens again and is told.
        let _ = wire.alive_while(sink.finish()).await?;
        let answer = Answer::Have { digest: got };
        let waiting = self.place.settle(answer.clone());
        let done = Receipt::Done { digest: got };
        let _ = timeout(wire.limits.last_word, say_last(&mut wire.stream, &done)).await;
        tell(waiting, &answer, wire.limits).await;
        Ok(got)
    }

    /// Ends the transfer: the sender is told on the stream that there is, or when it opens another.
    async fn over(&mut self, error: ReceiveError, stream: Option<Counted>) -> ReceiveError {
        let limits = self.place.limits().clone();
        let refusal = refusal_for(&error);
        let answer = Answer::Refuse(refusal.clone());
        let waiting = match error {
            // A sender that comes back after all may begin anew.
            ReceiveError::Lost(_) => self.place.forget(),
            _ => self.place.settle(answer.clone()),
        };
        if let Some(mut stream) = stream {
            let failed = Receipt::Failed(refusal);
            let told = timeout(limits.last_word, say_last(&mut stream, &failed)).await;
            if let Ok(Ok(())) = told {
                drain(&mut stream, limits.last_word).await;
            }
        }
        tell(waiting, &answer, &limits).await;
        error
    }
}

/// A stream of a transfer, watched.
struct Wire<'a> {
    stream: Counted,
    progress: Progress,
    limits: &'a Limits,
    slot: &'a Slot,
}

impl Wire<'_> {
    /// Reads or writes while bytes move, and until the sender opens another stream: it may notice first that this
    /// one is dead. Nothing else is interrupted by that.
    async fn guard<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Counted) -> io::Result<T>,
    ) -> io::Result<T> {
        tokio::select! {
            biased;
            done = self.progress.guard(self.limits.stall_after, work(&mut self.stream)) => done,
            () = self.slot.wait() => Err(io::Error::other("the sender opened another stream")),
        }
    }

    /// Waits for the sink, and meanwhile tells the sender that it is only slow. Gives whether the sender could be
    /// told; a sink is never interrupted half-way because it could not.
    async fn alive_while(
        &mut self,
        work: impl Future<Output = io::Result<()>>,
    ) -> Result<io::Result<()>, Left> {
        let mut work = pin!(timeout(self.limits.step_within, work));
        let mut told = Ok(());
        loop {
            tokio::select! {
                biased;
                done = &mut work => {
                    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it takes too long");
                    let done = done.map_err(late).flatten();
                    return done.map(|()| told).map_err(|error| Left::Over(ReceiveError::Sink(error)));
                }
                () = tokio::time::sleep(self.limits.alive_every()), if told.is_ok() => {
                    let alive = write_message(&mut self.stream, &Receipt::Alive);
                    told = self.progress.guard(self.limits.stall_after, alive).await;
                }
            }
        }
    }
}

/// What comes next on a stream.
enum Head {
    Chunk(ChunkHead),
    Note(Note),
}

async fn read_head(stream: &mut Counted) -> io::Result<Head> {
    match stream.read_u32().await? {
        0 => Ok(Head::Note(read_message(stream).await?)),
        length => {
            let mut digest = [0; 32];
            stream.read_exact(&mut digest).await?;
            Ok(Head::Chunk(ChunkHead { length, digest: Digest(digest) }))
        }
    }
}

/// Answers a stream whose transfer has ended, if it listens.
async fn tell(waiting: Option<BoxedStream>, answer: &Answer, limits: &Limits) {
    if let Some(mut stream) = waiting {
        // If it does not get through, the sender hears it when it opens again.
        let _ = timeout(limits.last_word, say_last(&mut stream, answer)).await;
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

/// Cuts a text to what the peer takes.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_REASON)].to_owned()
}
