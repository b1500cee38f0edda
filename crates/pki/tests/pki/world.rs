//! A root, two organisations, and certificates that should never be issued.

use std::time::{Duration, SystemTime};

use hypha_model::NodeRole;
use hypha_pki::issue::{self, Authority, IssuedCertificate, Validity};
use hypha_pki::{CertificateDer, Material, Pki};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, PKCS_ED25519,
    SanType,
};
use rustls::pki_types::pem::PemObject;

pub(crate) const DAY: Duration = Duration::from_secs(86_400);

pub(crate) struct World {
    pub(crate) now: SystemTime,
    pub(crate) root: Authority,
    pub(crate) acme: Authority,
    pub(crate) beta: Authority,
    pub(crate) crls: Vec<String>,
}

impl World {
    pub(crate) fn new() -> World {
        let now = SystemTime::now();
        let validity = Validity { not_before: now - 10 * DAY, not_after: now + 1000 * DAY };
        let root = issue::root("operator", validity).unwrap();
        let acme = issue::organisation(&root, "acme", validity).unwrap();
        let beta = issue::organisation(&root, "beta", validity).unwrap();
        World { now, root, acme, beta, crls: Vec::new() }
    }

    pub(crate) fn node(&self, authority: &Authority, name: &str) -> IssuedCertificate {
        self.node_for(authority, name, Validity::days(self.now, 100))
    }

    pub(crate) fn node_for(
        &self,
        authority: &Authority,
        name: &str,
        validity: Validity,
    ) -> IssuedCertificate {
        issue::node(authority, name, NodeRole::Worker, &[], validity).unwrap()
    }

    pub(crate) fn revoke(&mut self, authority: fn(&World) -> &Authority, cert_pem: &str) {
        let revoked = issue::revoke(authority(self), None, &[cert_pem], self.now).unwrap();
        self.crls.push(revoked.crl_pem);
    }

    pub(crate) fn material(&self, issued: &IssuedCertificate) -> Material {
        let crls = self.crls.concat();
        let crls = (!crls.is_empty()).then_some(crls.as_str());
        Material::from_pem(&issued.cert_pem, &issued.key_pem, &self.root.cert_pem(), crls)
    }

    pub(crate) fn pki(&self, issued: &IssuedCertificate) -> Pki {
        Pki::from_material(&self.material(issued), self.now).unwrap()
    }

    /// A node that verifies others' certificates, with the world's lists.
    pub(crate) fn verifier(&self) -> Pki {
        self.pki(&self.node(&self.beta, "verifier"))
    }
}

pub(crate) fn chain(cert_pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(cert_pem.as_bytes()).map(Result::unwrap).collect()
}

/// A leaf that is valid except for the change of `spoil`, with its key.
pub(crate) fn odd_leaf(
    authority: &Authority,
    now: SystemTime,
    key: &KeyPair,
    spoil: impl FnOnce(&mut CertificateParams),
) -> String {
    let mut parameters = CertificateParams::new(vec!["node.hypha.internal".to_owned()]).unwrap();
    parameters.not_before = (now - DAY).into();
    parameters.not_after = (now + DAY).into();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::OrganizationName, authority.organisation());
    parameters.is_ca = IsCa::ExplicitNoCa;
    parameters.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    parameters.subject_alt_names.push(role("worker"));
    spoil(&mut parameters);
    let pen = KeyPair::from_pem(&authority.key_pem()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&authority.cert_pem(), pen).unwrap();
    parameters.signed_by(key, &issuer).unwrap().pem() + &authority.cert_pem()
}

pub(crate) fn ed25519() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).unwrap()
}

pub(crate) fn role(name: &str) -> SanType {
    SanType::URI(format!("hypha:role:{name}").try_into().unwrap())
}
