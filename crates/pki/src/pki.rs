//! A node's identity and the authorities it trusts: loaded once, immutable, shared.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use libp2p_identity::{Keypair, PublicKey};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use webpki::{
    CertRevocationList, EndEntityCert, KeyUsage, OwnedCertRevocationList, RevocationOptionsBuilder,
    UnknownStatusPolicy,
};

use crate::certificate::{Certificate, SHARED_NAME};
use crate::key::Key;
use crate::material::{CertificateFiles, LoadError, Material, PemSource};
use crate::parsed::ParsedCertificate;
use crate::revocation::ParsedCrl;
use crate::signature::SigningKey;
use crate::tls::{self, Trust};
use crate::{CertificateRejection, date, signature};

/// The most certificates in a chain: a node, its organisation, a root, and one to spare for an
/// operator who adds an intermediate authority.
const MAX_CHAIN_CERTIFICATES: usize = 4;

/// The largest certificate. Ours have about 500 bytes; this leaves room for hundreds of names.
const MAX_CERTIFICATE_BYTES: usize = 16 << 10;

/// A node's certificate and key, and the authorities it trusts.
pub struct Pki {
    own: Certificate,
    chain: Vec<CertificateDer<'static>>,
    key: Key,
    keypair: Keypair,
    roots: Arc<RootCertStore>,
    crls: Vec<CertRevocationList<'static>>,
    /// The same lists as they are encoded.
    crl_ders: Vec<CertificateRevocationListDer<'static>>,
    /// Certificates of authorities beside the lists.
    authorities: Vec<CertificateDer<'static>>,
    root_certificates: Vec<CertificateDer<'static>>,
    require_crl: bool,
    server: ServerConfig,
    client: ClientConfig,
}

impl Pki {
    /// Loads the files and checks that peers will accept the certificate.
    pub fn load(files: &CertificateFiles) -> Result<Pki, LoadError> {
        warn_if_key_is_readable(files);
        Pki::from_material(&Material::read(files)?, SystemTime::now())
    }

    /// The same, from files that were read at `now`.
    pub fn from_material(material: &Material, now: SystemTime) -> Result<Pki, LoadError> {
        let key = material.key.private_key()?;
        let chain = read_chain(&material.cert)?;
        let trust = Trust {
            roots: Arc::new(read_roots(&material.trust, now)?),
            crls: newest_crls(material)?,
            require_crl: material.require_crl,
        };
        // The stock verifiers do not check revocation at all without a list.
        if trust.require_crl && trust.crls.is_empty() {
            return Err(LoadError::NoRevocationList);
        }
        let parsed = chain.first().map(|leaf| ParsedCertificate::parse(leaf)).transpose();
        let parsed = parsed.map_err(|reason| material.cert.malformed(reason))?;
        let Some(parsed) = parsed else {
            return Err(LoadError::NoCertificate { name: material.cert.name.clone() });
        };
        if parsed.public_key != Some(PublicKey::from(key.public())) {
            return Err(LoadError::KeyMismatch {
                key: material.key.name.clone(),
                cert: material.cert.name.clone(),
            });
        }
        let crls = parse_crls(&trust.crls, material)?;
        let own = verify_path(&chain, now, &trust.roots, &crls, trust.require_crl)
            .map_err(|reason| own_certificate_error(&material.cert, &parsed, reason, now))?;
        Ok(Pki {
            own,
            server: tls::server_config(&trust, &chain, &key)?,
            client: tls::client_config(&trust, &chain, &key)?,
            chain,
            keypair: Keypair::from(key.pair().clone()),
            key,
            roots: trust.roots,
            crls,
            crl_ders: trust.crls,
            authorities: sections_of(material.crl_sources())?,
            root_certificates: material.trust.sections()?,
            require_crl: trust.require_crl,
        })
    }

    /// This node's certificate.
    pub fn own(&self) -> &Certificate {
        &self.own
    }

    /// This node's certificate and those of its issuers, without the root.
    pub fn own_chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The certificate's key as libp2p uses it.
    pub fn keypair(&self) -> &Keypair {
        &self.keypair
    }

    /// For incoming connections. TLS 1.3, a client certificate is mandatory, every connection is
    /// verified again. Call [`Pki::verify`] before the peer is admitted.
    pub fn server_config(&self, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        let mut config = self.server.clone();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }

    /// For outgoing connections, under [`Pki::server_name`]. Call [`Pki::verify`] before the
    /// peer is admitted.
    pub fn client_config(&self, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        let mut config = self.client.clone();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }

    /// The name that every node's certificate carries.
    pub fn server_name() -> ServerName<'static> {
        // The name is a constant that a test parses; no certificate is valid for the fallback, so a bad
        // constant would refuse every peer.
        let fallback = ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into());
        ServerName::try_from(SHARED_NAME).unwrap_or(fallback)
    }

    /// Verifies that `chain`, leaf first, is that of a node of this network at `now`, and returns its certificate.
    ///
    /// The bytes may be untrusted: a chain that is too long is refused unparsed, and only the path
    /// decides whether a certificate is examined any further.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<Certificate, CertificateRejection> {
        verify_path(chain, now, &self.roots, &self.crls, self.require_crl)
    }

    pub(crate) fn crl_ders(&self) -> &[CertificateRevocationListDer<'static>] {
        &self.crl_ders
    }

    pub(crate) fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    pub(crate) fn root_certificates(&self) -> &[CertificateDer<'static>] {
        &self.root_certificates
    }

    /// The certificate's key, for signatures that outlive the certificate.
    pub fn signing_key(&self) -> SigningKey {
        SigningKey::new(self.key.pair().clone())
    }

    /// Signs `payload` with the certificate's key, for the one purpose that `context` names.
    pub fn sign(&self, context: &'static str, payload: &[u8]) -> Vec<u8> {
        signature::sign(self.key.pair(), context, payload)
    }
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").field("own", &self.own).finish_non_exhaustive()
    }
}

/// webpki builds the path and checks it against the lists; then our rules apply.
fn verify_path(
    chain: &[CertificateDer<'_>],
    now: SystemTime,
    roots: &RootCertStore,
    crls: &[CertRevocationList<'_>],
    require_crl: bool,
) -> Result<Certificate, CertificateRejection> {
    let Some((leaf, issuers)) = chain.split_first() else {
        return Err(CertificateRejection::NoCertificate);
    };
    if chain.len() > MAX_CHAIN_CERTIFICATES {
        return Err(CertificateRejection::TooLong("more certificates than a chain can have"));
    }
    if chain.iter().any(|certificate| certificate.len() > MAX_CERTIFICATE_BYTES) {
        return Err(CertificateRejection::TooLong("a certificate has too many bytes"));
    }
    let now = now.duration_since(UNIX_EPOCH).map_err(|_| CertificateRejection::NotYetValid)?;
    let crls: Vec<_> = crls.iter().collect();
    let policy = if require_crl { UnknownStatusPolicy::Deny } else { UnknownStatusPolicy::Allow };
    let revocation = RevocationOptionsBuilder::new(&crls).ok();
    EndEntityCert::try_from(leaf)?.verify_for_usage(
        tls::ALGORITHMS.all,
        &roots.roots,
        issuers,
        UnixTime::since_unix_epoch(now),
        KeyUsage::client_auth(),
        revocation.map(|options| options.with_status_policy(policy).build()),
        None,
    )?;
    Certificate::from_parsed(
        ParsedCertificate::parse(leaf).map_err(CertificateRejection::Unreadable)?,
    )
}

/// The chain to present. A root in it is useless to peers, which trust it or do not.
fn read_chain(source: &PemSource) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let mut chain: Vec<CertificateDer<'static>> = source.sections()?;
    let mut index = 0;
    let mut malformed = None;
    chain.retain(|der| {
        index += 1;
        match ParsedCertificate::parse(der) {
            Ok(parsed) => index == 1 || !parsed.self_issued,
            Err(reason) => {
                malformed.get_or_insert(format!("certificate {index}: {reason}"));
                true
            }
        }
    });
    match malformed {
        Some(reason) => Err(source.malformed(reason)),
        None => Ok(chain),
    }
}

fn read_roots(source: &PemSource, now: SystemTime) -> Result<RootCertStore, LoadError> {
    let mut roots = RootCertStore::empty();
    for der in source.sections::<CertificateDer<'static>>()? {
        let parsed = ParsedCertificate::parse(&der).map_err(|reason| source.malformed(reason))?;
        if !parsed.authority {
            let (name, subject) = (source.name.clone(), parsed.subject);
            return Err(LoadError::TrustNotAuthority { name, subject });
        }
        // Path building accepts a root regardless of its dates.
        if parsed.not_after < now {
            tracing::warn!(
                file = source.name,
                root = parsed.subject,
                "a trusted root has expired; it is still trusted until it is taken out of the file"
            );
        }
        roots.add(der).map_err(|error| source.malformed(error))?;
    }
    if roots.is_empty() {
        return Err(LoadError::NoCertificate { name: source.name.clone() });
    }
    Ok(roots)
}

/// The newest list of each authority: the verifiers would use the first that they find.
fn newest_crls(
    material: &Material,
) -> Result<Vec<CertificateRevocationListDer<'static>>, LoadError> {
    let mut newest: Vec<(ParsedCrl, CertificateRevocationListDer<'static>)> = Vec::new();
    for source in material.crl_sources() {
        for der in source.sections::<CertificateRevocationListDer<'static>>()? {
            let parsed = ParsedCrl::parse(&der).map_err(|reason| source.malformed(reason))?;
            match newest.iter_mut().find(|(other, _)| other.issuer_der == parsed.issuer_der) {
                Some(other) if other.0.number < parsed.number => *other = (parsed, der),
                Some(_) => {}
                None => newest.push((parsed, der)),
            }
        }
    }
    Ok(newest.into_iter().map(|(_, der)| der).collect())
}

fn sections_of<'a>(
    sources: impl Iterator<Item = &'a PemSource>,
) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let sections: Result<Vec<Vec<_>>, _> = sources.map(PemSource::sections).collect();
    Ok(sections?.concat())
}

fn parse_crls(
    crls: &[CertificateRevocationListDer<'static>],
    material: &Material,
) -> Result<Vec<CertRevocationList<'static>>, LoadError> {
    let source = material.crls.as_ref().unwrap_or(&material.trust);
    let parse = |der: &CertificateRevocationListDer<'static>| {
        let list = OwnedCertRevocationList::from_der(der);
        list.map(CertRevocationList::from).map_err(|error| source.malformed(error))
    };
    crls.iter().map(parse).collect()
}

fn own_certificate_error(
    cert: &PemSource,
    parsed: &ParsedCertificate,
    reason: CertificateRejection,
    now: SystemTime,
) -> LoadError {
    let name = cert.name.clone();
    if reason == CertificateRejection::Expired && parsed.not_after < now {
        return LoadError::OwnExpired { name, at: date::format_utc(parsed.not_after) };
    }
    LoadError::Own { name, reason }
}

#[cfg(unix)]
pub(crate) fn warn_if_key_is_readable(files: &CertificateFiles) {
    use std::os::unix::fs::PermissionsExt;
    const GROUP_AND_OTHERS: u32 = 0o077;
    let Ok(metadata) = std::fs::metadata(&files.key_pem) else { return };
    if metadata.permissions().mode() & GROUP_AND_OTHERS != 0 {
        let file = files.key_pem.display();
        tracing::warn!("others can read the private key: run `chmod 600 {file}`");
    }
}

#[cfg(not(unix))]
pub(crate) fn warn_if_key_is_readable(_: &CertificateFiles) {}
