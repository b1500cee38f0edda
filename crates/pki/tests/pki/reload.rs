//! Files that change under a running node.

use std::fs;

use hypha_model::NodeRole;
use hypha_pki::issue::{self, IssuedCertificate, Validity};
use hypha_pki::{CertificateFiles, CertificateRejection, LoadError, Pki, Reloader};

use crate::world::{World, chain};

struct Node {
    world: World,
    issued: IssuedCertificate,
    files: CertificateFiles,
    _directory: tempfile::TempDir,
}

impl Node {
    fn new() -> (Node, Pki, Reloader) {
        let world = World::new();
        let issued = world.node(&world.acme, "w");
        let directory = tempfile::tempdir().unwrap();
        let files = CertificateFiles {
            cert_pem: directory.path().join("cert.pem"),
            key_pem: directory.path().join("key.pem"),
            trust_pem: directory.path().join("trust.pem"),
            crls_pem: Some(directory.path().join("crls.pem")),
            learned_crls: None,
            require_crl: false,
        };
        fs::write(&files.cert_pem, &issued.cert_pem).unwrap();
        fs::write(&files.key_pem, issued.key_pem.as_bytes()).unwrap();
        fs::write(&files.trust_pem, world.root.cert_pem()).unwrap();
        let node = Node { world, issued, files, _directory: directory };
        node.write_list(&[]);
        let (pki, reloader) = Reloader::load(node.files.clone()).unwrap();
        (node, pki, reloader)
    }

    fn write_list(&self, revoked: &[&str]) {
        let list = issue::revoke(&self.world.acme, None, revoked, self.world.now).unwrap();
        self.write_list_text(&list.crl_pem);
    }

    fn write_list_text(&self, text: &str) {
        fs::write(self.files.crls_pem.as_ref().unwrap(), text).unwrap();
    }
}

#[test]
fn unchanged_files_are_not_reported() {
    let (node, _, mut reloader) = Node::new();
    assert!(reloader.poll().is_none());
    // The same bytes with another timestamp.
    fs::write(&node.files.cert_pem, &node.issued.cert_pem).unwrap();
    assert!(reloader.poll().is_none());
}

#[test]
fn a_revocation_takes_effect() {
    let (node, pki, mut reloader) = Node::new();
    let bad = node.world.node(&node.world.acme, "bad");
    let bad_chain = chain(&bad.cert_pem);
    assert!(pki.verify(&bad_chain, node.world.now).is_ok());
    node.write_list(&[&bad.cert_pem]);
    let pki = reloader.poll().unwrap().unwrap();
    assert_eq!(pki.verify(&bad_chain, node.world.now), Err(CertificateRejection::Revoked));
    assert!(reloader.poll().is_none());
}

#[test]
fn a_half_written_list_is_reported_once_and_used_when_complete() {
    let (node, _, mut reloader) = Node::new();
    let bad = node.world.node(&node.world.acme, "bad");
    let list =
        issue::revoke(&node.world.acme, None, &[&bad.cert_pem], node.world.now).unwrap().crl_pem;
    node.write_list_text(&list[..list.len() / 2]);
    assert!(matches!(reloader.poll(), Some(Err(LoadError::Malformed { .. }))));
    assert!(reloader.poll().is_none());
    assert!(reloader.poll().is_none());
    node.write_list_text(&list);
    assert!(reloader.poll().unwrap().is_ok());
}

#[test]
fn a_file_that_vanishes_and_returns_changes_nothing() {
    let (node, _, mut reloader) = Node::new();
    let aside = node.files.trust_pem.with_extension("aside");
    for _ in 0..2 {
        fs::rename(&node.files.trust_pem, &aside).unwrap();
        assert!(matches!(reloader.poll(), Some(Err(LoadError::Read { .. }))));
        assert!(reloader.poll().is_none());
        fs::rename(&aside, &node.files.trust_pem).unwrap();
        assert!(reloader.poll().is_none());
    }
}

#[test]
fn a_renewed_certificate_is_reloaded() {
    let (node, old, mut reloader) = Node::new();
    let longer = Validity::days(node.world.now, 200);
    let (acme, key) = (&node.world.acme, &node.issued.key_pem);
    let renewed = issue::renew(acme, key, "w", NodeRole::Worker, &[], longer).unwrap();
    fs::write(&node.files.cert_pem, &renewed.cert_pem).unwrap();
    let new = reloader.poll().unwrap().unwrap();
    assert_eq!(new.own().peer_id, old.own().peer_id);
    assert_ne!(new.own().serial, old.own().serial);
    assert!(new.own().not_after > old.own().not_after);
}

#[test]
fn another_key_needs_a_restart() {
    let (node, old, mut reloader) = Node::new();
    let other = node.world.node(&node.world.acme, "w");
    fs::write(&node.files.cert_pem, &other.cert_pem).unwrap();
    assert!(matches!(reloader.poll(), Some(Err(LoadError::KeyMismatch { .. }))));
    fs::write(&node.files.key_pem, other.key_pem.as_bytes()).unwrap();
    let error = reloader.poll().unwrap().unwrap_err();
    assert!(error.to_string().contains("restart the node"), "{error}");
    assert!(reloader.poll().is_none());
    assert_eq!(old.own(), &node.issued.certificate);
}

#[test]
fn a_revoked_own_certificate_is_reported() {
    let (node, _, mut reloader) = Node::new();
    node.write_list(&[&node.issued.cert_pem]);
    let error = reloader.poll().unwrap().unwrap_err();
    assert!(
        matches!(error, LoadError::Own { reason: CertificateRejection::Revoked, .. }),
        "{error}"
    );
}
