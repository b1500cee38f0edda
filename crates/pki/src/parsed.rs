//! The contents of an X.509 certificate, before any rule is applied.

use std::net::IpAddr;
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use libp2p_identity::{PeerId, PublicKey, ed25519};
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::certificate::{ROLE_URI_PREFIX, SHARED_NAME};
use crate::date;

/// The contents of a certificate. Nothing of it is verified.
#[derive(Clone, Debug)]
pub struct ParsedCertificate {
    /// Whether it may issue certificates.
    pub authority: bool,
    /// Whether it names itself as its issuer.
    pub self_issued: bool,
    /// The common name.
    pub subject: String,
    /// The common name of its issuer.
    pub issuer: String,
    /// Every organisation that the subject names. A valid certificate has one.
    pub organisations: Vec<String>,
    /// Every organisation in the issuer's name.
    pub issuer_organisations: Vec<String>,
    /// The text after `hypha:role:`. A node has one, an authority none.
    pub roles: Vec<String>,
    /// Host names and addresses, without the name that all nodes share.
    pub names: Vec<String>,
    /// The key, if it is Ed25519.
    pub public_key: Option<PublicKey>,
    /// In hexadecimal.
    pub serial: String,
    /// Valid from.
    pub not_before: SystemTime,
    /// Valid until.
    pub not_after: SystemTime,
}

impl ParsedCertificate {
    /// Parses a certificate.
    pub(crate) fn parse(der: &[u8]) -> Result<ParsedCertificate, String> {
        let (rest, x509) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
        if !rest.is_empty() {
            return Err("there are trailing bytes after the certificate".to_owned());
        }
        ParsedCertificate::of(&x509)
    }

    pub(crate) fn of(x509: &X509Certificate<'_>) -> Result<ParsedCertificate, String> {
        let mut parsed = ParsedCertificate {
            authority: x509.is_ca(),
            self_issued: x509.subject().as_raw() == x509.issuer().as_raw(),
            subject: common_name(x509.subject()),
            issuer: common_name(x509.issuer()),
            organisations: organisations(x509.subject())?,
            issuer_organisations: organisations(x509.issuer())?,
            roles: Vec::new(),
            names: Vec::new(),
            public_key: public_key(x509),
            serial: HEXLOWER.encode(x509.raw_serial()),
            not_before: date::from_seconds(x509.validity().not_before.timestamp()),
            not_after: date::from_seconds(x509.validity().not_after.timestamp()),
        };
        let alternatives = x509.subject_alternative_name().map_err(|error| error.to_string())?;
        for name in alternatives.iter().flat_map(|extension| &extension.value.general_names) {
            parsed.add(name)?;
        }
        Ok(parsed)
    }

    /// The peer id of its key.
    pub fn peer_id(&self) -> Option<PeerId> {
        self.public_key.as_ref().map(PublicKey::to_peer_id)
    }

    fn add(&mut self, name: &GeneralName<'_>) -> Result<(), String> {
        match name {
            GeneralName::DNSName(name) if *name != SHARED_NAME => {
                self.names.push((*name).to_owned());
            }
            GeneralName::IPAddress(octets) => {
                let address = address(octets).ok_or("an address has neither 4 nor 16 bytes")?;
                self.names.push(address.to_string());
            }
            GeneralName::URI(uri) => {
                self.roles.extend(uri.strip_prefix(ROLE_URI_PREFIX).map(str::to_owned));
            }
            _ => {}
        }
        Ok(())
    }
}

/// The common name of a subject or an issuer, or an empty string.
pub(crate) fn common_name(name: &X509Name<'_>) -> String {
    let first = name.iter_common_name().next();
    first.and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned()
}

fn organisations(name: &X509Name<'_>) -> Result<Vec<String>, String> {
    let text = |attribute: &AttributeTypeAndValue<'_>| {
        attribute.as_str().map(str::to_owned).map_err(|error| error.to_string())
    };
    name.iter_organization().map(text).collect()
}

fn public_key(x509: &X509Certificate<'_>) -> Option<PublicKey> {
    let info = x509.public_key();
    if info.algorithm.algorithm != OID_SIG_ED25519 {
        return None;
    }
    let key = ed25519::PublicKey::try_from_bytes(&info.subject_public_key.data).ok()?;
    Some(PublicKey::from(key))
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(octets).map(IpAddr::from).ok();
    four.or_else(|| <[u8; 16]>::try_from(octets).map(IpAddr::from).ok())
}
