//! Certificates for nodes.

use std::net::IpAddr;

use hypha_model::NodeRole;
use rcgen::string::Ia5String;
use rcgen::{ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType};
use rustls::pki_types::DnsName;
use zeroize::Zeroizing;

use super::{Authority, IssueError, Validity, authority};
use crate::certificate::{Certificate, ROLE_URI_PREFIX, SHARED_NAME};
use crate::key::Key;
use crate::parsed::ParsedCertificate;
use crate::{check_node_name, pem};

/// The most names that a node can have besides its own: even with the longest names, the certificate
/// stays below the verifier's size limit.
const MAX_NAMES: usize = 32;

/// A node's certificate and key.
pub struct IssuedCertificate {
    /// The certificate, then that of its issuer unless that is a root.
    pub cert_pem: String,
    /// The private key.
    pub key_pem: Zeroizing<String>,
    /// The contents of the certificate.
    pub certificate: Certificate,
}

/// Creates a key, and a certificate for it.
pub fn node(
    authority: &Authority,
    name: &str,
    role: NodeRole,
    names: &[String],
    validity: Validity,
) -> Result<IssuedCertificate, IssueError> {
    issue(authority, Key::generate(), name, role, names, validity)
}

/// Creates a new certificate for an existing key: the peer id stays, so a running node reloads it.
pub fn renew(
    authority: &Authority,
    key_pem: &str,
    name: &str,
    role: NodeRole,
    names: &[String],
    validity: Validity,
) -> Result<IssuedCertificate, IssueError> {
    let key = Key::from_pem(key_pem.as_bytes()).ok_or(IssueError::BadKey)?;
    issue(authority, key, name, role, names, validity)
}

fn issue(
    authority: &Authority,
    key: Key,
    name: &str,
    role: NodeRole,
    names: &[String],
    validity: Validity,
) -> Result<IssuedCertificate, IssueError> {
    check_node_name(name)?;
    if names.len() > MAX_NAMES {
        return Err(IssueError::TooManyNames(MAX_NAMES));
    }
    let mut parameters = authority::base_parameters(authority.clamp_validity(validity)?);
    parameters.distinguished_name = authority::distinguished_name(authority.organisation(), name);
    parameters.is_ca = IsCa::ExplicitNoCa;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    parameters.subject_alt_names = alternative_names(name, role, names)?;
    let certificate = parameters.signed_by(&key, &authority.issuer()?)?;

    let parsed = ParsedCertificate::parse(certificate.der()).map_err(IssueError::BadCertificate)?;
    let mut cert_pem = pem::encode("CERTIFICATE", certificate.der()).to_string();
    if !authority.is_root() {
        cert_pem.push_str(&authority.cert_pem());
    }
    Ok(IssuedCertificate {
        cert_pem,
        key_pem: key.to_pem(),
        certificate: Certificate::from_parsed(parsed)
            .map_err(|reason| IssueError::BadCertificate(reason.to_string()))?,
    })
}

fn alternative_names(
    name: &str,
    role: NodeRole,
    names: &[String],
) -> Result<Vec<SanType>, IssueError> {
    let mut all = vec![
        SanType::DnsName(Ia5String::try_from(SHARED_NAME)?),
        SanType::DnsName(Ia5String::try_from(name)?),
    ];
    for name in names {
        let name = alternative_name(name)?;
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all.push(SanType::URI(Ia5String::try_from(format!("{ROLE_URI_PREFIX}{role}"))?));
    Ok(all)
}

fn alternative_name(text: &str) -> Result<SanType, IssueError> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    if DnsName::try_from(text).is_err() {
        return Err(IssueError::AlternativeName(text.chars().take(80).collect()));
    }
    Ok(SanType::DnsName(Ia5String::try_from(text)?))
}
