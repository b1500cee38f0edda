//! Certificate authorities: the root, and one for each organisation.

use std::time::SystemTime;

use data_encoding::HEXLOWER;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyUsagePurpose,
    PublicKeyData, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

use super::{IssueError, Validity};
use crate::key::Key;
use crate::parsed::ParsedCertificate;
use crate::{check_organisation, date, pem};

/// A certificate authority: its certificate and its key.
pub struct Authority {
    certificate: CertificateDer<'static>,
    parsed: ParsedCertificate,
    organisation: String,
    key: Key,
}

/// Creates the root of an operator's network. It issues authorities for organisations.
pub fn root(organisation: &str, validity: Validity) -> Result<Authority, IssueError> {
    check_organisation(organisation)?;
    let key = Key::generate();
    // Room for one more authority below it.
    let parameters = parameters(organisation, "root CA", &key, 1, validity);
    let certificate = parameters.self_signed(&key)?;
    Authority::new(certificate.into(), key)
}

/// Creates the authority of an organisation. It issues certificates for nodes.
pub fn organisation(
    root: &Authority,
    organisation: &str,
    validity: Validity,
) -> Result<Authority, IssueError> {
    check_organisation(organisation)?;
    if !root.is_root() {
        return Err(IssueError::NotRoot);
    }
    let key = Key::generate();
    let parameters = parameters(organisation, "CA", &key, 0, root.clamp_validity(validity)?);
    let certificate = parameters.signed_by(&key, &root.issuer()?)?;
    Authority::new(certificate.into(), key)
}

impl Authority {
    /// From its two files.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Authority, IssueError> {
        let bad = |reason: String| IssueError::BadAuthority(reason);
        let certificate = CertificateDer::from_pem_slice(cert_pem.as_bytes())
            .map_err(|error| bad(format!("it is not PEM text with a certificate: {error}")))?;
        let key = Key::from_pem(key_pem.as_bytes()).ok_or(IssueError::BadKey)?;
        Authority::new(certificate, key)
    }

    fn new(certificate: CertificateDer<'static>, key: Key) -> Result<Authority, IssueError> {
        let parsed = ParsedCertificate::parse(&certificate).map_err(IssueError::BadAuthority)?;
        if !parsed.authority {
            let what = format!("`{}` may not issue certificates", parsed.subject.escape_debug());
            return Err(IssueError::BadAuthority(what));
        }
        if parsed.public_key != Some(key.public().into()) {
            return Err(IssueError::KeyMismatch);
        }
        let [organisation] = parsed.organisations.as_slice() else {
            return Err(IssueError::BadAuthority("it does not name one organisation".to_owned()));
        };
        Ok(Authority { organisation: organisation.clone(), certificate, parsed, key })
    }

    /// Its organisation.
    pub fn organisation(&self) -> &str {
        &self.organisation
    }

    /// Whether it is a root, which is trusted directly.
    pub fn is_root(&self) -> bool {
        self.parsed.self_issued
    }

    /// Its certificate.
    pub fn cert_pem(&self) -> String {
        pem::encode("CERTIFICATE", &self.certificate).to_string()
    }

    /// Its private key.
    pub fn key_pem(&self) -> Zeroizing<String> {
        self.key.to_pem()
    }

    pub(super) fn issuer(&self) -> Result<Issuer<'static, &Key>, IssueError> {
        Ok(Issuer::from_ca_cert_der(&self.certificate, &self.key)?)
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// A certificate is invalid once its issuer has expired: its own dates should show that.
    pub(super) fn clamp_validity(&self, validity: Validity) -> Result<Validity, IssueError> {
        let not_after = validity.not_after.min(self.parsed.not_after);
        if validity.not_before >= not_after || validity.not_after < self.parsed.not_before {
            return Err(IssueError::AuthorityNotValid {
                from: date::format_utc(self.parsed.not_before),
                until: date::format_utc(self.parsed.not_after),
            });
        }
        Ok(Validity { not_after, ..validity })
    }
}

fn parameters(
    organisation: &str,
    kind: &str,
    key: &Key,
    authorities_below: u8,
    validity: Validity,
) -> CertificateParams {
    // The key is part of the name: lists are looked up by their issuer's name, so a second authority of the
    // same organisation must not be mistaken for the first.
    let mark = HEXLOWER.encode(key.der_bytes().get(..4).unwrap_or_default());
    let mut parameters = base_parameters(validity);
    parameters.distinguished_name =
        distinguished_name(organisation, &format!("{organisation} {kind} {mark}"));
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(authorities_below));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

/// The order is the usual one, from the larger to the smaller.
pub(super) fn distinguished_name(organisation: &str, common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, organisation);
    name.push(DnType::CommonName, common_name);
    name
}

/// The parameters that all certificates share.
pub(super) fn base_parameters(validity: Validity) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.not_before = whole_seconds(validity.not_before).into();
    parameters.not_after = whole_seconds(validity.not_after).into();
    parameters.serial_number = Some(serial());
    parameters.use_authority_key_identifier_extension = true;
    parameters
}

/// Certificates have whole seconds only; rounding here keeps issued and parsed times equal.
pub(super) fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    date::from_seconds(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Random, so that a renewed certificate has another serial than the earlier one with the same key. The
/// first bits make it positive and always of the same length.
fn serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::random();
    bytes[0] = bytes[0] & 0x3f | 0x40;
    SerialNumber::from_slice(&bytes)
}
