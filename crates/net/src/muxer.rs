//! Streams that end with their connection, also if this node closes it.
//!
//! Yamux ends the streams of a connection that the other node closes or that breaks. Those of a connection that it is
//! told to close it forgets: a task that reads from one is not woken, and notices only when it writes. A relayed connection
//! is closed once there is a direct one, and a channel that waited for its next heartbeat would be deaf meanwhile.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use futures::{AsyncRead, AsyncWrite};
use libp2p::core::StreamMuxer;
use libp2p::core::muxing::StreamMuxerEvent;

/// Below this many streams the list of wakers is not searched for those of dropped streams.
const MIN_SWEPT: usize = 64;

/// A connection whose streams end when it is closed.
pub(crate) struct EndingMuxer<M> {
    inner: M,
    shared: Arc<Shared>,
}

/// A stream of such a connection.
pub(crate) struct EndingStream<S> {
    inner: S,
    shared: Arc<Shared>,
    wakers: Arc<Wakers>,
}

#[derive(Default)]
struct Shared {
    is_closed: AtomicBool,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    all: Vec<Weak<Wakers>>,
    /// Those of dropped streams are removed when there are this many.
    swept_at: usize,
}

/// Two, because the halves of a stream may belong to two tasks.
#[derive(Default)]
struct Wakers {
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl<M> EndingMuxer<M> {
    pub(crate) fn new(inner: M) -> EndingMuxer<M> {
        EndingMuxer { inner, shared: Arc::default() }
    }

    fn stream<S>(&self, inner: S) -> EndingStream<S> {
        let wakers = Arc::<Wakers>::default();
        self.shared.add(&wakers);
        EndingStream { inner, shared: Arc::clone(&self.shared), wakers }
    }
}

impl Shared {
    fn add(&self, wakers: &Arc<Wakers>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.all.len() >= streams.swept_at.max(MIN_SWEPT) {
            streams.all.retain(|one| one.strong_count() > 0);
            streams.swept_at = 2 * streams.all.len();
        }
        streams.all.push(Arc::downgrade(wakers));
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        for wakers in streams.all.drain(..).filter_map(|one| one.upgrade()) {
            wakers.reader.wake();
            wakers.writer.wake();
        }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

impl<M: StreamMuxer<Substream: Unpin> + Unpin> StreamMuxer for EndingMuxer<M> {
    type Substream = EndingStream<M::Substream>;
    type Error = M::Error;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        Pin::new(&mut self.inner).poll_inbound(context).map_ok(|stream| self.stream(stream))
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, Self::Error>> {
        Pin::new(&mut self.inner).poll_outbound(context).map_ok(|stream| self.stream(stream))
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Self::Error>> {
        let closed = Pin::new(&mut self.inner).poll_close(context);
        // Not before the first poll, which takes over what the streams have sent.
        self.shared.close();
        closed
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        Pin::new(&mut self.inner).poll(context)
    }
}

impl<S> EndingStream<S> {
    /// The result of a call that cannot go on, unless the connection was closed.
    fn or_closed<T>(
        &self,
        polled: Poll<T>,
        (waker, context): (&AtomicWaker, &Context<'_>),
        closed: impl FnOnce() -> T,
    ) -> Poll<T> {
        if polled.is_ready() {
            return polled;
        }
        // Registered first: the connection may be closed in between.
        waker.register(context.waker());
        if self.shared.is_closed() { Poll::Ready(closed()) } else { Poll::Pending }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for EndingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.or_closed(polled, (&self.wakers.reader, context), || Ok(0))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for EndingStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, buffer);
        self.or_closed(polled, (&self.wakers.writer, context), || Err(is_closed()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, buffers);
        self.or_closed(polled, (&self.wakers.writer, context), || Err(is_closed()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(context);
        self.or_closed(polled, (&self.wakers.writer, context), || Err(is_closed()))
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_close(context);
        self.or_closed(polled, (&self.wakers.writer, context), || Err(is_closed()))
    }
}

fn is_closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the connection was closed")
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Streams on which nothing ever arrives, and which take nothing, as those of yamux after a close.
    struct Silent;

    impl StreamMuxer for Silent {
        type Substream = Silent;
        type Error = io::Error;

        fn poll_inbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<Silent>> {
            Poll::Ready(Ok(Silent))
        }

        fn poll_outbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<Silent>> {
            Poll::Ready(Ok(Silent))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
            Poll::Pending
        }
    }

    impl AsyncRead for Silent {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Silent {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_closed_here_ends_its_streams() {
        let mut connection = EndingMuxer::new(Silent);
        // Far more than are kept without a look at which are still there.
        for _ in 0..10 * MIN_SWEPT {
            poll_fn(|context| Pin::new(&mut connection).poll_inbound(context)).await.unwrap();
        }
        let stream = poll_fn(|context| Pin::new(&mut connection).poll_outbound(context)).await;
        let (mut reader, mut writer) = stream.unwrap().split();
        let reads = tokio::spawn(async move { reader.read(&mut [0; 8]).await });
        let writes = tokio::spawn(async move { writer.write(b"a word").await });
        tokio::task::yield_now().await;
        assert!(!reads.is_finished() && !writes.is_finished());
        assert!(connection.shared.streams.lock().unwrap().all.len() <= MIN_SWEPT + 1);

        poll_fn(|context| Pin::new(&mut connection).poll_close(context)).await.unwrap();
        assert_eq!(reads.await.unwrap().unwrap(), 0, "its end");
        assert_eq!(writes.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
