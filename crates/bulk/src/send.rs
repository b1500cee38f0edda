//! The sending side: one transfer over as many streams as it takes.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use hypha_wire::InvalidField;
use hypha_wire::bulk::{
    ChunkHead, ControlMessage, Digest, Header, Open, OpenResponse, Receipt, Refusal, RefusalKind,
    TransferId,
};
use thiserror::Error;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::digest::{ChunkDigests, chunk_len, hash_chunk, is_boundary};
use crate::io::{
    BoxedStream, CountedStream, Progress, drain, invalid, read_message, write_chunk, write_control,
    write_message,
};
use crate::limits::Limits;
use crate::source::{Source, SourceReader};

/// Opens streams to the peer that a transfer goes to. Any closure that does so is one.
pub trait Connector: Send + Sync + 'static {
    /// Opens one more stream.
    fn connect(&self) -> impl Future<Output = io::Result<BoxedStream>> + Send;
}

impl<F, R> Connector for F
where
    F: Fn() -> R + Send + Sync + 'static,
    R: Future<Output = io::Result<BoxedStream>> + Send,
{
    fn connect(&self) -> impl Future<Output = io::Result<BoxedStream>> + Send {
        self()
    }
}

/// A transfer to send.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Names the transfer. If the same id is sent again after a restart, the receiver can respond that it has it.
    pub transfer: TransferId,
    /// The header that the receiver gets.
    pub header: Header,
    /// Ends it early.
    pub cancel: CancellationToken,
}

impl Outgoing {
    /// A new transfer.
    pub fn new(header: Header) -> Outgoing {
        Outgoing { transfer: TransferId(rand::random()), header, cancel: CancellationToken::new() }
    }
}

/// A transfer that the receiver has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The digest of all bytes.
    pub digest: Digest,
    /// How many streams were opened for it.
    pub streams: u32,
    /// How many bytes were written to them: more than the length if some were lost, fewer if the receiver held some.
    pub bytes_sent: u64,
}

/// Why a transfer did not complete.
#[derive(Debug, Error)]
pub enum SendError {
    /// The header is one that no receiver accepts.
    #[error("cannot send this: {0}")]
    Header(#[from] InvalidField),
    /// The header and the source do not agree.
    #[error("the header says {header} bytes, but the source has {source_length}")]
    Length {
        /// By the header.
        header: u64,
        /// By the source.
        source_length: u64,
    },
    /// The receiver refuses it.
    #[error("the receiver refused: {0}")]
    Refused(String),
    /// The receiver was busy for too long.
    #[error("the receiver was busy for {} s; retry later", .0.as_secs())]
    Busy(Duration),
    /// The receiver ended it.
    #[error("the receiver ended the transfer: {0}")]
    Ended(String),
    /// This side ended it.
    #[error("cancelled by the sender")]
    Cancelled,
    /// The source failed.
    #[error("cannot read what is to be sent: {0}")]
    Source(#[source] io::Error),
    /// The source has changed, or does not match the header.
    #[error("the bytes to be sent changed, or are not those of the promised digest; send again")]
    Changed,
    /// No stream made progress.
    #[error("no progress in {attempts} attempts; the last problem: {last}")]
    NoProgress {
        /// How many, in a row.
        attempts: u32,
        /// The error of the last.
        last: String,
    },
}

/// Sends transfers. Holds only its limits.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    limits: Limits,
}

impl Sender {
    /// A sender with these limits.
    pub fn new(limits: Limits) -> Sender {
        Sender { limits }
    }

    /// Sends all bytes of `source`, and returns when the receiver has confirmed them. Dropping the future ends the
    /// transfer, and notifies the receiver.
    pub async fn send<C: Connector, S: Source>(
        &self,
        connector: C,
        outgoing: Outgoing,
        source: S,
    ) -> Result<Sent, SendError> {
        let Outgoing { transfer, header, cancel } = outgoing;
        header.validate()?;
        if header.length != source.length() {
            let source_length = source.length();
            return Err(SendError::Length { header: header.length, source_length });
        }
        let cancel = cancel.child_token();
        // In a task of its own, so that it can still notify the receiver when this future is dropped.
        let _ended_with_this_future = cancel.clone().drop_guard();
        let digests = ChunkDigests::new();
        let open = Open { transfer, header };
        let limits = self.limits.clone();
        let mut work =
            OutboundTransfer { open, digests, limits, cancel, streams: 0, bytes_sent: 0 };
        let task = tokio::spawn(async move { work.run(&connector, &source).await });
        // It ends early only with the runtime, or by a panic of the source.
        task.await.unwrap_or_else(|error| Err(SendError::Source(io::Error::other(error))))
    }
}

struct OutboundTransfer {
    open: Open,
    /// Of a prefix of the source, as far as it was read.
    digests: ChunkDigests,
    limits: Limits,
    cancel: CancellationToken,
    streams: u32,
    bytes_sent: u64,
}

/// Why a stream was given up.
enum OutboundFailure {
    /// Retry on another.
    Stream(io::Error),
    /// The receiver is busy: retry after this.
    Busy(Duration),
    /// The transfer is over.
    Final(SendError),
}

impl From<io::Error> for OutboundFailure {
    fn from(error: io::Error) -> OutboundFailure {
        OutboundFailure::Stream(error)
    }
}

impl OutboundTransfer {
    async fn run<C: Connector, S: Source>(
        &mut self,
        connector: &C,
        source: &S,
    ) -> Result<Sent, SendError> {
        let started = Instant::now();
        let mut idle = 0;
        let mut furthest = None;
        loop {
            let mut offset = None;
            let pause = match self.attempt(connector, source, &mut offset).await {
                Ok(sent) => return Ok(sent),
                Err(OutboundFailure::Final(error)) => return Err(error),
                Err(OutboundFailure::Busy(_)) if started.elapsed() > self.limits.busy_timeout => {
                    return Err(SendError::Busy(started.elapsed()));
                }
                Err(OutboundFailure::Busy(pause)) => pause,
                Err(OutboundFailure::Stream(error)) => {
                    // Where the receiver was when this stream opened: further than before means that the previous
                    // stream made progress.
                    idle = if offset > furthest { 1 } else { idle + 1 };
                    furthest = furthest.max(offset);
                    tracing::debug!(transfer = %self.open.transfer, %error, idle, "a bulk stream broke");
                    if idle >= self.limits.max_attempts {
                        return Err(SendError::NoProgress {
                            attempts: idle,
                            last: error.to_string(),
                        });
                    }
                    let doubled = 2_u32.saturating_pow(idle - 1);
                    let most = self.limits.backoff_max;
                    self.limits.backoff_initial.saturating_mul(doubled).min(most)
                }
            };
            // A random part off, so that many senders that lost the same link do not reconnect together.
            let pause = pause.mul_f64(0.5 + 0.5 * rand::random::<f64>());
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(SendError::Cancelled),
                () = sleep(pause) => {}
            }
        }
    }

    async fn attempt<C: Connector, S: Source>(
        &mut self,
        connector: &C,
        source: &S,
        accepted: &mut Option<u64>,
    ) -> Result<Sent, OutboundFailure> {
        let cancel = self.cancel.clone();
        let within = self.limits.open_timeout;
        let connect = async {
            timeout(within, connector.connect())
                .await
                .map_err(|_| timed_out("no stream", within))?
        };
        let stream = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(OutboundFailure::Final(SendError::Cancelled)),
            stream = connect => stream?,
        };
        self.streams = self.streams.saturating_add(1);
        let (stream, progress) = CountedStream::new(stream);
        let (mut reader, mut writer) = tokio::io::split(stream);
        let answer = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            answer = self.open_stream(&mut reader, &mut writer) => Some(answer?),
        };
        let offset = match answer {
            None => {
                let stop = stop_message(&SendError::Cancelled);
                let notified = async {
                    write_control(&mut writer, &stop).await?;
                    writer.shutdown().await
                };
                if let Ok(Ok(())) = timeout(self.limits.close_timeout, notified).await {
                    drain(&mut reader, self.limits.close_timeout).await;
                }
                return Err(OutboundFailure::Final(SendError::Cancelled));
            }
            Some(OpenResponse::Have { digest }) => return self.confirmed(digest),
            Some(OpenResponse::Refuse(refusal)) => return Err(self.refused(refusal)),
            Some(OpenResponse::Accept { offset }) => offset,
            Some(OpenResponse::Acknowledged) => return Err(invalid("acknowledged twice").into()),
        };
        let length = self.open.header.length;
        if !is_boundary(offset, length) {
            return Err(invalid(format!("the receiver wants to begin at byte {offset}")).into());
        }
        *accepted = Some(offset);
        let digest = self.stream(source, offset, reader, writer, &progress).await?;
        self.confirmed(digest)
    }

    /// Opens the transfer on a stream, and waits for the receiver's decision.
    async fn open_stream<R, W>(&self, reader: &mut R, writer: &mut W) -> io::Result<OpenResponse>
    where
        R: tokio::io::AsyncRead + Unpin,
        W: tokio::io::AsyncWrite + Unpin,
    {
        let acknowledged = async {
            write_message(writer, &self.open).await?;
            read_message::<_, OpenResponse>(reader).await
        };
        let within = self.limits.open_timeout;
        match timeout(within, acknowledged)
            .await
            .map_err(|_| timed_out("no acknowledgement", within))??
        {
            OpenResponse::Acknowledged => {}
            other => return Err(invalid(format!("{other:?} before the opening was acknowledged"))),
        }
        let within = self.limits.decision_timeout;
        timeout(within, read_message(reader)).await.map_err(|_| timed_out("no decision", within))?
    }

    /// Writes the bytes while it listens for messages of the receiver.
    async fn stream<S: Source>(
        &mut self,
        source: &S,
        offset: u64,
        mut reader: ReadHalf<CountedStream>,
        mut writer: WriteHalf<CountedStream>,
        progress: &Progress,
    ) -> Result<Digest, OutboundFailure> {
        let limits = self.limits.clone();
        let cancel = self.cancel.clone();
        let mut outcome = pin!(receipt(&mut reader));
        let written = tokio::select! {
            biased;
            outcome = &mut outcome => return outcome,
            written = self.write(source, offset, &mut writer, progress) => written,
            // A cancelled writer stops after a chunk, unless the chunk cannot be sent.
            () = async { cancel.cancelled().await; sleep(limits.close_timeout).await } => {
                return Err(OutboundFailure::Final(SendError::Cancelled));
            }
        };
        match written {
            Ok(()) => tokio::select! {
                biased;
                () = cancel.cancelled() => Err(OutboundFailure::Final(SendError::Cancelled)),
                outcome = progress.run_unless_stalled(limits.stall_timeout, async { Ok(outcome.await) }) => outcome?,
            },
            // The receiver's last message explains it, if it arrived.
            Err(OutboundFailure::Stream(error)) => timeout(limits.close_timeout, outcome)
                .await
                .unwrap_or(Err(OutboundFailure::Stream(error))),
            Err(failure) => {
                if let OutboundFailure::Final(error) = &failure {
                    let notified = async {
                        write_control(&mut writer, &stop_message(error)).await?;
                        writer.shutdown().await
                    };
                    let notified = timeout(limits.close_timeout, notified).await;
                    if let Ok(Ok(())) = notified {
                        let _ = timeout(limits.close_timeout, outcome).await;
                    }
                }
                Err(failure)
            }
        }
    }

    async fn write<S: Source>(
        &mut self,
        source: &S,
        offset: u64,
        writer: &mut WriteHalf<CountedStream>,
        progress: &Progress,
    ) -> Result<(), OutboundFailure> {
        let length = self.open.header.length;
        let promised = self.open.header.digest;
        // A receiver that held bytes from before is ahead of what was read here. Without a promised digest those
        // bytes are read too: the digest of all bytes is sent at the end.
        let mut at = if promised.is_none() { offset.min(self.digests.bytes()) } else { offset };
        let mut wire = OutboundStream { writer, progress, limits: self.limits.clone() };
        let open = async { source.open(at).await };
        let mut reading = wire.keep_alive_while(open, &self.cancel).await?;
        while at < length {
            let want = chunk_len(at, length);
            let chunk = wire.keep_alive_while(reading.next(want), &self.cancel).await?;
            let digest = self.hash(at, &chunk)?;
            if at >= offset {
                let head = ChunkHead { length: want as u32, digest };
                wire.chunk(head, &chunk).await?;
                self.bytes_sent += want as u64;
            }
            at += want as u64;
        }
        let digest = match promised {
            Some(promised) if self.digests.bytes() == length && self.digests.root() != promised => {
                return Err(OutboundFailure::Final(SendError::Changed));
            }
            Some(promised) => promised,
            None => self.digests.root(),
        };
        wire.control(&ControlMessage::End { digest }).await?;
        Ok(())
    }

    /// The digest of the chunk at `at`. It must be unchanged if it was read before.
    fn hash(&mut self, at: u64, chunk: &Bytes) -> Result<Digest, OutboundFailure> {
        let hashed = hash_chunk(at, chunk);
        let digest = hashed.digest;
        match self.digests.chunk_at(at) {
            Some(before) if before != digest => {
                return Err(OutboundFailure::Final(SendError::Changed));
            }
            None if at == self.digests.bytes() => self.digests.push(hashed),
            _ => {}
        }
        Ok(digest)
    }

    /// The receiver has all bytes; the digest can be compared here if all of them were read here.
    fn confirmed(&self, digest: Digest) -> Result<Sent, OutboundFailure> {
        let read = (self.digests.bytes() == self.open.header.length).then(|| self.digests.root());
        for known in [self.open.header.digest, read].into_iter().flatten() {
            if known != digest {
                return Err(OutboundFailure::Final(SendError::Changed));
            }
        }
        Ok(Sent { digest, streams: self.streams, bytes_sent: self.bytes_sent })
    }

    fn refused(&self, refusal: Refusal) -> OutboundFailure {
        match refusal.kind {
            RefusalKind::Busy => {
                let asked = refusal.retry_after_ms.map(|ms| Duration::from_millis(ms.into()));
                let pause = asked.unwrap_or(self.limits.busy_retry_after);
                OutboundFailure::Busy(
                    pause.clamp(self.limits.backoff_initial, self.limits.backoff_max),
                )
            }
            RefusalKind::Unwanted | RefusalKind::Protocol | RefusalKind::Other => {
                OutboundFailure::Final(SendError::Refused(refusal.message))
            }
            RefusalKind::Cancelled | RefusalKind::Sink | RefusalKind::Digest => {
                OutboundFailure::Final(SendError::Ended(refusal.message))
            }
        }
    }
}

/// The receiver's final message about the bytes.
async fn receipt(reader: &mut ReadHalf<CountedStream>) -> Result<Digest, OutboundFailure> {
    loop {
        match read_message(reader).await? {
            Receipt::Alive => {}
            Receipt::Done { digest } => return Ok(digest),
            Receipt::Resend { offset } => {
                return Err(invalid(format!("the chunk at {offset} arrived damaged")).into());
            }
            Receipt::Failed(refusal) => {
                return Err(OutboundFailure::Final(SendError::Ended(refusal.message)));
            }
        }
    }
}

/// The writing half of a stream, with a watchdog.
struct OutboundStream<'a> {
    writer: &'a mut WriteHalf<CountedStream>,
    progress: &'a Progress,
    limits: Limits,
}

impl OutboundStream<'_> {
    async fn chunk(&mut self, head: ChunkHead, chunk: &Bytes) -> io::Result<()> {
        let write = write_chunk(self.writer, head, chunk);
        self.progress.run_unless_stalled(self.limits.stall_timeout, write).await
    }

    async fn control(&mut self, message: &ControlMessage) -> io::Result<()> {
        let write = write_control(self.writer, message);
        self.progress.run_unless_stalled(self.limits.stall_timeout, write).await
    }

    /// Waits for the source, and meanwhile sends keep-alives to the receiver.
    async fn keep_alive_while<T>(
        &mut self,
        work: impl Future<Output = io::Result<T>>,
        cancel: &CancellationToken,
    ) -> Result<T, OutboundFailure> {
        let mut work = pin!(timeout(self.limits.io_timeout, work));
        // Written bytes must not wait in a buffer while the source is slow.
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(OutboundFailure::Final(SendError::Cancelled)),
                done = &mut work => {
                    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it takes too long");
                    let failed = |error| OutboundFailure::Final(SendError::Source(error));
                    return done.map_err(late).flatten().map_err(failed);
                }
                () = sleep(pause) => {
                    match pause.is_zero() {
                        true => {
                            let flush = self.writer.flush();
                            self.progress.run_unless_stalled(self.limits.stall_timeout, flush).await?;
                        }
                        false => self.control(&ControlMessage::Alive).await?,
                    }
                    pause = self.limits.keep_alive_interval();
                }
            }
        }
    }
}

fn stop_message(error: &SendError) -> ControlMessage {
    let reason = error.to_string();
    let end = reason.floor_char_boundary(hypha_wire::bulk::MAX_REASON);
    ControlMessage::Stop { reason: reason[..end].to_owned() }
}

fn timed_out(what: &str, within: Duration) -> io::Error {
    let what = format!("{what} within {} s", within.as_secs_f32());
    io::Error::new(io::ErrorKind::TimedOut, what)
}
