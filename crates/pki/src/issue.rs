//! Issuing certificates and revocation lists, in memory: the caller writes the
//! text to files.

mod authority;
mod crl;
mod node;

use std::time::{Duration, SystemTime};

use thiserror::Error;

pub use authority::{Authority, organisation, root};
pub use crl::{Revocation, empty_crl, revoke};
pub use node::{IssuedCertificate, node, renew};

use crate::NameError;

/// How long a root is valid: to replace it, every node's trust has to be replaced.
pub const ROOT_DAYS: u32 = 3650;

/// How long an organisation's authority is valid.
pub const ORGANISATION_DAYS: u32 = 1825;

/// How long a node's certificate is valid.
pub const NODE_DAYS: u32 = 365;

/// The longest that anything can be made valid for: a hundred years.
pub const MAX_DAYS: u32 = 36_500;

/// How far certificates are backdated: a machine whose clock is a little slow should accept them
/// right after they were made.
const BACKDATED: Duration = Duration::from_secs(5 * 60);

const DAY: Duration = Duration::from_secs(86_400);

/// From when to when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Valid from.
    pub not_before: SystemTime,
    /// Valid until. A certificate never outlives its issuer, whatever is requested here.
    pub not_after: SystemTime,
}

impl Validity {
    /// `days` from `now`, at most [`MAX_DAYS`], and a few minutes back.
    pub fn days(now: SystemTime, days: u32) -> Validity {
        Validity { not_before: now - BACKDATED, not_after: now + DAY * days.min(MAX_DAYS) }
    }
}

/// Why nothing was issued.
#[derive(Debug, Error)]
pub enum IssueError {
    /// A name that cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Neither a host name nor an address.
    #[error("`{}` is neither a host name nor an IP address", .0.escape_debug())]
    AlternativeName(String),
    /// More names than a certificate has room for.
    #[error("a certificate has room for {0} more names at most")]
    TooManyNames(usize),
    /// Not a certificate authority's file.
    #[error("the authority's certificate cannot be used: {0}")]
    BadAuthority(String),
    /// Key and certificate of different authorities.
    #[error("the authority's key does not belong to its certificate")]
    KeyMismatch,
    /// Not our kind of key, or none.
    #[error("there is no Ed25519 key in PKCS#8 in the key file")]
    BadKey,
    /// An organisation's authority cannot make further authorities.
    #[error("the certificate is not that of a root, and only a root can issue organisations")]
    NotRoot,
    /// Its certificates would not be accepted.
    #[error("the authority's certificate is valid from {from} to {until}, which is not now")]
    AuthorityNotValid {
        /// Valid from.
        from: String,
        /// Valid until.
        until: String,
    },
    /// The list to extend cannot be parsed.
    #[error("the revocation list cannot be used: {0}")]
    BadRevocationList(String),
    /// The list to extend is signed with another key.
    #[error("the revocation list names this authority, but was not signed by it")]
    ForeignRevocationList,
    /// A certificate that cannot be parsed.
    #[error("the certificate cannot be read: {0}")]
    BadCertificate(String),
    /// The certificate of another issuer.
    #[error("`{}` was not issued by this authority, which cannot revoke it", .0.escape_debug())]
    ForeignCertificate(String),
    /// The encoder's error.
    #[error("cannot encode: {0}")]
    Encode(#[from] rcgen::Error),
}
