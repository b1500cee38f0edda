//! Who may talk to this node: the certificates in force, and those of the peers that were let in.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use hypha_pki::{Certificate, Pki, Rejected};
use libp2p::PeerId;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

/// The application protocol inside TLS: a client of something else is turned away before it says a word.
const ALPN: &[u8] = b"hypha/1";

/// The most peers whose certificates are remembered. Those of closed connections are forgotten within a
/// minute, so this is reached only by floods of handshakes that never become connections.
const MAX_MET: usize = 8_192;

/// How often a chain that was accepted is looked at again, since certificates expire.
pub(crate) const RECHECK_EVERY: Duration = Duration::from_secs(60);

/// A peer met this recently may be about to appear as a connection.
const HANDSHAKE_IS_RECENT: Duration = Duration::from_secs(60);

/// What is in force, and whom it let in.
pub(crate) struct Gatekeeper {
    current: ArcSwap<Current>,
    renewals: watch::Sender<u64>,
    met: Mutex<HashMap<PeerId, Arc<Met>>>,
}

/// One set of certificate files, ready for handshakes.
pub(crate) struct Current {
    pub(crate) pki: Arc<Pki>,
    pub(crate) server: Arc<rustls::ServerConfig>,
    pub(crate) client: Arc<rustls::ClientConfig>,
}

/// A peer that showed a certificate which was accepted.
pub(crate) struct Met {
    pub(crate) certificate: Certificate,
    chain: Vec<CertificateDer<'static>>,
    at: Instant,
}

impl Gatekeeper {
    pub(crate) fn new(pki: Pki) -> Gatekeeper {
        Gatekeeper {
            current: ArcSwap::from_pointee(Current::new(pki)),
            renewals: watch::Sender::new(0),
            met: Mutex::new(HashMap::new()),
        }
    }

    pub(crate) fn current(&self) -> Arc<Current> {
        self.current.load_full()
    }

    /// Takes new certificates and revocation lists into use for everything that comes.
    pub(crate) fn renew(&self, pki: Pki) {
        self.current.store(Arc::new(Current::new(pki)));
        self.renewals.send_modify(|count| *count += 1);
    }

    /// Decides on a chain without taking note of it: for connections beside the swarm.
    pub(crate) fn judge(&self, chain: &[CertificateDer<'_>]) -> Result<PeerId, Rejected> {
        match chain.is_empty() {
            true => Err(Rejected::NoCertificate),
            false => Ok(self.current().pki.verify(chain, SystemTime::now())?.peer_id),
        }
    }

    /// Returns when a chain that was accepted no longer is.
    pub(crate) async fn until_unwelcome(&self, chain: &[CertificateDer<'_>]) -> Rejected {
        let mut renewals = self.renewals.subscribe();
        loop {
            if let Err(rejected) = self.judge(chain) {
                return rejected;
            }
            // Besides renewals, time passes: a certificate may expire.
            let _ = tokio::time::timeout(RECHECK_EVERY, renewals.changed()).await;
        }
    }

    /// Decides on the other end of a finished handshake, and remembers it if it may stay.
    pub(crate) fn admit(
        &self,
        chain: Option<&[CertificateDer<'static>]>,
    ) -> Result<PeerId, Rejected> {
        let chain = chain.ok_or(Rejected::NoCertificate)?;
        let certificate = self.current().pki.verify(chain, SystemTime::now())?;
        let peer = certificate.peer_id;
        let mut met = self.lock();
        if met.len() >= MAX_MET && !met.contains_key(&peer) {
            // Whoever is dropped here and still connected is simply looked up as unknown and disconnected.
            let any = met.keys().next().copied();
            any.map(|peer| met.remove(&peer));
        }
        met.insert(peer, Arc::new(Met { certificate, chain: chain.to_vec(), at: Instant::now() }));
        Ok(peer)
    }

    /// What is known of a peer that was let in.
    pub(crate) fn met(&self, peer: &PeerId) -> Option<Arc<Met>> {
        self.lock().get(peer).cloned()
    }

    /// Forgets those who are not connected and whose handshake is long over.
    pub(crate) fn sweep(&self, connected: impl Fn(&PeerId) -> bool) {
        self.lock().retain(|peer, met| connected(peer) || met.at.elapsed() < HANDSHAKE_IS_RECENT);
    }

    /// Those who were let in and would not be now: revoked, expired, or of a CA that is no longer trusted.
    pub(crate) fn no_longer_welcome(&self) -> Vec<(PeerId, Rejected)> {
        let (current, now) = (self.current(), SystemTime::now());
        let met: Vec<_> = self.lock().iter().map(|(peer, met)| (*peer, met.clone())).collect();
        met.into_iter()
            .filter_map(|(peer, met)| {
                current.pki.verify(&met.chain, now).err().map(|rejected| (peer, rejected))
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PeerId, Arc<Met>>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Met {
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }
}

impl Current {
    fn new(pki: Pki) -> Current {
        Current {
            server: pki.server_config(&[ALPN]),
            client: pki.client_config(&[ALPN]),
            pki: Arc::new(pki),
        }
    }
}
