//! The dedicated carrier: a TCP connection with TLS of its own, for one transfer.
//!
//! Both sides show certificates; TLS checks their chains, the `admit` closures the other rules. Then each side
//! sends its verdict, because under TLS 1.3 a dialler is connected before the other side has verified it.
//!
//! Socket buffers are left to the kernel: it grows them with the link, and a size that is set by hand ends that.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hypha_wire::Verdict;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tokio_util::task::AbortOnDropHandle;

use crate::io::{drain, read_message, write_message};
use crate::registry::PeerKey;

/// Returns the current configuration, so that reloaded certificates apply to the next connection.
pub type TlsProvider = dyn Fn() -> Arc<ServerConfig> + Send + Sync;

/// Decides on a chain that TLS has found valid, leaf first.
pub type AdmitPeer = dyn Fn(&[CertificateDer<'_>]) -> Result<PeerKey, String> + Send + Sync;

/// The bounds of the listener.
#[derive(Clone, Copy, Debug)]
pub struct TcpLimits {
    /// From the connection to the verdict. A few round trips of a slow link.
    pub handshake_timeout: Duration,
    /// Handshakes at once. When one more arrives, the oldest is dropped: an honest peer takes a moment, one that
    /// only holds its connection open takes long.
    pub handshakes: usize,
}

impl Default for TcpLimits {
    fn default() -> TcpLimits {
        TcpLimits { handshake_timeout: Duration::from_secs(10), handshakes: 128 }
    }
}

/// Connections that were admitted and wait to be accepted: a burst at the beginning of a round.
const ADMITTED_QUEUE: usize = 32;

/// After a failure to accept, such as too many open files: long enough that some may close.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// How long a peer that was refused may take to read why.
const REFUSED_LINGER: Duration = Duration::from_secs(1);

/// How much a TLS session takes at once of what is being sent: a chunk and its head go in four parts. With the default
/// of 64 KiB the last would be a record of 36 bytes with a system call of its own.
const TLS_BUFFER: usize = 80 << 10;

/// A connection to a peer that both sides admit.
pub struct Connection {
    /// The peer.
    pub peer: PeerKey,
    /// Its address.
    pub address: SocketAddr,
    /// Its chain, leaf first.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The stream of the transfer.
    pub stream: TlsStream<TcpStream>,
}

/// Why a peer could not be dialled.
#[derive(Debug, Error)]
pub enum DialError {
    /// No connection, or no valid handshake.
    #[error("cannot connect to {address}: {problem}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        problem: io::Error,
    },
    /// This side does not admit the peer.
    #[error("{address} is not admitted here: {reason}")]
    NotAdmitted {
        /// The address.
        address: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// The peer does not admit this side.
    #[error("{address} did not admit this node: {reason}")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// In the peer's words.
        reason: String,
    },
}

/// Accepts connections and returns those that are admitted.
pub struct Listener {
    address: SocketAddr,
    admitted: mpsc::Receiver<Connection>,
    _task: AbortOnDropHandle<()>,
}

struct HandshakeContext {
    tls: Arc<TlsProvider>,
    admit: Arc<AdmitPeer>,
    limits: TcpLimits,
    admitted: mpsc::Sender<Connection>,
}

impl Listener {
    /// Listens at `address`. Handshakes run in the background until the listener is dropped.
    pub async fn bind(
        address: SocketAddr,
        limits: TcpLimits,
        tls: Arc<TlsProvider>,
        admit: Arc<AdmitPeer>,
    ) -> io::Result<Listener> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (sender, admitted) = mpsc::channel(ADMITTED_QUEUE);
        let context = Arc::new(HandshakeContext { tls, admit, limits, admitted: sender });
        let task = AbortOnDropHandle::new(tokio::spawn(accept_all(listener, context)));
        Ok(Listener { address, admitted, _task: task })
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next admitted connection.
    pub async fn accept(&mut self) -> io::Result<Connection> {
        let ended = || io::Error::other("the listener has ended");
        self.admitted.recv().await.ok_or_else(ended)
    }
}

async fn accept_all(listener: TcpListener, context: Arc<HandshakeContext>) {
    let mut handshakes = JoinSet::new();
    let mut oldest = VecDeque::new();
    loop {
        tokio::select! {
            Some(_) = handshakes.join_next() => {
                oldest.retain(|handshake: &tokio::task::AbortHandle| !handshake.is_finished());
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    while handshakes.len() >= context.limits.handshakes.max(1) {
                        if let Some(handshake) = oldest.pop_front() {
                            handshake.abort();
                        }
                        handshakes.join_next().await;
                    }
                    let task = handshakes.spawn(bounded_handshake(stream, address, Arc::clone(&context)));
                    oldest.push_back(task);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a bulk connection");
                    sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }
}

async fn bounded_handshake(stream: TcpStream, address: SocketAddr, context: Arc<HandshakeContext>) {
    match timeout(context.limits.handshake_timeout, handshake(stream, address, &context)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%address, %error, "a bulk connection was not admitted"),
        Err(_) => tracing::debug!(%address, "a bulk connection did not identify itself in time"),
    }
}

async fn handshake(
    stream: TcpStream,
    address: SocketAddr,
    context: &HandshakeContext,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut tls = TlsAcceptor::from((context.tls)()).accept(stream).await?;
    let certificates = tls.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    let peer = match (context.admit)(&certificates) {
        Ok(peer) => peer,
        Err(reason) => {
            write_message(&mut tls, &Verdict::refused(&reason)).await?;
            tls.shutdown().await?;
            drain(&mut tls, REFUSED_LINGER).await;
            return Err(io::Error::other(reason));
        }
    };
    // Before the verdict is sent: the peer then begins to send, and a receiver must be ready.
    let ended = |_| io::Error::other("the listener has ended");
    let permit = context.admitted.reserve().await.map_err(ended)?;
    write_message(&mut tls, &Verdict::admitted()).await?;
    let verdict: Verdict = read_message(&mut tls).await?;
    if !verdict.admitted {
        return Err(io::Error::other(verdict.reason.unwrap_or_default()));
    }
    tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
    permit.send(Connection { peer, address, certificates, stream: tls.into() });
    Ok(())
}

/// Connects to a peer. Returns when both sides have admitted each other.
pub async fn dial(
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
    admit: &AdmitPeer,
    within: Duration,
) -> Result<Connection, DialError> {
    let late = |_| DialError::Connect { address, problem: io::ErrorKind::TimedOut.into() };
    timeout(within, connect(address, tls, name, admit)).await.map_err(late)?
}

async fn connect(
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
    admit: &AdmitPeer,
) -> Result<Connection, DialError> {
    let failed = |problem| DialError::Connect { address, problem };
    let stream = TcpStream::connect(address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let mut stream = TlsConnector::from(tls).connect(name, stream).await.map_err(failed)?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    let peer = match admit(&certificates) {
        Ok(peer) => peer,
        Err(reason) => {
            // A courtesy: the outcome here is the same if it does not arrive.
            let _ = write_message(&mut stream, &Verdict::refused(&reason)).await;
            return Err(DialError::NotAdmitted { address, reason });
        }
    };
    write_message(&mut stream, &Verdict::admitted()).await.map_err(failed)?;
    let verdict: Verdict = read_message(&mut stream).await.map_err(failed)?;
    if !verdict.admitted {
        let reason = verdict.reason.unwrap_or_else(|| "no reason given".into());
        return Err(DialError::Refused { address, reason });
    }
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
    Ok(Connection { peer, address, certificates, stream: stream.into() })
}
