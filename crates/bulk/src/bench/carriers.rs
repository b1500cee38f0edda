//! The dedicated carrier, and the plain copy that it is measured against.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hypha_wire::bulk::{CHUNK_BYTES, Header};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::task::AbortOnDropHandle;

use super::{Carrier, CarrierFuture, Pattern};
use crate::io::BoxedStream;
use crate::limits::Limits;
use crate::receive::Receiver;
use crate::registry::PeerKey;
use crate::send::{Outgoing, Sender};
use crate::sink::DiscardSink;
use crate::tcp::{Listener, TcpLimits, dial};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Far above what a connection on one machine takes.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The TLS identity of a process.
#[derive(Clone)]
pub struct TlsPair {
    /// For incoming connections.
    pub server: Arc<ServerConfig>,
    /// For outgoing connections.
    pub client: Arc<ClientConfig>,
    /// The name in the other's certificate.
    pub name: ServerName<'static>,
}

/// The dedicated carrier, all of it: admission, digests of chunks and of all, confirmation.
pub struct Dedicated {
    tls: TlsPair,
    pattern: Pattern,
    address: SocketAddr,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl Dedicated {
    /// Listens on loopback and accepts everything.
    pub async fn start(tls: TlsPair, pattern: Pattern) -> io::Result<Dedicated> {
        let server = Arc::clone(&tls.server);
        let tls_now = Arc::new(move || Arc::clone(&server));
        let admit = Arc::new(admit_any);
        let mut listener = Listener::bind(LOOPBACK, TcpLimits::default(), tls_now, admit).await?;
        let address = listener.local_addr();
        let (receiver, mut incoming) = Receiver::new(Limits::default());
        let serve = async move {
            while let Ok(connection) = listener.accept().await {
                let receiver = receiver.clone();
                tokio::spawn(
                    async move { receiver.serve(connection.peer, connection.stream).await },
                );
            }
        };
        let take = async move {
            while let Some(incoming) = incoming.recv().await {
                tokio::spawn(incoming.accept(DiscardSink));
            }
        };
        let spawn = |task| AbortOnDropHandle::new(task);
        let _tasks = [spawn(tokio::spawn(serve)), spawn(tokio::spawn(take))];
        Ok(Dedicated { tls, pattern, address, _tasks })
    }
}

impl Carrier for Dedicated {
    fn name(&self) -> &'static str {
        "dedicated"
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn send<'a>(&'a self, to: &'a str, bytes: u64) -> CarrierFuture<'a, ()> {
        Box::pin(async move {
            let to: SocketAddr = to.parse().map_err(io::Error::other)?;
            let tls = self.tls.clone();
            let connector = move || {
                let tls = tls.clone();
                async move {
                    let dialled = dial(to, tls.client, tls.name, &admit_any, DIAL_TIMEOUT).await;
                    let connection = dialled.map_err(io::Error::other)?;
                    Ok(Box::new(connection.stream) as BoxedStream)
                }
            };
            let header = Header {
                job: None,
                round: None,
                kind: "bench".into(),
                name: "pattern".into(),
                length: bytes,
                digest: None,
            };
            let outgoing = Outgoing::new(header);
            let sent =
                Sender::default().send(connector, outgoing, self.pattern.prefix(bytes)).await;
            sent.map(drop).map_err(io::Error::other)
        })
    }
}

/// Admits any peer with a certificate of this run.
fn admit_any(_: &[CertificateDer<'_>]) -> Result<PeerKey, String> {
    Ok(PeerKey::new("peer"))
}

/// The reference: a connection, TLS with the same certificates, bytes, one BLAKE3 hash of them on each side, compared
/// at the end. No chunks, no admission, no watchdog, no resuming after a fault.
pub struct Plain {
    tls: TlsPair,
    pattern: Pattern,
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl Plain {
    /// Listens on loopback and accepts everything.
    pub async fn start(tls: TlsPair, pattern: Pattern) -> io::Result<Plain> {
        let listener = TcpListener::bind(LOOPBACK).await?;
        let address = listener.local_addr()?;
        let acceptor = TlsAcceptor::from(Arc::clone(&tls.server));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if let Err(error) = take(stream, acceptor).await {
                        tracing::warn!(%error, "the plain copy failed");
                    }
                });
            }
        });
        Ok(Plain { tls, pattern, address, _task: AbortOnDropHandle::new(task) })
    }
}

async fn take(stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = acceptor.accept(stream).await?;
    let mut left = stream.read_u64().await?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    while left > 0 {
        let want = left.min(CHUNK_BYTES as u64) as usize;
        stream.read_exact(&mut buffer[..want]).await?;
        hasher.update(&buffer[..want]);
        left -= want as u64;
    }
    stream.write_all(hasher.finalize().as_bytes()).await?;
    stream.shutdown().await
}

impl Carrier for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn send<'a>(&'a self, to: &'a str, bytes: u64) -> CarrierFuture<'a, ()> {
        let mut part = self.pattern.prefix(bytes);
        // In a task of its own, like the other carrier.
        let (tls, to) = (self.tls.clone(), to.to_owned());
        let work = async move {
            let stream = TcpStream::connect(&to).await?;
            stream.set_nodelay(true)?;
            let connector = TlsConnector::from(tls.client);
            let mut stream = connector.connect(tls.name, stream).await?;
            stream.write_u64(bytes).await?;
            let mut hasher = blake3::Hasher::new();
            loop {
                let piece = part.take(CHUNK_BYTES);
                if piece.is_empty() {
                    break;
                }
                hasher.update(&piece);
                stream.write_all(&piece).await?;
            }
            stream.flush().await?;
            let mut digest = [0; 32];
            stream.read_exact(&mut digest).await?;
            match digest == *hasher.finalize().as_bytes() {
                true => Ok(()),
                false => Err(io::Error::other("the plain copy came out different")),
            }
        };
        Box::pin(async move { tokio::spawn(work).await.map_err(io::Error::other)? })
    }
}
