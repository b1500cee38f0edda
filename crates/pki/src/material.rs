//! The PEM text of a node's identity and trust, and its errors.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::CertificateRejection;
use crate::key::Key;
use crate::learned::{self, LearnedCrls};

/// The largest file that is read. A revocation list has some 40 bytes per entry, so this is enough
/// for more than a million of them; the other files have a few kilobytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Where a node's certificates are; the names are those of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The node's certificate, followed by that of its issuer.
    pub cert_pem: PathBuf,
    /// Its private key.
    pub key_pem: PathBuf,
    /// The roots that are trusted.
    pub trust_pem: PathBuf,
    /// Revocation lists, of any number of authorities.
    pub crls_pem: Option<PathBuf>,
    /// The file of the lists that the node got from others; it need not exist.
    pub learned_crls: Option<PathBuf>,
    /// Whether each authority in a chain, the root included, must have a revocation list here.
    /// Without this, an authority without a list counts as having revoked nothing.
    pub require_crl: bool,
}

/// The contents of these files.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    pub(crate) cert: PemSource,
    pub(crate) key: PemSource,
    pub(crate) trust: PemSource,
    pub(crate) crls: Option<PemSource>,
    /// Lists that the node got from others.
    pub(crate) learned: Option<PemSource>,
    pub(crate) require_crl: bool,
}

/// Text, and its name in messages.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PemSource {
    pub(crate) name: String,
    text: Zeroizing<Vec<u8>>,
}

/// Why certificates cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file that cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Text that is not PEM, or has other contents than expected.
    #[error("{name} cannot be used: {reason}")]
    Malformed {
        /// Which file.
        name: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// A file without a certificate.
    #[error("there is no certificate in {name}")]
    NoCertificate {
        /// Which file.
        name: String,
    },
    /// Not our kind of key, or none.
    #[error("there is no Ed25519 key in PKCS#8 in {name}: make one with `hypha certutil node`")]
    BadKey {
        /// Which file.
        name: String,
    },
    /// Key and certificate are of different nodes.
    #[error("the key in {key} does not belong to the certificate in {cert}")]
    KeyMismatch {
        /// The key's file.
        key: String,
        /// The certificate's file.
        cert: String,
    },
    /// A node's certificate among the roots: it would let that node issue certificates.
    #[error("{name} trusts `{}`, which is not a certificate authority", .subject.escape_debug())]
    TrustNotAuthority {
        /// The file of trusted roots.
        name: String,
        /// The certificate's subject.
        subject: String,
    },
    /// Revocation lists are required, and there is none at all.
    #[error("revocation lists are required, but crls_pem names none")]
    NoRevocationList,
    /// Our own certificate has expired.
    #[error(
        "the certificate in {name} expired at {at}: issue a new one with `hypha certutil node`"
    )]
    OwnExpired {
        /// Which file.
        name: String,
        /// When.
        at: String,
    },
    /// Peers would refuse our own certificate.
    #[error("peers would reject the certificate in {name}: {reason}")]
    Own {
        /// Which file.
        name: String,
        /// The reason.
        reason: CertificateRejection,
    },
    /// The key changed while the node runs.
    #[error(
        "the new certificate in {name} has another key (peer id {new} instead of {old}): restart \
         the node to use it"
    )]
    PeerIdChanged {
        /// Which file.
        name: String,
        /// The node's peer id.
        old: String,
        /// The peer id of the new key.
        new: String,
    },
    /// rustls does not accept it.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

impl Material {
    /// Reads the files.
    pub fn read(files: &CertificateFiles) -> Result<Material, LoadError> {
        Ok(Material {
            cert: PemSource::read(&files.cert_pem)?,
            key: PemSource::read(&files.key_pem)?,
            trust: PemSource::read(&files.trust_pem)?,
            crls: files.crls_pem.as_deref().map(PemSource::read).transpose()?,
            learned: files.learned_crls.as_deref().map(learned::read).transpose()?.flatten(),
            require_crl: files.require_crl,
        })
    }

    pub(crate) fn with_learned(self, learned: &LearnedCrls) -> Material {
        Material { learned: learned.source(), ..self }
    }

    /// The texts that contain revocation lists.
    pub(crate) fn crl_sources(&self) -> impl Iterator<Item = &PemSource> {
        self.crls.iter().chain(&self.learned)
    }

    /// From PEM text that was never in a file.
    pub fn from_pem(cert: &str, key: &str, trust: &str, crls: Option<&str>) -> Material {
        Material {
            cert: PemSource::from_text("cert_pem", cert),
            key: PemSource::from_text("key_pem", key),
            trust: PemSource::from_text("trust_pem", trust),
            crls: crls.map(|crls| PemSource::from_text("crls_pem", crls)),
            learned: None,
            require_crl: false,
        }
    }

    /// With [`CertificateFiles::require_crl`] set as given.
    #[must_use]
    pub fn require_crl(self, require_crl: bool) -> Material {
        Material { require_crl, ..self }
    }
}

impl PemSource {
    pub(crate) fn read(path: &Path) -> Result<PemSource, LoadError> {
        let named = |error| LoadError::Read { path: path.to_owned(), error };
        let mut text = Zeroizing::new(Vec::new());
        let file = File::open(path).map_err(named)?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text).map_err(named)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(named(io::Error::other(format!(
                "it is larger than {MAX_FILE_BYTES} bytes, which no certificate file is"
            ))));
        }
        Ok(PemSource { name: path.display().to_string(), text })
    }

    pub(crate) fn from_text(name: &str, text: &str) -> PemSource {
        PemSource { name: name.to_owned(), text: Zeroizing::new(text.as_bytes().to_vec()) }
    }

    /// Every section of this kind; others are skipped.
    pub(crate) fn sections<T: PemObject>(&self) -> Result<Vec<T>, LoadError> {
        let sections: Result<Vec<T>, _> = T::pem_slice_iter(&self.text).collect();
        sections.map_err(|error| self.malformed(format!("it is not PEM text: {error}")))
    }

    pub(crate) fn private_key(&self) -> Result<Key, LoadError> {
        let name = || self.name.clone();
        Key::from_pem(&self.text).ok_or_else(|| LoadError::BadKey { name: name() })
    }

    pub(crate) fn malformed(&self, reason: impl ToString) -> LoadError {
        LoadError::Malformed { name: self.name.clone(), reason: reason.to_string() }
    }
}
