//! Streams with a fault after so many bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hypha_bulk::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Nothing moves any more, in either direction, without an error.
    Stall {
        after: u64,
    },
    /// The connection is lost.
    Cut {
        after: u64,
    },
    /// One bit of the written bytes changes.
    Flip {
        at: u64,
    },
    /// Bytes of the other side after this many are lost, and then the connection.
    Deaf {
        after: u64,
    },
}

pub(crate) struct FaultyStream<S> {
    inner: Option<S>,
    fault: Fault,
    written: u64,
    read: u64,
}

impl<S: Stream> FaultyStream<S> {
    pub(crate) fn new(inner: S, fault: Fault) -> FaultyStream<S> {
        FaultyStream { inner: Some(inner), fault, written: 0, read: 0 }
    }

    /// The bytes left before the fault, or the fault. The other side notices a closed stream, but not a stall.
    fn left(&mut self) -> Poll<io::Result<u64>> {
        let left = match self.fault {
            Fault::None => u64::MAX,
            Fault::Stall { after } | Fault::Cut { after } => after.saturating_sub(self.written),
            Fault::Flip { at } if self.written < at => at - self.written,
            Fault::Flip { at } if self.written == at => 1,
            Fault::Flip { .. } | Fault::Deaf { .. } => u64::MAX,
        };
        match self.fault {
            Fault::Stall { .. } if left == 0 => Poll::Pending,
            Fault::Cut { .. } if left == 0 => {
                self.inner = None;
                Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
            }
            _ => Poll::Ready(Ok(left)),
        }
    }
}

impl<S: Stream> AsyncWrite for FaultyStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let left = ready!(this.left())?;
        let bytes = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        let flips = matches!(this.fault, Fault::Flip { at } if at == this.written);
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let flipped = [bytes.first().copied().unwrap_or(0) ^ 0x10];
        let bytes = if flips && !bytes.is_empty() { &flipped } else { bytes };
        let count = ready!(Pin::new(inner).poll_write(cx, bytes))?;
        this.written += count as u64;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.left())?;
        this.inner.as_mut().map_or(Poll::Ready(Ok(())), |inner| Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.left())?;
        this.inner.as_mut().map_or(Poll::Ready(Ok(())), |inner| Pin::new(inner).poll_shutdown(cx))
    }
}

impl<S: Stream> AsyncRead for FaultyStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.left())?;
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let before = buffer.filled().len();
        ready!(Pin::new(inner).poll_read(cx, buffer))?;
        this.read += (buffer.filled().len() - before) as u64;
        if matches!(this.fault, Fault::Deaf { after } if this.read > after) {
            buffer.set_filled(before);
            this.inner = None;
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Poll::Ready(Ok(()))
    }
}

/// Faults derived from a seed: none, or one somewhere in a stream of `length` bytes.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound.max(1)
    }
}
