//! A node's certificate, and the rules that make it one.

use std::time::SystemTime;

use hypha_model::NodeRole;
use libp2p_identity::{PeerId, PublicKey};

use crate::CertificateRejection;
use crate::parsed::ParsedCertificate;

/// The DNS name that every node's certificate carries besides its own. A dialler verifies this one:
/// it knows a peer by its key, not by the host that it happens to run on, and the stock verifier
/// requires a name.
pub const SHARED_NAME: &str = "node.hypha.internal";

/// The prefix of the role in a certificate's URI.
pub const ROLE_URI_PREFIX: &str = "hypha:role:";

/// The contents of a node's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The node's role.
    pub role: NodeRole,
    /// Its organisation; the same as its issuer's.
    pub organisation: String,
    /// Host names and addresses, without [`SHARED_NAME`].
    pub names: Vec<String>,
    /// The libp2p peer id of its key.
    pub peer_id: PeerId,
    /// Its Ed25519 key.
    pub public_key: PublicKey,
    /// In hexadecimal; unique within its issuer.
    pub serial: String,
    /// Valid from.
    pub not_before: SystemTime,
    /// Valid until.
    pub not_after: SystemTime,
}

impl Certificate {
    /// Applies our rules. They do not cover the signature: path building checks that, and
    /// also guarantees that the issuer's name in the leaf is the name of the authority that signed.
    pub(crate) fn from_parsed(
        parsed: ParsedCertificate,
    ) -> Result<Certificate, CertificateRejection> {
        let public_key = parsed.public_key.ok_or(CertificateRejection::NotEd25519)?;
        let role = match parsed.roles.as_slice() {
            [] => return Err(CertificateRejection::NoRole),
            [one] => one.parse().map_err(|_| CertificateRejection::BadRole(shortened(one)))?,
            _ => return Err(CertificateRejection::SeveralRoles),
        };
        let organisation = single_organisation(parsed.organisations)?;
        let issuer = single_organisation(parsed.issuer_organisations)?;
        if organisation != issuer {
            return Err(CertificateRejection::OrganisationMismatch { leaf: organisation, issuer });
        }
        Ok(Certificate {
            role,
            organisation,
            names: parsed.names,
            peer_id: public_key.to_peer_id(),
            public_key,
            serial: parsed.serial,
            not_before: parsed.not_before,
            not_after: parsed.not_after,
        })
    }
}

/// With two organisations, readers could differ on which of them counts.
fn single_organisation(organisations: Vec<String>) -> Result<String, CertificateRejection> {
    <[String; 1]>::try_from(organisations)
        .map(|[one]| one)
        .map_err(|several| CertificateRejection::NotOneOrganisation(several.len()))
}

/// Enough to recognise a wrong role in a log.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}
