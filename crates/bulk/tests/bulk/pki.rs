//! Certificates for two nodes of one organisation, and for an untrusted node.

use std::sync::Arc;
use std::time::SystemTime;

use hypha_bulk::PeerKey;
use hypha_model::NodeRole;
use hypha_pki::issue::{self, Validity};
use hypha_pki::{CertificateDer, Material, Pki};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

/// A node with its certificate.
pub(crate) struct Node {
    pki: Pki,
}

impl Node {
    /// Two nodes that trust the same root.
    pub(crate) fn pair() -> (Arc<Node>, Arc<Node>) {
        let now = SystemTime::now();
        let validity = Validity::days(now, 1);
        let root = issue::root("Root", validity).unwrap();
        let organisation = issue::organisation(&root, "Org", validity).unwrap();
        let node = |name| {
            let issued = issue::node(&organisation, name, NodeRole::Worker, &[], validity).unwrap();
            let material =
                Material::from_pem(&issued.cert_pem, &issued.key_pem, &root.cert_pem(), None);
            Arc::new(Node { pki: Pki::from_material(&material, now).unwrap() })
        };
        (node("one"), node("two"))
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.pki.server_config(&[])
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.pki.client_config(&[])
    }

    pub(crate) fn name() -> ServerName<'static> {
        Pki::server_name()
    }
}

/// Admits every peer that TLS accepts, by its leaf.
pub(crate) fn admit(chain: &[CertificateDer<'_>]) -> Result<PeerKey, String> {
    let leaf = chain.first().ok_or("no certificate")?;
    Ok(PeerKey::new(blake3::hash(leaf).to_hex().to_string()))
}
