//! One connection, driven by the task that waits for its response.
//!
//! A connection has no task of its own: the task that waits for the response does the reading and the writing. That
//! saves two task switches a request, and dropping a request drops its connection, which is the only way to cancel it
//! in HTTP/1. An idle connection is not polled; whether the back end has closed it meanwhile is checked when it is used
//! again.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::{HttpError, Origin};

/// A connection to a back end, between requests.
pub(super) struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once it has ended: dropping it fails the request that waits for it.
    connection: Option<Connection<TokioIo<TcpStream>, Full<Bytes>>>,
    /// Whether it ended in the middle of the head of a response.
    ended_in_head: bool,
    pub(super) reactor: Reactor,
    /// Requests that were sent from other reactors.
    pub(super) foreign_uses: u32,
}

/// The reactor that a connection belongs to: that of a single-threaded runtime, or the one that all other threads
/// share. A connection can be used from any reactor, but its data is then handed from thread to thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reactor(Option<ThreadId>);

/// A request whose response has begun; the body is still to be read.
pub(crate) struct Exchange {
    /// The status of the response.
    pub(crate) status: StatusCode,
    /// The headers of the response.
    pub(crate) headers: HeaderMap,
    body: Incoming,
    conn: Option<Box<HttpConnection>>,
    origin: Arc<Origin>,
}

/// Why a request got no response.
pub(super) struct SendError {
    pub(super) error: HttpError,
    /// The request, if nothing of it was sent.
    pub(super) request: Option<Request<Full<Bytes>>>,
    /// Whether the connection ended before any byte of a response.
    pub(super) is_unanswered: bool,
}

impl HttpConnection {
    pub(super) async fn open(address: SocketAddr) -> std::io::Result<Box<HttpConnection>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        let (connection, reactor) = (Some(connection), Reactor::current());
        Ok(Box::new(HttpConnection {
            sender,
            connection,
            ended_in_head: false,
            reactor,
            foreign_uses: 0,
        }))
    }

    /// Whether a request can be sent: polls the socket once, without waiting.
    pub(super) fn is_usable(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.connection.is_some() && self.sender.is_ready()
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(cx).is_ready()
            && let Some(ended) = self.connection.take()
        {
            self.ended_in_head = !ended.into_parts().read_buf.is_empty();
        }
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(
        mut self: Box<HttpConnection>,
        request: Request<Full<Bytes>>,
        origin: Arc<Origin>,
    ) -> Result<Exchange, SendError> {
        let mut response = pin!(self.sender.try_send_request(request));
        let responded = poll_fn(|cx| {
            self.drive(cx);
            response.as_mut().poll(cx)
        });
        match responded.await {
            Ok(response) => {
                let (head, body) = response.into_parts();
                let (status, headers) = (head.status, head.headers);
                Ok(Exchange { status, headers, body, conn: Some(self), origin })
            }
            Err(mut error) => {
                let request = error.take_message();
                let is_unanswered = self.connection.is_none() && !self.ended_in_head;
                Err(SendError { error: HttpError::broken(error.error()), request, is_unanswered })
            }
        }
    }
}

impl Reactor {
    pub(super) fn current() -> Reactor {
        let alone = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread);
        Reactor(alone.then(|| std::thread::current().id()))
    }
}

impl Exchange {
    /// Whether HTTP shows where the body ends. Otherwise it ends where the connection does.
    pub(crate) fn is_framed(&self) -> bool {
        self.headers.contains_key(CONTENT_LENGTH) || self.headers.contains_key(TRANSFER_ENCODING)
    }

    /// The next part of the body; `None` at its end. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
        if self.conn.is_none() {
            // The whole body was read, and the connection is no longer driven for it.
            return Ok(None);
        }
        let read = poll_fn(|cx| self.poll_next(cx)).await?;
        if (read.is_none() || self.body.is_end_stream())
            && let Some(conn) = self.conn.take()
        {
            self.origin.put_idle(conn);
        }
        Ok(read)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, HttpError>> {
        // The body is polled first: the connection reads nothing that is not requested.
        let mut driven = false;
        loop {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Poll::Ready(Ok(Some(data))),
                    _ => {}
                },
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(HttpError::broken(&error)));
                }
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Pending if driven => return Poll::Pending,
                Poll::Pending => {
                    driven = true;
                    if let Some(conn) = &mut self.conn {
                        conn.drive(cx);
                    }
                }
            }
        }
    }

    /// The whole body, if it has at most `limit_bytes`.
    pub(crate) async fn read_all(&mut self, limit_bytes: usize) -> Result<Bytes, HttpError> {
        let first = self.next().await?.unwrap_or_default();
        let mut all = Vec::new();
        let mut size = first.len();
        while size <= limit_bytes
            && let Some(more) = self.next().await?
        {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&more);
            size = all.len();
        }
        if size > limit_bytes {
            return Err(HttpError::TooLarge { limit_bytes });
        }
        Ok(if all.is_empty() { first } else { Bytes::from(all) })
    }
}
