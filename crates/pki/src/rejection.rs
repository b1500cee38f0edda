//! Why a certificate chain is rejected.

use rustls::CertificateError;
use thiserror::Error;

/// Why a chain is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CertificateRejection {
    /// Nothing was presented.
    #[error("no certificate was presented")]
    NoCertificate,
    /// More certificates, or larger ones, than any real chain has.
    #[error("the certificate chain is too long: {0}")]
    TooLong(&'static str),
    /// Not a certificate.
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    /// No path to a trusted authority.
    #[error(
        "the certificate was not issued under a root that is trusted here; compare trust_pem of both nodes"
    )]
    UnknownIssuer,
    /// It names a trusted issuer, which did not sign it.
    #[error("the certificate's signature is not its issuer's")]
    BadSignature,
    /// It, or its issuer, has expired.
    #[error("the certificate, or that of its issuer, has expired")]
    Expired,
    /// It, or its issuer, is not valid yet.
    #[error("the certificate, or that of its issuer, is not valid yet: check the clocks")]
    NotYetValid,
    /// It, or its issuer, is in a revocation list.
    #[error("the certificate, or that of its issuer, was revoked")]
    Revoked,
    /// Revocation lists are required, and its issuer's is missing.
    #[error("there is no revocation list of an issuer in the chain, and one is required here")]
    RevocationUnknown,
    /// The list that would decide cannot be trusted.
    #[error("the revocation list of the certificate's issuer is unusable: {0}")]
    BadRevocationList(String),
    /// A node's certificate was used to issue another.
    #[error("the certificate was issued by one that may not issue certificates")]
    IssuerNotAuthority,
    /// A certificate authority presents itself as a node.
    #[error("the certificate is that of an authority, not of a node")]
    IsAuthority,
    /// It is for another purpose.
    #[error("the certificate is not meant for authentication between nodes")]
    WrongUsage,
    /// Not our kind of key.
    #[error("the certificate's key is not an Ed25519 key")]
    NotEd25519,
    /// No role in it.
    #[error("the certificate has no role")]
    NoRole,
    /// A role that does not exist.
    #[error("the certificate has the unknown role `{}`", .0.escape_debug())]
    BadRole(String),
    /// More than one role.
    #[error("the certificate has more than one role")]
    SeveralRoles,
    /// None, or several.
    #[error("the certificate, or that of its issuer, names {0} organisations instead of one")]
    NotOneOrganisation(usize),
    /// An authority issued for another organisation.
    #[error(
        "the certificate is of organisation `{}`, its issuer is of `{}`",
        .leaf.escape_debug(), .issuer.escape_debug()
    )]
    OrganisationMismatch {
        /// The certificate's organisation.
        leaf: String,
        /// The organisation of the authority that issued it.
        issuer: String,
    },
    /// Any other objection of path building.
    #[error("the certificate is not acceptable: {0}")]
    Unacceptable(String),
}

impl CertificateRejection {
    /// The reason in a failed handshake, if it was our side that refused a certificate.
    pub fn from_tls(error: &rustls::Error) -> Option<CertificateRejection> {
        match error {
            rustls::Error::NoCertificatesPresented => Some(CertificateRejection::NoCertificate),
            rustls::Error::InvalidCertRevocationList(error) => {
                Some(CertificateRejection::BadRevocationList(format!("{error:?}")))
            }
            rustls::Error::InvalidCertificate(error) => {
                Some(CertificateRejection::of_handshake(error))
            }
            _ => None,
        }
    }

    fn of_handshake(error: &CertificateError) -> CertificateRejection {
        use CertificateError as E;
        match error {
            E::BadEncoding => CertificateRejection::Unreadable("bad encoding".to_owned()),
            E::Expired | E::ExpiredContext { .. } => CertificateRejection::Expired,
            E::NotValidYet | E::NotValidYetContext { .. } => CertificateRejection::NotYetValid,
            E::Revoked => CertificateRejection::Revoked,
            E::UnknownIssuer => CertificateRejection::UnknownIssuer,
            E::UnknownRevocationStatus => CertificateRejection::RevocationUnknown,
            E::BadSignature => CertificateRejection::BadSignature,
            E::InvalidPurpose | E::InvalidPurposeContext { .. } => CertificateRejection::WrongUsage,
            E::Other(other) => match other.0.downcast_ref::<webpki::Error>() {
                Some(error) => CertificateRejection::from(error.clone()),
                None => CertificateRejection::Unacceptable(other.to_string()),
            },
            other => CertificateRejection::Unacceptable(other.to_string()),
        }
    }
}

impl From<webpki::Error> for CertificateRejection {
    fn from(error: webpki::Error) -> CertificateRejection {
        use webpki::Error as E;
        match error {
            E::BadDer | E::BadDerTime | E::TrailingData(_) => {
                CertificateRejection::Unreadable(error.to_string())
            }
            E::UnknownIssuer => CertificateRejection::UnknownIssuer,
            E::InvalidSignatureForPublicKey => CertificateRejection::BadSignature,
            E::CertExpired { .. } => CertificateRejection::Expired,
            E::CertNotValidYet { .. } => CertificateRejection::NotYetValid,
            E::CertRevoked => CertificateRejection::Revoked,
            E::UnknownRevocationStatus => CertificateRejection::RevocationUnknown,
            E::InvalidCrlSignatureForPublicKey
            | E::UnsupportedCrlSignatureAlgorithmContext(_)
            | E::UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_)
            | E::IssuerNotCrlSigner => CertificateRejection::BadRevocationList(error.to_string()),
            E::EndEntityUsedAsCa => CertificateRejection::IssuerNotAuthority,
            E::CaUsedAsEndEntity => CertificateRejection::IsAuthority,
            E::RequiredEkuNotFoundContext(_) => CertificateRejection::WrongUsage,
            E::UnsupportedSignatureAlgorithmContext(_)
            | E::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
                CertificateRejection::Unacceptable("it is not signed with Ed25519".to_owned())
            }
            other => CertificateRejection::Unacceptable(other.to_string()),
        }
    }
}
