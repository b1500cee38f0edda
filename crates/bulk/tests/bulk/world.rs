//! Two sides and the carriers between them.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hypha_bulk::tcp::{Listener, TcpLimits, dial};
use hypha_bulk::{
    BoxedStream, CHUNK_BYTES, Connector, Header, Incoming, Limits, Outgoing, PeerKey, Receiver,
    Sink,
};
use tokio::sync::mpsc;

use crate::faults::{Fault, FaultyStream};
use crate::pki::{Node, admit};

/// Short timeouts. Where the clock is real they leave room for a busy machine.
pub(crate) fn limits() -> Limits {
    Limits {
        open_timeout: Duration::from_secs(2),
        decision_timeout: Duration::from_secs(4),
        stall_timeout: Duration::from_millis(400),
        resume_timeout: Duration::from_secs(10),
        max_attempts: 20,
        backoff_initial: Duration::from_millis(5),
        backoff_max: Duration::from_millis(50),
        busy_retry_after: Duration::from_millis(20),
        close_timeout: Duration::from_millis(300),
        ..Limits::default()
    }
}

pub(crate) fn header(name: &str, length: usize) -> Header {
    Header {
        job: None,
        round: Some(1),
        kind: "test".into(),
        name: name.into(),
        length: length as u64,
        digest: None,
    }
}

pub(crate) fn outgoing(name: &str, length: usize) -> Outgoing {
    Outgoing::new(header(name, length))
}

/// Bytes without equal chunks.
pub(crate) fn pattern(length: usize) -> Bytes {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

/// A receiver's end of a carrier. [`Side::connector`] opens streams to it.
pub(crate) struct Side {
    receiver: Receiver,
    carrier: Carrier,
}

#[derive(Clone)]
enum Carrier {
    Pipe,
    Tcp { address: SocketAddr, dialler: Arc<Node> },
}

/// The capacity of a pipe: less than a chunk, so that writers do wait for readers.
const PIPE_BYTES: usize = CHUNK_BYTES / 4;

impl Side {
    pub(crate) fn pipe(limits: Limits) -> (Side, mpsc::Receiver<Incoming>) {
        let (receiver, incoming) = Receiver::new(limits);
        (Side { receiver, carrier: Carrier::Pipe }, incoming)
    }

    /// Listens as `node` and is dialled by `dialler`.
    pub(crate) async fn tcp(
        limits: Limits,
        node: Arc<Node>,
        dialler: Arc<Node>,
    ) -> (Side, mpsc::Receiver<Incoming>) {
        let (receiver, incoming) = Receiver::new(limits);
        let tls = Arc::new(move || node.server());
        let any = "127.0.0.1:0".parse().unwrap();
        let mut listener =
            Listener::bind(any, TcpLimits::default(), tls, Arc::new(admit)).await.unwrap();
        let address = listener.local_addr();
        let serving = receiver.clone();
        tokio::spawn(async move {
            while let Ok(connection) = listener.accept().await {
                let serving = serving.clone();
                tokio::spawn(
                    async move { serving.serve(connection.peer, connection.stream).await },
                );
            }
        });
        (Side { receiver, carrier: Carrier::Tcp { address, dialler } }, incoming)
    }

    /// Opens streams to this side; `fault` decides the fault of each stream by its number, from zero.
    pub(crate) fn connector<F>(&self, fault: F) -> impl Connector + use<F>
    where
        F: Fn(u64) -> Fault + Send + Sync + 'static,
    {
        let (receiver, carrier) = (self.receiver.clone(), self.carrier.clone());
        let (count, fault) = (Arc::new(AtomicU64::new(0)), Arc::new(fault));
        move || {
            let (receiver, carrier) = (receiver.clone(), carrier.clone());
            let fault = fault(count.fetch_add(1, Ordering::Relaxed));
            async move {
                match carrier {
                    Carrier::Pipe => {
                        let (near, far) = tokio::io::duplex(PIPE_BYTES);
                        tokio::spawn(
                            async move { receiver.serve(PeerKey::new("pipe"), far).await },
                        );
                        Ok(Box::new(FaultyStream::new(near, fault)) as BoxedStream)
                    }
                    Carrier::Tcp { address, dialler } => {
                        let within = Duration::from_secs(5);
                        let name = Node::name();
                        let dialled = dial(address, dialler.client(), name, &admit, within).await;
                        let stream = dialled.map_err(io::Error::other)?.stream;
                        Ok(Box::new(FaultyStream::new(stream, fault)) as BoxedStream)
                    }
                }
            }
        }
    }
}

/// Compares the bytes it gets with those that were sent, so that large transfers are not kept twice.
pub(crate) struct ComparingSink {
    expected: Bytes,
    at: usize,
    finished: Arc<AtomicU64>,
}

impl ComparingSink {
    pub(crate) fn new(expected: Bytes) -> ComparingSink {
        ComparingSink { expected, at: 0, finished: Arc::default() }
    }

    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }
}

impl Sink for ComparingSink {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let expected = self.expected.get(self.at..self.at + bytes.len());
        assert!(expected == Some(bytes), "other bytes at {}", self.at);
        self.at += bytes.len();
        Ok(())
    }

    async fn finish(&mut self) -> io::Result<()> {
        assert_eq!(self.at, self.expected.len(), "not all bytes");
        self.finished.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A sink whose behaviour is a closure; it records its outcome.
#[derive(Clone)]
pub(crate) struct ScriptedSink {
    pub(crate) pause: Duration,
    pub(crate) fails_after: Option<usize>,
    pub(crate) got: Arc<Mutex<Vec<u8>>>,
    pub(crate) abandoned: Arc<Mutex<Option<bool>>>,
}

impl ScriptedSink {
    pub(crate) fn new() -> ScriptedSink {
        ScriptedSink {
            pause: Duration::ZERO,
            fails_after: None,
            got: Arc::default(),
            abandoned: Arc::default(),
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.got.lock().unwrap().len()
    }
}

impl Sink for ScriptedSink {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.fails_after.is_some_and(|most| self.held() + bytes.len() > most) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left"));
        }
        tokio::time::sleep(self.pause).await;
        self.got.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    async fn finish(&mut self) -> io::Result<()> {
        tokio::time::sleep(self.pause).await;
        Ok(())
    }

    async fn abandon(&mut self, reusable: bool) {
        *self.abandoned.lock().unwrap() = Some(reusable);
    }
}
