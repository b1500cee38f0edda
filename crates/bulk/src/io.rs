//! Messages, chunks and the watchdog on a stream.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hypha_wire::bulk::ChunkHead;
use hypha_wire::{Message, decode, put_frame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// The transport of a transfer: bytes in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Any stream.
pub type BoxedStream = Box<dyn Stream>;

/// Counts the bytes that a stream has moved, for the watchdog.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Runs `work` as long as bytes move: gives up when none has for `stall_timeout`.
    pub(crate) async fn run_unless_stalled<T>(
        &self,
        stall_timeout: Duration,
        work: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let mut work = pin!(work);
        let mut seen = self.get();
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(stall_timeout) => {}
            }
            let now = self.get();
            if now == seen {
                let what = format!("no byte moved for {} s", stall_timeout.as_secs_f32());
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            seen = now;
        }
    }
}

/// A stream whose bytes are counted.
pub(crate) struct CountedStream {
    stream: BoxedStream,
    progress: Progress,
}

impl CountedStream {
    pub(crate) fn new(stream: BoxedStream) -> (CountedStream, Progress) {
        let progress = Progress::default();
        (CountedStream { stream, progress: progress.clone() }, progress)
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.progress.add(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.progress.add(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?;
        self.progress.add(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Writes a message with its length before it, and flushes it.
pub(crate) async fn write_message<W, M>(writer: &mut W, message: &M) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
    M: Message,
{
    write_framed(writer, Vec::new(), message).await
}

/// Writes a message between chunks: a head of length zero distinguishes it from a chunk.
pub(crate) async fn write_control<W, M>(writer: &mut W, message: &M) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
    M: Message,
{
    write_framed(writer, 0_u32.to_be_bytes().to_vec(), message).await
}

async fn write_framed<W, M>(writer: &mut W, mut bytes: Vec<u8>, message: &M) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
    M: Message,
{
    put_frame(&mut bytes, message).map_err(invalid)?;
    writer.write_all(&bytes).await?;
    writer.flush().await
}

/// Reads one message. Never allocates more than such a message may have.
pub(crate) async fn read_message<R, M>(reader: &mut R) -> io::Result<M>
where
    R: AsyncRead + Unpin,
    M: Message,
{
    let length = reader.read_u32().await? as usize;
    if length > M::MAX_BYTES {
        let max = M::MAX_BYTES;
        return Err(invalid(format!(
            "{length} bytes are too many for a {}: at most {max}",
            M::NAME
        )));
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).await?;
    decode(&bytes).map_err(invalid)
}

/// The peer sent something invalid: [`io::ErrorKind::InvalidData`] distinguishes it from a broken stream.
pub(crate) fn invalid(problem: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_string())
}

/// How much of a chunk is copied behind its head where a stream has no vectored writes: one TLS
/// record, or one frame of a muxer, so that the head is not sent alone.
const JOINED_BYTES: usize = 16 << 10;

/// Writes a chunk and its head, without copying the chunk.
pub(crate) async fn write_chunk<W>(writer: &mut W, head: ChunkHead, chunk: &[u8]) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let head = head.to_bytes();
    if !writer.is_write_vectored() {
        let (first, rest) = chunk.split_at(chunk.len().min(JOINED_BYTES));
        writer.write_all(&[head.as_slice(), first].concat()).await?;
        return writer.write_all(rest).await;
    }
    let mut slices = [IoSlice::new(&head), IoSlice::new(chunk)];
    let mut left = slices.as_mut_slice();
    while !left.is_empty() {
        match writer.write_vectored(left).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut left, written),
        }
    }
    Ok(())
}

/// Reads and discards until the peer closes: closing with unread bytes would discard our own last message.
pub(crate) async fn drain<R: AsyncRead + Unpin>(reader: &mut R, within: Duration) {
    let mut nowhere = tokio::io::sink();
    let drained = tokio::io::copy(reader, &mut nowhere);
    // Whether it closed or the time is up, nothing is left to do.
    let _ = tokio::time::timeout(within, drained).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_wire::bulk::{Digest, OpenResponse};

    #[tokio::test(start_paused = true)]
    async fn slow_bytes_do_not_stall_and_missing_bytes_do() {
        let (near, mut far) = tokio::io::duplex(64);
        let (mut counted, progress) = CountedStream::new(Box::new(near));
        let stall_timeout = Duration::from_secs(1);
        let trickle = tokio::spawn(async move {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(900)).await;
                far.write_all(b"x").await.unwrap();
            }
            far
        });
        let mut bytes = [0; 20];
        progress.run_unless_stalled(stall_timeout, counted.read_exact(&mut bytes)).await.unwrap();
        let _far = trickle.await.unwrap();
        let error =
            progress.run_unless_stalled(stall_timeout, counted.read_u8()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_chunk_and_its_head_arrive_whole_through_a_narrow_pipe() {
        let chunk: Vec<u8> = (0..70_000_u32).map(|at| at as u8).collect();
        let head = ChunkHead { length: 70_000, digest: Digest([3; 32]) };
        for vectored in [true, false] {
            let (near, mut far) = tokio::io::duplex(1000);
            let mut near = MaybeVectored { inner: near, vectored };
            let bytes = chunk.clone();
            let task = tokio::spawn(async move { write_chunk(&mut near, head, &bytes).await });
            let mut got = Vec::new();
            far.read_to_end(&mut got).await.unwrap();
            task.await.unwrap().unwrap();
            assert_eq!(got, [head.to_bytes().as_slice(), &chunk].concat());
        }
    }

    #[tokio::test]
    async fn a_length_that_is_too_large_is_refused_before_allocation() {
        let bytes = u32::MAX.to_be_bytes();
        let error = read_message::<_, OpenResponse>(&mut bytes.as_slice()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    struct MaybeVectored {
        inner: tokio::io::DuplexStream,
        vectored: bool,
    }

    impl AsyncWrite for MaybeVectored {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.inner).poll_write(cx, bytes)
        }
        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            assert!(self.vectored, "vectored writes are not supported");
            Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
        }
        fn is_write_vectored(&self) -> bool {
            self.vectored
        }
        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_flush(cx)
        }
        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_shutdown(cx)
        }
    }
}
