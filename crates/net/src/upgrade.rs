//! The connection upgrade: TLS 1.3 with certificates of the operator's CA on both sides, then a verdict.
//!
//! Under TLS 1.3 a dialler's handshake is over before the other side has verified its certificate. So each side sends
//! one small message with its verdict, and reads the other's before the connection counts. No protocol sees a byte
//! earlier, on direct and on relayed connections alike.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use futures::io::BufWriter;
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use futures_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use hypha_pki::{CertificateRejection, Pki};
use hypha_wire::admission::Verdict;
use libp2p::PeerId;
use libp2p::core::UpgradeInfo;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade};
use thiserror::Error;

use crate::gatekeeper::Gatekeeper;

/// The name under which both sides negotiate this upgrade.
const PROTOCOL: &str = "/hypha/tls/1";

#[derive(Clone)]
pub(crate) struct Upgrade {
    gatekeeper: Arc<Gatekeeper>,
}

/// Why a connection was refused.
#[derive(Debug, Error)]
pub(crate) enum UpgradeError {
    /// The handshake itself failed: no TLS, no certificate, or one that the verifier refused.
    #[error("handshake: {0}")]
    Handshake(io::Error),
    /// The other side's certificate is not acceptable here.
    #[error("refused: {0}")]
    Refused(#[from] CertificateRejection),
    /// The other side does not accept this node's certificate.
    #[error("the other side refused this node: {0}")]
    RefusedByPeer(String),
    /// The other side did not send a valid verdict.
    #[error("no verdict: {0}")]
    NoVerdict(String),
}

impl From<io::Error> for UpgradeError {
    /// In our own words, where the verifier reports why a certificate is rejected.
    fn from(error: io::Error) -> UpgradeError {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(alert)) = tls {
            return UpgradeError::RefusedByPeer(format!("{alert:?}"));
        }
        match tls.and_then(CertificateRejection::from_tls) {
            Some(rejected) => UpgradeError::Refused(rejected),
            None => UpgradeError::Handshake(error),
        }
    }
}

impl Upgrade {
    pub(crate) fn new(gatekeeper: Arc<Gatekeeper>) -> Upgrade {
        Upgrade { gatekeeper }
    }

    async fn inbound<C>(self, socket: C) -> Result<(PeerId, TlsStream<C>), UpgradeError>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let credentials = self.gatekeeper.credentials();
        let stream = TlsAcceptor::from(credentials.server.clone()).accept(socket).await?;
        self.exchange_verdicts(TlsStream::Server(stream)).await
    }

    async fn outbound<C>(self, socket: C) -> Result<(PeerId, TlsStream<C>), UpgradeError>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let credentials = self.gatekeeper.credentials();
        let connector = TlsConnector::from(credentials.client.clone());
        let stream = connector.connect(Pki::server_name(), socket).await?;
        self.exchange_verdicts(TlsStream::Client(stream)).await
    }

    async fn exchange_verdicts<C>(
        self,
        mut stream: TlsStream<C>,
    ) -> Result<(PeerId, TlsStream<C>), UpgradeError>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let ours = self.gatekeeper.admit(stream.get_ref().1.peer_certificates());
        let verdict = match &ours {
            Ok(_) => Verdict::admitted(),
            Err(rejected) => Verdict::refused(rejected.to_string()),
        };
        let sent = send_verdict(&mut stream, &verdict).await;
        let peer = ours?;
        // A peer that refuses this node's certificate has disconnected by now, so sending may have failed; its reason
        // is in what it sent before.
        match receive_verdict(&mut stream).await {
            Ok(Verdict { admitted: true, .. }) => sent.map(|()| (peer, stream)),
            Ok(Verdict { reason, .. }) => {
                Err(UpgradeError::RefusedByPeer(reason.unwrap_or_else(|| "no reason given".into())))
            }
            Err(refused @ UpgradeError::RefusedByPeer(_)) => Err(refused),
            Err(error) => Err(sent.err().unwrap_or(error)),
        }
    }
}

async fn send_verdict<S: AsyncWrite + Unpin>(
    stream: &mut S,
    verdict: &Verdict,
) -> Result<(), UpgradeError> {
    let bytes =
        hypha_wire::encode(verdict).map_err(|error| UpgradeError::NoVerdict(error.to_string()))?;
    let length = u16::try_from(bytes.len())
        .map_err(|_| UpgradeError::NoVerdict("a verdict too long to send".into()))?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    Ok(())
}

async fn receive_verdict<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Verdict, UpgradeError> {
    let refused = |error: io::Error| match error.kind() {
        // A TLS alert arrives as this kind, and states why the other side disconnected.
        io::ErrorKind::InvalidData => UpgradeError::RefusedByPeer(error.to_string()),
        _ => UpgradeError::NoVerdict(error.to_string()),
    };
    let mut length = [0; 2];
    stream.read_exact(&mut length).await.map_err(refused)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut bytes).await.map_err(refused)?;
    hypha_wire::decode(&bytes).map_err(|error| UpgradeError::NoVerdict(error.to_string()))
}

/// What streams are multiplexed on. The multiplexer writes the header of a frame and its body one after the other, and
/// flushes; without a buffer each would be a TLS record and a packet of its own, and would wake the other side.
type Upgraded<C> = (PeerId, BufWriter<TlsStream<C>>);

/// Larger than the frame of a small message; what is larger goes past the buffer.
const BUFFER_BYTES: usize = 8 << 10;

type BoxedUpgrade<C> = Pin<Box<dyn Future<Output = Result<Upgraded<C>, UpgradeError>> + Send>>;

fn buffered<C: AsyncRead + AsyncWrite + Unpin>(
    (peer, stream): (PeerId, TlsStream<C>),
) -> Upgraded<C> {
    (peer, BufWriter::with_capacity(BUFFER_BYTES, stream))
}

impl UpgradeInfo for Upgrade {
    type Info = &'static str;
    type InfoIter = std::iter::Once<&'static str>;
    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once(PROTOCOL)
    }
}

impl<C> InboundConnectionUpgrade<C> for Upgrade
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = Upgraded<C>;
    type Error = UpgradeError;
    type Future = BoxedUpgrade<C>;
    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        Box::pin(async { self.inbound(socket).await.map(buffered) })
    }
}

impl<C> OutboundConnectionUpgrade<C> for Upgrade
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = Upgraded<C>;
    type Error = UpgradeError;
    type Future = BoxedUpgrade<C>;
    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        Box::pin(async { self.outbound(socket).await.map(buffered) })
    }
}
