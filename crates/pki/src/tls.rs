//! rustls configurations: TLS 1.3, certificates on both sides, one crypto provider.

use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};

use crate::key::Key;

/// The authorities that a node trusts.
pub(crate) struct Trust {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) crls: Vec<CertificateRevocationListDer<'static>>,
    pub(crate) require_crl: bool,
}

/// The only accepted signatures, in certificates as in handshakes.
pub(crate) static ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ED25519],
    mapping: &[(SignatureScheme::ED25519, &[webpki::ring::ED25519])],
};

pub(crate) fn server_config(
    trust: &Trust,
    chain: &[CertificateDer<'static>],
    key: &Key,
) -> Result<ServerConfig, rustls::Error> {
    let provider = provider();
    let mut verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&trust.roots), provider.clone())
            .with_crls(trust.crls.iter().cloned());
    if !trust.require_crl {
        verifier = verifier.allow_unknown_revocation_status();
    }
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier.build().map_err(unusable)?)
        .with_single_cert(chain.to_vec(), key.for_tls())?;
    // A resumed session is not verified again: a peer that was revoked meanwhile would be admitted.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

pub(crate) fn client_config(
    trust: &Trust,
    chain: &[CertificateDer<'static>],
    key: &Key,
) -> Result<ClientConfig, rustls::Error> {
    let provider = provider();
    let mut verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::clone(&trust.roots), provider.clone())
            .with_crls(trust.crls.iter().cloned());
    if !trust.require_crl {
        verifier = verifier.allow_unknown_revocation_status();
    }
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_webpki_verifier(verifier.build().map_err(unusable)?)
        .with_client_auth_cert(chain.to_vec(), key.for_tls())?;
    config.resumption = Resumption::disabled();
    // The name is the same for all nodes, and sent in the clear: no server needs it.
    config.enable_sni = false;
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        signature_verification_algorithms: ALGORITHMS,
        ..ring::default_provider()
    })
}

fn unusable(error: VerifierBuilderError) -> rustls::Error {
    rustls::Error::General(error.to_string())
}
