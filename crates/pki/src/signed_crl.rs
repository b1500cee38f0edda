//! Revocation lists as nodes pass them on: each with the authority that signed it, so that any node can verify
//! it by the roots that it trusts.

use std::time::SystemTime;

use libp2p_identity::ed25519;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use thiserror::Error;
use webpki::{EndEntityCert, OwnedCertRevocationList};
use x509_parser::asn1_rs::BitString;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::Pki;
use crate::parsed::ParsedCertificate;
use crate::pem;
use crate::revocation::ParsedCrl;

/// The largest list that is passed on: some 25,000 certificates of ours.
pub const MAX_SIGNED_CRL_BYTES: usize = 1 << 20;

/// A revocation list, and the certificate of the authority that signed it unless that is a root.
///
/// As bytes it is both in DER, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedCrl {
    crl: Vec<u8>,
    authority: Option<Vec<u8>>,
    issuer_der: Vec<u8>,
    number: u64,
}

/// Why a list that another node sent is not used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CrlRejection {
    /// Larger than any list that is passed on.
    #[error("it has {0} bytes, at most {MAX_SIGNED_CRL_BYTES} are accepted")]
    TooLarge(usize),
    /// Not a list, or not one that can be used.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// Its authority is neither a trusted root nor issued by one.
    #[error("its authority was not issued by a root that is trusted here")]
    UnknownAuthority,
    /// Not signed by the authority whose name it bears.
    #[error("it is not signed by its authority")]
    BadSignature,
    /// The node has this edition, or a newer one.
    #[error("number {number} is not newer than number {held}, which this node has")]
    NotNewer {
        /// Its number.
        number: u64,
        /// The number of the list that the node has.
        held: u64,
    },
}

impl SignedCrl {
    /// Parses bytes from another node; nothing is verified.
    pub fn from_bytes(bytes: &[u8]) -> Result<SignedCrl, CrlRejection> {
        if bytes.len() > MAX_SIGNED_CRL_BYTES {
            return Err(CrlRejection::TooLarge(bytes.len()));
        }
        let unreadable = |error: String| CrlRejection::Unreadable(error);
        let (rest, _) = CertificateRevocationList::from_der(bytes)
            .map_err(|error| unreadable(error.to_string()))?;
        let crl = bytes.get(..bytes.len() - rest.len()).unwrap_or_default();
        let authority = (!rest.is_empty()).then(|| rest.to_vec());
        SignedCrl::new(crl, authority).map_err(unreadable)
    }

    pub(crate) fn new(crl: &[u8], authority: Option<Vec<u8>>) -> Result<SignedCrl, String> {
        let ParsedCrl { issuer_der, number, .. } = ParsedCrl::parse(crl)?;
        Ok(SignedCrl { crl: crl.to_vec(), authority, issuer_der, number })
    }

    /// The bytes to send.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.crl.as_slice(), self.authority.as_deref().unwrap_or_default()].concat()
    }

    /// The name of its authority, encoded.
    pub fn issuer_name(&self) -> &[u8] {
        &self.issuer_der
    }

    /// Grows with each edition.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn to_pem(&self) -> String {
        let authority = self.authority.as_ref().map(|der| pem::encode("CERTIFICATE", der));
        let authority = authority.as_ref().map_or("", |text| text.as_str());
        format!("{}{authority}", pem::encode("X509 CRL", &self.crl).as_str())
    }
}

impl Pki {
    /// The revocation lists in use whose authorities are known: roots, those of this node's own chain, those
    /// whose certificates are beside the lists, and `seen`.
    pub fn signed_crls(&self, seen: &[CertificateDer<'_>]) -> Vec<SignedCrl> {
        let own = self.own_chain().iter().skip(1).chain(self.authorities());
        let known: Vec<&CertificateDer<'_>> = own.chain(seen).collect();
        let with_authority = |crl: &CertificateRevocationListDer<'static>| {
            let is_of_root = self.root_certificates().iter().any(|root| signs(root, crl));
            let authority = known.iter().find(|authority| signs(authority, crl));
            let authority = (!is_of_root).then(|| authority.map(|found| found.to_vec()));
            // The authority is unknown.
            if authority == Some(None) {
                return None;
            }
            SignedCrl::new(crl, authority.flatten()).ok()
        };
        let all = self.crl_ders().iter().filter_map(with_authority);
        all.filter(|list| list.to_bytes().len() <= MAX_SIGNED_CRL_BYTES).collect()
    }

    /// Verifies a list that another node sent: signed by an authority under a trusted root, and newer than the
    /// list of that authority that this node uses.
    ///
    /// The authority is a root or was issued by one, and by nothing in between: an authority that an organisation
    /// certified could bear the name of another organisation's.
    pub fn verify_crl(&self, list: &SignedCrl, now: SystemTime) -> Result<(), CrlRejection> {
        let roots = self.root_certificates();
        let authority = match &list.authority {
            Some(authority) => {
                let trusted = roots.iter().any(|root| issued(root, authority, now));
                trusted.then_some(authority.as_slice()).ok_or(CrlRejection::UnknownAuthority)?
            }
            None => roots
                .iter()
                .find(|root| signs(root, &list.crl))
                .ok_or(CrlRejection::UnknownAuthority)?,
        };
        if !signs(authority, &list.crl) {
            return Err(CrlRejection::BadSignature);
        }
        OwnedCertRevocationList::from_der(&list.crl)
            .map_err(|error| CrlRejection::Unreadable(error.to_string()))?;
        let mut in_use = self.crl_numbers();
        match in_use.find(|(name, number)| *name == list.issuer_der && *number >= list.number) {
            Some((_, held)) => Err(CrlRejection::NotNewer { number: list.number, held }),
            None => Ok(()),
        }
    }

    /// The lists in use: the encoded name of each authority, and the number of its list.
    pub fn crl_numbers(&self) -> impl Iterator<Item = (Vec<u8>, u64)> {
        let parsed = self.crl_ders().iter().filter_map(|der| ParsedCrl::parse(der).ok());
        parsed.map(|list| (list.issuer_der, list.number))
    }
}

/// Whether `root` issued `authority`, which is valid `now` and may issue certificates.
fn issued(root: &[u8], authority: &[u8], now: SystemTime) -> bool {
    let (Ok((_, root)), Ok((rest, certificate))) =
        (X509Certificate::from_der(root), X509Certificate::from_der(authority))
    else {
        return false;
    };
    let valid = ParsedCertificate::of(&certificate).is_ok_and(|parsed| {
        parsed.authority && (parsed.not_before..=parsed.not_after).contains(&now)
    });
    let (message, signature) = (certificate.tbs_certificate.as_ref(), &certificate.signature_value);
    rest.is_empty()
        && valid
        // Strict about what is not signed, too.
        && EndEntityCert::try_from(&CertificateDer::from(authority)).is_ok()
        && certificate.issuer().as_raw() == root.subject().as_raw()
        && key(&root).is_some_and(|key| verifies(&key, message, signature))
}

/// Whether `crl` is a list in the name of `authority` and with its signature.
pub(crate) fn signs(authority: &[u8], crl: &[u8]) -> bool {
    let (Ok((_, authority)), Ok((_, crl))) =
        (X509Certificate::from_der(authority), CertificateRevocationList::from_der(crl))
    else {
        return false;
    };
    let (message, signature) = (crl.tbs_cert_list.as_ref(), &crl.signature_value);
    // The outer one is not signed.
    crl.signature_algorithm == crl.tbs_cert_list.signature
        && authority.subject().as_raw() == crl.issuer().as_raw()
        && key(&authority).is_some_and(|key| verifies(&key, message, signature))
}

fn verifies(key: &ed25519::PublicKey, message: &[u8], signature: &BitString<'_>) -> bool {
    signature.unused_bits == 0 && key.verify(message, &signature.data)
}

fn key(certificate: &X509Certificate<'_>) -> Option<ed25519::PublicKey> {
    let info = certificate.public_key();
    let is_ours = info.algorithm.algorithm == OID_SIG_ED25519;
    is_ours.then(|| ed25519::PublicKey::try_from_bytes(&info.subject_public_key.data).ok())?
}
