//! What PEM text holds, for people: `hypha certutil show`.

use rustls::pki_types::pem::{PemObject, SectionKind};
use thiserror::Error;

use crate::Certificate;
pub use crate::facts::Facts;
pub use crate::revocation::{CrlFacts, RevokedSerial};

/// One section of PEM text.
#[derive(Clone, Debug)]
pub enum Item {
    /// A certificate, of a node or of an authority.
    Certificate(Box<Facts>),
    /// A revocation list.
    Crl(CrlFacts),
    /// A private key, of which nothing is said.
    PrivateKey,
}

/// Text that holds nothing to show.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InspectError {
    /// No PEM section in it.
    #[error("there is no certificate and no revocation list in it")]
    Nothing,
    /// Not PEM, or cut off.
    #[error("it is not PEM text: {0}")]
    NotPem(String),
    /// A section that is not what its label says.
    #[error("section {section} cannot be read: {reason}")]
    Unreadable {
        /// Counted from 1.
        section: usize,
        /// What is wrong.
        reason: String,
    },
}

/// Reads every certificate and revocation list in `pem`. Nothing is verified.
pub fn inspect(pem: &[u8]) -> Result<Vec<Item>, InspectError> {
    let mut items = Vec::new();
    for (index, section) in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem).enumerate() {
        let (kind, der) = section.map_err(|error| InspectError::NotPem(error.to_string()))?;
        let unreadable = |reason| InspectError::Unreadable { section: index + 1, reason };
        match kind {
            SectionKind::Certificate => {
                items.push(Item::Certificate(Box::new(Facts::parse(&der).map_err(unreadable)?)));
            }
            SectionKind::Crl => items.push(Item::Crl(CrlFacts::parse(&der).map_err(unreadable)?)),
            SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                items.push(Item::PrivateKey);
            }
            _ => {}
        }
    }
    if items.is_empty() { Err(InspectError::Nothing) } else { Ok(items) }
}

impl Facts {
    /// What our rules object to in a node's certificate; `None` for a good one.
    pub fn objection(&self) -> Option<crate::Rejected> {
        Certificate::from_facts(self.clone()).err()
    }
}
