//! Which peers may talk to this node: the certificates in force, and those of the peers that were admitted.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use hypha_pki::{Certificate, CertificateRejection, Pki};
use libp2p::PeerId;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

/// The application protocol inside TLS: a client of another protocol is refused during the handshake.
const ALPN: &[u8] = b"hypha/1";

/// The most peers whose certificates are remembered. Those of closed connections are forgotten within a
/// minute, so this is reached only by floods of handshakes that never become connections.
const MAX_ADMITTED: usize = 8_192;

/// How often a chain that was accepted is checked again, since certificates expire.
pub(crate) const RECHECK_INTERVAL: Duration = Duration::from_secs(60);

/// A peer whose handshake is this recent may be about to appear as a connection.
const HANDSHAKE_GRACE: Duration = Duration::from_secs(60);

/// The credentials in force, and the peers that were admitted.
pub(crate) struct Gatekeeper {
    credentials: ArcSwap<Credentials>,
    renewals: watch::Sender<u64>,
    admitted: Mutex<HashMap<PeerId, Arc<AdmittedPeer>>>,
}

/// One set of certificate files, ready for handshakes.
pub(crate) struct Credentials {
    pub(crate) pki: Arc<Pki>,
    pub(crate) server: Arc<rustls::ServerConfig>,
    pub(crate) client: Arc<rustls::ClientConfig>,
}

/// A peer whose certificate was accepted.
pub(crate) struct AdmittedPeer {
    pub(crate) certificate: Certificate,
    chain: Vec<CertificateDer<'static>>,
    at: Instant,
}

impl Gatekeeper {
    pub(crate) fn new(pki: Pki) -> Gatekeeper {
        Gatekeeper {
            credentials: ArcSwap::from_pointee(Credentials::new(pki)),
            renewals: watch::Sender::new(0),
            admitted: Mutex::new(HashMap::new()),
        }
    }

    pub(crate) fn credentials(&self) -> Arc<Credentials> {
        self.credentials.load_full()
    }

    /// Uses new certificates and revocation lists from now on.
    pub(crate) fn replace_credentials(&self, pki: Pki) {
        self.credentials.store(Arc::new(Credentials::new(pki)));
        self.renewals.send_modify(|count| *count += 1);
    }

    /// Verifies a chain without recording it: for connections outside the swarm.
    pub(crate) fn verify(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> Result<PeerId, CertificateRejection> {
        match chain.is_empty() {
            true => Err(CertificateRejection::NoCertificate),
            false => Ok(self.credentials().pki.verify(chain, SystemTime::now())?.peer_id),
        }
    }

    /// Returns when a chain that was accepted no longer is.
    pub(crate) async fn until_rejected(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> CertificateRejection {
        let mut renewals = self.renewals.subscribe();
        loop {
            if let Err(rejected) = self.verify(chain) {
                return rejected;
            }
            // Besides renewals, time passes: a certificate may expire.
            let _ = tokio::time::timeout(RECHECK_INTERVAL, renewals.changed()).await;
        }
    }

    /// Verifies the other end of a finished handshake, and records it if it is admitted.
    pub(crate) fn admit(
        &self,
        chain: Option<&[CertificateDer<'static>]>,
    ) -> Result<PeerId, CertificateRejection> {
        let chain = chain.ok_or(CertificateRejection::NoCertificate)?;
        let certificate = self.credentials().pki.verify(chain, SystemTime::now())?;
        let peer = certificate.peer_id;
        let mut admitted = self.lock();
        if admitted.len() >= MAX_ADMITTED && !admitted.contains_key(&peer) {
            // A peer that is dropped here while connected is looked up as unknown and disconnected.
            let any = admitted.keys().next().copied();
            any.map(|peer| admitted.remove(&peer));
        }
        admitted.insert(
            peer,
            Arc::new(AdmittedPeer { certificate, chain: chain.to_vec(), at: Instant::now() }),
        );
        Ok(peer)
    }

    /// The record of an admitted peer.
    pub(crate) fn admitted(&self, peer: &PeerId) -> Option<Arc<AdmittedPeer>> {
        self.lock().get(peer).cloned()
    }

    /// The certificates of the authorities that issued those of admitted peers, each once.
    pub(crate) fn issuers(&self) -> Vec<CertificateDer<'static>> {
        let admitted = self.lock();
        let issuers = admitted.values().flat_map(|peer| peer.chain.iter().skip(1));
        let different: HashSet<&CertificateDer<'static>> = issuers.collect();
        different.into_iter().cloned().collect()
    }

    /// Forgets peers that are not connected and whose handshake is long over.
    pub(crate) fn sweep(&self, connected: impl Fn(&PeerId) -> bool) {
        self.lock()
            .retain(|peer, admitted| connected(peer) || admitted.at.elapsed() < HANDSHAKE_GRACE);
    }

    /// Peers that were admitted and would not be now: revoked, expired, or of a CA that is no longer trusted.
    pub(crate) fn rejected_peers(&self) -> Vec<(PeerId, CertificateRejection)> {
        let (credentials, now) = (self.credentials(), SystemTime::now());
        let admitted: Vec<_> =
            self.lock().iter().map(|(peer, admitted)| (*peer, admitted.clone())).collect();
        admitted
            .into_iter()
            .filter_map(|(peer, admitted)| {
                credentials.pki.verify(&admitted.chain, now).err().map(|rejected| (peer, rejected))
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PeerId, Arc<AdmittedPeer>>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmittedPeer {
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }
}

impl Credentials {
    fn new(pki: Pki) -> Credentials {
        Credentials {
            server: pki.server_config(&[ALPN]),
            client: pki.client_config(&[ALPN]),
            pki: Arc::new(pki),
        }
    }
}
