//! Certificates: issue, load, verify, show.
//!
//! An operator has one root. Each organisation under it has a certificate authority of its own, and
//! that authority issues a certificate for each node:
//!
//! ```text
//! root CA ── organisation CA ── node        (O = organisation, URI = hypha:role:worker)
//!                   └── revocation list
//! ```
//!
//! A node's libp2p key *is* its certificate's Ed25519 key, so that its peer id, its signatures and
//! its certificate are one identity. Path building is left to webpki. Our own rules are in
//! [`Pki::verify`]: one role, one organisation, and the organisation is that of the issuer.
//!
//! The handshakes of [`Pki::server_config`] and [`Pki::client_config`] check the path and the
//! revocation lists, not our rules: code that accepts a connection calls [`Pki::verify`] with the
//! chain that the peer presented, and admits only the peer that it returns.

mod certificate;
mod date;
pub mod inspect;
pub mod issue;
mod key;
mod learned;
mod material;
mod names;
mod parsed;
mod pem;
mod pki;
mod rejection;
mod reload;
mod revocation;
mod signature;
mod signed_crl;
mod tls;

pub use certificate::{Certificate, ROLE_URI_PREFIX, SHARED_NAME};
pub use date::format_utc;
pub use learned::LearnedCrls;
pub use libp2p_identity::PeerId;
pub use material::{CertificateFiles, LoadError, Material};
pub use names::{NameError, check_node_name, check_organisation, file_stem};
pub use pki::Pki;
pub use rejection::CertificateRejection;
pub use reload::Reloader;
pub use rustls::pki_types::CertificateDer;
pub use signature::{SigningKey, verify_by_key, verify_signature};
pub use signed_crl::{CrlRejection, MAX_SIGNED_CRL_BYTES, SignedCrl};
pub use zeroize::Zeroizing;
