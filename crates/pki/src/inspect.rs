//! The contents of PEM text, for people: `hypha certutil show`.

use rustls::pki_types::pem::{PemObject, SectionKind};
use thiserror::Error;

use crate::Certificate;
pub use crate::parsed::ParsedCertificate;
pub use crate::revocation::{ParsedCrl, RevokedSerial};

/// One section of PEM text.
#[derive(Clone, Debug)]
pub enum PemItem {
    /// A certificate, of a node or of an authority.
    Certificate(Box<ParsedCertificate>),
    /// A revocation list.
    Crl(ParsedCrl),
    /// A private key, of which nothing is shown.
    PrivateKey,
}

/// Why text cannot be shown.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InspectError {
    /// No PEM section in it.
    #[error("there is no certificate and no revocation list in it")]
    Empty,
    /// Not PEM, or cut off.
    #[error("it is not PEM text: {0}")]
    NotPem(String),
    /// A section that does not match its label.
    #[error("section {section} cannot be read: {reason}")]
    Unreadable {
        /// Counted from 1.
        section: usize,
        /// What is wrong.
        reason: String,
    },
}

/// Parses every certificate and revocation list in `pem`. Nothing is verified.
pub fn inspect(pem: &[u8]) -> Result<Vec<PemItem>, InspectError> {
    let mut items = Vec::new();
    for (index, section) in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem).enumerate() {
        let (kind, der) = section.map_err(|error| InspectError::NotPem(error.to_string()))?;
        let unreadable = |reason| InspectError::Unreadable { section: index + 1, reason };
        match kind {
            SectionKind::Certificate => {
                items.push(PemItem::Certificate(Box::new(
                    ParsedCertificate::parse(&der).map_err(unreadable)?,
                )));
            }
            SectionKind::Crl => {
                items.push(PemItem::Crl(ParsedCrl::parse(&der).map_err(unreadable)?))
            }
            SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                items.push(PemItem::PrivateKey);
            }
            _ => {}
        }
    }
    if items.is_empty() { Err(InspectError::Empty) } else { Ok(items) }
}

impl ParsedCertificate {
    /// Why our rules reject it as a node's certificate; `None` if they accept it.
    pub fn rejection(&self) -> Option<crate::CertificateRejection> {
        Certificate::from_parsed(self.clone()).err()
    }
}
