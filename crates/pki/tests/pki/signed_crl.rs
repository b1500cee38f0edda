//! Revocation lists that nodes pass on.

use std::fs;

use hypha_pki::issue::{self, Authority};
use hypha_pki::{CertificateFiles, CertificateRejection, CrlRejection, Pki, Reloader, SignedCrl};

use crate::world::{World, chain};

/// The lists of a gateway with `crls` in its file, as it passes them on.
fn lists(world: &World, crls: &[&str]) -> Vec<SignedCrl> {
    let gateway =
        World { crls: crls.iter().map(|text| (*text).to_owned()).collect(), ..copy(world) };
    let gateway = gateway.pki(&world.node(&world.acme, "gateway"));
    gateway.signed_crls(&[])
}

fn copy(world: &World) -> World {
    let authority = |one: &Authority| Authority::from_pem(&one.cert_pem(), &one.key_pem()).unwrap();
    World {
        now: world.now,
        root: authority(&world.root),
        acme: authority(&world.acme),
        beta: authority(&world.beta),
        crls: world.crls.clone(),
    }
}

#[test]
fn a_list_is_verified_by_the_root_alone() {
    let world = World::new();
    let bad = world.node(&world.acme, "bad");
    let acme = issue::revoke(&world.acme, None, &[&bad.cert_pem], world.now).unwrap().crl_pem;
    let root = issue::empty_crl(&world.root, world.now).unwrap();
    let sent = lists(&world, &[&acme, &root]);
    assert_eq!(sent.len(), 2);
    // A node of another organisation, without any list.
    let receiver = world.verifier();
    for list in sent {
        let received = SignedCrl::from_bytes(&list.to_bytes()).unwrap();
        assert_eq!(received, list);
        assert_eq!(receiver.verify_crl(&received, world.now), Ok(()));
    }
}

#[test]
fn an_authority_is_known_by_its_certificate_beside_the_list_or_by_its_nodes() {
    let world = World::new();
    let beta = issue::empty_crl(&world.beta, world.now).unwrap();
    assert!(lists(&world, &[&beta]).is_empty());
    assert_eq!(lists(&world, &[&beta, &world.beta.cert_pem()]).len(), 1);
    let gateway = World { crls: vec![beta], ..copy(&world) };
    let gateway = gateway.pki(&world.node(&world.acme, "gateway"));
    let seen = chain(&world.node(&world.beta, "seen").cert_pem);
    assert_eq!(gateway.signed_crls(&seen[1..]).len(), 1);
}

#[test]
fn only_a_newer_list_of_a_trusted_authority_is_used() {
    let world = World::new();
    let first = issue::empty_crl(&world.acme, world.now).unwrap();
    let second = issue::revoke(&world.acme, Some(&first), &[], world.now).unwrap().crl_pem;
    let of = |crl: &str| lists(&world, &[crl]).remove(0);
    let receiver = |crls: &[&str]| {
        let crls = crls.iter().map(|text| (*text).to_owned()).collect();
        World { crls, ..copy(&world) }.verifier()
    };
    let check = |receiver: &Pki, list: &SignedCrl, expected| {
        assert_eq!(receiver.verify_crl(list, world.now).err(), expected);
    };
    check(&receiver(&[&first]), &of(&second), None);
    let old = |number, held| Some(CrlRejection::NotNewer { number, held });
    check(&receiver(&[&first]), &of(&first), old(1, 1));
    check(&receiver(&[&second]), &of(&first), old(1, 2));

    let other = World::new();
    let foreign = issue::empty_crl(&other.acme, other.now).unwrap();
    let foreign = lists(&other, &[&foreign]).remove(0);
    check(&world.verifier(), &foreign, Some(CrlRejection::UnknownAuthority));
}

#[test]
fn a_forged_list_is_refused() {
    let world = World::new();
    let list = lists(&world, &[&issue::empty_crl(&world.acme, world.now).unwrap()]).remove(0);
    let receiver = world.verifier();
    let bytes = list.to_bytes();
    let mut accepted = Vec::new();
    for at in 0..bytes.len() {
        let mut forged = bytes.clone();
        forged[at] ^= 1;
        let Ok(forged) = SignedCrl::from_bytes(&forged) else { continue };
        if receiver.verify_crl(&forged, world.now).is_ok() {
            accepted.push(at);
        }
    }
    assert_eq!(accepted, <[usize; 0]>::default(), "of {}", bytes.len());
    // Signed by another authority of the same network.
    let beta = issue::empty_crl(&world.beta, world.now).unwrap();
    let beta = lists(&world, &[&beta, &world.beta.cert_pem()]).remove(0).to_bytes();
    let (crl, authority) = (chain_der(&beta), chain(&world.acme.cert_pem()).remove(0));
    let mixed = SignedCrl::from_bytes(&[crl.as_slice(), &authority].concat()).unwrap();
    assert_eq!(receiver.verify_crl(&mixed, world.now), Err(CrlRejection::BadSignature));
    let huge = vec![0; hypha_pki::MAX_SIGNED_CRL_BYTES + 1];
    assert!(matches!(SignedCrl::from_bytes(&huge), Err(CrlRejection::TooLarge(_))));
    assert!(matches!(SignedCrl::from_bytes(b"no"), Err(CrlRejection::Unreadable(_))));
}

/// The list alone: two bytes of tag and length form, two of length, then the content.
fn chain_der(bytes: &[u8]) -> Vec<u8> {
    let length = match bytes[1] {
        0x82 => 4 + usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
        0x81 => 3 + usize::from(bytes[2]),
        short => 2 + usize::from(short),
    };
    bytes[..length].to_vec()
}

#[test]
fn a_learned_list_takes_effect_and_survives_a_restart() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let own = world.node(&world.beta, "scheduler");
    let path = |name: &str| directory.path().join(name);
    let files = CertificateFiles {
        cert_pem: path("cert.pem"),
        key_pem: path("key.pem"),
        trust_pem: path("trust.pem"),
        crls_pem: None,
        learned_crls: Some(path("data/learned-crls.pem")),
        require_crl: false,
    };
    fs::write(&files.cert_pem, &own.cert_pem).unwrap();
    fs::write(&files.key_pem, own.key_pem.as_bytes()).unwrap();
    fs::write(&files.trust_pem, world.root.cert_pem()).unwrap();
    let (pki, mut reloader) = Reloader::load(files.clone()).unwrap();
    let bad = world.node(&world.acme, "bad");
    let bad_chain = chain(&bad.cert_pem);
    assert!(pki.verify(&bad_chain, world.now).is_ok());

    let list = issue::revoke(&world.acme, None, &[&bad.cert_pem], world.now).unwrap().crl_pem;
    reloader.learned().add(lists(&world, &[&list]).remove(0)).unwrap();
    let pki = reloader.poll().unwrap().unwrap();
    assert_eq!(pki.verify(&bad_chain, world.now), Err(CertificateRejection::Revoked));
    assert!(reloader.poll().is_none());

    let (pki, reloader) = Reloader::load(files.clone()).unwrap();
    assert_eq!(pki.verify(&bad_chain, world.now), Err(CertificateRejection::Revoked));
    // It can be passed on, with its authority.
    assert_eq!(pki.signed_crls(&[]).len(), 1);
    let newer = issue::revoke(&world.acme, Some(&list), &[], world.now).unwrap().crl_pem;
    reloader.learned().add(lists(&world, &[&newer]).remove(0)).unwrap();
    let text = fs::read_to_string(files.learned_crls.unwrap()).unwrap();
    assert_eq!(text.matches("BEGIN X509 CRL").count(), 1, "an older edition is replaced");
}
