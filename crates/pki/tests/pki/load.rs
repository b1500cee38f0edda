//! Errors in a node's own files are reported at its start.

use std::path::Path;

use hypha_pki::issue::{self, Validity};
use hypha_pki::{CertificateFiles, CertificateRejection, LoadError, Material, Pki};

use crate::world::{DAY, World, chain};

/// Checks that loading fails, with the expected message.
#[track_caller]
fn refused(material: &Material, world: &World, expected: &str) -> LoadError {
    let error = Pki::from_material(material, world.now).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(expected), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    error
}

#[test]
fn errors_name_the_file_and_the_problem() {
    let world = World::new();
    let (one, two) = (world.node(&world.acme, "one"), world.node(&world.acme, "two"));
    let trust = world.root.cert_pem();
    let with =
        |cert: &str, key: &str, trust: &str, crls| Material::from_pem(cert, key, trust, crls);

    let swapped = with(&one.cert_pem, &two.key_pem, &trust, None);
    refused(&swapped, &world, "the key in key_pem does not belong to the certificate in cert_pem");
    let no_key = with(&one.cert_pem, &one.cert_pem, &trust, None);
    refused(&no_key, &world, "no Ed25519 key in PKCS#8 in key_pem");
    let no_cert = with("", &one.key_pem, &trust, None);
    refused(&no_cert, &world, "no certificate in cert_pem");
    let no_trust = with(&one.cert_pem, &one.key_pem, "nothing\n", None);
    refused(&no_trust, &world, "no certificate in trust_pem");
    let cut = &one.cert_pem[..one.cert_pem.len() / 2];
    refused(&with(cut, &one.key_pem, &trust, None), &world, "cert_pem cannot be used");
    let bad_list = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    let bad_list = with(&one.cert_pem, &one.key_pem, &trust, Some(bad_list));
    refused(&bad_list, &world, "crls_pem cannot be used");
    let node_as_root = with(&one.cert_pem, &one.key_pem, &two.cert_pem, None);
    refused(&node_as_root, &world, "trust_pem trusts `two`, which is not a certificate authority");
    let no_list = with(&one.cert_pem, &one.key_pem, &trust, None).require_crl(true);
    refused(&no_list, &world, "revocation lists are required");
}

#[test]
fn the_own_certificate_is_verified_as_by_peers() {
    let mut world = World::new();
    let other = World::new();
    let node = world.node(&world.acme, "w");
    let foreign = Material::from_pem(&node.cert_pem, &node.key_pem, &other.root.cert_pem(), None);
    let error = refused(&foreign, &world, "peers would reject the certificate in cert_pem");
    assert!(matches!(error, LoadError::Own { reason: CertificateRejection::UnknownIssuer, .. }));

    let past = Validity { not_before: world.now - 3 * DAY, not_after: world.now - DAY };
    let late = world.node_for(&world.acme, "late", past);
    refused(&world.material(&late), &world, "issue a new one with `hypha certutil node`");

    world.revoke(|world| &world.acme, &node.cert_pem);
    let error = refused(&world.material(&node), &world, "was revoked");
    assert!(matches!(error, LoadError::Own { reason: CertificateRejection::Revoked, .. }));
}

#[test]
fn a_root_in_the_chain_file_is_not_presented() {
    let world = World::new();
    let node = world.node(&world.acme, "w");
    let with_root = node.cert_pem.clone() + &world.root.cert_pem();
    let material = Material::from_pem(&with_root, &node.key_pem, &world.root.cert_pem(), None);
    let pki = Pki::from_material(&material, world.now).unwrap();
    assert_eq!(pki.own_chain(), chain(&node.cert_pem));
}

#[test]
fn a_node_directly_under_a_root_works() {
    let world = World::new();
    let issued = world.node(&world.root, "w");
    assert_eq!(chain(&issued.cert_pem).len(), 1);
    let pki = world.pki(&issued);
    assert_eq!(pki.own().organisation, "operator");
    assert_eq!(pki.own_chain().len(), 1);
    assert!(world.verifier().verify(pki.own_chain(), world.now).is_ok());
}

#[test]
fn several_roots_can_be_trusted() {
    let (world, other) = (World::new(), World::new());
    let node = world.node(&world.acme, "w");
    let both = world.root.cert_pem() + &other.root.cert_pem();
    let material = Material::from_pem(&node.cert_pem, &node.key_pem, &both, None);
    let pki = Pki::from_material(&material, world.now).unwrap();
    let stranger = other.node(&other.beta, "w");
    assert_eq!(pki.verify(&chain(&stranger.cert_pem), world.now).unwrap().organisation, "beta");
}

#[test]
fn files_are_read_and_missing_ones_named() {
    let world = World::new();
    let node = world.node(&world.acme, "w");
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut files = CertificateFiles {
        cert_pem: write("cert.pem", &node.cert_pem),
        key_pem: write("key.pem", &node.key_pem),
        trust_pem: write("trust.pem", &world.root.cert_pem()),
        crls_pem: Some(write("crls.pem", &issue::empty_crl(&world.acme, world.now).unwrap())),
        learned_crls: None,
        require_crl: false,
    };
    let pki = Pki::load(&files).unwrap();
    assert_eq!(pki.own(), &node.certificate);
    assert_eq!(pki.keypair().public().to_peer_id(), node.certificate.peer_id);
    assert!(!format!("{pki:?}").contains("key_pem"));

    files.crls_pem = Some(Path::new("/nowhere/crls.pem").to_owned());
    let error = Pki::load(&files).unwrap_err().to_string();
    assert!(error.contains("cannot read /nowhere/crls.pem"), "{error}");
}

#[test]
fn a_signature_is_that_of_the_certificate() {
    let world = World::new();
    let (one, two) = (world.node(&world.acme, "one"), world.node(&world.acme, "two"));
    let signature = world.pki(&one).sign("record", b"bytes");
    let by = |issued: &issue::IssuedCertificate, context| {
        hypha_pki::verify_signature(&issued.certificate, context, b"bytes", &signature)
    };
    assert!(by(&one, "record"));
    assert!(!by(&one, "gossip"));
    assert!(!by(&two, "record"));
}
